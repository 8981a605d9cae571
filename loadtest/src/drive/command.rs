//! The sub-command's arguments and entry point.

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};

use super::api::Api;
use super::find_max::{self, BenchRow, DEFAULT_TRIAL, Search, Shape, Trial};
use super::host::Host;
use super::objective::{Objectives, TtftLimit};
use super::progress::{Display, ProgressKind};
use super::prompt::Prompts;
use super::route::{PromptKind, Route, RouteOptions};
use super::run::{Stop, execute};
use super::self_test::server::KnownServer;
use super::self_test::{self, Truth};
use super::settings::Settings;
use super::summary::{Mode, RunSummary};
use super::target::{BaseUrl, Target};
use super::text;
use crate::schedule::NotValid;
use crate::schedule::Schedule;
use crate::schedule::lengths::LengthSpec;
use crate::schedule::rate::Rate;
use crate::schedule::span::Span;
use crate::schedule::spec::{Scenario, StreamSpec};
use crate::schedule::statistics::Statistics;

/// Exit code of a run whose figures may not be believed, and of a self-test that failed.
const EXIT_INVALID: u8 = 3;

/// Arguments of `coppice-loadtest drive`.
///
/// Exit codes: 0 the run is valid, 3 it is not (or the self-test failed), 1 it could not be made, 2 the arguments are wrong.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Server to send to, such as http://127.0.0.1:8000. With MODEL= in front, only that model's stream goes there.
    #[arg(
        long,
        value_name = "[MODEL=]URL",
        env = "COPPICE_LOADTEST_URL",
        value_delimiter = ','
    )]
    url: Vec<PerModel<BaseUrl>>,

    #[command(flatten)]
    stream: StreamSpec,

    /// Scenario file (TOML) with `seed` and one `[[stream]]` table per stream; its keys are the flags of this group.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["trace", "rate", "model"], help_heading = "Load")]
    scenario: Option<PathBuf>,
    /// Seed of everything drawn [default: the scenario's, else 1].
    #[arg(long, help_heading = "Load")]
    seed: Option<u64>,
    /// Closed loop: this many users, each waiting for its answer. Requests are taken in the schedule's order, its times are not used.
    #[arg(long, value_name = "COUNT", help_heading = "Load")]
    users: Option<usize>,
    /// Pause of each user after an answer.
    #[arg(
        long,
        value_name = "DURATION",
        requires = "users",
        default_value = "0s",
        help_heading = "Load"
    )]
    think: Span,
    /// Only print what the schedule looks like.
    #[arg(long, help_heading = "Load")]
    dry_run: bool,

    /// Limit on the time to first token, from the planned instant: 1s, or 1s+0.5ms/token.
    #[arg(
        long,
        value_name = "[MODEL=]LIMIT",
        value_delimiter = ',',
        help_heading = "Objectives"
    )]
    ttft: Vec<PerModel<TtftLimit>>,
    /// Limit on a request's mean gap between tokens: 100ms.
    #[arg(
        long,
        value_name = "[MODEL=]DURATION",
        value_delimiter = ',',
        help_heading = "Objectives"
    )]
    itl: Vec<PerModel<Span>>,

    /// Endpoint.
    #[arg(long, value_enum, default_value = "chat", help_heading = "Requests")]
    api: Api,
    /// How prompts are made: text of the planned length, or a few words and headers that tell a simulated engine the length.
    #[arg(long, value_enum, default_value = "text", help_heading = "Requests")]
    prompts: PromptKind,
    /// Do not send ignore_eos: for servers that refuse members they do not know. Outputs may then be shorter than planned.
    #[arg(long, help_heading = "Requests")]
    no_ignore_eos: bool,
    /// A header to add, "Name: value".
    #[arg(long = "header", value_name = "HEADER", help_heading = "Requests")]
    headers: Vec<String>,
    /// Sent as `Authorization: Bearer KEY`.
    #[arg(
        long,
        value_name = "KEY",
        env = "COPPICE_LOADTEST_API_KEY",
        hide_env_values = true,
        help_heading = "Requests"
    )]
    api_key: Option<String>,
    /// Members to add to each request's body, as a JSON object.
    #[arg(long, value_name = "JSON", help_heading = "Requests")]
    extra_body: Option<String>,
    /// Certificate authorities for https (PEM) [default: the system's].
    #[arg(
        long,
        value_name = "FILE",
        env = "COPPICE_LOADTEST_CA_FILE",
        help_heading = "Requests"
    )]
    ca_file: Option<PathBuf>,
    /// Response header that names the replica that answered.
    #[arg(long, value_name = "NAME", default_value = crate::openai::ENGINE_HEADER, help_heading = "Requests")]
    replica_header: String,

    /// A request without a complete answer this long after it was due has failed.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "5m",
        help_heading = "Measuring"
    )]
    timeout: Span,
    /// How long after the schedule's end answers are waited for [default: as --timeout].
    #[arg(long, value_name = "DURATION", help_heading = "Measuring")]
    drain: Option<Span>,
    /// Requests due before this are sent but not measured [default: 0s; 1s in a self-test, to open connections].
    #[arg(long, value_name = "DURATION", help_heading = "Measuring")]
    warmup: Option<Span>,
    /// Threads that send and read [default: half of the processors].
    #[arg(long, value_name = "COUNT", help_heading = "Measuring")]
    workers: Option<usize>,
    /// Requests in flight at most; waiting for a place counts as latency [default: no limit].
    #[arg(long, value_name = "COUNT", help_heading = "Measuring")]
    max_in_flight: Option<usize>,
    /// Let the system delay acknowledgements: on a loopback interface this halves the cost of reading a chunk. Only for servers
    /// that set TCP_NODELAY; others would wait for the acknowledgement and look slow.
    #[arg(long, help_heading = "Measuring")]
    delayed_acks: bool,
    /// Length of an interval of the time line.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "1s",
        help_heading = "Measuring"
    )]
    interval: Span,

    /// Write the summary as JSON, for `coppice-loadtest report`.
    #[arg(long, short, value_name = "FILE", help_heading = "Output")]
    output: Option<PathBuf>,
    /// Write one line per request: CSV, or JSON lines when the name ends in .jsonl.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    requests_file: Option<PathBuf>,
    /// Write the report as a web page.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    html: Option<PathBuf>,
    /// How progress is shown.
    #[arg(long, value_enum, default_value = "auto", help_heading = "Output")]
    progress: ProgressKind,

    /// Drive a built-in server whose times are known, and compare.
    #[arg(long, conflicts_with_all = ["url", "scenario", "trace", "users"], help_heading = "Self-test")]
    self_test: bool,
    /// Find the highest rate at which a run against the known server is valid and truthful.
    #[arg(long, conflicts_with_all = ["url", "scenario", "trace", "rate", "users", "self_test", "output"], help_heading = "Self-test")]
    find_max: bool,
    /// Time to first token of the known server.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "50ms",
        help_heading = "Self-test"
    )]
    known_ttft: Span,
    /// Gap between tokens of the known server.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "10ms",
        help_heading = "Self-test"
    )]
    known_itl: Span,
    /// First rate of --find-max, requests per second.
    #[arg(
        long,
        value_name = "RATE",
        default_value_t = 1000.0,
        help_heading = "Self-test"
    )]
    find_from: f64,
    /// Searches of --find-max; the result is their median.
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 1,
        help_heading = "Self-test"
    )]
    find_runs: u32,
    /// Attempts at a rate before --find-max calls it too high.
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 2,
        help_heading = "Self-test"
    )]
    find_attempts: u32,
    /// Write the results of --find-max as JSON rows.
    #[arg(
        long,
        value_name = "FILE",
        requires = "find_max",
        help_heading = "Self-test"
    )]
    bench_file: Option<PathBuf>,
}

/// A value for one model's stream, `MODEL=VALUE`, or for all, `VALUE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PerModel<T> {
    /// The model; none for all.
    pub model: Option<String>,
    /// The value.
    pub value: T,
}

impl<T: FromStr> FromStr for PerModel<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, T::Err> {
        // None of the values holds an equals sign; a model's name may.
        match text.rsplit_once('=') {
            Some((model, value)) => Ok(Self {
                model: Some(model.to_owned()),
                value: value.parse()?,
            }),
            None => Ok(Self {
                model: None,
                value: text.parse()?,
            }),
        }
    }
}

/// The value for a model: its own, else the one for all.
fn for_model<'a, T>(values: &'a [PerModel<T>], model: &str) -> Option<&'a T> {
    let own = values
        .iter()
        .find(|value| value.model.as_deref() == Some(model));
    own.or_else(|| values.iter().find(|value| value.model.is_none()))
        .map(|value| &value.value)
}

/// Runs the sub-command; the exit code is the process's.
///
/// # Errors
/// What kept it from running, with its causes.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.find_max {
        return find_the_maximum(args).await;
    }
    let known = args.self_test.then_some(Truth {
        ttft: args.known_ttft.0,
        itl: args.known_itl.0,
    });
    let (server, args) = match known {
        None => (None, args),
        Some(truth) => {
            let server = KnownServer::start(truth).context("starting the known server")?;
            let args = aimed_at(
                args,
                &server.url(),
                200.0,
                Duration::from_secs(10),
                find_max::SHAPES[0],
            )?;
            (Some(server), args)
        }
    };
    let scenario = scenario(&args)?;
    let schedule = Arc::new(scenario.schedule()?);
    if args.dry_run {
        print(&describe_schedule(&schedule));
        return Ok(ExitCode::SUCCESS);
    }
    let settings = settings(&args, scenario, schedule).await?;
    let progress = args.progress;
    let summary = driven(settings, progress).await?;
    drop(server);
    write_outputs(&args, &summary)?;
    print(&text::render(&summary));
    let Some(truth) = known else {
        return Ok(exit(summary.validity.valid));
    };
    let comparisons = self_test::compare(&summary, truth);
    let passed = self_test::passed(&summary, &comparisons);
    print(&format!(
        "\n{}\n\n{}\n",
        text::comparisons(&comparisons),
        if passed {
            "Self-test passed."
        } else {
            "Self-test FAILED."
        }
    ));
    Ok(exit(passed))
}

fn exit(good: bool) -> ExitCode {
    if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(EXIT_INVALID)
    }
}

#[expect(clippy::print_stdout, reason = "the program's output")]
fn print(text: &str) {
    print!("{text}");
}

/// Runs in a thread of its own, ends early on an interrupt.
async fn driven(settings: Settings, progress: ProgressKind) -> anyhow::Result<RunSummary> {
    let stop = Stop::default();
    let asked = stop.clone();
    let interrupts = tokio::spawn(async move {
        while tokio::signal::ctrl_c().await.is_ok() {
            asked.ask();
        }
    });
    let driving = tokio::task::spawn_blocking(move || {
        let mut display = Display::new(progress, settings.schedule.duration());
        let summary = execute(&settings, &stop, |progress| display.show(progress));
        display.finish();
        summary
    });
    let summary = driving
        .await
        .context("the driver panicked")?
        .context("running the load");
    interrupts.abort();
    summary
}

fn scenario(args: &Args) -> anyhow::Result<Scenario> {
    let mut scenario = match &args.scenario {
        Some(path) => Scenario::read(path)?,
        None => Scenario {
            seed: 1,
            streams: vec![args.stream.clone()],
        },
    };
    if let Some(seed) = args.seed {
        scenario.seed = seed;
    }
    Ok(scenario)
}

fn describe_schedule(schedule: &Schedule) -> String {
    let statistics = Statistics::of(schedule);
    let models: Vec<&str> = schedule
        .streams()
        .iter()
        .map(|stream| stream.model.as_str())
        .collect();
    format!(
        "{} requests in {} for {}: {:.2} per second, busiest second {}, busiest minute {}, dispersion {:.2}\n\
         prompts {:.0} tokens on average (p50 {}, p99 {}, max {}), outputs {:.0} (p50 {}, p99 {}, max {})\n\
         schedule {:016x}\n",
        text::count(statistics.requests as u64),
        text::time(statistics.duration_seconds),
        models.join(", "),
        statistics.mean_rate,
        text::times(statistics.peak_over_mean_1s),
        text::times(statistics.peak_over_mean_60s),
        statistics.dispersion_1s,
        statistics.input_tokens.mean,
        statistics.input_tokens.p50,
        statistics.input_tokens.p99,
        statistics.input_tokens.max,
        statistics.output_tokens.mean,
        statistics.output_tokens.p50,
        statistics.output_tokens.p99,
        statistics.output_tokens.max,
        schedule.digest(),
    )
}

async fn settings(
    args: &Args,
    scenario: Scenario,
    schedule: Arc<Schedule>,
) -> anyhow::Result<Settings> {
    let options = RouteOptions {
        api: args.api,
        prompt: args.prompts,
        ignore_eos: !args.no_ignore_eos,
        headers: headers(args)?,
        extra_body: match &args.extra_body {
            None => serde_json::Map::new(),
            Some(text) => serde_json::from_str(text)
                .with_context(|| format!("--extra-body is {text:?}, not a JSON object"))?,
        },
    };
    for (flag, named) in [
        ("--url", named(&args.url)),
        ("--ttft", named(&args.ttft)),
        ("--itl", named(&args.itl)),
    ] {
        if let Some(unknown) = named.into_iter().find(|name| {
            schedule
                .streams()
                .iter()
                .all(|stream| stream.model != *name)
        }) {
            let known: Vec<&str> = schedule
                .streams()
                .iter()
                .map(|stream| stream.model.as_str())
                .collect();
            bail!(
                "{flag} names the model {unknown:?}, which no stream has; the models are {}",
                known.join(", ")
            );
        }
    }
    let prompts = Prompts::new(scenario.seed);
    let mut routes = Vec::new();
    let mut objectives = Vec::new();
    for stream in schedule.streams() {
        let url = for_model(&args.url, &stream.model).with_context(|| {
            format!(
                "no server for the model {:?}: give --url http://HOST:PORT",
                stream.model
            )
        })?;
        let target = Arc::new(Target::resolve(url.clone(), args.ca_file.as_deref()).await?);
        routes.push(Route::new(target, &stream.model, &options, prompts));
        objectives.push(Objectives {
            ttft: for_model(&args.ttft, &stream.model).copied(),
            itl: for_model(&args.itl, &stream.model).copied(),
        });
    }
    for (flag, zero) in [
        ("--workers", args.workers == Some(0)),
        ("--max-in-flight", args.max_in_flight == Some(0)),
        ("--users", args.users == Some(0)),
        ("--interval", args.interval.0.is_zero()),
        ("--timeout", args.timeout.0.is_zero()),
    ] {
        if zero {
            bail!("{flag} is zero; give more");
        }
    }
    Ok(Settings {
        scenario,
        schedule,
        routes,
        objectives,
        mode: args.users.map_or(Mode::OpenLoop, |users| Mode::ClosedLoop {
            users,
            think_seconds: args.think.0.as_secs_f64(),
        }),
        warmup: args.warmup.map_or(Duration::ZERO, |warmup| warmup.0),
        timeout: args.timeout.0,
        drain: args.drain.unwrap_or(args.timeout).0,
        workers: args
            .workers
            .unwrap_or_else(|| (Host::read().cpus / 2).max(1)),
        max_in_flight: args.max_in_flight,
        replica_header: args.replica_header.to_ascii_lowercase(),
        delayed_acks: args.delayed_acks,
        interval: args.interval.0,
        requests_file: args.requests_file.clone(),
    })
}

fn named<T>(values: &[PerModel<T>]) -> Vec<&str> {
    values
        .iter()
        .filter_map(|value| value.model.as_deref())
        .collect()
}

fn headers(args: &Args) -> anyhow::Result<Vec<String>> {
    let mut headers = args.headers.clone();
    if let Some(key) = &args.api_key {
        headers.push(format!("authorization: Bearer {key}"));
    }
    for header in &headers {
        let name = header.split_once(':').map(|(name, _)| name);
        if name.is_none_or(|name| name.is_empty() || name.contains(' '))
            || header.contains(['\r', '\n'])
        {
            bail!(
                "--header is {:?}: write it as \"Name: value\" on one line",
                name.unwrap_or(header)
            );
        }
    }
    Ok(headers)
}

fn write_outputs(args: &Args, summary: &RunSummary) -> anyhow::Result<()> {
    if let Some(path) = &args.output {
        let text = serde_json::to_string(summary)? + "\n";
        std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    if let Some(path) = &args.html {
        let page = crate::report::html::render(&crate::report::Report::of_run(summary.clone()));
        std::fs::write(path, page).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// Points the arguments at the known server, with a load where none was given.
fn aimed_at(
    mut args: Args,
    url: &str,
    rate: f64,
    duration: Duration,
    shape: Shape,
) -> Result<Args, NotValid> {
    args.url = vec![url.parse()?];
    args.warmup.get_or_insert(Span::seconds(1));
    args.delayed_acks |= shape.delayed_acks;
    let stream = &mut args.stream;
    stream.rate.get_or_insert_with(|| Rate::constant(rate));
    stream.duration.get_or_insert(Span(duration));
    stream.input_tokens.get_or_insert(LengthSpec::Fixed(100));
    stream
        .output_tokens
        .get_or_insert(LengthSpec::Fixed(shape.output_tokens));
    Ok(args)
}

async fn find_the_maximum(args: Args) -> anyhow::Result<ExitCode> {
    let truth = Truth {
        ttft: args.known_ttft.0,
        itl: args.known_itl.0,
    };
    let server = KnownServer::start(truth).context("starting the known server")?;
    let duration = args
        .stream
        .duration
        .map_or(DEFAULT_TRIAL, |duration| duration.0);
    let mut rows: Vec<BenchRow> = Vec::new();
    for shape in find_max::SHAPES {
        let mut searches: Vec<Vec<Trial>> = Vec::new();
        for _ in 0..args.find_runs.max(1) {
            let search = Search {
                from: args.find_from * f64::from(find_max::SHAPES[0].output_tokens)
                    / f64::from(shape.output_tokens),
                attempts: args.find_attempts,
                truth,
            };
            let runtime = tokio::runtime::Handle::current();
            let (args, url) = (args.clone(), server.url());
            let trials = tokio::task::spawn_blocking(move || {
                let run = |rate: f64| {
                    let args = aimed_at(args.clone(), &url, rate, duration, shape)?;
                    let scenario = scenario(&args)?;
                    let schedule = Arc::new(scenario.schedule()?);
                    let settings = runtime.block_on(settings(&args, scenario, schedule))?;
                    Ok(execute(&settings, &Stop::default(), |_| {})?)
                };
                find_max::search(search, run, |trial| print(&trial_line(shape.name, trial)))
            })
            .await
            .context("the driver panicked")??;
            searches.push(trials);
        }
        rows.extend(find_max::rows(shape, &searches));
    }
    print(&format!("\n{}\n", bench_table(&rows)));
    if let Some(path) = &args.bench_file {
        find_max::write_bench(path, rows, Host::read().cpus)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn trial_line(shape: &str, trial: &Trial) -> String {
    let total = &trial.summary.total;
    let at = |distribution: Option<super::summary::Distribution>| {
        distribution.map_or_else(
            || "-".to_owned(),
            |distribution| {
                format!(
                    "{}/{}",
                    text::time(distribution.p50),
                    text::time(distribution.p99)
                )
            },
        )
    };
    format!(
        "{shape}  {:>7.0}/s  {}  lateness {}  TTFT {}  ITL {}  {:.2} processors{}\n",
        trial.rate,
        if trial.passed { "valid  " } else { "invalid" },
        at(total.lateness),
        at(total.ttft),
        at(total.itl),
        trial.summary.driver.cpus_used,
        if trial.passed {
            String::new()
        } else {
            format!("  ({})", trial.because)
        },
    )
}

fn bench_table(rows: &[BenchRow]) -> String {
    let mut table = text::table(&["what", "value", "unit", "aim"]);
    for row in rows {
        table.add_row([
            row.name.clone(),
            format!("{:.2}", row.value),
            row.unit.clone(),
            row.mark
                .map_or_else(|| "-".to_owned(), |mark| format!("{mark:.0}")),
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn arguments_are_consistent() {
        Cli::command().debug_assert();
        assert!(Cli::try_parse_from(["drive", "--rate", "5", "--trace", "x"]).is_err());
        let cli = Cli::try_parse_from([
            "drive",
            "--url",
            "a=http://h:1,http://h:2",
            "--ttft",
            "1s+0.5ms/token",
            "--rate",
            "5",
            "--duration",
            "10s",
        ])
        .unwrap();
        assert_eq!(cli.args.url.len(), 2);
    }

    #[test]
    fn values_are_for_one_model_or_for_all() {
        let values: Vec<PerModel<Span>> = vec!["a=1s".parse().unwrap(), "2s".parse().unwrap()];
        assert_eq!(for_model(&values, "a"), Some(&Span::seconds(1)));
        assert_eq!(for_model(&values, "b"), Some(&Span::seconds(2)));
        assert_eq!(for_model(&values[..1], "b"), None);
        let url: PerModel<BaseUrl> = "org/model=v2=http://h:1".parse().unwrap();
        assert_eq!(url.model.as_deref(), Some("org/model=v2"));
    }
}
