//! Which groups, versions and metrics there are.
//!
//! Every document is made once, at the start, and does not depend on what is scraped: the API server judges by it whether this server is
//! available, and an unavailable one delays the whole cluster. Series of engines can be asked for by their own names without being listed.

use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use coppice_runtime::crypto;
use coppice_signals::Metric;
use serde_json::{Value, json};

use crate::authz::Allowed;
use crate::negotiate::{self, AggregatedVersion, DiscoveryForm};
use crate::openapi;
use crate::route::{Document, GROUP, VERSION};
use crate::status::Refusal;
use crate::wanted;

/// The documents.
#[derive(Debug)]
pub(crate) struct Discovery {
    index: Tagged,
    groups: Tagged,
    group: Tagged,
    resources: Tagged,
    version: Tagged,
    aggregated: Tagged,
    aggregated_beta: Tagged,
    openapi_v2: Tagged,
    openapi_v3_index: Tagged,
    openapi_v3: Tagged,
}

/// A document that clients ask for again and again, with a tag of its content.
#[derive(Debug)]
struct Tagged {
    body: String,
    content_type: HeaderValue,
    etag: HeaderValue,
}

const JSON: &str = "application/json";

/// The names that are listed: every metric with a name of its own.
pub(crate) fn listed_metrics() -> Vec<String> {
    let mut names: Vec<String> = Metric::all().iter().map(ToString::to_string).collect();
    names.push(wanted::METRIC.to_owned());
    names
}

impl Discovery {
    /// Makes the documents.
    pub(crate) fn new() -> Self {
        let names = listed_metrics();
        let version = json!({"groupVersion": format!("{GROUP}/{VERSION}"), "version": VERSION});
        let group = json!({"name": GROUP, "versions": [version], "preferredVersion": version});
        let resources: Vec<_> = names
            .iter()
            .map(|name| {
                json!({"name": name, "singularName": "", "namespaced": true, "kind": kind_of(name), "verbs": ["get"]})
            })
            .collect();
        let openapi = openapi::Documents::new(&names);
        let index = json!({"paths": [
            "/apis", format!("/apis/{GROUP}"), format!("/apis/{GROUP}/{VERSION}"), "/healthz", "/livez",
            "/openapi/v2", "/openapi/v3", format!("/openapi/v3/apis/{GROUP}/{VERSION}"), "/readyz", "/version",
        ]});
        let resources = json!({
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{GROUP}/{VERSION}"), "resources": resources,
        });
        let program =
            json!({"program": env!("CARGO_PKG_NAME"), "version": env!("CARGO_PKG_VERSION")});
        let json = |value: &Value| Tagged::new(JSON, value.to_string());
        Self {
            index: json(&index),
            groups: json(&json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]})),
            group: json(&with_kind("APIGroup", group)),
            resources: json(&resources),
            version: json(&program),
            aggregated: aggregated("v2", &names),
            aggregated_beta: aggregated("v2beta1", &names),
            openapi_v2: Tagged::new(JSON, openapi.v2),
            openapi_v3_index: Tagged::new(JSON, openapi.v3_index),
            openapi_v3: Tagged::new(JSON, openapi.v3),
        }
    }

    /// Answers with a document.
    ///
    /// # Errors
    /// 406 when none of its forms is acceptable.
    pub(crate) fn serve(
        &self,
        document: &Allowed<Document>,
        headers: &HeaderMap,
    ) -> Result<Response, Refusal> {
        let document = match document.get() {
            Document::Groups => {
                let form =
                    negotiate::discovery_form(headers).ok_or_else(Refusal::not_acceptable)?;
                let groups = match form {
                    DiscoveryForm::Aggregated(AggregatedVersion::V2) => &self.aggregated,
                    DiscoveryForm::Aggregated(AggregatedVersion::V2Beta1) => &self.aggregated_beta,
                    DiscoveryForm::Groups => &self.groups,
                };
                return Ok(groups.serve(headers));
            }
            Document::Index => &self.index,
            Document::Group => &self.group,
            Document::Resources => &self.resources,
            Document::Version => &self.version,
            Document::OpenApiV2 => &self.openapi_v2,
            Document::OpenApiV3Index => &self.openapi_v3_index,
            Document::OpenApiV3 => &self.openapi_v3,
        };
        if !negotiate::accepts_json(headers) {
            return Err(Refusal::not_acceptable());
        }
        Ok(document.serve(headers))
    }
}

/// The aggregated form of one version of `apidiscovery.k8s.io`.
fn aggregated(version: &str, names: &[String]) -> Tagged {
    let resources: Vec<_> = names
        .iter()
        .map(|name| {
            json!({
                "resource": name, "scope": "Namespaced", "singularResource": "", "verbs": ["get"],
                "responseKind": {"group": GROUP, "version": VERSION, "kind": kind_of(name)},
            })
        })
        .collect();
    let body = json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": format!("apidiscovery.k8s.io/{version}"), "metadata": {},
        "items": [{
            "metadata": {"name": GROUP, "creationTimestamp": null},
            "versions": [{"version": VERSION, "freshness": "Current", "resources": resources}],
        }],
    })
    .to_string();
    Tagged::new(
        &format!("application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"),
        body,
    )
}

impl Tagged {
    fn new(content_type: &str, body: String) -> Self {
        let value = |text: &str| HeaderValue::try_from(text).expect("digits and names");
        let tag = crypto::hex(&crypto::sha256(&[body.as_bytes()]));
        Self {
            etag: value(&format!("\"{tag}\"")),
            content_type: value(content_type),
            body,
        }
    }

    fn serve(&self, headers: &HeaderMap) -> Response {
        let is_known = headers
            .get_all(IF_NONE_MATCH)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .any(|tag| tag.trim() == "*" || tag.trim().as_bytes() == self.etag.as_bytes());
        let mut response = if is_known {
            StatusCode::NOT_MODIFIED.into_response()
        } else {
            let mut response = self.body.clone().into_response();
            response
                .headers_mut()
                .insert(CONTENT_TYPE, self.content_type.clone());
            response
        };
        let headers = response.headers_mut();
        headers.insert(ETAG, self.etag.clone());
        headers.insert(VARY, HeaderValue::from_static("Accept"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("public"));
        response
    }
}

/// The kind under which a metric is listed, such as `CoppiceRequestsWaiting`.
///
/// kubectl goes from the resource to its kind and from there back to a resource. Were all metrics of the kind that is answered
/// (`ExternalMetricValueList`), `kubectl get` of any of them would show the one that is listed last. Autoscalers ask by name and never
/// look a kind up.
fn kind_of(name: &str) -> String {
    let mut kind = String::with_capacity(name.len());
    for word in name.split(['_', ':', '-', '.']) {
        let mut letters = word.chars();
        kind.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        kind.extend(letters);
    }
    kind
}

fn with_kind(kind: &str, mut value: Value) -> Value {
    value["kind"] = json!(kind);
    value["apiVersion"] = json!("v1");
    value
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use axum::http::header::ACCEPT;
    use http_body_util::BodyExt;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIGroup, APIGroupList, APIResourceList};

    use super::*;

    async fn body(response: Response) -> Vec<u8> {
        response
            .into_body()
            .collect()
            .await
            .unwrap()
            .to_bytes()
            .to_vec()
    }

    async fn fetch(document: Document) -> Vec<u8> {
        body(
            Discovery::new()
                .serve(&Allowed::for_tests(document), &HeaderMap::new())
                .unwrap(),
        )
        .await
    }

    fn accept(value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(value))])
    }

    #[tokio::test]
    async fn the_documents_are_what_clients_decode() {
        let groups: APIGroupList = serde_json::from_slice(&fetch(Document::Groups).await).unwrap();
        assert_eq!(groups.groups[0].name, GROUP);
        let group: APIGroup = serde_json::from_slice(&fetch(Document::Group).await).unwrap();
        assert_eq!(group.preferred_version.unwrap().version, VERSION);
        let resources: APIResourceList =
            serde_json::from_slice(&fetch(Document::Resources).await).unwrap();
        assert_eq!(resources.group_version, "external.metrics.k8s.io/v1beta1");
        let names: Vec<_> = resources
            .resources
            .iter()
            .map(|resource| resource.name.as_str())
            .collect();
        assert!(
            names.contains(&"coppice_requests_waiting")
                && names.contains(&"coppice_wanted_replicas")
        );
        let kinds: BTreeSet<_> = resources
            .resources
            .iter()
            .map(|resource| &resource.kind)
            .collect();
        assert_eq!(
            kinds.len(),
            resources.resources.len(),
            "kubectl tells metrics apart by kind"
        );
        for resource in &resources.resources {
            assert!(resource.namespaced && resource.verbs == ["get"]);
            assert_eq!(resource.name, resource.name.to_lowercase());
        }
    }

    #[tokio::test]
    async fn aggregated_discovery_lists_the_same_metrics_and_is_known_by_its_tag() {
        let discovery = Discovery::new();
        let groups = Allowed::for_tests(Document::Groups);
        let headers =
            accept("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList");
        let response = discovery.serve(&groups, &headers).unwrap();
        assert_eq!(
            response.headers()[CONTENT_TYPE],
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
        );
        assert_eq!(response.headers()[VARY], "Accept");
        let etag = response.headers()[ETAG].clone();
        let document: Value = serde_json::from_slice(&body(response).await).unwrap();
        let resources = document["items"][0]["versions"][0]["resources"]
            .as_array()
            .unwrap();
        assert_eq!(resources.len(), listed_metrics().len());
        assert!(
            resources
                .iter()
                .all(|resource| resource["responseKind"]["kind"].is_string())
        );

        let mut again = headers;
        again.insert(IF_NONE_MATCH, etag);
        let response = discovery.serve(&groups, &again).unwrap();
        assert_eq!(response.status(), StatusCode::NOT_MODIFIED);
        assert!(body(response).await.is_empty());
    }

    #[tokio::test]
    async fn older_clusters_get_the_beta_form_and_others_a_refusal() {
        let discovery = Discovery::new();
        let groups = Allowed::for_tests(Document::Groups);
        let headers =
            accept("application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList");
        let document: Value =
            serde_json::from_slice(&body(discovery.serve(&groups, &headers).unwrap()).await)
                .unwrap();
        assert_eq!(document["apiVersion"], "apidiscovery.k8s.io/v2beta1");
        let refusal = discovery.serve(&groups, &accept("text/html")).unwrap_err();
        assert_eq!(refusal.code(), StatusCode::NOT_ACCEPTABLE);
    }
}
