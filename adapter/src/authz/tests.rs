use std::sync::atomic::Ordering;

use axum::http::Method;
use serde_json::json;

use super::*;
use crate::fixtures::FakeApi;
use crate::groups;

fn caller(user: &str) -> Caller {
    Caller {
        user: user.to_owned(),
        groups: vec!["system:authenticated".to_owned()],
        ..Caller::default()
    }
}

fn route(path: &str) -> Route {
    Route::parse(&Method::GET, &path.parse().unwrap()).unwrap()
}

const METRIC: &str =
    "/apis/external.metrics.k8s.io/v1beta1/namespaces/serving/coppice_requests_waiting";

#[tokio::test]
async fn the_review_names_user_verb_resource_and_namespace() {
    let api = FakeApi::default();
    api.allowed.lock().push("ann".to_owned());
    let authorizer = Authorizer::new(api.client());
    authorizer
        .authorize(caller("ann"), route(METRIC))
        .await
        .unwrap();
    authorizer
        .authorize(caller("ann"), route("/apis"))
        .await
        .unwrap();
    let seen = api.seen.lock();
    assert_eq!(
        seen[0],
        json!({
            "user": "ann", "groups": ["system:authenticated"],
            "resourceAttributes": {
                "group": "external.metrics.k8s.io", "version": "v1beta1", "namespace": "serving", "verb": "list",
                "resource": "coppice_requests_waiting",
            },
        })
    );
    assert_eq!(
        seen[1]["nonResourceAttributes"],
        json!({"path": "/apis", "verb": "get"})
    );
}

#[tokio::test]
async fn a_refusal_has_the_usual_words() {
    let authorizer = Authorizer::new(FakeApi::default().client());
    let refusal = authorizer
        .authorize(caller("bob"), route(METRIC))
        .await
        .unwrap_err();
    let expected = Refusal::forbidden(
        "coppice_requests_waiting.external.metrics.k8s.io is forbidden: User \"bob\" cannot list resource \"coppice_requests_waiting\" \
         in API group \"external.metrics.k8s.io\" in the namespace \"serving\": by the test",
    )
    .about(groups::EXTERNAL, "coppice_requests_waiting");
    assert_eq!(refusal, expected);
    let refusal = authorizer
        .authorize(caller("bob"), route("/apis"))
        .await
        .unwrap_err();
    assert_eq!(
        refusal,
        Refusal::forbidden("forbidden: User \"bob\" cannot get path \"/apis\": by the test")
    );
}

/// A right to a metric of pods is one to the subresource, in whichever namespace and version it is asked for.
#[tokio::test]
async fn the_review_of_a_metric_of_objects_names_object_and_metric() {
    let api = FakeApi::default();
    let authorizer = Authorizer::new(api.client());
    let path =
        "/apis/custom.metrics.k8s.io/v1beta2/namespaces/serving/pods/*/coppice_requests_waiting";
    let refusal = authorizer
        .authorize(caller("bob"), route(path))
        .await
        .unwrap_err();
    let expected = Refusal::forbidden(
        "pods.custom.metrics.k8s.io \"*\" is forbidden: User \"bob\" cannot get resource \"pods/coppice_requests_waiting\" \
         in API group \"custom.metrics.k8s.io\" in the namespace \"serving\": by the test",
    )
    .about(groups::CUSTOM, "pods");
    assert_eq!(refusal, expected);
    assert_eq!(
        api.seen.lock()[0]["resourceAttributes"],
        json!({
            "group": "custom.metrics.k8s.io", "version": "v1beta2", "namespace": "serving", "verb": "get",
            "resource": "pods", "name": "*", "subresource": "coppice_requests_waiting",
        })
    );
}

#[tokio::test]
async fn masters_are_not_asked_about() {
    let api = FakeApi::default();
    let mut master = caller("system:kube-aggregator");
    master.groups.push("system:masters".to_owned());
    assert!(
        Authorizer::new(api.client())
            .authorize(master, route(METRIC))
            .await
            .is_ok()
    );
    assert_eq!(api.asked.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_verdict_is_kept_and_an_outage_refuses_only_the_unknown() {
    let api = FakeApi::default();
    api.allowed.lock().push("ann".to_owned());
    let authorizer = Authorizer::new(api.client());
    for _ in 0..3 {
        assert!(
            authorizer
                .authorize(caller("ann"), route(METRIC))
                .await
                .is_ok()
        );
    }
    assert_eq!(api.asked.load(Ordering::SeqCst), 1);
    api.is_down.store(true, Ordering::SeqCst);
    assert!(
        authorizer
            .authorize(caller("ann"), route(METRIC))
            .await
            .is_ok()
    );
    let refusal = authorizer
        .authorize(caller("eve"), route(METRIC))
        .await
        .unwrap_err();
    assert_eq!(refusal.code(), 500);
}

#[tokio::test]
async fn oversized_questions_are_not_kept() {
    let api = FakeApi::default();
    api.allowed.lock().push("ann".to_owned());
    let authorizer = Authorizer::new(api.client());
    let mut large = caller("ann");
    large.groups.push("g".repeat(MAX_CACHED_BYTES));
    for _ in 0..2 {
        assert!(
            authorizer
                .authorize(large.clone(), route(METRIC))
                .await
                .is_ok()
        );
    }
    assert_eq!(api.asked.load(Ordering::SeqCst), 2);
}
