//! The rules of the election, as a state machine of one candidate.
//!
//! Time is passed in: `Instant`s from the local monotonic clock decide, wall-clock times are only written down for people. The record's
//! own times are never compared with a local clock.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::ObjectMeta;

use super::Timing;

/// One candidate's view of the election.
#[derive(Debug)]
pub struct Candidate {
    namespace: String,
    name: String,
    identity: String,
    timing: Timing,
    seen: Option<Seen>,
    /// When the last successful acquisition or renewal was sent.
    renewed_at: Option<Instant>,
}

/// The record as last read or written, and when this process first saw it so.
#[derive(Debug)]
struct Seen {
    lease: Lease,
    changed_at: Instant,
}

/// What to do now.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Another one holds the lease; the earliest instant at which it may be taken is given.
    Wait {
        /// The holder.
        holder: String,
        /// When the lease expires for this candidate unless the record changes.
        until: Instant,
    },
    /// There is no record: create this one.
    Create(Box<Lease>),
    /// Replace the record by this one; it carries the version that it replaces.
    Replace(Box<Lease>),
}

impl Candidate {
    /// A candidate that has seen nothing yet.
    #[must_use]
    pub fn new(settings: &super::Settings) -> Self {
        Self {
            namespace: settings.namespace.clone(),
            name: settings.name.clone(),
            identity: settings.identity.clone(),
            timing: settings.timing,
            seen: None,
            renewed_at: None,
        }
    }

    /// Takes in what the server holds. `now`: the instant *after* the answer arrived.
    pub fn observe(&mut self, lease: Option<Lease>, now: Instant) {
        let Some(lease) = lease else {
            self.seen = None;
            self.renewed_at = None;
            return;
        };
        if holder(&lease) != self.identity {
            self.renewed_at = None;
        }
        // The version tells a renewal also where it writes the same as before, as a holder does whose wall clock stands still.
        let is_unchanged = self.seen.as_ref().is_some_and(|seen| {
            seen.lease.spec == lease.spec
                && seen.lease.metadata.resource_version == lease.metadata.resource_version
        });
        let changed_at = match &self.seen {
            Some(seen) if is_unchanged => seen.changed_at,
            _ => now,
        };
        self.seen = Some(Seen { lease, changed_at });
    }

    /// Takes in that the server accepted a record of this candidate. `sent_at`: the instant *before* the request left.
    pub fn accepted(&mut self, lease: Lease, sent_at: Instant) {
        self.renewed_at = Some(sent_at);
        self.seen = Some(Seen {
            lease,
            changed_at: sent_at,
        });
    }

    /// Whether the record must be read before the next step: nothing is known, or another one holds it.
    #[must_use]
    pub fn needs_read(&self, now: Instant) -> bool {
        self.seen.is_none() || !self.is_leader(now)
    }

    /// What to do now. `wall` is written into the record for people.
    #[must_use]
    pub fn step(&self, now: Instant, wall: Timestamp) -> Step {
        let Some(seen) = &self.seen else {
            let metadata = ObjectMeta {
                namespace: Some(self.namespace.clone()),
                name: Some(self.name.clone()),
                ..ObjectMeta::default()
            };
            return Step::Create(Box::new(Lease {
                metadata,
                spec: Some(self.record(None, wall)),
            }));
        };
        let holder = holder(&seen.lease);
        let expires = seen.changed_at + promised(&seen.lease, self.timing.lease_duration());
        if !holder.is_empty() && holder != self.identity && now < expires {
            return Step::Wait {
                holder: holder.to_owned(),
                until: expires,
            };
        }
        let mut lease = seen.lease.clone();
        lease.spec = Some(self.record(seen.lease.spec.as_ref(), wall));
        Step::Replace(Box::new(lease))
    }

    /// The record that gives the lease back, when this candidate holds it. Send it only after the leader's work has ended.
    #[must_use]
    pub fn release(&self, wall: Timestamp) -> Option<Lease> {
        let seen = self.seen.as_ref()?;
        if holder(&seen.lease) != self.identity {
            return None;
        }
        let mut lease = seen.lease.clone();
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        spec.renew_time = Some(MicroTime(wall));
        Some(lease)
    }

    /// Forgets the record, after an answer that leaves open what the server holds. A running tenure goes on to its end.
    pub fn doubt(&mut self) {
        self.seen = None;
    }

    /// Ends the tenure now.
    pub fn resign(&mut self) {
        self.renewed_at = None;
    }

    /// When the tenure ends unless it is renewed; `None` when this candidate does not lead.
    #[must_use]
    pub fn tenure_end(&self) -> Option<Instant> {
        self.renewed_at
            .map(|sent| sent + self.timing.renew_deadline())
    }

    /// Whether this candidate may act as the leader at `now`.
    #[must_use]
    pub fn is_leader(&self, now: Instant) -> bool {
        self.tenure_end().is_some_and(|end| now < end)
    }

    /// This candidate's record that follows `previous`.
    fn record(&self, previous: Option<&LeaseSpec>, wall: Timestamp) -> LeaseSpec {
        let is_held = previous
            .is_some_and(|spec| spec.holder_identity.as_deref() == Some(self.identity.as_str()));
        let acquired = previous
            .filter(|_| is_held)
            .and_then(|spec| spec.acquire_time.clone());
        let transitions = match previous {
            None => 0,
            Some(spec) => spec
                .lease_transitions
                .unwrap_or(0)
                .saturating_add(i32::from(!is_held)),
        };
        let mut seconds = self.timing.lease_duration().as_secs();
        if self.timing.lease_duration().subsec_nanos() > 0 {
            seconds += 1;
        }
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(i32::try_from(seconds).unwrap_or(i32::MAX)),
            acquire_time: Some(acquired.unwrap_or(MicroTime(wall))),
            renew_time: Some(MicroTime(wall)),
            lease_transitions: Some(transitions),
            ..previous.cloned().unwrap_or_default()
        }
    }
}

/// The holder that a Lease names; empty when it names none.
#[must_use]
pub fn holder(lease: &Lease) -> &str {
    lease
        .spec
        .as_ref()
        .and_then(|spec| spec.holder_identity.as_deref())
        .unwrap_or("")
}

/// How long the holder promised to be patient: the record's own duration, or `default`.
#[must_use]
pub fn promised(lease: &Lease, default: Duration) -> Duration {
    let seconds = lease
        .spec
        .as_ref()
        .and_then(|spec| spec.lease_duration_seconds);
    seconds
        .and_then(|seconds| u64::try_from(seconds).ok())
        .map_or(default, Duration::from_secs)
}

#[cfg(test)]
#[path = "candidate_tests.rs"]
mod tests;
