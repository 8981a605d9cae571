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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Metrics, Query, Selection, Settings};
    use futures::stream;
    use prometheus_client::registry::Registry;

    fn pod(name: &str, change: impl FnOnce(&mut serde_json::Value)) -> DeserializeGuard<Pod> {
        let mut pod = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"namespace": "serving", "name": name, "uid": name, "labels": {"app": name}},
            "spec": {"containers": [{"name": "engine", "ports": [
                {"name": "http", "containerPort": 8000},
                {"name": "metrics", "containerPort": 9, "protocol": "UDP"},
            ]}]},
            "status": {
                "phase": "Running",
                "podIP": "127.64.0.5",
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        });
        change(&mut pod);
        serde_json::from_value(pod).unwrap()
    }

    fn unchanged(_: &mut serde_json::Value) {}

    async fn after(events: Vec<watcher::Event<DeserializeGuard<Pod>>>) -> (Signals, Vec<String>) {
        let metrics = Metrics::register(&mut Registry::default());
        let signals = Signals::new(Settings::default(), metrics).unwrap();
        let id = signals.begin_watch();
        follow(
            &signals,
            id,
            stream::iter(events.into_iter().map(Ok)),
            CancellationToken::new(),
        )
        .await;
        let endpoints = signals.endpoints(&Selection::default(), signals.now());
        let names = endpoints
            .into_iter()
            .map(|each| format!("{}@{} live={}", each.name, each.address, each.live))
            .collect();
        (signals, names)
    }

    #[tokio::test]
    async fn endpoints_follow_the_events() {
        use watcher::Event::{Apply, Delete, Init, InitApply, InitDone};
        let (signals, names) = after(vec![Init, InitApply(pod("a", unchanged))]).await;
        assert!(
            !signals.is_discovered() && names.is_empty(),
            "no decision before the list is complete"
        );
        let listed = || {
            vec![
                Init,
                InitApply(pod("a", unchanged)),
                InitApply(pod("b", unchanged)),
                InitDone,
            ]
        };
        let (signals, names) = after(listed()).await;
        assert!(signals.is_discovered());
        assert_eq!(
            names,
            ["a@127.64.0.5:8000 live=true", "b@127.64.0.5:8000 live=true"]
        );
        let mut events = listed();
        events.push(Apply(pod("a", |pod| {
            pod["status"]["conditions"][0]["status"] = "False".into()
        })));
        events.push(Delete(pod("b", unchanged)));
        assert_eq!(after(events).await.1, ["a@127.64.0.5:8000 live=false"]);
        let mut events = listed();
        events.push(Apply(pod("a", |pod| {
            pod["metadata"]["deletionTimestamp"] = "2026-11-30T12:00:00Z".into()
        })));
        events.push(Apply(pod("b", |pod| {
            pod["status"]["phase"] = "Failed".into()
        })));
        assert!(
            after(events).await.1.is_empty(),
            "ending pods leave before they are deleted"
        );
        let mut events = listed();
        events.extend([Init, InitApply(pod("b", unchanged)), InitDone]);
        assert_eq!(
            after(events).await.1,
            ["b@127.64.0.5:8000 live=true"],
            "a new list replaces the old one"
        );
    }

    #[tokio::test]
    async fn a_pod_that_cannot_be_read_is_left_out() {
        use watcher::Event::Apply;
        let broken = pod("a", |pod| pod["spec"] = "nonsense".into());
        assert!(broken.0.is_err());
        let (signals, names) = after(vec![Apply(broken), Apply(pod("b", unchanged))]).await;
        assert_eq!(names.len(), 1);
        let query = Query::parse("coppice_requests_waiting", Some("serving"), "app=b").unwrap();
        let missing = signals.query(&query, signals.now()).unwrap_err();
        assert_eq!(
            missing.to_string(),
            "0 of 1 endpoints have a value, 1 are needed: serving/b not scraped yet"
        );
    }

    #[test]
    fn annotations_become_facts() {
        let facts = facts(pod("a", |pod| {
            pod["metadata"]["annotations"] = serde_json::json!({
                "prometheus.io/scrape": "true", "prometheus.io/port": "81", "prometheus.io/path": "/m", "other": "x",
            });
        }))
        .unwrap();
        assert_eq!(
            facts.ports,
            [("http".to_owned(), 8000)],
            "a UDP port is none"
        );
        let places = facts.places(&[]);
        assert_eq!((places[0].port, places[0].path.as_str()), (81, "/m"));
    }
}
