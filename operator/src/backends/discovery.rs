//! Which backend the cluster allows.

use std::sync::Arc;

use kube::Client;
use tracing::info;

use super::GangBackend;
use super::gated::{Gated, GatedArgs};
use super::native::Native;

/// The backend asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Choice {
    /// The best that the API server serves.
    Auto,
    /// PodGroups and CompositePodGroups of the stock scheduler, Kubernetes 1.37 and later.
    Native,
    /// Scheduling gates and an own placement planner, any version.
    Gated,
}

/// Why there is no backend.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DiscoveryError {
    /// The server was not reached.
    #[error("cannot ask the API server what it serves")]
    Server(#[source] kube::Error),
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
    if choice == Choice::Gated {
        return Ok(Arc::new(Gated::new(gated)));
    }
    let served = match client.list_api_group_resources(GROUP_VERSION).await {
        Ok(list) => list
            .resources
            .into_iter()
            .map(|resource| resource.name)
            .collect(),
        Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
        Err(error) => return Err(DiscoveryError::Server(error)),
    };
    let missing = NEEDED
        .into_iter()
        .find(|needed| !served.iter().any(|name| name == needed));
    let backend: Arc<dyn GangBackend> = match (missing, choice) {
        (None, _) => Arc::new(Native),
        (Some(missing), Choice::Native) => return Err(DiscoveryError::NotServed { missing }),
        (Some(_), Choice::Auto | Choice::Gated) => Arc::new(Gated::new(gated)),
    };
    info!(backend = backend.name(), "gangs are placed");
    Ok(backend)
}
