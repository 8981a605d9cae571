//! What the cluster says about an API and the way to it.

use std::time::Duration;

use coppice_runtime::telemetry::chain;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResourceList;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::{APIService, ServiceReference};
use kube::api::{Api, ListParams};
use kube::{Client, Config};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::groups::Api as MetricsApi;
use crate::route::encode;

/// The metric that is asked for in the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Question {
    /// The metric's name.
    pub metric: String,
    /// In this namespace.
    pub namespace: String,
}

/// Everything that is judged of one API.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    /// The registration; `None`: there is none.
    pub registration: Result<Option<APIService>, String>,
    /// The Service that it names; `None`: there is none.
    pub service: Result<Option<Service>, String>,
    /// Its endpoints.
    pub slices: Result<Vec<EndpointSlice>, String>,
    /// What came of a connection to it that trusts whom the API server trusts.
    pub connection: Connection,
    /// How many resources the API lists through the API server.
    pub listed: Result<usize, String>,
    /// What the question was answered with, through the API server.
    pub answer: Answer,
}

/// What came of connecting to the Service as the API server does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Connection {
    /// The certificate is trusted and has the right name.
    Trusted,
    /// Somebody answered, and the connection was refused here, with the reason.
    Refused(String),
    /// The Service is not to be reached from here, which says nothing about the API server.
    NoWay(String),
}

/// What a metric request was answered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// A value.
    Value(String),
    /// A refusal: code and message.
    Refused(u16, String),
    /// None that could be read.
    None(String),
}

impl Facts {
    /// Asks for all of them. What cannot be asked for is a fact, too.
    pub(super) async fn fetch(client: &Client, api: MetricsApi, question: &Question) -> Self {
        let registrations: Api<APIService> = Api::all(client.clone());
        let registration = registrations
            .get_opt(&api.service_name())
            .await
            .map_err(|error| chain(&error).to_string());
        let (mut service, mut slices) = (Ok(None), Ok(Vec::new()));
        let mut connection = Connection::NoWay("there is no Service".to_owned());
        let registered = registration.as_ref().ok().and_then(Option::as_ref);
        if let Some((namespace, name, port)) = registered.and_then(reference) {
            let services: Api<Service> = Api::namespaced(client.clone(), &namespace);
            service = services
                .get_opt(&name)
                .await
                .map_err(|error| chain(&error).to_string());
            let all: Api<EndpointSlice> = Api::namespaced(client.clone(), &namespace);
            let of_service =
                ListParams::default().labels(&format!("kubernetes.io/service-name={name}"));
            slices = all
                .list(&of_service)
                .await
                .map(|list| list.items)
                .map_err(|error| chain(&error).to_string());
            let found = service.as_ref().ok().and_then(Option::as_ref);
            let host = found.and_then(external_host);
            let server_name = format!("{name}.{namespace}.svc");
            let host = host.unwrap_or_else(|| server_name.clone());
            let pem = registered.and_then(bundle);
            connection = connect(&host, port, server_name, pem).await;
        }
        Self {
            registration,
            service,
            slices,
            connection,
            listed: listed(client, api).await,
            answer: ask(client, api, question).await,
        }
    }

    /// The registration, if there is one.
    pub(super) fn registered(&self) -> Option<&APIService> {
        self.registration.as_ref().ok()?.as_ref()
    }

    /// Where the adapter runs, by its registration.
    pub(super) fn service_namespace(&self) -> Option<String> {
        let (namespace, ..) = reference(self.registered()?)?;
        Some(namespace)
    }
}

/// Namespace, name and port of the Service that a registration names.
pub(super) fn reference(registered: &APIService) -> Option<(String, String, u16)> {
    let spec = registered.spec.as_ref()?;
    let ServiceReference {
        namespace,
        name,
        port,
    } = spec.service.clone()?;
    Some((namespace?, name?, u16::try_from(port.unwrap_or(443)).ok()?))
}

fn external_host(service: &Service) -> Option<String> {
    service.spec.as_ref()?.external_name.clone()
}

/// The authorities that a registration carries.
pub(super) fn bundle(registered: &APIService) -> Option<Vec<u8>> {
    let spec = registered.spec.as_ref()?;
    spec.ca_bundle.as_ref().map(|bundle| bundle.0.clone())
}

/// Time for a connection and its answer; the API server gives its own checks as much.
const LIMIT: Duration = Duration::from_secs(5);

async fn connect(host: &str, port: u16, server_name: String, pem: Option<Vec<u8>>) -> Connection {
    let Some(pem) = pem else {
        return Connection::NoWay(
            "the API server trusts its host's authorities, which are not known here".to_owned(),
        );
    };
    let tried = tokio::time::timeout(LIMIT, tokio::net::TcpStream::connect((host, port))).await;
    match tried {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => {
            return Connection::NoWay(format!("{host}:{port} is not reached from here: {error}"));
        }
        Err(_) => {
            return Connection::NoWay(format!(
                "{host}:{port} is not reached from here: no answer in {} s",
                LIMIT.as_secs()
            ));
        }
    }
    let roots: Result<Vec<Vec<u8>>, _> = CertificateDer::pem_slice_iter(&pem)
        .map(|certificate| certificate.map(|der| der.to_vec()))
        .collect();
    let Ok(roots) = roots else {
        return Connection::Refused("the caBundle is no PEM".to_owned());
    };
    let url = match format!("https://{host}:{port}").parse() {
        Ok(url) => url,
        Err(error) => return Connection::NoWay(format!("{host}:{port} is no address: {error}")),
    };
    let mut config = Config::new(url);
    config.root_cert = Some(roots);
    config.tls_server_name = Some(server_name);
    config.connect_timeout = Some(LIMIT);
    config.read_timeout = Some(LIMIT);
    config.default_retry = false;
    let client = match Client::try_from(config) {
        Ok(client) => client,
        Err(error) => return Connection::Refused(chain(&error).to_string()),
    };
    let request = http::Request::get("/livez").body(Vec::new());
    match client.request_text(request.expect("a path")).await {
        // Whatever the answer is, it came over a connection that was trusted.
        Ok(_) | Err(kube::Error::Api(_)) => Connection::Trusted,
        Err(error) => Connection::Refused(chain(&error).to_string()),
    }
}

async fn listed(client: &Client, api: MetricsApi) -> Result<usize, String> {
    let request = http::Request::get(api.path())
        .body(Vec::new())
        .expect("a path");
    let list: APIResourceList = client
        .request(request)
        .await
        .map_err(|error| chain(&error).to_string())?;
    Ok(list.resources.len())
}

async fn ask(client: &Client, api: MetricsApi, question: &Question) -> Answer {
    let (namespace, metric) = (encode(&question.namespace), encode(&question.metric));
    let base = format!("{}/namespaces/{namespace}", api.path());
    let path = match api {
        MetricsApi::External => format!("{base}/{metric}"),
        MetricsApi::CustomV1Beta2 | MetricsApi::CustomV1Beta1 => {
            format!("{base}/metrics/{metric}")
        }
    };
    let request = match http::Request::get(path).body(Vec::new()) {
        Ok(request) => request,
        Err(error) => return Answer::None(error.to_string()),
    };
    match client.request::<serde_json::Value>(request).await {
        Ok(list) => match list["items"][0]["value"].as_str() {
            Some(value) => Answer::Value(value.to_owned()),
            None => Answer::None(format!("the answer holds no value: {list}")),
        },
        Err(kube::Error::Api(status)) => Answer::Refused(status.code, status.message.clone()),
        Err(error) => Answer::None(chain(&error).to_string()),
    }
}
