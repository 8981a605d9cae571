//! What a fleet did while load was driven: a file that whoever watches the fleet writes.
//!
//! ```json
//! {
//!   "start": "2026-11-30T17:00:00Z",
//!   "points": [
//!     {"t": 0.0, "series": "qwen3/prefill/wanted", "value": 2},
//!     {"t": 0.0, "series": "qwen3/prefill/ready",  "value": 1},
//!     {"t": 5.0, "series": "qwen3/sets/wanted",    "value": 1},
//!     {"t": 5.0, "series": "gpus/used",            "value": 24},
//!     {"t": 5.0, "series": "gpus/budget",          "value": 64},
//!     {"t": 5.0, "series": "gangs/partial",        "value": 0}
//!   ],
//!   "events": [
//!     {"t": 120.0, "title": "node killed", "detail": "node-07, 8 GPUs"}
//!   ]
//! }
//! ```
//!
//! `t` is in seconds from `start` and may not decrease within a series; a value holds until the series' next one. Series:
//!
//! | series | values |
//! |---|---|
//! | `SYSTEM/ROLE/wanted`, `…/current`, `…/ready` | units of a role that the scaler wants, that exist, that serve; `sets` is a role like the others |
//! | `gpus/used`, `gpus/budget` | GPUs held by existing pods, and the limit |
//! | `gangs/whole`, `gangs/partial`, `gangs/waiting` | gangs wholly bound, partly bound, not bound |
//!
//! A system whose name is that of a driven model is shown with that model.

use std::collections::BTreeMap;
use std::path::Path;

use jiff::Timestamp;
use serde::Deserialize;

/// Values over time: seconds from the time line's start, and what held from then on.
pub type Points = Vec<(f64, f64)>;

/// A time line, sorted into what it speaks of.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    /// The instant from which seconds count.
    pub start: Timestamp,
    /// Systems by name, each with its roles in the order in which they first appear.
    pub systems: BTreeMap<String, Vec<Role>>,
    /// `gpus/…`.
    pub gpus: BTreeMap<String, Points>,
    /// `gangs/…`.
    pub gangs: BTreeMap<String, Points>,
    /// What happened, sorted by time.
    pub events: Vec<Event>,
}

/// Units of one role.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Role {
    /// Its name; `sets` for the replicas of the whole system.
    pub name: String,
    /// Wanted by the scaler.
    pub wanted: Points,
    /// Existing.
    pub current: Points,
    /// Serving.
    pub ready: Points,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// Seconds from the time line's start.
    pub t: f64,
    /// In a few words.
    pub title: String,
    /// More.
    #[serde(default)]
    pub detail: String,
}

/// A time line that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TimelineError {
    /// The file cannot be read.
    #[error("reading the time line {path}")]
    Read {
        /// File.
        path: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It is not JSON of this form.
    #[error("the time line {path} is not valid")]
    Parse {
        /// File.
        path: String,
        /// Where and why.
        #[source]
        source: serde_json::Error,
    },
    /// A series has a name that is not known.
    #[error(
        "point {position}: the series {name:?} is none of SYSTEM/ROLE/wanted|current|ready, gpus/used|budget, gangs/whole|partial|waiting"
    )]
    Series {
        /// Position in the file, from 1.
        position: usize,
        /// The name.
        name: String,
    },
    /// Time runs backwards, or is no number.
    #[error(
        "point {position}: t is {t}, after {before} in the same series; points of a series come in the order of time"
    )]
    Order {
        /// Position in the file, from 1.
        position: usize,
        /// The point's instant.
        t: f64,
        /// The instant before.
        before: f64,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    start: Timestamp,
    points: Vec<Point>,
    #[serde(default)]
    events: Vec<Event>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Point {
    t: f64,
    series: String,
    value: f64,
}

impl Timeline {
    /// Reads a file.
    ///
    /// # Errors
    /// See [`TimelineError`].
    pub fn read(path: &Path) -> Result<Self, TimelineError> {
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|source| TimelineError::Read {
            path: shown.clone(),
            source,
        })?;
        let file: File = serde_json::from_str(&text).map_err(|source| TimelineError::Parse {
            path: shown,
            source,
        })?;
        Self::sort(file)
    }

    fn sort(file: File) -> Result<Self, TimelineError> {
        let mut timeline = Self {
            start: file.start,
            systems: BTreeMap::new(),
            gpus: BTreeMap::new(),
            gangs: BTreeMap::new(),
            events: file.events,
        };
        timeline.events.sort_by(|a, b| a.t.total_cmp(&b.t));
        for (index, point) in file.points.iter().enumerate() {
            let position = index + 1;
            let series = timeline
                .series(&point.series)
                .ok_or_else(|| TimelineError::Series {
                    position,
                    name: point.series.clone(),
                })?;
            if let Some((before, _)) = series.last()
                && *before > point.t
            {
                return Err(TimelineError::Order {
                    position,
                    t: point.t,
                    before: *before,
                });
            }
            series.push((point.t, point.value));
        }
        Ok(timeline)
    }

    /// The points of a series by its name in the file.
    fn series(&mut self, name: &str) -> Option<&mut Points> {
        let (rest, kind) = name.rsplit_once('/')?;
        match (rest, kind) {
            ("gpus", "used" | "budget") => Some(self.gpus.entry(kind.to_owned()).or_default()),
            ("gangs", "whole" | "partial" | "waiting") => {
                Some(self.gangs.entry(kind.to_owned()).or_default())
            }
            _ => {
                let (system, role) = rest.rsplit_once('/')?;
                let roles = self.systems.entry(system.to_owned()).or_default();
                let at = roles
                    .iter()
                    .position(|known| known.name == role)
                    .unwrap_or_else(|| {
                        roles.push(Role {
                            name: role.to_owned(),
                            ..Role::default()
                        });
                        roles.len() - 1
                    });
                match kind {
                    "wanted" => Some(&mut roles[at].wanted),
                    "current" => Some(&mut roles[at].current),
                    "ready" => Some(&mut roles[at].ready),
                    _ => None,
                }
            }
        }
    }

    /// Seconds from the start to the last point or event.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        let roles = self
            .systems
            .values()
            .flatten()
            .flat_map(|role| [&role.wanted, &role.current, &role.ready]);
        let points = roles
            .chain(self.gpus.values())
            .chain(self.gangs.values())
            .filter_map(|points| points.last())
            .map(|(t, _)| *t);
        points
            .chain(self.events.iter().map(|event| event.t))
            .fold(0.0, f64::max)
    }
}

/// Mean of a value that holds until the next, from its first instant to `end`; none without points or time.
#[must_use]
pub fn mean_over_time(points: &[(f64, f64)], end: f64) -> Option<f64> {
    let first = points.first()?.0;
    if end <= first {
        return points.last().map(|(_, value)| *value);
    }
    let ends = points.iter().skip(1).map(|(t, _)| *t).chain([end]);
    let area: f64 = points
        .iter()
        .zip(ends)
        .map(|((t, value), next)| value * (next.min(end) - t).max(0.0))
        .sum();
    Some(area / (end - first))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(points: &str) -> Result<Timeline, TimelineError> {
        let file = format!(
            r#"{{"start":"2026-11-30T17:00:00Z","points":[{points}],"events":[{{"t":9,"title":"b"}},{{"t":3,"title":"a"}}]}}"#
        );
        Timeline::sort(serde_json::from_str(&file).unwrap())
    }

    #[test]
    fn points_are_sorted_into_systems_roles_and_the_fleet() {
        let timeline = read(
            r#"{"t":0,"series":"org/qwen3/prefill/wanted","value":2},{"t":1,"series":"org/qwen3/prefill/ready","value":1},
               {"t":1,"series":"org/qwen3/sets/wanted","value":1},{"t":5,"series":"gpus/used","value":8},{"t":5,"series":"gangs/partial","value":0},
               {"t":7,"series":"org/qwen3/prefill/wanted","value":4}"#,
        )
        .unwrap();
        let roles = &timeline.systems["org/qwen3"];
        assert_eq!(
            roles
                .iter()
                .map(|role| role.name.as_str())
                .collect::<Vec<_>>(),
            ["prefill", "sets"]
        );
        assert_eq!(roles[0].wanted, [(0.0, 2.0), (7.0, 4.0)]);
        assert_eq!(timeline.gpus["used"], [(5.0, 8.0)]);
        assert_eq!(timeline.events[0].title, "a");
        assert!((timeline.seconds() - 9.0).abs() < 1e-9);
    }

    #[test]
    fn unknown_series_and_time_that_runs_backwards_are_refused() {
        let error = read(r#"{"t":0,"series":"gpus/free","value":2}"#)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("point 1: the series \"gpus/free\" is none of"),
            "{error}"
        );
        let error = read(
            r#"{"t":5,"series":"gpus/used","value":2},{"t":4,"series":"gpus/used","value":2}"#,
        )
        .unwrap_err()
        .to_string();
        assert!(error.contains("point 2: t is 4, after 5"), "{error}");
    }

    #[test]
    fn means_weigh_by_time() {
        assert_eq!(mean_over_time(&[(0.0, 1.0), (10.0, 3.0)], 40.0), Some(2.5));
        assert_eq!(mean_over_time(&[], 40.0), None);
        assert_eq!(mean_over_time(&[(5.0, 2.0)], 5.0), Some(2.0));
    }
}
