//! Keeping an object by which a program is registered with the API server (an APIService, a webhook configuration) as it
//! should be, together with the certificate authority that the server should trust.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::Resource;
use kube::api::Api;
use kube::runtime::{WatchStreamExt, watcher};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::telemetry::chain;

/// Between two tries to write.
const RETRY: Duration = Duration::from_secs(2);

/// What came of a look at the object.
#[derive(Debug)]
pub enum Kept<K> {
    /// It is as it should be; nothing was written.
    AsWanted,
    /// It was written; the server's answer.
    Written(K),
    /// It is somebody else's to keep from now on.
    Over,
}

/// Knows how the object should be, and writes it.
pub trait Keeper: Send {
    /// Its kind.
    type Object;

    /// Writes the object if `held`, which the server holds, is not as it should be. `authorities` are what the server should
    /// trust, as PEM; nothing where somebody else puts that into the object.
    fn put(
        &mut self,
        held: Option<&Self::Object>,
        authorities: Option<&str>,
    ) -> impl Future<Output = kube::Result<Kept<Self::Object>>> + Send;
}

/// Keeps the object `name` right until `stop`: at the start, after a change of the authorities, and when somebody else has
/// changed it. What cannot be written is logged and tried again.
pub async fn keep<K>(
    api: Api<K>,
    name: &str,
    mut keeper: impl Keeper<Object = K>,
    mut authorities: watch::Receiver<Option<Arc<str>>>,
    stop: CancellationToken,
) where
    K: Resource<DynamicType = ()> + Clone + Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let kind = K::kind(&());
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let events = watcher(api, config)
        .default_backoff()
        .take_until(stop.cancelled_owned());
    let mut events = std::pin::pin!(events);
    // `None` until the first list is complete; then what the server holds.
    let mut held: Option<Option<K>> = None;
    let mut listed: Option<K> = None;
    let mut must_retry = false;
    loop {
        tokio::select! {
            changed = authorities.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(RETRY), if must_retry => {}
            event = events.next() => match event {
                None => return,
                Some(Ok(watcher::Event::Init)) => listed = None,
                Some(Ok(watcher::Event::InitApply(object))) => listed = Some(object),
                Some(Ok(watcher::Event::InitDone)) => held = Some(listed.take()),
                Some(Ok(watcher::Event::Apply(object))) => held = Some(Some(object)),
                Some(Ok(watcher::Event::Delete(_))) => held = Some(None),
                Some(Err(error)) => {
                    warn!(%kind, name, error = %chain(&error), "cannot watch a registration");
                    continue;
                }
            },
        }
        let Some(current) = &held else { continue };
        let pem = authorities.borrow_and_update().clone();
        must_retry = false;
        match keeper.put(current.as_ref(), pem.as_deref()).await {
            Ok(Kept::AsWanted) => {}
            Ok(Kept::Written(written)) => held = Some(Some(written)),
            Ok(Kept::Over) => return,
            Err(error) => {
                warn!(%kind, name, error = %chain(&error), "cannot register");
                must_retry = true;
            }
        }
    }
}
