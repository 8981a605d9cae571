//! The two units of work and what they share.
//!
//! A pass over a unit is one flow, left to right: fetch → validate → plan → build → apply → report. The next pass starts over
//! from what is there.

pub(crate) mod claims;
pub(crate) mod domains;
pub(crate) mod ensure;
pub(crate) mod errors;
pub(crate) mod pacing;
pub(crate) mod replica;
pub(crate) mod set;
pub(crate) mod worker;

use std::sync::Arc;

use self::pacing::Pacing;
use crate::apply::Writer;
use crate::backends::GangBackend;
use crate::events::Events;
use crate::index::Index;
use crate::metrics::Metrics;
use crate::queue::Queue;

/// What every pass needs.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    pub(crate) index: Arc<Index>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) writer: Writer,
    pub(crate) backend: Arc<dyn GangBackend>,
    pub(crate) events: Events,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) pacing: Arc<Pacing>,
    pub(crate) pods: Arc<PodSettings>,
    /// ComputeDomains are made.
    pub(crate) auto_mnnvl: bool,
}

/// What pods get that no template says.
#[derive(Clone, Debug)]
pub(crate) struct PodSettings {
    /// Image of the init container.
    pub(crate) init_image: String,
    /// Domain that cluster-internal names end with.
    pub(crate) cluster_domain: String,
}
