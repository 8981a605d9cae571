use std::collections::BTreeSet;

use axum::http::header::ACCEPT;
use http_body_util::BodyExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIGroup, APIGroupList, APIResourceList};

use super::*;
use crate::groups::{CUSTOM, EXTERNAL};

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
        Discovery::new(Groups::Both, &[])
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
    let names: Vec<_> = groups.groups.iter().map(|group| &group.name).collect();
    assert_eq!(names, [EXTERNAL, CUSTOM]);
    let group: APIGroup = serde_json::from_slice(&fetch(Document::Group(CUSTOM)).await).unwrap();
    assert_eq!(group.preferred_version.unwrap().version, "v1beta2");
    assert_eq!(group.versions.len(), 2);
    let resources: APIResourceList =
        serde_json::from_slice(&fetch(Document::Resources(Api::External)).await).unwrap();
    assert_eq!(resources.group_version, "external.metrics.k8s.io/v1beta1");
    let names: Vec<_> = resources
        .resources
        .iter()
        .map(|resource| resource.name.as_str())
        .collect();
    assert!(
        names.contains(&"coppice_requests_waiting") && names.contains(&"coppice_wanted_replicas")
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
    let discovery = Discovery::new(Groups::Both, &[]);
    let groups = Allowed::for_tests(Document::Groups);
    let headers = accept("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList");
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
    assert_eq!(resources.len(), listed_metrics(&[]).len());
    assert!(
        resources
            .iter()
            .all(|resource| resource["responseKind"]["kind"].is_string())
    );
    let custom = document["items"][1]["versions"].as_array().unwrap();
    let versions: Vec<_> = custom.iter().map(|version| &version["version"]).collect();
    assert_eq!(versions, ["v1beta2", "v1beta1"]);
    for version in custom {
        let pods = &version["resources"][0];
        assert_eq!(
            (&pods["resource"], &pods["responseKind"]["kind"]),
            (&json!("pods"), &json!(""))
        );
        assert_eq!(
            pods["subresources"].as_array().unwrap().len(),
            listed_metrics(&[]).len() - 1,
            "all but the one that belongs to no object"
        );
        assert_eq!(
            pods["subresources"][0]["responseKind"]["kind"],
            "MetricValueList"
        );
    }

    let mut again = headers;
    again.insert(IF_NONE_MATCH, etag);
    let response = discovery.serve(&groups, &again).unwrap();
    assert_eq!(response.status(), StatusCode::NOT_MODIFIED);
    assert!(body(response).await.is_empty());
}

#[tokio::test]
async fn metrics_of_objects_are_listed_below_what_they_measure() {
    let resources: APIResourceList =
        serde_json::from_slice(&fetch(Document::Resources(Api::CustomV1Beta2)).await).unwrap();
    assert_eq!(resources.group_version, "custom.metrics.k8s.io/v1beta2");
    let scope = |name: &str| {
        let found = resources.resources.iter().find(|each| each.name == name);
        found.map(|each| each.namespaced)
    };
    assert_eq!(scope("pods/coppice_requests_waiting"), Some(true));
    assert_eq!(
        scope("podcliquescalinggroups.grove.io/coppice_kv_cache_usage"),
        Some(true)
    );
    assert_eq!(scope("namespaces/coppice_requests_waiting"), Some(false));
    assert_eq!(scope("pods/coppice_wanted_replicas"), None);
    for resource in &resources.resources {
        assert_eq!(
            (resource.kind.as_str(), resource.verbs.as_slice()),
            ("MetricValueList", &["get".to_owned()][..])
        );
    }
}

#[test]
fn a_group_that_is_not_served_has_no_documents() {
    let external = Discovery::new(Groups::External, &[]);
    let code = |discovery: &Discovery, document| {
        discovery
            .serve(&Allowed::for_tests(document), &HeaderMap::new())
            .map_or_else(|refusal| refusal.code(), |response| response.status())
    };
    for document in [
        Document::Group(CUSTOM),
        Document::Resources(Api::CustomV1Beta2),
        Document::OpenApiV3(Api::CustomV1Beta1),
    ] {
        assert_eq!(code(&external, document), 404, "{document:?}");
        assert_eq!(
            code(&Discovery::new(Groups::Custom, &[]), document),
            200,
            "{document:?}"
        );
    }
    assert_eq!(code(&external, Document::Resources(Api::External)), 200);
}

#[tokio::test]
async fn older_clusters_get_the_beta_form_and_others_a_refusal() {
    let discovery = Discovery::new(Groups::Both, &[]);
    let groups = Allowed::for_tests(Document::Groups);
    let headers =
        accept("application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList");
    let document: Value =
        serde_json::from_slice(&body(discovery.serve(&groups, &headers).unwrap()).await).unwrap();
    assert_eq!(document["apiVersion"], "apidiscovery.k8s.io/v2beta1");
    let refusal = discovery.serve(&groups, &accept("text/html")).unwrap_err();
    assert_eq!(refusal.code(), StatusCode::NOT_ACCEPTABLE);
}
