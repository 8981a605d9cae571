//! What is remembered between decisions, bounded.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use jiff::Timestamp;

use crate::decision::Decision;
use crate::efficiency::Efficiency;
use crate::fleet::Fleet;
use crate::forecast::Bins;
use crate::observation::{Observation, RoleObservation};
use crate::policy::{Policy, Sizing, Stage};
use crate::reading::{Quantity, Reading, elapsed};

/// Starts whose duration is kept for each role.
const STARTS: usize = 20;
/// Runs that a trail keeps.
const RUNS: usize = 256;
/// Changes that are kept for each role.
const CHANGES: usize = 512;
/// The longest period of a rate limit.
const LONGEST_PERIOD: Duration = Duration::from_secs(1_800);
/// The longest window: three times the longest stabilization window, for removing sets.
const LONGEST_WINDOW: Duration = Duration::from_secs(3 * 3_600);
/// Weight of a new mean output length.
const MEAN_WEIGHT: f64 = 0.2;
/// Time over which the growth of a queue is measured.
const GROWTH_WINDOW: Duration = Duration::from_secs(30);

/// What is remembered between decisions: readings, load over time, what was recommended and what changed, and how long starts take.
///
/// Bounded by constants whatever the run time. The caller feeds it with [`History::observe`], [`History::observe_fleet`] and
/// [`History::started_up`] before a decision and with [`History::record`] after it.
#[derive(Debug, Clone, PartialEq)]
pub struct History {
    /// Since when the load has been watched without a gap.
    pub(crate) watched_since: Timestamp,
    /// When a request was last seen anywhere.
    pub(crate) busy_at: Timestamp,
    pub(crate) offered: BTreeMap<Quantity, Reading>,
    pub(crate) requests: Bins,
    pub(crate) input_tokens: Bins,
    pub(crate) made: Bins,
    pub(crate) finished: Bins,
    pub(crate) roles: BTreeMap<String, RoleHistory>,
    pub(crate) sets: Trail,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct RoleHistory {
    pub(crate) readings: BTreeMap<Quantity, Reading>,
    pub(crate) queue: VecDeque<(Timestamp, f64)>,
    pub(crate) in_system: VecDeque<(Timestamp, f64)>,
    pub(crate) recommended: Trail,
    pub(crate) changes: VecDeque<(Timestamp, i64)>,
    pub(crate) current: Option<u32>,
    pub(crate) wanted: Option<u32>,
    pub(crate) startups: VecDeque<Duration>,
    pub(crate) efficiency: Efficiency,
}

impl History {
    /// Nothing seen before `now`.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        Self {
            watched_since: now,
            busy_at: now,
            offered: BTreeMap::new(),
            requests: Bins::default(),
            input_tokens: Bins::default(),
            made: Bins::default(),
            finished: Bins::default(),
            roles: BTreeMap::new(),
            sets: Trail::default(),
        }
    }

    /// Takes in one round of scrapes. Values that are not finite or below zero count as missing.
    pub fn observe(&mut self, policy: &Policy, observation: &Observation) {
        let at = observation.at;
        let mut busy = false;
        if let Some(offered) = &observation.offered {
            let mean = offered
                .mean_output_tokens
                .map(|mean| self.smoothed_output(mean));
            let values = [
                (Quantity::OfferedRequests, offered.requests_per_second),
                (
                    Quantity::OfferedInputTokens,
                    offered.input_tokens_per_second,
                ),
                (Quantity::MeanOutputTokens, mean),
                (Quantity::GatewayWaiting, offered.waiting),
            ];
            store(&mut self.offered, &values, at, true);
            busy |= [offered.requests_per_second, offered.waiting]
                .into_iter()
                .flatten()
                .any(|value| value > 0.0);
        }
        for (name, observed) in &observation.roles {
            let rate = self.rate_by_profile(policy, name);
            let role = self.roles.entry(name.clone()).or_default();
            role.observe(observed, at);
            if let Some(rate) = rate {
                role.efficiency.learn(observed, rate, at);
            }
            busy |= [
                observed.waiting,
                observed.running,
                observed.finished_per_second,
            ]
            .into_iter()
            .flatten()
            .any(|value| value > 0.0);
        }
        if busy {
            self.busy_at = at;
        }
        self.fill_bins(policy, observation);
    }

    /// Input tokens per second that a unit of a role works off at most by its profile, at the lengths seen now. `None`: it takes no prompts, has no
    /// profile, or lengths are not known.
    fn rate_by_profile(&self, policy: &Policy, name: &str) -> Option<f64> {
        let role = policy.roles().iter().find(|role| role.name == name)?;
        let Sizing::Slo(slo) = &role.sizing else {
            return None;
        };
        let value = |quantity| self.offered.get(&quantity).map(|reading| reading.value);
        let requests = value(Quantity::OfferedRequests).filter(|requests| *requests > 0.0)?;
        let input = value(Quantity::OfferedInputTokens)? / requests;
        match role.stage {
            Stage::Prefill | Stage::Encode => Some(slo.profile.prefill_rate(input)),
            Stage::Aggregated => Some(slo.profile.combined_rate(input, self.mean_output()?)),
            Stage::Decode | Stage::Other => None,
        }
    }

    /// Lengths vary more than rates: a new mean moves the known one by a fifth.
    fn smoothed_output(&self, mean: f64) -> f64 {
        let before = self.offered.get(&Quantity::MeanOutputTokens);
        before.map_or(mean, |before| {
            before.value + MEAN_WEIGHT * (mean - before.value)
        })
    }

    fn fill_bins(&mut self, policy: &Policy, observation: &Observation) {
        let at = observation.at;
        let makers = || {
            policy
                .roles()
                .iter()
                .filter(|role| role.stage.makes_tokens())
                .filter_map(|role| observation.roles.get(&role.name))
        };
        if let Some(made) = total(makers().map(|role| role.output_tokens_per_second)) {
            self.made.push(at, made);
        }
        if let Some(finished) = total(makers().map(|role| role.finished_per_second)) {
            self.finished.push(at, finished);
        }
        let load = self.entry_load(policy, at);
        if let Some(requests) = load.0 {
            self.requests.push(at, requests);
        }
        if let Some(input_tokens) = load.1 {
            self.input_tokens.push(at, input_tokens);
        }
    }

    /// Requests and input tokens per second that reach the system, of readings taken at `at`: from the gateway, else from where prompts are taken.
    fn entry_load(&self, policy: &Policy, at: Timestamp) -> (Option<f64>, Option<f64>) {
        let fresh = |reading: Option<&Reading>| {
            reading
                .filter(|reading| reading.at == at)
                .map(|reading| reading.value)
        };
        let entry = policy
            .roles()
            .iter()
            .find(|role| role.stage.takes_prompts())
            .or_else(|| policy.roles().first());
        let role = entry
            .and_then(|role| self.roles.get(&role.name))
            .filter(|role| role.readings.values().any(|reading| reading.at == at));
        let requests = fresh(self.offered.get(&Quantity::OfferedRequests))
            .or_else(|| role?.inferred_requests().map(|reading| reading.value));
        let tokens = fresh(self.offered.get(&Quantity::OfferedInputTokens))
            .or_else(|| role?.inferred_input_tokens().map(|reading| reading.value));
        (requests, tokens)
    }

    /// Takes in what there is: a change of a role's units since the last call is one that rate limits count, whoever made it.
    pub fn observe_fleet(&mut self, policy: &Policy, fleet: &Fleet, now: Timestamp) {
        for (index, role) in policy.roles().iter().enumerate() {
            let current = fleet.current(index);
            let role = self.roles.entry(role.name.clone()).or_default();
            if let Some(before) = role.current.replace(current)
                && before != current
            {
                role.changes
                    .push_back((now, i64::from(current) - i64::from(before)));
                while role.changes.len() > CHANGES
                    || role
                        .changes
                        .front()
                        .is_some_and(|(at, _)| elapsed(*at, now) > LONGEST_PERIOD)
                {
                    role.changes.pop_front();
                }
            }
        }
    }

    /// Takes in that a unit of `role` became ready `took` after its creation, time in which it could not be scheduled excluded.
    pub fn started_up(&mut self, role: &str, took: Duration) {
        let starts = &mut self.roles.entry(role.to_owned()).or_default().startups;
        if starts.len() == STARTS {
            starts.pop_front();
        }
        starts.push_back(took);
    }

    /// Takes in a decision. Roles that the policy does not name any more are forgotten.
    pub fn record(&mut self, policy: &Policy, decision: &Decision, now: Timestamp) {
        for (role, decided) in policy.roles().iter().zip(&decision.roles) {
            let history = self.roles.entry(role.name.clone()).or_default();
            history.recommended.push(now, decided.recommended);
            history.wanted = Some(decided.wanted);
        }
        self.roles
            .retain(|name, _| policy.roles().iter().any(|role| role.name == *name));
        self.sets.push(now, decision.sets.recommended);
    }

    /// Time from creation to readiness that a unit of `role` takes: the 90th percentile of recent starts, else what the policy assumes.
    #[must_use]
    pub fn startup(&self, policy: &Policy, role: &str) -> Duration {
        let mut starts: Vec<Duration> = self
            .roles
            .get(role)
            .map(|role| role.startups.iter().copied().collect())
            .unwrap_or_default();
        starts.sort_unstable();
        let rank = (starts.len() * 9).div_ceil(10);
        rank.checked_sub(1)
            .map_or_else(|| policy.limits().startup, |index| starts[index])
    }

    /// Mean output tokens of a request, right-censored: tokens made ÷ requests finished over the last ten minutes, else what the gateway saw.
    pub(crate) fn mean_output(&self) -> Option<f64> {
        let seen = self
            .offered
            .get(&Quantity::MeanOutputTokens)
            .map(|reading| reading.value)
            .filter(|mean| *mean > 0.0);
        seen.or_else(|| {
            let finished: f64 = self.finished.values().iter().sum();
            let made: f64 = self.made.values().iter().sum();
            (finished > 0.0 && made > 0.0).then_some(made / finished)
        })
    }

    pub(crate) fn role(&self, name: &str) -> Option<&RoleHistory> {
        self.roles.get(name)
    }
}

impl RoleHistory {
    fn observe(&mut self, observed: &RoleObservation, at: Timestamp) {
        let values = [
            (Quantity::InputTokens, observed.input_tokens_per_second),
            (Quantity::OutputTokens, observed.output_tokens_per_second),
            (Quantity::Finished, observed.finished_per_second),
            (Quantity::Waiting, observed.waiting),
            (Quantity::Running, observed.running),
            (Quantity::KvUsage, observed.kv_usage),
            (Quantity::Metric, observed.metric),
        ];
        store(
            &mut self.readings,
            &values,
            at,
            observed.answered >= observed.endpoints,
        );
        if let Some(waiting) = observed.waiting {
            follow(&mut self.queue, at, waiting);
            if let Some(running) = observed.running {
                follow(&mut self.in_system, at, waiting + running);
            }
        }
    }

    /// Requests per second that reach these engines: what they finish plus the growth of what is in them.
    pub(crate) fn inferred_requests(&self) -> Option<Reading> {
        let finished = *self.readings.get(&Quantity::Finished)?;
        Some(Reading {
            value: (finished.value + growth(&self.in_system)).max(0.0),
            ..finished
        })
    }

    /// Input tokens per second that reach these engines: what they work off plus the growth of the queue.
    pub(crate) fn inferred_input_tokens(&self) -> Option<Reading> {
        let served = *self.readings.get(&Quantity::InputTokens)?;
        let finished = self
            .readings
            .get(&Quantity::Finished)
            .map_or(0.0, |reading| reading.value);
        let mean = if finished > 0.0 {
            served.value / finished
        } else {
            0.0
        };
        Some(Reading {
            value: served.value + growth(&self.queue).max(0.0) * mean,
            ..served
        })
    }

    /// Output tokens per second that are asked of these engines: what they make plus what the growth of the queue will ask for.
    pub(crate) fn inferred_output_tokens(&self, mean_output: Option<f64>) -> Option<Reading> {
        let made = *self.readings.get(&Quantity::OutputTokens)?;
        Some(Reading {
            value: made.value + growth(&self.queue).max(0.0) * mean_output.unwrap_or(0.0),
            ..made
        })
    }
}

fn store(
    readings: &mut BTreeMap<Quantity, Reading>,
    values: &[(Quantity, Option<f64>)],
    at: Timestamp,
    complete: bool,
) {
    for (quantity, value) in values {
        if let Some(value) = value.filter(|value| value.is_finite() && *value >= 0.0) {
            readings.insert(
                *quantity,
                Reading {
                    value,
                    at,
                    complete,
                },
            );
        }
    }
}

fn follow(points: &mut VecDeque<(Timestamp, f64)>, at: Timestamp, value: f64) {
    points.push_back((at, value));
    while points
        .front()
        .is_some_and(|(first, _)| elapsed(*first, at) > GROWTH_WINDOW)
    {
        points.pop_front();
    }
}

/// Growth per second from the first to the last point; 0 when there are not two.
fn growth(points: &VecDeque<(Timestamp, f64)>) -> f64 {
    let (Some((from, first)), Some((to, last))) = (points.front(), points.back()) else {
        return 0.0;
    };
    let seconds = elapsed(*from, *to).as_secs_f64();
    if seconds > 0.0 {
        (last - first) / seconds
    } else {
        0.0
    }
}

/// The sum, if there is any value.
fn total(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    values.flatten().fold(None, |sum: Option<f64>, value| {
        Some(sum.unwrap_or(0.0) + value)
    })
}

/// A number over time, kept as runs of equal values.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Trail {
    pub(crate) runs: VecDeque<Run>,
}

/// From `from` to `until` the number was between `least` and `most`; these differ only where old runs were joined.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Run {
    pub(crate) from: Timestamp,
    pub(crate) until: Timestamp,
    pub(crate) least: u32,
    pub(crate) most: u32,
}

impl Trail {
    pub(crate) fn push(&mut self, now: Timestamp, value: u32) {
        match self.runs.back_mut() {
            Some(run) if run.least == value && run.most == value => run.until = now,
            _ => self.runs.push_back(Run {
                from: now,
                until: now,
                least: value,
                most: value,
            }),
        }
        while self
            .runs
            .front()
            .is_some_and(|run| elapsed(run.until, now) > LONGEST_WINDOW)
        {
            self.runs.pop_front();
        }
        if self.runs.len() > RUNS
            && let Some(first) = self.runs.pop_front()
            && let Some(second) = self.runs.front_mut()
        {
            *second = Run {
                from: first.from,
                until: second.until,
                least: first.least.min(second.least),
                most: first.most.max(second.most),
            };
        }
    }

    fn within(&self, now: Timestamp, window: Duration) -> impl Iterator<Item = &Run> {
        self.runs
            .iter()
            .filter(move |run| elapsed(run.until, now) < window)
    }

    /// The largest value within the window before `now`.
    pub(crate) fn most(&self, now: Timestamp, window: Duration) -> Option<u32> {
        self.within(now, window).map(|run| run.most).max()
    }

    /// The smallest value within the window before `now`.
    pub(crate) fn least(&self, now: Timestamp, window: Duration) -> Option<u32> {
        self.within(now, window).map(|run| run.least).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).unwrap()
    }

    #[test]
    fn a_trail_knows_the_extremes_of_a_window() {
        let mut trail = Trail::default();
        for (second, value) in [(0, 3), (5, 8), (10, 8), (15, 2), (20, 2)] {
            trail.push(at(second), value);
        }
        assert_eq!(trail.most(at(20), Duration::from_secs(300)), Some(8));
        assert_eq!(
            trail.most(at(20), Duration::from_secs(10)),
            Some(2),
            "8 was last recommended ten seconds ago"
        );
        assert_eq!(trail.most(at(20), Duration::from_secs(11)), Some(8));
        assert_eq!(trail.least(at(20), Duration::from_secs(300)), Some(2));
        assert_eq!(trail.most(at(20), Duration::ZERO), None);
    }

    #[test]
    fn a_trail_stays_bounded_and_forgets_towards_the_safe_side() {
        let mut trail = Trail::default();
        for second in 0..2_000_u32 {
            trail.push(
                at(i64::from(second)),
                if second == 0 { 100 } else { second % 2 },
            );
        }
        assert!(trail.runs.len() <= RUNS);
        assert_eq!(trail.most(at(2_000), LONGEST_WINDOW), Some(100));
    }

    #[test]
    fn startup_is_the_ninetieth_percentile_of_the_last_twenty() {
        let policy = crate::policy::tests::one_role();
        let mut history = History::new(at(0));
        assert_eq!(history.startup(&policy, "server"), policy.limits().startup);
        for seconds in 0..40 {
            history.started_up("server", Duration::from_secs(seconds));
        }
        assert_eq!(history.startup(&policy, "server"), Duration::from_secs(37));
    }

    #[test]
    fn the_growth_of_a_queue_counts_as_load() {
        let mut role = RoleHistory::default();
        for (second, waiting) in [(0, 0.0), (10, 20.0), (20, 40.0)] {
            let observed = RoleObservation {
                endpoints: 1,
                answered: 1,
                finished_per_second: Some(3.0),
                input_tokens_per_second: Some(300.0),
                waiting: Some(waiting),
                running: Some(5.0),
                ..RoleObservation::default()
            };
            role.observe(&observed, at(second));
        }
        assert!((role.inferred_requests().unwrap().value - 5.0).abs() < 1e-9);
        assert!((role.inferred_input_tokens().unwrap().value - 500.0).abs() < 1e-9);
    }
}
