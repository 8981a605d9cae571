//! What is written about pods, decided at the last moment.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::super::status;
use super::super::writes::{Job, Outcome, Written};
use super::{Driver, PodEntry, Timer};

/// A failed write is tried again after this.
const RETRY: Duration = Duration::from_millis(500);

impl Driver {
    pub(super) fn publish(&mut self, uid: &str) {
        if let Some(entry) = self.pods.get_mut(uid) {
            entry.unwritten_since.get_or_insert_with(Instant::now);
            self.enqueue(uid);
        }
    }

    pub(super) fn enqueue(&mut self, uid: &str) {
        if let Some(entry) = self.pods.get_mut(uid)
            && !entry.is_writing
            && entry.unwritten_since.is_some()
        {
            entry.is_writing = true;
            self.writes.enqueue(uid.to_owned());
        }
    }

    /// Sends as many queued writes as may be on their way. What is written is decided here, at the last moment.
    pub(super) fn send_due_writes(&mut self) {
        while let Some(uid) = self.writes.turn() {
            let Some(entry) = self.pods.get_mut(&uid) else {
                continue;
            };
            if let Some(since) = entry.unwritten_since.take() {
                self.behind_max = self.behind_max.max(since.elapsed());
            }
            if entry.wants_removal {
                let (namespace, name) = (entry.namespace.clone(), entry.name.clone());
                self.writes.send(
                    uid.clone(),
                    Job::Removal {
                        namespace,
                        name,
                        uid,
                    },
                );
                continue;
            }
            // A dead node writes nothing.
            let Some(node) = self.nodes.get(&entry.node).filter(|node| node.is_alive) else {
                entry.is_writing = false;
                continue;
            };
            let PodEntry {
                actor,
                conditions,
                address,
                namespace,
                name,
                ..
            } = entry;
            let patch = status::patch(
                actor,
                conditions,
                &uid,
                *address,
                node.address,
                Timestamp::now(),
            );
            let job = Job::Status {
                namespace: namespace.clone(),
                name: name.clone(),
                patch,
            };
            self.writes.send(uid, job);
        }
    }

    pub(super) fn acknowledge(&mut self, written: Written) {
        let Written { uid, outcome } = written;
        let Some(entry) = self.pods.get_mut(&uid) else {
            return;
        };
        match outcome {
            Outcome::Done { version } => {
                entry.written_version = entry.written_version.max(version);
                entry.is_writing = false;
                self.enqueue(&uid);
            }
            // The watch will say so, too.
            Outcome::Gone => entry.is_writing = false,
            Outcome::Refused(reason) => {
                warn!(pod = %entry.id, reason, "the API server refuses what the fleet writes about the pod");
                entry.is_writing = false;
            }
            Outcome::Failed(reason) => {
                debug!(pod = %entry.id, reason, "a write failed; trying again");
                self.writes.retries += 1;
                entry.unwritten_since.get_or_insert_with(Instant::now);
                self.timers.set(Instant::now() + RETRY, Timer::Rewrite(uid));
            }
        }
    }
}
