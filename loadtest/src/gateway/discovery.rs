//! Engines that are pods: which are ready, and where they listen.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use coppice_runtime::health::Condition;
use coppice_runtime::telemetry::chain;
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use kube::core::DeserializeGuard;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use tracing::{debug, info, warn};

use super::models::Model;
use crate::drive::target::BaseUrl;
use crate::serve::arguments::Role;

/// Annotation of a pod: the port its engine listens on.
const PORT_ANNOTATION: &str = "coppice.dev/port";
/// Name of the container port an engine listens on.
const PORT_NAME: &str = "http";

/// The engines of one role of one model.
#[derive(Debug)]
pub(crate) struct Selection {
    pub(crate) model: Arc<Model>,
    pub(crate) role: Role,
    pub(crate) namespace: String,
    pub(crate) selector: String,
    /// For pods that name no port.
    pub(crate) port: u16,
}

/// The first lists that have yet to come; when all have, a condition is met.
#[derive(Debug, Clone)]
pub(crate) struct FirstLists {
    missing: Arc<AtomicUsize>,
    condition: Condition,
}

impl FirstLists {
    pub(crate) fn new(count: usize, condition: Condition) -> Self {
        Self {
            missing: Arc::new(AtomicUsize::new(count)),
            condition,
        }
    }

    fn one_came(&self) {
        if self.missing.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.condition.set_met();
        }
    }
}

/// Keeps the model's engines as the pods are. Never returns.
///
/// While the API server cannot be reached, the engines known so far stay.
pub(crate) async fn follow(client: Client, selection: Selection, first_lists: FirstLists) {
    let pods: Api<DeserializeGuard<Pod>> = Api::namespaced(client, &selection.namespace);
    let config = watcher::Config::default().labels(&selection.selector);
    let mut events = std::pin::pin!(watcher(pods, config).default_backoff());
    let mut engines = Engines::default();
    let mut is_listed = false;
    loop {
        match events.try_next().await {
            Ok(Some(event)) => {
                if engines.note(event, selection.port) {
                    if !std::mem::replace(&mut is_listed, true) {
                        first_lists.one_came();
                    }
                    selection.publish(&engines.ready);
                }
            }
            Ok(None) => return,
            Err(error) => {
                let Selection {
                    namespace,
                    selector,
                    ..
                } = &selection;
                warn!(namespace, selector, error = %chain(&error), "watching engines failed, trying again");
            }
        }
    }
}

impl Selection {
    fn publish(&self, ready: &BTreeMap<String, BaseUrl>) {
        let before = self.model.engines(self.role);
        self.model.set(self.role, ready);
        if before != ready.len() {
            info!(model = self.model.name, role = ?self.role, engines = ready.len(), "engines changed");
        }
    }
}

#[derive(Debug, Default)]
struct Engines {
    ready: BTreeMap<String, BaseUrl>,
    /// While a list is coming in.
    listed: BTreeMap<String, BaseUrl>,
}

impl Engines {
    /// Takes an event in; true when the ready ones may have changed.
    fn note(&mut self, event: watcher::Event<DeserializeGuard<Pod>>, port: u16) -> bool {
        match event {
            watcher::Event::Init => {
                self.listed.clear();
                false
            }
            watcher::Event::InitApply(pod) => {
                if let Some(url) = address_of(&pod, port) {
                    self.listed.insert(pod.name_any(), url);
                }
                false
            }
            watcher::Event::InitDone => {
                self.ready = std::mem::take(&mut self.listed);
                true
            }
            watcher::Event::Apply(pod) => match address_of(&pod, port) {
                Some(url) => self.ready.insert(pod.name_any(), url.clone()) != Some(url),
                None => self.ready.remove(&pod.name_any()).is_some(),
            },
            watcher::Event::Delete(pod) => self.ready.remove(&pod.name_any()).is_some(),
        }
    }
}

/// Where the pod's engine listens, when it is ready and not on its way out.
fn address_of(pod: &DeserializeGuard<Pod>, default_port: u16) -> Option<BaseUrl> {
    let pod = match &pod.0 {
        Ok(pod) => pod,
        Err(error) => {
            debug!(
                error = error.error,
                "a pod could not be read and is passed over"
            );
            return None;
        }
    };
    if pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let status = pod.status.as_ref()?;
    let is_ready = |condition: &k8s_openapi::api::core::v1::PodCondition| {
        condition.type_ == "Ready" && condition.status == "True"
    };
    if !status.conditions.iter().flatten().any(is_ready) {
        return None;
    }
    let host = status
        .pod_ip
        .clone()
        .filter(|address| !address.is_empty())?;
    Some(BaseUrl {
        tls: false,
        host,
        port: port_of(pod).unwrap_or(default_port),
        path: String::new(),
    })
}

fn port_of(pod: &Pod) -> Option<u16> {
    let annotated = pod
        .annotations()
        .get(PORT_ANNOTATION)
        .and_then(|port| port.parse().ok());
    let ports = || {
        pod.spec
            .iter()
            .flat_map(|spec| &spec.containers)
            .flat_map(|container| container.ports.iter().flatten())
    };
    let named = ports().find(|port| port.name.as_deref() == Some(PORT_NAME));
    annotated.or_else(|| u16::try_from(named.or_else(|| ports().next())?.container_port).ok())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, change: impl FnOnce(&mut Value)) -> DeserializeGuard<Pod> {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "n"},
            "spec": {"containers": [{"name": "engine", "ports": [{"containerPort": 9000}]}]},
            "status": {"podIP": "127.64.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
        });
        change(&mut pod);
        serde_json::from_value(pod).unwrap()
    }

    fn authority(pod: &DeserializeGuard<Pod>) -> Option<String> {
        address_of(pod, 8000).map(|url| url.authority())
    }

    #[test]
    fn the_port_is_annotated_named_or_the_first() {
        assert_eq!(authority(&pod("a", |_| {})).unwrap(), "127.64.0.1:9000");
        let with_ports =
            |ports: Value| pod("a", |pod| pod["spec"]["containers"][0]["ports"] = ports);
        assert_eq!(
            authority(&with_ports(json!([]))).unwrap(),
            "127.64.0.1:8000"
        );
        let ports = json!([{"containerPort": 1}, {"containerPort": 2, "name": "http"}]);
        assert_eq!(authority(&with_ports(ports)).unwrap(), "127.64.0.1:2");
        let annotated = pod("a", |pod| {
            pod["metadata"]["annotations"] = json!({"coppice.dev/port": "7"})
        });
        assert_eq!(authority(&annotated).unwrap(), "127.64.0.1:7");
    }

    #[test]
    fn only_ready_pods_that_stay_are_used() {
        let changes: [fn(&mut Value); 5] = [
            |pod| pod["status"]["conditions"][0]["status"] = json!("False"),
            |pod| pod["status"]["conditions"] = json!([]),
            |pod| pod["status"]["podIP"] = json!(""),
            |pod| pod["metadata"]["deletionTimestamp"] = json!("2026-11-30T00:00:00Z"),
            |pod| pod["spec"]["containers"] = json!(5),
        ];
        for change in changes {
            assert_eq!(authority(&pod("a", change)), None);
        }
    }

    #[test]
    fn a_new_list_replaces_what_was_known() {
        let mut engines = Engines::default();
        assert!(!engines.note(watcher::Event::Init, 8000));
        assert!(!engines.note(watcher::Event::InitApply(pod("a", |_| {})), 8000));
        assert!(
            engines.ready.is_empty(),
            "no decision before the list is complete"
        );
        assert!(engines.note(watcher::Event::InitDone, 8000));
        assert!(
            !engines.note(watcher::Event::Apply(pod("a", |_| {})), 8000),
            "nothing new"
        );
        assert!(engines.note(watcher::Event::Apply(pod("b", |_| {})), 8000));
        let leaving = pod("a", |pod| {
            pod["metadata"]["deletionTimestamp"] = json!("2026-11-30T00:00:00Z")
        });
        assert!(engines.note(watcher::Event::Apply(leaving), 8000));
        assert_eq!(engines.ready.keys().collect::<Vec<_>>(), ["b"]);
        engines.note(watcher::Event::Init, 8000);
        assert!(engines.note(watcher::Event::InitDone, 8000));
        assert!(engines.ready.is_empty());
    }
}
