//! The verdict: what the demo has to show, from what was seen.

use serde::Serialize;

use super::load::{Load, Served};
use super::record::Record;
use super::watch::{HPA_MODEL, Look, POLICY_MODEL, ROLES, Units};

/// Share of requests that have to be served within the objectives.
const ATTAINMENT: f64 = 0.9;
/// A gang that is seen partly placed has to be whole within this many seconds.
const PLACEMENT_LIMIT: f64 = 5.0;

/// Something that had to be shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    pub(super) name: String,
    pub(super) passed: bool,
    pub(super) detail: String,
}

impl Check {
    fn new(name: &str, passed: bool, detail: String) -> Self {
        Self {
            name: name.to_owned(),
            passed,
            detail,
        }
    }
}

/// Judges a demo.
pub(super) fn judge(record: &Record, load: &Load) -> Vec<Check> {
    let mut checks: Vec<Check> = [POLICY_MODEL, HPA_MODEL]
        .map(|model| served(model, load.served(model)))
        .into();
    checks.push(followed(record));
    checks.push(sets(record));
    checks.push(hpa(record));
    checks.push(budget(record));
    checks.extend(gangs(record));
    checks.push(Check::new(
        "the cluster was seen all the time",
        record.gaps() * 20 <= record.looks().len(),
        format!("{} looks, {} failed", record.looks().len(), record.gaps()),
    ));
    checks
}

fn served(model: &str, served: Option<Served>) -> Check {
    let name = format!(
        "{model}: at least {:.0} % of the requests met their objectives",
        ATTAINMENT * 100.0
    );
    let Some(Served {
        planned,
        good,
        failed,
        ttft_p95,
        itl_p95,
    }) = served
    else {
        return Check::new(&name, false, "the run has no such stream".to_owned());
    };
    let time = |seconds: Option<f64>| {
        seconds.map_or_else(
            || "-".to_owned(),
            |seconds| format!("{:.0} ms", seconds * 1e3),
        )
    };
    let share = if planned == 0 {
        0.0
    } else {
        good as f64 / planned as f64
    };
    let detail = format!(
        "{good} of {planned} ({:.1} %), {failed} failed, TTFT p95 {}, ITL p95 {}",
        share * 100.0,
        time(ttft_p95),
        time(itl_p95)
    );
    Check::new(&name, share >= ATTAINMENT, detail)
}

fn of(look: &Look, role: &str) -> Units {
    look.roles.get(role).copied().unwrap_or_default()
}

/// Smallest and largest of a number over all looks.
fn range(record: &Record, of: impl Fn(&Look) -> u32) -> (u32, u32) {
    let values = record.looks().iter().map(|(_, look)| of(look));
    values.fold((u32::MAX, 0), |(low, high), value| {
        (low.min(value), high.max(value))
    })
}

fn followed(record: &Record) -> Check {
    let mut passed = true;
    let details = ROLES.map(|role| {
        let (low, high) = range(record, |look| of(look, role).ready);
        passed &= high > low;
        format!("{role} {low} to {high} ready")
    });
    Check::new(
        "prefill and decode followed the load",
        passed,
        details.join(", "),
    )
}

fn sets(record: &Record) -> Check {
    let (low, high) = range(record, |look| of(look, "sets").current);
    Check::new(
        "a set replica was added when the groups were at their maximum",
        high > low,
        format!("{low} to {high} sets"),
    )
}

fn hpa(record: &Record) -> Check {
    let (low, high) = range(record, |look| look.hpa.ready);
    Check::new(
        "the HPA followed coppice_requests_waiting",
        high > low,
        format!("{low} to {high} servers"),
    )
}

fn budget(record: &Record) -> Check {
    let (_, high) = range(record, |look| look.gpus);
    let limit = record.budget();
    Check::new(
        "the GPU budget was never exceeded",
        high <= limit,
        format!("at most {high} of {limit} GPUs"),
    )
}

fn gangs(record: &Record) -> [Check; 2] {
    let longest = record.longest_first_placement();
    let first = Check::new(
        "no gang stayed partly placed",
        longest.is_none_or(|(_, seconds)| *seconds <= PLACEMENT_LIMIT),
        longest.map_or_else(
            || "none was ever seen partly placed".to_owned(),
            |(name, seconds)| format!("the longest was {name}, {seconds:.0} s"),
        ),
    );
    let died = record.node_died_at();
    let whole = Check::new(
        "gangs broken by the killed node became whole again",
        died.is_some() && record.was_whole_at_the_end(),
        died.map_or_else(
            || "no node was killed".to_owned(),
            |at| {
                format!(
                    "killed after {at:.0} s; at the end {} whole",
                    if record.was_whole_at_the_end() {
                        "all are"
                    } else {
                        "not all are"
                    }
                )
            },
        ),
    );
    [first, whole]
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn record(gpus: &[u32]) -> Record {
        let mut record = Record::new(Timestamp::UNIX_EPOCH, 16);
        for (second, gpus) in (0u32..).zip(gpus) {
            record.add(
                f64::from(second),
                Look {
                    gpus: *gpus,
                    ..Look::default()
                },
            );
        }
        record
    }

    #[test]
    fn one_instant_above_the_budget_fails() {
        assert!(budget(&record(&[8, 16, 16])).passed);
        assert!(!budget(&record(&[8, 24, 16])).passed);
    }

    #[test]
    fn a_fleet_that_never_moved_did_not_follow() {
        assert!(!followed(&record(&[8, 8])).passed);
        assert!(!hpa(&record(&[8, 8])).passed);
    }

    #[test]
    fn failed_requests_are_misses_and_no_requests_are_no_success() {
        let result = |planned, good| {
            served(
                "m",
                Some(Served {
                    planned,
                    good,
                    failed: 0,
                    ttft_p95: None,
                    itl_p95: None,
                }),
            )
            .passed
        };
        assert!(result(100, 90));
        assert!(!result(100, 89));
        assert!(!result(0, 0));
        assert!(!served("m", None).passed);
    }
}
