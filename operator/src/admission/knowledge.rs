//! What answers depend on beside the question: the operator's settings, and what is in the cluster.

use std::fmt::Debug;
use std::sync::Arc;

use coppice_operator_api::ClusterTopologyBinding;
use coppice_operator_api::labels::annotations;
use coppice_operator_plan::topology::Level;
use futures::FutureExt;
use futures::future::BoxFuture;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};

use super::authorize::{Guard, Protection};
use super::review::{self, Request};
use super::rules::Around;
use super::rules::backend::Queue;
use super::rules::topology::Binding;
use crate::backends::volcano;
use crate::index::Index;
use crate::index::key::SetKey;

/// The operator's settings, as far as admission goes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policy {
    /// ComputeDomains are made.
    pub(crate) auto_mnnvl: bool,
    /// Who may change managed objects; absent: everybody.
    pub(crate) guard: Option<Guard>,
    /// The scheduler that gangs are sent to by a backend of its own.
    pub(crate) scheduler: Option<&'static str>,
}

/// Looks into the cluster.
pub(crate) trait Look: Debug + Send + Sync {
    /// A ClusterTopologyBinding.
    fn binding<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Binding>;

    /// A Queue of the Volcano scheduler.
    fn volcano_queue<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Queue>;

    /// What a set says about its objects.
    fn protection(&self, namespace: &str, set: &str) -> Protection;
}

/// Both together.
#[derive(Clone, Debug)]
pub(crate) struct Knowledge {
    pub(crate) policy: Policy,
    pub(crate) cluster: Arc<dyn Look>,
}

impl Knowledge {
    /// What the rules need for this request.
    pub(super) async fn around(&self, request: &Request) -> Around {
        let binding = match review::binding(request) {
            Some(name) => self.cluster.binding(&name).await,
            None => Binding::Unasked,
        };
        let queue = match review::volcano_queue(request) {
            Some(name) if self.policy.scheduler == Some(volcano::SCHEDULER) => {
                self.cluster.volcano_queue(&name).await
            }
            Some(_) | None => Queue::Unasked,
        };
        Around {
            auto_mnnvl: self.policy.auto_mnnvl,
            binding,
            scheduler: self.policy.scheduler,
            queue,
        }
    }
}

/// The cluster: the index first, and the server for what the index does not have (yet).
pub(crate) struct Cluster {
    pub(crate) index: Arc<Index>,
    pub(crate) client: Client,
}

impl Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").finish_non_exhaustive()
    }
}

impl Look for Cluster {
    fn binding<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Binding> {
        async move {
            if let Some(levels) = self.index.levels(name) {
                return Binding::Levels(levels);
            }
            let api: Api<ClusterTopologyBinding> = Api::all(self.client.clone());
            match api.get_opt(name).await {
                Ok(Some(binding)) => {
                    let levels = binding.spec.levels.iter();
                    let levels: Vec<Level> = levels
                        .map(|level| (level.domain.as_str().into(), level.key.as_str().into()))
                        .collect();
                    Binding::Levels(levels.into())
                }
                Ok(None) => Binding::Absent,
                Err(error) => {
                    Binding::Unreadable(coppice_runtime::telemetry::chain(&error).to_string())
                }
            }
        }
        .boxed()
    }

    fn volcano_queue<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Queue> {
        let kind = GroupVersionKind::gvk("scheduling.volcano.sh", "v1beta1", "Queue");
        let kind = ApiResource::from_gvk_with_plural(&kind, "queues");
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &kind);
        async move {
            let queue = match api.get_opt(name).await {
                Ok(Some(queue)) => queue,
                Ok(None) => return Queue::Absent,
                Err(error) => {
                    let why = coppice_runtime::telemetry::chain(&error).to_string();
                    return Queue::Unreadable(why);
                }
            };
            match queue.data["status"]["state"].as_str() {
                Some("Open") => Queue::Open,
                state => Queue::Shut(state.unwrap_or("in no state").to_owned()),
            }
        }
        .boxed()
    }

    fn protection(&self, namespace: &str, set: &str) -> Protection {
        let Some(set) = self.index.set_object(&SetKey::new(namespace, set)) else {
            return Protection::NoSet;
        };
        let annotations = set.metadata.annotations.as_ref();
        let is_off = annotations.and_then(|all| all.get(annotations::DISABLE_PROTECTION));
        match is_off.is_some_and(|value| value == "true") {
            true => Protection::Off,
            false => Protection::On,
        }
    }
}
