//! One value from many endpoints, or why there is none.
//!
//! The rules: a dead endpoint does not count at all. A live one without a fresh value counts against the quorum. Above the
//! quorum a sum is scaled up to all live endpoints, since the bare sum would read as falling load; a mean, a maximum or a
//! quantile is taken over those that answer. Engines and frontends are never added together.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::endpoint::Selected;
use crate::engines::Tier;
use crate::query::{Missing, Problem, Why};
use crate::reading::{Absent, Models, Read};
use crate::target::Target;

/// How the values become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Combine {
    /// Every endpoint's part is needed: servers that lack the signal count as missing.
    Sum,
    /// Endpoints speak for each other: servers that lack the signal do not count.
    Share,
}

/// Whose values count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    /// Engines; frontends if there are no engines.
    Engines,
    /// Frontends alone.
    Frontends,
    /// All of them.
    Everyone,
}

/// The values of the endpoints that have one.
#[derive(Debug)]
pub(crate) struct Gathered<V> {
    pub(crate) values: Vec<V>,
    /// Multiplies a sum to make up for the missing.
    pub(crate) scale: f64,
    /// Live endpoints that should have a value.
    pub(crate) live: usize,
    /// When the oldest contributing sample was taken.
    pub(crate) oldest: Timestamp,
    /// The longest look-back.
    pub(crate) span: Duration,
    pub(crate) at_finish: bool,
    /// Endpoints left out because their server lacks the signal.
    pub(crate) not_exposed: usize,
    /// Indices of the endpoints that contributed.
    pub(crate) contributors: Vec<usize>,
    /// What is wrong with the others.
    pub(crate) problems: Vec<Problem>,
}

/// Reads one value from each endpoint and applies the rules.
pub(crate) fn gather<V>(
    selected: &[Selected],
    whose: Whose,
    combine: Combine,
    quorum: f64,
    selection: &str,
    read: impl Fn(&Target, Models) -> Result<Read<V>, Absent>,
) -> Result<Gathered<V>, Missing> {
    let has_engines = selected.iter().any(|each| each.tier == Some(Tier::Engine));
    let all_foreign = selected.iter().all(|each| each.foreign);
    let mut gathered = Gathered {
        values: Vec::with_capacity(selected.len()),
        scale: 1.0,
        live: 0,
        oldest: Timestamp::MAX,
        span: Duration::ZERO,
        at_finish: false,
        not_exposed: 0,
        contributors: Vec::with_capacity(selected.len()),
        problems: Vec::new(),
    };
    let mut problems: BTreeMap<Why, (usize, usize)> = BTreeMap::new();
    let mut not_yet = 0;
    for (index, each) in selected.iter().enumerate() {
        let counts = match whose {
            // Another kind of server altogether, unless there is nothing else.
            Whose::Engines => {
                (!each.foreign || all_foreign)
                    && (each.tier != Some(Tier::Frontend) || !has_engines)
            }
            // What is not recognised yet may become one.
            Whose::Frontends => {
                each.tier == Some(Tier::Frontend) || (each.tier.is_none() && !each.foreign)
            }
            Whose::Everyone => true,
        };
        if !counts {
            continue;
        }
        gathered.live += 1;
        let outcome = match &each.problem {
            Some(problem) => Err(Absent::Because(problem.clone())),
            None => read(&each.endpoint.tracked.state.lock().target, each.models),
        };
        match outcome {
            Ok(read) => {
                gathered.values.push(read.value);
                gathered.contributors.push(index);
                gathered.oldest = gathered.oldest.min(each.last.unwrap_or(Timestamp::MAX));
                gathered.span = gathered.span.max(read.span);
                gathered.at_finish |= read.at_finish;
            }
            Err(Absent::NotYet) => not_yet += 1,
            Err(Absent::Because(Why::NotExposed)) if combine == Combine::Share => {
                gathered.not_exposed += 1
            }
            Err(Absent::Because(why)) => problems.entry(why).or_insert((0, index)).0 += 1,
        }
    }
    gathered.problems = describe(selected, problems);
    judge(&mut gathered, selected, not_yet, quorum, selection)?;
    Ok(gathered)
}

/// Applies the quorum.
fn judge<V>(
    gathered: &mut Gathered<V>,
    selected: &[Selected],
    not_yet: usize,
    quorum: f64,
    selection: &str,
) -> Result<(), Missing> {
    if gathered.live == 0 {
        return Err(Missing::NoEndpoints {
            selection: selection.to_owned(),
        });
    }
    let known = gathered.values.len();
    let only_lacking = gathered
        .problems
        .iter()
        .all(|problem| matches!(problem.why, Why::NotExposed | Why::Unrecognised));
    if known == 0 && only_lacking {
        return Err(Missing::NotExposed {
            servers: servers(selected),
        });
    }
    let live = gathered.live - gathered.not_exposed;
    let answered = known + not_yet;
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a number of endpoints"
    )]
    let needed = ((quorum * live as f64 - 1e-9).ceil() as usize).max(1);
    if known == 0 || answered < needed {
        return Err(Missing::QuorumNotMet {
            known: answered,
            live,
            needed,
            problems: std::mem::take(&mut gathered.problems),
        });
    }
    gathered.live = live;
    #[expect(clippy::cast_precision_loss, reason = "a number of endpoints")]
    if answered < live {
        gathered.scale = live as f64 / answered as f64;
    }
    Ok(())
}

/// The most frequent first, each with one endpoint's name.
fn describe(selected: &[Selected], problems: BTreeMap<Why, (usize, usize)>) -> Vec<Problem> {
    let mut described: Vec<_> = problems
        .into_iter()
        .map(|(why, (endpoints, example))| Problem {
            why,
            endpoints,
            example: selected[example].endpoint.display(),
        })
        .collect();
    described.sort_by(|one, other| {
        other
            .endpoints
            .cmp(&one.endpoints)
            .then_with(|| one.why.cmp(&other.why))
    });
    described
}

/// The servers recognised, by name.
pub(crate) fn servers(selected: &[Selected]) -> Vec<String> {
    let mut names: Vec<String> = selected
        .iter()
        .filter_map(|each| {
            each.endpoint
                .tracked
                .state
                .lock()
                .target
                .recognition()
                .map(|known| known.name())
        })
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}
