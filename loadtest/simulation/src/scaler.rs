//! A policy under test.

use std::time::Duration;

use crate::sight::Sight;

/// A policy under test: from what a real scaler could see to wanted units.
///
/// It may keep any state of its own; it has no access to requests, to engines or to what has not been scraped yet.
pub trait Scaler: std::fmt::Debug {
    /// Time between two decisions.
    fn period(&self) -> Duration;

    /// Units that are ready when the run begins, by role; `None`: the world's.
    fn initial(&self) -> Option<Vec<u32>> {
        None
    }

    /// Wanted units of each role, in the world's order. Numbers outside of a role's bounds are brought inside when they are written.
    fn decide(&mut self, sight: &Sight<'_>) -> Vec<u32>;
}
