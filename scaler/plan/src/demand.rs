//! How many units the load of a role needs, before any limit.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::capacity::{self, FirstToken, Need, Stream};
use crate::fleet::Fleet;
use crate::forecast::{Forecast, forecast};
use crate::history::{History, RoleHistory};
use crate::policy::{Objective, Policy, Sizing, SloSizing, Source, Stage};
use crate::reading::{Age, Quantity, Reading, age_of, elapsed};
use crate::units::ceil_units;

/// Steps in which the backlog is carried forward to the horizon.
const DRAIN_STEPS: u32 = 20;

/// What a role needs, as a function of the share x of the load that is served.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Demand {
    need: Form,
    flow: bool,
    /// Whether some number of units meets the objective.
    pub(crate) feasible: bool,
}

#[derive(Debug, Clone, PartialEq)]
enum Form {
    /// ⌈x · units⌉.
    Linear { units: f64 },
    /// The larger of the flow need at x and x · `at_least`.
    Model {
        slo: Box<SloSizing>,
        stage: Stage,
        stream: Stream,
        at_least: f64,
    },
}

impl Demand {
    /// Whole units for share `x` of the load.
    pub(crate) fn units(&self, x: f64) -> u32 {
        self.whole(x, |slo, stage, stream, at_least| {
            model(slo, stage, stream).units.max(x * at_least)
        })
    }

    /// Whole units for share `x` of what arrives, without what has piled up: that goes when units are ready, and no other role's size may hang on it.
    pub(crate) fn flow_units(&self, x: f64) -> u32 {
        self.whole(x, |slo, stage, stream, _| model(slo, stage, stream).units)
    }

    /// Whole units that do not fall behind at share `x` of the load, whatever anyone waits.
    pub(crate) fn busy_units(&self, x: f64) -> u32 {
        self.whole(x, |slo, stage, stream, _| {
            let itl = slo.itl.map(|objective| objective.target.as_secs_f64());
            capacity::busy(&slo.profile, stage, stream, itl)
        })
    }

    /// Whole units for share `x`: what is asked for by that share, or what `of` gives for it by the model, which also gets the units for what has piled up.
    fn whole(&self, x: f64, of: impl FnOnce(&SloSizing, Stage, Stream, f64) -> f64) -> u32 {
        match &self.need {
            Form::Linear { units } => ceil_units(x * units),
            Form::Model {
                slo,
                stage,
                stream,
                at_least,
            } => {
                let stream = stream.scaled(x);
                capacity::whole(of(slo, *stage, stream, *at_least), stream)
            }
        }
    }

    /// Whether the need is a flow that a smaller share of the load lowers.
    pub(crate) const fn is_flow(&self) -> bool {
        self.flow
    }
}

/// A role's demand with what it came from.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sized {
    /// `None`: something it follows from was never measured, or is lost.
    pub(crate) demand: Option<Demand>,
    pub(crate) age: Age,
    /// When the oldest reading that the demand follows from was taken.
    pub(crate) measured_at: Option<Timestamp>,
    /// Whether every endpoint answered and the load was seen where it is offered. Otherwise the demand is a lower bound.
    pub(crate) complete: bool,
    pub(crate) values: Vec<(Quantity, f64)>,
}

/// The load that is expected, by horizon: roles that start equally fast share a forecast.
#[derive(Debug, Default)]
struct Outlook {
    by_horizon: BTreeMap<Duration, Option<Expected>>,
}

/// Forecasts for one horizon.
#[derive(Debug, Clone, Copy)]
struct Expected {
    requests: Forecast,
    input_tokens: Forecast,
}

impl Outlook {
    fn at(&mut self, history: &History, horizon: Duration) -> Option<Expected> {
        *self.by_horizon.entry(horizon).or_insert_with(|| {
            let requests = forecast(&history.requests, horizon)?;
            Some(Expected {
                requests,
                input_tokens: forecast(&history.input_tokens, horizon)?,
            })
        })
    }
}

/// The demand of every role.
pub(crate) fn demands(
    policy: &Policy,
    history: &History,
    fleet: &Fleet,
    now: Timestamp,
) -> Vec<Sized> {
    let mut outlook = Outlook::default();
    (0..policy.roles().len())
        .map(|index| demand(policy, history, fleet, index, now, &mut outlook))
        .collect()
}

fn demand(
    policy: &Policy,
    history: &History,
    fleet: &Fleet,
    index: usize,
    now: Timestamp,
    outlook: &mut Outlook,
) -> Sized {
    let role = &policy.roles()[index];
    let nothing = RoleHistory::default();
    let signals = Signals {
        policy,
        history,
        role: history.role(&role.name).unwrap_or(&nothing),
        now,
    };
    match &role.sizing {
        Sizing::PerUnit { source, target } => signals.per_unit(*source, target.get()),
        Sizing::Slo(slo) => {
            let horizon = history.startup(policy, &role.name);
            signals.by_objective(slo, fleet, index, horizon, outlook.at(history, horizon))
        }
    }
}

struct Signals<'a> {
    policy: &'a Policy,
    history: &'a History,
    role: &'a RoleHistory,
    now: Timestamp,
}

impl Signals<'_> {
    fn per_unit(&self, source: Source, target: f64) -> Sized {
        let (quantity, reading) = match source {
            Source::InputTokens => (Quantity::OfferedInputTokens, self.input_tokens()),
            Source::OutputTokens => (Quantity::OfferedOutputTokens, self.output_tokens()),
            Source::Waiting => (Quantity::Waiting, self.of_role(Quantity::Waiting)),
            Source::KvUsage => (Quantity::KvUsage, self.of_role(Quantity::KvUsage)),
            Source::Metric => (Quantity::Metric, self.of_role(Quantity::Metric)),
        };
        let Some(reading) = reading else {
            return self.unknown(Vec::new());
        };
        let units = reading.value / target;
        let values = vec![(quantity, reading.value), (Quantity::Demand, units)];
        self.sized(
            Demand {
                need: Form::Linear { units },
                flow: source.is_flow(),
                feasible: true,
            },
            reading,
            values,
        )
    }

    fn by_objective(
        &self,
        slo: &SloSizing,
        fleet: &Fleet,
        index: usize,
        horizon: Duration,
        expected: Option<Expected>,
    ) -> Sized {
        let role = &self.policy.roles()[index];
        let (Some(requests), Some(tokens), Some(expected)) =
            (self.requests(), self.input_tokens(), expected)
        else {
            return self.unknown(Vec::new());
        };
        let Expected {
            requests: request_load,
            input_tokens: token_load,
        } = expected;
        let output = self.history.mean_output();
        if role.stage.makes_tokens() && output.is_none() && requests.value > 0.0 {
            return self.unknown(vec![(Quantity::OfferedRequests, requests.value)]);
        }
        let input = if request_load.level > 0.0 {
            token_load.level / request_load.level
        } else {
            0.0
        };
        let tokens_ahead = token_load.at_horizon + token_load.margin;
        let requests_ahead = request_load.at_horizon + request_load.margin;
        let arriving = if role.stage == Stage::Decode || input <= 0.0 {
            requests_ahead
        } else {
            tokens_ahead / input
        };
        let stream = Stream {
            requests: arriving,
            input,
            output: output.unwrap_or(0.0),
            burstiness: request_load.burstiness,
        };
        let backlog = Backlog {
            fleet,
            index,
            horizon,
            role: self.role,
            history: self.history,
        };
        let efficiency = self.role.efficiency.share;
        let at_least = match role.stage {
            Stage::Prefill | Stage::Encode | Stage::Aggregated | Stage::Other => {
                backlog.prefill(slo, role.stage, stream, token_load)
            }
            Stage::Decode => backlog.decode(slo, stream, request_load),
        };
        // Units that do less than their profile says are needed as if more were asked.
        let stream = stream.scaled(1.0 / efficiency.unwrap_or(1.0));
        let need = model(slo, role.stage, stream);
        let demand = Demand {
            need: Form::Model {
                slo: Box::new(slo.clone()),
                stage: role.stage,
                stream,
                at_least,
            },
            flow: true,
            feasible: need.feasible,
        };
        let forecast = if role.stage == Stage::Decode {
            (Quantity::ForecastRequests, requests_ahead)
        } else {
            (Quantity::ForecastInputTokens, tokens_ahead)
        };
        let mut values = vec![
            (Quantity::OfferedRequests, requests.value),
            (Quantity::OfferedInputTokens, tokens.value),
        ];
        values.extend(
            output
                .filter(|_| role.stage.makes_tokens())
                .map(|output| (Quantity::MeanOutputTokens, output)),
        );
        values.extend([forecast, (Quantity::Startup, horizon.as_secs_f64())]);
        values.extend(efficiency.map(|share| (Quantity::Efficiency, share)));
        values.push((Quantity::Demand, need.units.max(at_least)));
        self.sized(demand, older(requests, tokens), values)
    }

    /// Offered requests per second: at the gateway, else inferred from the role's engines.
    fn requests(&self) -> Option<Reading> {
        self.offered(Quantity::OfferedRequests)
            .or_else(|| self.inferred(self.role.inferred_requests()))
    }

    /// Offered input tokens per second: at the gateway, else inferred from the role's engines.
    fn input_tokens(&self) -> Option<Reading> {
        self.offered(Quantity::OfferedInputTokens)
            .or_else(|| self.inferred(self.role.inferred_input_tokens()))
    }

    /// Offered output tokens per second: requests at the gateway × mean output tokens, else inferred from the role's engines.
    fn output_tokens(&self) -> Option<Reading> {
        let mean = self.history.mean_output();
        let at_gateway = self
            .offered(Quantity::OfferedRequests)
            .and_then(|requests| {
                if requests.value > 0.0 {
                    mean.map(|mean| Reading {
                        value: requests.value * mean,
                        ..requests
                    })
                } else {
                    Some(requests)
                }
            });
        at_gateway.or_else(|| self.inferred(self.role.inferred_output_tokens(mean)))
    }

    /// A reading of the gateway that is not beyond use.
    fn offered(&self, quantity: Quantity) -> Option<Reading> {
        let reading = *self.history.offered.get(&quantity)?;
        (self.age(reading.at) <= Age::Stale).then_some(reading)
    }

    /// A reading inferred from engines: where a gateway ought to be seen and is not, it is a lower bound only.
    fn inferred(&self, reading: Option<Reading>) -> Option<Reading> {
        let degraded = self.policy.limits().traffic;
        reading.map(|reading| Reading {
            complete: reading.complete && !degraded,
            ..reading
        })
    }

    fn of_role(&self, quantity: Quantity) -> Option<Reading> {
        self.role.readings.get(&quantity).copied()
    }

    fn age(&self, at: Timestamp) -> Age {
        age_of(
            at,
            self.now,
            self.policy.limits().scrape_interval,
            self.policy.limits().lost.hold,
        )
    }

    fn sized(&self, demand: Demand, reading: Reading, values: Vec<(Quantity, f64)>) -> Sized {
        Sized {
            demand: Some(demand),
            age: self.age(reading.at),
            measured_at: Some(reading.at),
            complete: reading.complete,
            values,
        }
    }

    fn unknown(&self, values: Vec<(Quantity, f64)>) -> Sized {
        let waited = elapsed(self.history.watched_since, self.now);
        let age = if waited > self.policy.limits().lost.hold {
            Age::Lost
        } else {
            Age::Starting
        };
        Sized {
            demand: None,
            age,
            measured_at: None,
            complete: false,
            values,
        }
    }
}

/// The older of two readings' times, and whether both are complete.
fn older(a: Reading, b: Reading) -> Reading {
    Reading {
        at: a.at.min(b.at),
        complete: a.complete && b.complete,
        ..a
    }
}

/// N_flow of the stage.
fn model(slo: &SloSizing, stage: Stage, stream: Stream) -> Need {
    let first = |objective: Objective| FirstToken {
        share: objective.share,
        target: objective.target.as_secs_f64(),
        per_input_token: objective.per_input_token.as_secs_f64(),
    };
    let itl = |objective: Objective| objective.target.as_secs_f64();
    match (stage, slo.ttft.map(first), slo.itl.map(itl)) {
        (Stage::Prefill | Stage::Encode, Some(first), _) => {
            capacity::prefill(&slo.profile, stream, first)
        }
        (Stage::Decode, _, Some(itl)) => capacity::decode(&slo.profile, stream, itl),
        (Stage::Aggregated, Some(first), Some(itl)) => {
            capacity::aggregated(&slo.profile, stream, first, itl)
        }
        _ => Need {
            units: 0.0,
            feasible: false,
        },
    }
}

/// What has piled up until new units are ready, and the units that work it off in time on top of the flow.
struct Backlog<'a> {
    fleet: &'a Fleet,
    index: usize,
    horizon: Duration,
    role: &'a RoleHistory,
    history: &'a History,
}

impl Backlog<'_> {
    /// τ_d: time within which the backlog is worked off.
    fn drain_seconds(&self) -> f64 {
        (self.horizon.as_secs_f64() / 2.0).max(60.0)
    }

    fn reading(&self, quantity: Quantity) -> f64 {
        self.role
            .readings
            .get(&quantity)
            .map_or(0.0, |reading| reading.value)
    }

    /// Units that are ready `after` seconds from now, those that start counted when their start-up time is over.
    fn units_after(&self, after: f64) -> f64 {
        let starting = &self.fleet.roles[self.index].starting;
        let by_then = starting
            .iter()
            .filter(|age| self.horizon.saturating_sub(**age).as_secs_f64() <= after)
            .count();
        f64::from(self.fleet.ready(self.index)) + u32::try_from(by_then).map_or(0.0, f64::from)
    }

    /// The stock at the horizon: it grows by what arrives (a straight line from the level to the forecast) less what `served(seconds, stock)` takes.
    fn carried(&self, stock: f64, load: Forecast, served: impl Fn(f64, f64) -> f64) -> f64 {
        let horizon = self.horizon.as_secs_f64();
        let step = horizon / f64::from(DRAIN_STEPS);
        (0..DRAIN_STEPS).fold(stock, |stock, index| {
            let middle = (f64::from(index) + 0.5) * step;
            let arriving = load.level
                + (load.at_horizon - load.level) * middle / horizon.max(f64::MIN_POSITIVE);
            (stock + (arriving - served(middle, stock)) * step).max(0.0)
        })
    }

    /// Units of prefill for the flow and what has piled up by then, without regard to waiting times.
    fn prefill(&self, slo: &SloSizing, stage: Stage, stream: Stream, load: Forecast) -> f64 {
        // A gateway counts what waits in engines, too.
        let held = self
            .history
            .offered
            .get(&Quantity::GatewayWaiting)
            .map_or(0.0, |reading| reading.value);
        let queued = self.reading(Quantity::Waiting).max(held) * stream.input;
        let by_profile = if stage == Stage::Aggregated {
            slo.profile.combined_rate(stream.input, stream.output)
        } else {
            slo.profile.prefill_rate(stream.input)
        };
        let rate = by_profile * self.role.efficiency.share.unwrap_or(1.0);
        let stock = self.carried(queued, load, |seconds, _| rate * self.units_after(seconds));
        let flow = stream.requests * stream.input;
        let tolerated = 0.5
            * slo
                .ttft
                .map_or(0.0, |objective| objective.target.as_secs_f64())
            * flow;
        (flow + (stock - tolerated).max(0.0) / self.drain_seconds()) / rate
    }

    /// Units of decode for what is in flight and what has piled up by then.
    fn decode(&self, slo: &SloSizing, stream: Stream, load: Forecast) -> f64 {
        let Some(itl) = slo.itl.map(|objective| objective.target.as_secs_f64()) else {
            return 0.0;
        };
        let residence = capacity::residence(&slo.profile, stream, itl).max(f64::MIN_POSITIVE);
        let batch = slo
            .profile
            .batch(itl, stream.input + stream.output)
            .max(1.0);
        let stock = self.reading(Quantity::Waiting) + self.reading(Quantity::Running);
        let carried = self.carried(stock, load, |seconds, stock| {
            stock.min(batch * self.units_after(seconds)) / residence
        });
        let flow = stream.requests * residence;
        (flow + (carried - flow).max(0.0) * (residence / self.drain_seconds()).min(1.0)) / batch
    }
}
