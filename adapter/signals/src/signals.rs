//! The collector's handle: feed it endpoints, run it, ask it.

use std::sync::Arc;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::discover::{ScrapeRule, StaticTarget};
use crate::metrics::Metrics;
use crate::observe::RoleSignals;
use crate::query::{Answer, EndpointAnswer, Missing, Query, Selection};
use crate::settings::{InvalidSetting, Settings};

/// The collector. Cheap to clone; all clones are the same collector.
#[derive(Debug, Clone)]
pub struct Signals {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    #[expect(dead_code, reason = "filled in with the collector")]
    settings: Settings,
    #[expect(dead_code, reason = "filled in with the collector")]
    metrics: Metrics,
}

impl Signals {
    /// A collector without endpoints.
    ///
    /// # Errors
    /// A setting cannot work.
    pub fn new(settings: Settings, metrics: Metrics) -> Result<Self, InvalidSetting> {
        settings.validate()?;
        Ok(Self {
            inner: Arc::new(Inner { settings, metrics }),
        })
    }

    /// Scrapes the endpoints, each on its own phase, until `stop`. Run it once.
    pub async fn run(self, stop: CancellationToken) {
        stop.cancelled().await;
    }

    /// The collector's clock: wall time at its creation plus monotonic time since, so that it never jumps.
    ///
    /// Pass it as `now` to [`Self::query`] and [`Self::observe`].
    #[must_use]
    pub fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    /// Whether every watch has delivered its first list, so that an empty answer means that there are no pods.
    #[must_use]
    pub fn is_discovered(&self) -> bool {
        false
    }

    /// Replaces the scrape rules of one owner (a policy's `namespace/name`, say); an empty list removes them.
    ///
    /// Rules of all owners hold together; where two select a pod, the pod has an endpoint at each port and path.
    pub fn set_scrape_rules(&self, owner: &str, rules: Vec<ScrapeRule>) {
        drop((owner.to_owned(), rules));
    }

    /// Replaces the static targets of one owner; an empty list removes them.
    pub fn set_static_targets(&self, owner: &str, targets: Vec<StaticTarget>) {
        drop((owner.to_owned(), targets));
    }

    /// Answers a query over all selected endpoints together, from memory.
    ///
    /// A series asked for by its own name is collected from the first question on ([`Missing::JustAdded`]).
    ///
    /// # Errors
    /// Why there is no value. Hold, or apply the rule's own policy; it is not zero.
    pub fn query(&self, query: &Query, now: Timestamp) -> Result<Answer, Missing> {
        let _ = now;
        Err(Missing::NoEndpoints {
            selection: query.selection.to_string(),
        })
    }

    /// Answers a query for each selected live endpoint, sorted by namespace and pod.
    ///
    /// # Errors
    /// As [`Self::query`], for reasons that concern all endpoints.
    pub fn query_each(
        &self,
        query: &Query,
        now: Timestamp,
    ) -> Result<Vec<EndpointAnswer>, Missing> {
        let _ = now;
        Err(Missing::NoEndpoints {
            selection: query.selection.to_string(),
        })
    }

    /// Everything known about the selected endpoints.
    #[must_use]
    pub fn observe(&self, selection: &Selection, now: Timestamp) -> RoleSignals {
        RoleSignals::unknown(selection, now)
    }
}
