//! For tests: an API server that answers reviews, and certificates.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use axum::http::{HeaderMap, Request, Response, StatusCode};
use coppice_runtime::server::Peer;
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
        params.signed_by(&key, &self.issuer).unwrap().der().clone()
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
