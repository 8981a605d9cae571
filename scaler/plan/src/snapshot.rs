//! What a new leader needs to go on where the last one stopped, in a few hundred bytes.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::efficiency::Efficiency;
use crate::history::{History, RoleHistory, Run};
use crate::reading::elapsed;

/// Form of the snapshot; a snapshot of another form is not read.
const FORM: u32 = 1;
/// A snapshot that is not older than this was taken without a gap in between.
const NO_GAP: Duration = Duration::from_secs(60);
/// Changes that are kept for each role: those that a rate limit of some minutes still counts.
const CHANGES: usize = 16;
/// Runs that are kept for each role.
const RUNS: usize = 32;

/// A compact copy of a [`History`]: changes that rate limits count, recommendations that windows count, and how long starts took. Load is not in it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    #[serde(rename = "v")]
    form: u32,
    at: i64,
    #[serde(rename = "since")]
    watched_since: i64,
    #[serde(rename = "r")]
    roles: BTreeMap<String, RoleSnapshot>,
    #[serde(rename = "s", default, skip_serializing_if = "Vec::is_empty")]
    sets: Vec<(i64, i64, u32)>,
}

/// Times are seconds before `at`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
struct RoleSnapshot {
    #[serde(rename = "c", default, skip_serializing_if = "Option::is_none")]
    current: Option<u32>,
    #[serde(rename = "w", default, skip_serializing_if = "Option::is_none")]
    wanted: Option<u32>,
    /// When, and by how many units.
    #[serde(rename = "d", default, skip_serializing_if = "Vec::is_empty")]
    changes: Vec<(i64, i64)>,
    /// From, until, most.
    #[serde(rename = "n", default, skip_serializing_if = "Vec::is_empty")]
    recommended: Vec<(i64, i64, u32)>,
    /// Seconds.
    #[serde(rename = "t", default, skip_serializing_if = "Vec::is_empty")]
    startups: Vec<u64>,
    #[serde(rename = "e", default, skip_serializing_if = "Option::is_none")]
    efficiency: Option<f64>,
}

/// A snapshot of another form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the snapshot has form {0}, this version reads form {FORM}")]
pub struct SnapshotError(u32);

impl History {
    /// A compact copy of what a new leader needs.
    #[must_use]
    pub fn snapshot(&self, now: Timestamp) -> Snapshot {
        let before = |at: Timestamp| now.as_second() - at.as_second();
        let runs = |runs: &std::collections::VecDeque<Run>| -> Vec<(i64, i64, u32)> {
            let skipped = runs.len().saturating_sub(RUNS);
            runs.iter()
                .skip(skipped)
                .map(|run| (before(run.from), before(run.until), run.most))
                .collect()
        };
        let role = |role: &RoleHistory| RoleSnapshot {
            current: role.current,
            wanted: role.wanted,
            changes: role
                .changes
                .iter()
                .rev()
                .take(CHANGES)
                .rev()
                .map(|(at, change)| (before(*at), *change))
                .collect(),
            recommended: runs(&role.recommended.runs),
            startups: role.startups.iter().map(Duration::as_secs).collect(),
            efficiency: role
                .efficiency
                .share
                .map(|share| (share * 1_000.0).round() / 1_000.0),
        };
        Snapshot {
            form: FORM,
            at: now.as_second(),
            watched_since: before(self.watched_since),
            roles: self
                .roles
                .iter()
                .map(|(name, history)| (name.clone(), role(history)))
                .collect(),
            sets: runs(&self.sets.runs),
        }
    }

    /// A history that goes on from `snapshot`. After a gap of more than a minute nobody knows what was needed in between: windows start anew, so that
    /// nothing is removed for one window; changes and start-up times count all the same.
    ///
    /// # Errors
    /// When the snapshot has another form.
    pub fn restore(snapshot: &Snapshot, now: Timestamp) -> Result<Self, SnapshotError> {
        if snapshot.form != FORM {
            return Err(SnapshotError(snapshot.form));
        }
        let mut history = Self::new(now);
        let taken = Timestamp::from_second(snapshot.at).unwrap_or(now);
        let ago = |seconds: i64| {
            Timestamp::from_second(snapshot.at.saturating_sub(seconds))
                .unwrap_or(now)
                .min(now)
        };
        let run = |(from, until, most): &(i64, i64, u32)| Run {
            from: ago(*from),
            until: ago(*until),
            least: *most,
            most: *most,
        };
        let gapless = elapsed(taken, now) <= NO_GAP;
        if gapless {
            history.watched_since = ago(snapshot.watched_since);
            history.sets.runs = snapshot.sets.iter().map(run).collect();
        }
        for (name, role) in &snapshot.roles {
            let restored = history.roles.entry(name.clone()).or_default();
            restored.current = role.current;
            restored.wanted = role.wanted;
            restored.changes = role
                .changes
                .iter()
                .take(CHANGES)
                .map(|(at, change)| (ago(*at), *change))
                .collect();
            restored.startups = role
                .startups
                .iter()
                .take(20)
                .map(|seconds| Duration::from_secs(*seconds))
                .collect();
            if let Some(share) = role.efficiency {
                restored.efficiency = Efficiency::restored(share);
            }
            if gapless {
                restored.recommended.runs = role.recommended.iter().take(RUNS).map(run).collect();
            }
        }
        Ok(history)
    }
}
