//! Counts the pods of a namespace as a watch tells of them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Context;
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How many pods there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counts {
    pub(super) all: usize,
    pub(super) ready: usize,
}

/// A watch on the pods of a namespace.
#[derive(Debug)]
pub(super) struct Pods {
    counts: watch::Receiver<Counts>,
    task: JoinHandle<()>,
}

impl Drop for Pods {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Pods {
    pub(super) fn of(client: Client, namespace: &str) -> Self {
        let (sender, counts) = watch::channel(Counts::default());
        let api: Api<Pod> = Api::namespaced(client, namespace);
        let task = tokio::spawn(async move {
            let mut pods = BTreeMap::<String, bool>::new();
            let events = watcher(api, watcher::Config::default()).default_backoff();
            let mut events = std::pin::pin!(events);
            while let Ok(Some(event)) = events.try_next().await {
                match event {
                    watcher::Event::Init => pods.clear(),
                    watcher::Event::InitApply(pod) | watcher::Event::Apply(pod) => {
                        pods.insert(pod.name_any(), is_ready(&pod));
                    }
                    watcher::Event::Delete(pod) => {
                        pods.remove(&pod.name_any());
                    }
                    watcher::Event::InitDone => {}
                }
                sender.send_replace(Counts {
                    all: pods.len(),
                    ready: pods.values().filter(|ready| **ready).count(),
                });
            }
        });
        Self { counts, task }
    }

    /// Seconds from `begin` until the counts are as wanted.
    pub(super) async fn until(
        &self,
        what: &str,
        begin: Instant,
        limit: Duration,
        wanted: impl Fn(Counts) -> bool,
    ) -> anyhow::Result<f64> {
        let mut counts = self.counts.clone();
        let reached = tokio::time::timeout(limit, counts.wait_for(|counts| wanted(*counts))).await;
        let seen = *self.counts.borrow();
        reached
            .ok()
            .and_then(Result::ok)
            .with_context(|| format!("{what}: not within {limit:?}; there are {seen:?}"))?;
        Ok(begin.elapsed().as_secs_f64())
    }
}

fn is_ready(pod: &Pod) -> bool {
    pod.status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
