//! One leader among several processes, by a `coordination.k8s.io/v1` Lease.
//!
//! [`candidate`] holds the rules as a state machine to which the time is passed in; [`elector`] is the loop around it that talks
//! to the API server; [`freshness`] lets others judge whether a leader is alive.
//!
//! Flow: campaign → lead (renew every retry period) → release on shutdown.
//!
//! Guarantees, for candidates whose clocks run at rates that differ by less than `lease-duration / renew-deadline`:
//! - two candidates never hold a tenure at the same instant, whatever their wall clocks show. A holder's tenure ends the renew deadline
//!   after it *sent* its last successful renewal; another one takes over only a lease duration after it *saw* the record change last;
//! - every write names the version it replaces, so a delayed request cannot undo another candidate's.
//!
//! What it cannot do: stop a request that left before the tenure ended. Writes of a leader should name the version they saw, too.

use std::time::Duration;

use crate::settings::positive_duration;

pub mod candidate;
pub mod elector;
pub mod freshness;

pub use candidate::Candidate;
pub use elector::{Elector, Ended, LeaseMetrics, Tenure};
pub use freshness::Freshness;

/// The three periods of an election.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    lease_duration: Duration,
    renew_deadline: Duration,
    retry_period: Duration,
}

/// Waiting candidates try every 1 to 1 + this many retry periods, so that they do not try together.
pub const RETRY_JITTER: f64 = 1.2;

/// Why three periods cannot work together.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TimingError {
    /// The tenure would not end before others may take over.
    #[error(
        "lease duration {lease_duration:?} must be longer than the renew deadline {renew_deadline:?}"
    )]
    LeaseNotLongerThanDeadline {
        /// As given.
        lease_duration: Duration,
        /// As given.
        renew_deadline: Duration,
    },
    /// A single late try would already lose the lease.
    #[error(
        "renew deadline {renew_deadline:?} must be longer than {RETRY_JITTER} retry periods of {retry_period:?}"
    )]
    DeadlineNotLongerThanRetry {
        /// As given.
        renew_deadline: Duration,
        /// As given.
        retry_period: Duration,
    },
    /// A candidate would try without pause.
    #[error("retry period must be longer than 0s")]
    NoRetryPeriod,
}

impl Timing {
    /// Checks that the periods leave room for each other.
    ///
    /// # Errors
    /// [`TimingError`] naming the pair that does not fit.
    pub fn new(
        lease_duration: Duration,
        renew_deadline: Duration,
        retry_period: Duration,
    ) -> Result<Self, TimingError> {
        if retry_period.is_zero() {
            return Err(TimingError::NoRetryPeriod);
        }
        if lease_duration <= renew_deadline {
            return Err(TimingError::LeaseNotLongerThanDeadline {
                lease_duration,
                renew_deadline,
            });
        }
        if renew_deadline <= retry_period.mul_f64(RETRY_JITTER) {
            return Err(TimingError::DeadlineNotLongerThanRetry {
                renew_deadline,
                retry_period,
            });
        }
        Ok(Self {
            lease_duration,
            renew_deadline,
            retry_period,
        })
    }

    /// How long others wait after the last change of the record that they saw.
    #[must_use]
    pub fn lease_duration(&self) -> Duration {
        self.lease_duration
    }

    /// How long a holder goes on after it sent its last successful renewal.
    #[must_use]
    pub fn renew_deadline(&self) -> Duration {
        self.renew_deadline
    }

    /// Time between two tries.
    #[must_use]
    pub fn retry_period(&self) -> Duration {
        self.retry_period
    }
}

/// Flags of the election.
#[derive(Debug, Clone, clap::Args)]
pub struct LeaseArgs {
    /// Whether to wait for the lease before writing; `false` only where exactly one process runs
    #[arg(long, env = "COPPICE_LEADER_ELECT", default_value_t = true, action = clap::ArgAction::Set, value_name = "BOOL")]
    pub leader_elect: bool,
    /// Namespace of the lease; without it the namespace of the pod or of the kubeconfig's context
    #[arg(long, env = "COPPICE_LEASE_NAMESPACE", value_name = "NAMESPACE")]
    pub lease_namespace: Option<String>,
    /// How long others wait after the last renewal they saw before they take over
    #[arg(long, env = "COPPICE_LEASE_DURATION", default_value = "15s", value_parser = positive_duration, value_name = "DURATION")]
    pub lease_duration: Duration,
    /// How long the leader goes on without a successful renewal; shorter than the lease duration
    #[arg(long, env = "COPPICE_LEASE_RENEW_DEADLINE", default_value = "10s", value_parser = positive_duration, value_name = "DURATION")]
    pub lease_renew_deadline: Duration,
    /// Time between two tries to acquire or renew
    #[arg(long, env = "COPPICE_LEASE_RETRY_PERIOD", default_value = "2s", value_parser = positive_duration, value_name = "DURATION")]
    pub lease_retry_period: Duration,
    /// Name of this candidate in the lease; without it host name and a random part
    #[arg(long, env = "COPPICE_LEASE_IDENTITY", value_name = "NAME")]
    pub lease_identity: Option<String>,
}

/// One election, resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// `false`: lead at once and for ever, without a Lease object.
    pub is_required: bool,
    /// Namespace of the Lease object.
    pub namespace: String,
    /// Name of the Lease object, e.g. `coppice-scaler`.
    pub name: String,
    /// Who this candidate is; unique among the living.
    pub identity: String,
    /// The three periods.
    pub timing: Timing,
}

impl LeaseArgs {
    /// Resolves the flags for the lease called `name`; `default_namespace` is the client's.
    ///
    /// # Errors
    /// [`TimingError`] when the three periods do not fit each other.
    pub fn resolve(&self, name: &str, default_namespace: &str) -> Result<Settings, TimingError> {
        Ok(Settings {
            is_required: self.leader_elect,
            namespace: self
                .lease_namespace
                .clone()
                .unwrap_or_else(|| default_namespace.to_owned()),
            name: name.to_owned(),
            identity: self.lease_identity.clone().unwrap_or_else(unique_identity),
            timing: Timing::new(
                self.lease_duration,
                self.lease_renew_deadline,
                self.lease_retry_period,
            )?,
        })
    }
}

/// Host name and 64 random bits: two processes on one host, or one restarted under the same name, differ.
fn unique_identity() -> String {
    let host = std::env::var("HOSTNAME")
        .ok()
        .filter(|name| !name.is_empty());
    let host = host.or_else(|| {
        std::fs::read_to_string("/proc/sys/kernel/hostname")
            .ok()
            .map(|name| name.trim().to_owned())
    });
    format!(
        "{}_{:016x}",
        host.as_deref().unwrap_or("unknown"),
        rand::random::<u64>()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn the_periods_must_leave_room_for_each_other() {
        assert!(Timing::new(seconds(15), seconds(10), seconds(2)).is_ok());
        assert!(matches!(
            Timing::new(seconds(10), seconds(10), seconds(2)),
            Err(TimingError::LeaseNotLongerThanDeadline { .. })
        ));
        assert!(matches!(
            Timing::new(seconds(15), seconds(2), seconds(2)),
            Err(TimingError::DeadlineNotLongerThanRetry { .. })
        ));
        assert_eq!(
            Timing::new(seconds(15), seconds(10), seconds(0)),
            Err(TimingError::NoRetryPeriod)
        );
    }

    #[test]
    fn identities_of_two_processes_on_one_host_differ() {
        assert_ne!(unique_identity(), unique_identity());
    }
}
