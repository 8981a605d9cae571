//! The collector's own metrics.

use prometheus_client::registry::Registry;

/// Metrics of one collector. Register them under the prefix of the binary: `adapter`, `scaler`.
#[derive(Debug, Clone)]
pub struct Metrics {}

impl Metrics {
    /// Registers the metrics.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let _ = registry;
        Self {}
    }
}
