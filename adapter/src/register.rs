//! Keeping the APIService right (`serve --register-apiservice`): for a cluster outside of which the adapter runs, or where nothing else
//! installs it.
//!
//! It writes only when something differs: at the start, after a new certificate, or when somebody else changed the object.

use std::sync::Arc;

use coppice_runtime::telemetry::chain;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::objects::{self, NAME, ServiceAddress};

/// What to register.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Registration {
    /// The Service that the APIService names.
    pub address: ServiceAddress,
    /// Host of an adapter outside the cluster; `None`: the Service exists and is left alone.
    pub external_host: Option<String>,
}

/// Keeps Service and APIService right until `stop`. What cannot be written is logged and tried again.
pub(crate) async fn keep(
    client: Client,
    registration: Registration,
    mut bundle: watch::Receiver<Option<Arc<str>>>,
    stop: CancellationToken,
) {
    let services: Api<APIService> = Api::all(client.clone());
    let config = watcher::Config::default()
        .fields(&format!("metadata.name={}", objects::api_service_name()));
    let events = watcher(services.clone(), config)
        .default_backoff()
        .take_until(stop.cancelled_owned());
    let mut events = std::pin::pin!(events);
    let mut writer = Writer {
        client,
        services,
        is_service_written: registration.external_host.is_none(),
        registration,
    };
    // `None` until the first list is complete; then what the server holds.
    let mut held: Option<Option<APIService>> = None;
    let mut listed: Option<APIService> = None;
    let mut must_retry = false;
    loop {
        tokio::select! {
            changed = bundle.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(RETRY), if must_retry => {}
            event = events.next() => match event {
                None => return,
                Some(Ok(watcher::Event::Init)) => listed = None,
                Some(Ok(watcher::Event::InitApply(object))) => listed = Some(object),
                Some(Ok(watcher::Event::InitDone)) => held = Some(listed.take()),
                Some(Ok(watcher::Event::Apply(object))) => held = Some(Some(object)),
                Some(Ok(watcher::Event::Delete(_))) => held = Some(None),
                Some(Err(error)) => {
                    warn!(error = %chain(&error), "cannot watch the APIService");
                    continue;
                }
            },
        }
        let Some(current) = &held else { continue };
        let pem = bundle.borrow_and_update().clone();
        match writer.write(current.as_ref(), pem.as_deref()).await {
            Ok(None) => must_retry = false,
            Ok(Some(written)) => {
                must_retry = false;
                held = Some(Some(written));
            }
            Err(error) => {
                warn!(error = %chain(&error), "cannot register the adapter");
                must_retry = true;
            }
        }
    }
}

const RETRY: std::time::Duration = std::time::Duration::from_secs(2);

struct Writer {
    client: Client,
    services: Api<APIService>,
    registration: Registration,
    is_service_written: bool,
}

impl Writer {
    /// Writes what differs; returns the APIService when it was written.
    async fn write(
        &mut self,
        current: Option<&APIService>,
        pem: Option<&str>,
    ) -> kube::Result<Option<APIService>> {
        let Registration {
            address,
            external_host,
        } = &self.registration;
        let params = PatchParams::apply(NAME).force();
        if let (false, Some(host)) = (self.is_service_written, external_host) {
            let services: Api<Service> = Api::namespaced(self.client.clone(), &address.namespace);
            let wanted = objects::external_service(address, host);
            services
                .patch(&address.name, &params, &Patch::Apply(&wanted))
                .await?;
            self.is_service_written = true;
        }
        let wanted = objects::api_service(address, pem);
        if current.is_some_and(|current| is_as_wanted(current, &wanted)) {
            return Ok(None);
        }
        let written = self
            .services
            .patch(
                &objects::api_service_name(),
                &params,
                &Patch::Apply(&wanted),
            )
            .await?;
        info!(namespace = %address.namespace, service = %address.name, port = address.port, "registered the APIService");
        Ok(Some(written))
    }
}

fn is_as_wanted(current: &APIService, wanted: &APIService) -> bool {
    let (Some(current), Some(wanted)) = (&current.spec, &wanted.spec) else {
        return false;
    };
    current.service == wanted.service
        && (wanted.ca_bundle.is_none() || current.ca_bundle == wanted.ca_bundle)
        && current.insecure_skip_tls_verify != Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_api_service_that_points_elsewhere_or_trusts_nobody_is_not_as_wanted() {
        let address = ServiceAddress {
            namespace: "system".into(),
            name: "adapter".into(),
            port: 443,
        };
        let wanted = objects::api_service(&address, Some("pem"));
        assert!(is_as_wanted(&wanted, &wanted));
        let elsewhere = objects::api_service(
            &ServiceAddress {
                name: "keda".into(),
                ..address.clone()
            },
            Some("pem"),
        );
        assert!(!is_as_wanted(&elsewhere, &wanted));
        assert!(!is_as_wanted(
            &objects::api_service(&address, Some("old")),
            &wanted
        ));
        assert!(is_as_wanted(
            &objects::api_service(&address, Some("injected")),
            &objects::api_service(&address, None)
        ));
        let mut skipping = wanted.clone();
        skipping.spec.as_mut().unwrap().insecure_skip_tls_verify = Some(true);
        assert!(!is_as_wanted(&skipping, &wanted));
    }
}
