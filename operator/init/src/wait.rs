use crate::settings::Settings;
use coppice_operator_api::PodClique;
use coppice_operator_plan::start::{Gate, Readiness, gate};
use futures::stream::{SelectAll, Stream, StreamExt, select_all};
use kube::api::{ApiResource, Object};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watch_object};
use kube::{Api, Client, Config};
use serde::Deserialize;
use std::error::Error;
use std::pin::Pin;
use std::time::Duration;
use tracing::{info, warn};

/// How often the log repeats what is still missing.
const REMINDER: Duration = Duration::from_secs(60);

/// Why it is impossible to wait.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WaitError {
    #[error("the kubeconfig cannot be used")]
    Kubeconfig(#[source] kube::config::KubeconfigError),
    #[error("the service account is not mounted; give --kubeconfig outside of a cluster")]
    ServiceAccount(#[source] kube::config::InClusterError),
    #[error("cannot build a client for the API server")]
    Client(#[source] kube::Error),
}

/// A PodClique without all that does not matter here; its pod spec is the larger part of it.
type SlimClique = Object<Ignored, Ready>;

#[derive(Clone, Debug, Deserialize)]
struct Ignored {}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Ready {
    ready_replicas: u32,
}

/// A clique and its ready pods, or nothing when it does not exist; or what the watch met with instead.
type News = (String, watcher::Result<Option<u32>>);

/// Returns when every clique has its minimum ready, all at the same moment.
///
/// Errors of the API server are logged and tried again with growing pauses, for as long as it takes: an init container
/// that ends with an error is started again by the kubelet and would only wait longer.
pub(crate) async fn until_ready(settings: &Settings) -> Result<(), WaitError> {
    let client = connect(settings).await?;
    let mut news = watch(&client, settings);
    let mut readiness = Readiness::default();
    let mut reminder = tokio::time::interval(REMINDER);
    reminder.reset();
    let mut told = String::new();
    loop {
        let missing = match gate(&settings.rules, &readiness) {
            Gate::Start => return Ok(()),
            Gate::Wait(shortfalls) => shortfalls
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(", "),
        };
        if missing != told {
            info!(namespace = settings.namespace, %missing, "waiting");
            told = missing;
        }
        tokio::select! {
            Some((clique, outcome)) = news.next() => match outcome {
                Ok(ready) => {
                    readiness.note(&clique, ready);
                }
                Err(error) => warn!(clique, error = %chain(&error), "cannot watch the clique, trying again"),
            },
            _ = reminder.tick() => told.clear(),
        }
    }
}

async fn connect(settings: &Settings) -> Result<Client, WaitError> {
    let config = match &settings.kubeconfig {
        Some(path) => {
            let kubeconfig = Kubeconfig::read_from(path).map_err(WaitError::Kubeconfig)?;
            let options = KubeConfigOptions::default();
            Config::from_custom_kubeconfig(kubeconfig, &options)
                .await
                .map_err(WaitError::Kubeconfig)?
        }
        None => Config::incluster().map_err(WaitError::ServiceAccount)?,
    };
    Client::try_from(config).map_err(WaitError::Client)
}

/// One watch for each clique, so that the account needs to see no more than these.
fn watch(
    client: &Client,
    settings: &Settings,
) -> SelectAll<Pin<Box<dyn Stream<Item = News> + Send>>> {
    let kind = ApiResource::erase::<PodClique>(&());
    select_all(settings.rules.cliques().map(|clique| {
        let name = clique.to_owned();
        let api: Api<SlimClique> = Api::namespaced_with(client.clone(), &settings.namespace, &kind);
        let cliques = watch_object(api, &name).default_backoff();
        let news = cliques.map(move |outcome| {
            (
                name.clone(),
                outcome.map(|clique| clique.as_ref().and_then(ready_pods)),
            )
        });
        Box::pin(news) as Pin<Box<dyn Stream<Item = News> + Send>>
    }))
}

/// Ready pods of a clique; one that is being deleted has none to count on.
fn ready_pods(clique: &SlimClique) -> Option<u32> {
    let is_going = clique.metadata.deletion_timestamp.is_some();
    (!is_going).then(|| {
        clique
            .status
            .as_ref()
            .map_or(0, |status| status.ready_replicas)
    })
}

/// An error and its causes in one line. The errors of the client print their causes themselves, and an answer of the
/// API server carries a text for people.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        if !text.is_empty() {
            text.push_str(": ");
        }
        if let Some(kube::Error::Api(status)) = error.downcast_ref() {
            text.push_str(&status.message);
            break;
        }
        match error.downcast_ref() {
            Some(watcher::Error::InitialListFailed(_)) => text.push_str("the list failed"),
            Some(watcher::Error::WatchStartFailed(_)) => text.push_str("the watch failed to start"),
            Some(watcher::Error::WatchError(status)) => text.push_str(&status.message),
            Some(watcher::Error::WatchFailed(_)) => text.push_str("the watch broke off"),
            Some(watcher::Error::NoResourceVersion) | None => {
                text.push_str(&error.to_string());
            }
        }
        next = if error.is::<kube::Error>() {
            None
        } else {
            error.source()
        };
    }
    text
}
