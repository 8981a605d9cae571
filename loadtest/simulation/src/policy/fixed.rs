//! A fleet that is never changed.

use std::time::Duration;

use crate::scaler::Scaler;
use crate::sight::Sight;

/// The same units throughout, ready from the beginning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fixed {
    units: Vec<u32>,
}

impl Fixed {
    /// These units of each role.
    #[must_use]
    pub fn new(units: Vec<u32>) -> Self {
        Self { units }
    }
}

impl Scaler for Fixed {
    fn period(&self) -> Duration {
        Duration::from_secs(3600)
    }

    fn initial(&self) -> Option<Vec<u32>> {
        Some(self.units.clone())
    }

    fn decide(&mut self, _: &Sight<'_>) -> Vec<u32> {
        self.units.clone()
    }
}
