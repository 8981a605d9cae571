//! Which groups, versions and metrics there are.
//!
//! Every document is made at the start, and again with new rules, and does not depend on what is scraped: the API server judges by it whether this server is
//! available, and an unavailable one delays the whole cluster. Series of engines can be asked for by their own names without being listed.

use std::collections::BTreeMap;

use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use coppice_runtime::crypto;
use coppice_signals::Metric;
use serde_json::{Value, json};

use crate::authz::Allowed;
use crate::custom;
use crate::groups::{Api, Groups};
use crate::negotiate::{self, AggregatedVersion, DiscoveryForm};
use crate::openapi;
use crate::route::Document;
use crate::status::Refusal;
use crate::wanted;

/// The documents.
#[derive(Debug)]
pub(crate) struct Discovery {
    index: Tagged,
    groups: Tagged,
    group: BTreeMap<&'static str, Tagged>,
    resources: BTreeMap<Api, Tagged>,
    version: Tagged,
    aggregated: Tagged,
    aggregated_beta: Tagged,
    openapi_v2: Tagged,
    openapi_v3_index: Tagged,
    openapi_v3: BTreeMap<Api, Tagged>,
}

/// A document that clients ask for again and again, with a tag of its content.
#[derive(Debug)]
struct Tagged {
    body: String,
    content_type: HeaderValue,
    etag: HeaderValue,
}

const JSON: &str = "application/json";

/// Metrics that are measured and have a name of their own.
fn measured() -> Vec<String> {
    Metric::all().iter().map(ToString::to_string).collect()
}

/// The external metrics that are listed, those of rules last.
pub(crate) fn listed_metrics(rules: &[String]) -> Vec<String> {
    let mut names = measured();
    names.push(wanted::METRIC.to_owned());
    names.extend_from_slice(rules);
    names
}

impl Discovery {
    /// Makes the documents of these groups and rules.
    pub(crate) fn new(groups: Groups, rules: &[String]) -> Self {
        let external = listed_metrics(rules);
        let openapi = openapi::Documents::new(groups, &external);
        let program =
            json!({"program": env!("CARGO_PKG_NAME"), "version": env!("CARGO_PKG_VERSION")});
        let json = |value: &Value| Tagged::new(JSON, value.to_string());
        let listed: Vec<(&'static str, Value)> = groups
            .names()
            .into_iter()
            .map(|name| (name, group(groups, name)))
            .collect();
        let all: Vec<&Value> = listed.iter().map(|(_, group)| group).collect();
        Self {
            index: json(&index(groups)),
            groups: json(&json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": all})),
            resources: groups
                .apis()
                .map(|api| (api, json(&resources(api, &external))))
                .collect(),
            group: listed
                .iter()
                .map(|(name, group)| (*name, json(&with_kind("APIGroup", group.clone()))))
                .collect(),
            version: json(&program),
            aggregated: aggregated("v2", groups, &external),
            aggregated_beta: aggregated("v2beta1", groups, &external),
            openapi_v2: Tagged::new(JSON, openapi.v2),
            openapi_v3_index: Tagged::new(JSON, openapi.v3_index),
            openapi_v3: openapi
                .v3
                .into_iter()
                .map(|(api, text)| (api, Tagged::new(JSON, text)))
                .collect(),
        }
    }

    /// Whether this name is listed as an external metric.
    #[cfg(test)]
    pub(crate) fn lists(&self, name: &str) -> bool {
        let name = format!("\"name\":\"{name}\"");
        let listed = self.resources.get(&Api::External);
        listed.is_some_and(|listed| listed.body.contains(&name))
    }

    /// Answers with a document.
    ///
    /// # Errors
    /// 404 for one of a group that is not served, 406 when none of its forms is acceptable.
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
            Document::Index => Some(&self.index),
            Document::Group(group) => self.group.get(group),
            Document::Resources(api) => self.resources.get(api),
            Document::Version => Some(&self.version),
            Document::OpenApiV2 => Some(&self.openapi_v2),
            Document::OpenApiV3Index => Some(&self.openapi_v3_index),
            Document::OpenApiV3(api) => self.openapi_v3.get(api),
        };
        let document = document.ok_or_else(Refusal::unknown_path)?;
        if !negotiate::accepts_json(headers) {
            return Err(Refusal::not_acceptable());
        }
        Ok(document.serve(headers))
    }
}

fn index(groups: Groups) -> Value {
    let mut paths: Vec<String> = [
        "/apis",
        "/healthz",
        "/livez",
        "/openapi/v2",
        "/openapi/v3",
        "/readyz",
        "/version",
    ]
    .map(str::to_owned)
    .into();
    paths.extend(groups.names().iter().map(|group| format!("/apis/{group}")));
    for api in groups.apis() {
        paths.extend([api.path(), format!("/openapi/v3{}", api.path())]);
    }
    paths.sort_unstable();
    json!({"paths": paths})
}

/// A group with its versions, the preferred one first.
fn group(groups: Groups, name: &str) -> Value {
    let versions: Vec<Value> = groups
        .apis()
        .filter(|api| api.group() == name)
        .map(|api| json!({"groupVersion": api.group_version(), "version": api.version()}))
        .collect();
    json!({"name": name, "preferredVersion": versions.first(), "versions": versions})
}

/// The list of a version's resources, as clients read it that do not know the aggregated form.
fn resources(api: Api, external: &[String]) -> Value {
    let resource = |name: String, is_namespaced: bool, kind: String| json!({"name": name, "singularName": "", "namespaced": is_namespaced, "kind": kind, "verbs": ["get"]});
    let mut listed = Vec::new();
    match api {
        Api::External => {
            listed.extend(external.iter().map(|name| {
                let kind = kind_of(name);
                resource(name.clone(), true, kind)
            }));
        }
        Api::CustomV1Beta2 | Api::CustomV1Beta1 => {
            for (parent, is_namespaced) in parents() {
                listed.extend(measured().iter().map(|name| {
                    let name = format!("{parent}/{name}");
                    resource(name, is_namespaced, api.list_kind().to_owned())
                }));
            }
        }
    }
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api.group_version(), "resources": listed,
    })
}

/// What metrics of objects are listed below, and whether it is in namespaces.
fn parents() -> impl Iterator<Item = (&'static str, bool)> {
    let namespaced = custom::LISTED.into_iter().map(|resource| (resource, true));
    namespaced.chain([(custom::NAMESPACES, false)])
}

/// The aggregated form of one version of `apidiscovery.k8s.io`.
fn aggregated(version: &str, groups: Groups, external: &[String]) -> Tagged {
    let items: Vec<Value> = groups
        .names()
        .into_iter()
        .map(|name| {
            let versions: Vec<Value> = groups
                .apis()
                .filter(|api| api.group() == name)
                .map(|api| {
                    json!({
                        "version": api.version(), "freshness": "Current", "resources": aggregated_resources(api, external),
                    })
                })
                .collect();
            json!({"metadata": {"name": name, "creationTimestamp": null}, "versions": versions})
        })
        .collect();
    let body = json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": format!("apidiscovery.k8s.io/{version}"), "metadata": {},
        "items": items,
    })
    .to_string();
    Tagged::new(
        &format!("application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"),
        body,
    )
}

fn aggregated_resources(api: Api, external: &[String]) -> Vec<Value> {
    let kind = |kind: &str| json!({"group": api.group(), "version": api.version(), "kind": kind});
    match api {
        Api::External => external
            .iter()
            .map(|name| {
                json!({
                    "resource": name, "scope": "Namespaced", "singularResource": "", "verbs": ["get"],
                    "responseKind": kind(&kind_of(name)),
                })
            })
            .collect(),
        Api::CustomV1Beta2 | Api::CustomV1Beta1 => parents()
            .map(|(parent, is_namespaced)| {
                let metrics: Vec<Value> = measured()
                    .iter()
                    .map(|name| {
                        json!({"subresource": name, "responseKind": kind(api.list_kind()), "verbs": ["get"]})
                    })
                    .collect();
                // The parent itself is not served here. With an empty kind clients take it for a place to list its metrics below; left
                // out, the field made older ones fail.
                json!({
                    "resource": parent, "scope": if is_namespaced { "Namespaced" } else { "Cluster" }, "singularResource": "",
                    "verbs": [], "responseKind": {"group": "", "version": "", "kind": ""}, "subresources": metrics,
                })
            })
            .collect(),
    }
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
mod tests;
