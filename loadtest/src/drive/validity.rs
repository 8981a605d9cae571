//! Whether a run measured the server or itself.
//!
//! A driver that is late, that cannot keep the rate, or that is short of processors or descriptors reports its own
//! troubles as the server's latency. Such a run is invalid and says so before anything else.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::objective::Objectives;
use super::summary::{DriverSummary, Mode, StreamSummary};

/// Lateness that is always allowed at the 99th percentile.
const LATENESS_FLOOR_SECONDS: f64 = 0.002;
/// Lateness that is allowed as a share of the limit on the time to first token.
const LATENESS_SHARE: f64 = 0.01;
/// Allowed difference between planned and sent rate.
const RATE_SHARE: f64 = 0.01;
/// Failures that come from the driver's own machine.
const OWN_FAILURES: [&str; 1] = ["Descriptors"];
/// Fewer samples than this make a 99th percentile a matter of luck.
const FEW_SAMPLES: u64 = 1000;

/// The verdict on a run, with every rule it was held to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Validity {
    /// All rules were kept.
    pub valid: bool,
    /// The rules.
    pub rules: Vec<Rule>,
    /// What a reader should know although the run is valid.
    pub notes: Vec<String>,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rule {
    /// Constant name.
    pub name: String,
    /// It was kept.
    pub kept: bool,
    /// What was measured and what is allowed, in words.
    pub detail: String,
}

/// What the rules look at.
#[derive(Debug)]
pub(super) struct Evidence<'a> {
    pub(super) mode: Mode,
    pub(super) total: &'a StreamSummary,
    pub(super) objectives: &'a [Objectives],
    pub(super) driver: &'a DriverSummary,
    pub(super) cpus: usize,
    /// Planned and actual time between the first and the last request, where there are two.
    pub(super) spans: Option<(Duration, Duration)>,
    /// The run was stopped before its end.
    pub(super) interrupted: bool,
}

/// Judges a run.
pub(super) fn judge(evidence: &Evidence<'_>) -> Validity {
    let allowed = allowed_lateness(evidence.objectives);
    let mut rules = vec![completed(evidence)];
    if evidence.mode == Mode::OpenLoop {
        rules.push(lateness(evidence, allowed));
        rules.push(rate(evidence));
    }
    rules.push(processors(evidence, allowed));
    rules.push(descriptors(evidence));
    Validity {
        valid: rules.iter().all(|rule| rule.kept),
        rules,
        notes: notes(evidence),
    }
}

/// What p99 lateness may be: 1 % of the tightest limit on the time to first token, and never less than 2 ms.
fn allowed_lateness(objectives: &[Objectives]) -> f64 {
    let tightest = objectives
        .iter()
        .filter_map(|objectives| objectives.ttft)
        .map(|limit| limit.base.as_secs_f64())
        .reduce(f64::min);
    tightest.map_or(LATENESS_FLOOR_SECONDS, |limit| {
        (limit * LATENESS_SHARE).max(LATENESS_FLOOR_SECONDS)
    })
}

fn rule(name: &str, kept: bool, detail: String) -> Rule {
    Rule {
        name: name.to_owned(),
        kept,
        detail,
    }
}

fn completed(evidence: &Evidence<'_>) -> Rule {
    let requests = &evidence.total.requests;
    if evidence.interrupted {
        return rule(
            "completed",
            false,
            format!(
                "the run was stopped after {} of its requests",
                requests.sent
            ),
        );
    }
    rule(
        "completed",
        requests.planned > 0,
        format!("{} requests were measured", requests.planned),
    )
}

fn lateness(evidence: &Evidence<'_>, allowed: f64) -> Rule {
    let Some(lateness) = evidence.total.lateness else {
        return rule("lateness", false, "no request was sent".to_owned());
    };
    rule(
        "lateness",
        lateness.p99 <= allowed,
        format!(
            "99 % of requests were sent within {:.2} ms of their planned instant; {:.1} ms are allowed",
            lateness.p99 * 1e3,
            allowed * 1e3
        ),
    )
}

fn rate(evidence: &Evidence<'_>) -> Rule {
    let requests = &evidence.total.requests;
    let share = if requests.planned > 0 {
        requests.sent as f64 / requests.planned as f64
    } else {
        0.0
    };
    let stretched = evidence.spans.map_or(1.0, |(planned, sent)| {
        if planned.is_zero() {
            1.0
        } else {
            sent.as_secs_f64() / planned.as_secs_f64()
        }
    });
    // A stretch of less than the allowed lateness in a run of a few requests says nothing about the rate.
    let negligible = evidence
        .spans
        .is_some_and(|(planned, sent)| sent.abs_diff(planned) < Duration::from_millis(2));
    let kept = share >= 1.0 - RATE_SHARE && (negligible || (stretched - 1.0).abs() <= RATE_SHARE);
    rule(
        "rate",
        kept,
        format!(
            "{:.2} % of the planned requests were sent, over {:.2} % of the planned time; 1 % off is allowed",
            share * 100.0,
            stretched * 100.0
        ),
    )
}

fn processors(evidence: &Evidence<'_>, allowed: f64) -> Rule {
    let DriverSummary {
        loop_lag,
        cpus_used,
        waited_for_cpu,
        ..
    } = evidence.driver;
    let lag = loop_lag.map_or(0.0, |lag| lag.p99);
    let waited = waited_for_cpu.map_or_else(String::new, |share| {
        format!(
            ", a worker waited {:.0} % of the time for one",
            share * 100.0
        )
    });
    rule(
        "processors",
        lag <= allowed,
        format!(
            "99 % of the driver's events were handled within {:.2} ms; {:.1} ms are allowed ({cpus_used:.2} of {} processors used{waited})",
            lag * 1e3,
            allowed * 1e3,
            evidence.cpus
        ),
    )
}

fn descriptors(evidence: &Evidence<'_>) -> Rule {
    let failed: u64 = OWN_FAILURES
        .iter()
        .filter_map(|kind| evidence.total.failures.get(*kind))
        .map(|failure| failure.count)
        .sum();
    rule(
        "descriptors",
        failed == 0,
        format!("{failed} requests failed because this machine ran out of descriptors or ports"),
    )
}

fn notes(evidence: &Evidence<'_>) -> Vec<String> {
    let total = evidence.total;
    let mut notes = Vec::new();
    if let Mode::ClosedLoop { users, .. } = evidence.mode {
        notes.push(format!(
            "closed loop of {users} users: a slow server is asked less, so these latencies do not hold for an offered rate"
        ));
    }
    if let Some(limit) = evidence.driver.max_in_flight {
        notes.push(format!("at most {limit} requests were in flight, as asked; waiting for a place counts as latency"));
    }
    match total.ttft {
        Some(ttft) if ttft.count < FEW_SAMPLES => {
            notes.push(format!("p99 and above rest on {} answers only", ttft.count))
        }
        _ => {}
    }
    let tokens = &total.tokens;
    if tokens.answers_without_usage > 0 {
        notes.push(format!(
            "{} answers came without the server's token count: one token a chunk was assumed for them",
            tokens.answers_without_usage
        ));
    }
    if tokens.answers_with_several_tokens_a_chunk > 0 {
        notes.push(format!(
            "{} answers had several tokens in a chunk: their gaps between tokens are means",
            tokens.answers_with_several_tokens_a_chunk
        ));
    }
    let counted = tokens.input > 0 && tokens.planned_input > 0;
    let ratio = tokens.input as f64 / tokens.planned_input.max(1) as f64;
    if counted && !(0.9..=1.1).contains(&ratio) {
        notes.push(format!(
            "the server counted {:.0} % of the planned prompt tokens: its tokenizer differs",
            ratio * 100.0
        ));
    }
    let ratio = tokens.output as f64 / tokens.planned_output.max(1) as f64;
    if tokens.planned_output > 0 && !(0.98..=1.02).contains(&ratio) {
        notes.push(format!(
            "the server generated {:.0} % of the planned output tokens",
            ratio * 100.0
        ));
    }
    notes
}
