//! For tests: an API server that answers reviews, certificates, and pods with values.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use axum::http::{HeaderMap, Request, Response, StatusCode};
use coppice_runtime::server::Peer;
use coppice_signals::{PodFacts, Selection, Signals, WatchId};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, date_time_ymd,
};
use rustls::pki_types::CertificateDer;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::metrics::Measured;
use crate::query::Sources;
use crate::rules::Rules;
use crate::wanted::WantedReplicas;

/// Answers `TokenReview` and `SubjectAccessReview`, and counts them.
#[derive(Debug, Clone, Default)]
pub(crate) struct FakeApi {
    pub is_down: Arc<AtomicBool>,
    pub asked: Arc<AtomicUsize>,
    /// The reviews' specs, in order.
    pub seen: Arc<Mutex<Vec<Value>>>,
    /// Users that may do everything.
    pub allowed: Arc<Mutex<Vec<String>>>,
}

impl FakeApi {
    pub(crate) fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move { Ok::<_, std::convert::Infallible>(api.answer(request).await) }
        });
        Client::new(service, "default")
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        if self.is_down.load(Ordering::SeqCst) {
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "down", "code": 503});
            return respond(StatusCode::SERVICE_UNAVAILABLE, &status);
        }
        let path = request.uri().path().to_owned();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let mut review: Value = serde_json::from_slice(&body).unwrap();
        self.seen.lock().push(review["spec"].clone());
        review["status"] = if path.ends_with("/tokenreviews") {
            match review["spec"]["token"].as_str() {
                Some("good") => {
                    json!({"authenticated": true, "user": {"username": "token-user", "groups": ["token-group"]}})
                }
                _ => json!({"authenticated": false, "error": "invalid bearer token"}),
            }
        } else {
            let user = review["spec"]["user"].as_str().unwrap_or_default();
            json!({"allowed": self.allowed.lock().iter().any(|allowed| allowed == user), "reason": "by the test"})
        };
        respond(StatusCode::CREATED, &review)
    }
}

fn respond(code: StatusCode, body: &Value) -> Response<Body> {
    Response::builder()
        .status(code)
        .body(Body::from(body.to_string().into_bytes()))
        .unwrap()
}

/// Sources that know of no pod and no policy, as at the start.
pub(crate) fn sources() -> Sources {
    coppice_runtime::crypto::install();
    let Measured {
        requests: metrics,
        signals,
        ..
    } = Measured::new();
    let signals = Signals::new(coppice_signals::Settings::default(), signals).unwrap();
    let stop = CancellationToken::new();
    stop.cancel();
    Sources {
        signals,
        rules: Rules::default(),
        wanted: WantedReplicas::watch(&FakeApi::default().client(), None, "system", &stop),
        metrics,
    }
}

/// A pod of namespace `serving` that runs vLLM.
pub(crate) struct TestPod {
    pub name: &'static str,
    pub labels: &'static [(&'static str, &'static str)],
    /// Requests waiting; `None`: it was never scraped.
    pub waiting: Option<u32>,
}

/// Lists these pods, and takes in what each says. They stay until the watch ends.
pub(crate) fn list_pods(sources: &Sources, pods: &[TestPod]) -> WatchId {
    let signals = &sources.signals;
    let facts = pods.iter().zip(1..).map(|(pod, last)| {
        let mut labels: std::collections::BTreeMap<String, String> = pod
            .labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        labels.insert("pod".to_owned(), pod.name.to_owned());
        PodFacts {
            labels: Arc::new(labels),
            ..PodFacts::ready("serving", pod.name, [10, 0, 0, last].into(), 8000)
        }
    });
    let watch = signals.begin_watch();
    signals.replace_pods(watch, facts.collect());
    for pod in pods {
        let Some(waiting) = pod.waiting else { continue };
        let body = format!(
            "vllm:num_requests_running{{model_name=\"Qwen/Qwen3\"}} 1\n\
             vllm:num_requests_waiting{{model_name=\"Qwen/Qwen3\"}} {waiting}\n"
        );
        let only = Selection {
            namespace: Some("serving".to_owned()),
            selector: format!("pod={}", pod.name).parse().unwrap(),
        };
        signals
            .ingest(&only, body.as_bytes(), signals.now())
            .unwrap();
    }
    watch
}

/// A certificate authority.
pub(crate) struct TestCa {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// What is special about a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,
    Expired,
    /// For servers only.
    NotForClients,
}

impl TestCa {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self {
            issuer: CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap(),
        }
    }

    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }

    pub(crate) fn issue(
        &self,
        common_name: &str,
        organizations: &[&str],
        flaw: Flaw,
    ) -> CertificateDer<'static> {
        self.sign(common_name, organizations, flaw).0.der().clone()
    }

    /// Certificate and key as PEM, for a client.
    pub(crate) fn identity(&self, common_name: &str) -> (String, String) {
        let (certificate, key) = self.sign(common_name, &[], Flaw::None);
        (certificate.pem(), key.serialize_pem())
    }

    fn sign(
        &self,
        common_name: &str,
        organizations: &[&str],
        flaw: Flaw,
    ) -> (rcgen::Certificate, KeyPair) {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, common_name);
        for organization in organizations {
            params
                .distinguished_name
                .push(DnType::OrganizationName, *organization);
        }
        params.extended_key_usages = match flaw {
            Flaw::NotForClients => vec![ExtendedKeyUsagePurpose::ServerAuth],
            Flaw::None | Flaw::Expired => vec![ExtendedKeyUsagePurpose::ClientAuth],
        };
        if flaw == Flaw::Expired {
            params.not_after = date_time_ymd(2020, 1, 1);
        }
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }
}

/// The peer of a connection with these certificates.
pub(crate) fn peer(certificates: &[CertificateDer<'static>]) -> Peer {
    Peer {
        address: "127.0.0.1:1".parse().unwrap(),
        certificates: certificates.into(),
    }
}

/// Headers by name and value; several values of one name stay several.
pub(crate) fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(*name, value.parse().unwrap());
    }
    headers
}
