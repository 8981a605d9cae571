//! The watch on pods.

use std::sync::Arc;

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::core::DeserializeGuard;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::discover::{PATH_ANNOTATION, PORT_ANNOTATION, PodFacts, SCRAPE_ANNOTATION};
use crate::index::WatchId;
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

/// Watches pods and keeps the collector's endpoints in step, until `stop`.
///
/// Several watches may run side by side; a pod that two of them see is one endpoint. Until the first list of each is
/// complete, [`Signals::is_discovered`] is false. Connection trouble is retried with backoff; the endpoints known so far
/// stay. When it ends, the pods that only this watch saw are gone.
pub async fn watch_pods(
    signals: Signals,
    client: Client,
    watch: PodWatch,
    stop: CancellationToken,
) {
    let api: Api<DeserializeGuard<Pod>> = match &watch.namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    };
    let config = watcher::Config::default().labels(&watch.label_selector);
    let events = watcher(api, config).default_backoff();
    let id = signals.begin_watch();
    follow(&signals, id, events, stop).await;
    signals.end_watch(id);
}

/// Applies the events of one watch.
async fn follow(
    signals: &Signals,
    id: WatchId,
    events: impl Stream<Item = watcher::Result<watcher::Event<DeserializeGuard<Pod>>>>,
    stop: CancellationToken,
) {
    let mut events = std::pin::pin!(events);
    let mut listed = Vec::new();
    loop {
        let event = tokio::select! {
            () = stop.cancelled() => return,
            event = events.next() => event,
        };
        match event {
            None => return,
            Some(Ok(watcher::Event::Init)) => listed.clear(),
            Some(Ok(watcher::Event::InitApply(pod))) => listed.extend(facts(pod)),
            Some(Ok(watcher::Event::InitDone)) => {
                signals.replace_pods(id, std::mem::take(&mut listed))
            }
            Some(Ok(watcher::Event::Apply(pod))) => {
                if let Some(facts) = facts(pod) {
                    signals.apply_pod(id, facts);
                }
            }
            Some(Ok(watcher::Event::Delete(pod))) => {
                signals.delete_pod(id, &pod.namespace().unwrap_or_default(), &pod.name_any());
            }
            Some(Err(error)) => warn!(%error, "pod watch failed, trying again"),
        }
    }
}

/// What the collector needs to know of a pod; `None` for an object that is no pod.
fn facts(pod: DeserializeGuard<Pod>) -> Option<PodFacts> {
    match pod.0 {
        Ok(pod) => Some(PodFacts::from(pod)),
        Err(error) => {
            debug!(%error, "pod cannot be read, left out");
            None
        }
    }
}

impl From<Pod> for PodFacts {
    fn from(pod: Pod) -> Self {
        let Pod {
            mut metadata,
            spec,
            status,
        } = pod;
        let mut annotations = metadata.annotations.take().unwrap_or_default();
        let status = status.unwrap_or_default();
        let has_ended = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
        let conditions = status.conditions.unwrap_or_default();
        let ports = spec
            .into_iter()
            .flat_map(|spec| {
                spec.containers
                    .into_iter()
                    .chain(spec.init_containers.unwrap_or_default())
            })
            .flat_map(|container| container.ports.unwrap_or_default())
            .filter(|port| {
                port.protocol
                    .as_deref()
                    .is_none_or(|protocol| protocol == "TCP")
            })
            .filter_map(|port| Some((port.name?, u16::try_from(port.container_port).ok()?)))
            .collect();
        Self {
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
            labels: Arc::new(metadata.labels.unwrap_or_default()),
            address: status.pod_ip.and_then(|address| address.parse().ok()),
            ready: conditions
                .iter()
                .any(|condition| condition.type_ == "Ready" && condition.status == "True"),
            ending: metadata.deletion_timestamp.is_some() || has_ended,
            scrape_annotation: annotations.remove(SCRAPE_ANNOTATION),
            port_annotation: annotations.remove(PORT_ANNOTATION),
            path_annotation: annotations.remove(PATH_ANNOTATION),
            ports,
        }
    }
}
