//! Scenarios: what a person asks for, and how it becomes a [`Schedule`].
//!
//! One stream is described by the same names as flags of `drive` and as keys of a `[[stream]]` table in a scenario file, so
//! that a command line can be turned into a file by copying it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::gaps::Gaps;
use super::lengths::{Column, LengthSpec, Pairs};
use super::prefix::PrefixSpec;
use super::rate::Rate;
use super::reshape::{Reshape, Window};
use super::seed::stream;
use super::span::Span;
use super::trace::{self, TraceError};
use super::{Planned, Schedule, StreamName, synthetic};

/// The model name of a stream that gives none.
const DEFAULT_MODEL: &str = "default";
/// Lengths of a synthetic stream that gives none: short chat.
const DEFAULT_INPUT: LengthSpec = LengthSpec::Fixed(200);
const DEFAULT_OUTPUT: LengthSpec = LengthSpec::Fixed(50);
/// How far copies of a trace's request are moved when nothing is said.
const DEFAULT_COPY_JITTER: Duration = Duration::from_secs(5);

/// One stream of requests: a trace, or arrivals drawn from a rate.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, clap::Args)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct StreamSpec {
    /// Model that the requests name.
    #[arg(long, help_heading = "Load")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Replay a trace: a file (.csv, .jsonl, also .gz), or azure-2023-conv or mooncake-conversation, which are built in.
    #[arg(
        long,
        value_name = "NAME|FILE",
        conflicts_with = "rate",
        help_heading = "Load"
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<PathBuf>,
    /// How the trace is written, where its first line does not tell.
    #[arg(long, value_enum, requires = "trace", help_heading = "Load")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_format: Option<trace::Format>,
    /// Part of the trace to replay, in its own time: 10m..20m.
    #[arg(
        long,
        value_name = "START..END",
        requires = "trace",
        help_heading = "Load"
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<Window>,
    /// Speed of the replay: 10 turns an hour into 6 minutes, with ten times the rate.
    #[arg(long, value_name = "FACTOR", requires = "trace", help_heading = "Load")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_scale: Option<f64>,
    /// Requests per request of the trace: below 1 they are thinned by chance, above 1 copied and moved (see --copy-jitter).
    #[arg(long, value_name = "FACTOR", requires = "trace", help_heading = "Load")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_scale: Option<f64>,
    /// How far copies may be moved either way, in the trace's time [default: 5s].
    #[arg(
        long,
        value_name = "DURATION",
        requires = "trace",
        help_heading = "Load"
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copy_jitter: Option<Span>,
    /// Spread stamps that were rounded to a grid over this long; Mooncake's conversation trace needs 3s.
    #[arg(
        long,
        value_name = "DURATION",
        requires = "trace",
        help_heading = "Load"
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<Span>,
    /// Requests per second: 20, step:5@0s,20@60s, ramp:2@0s,10@300s or sine:5..45@600s.
    #[arg(long, value_name = "RATE", help_heading = "Load")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Gaps between arrivals: constant, poisson, gamma:CV or weibull:CV [default: poisson].
    #[arg(long, value_name = "SHAPE", requires = "rate", help_heading = "Load")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shape: Option<Gaps>,
    /// Independent arrival processes that share the rate; each is as bursty as --shape says.
    #[arg(long, value_name = "COUNT", requires = "rate", help_heading = "Load")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clients: Option<u32>,
    /// Prompt lengths in tokens: 512, uniform:100..1000, lognormal:MU,SIGMA, exponential:MEAN, weibull:SHAPE,SCALE,
    /// pareto:MINIMUM,ALPHA or trace:NAME [default: the trace's own, else 200].
    #[arg(long, value_name = "LENGTHS", help_heading = "Load")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<LengthSpec>,
    /// Output lengths in tokens, as --input-tokens [default: the trace's own, else 50].
    #[arg(long, value_name = "LENGTHS", help_heading = "Load")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<LengthSpec>,
    /// Spearman correlation of drawn prompt and output lengths, -1 to 1 [default: 0].
    #[arg(
        long,
        value_name = "RHO",
        allow_negative_numbers = true,
        help_heading = "Load"
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank_correlation: Option<f64>,
    /// Shorten longer prompts to this many tokens.
    #[arg(long, value_name = "TOKENS", help_heading = "Load")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_input: Option<u32>,
    /// Shorten longer outputs to this many tokens.
    #[arg(long, value_name = "TOKENS", help_heading = "Load")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output: Option<u32>,
    /// Shared beginnings of prompts: none or groups:COUNT,TOKENS[,ZIPF] [default: the trace's own, else none].
    #[arg(long, value_name = "PREFIX", help_heading = "Load")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<PrefixSpec>,
    /// When the stream begins, from the run's start [default: 0s].
    #[arg(long, value_name = "DURATION", help_heading = "Load")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<Span>,
    /// How long the stream lasts [default: the trace's length; needed with --rate].
    #[arg(long, value_name = "DURATION", help_heading = "Load")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<Span>,
    /// Stop after this many requests.
    #[arg(long, value_name = "COUNT", help_heading = "Load")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<usize>,
}

/// Several streams at once, and the seed of everything drawn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Scenario {
    /// Seed of every random draw.
    #[serde(default = "default_seed")]
    pub seed: u64,
    /// The streams.
    #[serde(rename = "stream")]
    pub streams: Vec<StreamSpec>,
}

fn default_seed() -> u64 {
    1
}

/// A schedule that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// The scenario file could not be read.
    #[error("reading the scenario {path}")]
    Read {
        /// File.
        path: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The scenario file is not what it should be.
    #[error("the scenario {path} is not valid: {reason}")]
    Parse {
        /// File.
        path: String,
        /// Place and reason.
        reason: String,
    },
    /// A field of a stream has an impossible value or is missing.
    #[error("stream {stream} ({model}): {field} {reason}")]
    Field {
        /// Position from 1.
        stream: usize,
        /// Its model.
        model: String,
        /// Flag or key.
        field: &'static str,
        /// What is wrong and what to do.
        reason: String,
    },
    /// A trace could not be read.
    #[error("stream {stream} ({model})")]
    Trace {
        /// Position from 1.
        stream: usize,
        /// Its model.
        model: String,
        /// Why.
        #[source]
        source: TraceError,
    },
    /// Nothing would be sent.
    #[error(
        "the schedule holds no requests: lengthen the window or the duration, or raise the rate"
    )]
    Empty,
}

impl Scenario {
    /// Reads a scenario file (TOML).
    ///
    /// # Errors
    /// It cannot be read, has unknown keys, or a value is not valid.
    pub fn read(path: &Path) -> Result<Self, SpecError> {
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|source| SpecError::Read {
            path: shown.clone(),
            source,
        })?;
        toml::from_str(&text).map_err(|error| SpecError::Parse {
            path: shown,
            reason: error.to_string().trim_end().to_owned(),
        })
    }

    /// Makes the schedule.
    ///
    /// # Errors
    /// A field is impossible, a trace cannot be read, or there would be no requests.
    pub fn schedule(&self) -> Result<Schedule, SpecError> {
        let mut streams = Vec::with_capacity(self.streams.len());
        let mut end = Duration::ZERO;
        for (index, spec) in self.streams.iter().enumerate() {
            let model = spec
                .model
                .clone()
                .unwrap_or_else(|| DEFAULT_MODEL.to_owned());
            let builder = Builder {
                spec,
                seed: self.seed,
                entity: index as u64,
                at: (index + 1, model.clone()),
            };
            let (planned, length) = builder.build()?;
            end = end.max(spec.start.map_or(Duration::ZERO, |start| start.0) + length);
            streams.push((StreamName { model }, planned));
        }
        let schedule = Schedule::merge(streams, end);
        if schedule.requests().is_empty() {
            return Err(SpecError::Empty);
        }
        Ok(schedule)
    }
}

struct Builder<'a> {
    spec: &'a StreamSpec,
    seed: u64,
    entity: u64,
    at: (usize, String),
}

impl Builder<'_> {
    fn field(&self, field: &'static str, reason: impl Into<String>) -> SpecError {
        SpecError::Field {
            stream: self.at.0,
            model: self.at.1.clone(),
            field,
            reason: reason.into(),
        }
    }

    fn trace_error(&self, source: TraceError) -> SpecError {
        SpecError::Trace {
            stream: self.at.0,
            model: self.at.1.clone(),
            source,
        }
    }

    fn factor(&self, field: &'static str, value: Option<f64>) -> Result<f64, SpecError> {
        let value = value.unwrap_or(1.0);
        if value.is_finite() && value > 0.0 && value <= 100_000.0 {
            Ok(value)
        } else {
            Err(self.field(
                field,
                format!("is {value}; give a factor above 0 and up to 100000"),
            ))
        }
    }

    /// The stream's requests, shifted by its start, and its length.
    fn build(&self) -> Result<(Vec<Planned>, Duration), SpecError> {
        let (mut planned, length) = match (&self.spec.trace, &self.spec.rate) {
            (Some(trace), None) => self.replay(trace)?,
            (None, Some(rate)) => self.draw_arrivals(rate)?,
            (None, None) => {
                return Err(self.field(
                    "rate",
                    "is missing: give a rate (20) or a trace (azure-2023-conv)",
                ));
            }
            (Some(_), Some(_)) => {
                return Err(self.field(
                    "rate",
                    "and trace exclude each other: a trace brings its own arrivals",
                ));
            }
        };
        self.draw_lengths(&mut planned)?;
        self.draw_prefixes(&mut planned);
        let start = self.spec.start.map_or(Duration::ZERO, |start| start.0);
        let length = self.spec.duration.map_or(length, |duration| duration.0);
        planned.retain(|request| request.at < length || self.spec.duration.is_none());
        if let Some(most) = self.spec.requests {
            planned.truncate(most);
        }
        let length = match self.spec.requests {
            // The rest of the time would be empty.
            Some(_) => planned.last().map_or(Duration::ZERO, |request| request.at),
            None => length,
        };
        for request in &mut planned {
            request.at += start;
        }
        Ok((planned, length))
    }

    fn replay(&self, source: &Path) -> Result<(Vec<Planned>, Duration), SpecError> {
        for (field, given) in [
            ("shape", self.spec.shape.is_some()),
            ("clients", self.spec.clients.is_some()),
        ] {
            if given {
                return Err(self.field(
                    field,
                    "has no meaning with a trace, which brings its own arrivals",
                ));
            }
        }
        let trace = trace::read(source, self.spec.trace_format)
            .map_err(|source| self.trace_error(source))?;
        let reshape = Reshape {
            window: self.spec.window,
            spread: self.spec.spread.map_or(Duration::ZERO, |spread| spread.0),
            rate_scale: self.factor("rate-scale", self.spec.rate_scale)?,
            copy_jitter: self
                .spec
                .copy_jitter
                .map_or(DEFAULT_COPY_JITTER, |jitter| jitter.0),
            time_scale: self.factor("time-scale", self.spec.time_scale)?,
        };
        let whole = trace.rows.last().map_or(Duration::ZERO, |row| row.at);
        let window = self.spec.window.map_or(whole, |window| {
            window
                .end
                .map_or(whole, |end| end.min(whole))
                .saturating_sub(window.start)
        });
        let planned = reshape
            .apply(&trace.rows, self.seed, self.entity)
            .into_iter()
            .map(|row| Planned {
                at: row.at,
                stream: 0,
                client: row.client,
                input_tokens: row.input_tokens,
                output_tokens: row.output_tokens,
                prefix: row.prefix,
            })
            .collect();
        Ok((planned, reshape.replayed(window)))
    }

    fn draw_arrivals(&self, rate: &Rate) -> Result<(Vec<Planned>, Duration), SpecError> {
        for (field, given) in [
            ("window", self.spec.window.is_some()),
            ("time-scale", self.spec.time_scale.is_some()),
            ("rate-scale", self.spec.rate_scale.is_some()),
            ("copy-jitter", self.spec.copy_jitter.is_some()),
            ("spread", self.spec.spread.is_some()),
            ("trace-format", self.spec.trace_format.is_some()),
        ] {
            if given {
                return Err(self.field(field, "only applies to a trace"));
            }
        }
        let duration = match (self.spec.duration, self.spec.requests) {
            (Some(duration), _) => duration.0,
            // Long enough for every request; it is cut to their number below.
            (None, Some(requests)) => {
                let needed = rate.inverse(4.0 * requests as f64 + 100.0).map_or_else(
                    || super::numeric::duration(86_400.0 * 365.0),
                    super::numeric::duration,
                );
                needed.max(Duration::from_secs(1))
            }
            (None, None) => {
                return Err(self.field(
                    "duration",
                    "is missing: with a rate, say for how long (60s) or how many requests",
                ));
            }
        };
        let gaps = self.spec.shape.unwrap_or(Gaps::Poisson);
        let clients = self.spec.clients.unwrap_or(1);
        if clients == 0 {
            return Err(self.field("clients", "is 0; give at least 1"));
        }
        let share = rate.times(1.0 / f64::from(clients));
        let mut instants: Vec<(Duration, u32)> = Vec::new();
        for client in 0..clients {
            // Streams and clients have separate halves of the entity number.
            let entity = (self.entity << 32) | u64::from(client);
            instants.extend(
                synthetic::arrivals(&share, gaps, duration, self.seed, entity)
                    .into_iter()
                    .map(|at| (at, client)),
            );
        }
        instants.sort_unstable();
        let planned = instants
            .into_iter()
            .map(|(at, client)| Planned {
                at,
                stream: 0,
                client,
                input_tokens: 0,
                output_tokens: 0,
                prefix: super::Prefix::None,
            })
            .collect();
        Ok((planned, duration))
    }

    /// Gives every request its lengths: drawn where asked or where the source has none, then shortened to the limits.
    fn draw_lengths(&self, planned: &mut [Planned]) -> Result<(), SpecError> {
        let rho = self.spec.rank_correlation.unwrap_or(0.0);
        if !(-1.0..=1.0).contains(&rho) {
            return Err(self.field(
                "rank-correlation",
                format!("is {rho}; it lies between -1 and 1"),
            ));
        }
        let keep = self.spec.trace.is_some();
        let drawn_input = self.spec.input_tokens.is_some() || !keep;
        let drawn_output = self.spec.output_tokens.is_some() || !keep;
        let resolve = |spec: &Option<LengthSpec>, default: &LengthSpec, column| {
            spec.as_ref()
                .unwrap_or(default)
                .resolve(column)
                .map_err(|source| self.trace_error(source))
        };
        let pairs = Pairs::new(
            resolve(&self.spec.input_tokens, &DEFAULT_INPUT, Column::Input)?,
            resolve(&self.spec.output_tokens, &DEFAULT_OUTPUT, Column::Output)?,
            rho,
        );
        let mut rng = stream(self.seed, "lengths", self.entity);
        let (max_input, max_output) = (
            self.spec.max_input.unwrap_or(u32::MAX).max(1),
            self.spec.max_output.unwrap_or(u32::MAX).max(1),
        );
        for request in planned {
            let (input, output) = pairs.draw(&mut rng);
            if drawn_input {
                request.input_tokens = input;
            }
            if drawn_output {
                request.output_tokens = output;
            }
            request.input_tokens = request.input_tokens.clamp(1, max_input);
            request.output_tokens = request.output_tokens.clamp(1, max_output);
        }
        Ok(())
    }

    fn draw_prefixes(&self, planned: &mut [Planned]) {
        let mut rng = stream(self.seed, "prefixes", self.entity);
        for request in planned {
            if let Some(spec) = self.spec.prefix {
                request.prefix = spec.draw(request.input_tokens, &mut rng);
            }
            if let super::Prefix::Shared { tokens, .. } = &mut request.prefix {
                *tokens = (*tokens).min(request.input_tokens);
            }
        }
    }
}
