//! What was seen while the load was driven: the time line of the report, and the facts that are judged.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::watch::{HPA_MODEL, Look, POLICY_MODEL, Placement, Units};

/// Everything seen, by seconds from the start.
#[derive(Debug)]
pub(super) struct Record {
    start: Timestamp,
    budget: u32,
    points: Vec<(f64, String, f64)>,
    events: Vec<(f64, String, String)>,
    looks: Vec<(f64, Look)>,
    gaps: usize,
    /// Gangs that are partly placed, since when.
    partial_since: BTreeMap<String, f64>,
    /// Gangs that were whole at some time.
    once_whole: BTreeSet<String>,
    longest_first_placement: Option<(String, f64)>,
    node_died_at: Option<f64>,
    whole_at_the_end: bool,
}

impl Record {
    pub(super) fn new(start: Timestamp, budget: u32) -> Self {
        Self {
            start,
            budget,
            points: Vec::new(),
            events: Vec::new(),
            looks: Vec::new(),
            gaps: 0,
            partial_since: BTreeMap::new(),
            once_whole: BTreeSet::new(),
            longest_first_placement: None,
            node_died_at: None,
            whole_at_the_end: false,
        }
    }

    /// Seconds from the start.
    pub(super) fn seconds(&self, now: Timestamp) -> f64 {
        now.duration_since(self.start).as_secs_f64().max(0.0)
    }

    pub(super) fn event(&mut self, at: f64, title: &str, detail: &str) {
        self.events.push((at, title.to_owned(), detail.to_owned()));
    }

    pub(super) fn node_died(&mut self, at: f64, _node: &str) {
        self.node_died_at = Some(at);
    }

    pub(super) fn all_whole_at_the_end(&mut self) {
        self.whole_at_the_end = true;
    }

    /// The cluster could not be looked at.
    pub(super) fn gap(&mut self, at: f64, why: &str) {
        self.gaps += 1;
        if self.gaps == 1 {
            self.event(at, "no look at the cluster", why);
        }
    }

    pub(super) fn add(&mut self, at: f64, look: Look) {
        let units =
            |points: &mut Vec<(f64, String, f64)>, system: &str, role: &str, units: Units| {
                for (kind, value) in [
                    ("wanted", units.wanted),
                    ("current", units.current),
                    ("ready", units.ready),
                ] {
                    points.push((at, format!("{system}/{role}/{kind}"), f64::from(value)));
                }
            };
        // `sets` last, so that roles come first in the report.
        for role in look
            .roles
            .keys()
            .filter(|role| *role != "sets")
            .chain(look.roles.keys().filter(|role| *role == "sets"))
        {
            units(&mut self.points, POLICY_MODEL, role, look.roles[role]);
        }
        units(&mut self.points, HPA_MODEL, "servers", look.hpa);
        self.points
            .push((at, "gpus/used".to_owned(), f64::from(look.gpus)));
        self.points
            .push((at, "gpus/budget".to_owned(), f64::from(self.budget)));
        for (name, placement) in [
            ("whole", Placement::Whole),
            ("partial", Placement::Partial),
            ("waiting", Placement::Waiting),
        ] {
            let count = u32::try_from(look.gangs_that_are(placement)).unwrap_or(u32::MAX);
            self.points
                .push((at, format!("gangs/{name}"), f64::from(count)));
        }
        self.follow_gangs(at, &look);
        self.looks.push((at, look));
    }

    /// How long gangs stay partly placed before they are whole for the first time.
    fn follow_gangs(&mut self, at: f64, look: &Look) {
        for (name, placement) in &look.gangs {
            if *placement == Placement::Whole {
                self.once_whole.insert(name.clone());
            }
        }
        let partial = look.partial();
        self.partial_since
            .retain(|name, _| partial.contains(name.as_str()));
        for name in partial
            .into_iter()
            .filter(|name| !self.once_whole.contains(*name))
        {
            let since = *self.partial_since.entry(name.to_owned()).or_insert(at);
            let lasted = at - since;
            if self
                .longest_first_placement
                .as_ref()
                .is_none_or(|(_, longest)| lasted > *longest)
            {
                self.longest_first_placement = Some((name.to_owned(), lasted));
            }
        }
        // A name that is used again is a new gang.
        self.once_whole.retain(|name| look.gangs.contains_key(name));
    }

    pub(super) fn looks(&self) -> &[(f64, Look)] {
        &self.looks
    }

    pub(super) fn budget(&self) -> u32 {
        self.budget
    }

    pub(super) fn gaps(&self) -> usize {
        self.gaps
    }

    pub(super) fn longest_first_placement(&self) -> Option<&(String, f64)> {
        self.longest_first_placement.as_ref()
    }

    pub(super) fn node_died_at(&self) -> Option<f64> {
        self.node_died_at
    }

    pub(super) fn was_whole_at_the_end(&self) -> bool {
        self.whole_at_the_end
    }

    /// The file for the report; a point only where a value changed.
    pub(super) fn timeline(&self) -> Value {
        let mut last: BTreeMap<&str, f64> = BTreeMap::new();
        let mut points = Vec::new();
        for (at, series, value) in &self.points {
            let before = last.insert(series, *value);
            if before.is_none_or(|before| (before - value).abs() > f64::EPSILON) {
                points.push(json!({"t": at, "series": series, "value": value}));
            }
        }
        if let Some((at, look)) = self.looks.last() {
            points.push(json!({"t": at, "series": "gpus/used", "value": look.gpus}));
        }
        let events: Vec<_> = self
            .events
            .iter()
            .map(|(at, title, detail)| json!({"t": at, "title": title, "detail": detail}))
            .collect();
        json!({"start": self.start.to_string(), "points": points, "events": events})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(placement: Placement) -> Look {
        Look {
            gangs: [("g".to_owned(), placement)].into(),
            ..Look::default()
        }
    }

    #[test]
    fn a_first_placement_is_timed_and_a_later_loss_is_not() {
        let mut record = Record::new(Timestamp::UNIX_EPOCH, 8);
        for (at, placement) in [
            (0.0, Placement::Waiting),
            (1.0, Placement::Partial),
            (3.0, Placement::Partial),
        ] {
            record.add(at, look(placement));
        }
        assert_eq!(
            record.longest_first_placement(),
            Some(&("g".to_owned(), 2.0))
        );
        for (at, placement) in [
            (4.0, Placement::Whole),
            (5.0, Placement::Partial),
            (60.0, Placement::Partial),
        ] {
            record.add(at, look(placement));
        }
        assert_eq!(
            record.longest_first_placement(),
            Some(&("g".to_owned(), 2.0))
        );
    }

    #[test]
    fn the_time_line_holds_changes_only() {
        let mut record = Record::new(Timestamp::UNIX_EPOCH, 8);
        record.add(
            0.0,
            Look {
                gpus: 8,
                ..Look::default()
            },
        );
        record.add(
            1.0,
            Look {
                gpus: 8,
                ..Look::default()
            },
        );
        record.add(
            2.0,
            Look {
                gpus: 16,
                ..Look::default()
            },
        );
        let timeline = record.timeline();
        let used: Vec<_> = timeline["points"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|point| point["series"] == "gpus/used")
            .collect();
        assert_eq!(used.len(), 3, "{used:?}"); // two changes, and where it ends
    }
}
