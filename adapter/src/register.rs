//! Keeping the APIServices right (`serve --register-apiservice`): for a cluster outside of which the adapter runs, or where nothing else
//! installs it.
//!
//! It writes only when something differs: at the start, after a new certificate, or when somebody else changed the object.

use std::sync::Arc;

use coppice_runtime::registration::{self, Keeper, Kept};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::groups::{Api as MetricsApi, Groups};
use crate::objects::{self, NAME, ServiceAddress};

/// What to register.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Registration {
    /// What is served: an APIService for each group and version.
    pub groups: Groups,
    /// The Service that they name.
    pub address: ServiceAddress,
    /// Host of an adapter outside the cluster; `None`: the Service exists and is left alone.
    pub external_host: Option<String>,
}

/// Keeps the Service and one APIService of each group and version right until `stop`. What cannot be written is logged and tried again.
pub(crate) async fn keep(
    client: Client,
    registration: Registration,
    bundle: watch::Receiver<Option<Arc<str>>>,
    stop: CancellationToken,
) {
    let Registration {
        groups,
        address,
        mut external_host,
    } = registration;
    let services: Api<APIService> = Api::all(client.clone());
    let keeping = groups.apis().map(|api| {
        let writer = Writer {
            client: client.clone(),
            services: services.clone(),
            api,
            address: address.clone(),
            // There is one Service for all of them.
            unwritten_host: external_host.take(),
        };
        let (services, bundle, stop) = (services.clone(), bundle.clone(), stop.clone());
        async move {
            registration::keep(services, &api.service_name(), writer, bundle, stop).await;
        }
    });
    futures::future::join_all(keeping).await;
}

struct Writer {
    client: Client,
    services: Api<APIService>,
    api: MetricsApi,
    address: ServiceAddress,
    /// Host of a Service that is still to be written.
    unwritten_host: Option<String>,
}

impl Keeper for Writer {
    type Object = APIService;

    async fn put(
        &mut self,
        current: Option<&APIService>,
        pem: Option<&str>,
    ) -> kube::Result<Kept<APIService>> {
        let address = &self.address;
        let params = PatchParams::apply(NAME).force();
        if let Some(host) = &self.unwritten_host {
            let services: Api<Service> = Api::namespaced(self.client.clone(), &address.namespace);
            let wanted = objects::external_service(address, host);
            services
                .patch(&address.name, &params, &Patch::Apply(&wanted))
                .await?;
            self.unwritten_host = None;
        }
        let Self { api, address, .. } = &*self;
        let wanted = objects::api_service(*api, address, pem);
        if current.is_some_and(|current| is_as_wanted(current, &wanted)) {
            return Ok(Kept::AsWanted);
        }
        let written = self
            .services
            .patch(&api.service_name(), &params, &Patch::Apply(&wanted))
            .await?;
        info!(name = %api.service_name(), namespace = %address.namespace, service = %address.name, port = address.port, "registered the APIService");
        Ok(Kept::Written(written))
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
        let api_service = |address: &ServiceAddress, pem| {
            objects::api_service(MetricsApi::External, address, pem)
        };
        let wanted = api_service(&address, Some("pem"));
        assert!(is_as_wanted(&wanted, &wanted));
        let elsewhere = api_service(
            &ServiceAddress {
                name: "keda".into(),
                ..address.clone()
            },
            Some("pem"),
        );
        assert!(!is_as_wanted(&elsewhere, &wanted));
        assert!(!is_as_wanted(&api_service(&address, Some("old")), &wanted));
        assert!(is_as_wanted(
            &api_service(&address, Some("injected")),
            &api_service(&address, None)
        ));
        let mut skipping = wanted.clone();
        skipping.spec.as_mut().unwrap().insecure_skip_tls_verify = Some(true);
        assert!(!is_as_wanted(&skipping, &wanted));
    }
}
