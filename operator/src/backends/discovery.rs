//! Which backend the cluster allows.

use std::sync::Arc;

use kube::Client;
use tracing::info;

use super::GangBackend;
use super::gated::{Gated, GatedArgs};
use super::kai::Kai;
use super::native::Native;
use super::volcano::Volcano;

/// The backend asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Choice {
    /// The best that the API server serves.
    Auto,
    /// PodGroups and CompositePodGroups of the stock scheduler, Kubernetes 1.37 and later.
    Native,
    /// Scheduling gates and an own placement planner, any version.
    Gated,
    /// The KAI scheduler, 0.15 or later, which has to run in the cluster.
    Kai,
    /// The Volcano scheduler, 1.14 or later, which has to run in the cluster.
    Volcano,
}

/// Why there is no backend.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DiscoveryError {
    /// The server was not reached.
    #[error("cannot ask the API server what it serves")]
    Server(#[source] kube::Error),
    /// Another scheduler was asked for and is not there.
    #[error(
        "gang backend `{backend}` needs podgroups of {group_version}, which this API server does not serve: install the scheduler, or use \
         another --gang-backend"
    )]
    NoScheduler {
        /// The backend.
        backend: &'static str,
        /// What it needs.
        group_version: &'static str,
    },
    /// `native` was asked for and is not there.
    #[error(
        "gang backend `native` needs {missing} of scheduling.k8s.io/v1alpha3, which this API server does not serve: \
         switch on the feature gates GenericWorkload and CompositePodGroup, or use --gang-backend=gated"
    )]
    NotServed {
        /// What is missing.
        missing: &'static str,
    },
}

const GROUP_VERSION: &str = "scheduling.k8s.io/v1alpha3";
const NEEDED: [&str; 3] = ["workloads", "podgroups", "compositepodgroups"];

/// Picks the backend.
///
/// # Errors
/// The server cannot be asked, or does not serve what was asked for.
pub(crate) async fn choose(
    client: &Client,
    choice: Choice,
    gated: GatedArgs,
) -> Result<Arc<dyn GangBackend>, DiscoveryError> {
    let other: Option<(Arc<dyn GangBackend>, &'static str)> = match choice {
        Choice::Gated => return Ok(Arc::new(Gated::new(gated))),
        Choice::Kai => Some((Arc::new(Kai), "scheduling.run.ai/v2alpha2")),
        Choice::Volcano => Some((Arc::new(Volcano), "scheduling.volcano.sh/v1beta1")),
        Choice::Auto | Choice::Native => None,
    };
    if let Some((backend, group_version)) = other {
        let served = served(client, group_version).await?;
        if !served.iter().any(|name| name == "podgroups") {
            return Err(DiscoveryError::NoScheduler {
                backend: backend.name(),
                group_version,
            });
        }
        info!(backend = backend.name(), "gangs are placed");
        return Ok(backend);
    }
    let served = served(client, GROUP_VERSION).await?;
    let missing = NEEDED
        .into_iter()
        .find(|needed| !served.iter().any(|name| name == needed));
    let backend: Arc<dyn GangBackend> = match (missing, choice) {
        (None, _) => Arc::new(Native),
        (Some(missing), Choice::Native) => return Err(DiscoveryError::NotServed { missing }),
        (Some(_), _) => Arc::new(Gated::new(gated)),
    };
    info!(backend = backend.name(), "gangs are placed");
    Ok(backend)
}

/// Names of the resources that the server serves in a version of a group.
async fn served(client: &Client, group_version: &str) -> Result<Vec<String>, DiscoveryError> {
    match client.list_api_group_resources(group_version).await {
        Ok(list) => Ok(list
            .resources
            .into_iter()
            .map(|resource| resource.name)
            .collect()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        Err(error) => Err(DiscoveryError::Server(error)),
    }
}
