//! Measures of a run: what requests got, what it cost, how the fleet moved.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::bound::least_gpu_hours;
use crate::outcome::{Ended, Fate, Life, Outcome, Target};
use crate::world::{Objectives, Request, World};

/// A change against the one before it counts as a reversal within this time.
const REVERSAL: Duration = Duration::from_secs(300);
/// A unit that leaves within this time of its readiness without having served was started in vain.
const WASTED: Duration = Duration::from_secs(600);
/// A minute counts as bad below this attainment.
const BAD_MINUTE: f64 = 0.9;

/// Which objectives a request met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Judged {
    /// It ended, and its first token came in time.
    pub ttft: bool,
    /// It ended, and its tokens came in time, on average; so do those of a request of one token.
    pub itl: bool,
}

impl Objectives {
    /// Judges a request; one that did not end well meets nothing.
    #[must_use]
    pub fn judge(&self, request: &Request, ended: &Ended) -> Judged {
        let (Fate::Finished, Some(first)) = (ended.fate, ended.first) else {
            return Judged {
                ttft: false,
                itl: false,
            };
        };
        Judged {
            ttft: first - request.at <= self.ttft_of(request.input_tokens),
            itl: ended
                .mean_gap(request.output_tokens)
                .is_none_or(|gap| gap <= self.itl),
        }
    }
}

/// Measures of one run. Costs are over the planned time only; a request counts whenever it ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measures {
    /// The planned time in seconds.
    pub seconds: f64,
    /// Requests that came.
    pub arrived: u64,
    /// Requests that made all their tokens.
    pub finished: u64,
    /// Requests that met both objectives.
    pub good: u64,
    /// Requests that no engine can run.
    pub refused: u64,
    /// Requests whose unit left or died before they were done.
    pub aborted: u64,
    /// Requests that were not done when the run was over.
    pub unfinished: u64,
    /// Good requests ÷ all that came.
    pub attainment: f64,
    /// The same for the time to first token alone.
    pub ttft_attainment: f64,
    /// The same for the time between tokens alone.
    pub itl_attainment: f64,
    /// Output tokens of good requests ÷ those of all that came.
    pub token_attainment: f64,
    /// 5th percentile of the attainment by minute; `None` when nothing came.
    pub worst_minutes: Option<f64>,
    /// Minutes below 90 % attainment.
    pub bad_minutes: u32,
    /// Good requests per second.
    pub goodput_per_second: f64,
    /// GPU-hours paid for: from binding to release, start-up and draining included.
    pub gpu_hours: f64,
    /// GPU-hours that the work itself needs, see [`crate::least_gpu_hours`].
    pub least_gpu_hours: f64,
    /// GPUs held on average.
    pub mean_gpus: f64,
    /// Most GPUs held at once.
    pub peak_gpus: u32,
    /// Good requests per GPU-hour.
    pub good_per_gpu_hour: f64,
    /// Output tokens of good requests.
    pub good_output_tokens: u64,
    /// Seconds in which more GPUs were held than the budget has; `None`: there is no budget.
    pub budget_violation_seconds: Option<f64>,
    /// Units that left within ten minutes of being ready, or before, without having served a request.
    pub wasted_starts: u32,
    /// Time to first token of finished requests, seconds.
    pub ttft: Option<Quantiles>,
    /// Mean time between tokens of finished requests, seconds.
    pub itl: Option<Quantiles>,
    /// Requests that waited, on average over the scrapes.
    pub mean_waiting: f64,
    /// Most requests that waited at a scrape.
    pub most_waiting: u32,
    /// By role.
    pub roles: Vec<RoleMeasures>,
}

/// How one role moved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoleMeasures {
    /// Name.
    pub name: String,
    /// Units held on average, starting and leaving ones included.
    pub mean_units: f64,
    /// Most units asked for.
    pub peak_units: u32,
    /// Changes of the units asked for.
    pub changes: u32,
    /// Changes against the one before within 300 s.
    pub reversals: u32,
    /// The same per ten minutes.
    pub reversals_per_10_minutes: f64,
    /// Seconds and units asked for from then on.
    pub asked: Vec<(f64, u32)>,
    /// Seconds and units ready from then on, leaving ones left out.
    pub ready: Vec<(f64, u32)>,
}

/// Percentiles.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
}

impl Quantiles {
    fn of(mut values: Vec<f64>) -> Option<Self> {
        if values.is_empty() {
            return None;
        }
        values.sort_by(f64::total_cmp);
        // The smallest value that so many hundredths of all do not exceed.
        let at = |percent: usize| values[(values.len() * percent).div_ceil(100).max(1) - 1];
        Some(Self {
            mean: values.iter().sum::<f64>() / values.len() as f64,
            p50: at(50),
            p95: at(95),
            p99: at(99),
        })
    }
}

impl Measures {
    /// The measures of a run of `duration`.
    #[must_use]
    pub fn of(world: &World, requests: &[Request], outcome: &Outcome, duration: Duration) -> Self {
        let tally = Tally::of(world, requests, outcome);
        let seconds = duration.as_secs_f64();
        let arrived = requests.len() as u64;
        let share = |count: u64| ratio(count, arrived);
        let levels = Levels::of(world, outcome, duration);
        let gpu_hours = levels.gpu_seconds / 3600.0;
        let waiting = outcome.waiting.iter().map(|(_, waiting)| *waiting);
        let per_second = |count: u64| count as f64 / seconds.max(f64::MIN_POSITIVE);
        Self {
            seconds,
            arrived,
            finished: tally.finished,
            good: tally.good,
            refused: tally.refused,
            aborted: tally.aborted,
            unfinished: tally.unfinished,
            attainment: share(tally.good),
            ttft_attainment: share(tally.ttft_met),
            itl_attainment: share(tally.itl_met),
            token_attainment: ratio(tally.good_tokens, tally.tokens),
            worst_minutes: tally.worst_minutes(),
            bad_minutes: tally.bad_minutes(),
            goodput_per_second: per_second(tally.good),
            gpu_hours,
            least_gpu_hours: least_gpu_hours(world, requests, duration),
            mean_gpus: levels.gpu_seconds / seconds.max(f64::MIN_POSITIVE),
            peak_gpus: levels.peak,
            good_per_gpu_hour: if gpu_hours > 0.0 {
                tally.good as f64 / gpu_hours
            } else {
                0.0
            },
            good_output_tokens: tally.good_tokens,
            budget_violation_seconds: world.budget_gpus.map(|_| levels.above_budget),
            wasted_starts: wasted(&outcome.units),
            ttft: Quantiles::of(tally.ttfts),
            itl: Quantiles::of(tally.gaps),
            mean_waiting: waiting.clone().map(f64::from).sum::<f64>()
                / outcome.waiting.len().max(1) as f64,
            most_waiting: waiting.max().unwrap_or(0),
            roles: (0..world.roles().len())
                .map(|role| RoleMeasures::of(world, outcome, duration, role))
                .collect(),
        }
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        1.0
    } else {
        part as f64 / whole as f64
    }
}

/// What requests got.
#[derive(Debug, Default)]
struct Tally {
    finished: u64,
    good: u64,
    ttft_met: u64,
    itl_met: u64,
    refused: u64,
    aborted: u64,
    unfinished: u64,
    tokens: u64,
    good_tokens: u64,
    ttfts: Vec<f64>,
    gaps: Vec<f64>,
    /// Good and all requests that came in each minute.
    minutes: Vec<(u32, u32)>,
}

impl Tally {
    fn of(world: &World, requests: &[Request], outcome: &Outcome) -> Self {
        let mut tally = Self::default();
        for (request, ended) in requests.iter().zip(&outcome.requests) {
            tally.count(world, request, ended);
        }
        tally
    }

    fn count(&mut self, world: &World, request: &Request, ended: &Ended) {
        let judged = world.objectives.judge(request, ended);
        let good = judged.ttft && judged.itl;
        let tokens = u64::from(request.output_tokens);
        self.tokens += tokens;
        self.ttft_met += u64::from(judged.ttft);
        self.itl_met += u64::from(judged.itl);
        let minute = usize::try_from(request.at.as_secs() / 60).unwrap_or(usize::MAX);
        if self.minutes.len() <= minute {
            self.minutes.resize(minute + 1, (0, 0));
        }
        self.minutes[minute].1 += 1;
        if good {
            self.good += 1;
            self.good_tokens += tokens;
            self.minutes[minute].0 += 1;
        }
        match ended.fate {
            Fate::Finished => self.finished += 1,
            Fate::Refused => self.refused += 1,
            Fate::Aborted => self.aborted += 1,
            Fate::Unfinished => self.unfinished += 1,
        }
        if let (Fate::Finished, Some(first)) = (ended.fate, ended.first) {
            self.ttfts.push((first - request.at).as_secs_f64());
            self.gaps.extend(
                ended
                    .mean_gap(request.output_tokens)
                    .map(|gap| gap.as_secs_f64()),
            );
        }
    }

    fn by_minute(&self) -> impl Iterator<Item = f64> {
        let minutes = self.minutes.iter().filter(|(_, all)| *all > 0);
        minutes.map(|(good, all)| f64::from(*good) / f64::from(*all))
    }

    fn worst_minutes(&self) -> Option<f64> {
        let mut shares: Vec<f64> = self.by_minute().collect();
        shares.sort_by(f64::total_cmp);
        let rank = (shares.len() * 5).div_ceil(100).checked_sub(1)?;
        shares.get(rank).copied()
    }

    fn bad_minutes(&self) -> u32 {
        let bad = self.by_minute().filter(|share| *share < BAD_MINUTE);
        u32::try_from(bad.count()).unwrap_or(u32::MAX)
    }
}

/// GPUs over time.
#[derive(Debug)]
struct Levels {
    gpu_seconds: f64,
    peak: u32,
    above_budget: f64,
}

impl Levels {
    fn of(world: &World, outcome: &Outcome, duration: Duration) -> Self {
        let mut changes: Vec<(Duration, i64)> = Vec::new();
        for unit in &outcome.units {
            let Some((from, until)) = paid(unit, duration) else {
                continue;
            };
            let gpus = i64::from(world.roles()[unit.role].gpus_per_unit);
            changes.push((from, gpus));
            changes.push((until, -gpus));
        }
        // What is freed at an instant can be taken at the same one.
        changes.sort_unstable();
        let mut levels = Self {
            gpu_seconds: 0.0,
            peak: 0,
            above_budget: 0.0,
        };
        let mut held = 0;
        let mut since = Duration::ZERO;
        for (at, change) in changes {
            let seconds = (at - since).as_secs_f64();
            levels.gpu_seconds += held as f64 * seconds;
            if world
                .budget_gpus
                .is_some_and(|budget| held > i64::from(budget))
            {
                levels.above_budget += seconds;
            }
            held += change;
            since = at;
            levels.peak = levels.peak.max(u32::try_from(held).unwrap_or(0));
        }
        levels
    }
}

/// From when until when a unit is paid for within the planned time.
fn paid(unit: &Life, duration: Duration) -> Option<(Duration, Duration)> {
    let from = unit.bound?;
    let until = unit.gone.unwrap_or(duration).min(duration);
    (from < until).then_some((from, until))
}

fn wasted(units: &[Life]) -> u32 {
    let wasted = units.iter().filter(|unit| {
        unit.given == 0
            && !unit.died
            && unit.bound.is_some()
            && unit
                .leaving
                .is_some_and(|leaving| unit.ready.is_none_or(|ready| leaving - ready <= WASTED))
    });
    u32::try_from(wasted.count()).unwrap_or(u32::MAX)
}

impl RoleMeasures {
    fn of(world: &World, outcome: &Outcome, duration: Duration, role: usize) -> Self {
        let asked = asked(&outcome.targets, duration, role);
        let units = || outcome.units.iter().filter(|unit| unit.role == role);
        let held: f64 = units()
            .filter_map(|unit| paid(unit, duration))
            .map(|(from, until)| (until - from).as_secs_f64())
            .sum();
        let reversals = reversals(&asked);
        let seconds = duration.as_secs_f64().max(f64::MIN_POSITIVE);
        Self {
            name: world.roles()[role].name.clone(),
            mean_units: held / seconds,
            peak_units: asked.iter().map(|(_, units)| *units).max().unwrap_or(0),
            changes: u32::try_from(asked.len().saturating_sub(1)).unwrap_or(u32::MAX),
            reversals,
            reversals_per_10_minutes: f64::from(reversals) * 600.0 / seconds,
            asked: asked
                .iter()
                .map(|(at, units)| (at.as_secs_f64(), *units))
                .collect(),
            ready: ready(units(), duration),
        }
    }
}

/// A role's units asked for, where they changed within the planned time.
fn asked(targets: &[Target], duration: Duration, role: usize) -> Vec<(Duration, u32)> {
    let mut asked: Vec<(Duration, u32)> = Vec::new();
    for target in targets.iter().filter(|target| target.at <= duration) {
        let units = target.units[role];
        if asked.last().is_none_or(|(_, last)| *last != units) {
            asked.push((target.at, units));
        }
    }
    asked
}

fn reversals(asked: &[(Duration, u32)]) -> u32 {
    let reversed = asked.windows(3).filter(|three| {
        let [(_, first), (before, second), (at, third)] = three else {
            return false;
        };
        (second > first) != (third > second) && *at - *before <= REVERSAL
    });
    u32::try_from(reversed.count()).unwrap_or(u32::MAX)
}

fn ready<'a>(units: impl Iterator<Item = &'a Life>, duration: Duration) -> Vec<(f64, u32)> {
    let mut changes: Vec<(Duration, i32)> = Vec::new();
    for unit in units {
        if let Some(ready) = unit.ready.filter(|ready| *ready < duration) {
            changes.push((ready, 1));
            changes.extend(
                unit.leaving
                    .filter(|leaving| *leaving < duration)
                    .map(|leaving| (leaving, -1)),
            );
        }
    }
    changes.sort_unstable();
    let mut level = 0;
    let mut levels: Vec<(f64, u32)> = Vec::new();
    for (at, change) in changes {
        level += change;
        let point = (at.as_secs_f64(), u32::try_from(level).unwrap_or(0));
        match levels.last_mut() {
            Some(last) if last.0.to_bits() == point.0.to_bits() => *last = point,
            _ => levels.push(point),
        }
    }
    levels
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn second(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_change_back_within_five_minutes_is_a_reversal_and_a_later_one_is_not() {
        let asked = |times: &[(u64, u32)]| -> Vec<(Duration, u32)> {
            times
                .iter()
                .map(|(at, units)| (second(*at), *units))
                .collect()
        };
        assert_eq!(reversals(&asked(&[(0, 1), (10, 2), (20, 3)])), 0);
        assert_eq!(reversals(&asked(&[(0, 1), (10, 2), (310, 1)])), 1);
        assert_eq!(reversals(&asked(&[(0, 1), (10, 2), (311, 1)])), 0);
        assert_eq!(reversals(&asked(&[(0, 3), (10, 2), (20, 3), (30, 2)])), 2);
    }

    #[test]
    fn quantiles_are_values_that_occurred() {
        let quantiles = Quantiles::of((1..=200).map(f64::from).collect()).unwrap();
        for (value, expected) in [
            (quantiles.p50, 100.0),
            (quantiles.p95, 190.0),
            (quantiles.p99, 198.0),
        ] {
            assert!((value - expected).abs() < 1e-12, "{quantiles:?}");
        }
        assert!(Quantiles::of(Vec::new()).is_none());
    }

    #[test]
    fn a_unit_is_paid_for_from_its_binding_to_its_release() {
        let life = Life {
            role: 0,
            created: second(0),
            bound: Some(second(10)),
            ready: None,
            leaving: None,
            gone: Some(second(50)),
            died: false,
            given: 0,
        };
        assert_eq!(paid(&life, second(100)), Some((second(10), second(50))));
        assert_eq!(paid(&life, second(30)), Some((second(10), second(30))));
        assert_eq!(paid(&life, second(5)), None);
        let waiting = Life {
            bound: None,
            ..life
        };
        assert_eq!(paid(&waiting, second(100)), None);
    }

    #[test]
    fn a_unit_that_died_was_not_started_in_vain() {
        let left = Life {
            role: 0,
            created: second(0),
            bound: Some(second(10)),
            ready: Some(second(20)),
            leaving: Some(second(30)),
            gone: Some(second(30)),
            died: false,
            given: 0,
        };
        assert_eq!(wasted(&[left]), 1);
        assert_eq!(wasted(&[Life { died: true, ..left }]), 0);
    }
}
