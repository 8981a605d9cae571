//! Judging from outside whether a leader is alive.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};

use super::candidate::{holder, promised};

/// Whether the holder of a Lease is alive, by the same rule as the candidates' own: its record changed within the promised duration, by
/// the local monotonic clock.
///
/// The first record seen after a start says nothing about when it changed; until it changes once, its written renew time is compared with
/// the wall clock, so that a leader long dead does not look alive for the first seconds.
#[derive(Debug, Default)]
pub struct Freshness {
    seen: Option<Seen>,
}

#[derive(Debug)]
struct Seen {
    spec: LeaseSpec,
    holder: String,
    patience: Duration,
    /// When it was first seen so, and whether an older record had been seen before.
    changed_at: Instant,
    has_changed: bool,
}

/// Why a leader is not taken to be alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotAlive {
    /// No Lease object exists, or none has been seen yet.
    #[error("no lease was found")]
    NoLease,
    /// The Lease has been given back.
    #[error("nobody holds the lease")]
    NoHolder,
    /// The record stopped changing.
    #[error("the lease was not renewed in time")]
    Expired,
}

/// Durations are whole seconds in a Lease; without one, this is assumed.
const DEFAULT_PATIENCE: Duration = Duration::from_secs(15);

impl Freshness {
    /// Takes in the Lease as the API server holds it; `None` when it does not exist.
    pub fn observe(&mut self, lease: Option<&Lease>, now: Instant) {
        let Some(lease) = lease else {
            self.seen = None;
            return;
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let has_changed = match &self.seen {
            Some(seen) if seen.spec == spec => return,
            Some(_) => true,
            None => false,
        };
        let patience = promised(lease, DEFAULT_PATIENCE);
        self.seen = Some(Seen {
            spec,
            holder: holder(lease).to_owned(),
            patience,
            changed_at: now,
            has_changed,
        });
    }

    /// Whether the holder is alive.
    ///
    /// # Errors
    /// [`NotAlive`] with the reason.
    pub fn check(&self, now: Instant, wall: Timestamp) -> Result<(), NotAlive> {
        let seen = self.seen.as_ref().ok_or(NotAlive::NoLease)?;
        if seen.holder.is_empty() {
            return Err(NotAlive::NoHolder);
        }
        if now.saturating_duration_since(seen.changed_at) >= seen.patience {
            return Err(NotAlive::Expired);
        }
        if seen.has_changed {
            return Ok(());
        }
        let renewed = seen.spec.renew_time.as_ref().ok_or(NotAlive::Expired)?;
        let age = Duration::try_from(wall.duration_since(renewed.0)).unwrap_or(Duration::ZERO);
        if age < seen.patience {
            Ok(())
        } else {
            Err(NotAlive::Expired)
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

    use super::*;

    fn lease(holder: &str, renewed: Timestamp) -> Lease {
        let spec = LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(15),
            renew_time: Some(MicroTime(renewed)),
            ..LeaseSpec::default()
        };
        Lease {
            spec: Some(spec),
            ..Lease::default()
        }
    }

    #[test]
    fn a_renewed_lease_is_alive_for_its_duration_by_the_local_clock() {
        let (start, wall) = (Instant::now(), Timestamp::UNIX_EPOCH);
        let mut freshness = Freshness::default();
        assert_eq!(freshness.check(start, wall), Err(NotAlive::NoLease));
        freshness.observe(Some(&lease("a", wall)), start);
        // The holder's wall clock is an hour ahead or behind: it does not matter once a renewal has been seen.
        for offset in [-3600, 3600] {
            let skewed = wall + jiff::SignedDuration::from_secs(offset);
            freshness.observe(Some(&lease("a", skewed)), start);
            assert_eq!(
                freshness.check(start + Duration::from_millis(14_999), wall),
                Ok(())
            );
            assert_eq!(
                freshness.check(start + Duration::from_secs(15), wall),
                Err(NotAlive::Expired)
            );
        }
    }

    #[test]
    fn a_leader_long_dead_is_not_alive_after_our_start() {
        let (start, wall) = (
            Instant::now(),
            Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_secs(1000),
        );
        let mut freshness = Freshness::default();
        freshness.observe(Some(&lease("a", Timestamp::UNIX_EPOCH)), start);
        assert_eq!(freshness.check(start, wall), Err(NotAlive::Expired));
        freshness.observe(Some(&lease("a", wall)), start);
        assert_eq!(freshness.check(start, wall), Ok(()));
    }

    #[test]
    fn a_lease_given_back_is_not_alive() {
        let (start, wall) = (Instant::now(), Timestamp::UNIX_EPOCH);
        let mut freshness = Freshness::default();
        freshness.observe(Some(&lease("a", wall)), start);
        freshness.observe(Some(&lease("", wall)), start);
        assert_eq!(freshness.check(start, wall), Err(NotAlive::NoHolder));
        freshness.observe(None, start);
        assert_eq!(freshness.check(start, wall), Err(NotAlive::NoLease));
    }
}
