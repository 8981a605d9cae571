use axum::http::StatusCode;
use http_body_util::BodyExt;
use serde_json::{Value as Json, json};

use super::*;
use crate::fixtures::{TestPod, list_pods, sources};
use crate::groups::Api;
use crate::route::Subject;

const METRIC: &str = "coppice_requests_waiting";
const CLIQUE: &[(&str, &str)] = &[
    ("app", "decode"),
    ("app.kubernetes.io/managed-by", "grove-operator"),
    ("app.kubernetes.io/part-of", "chat"),
    ("grove.io/podclique", "chat-0-decode"),
];

/// Two pods of a clique, one of which has said nothing yet, and one of somebody else.
fn pods() -> Sources {
    let sources = sources();
    let pod = |name, labels, waiting| TestPod {
        name,
        labels,
        waiting,
    };
    list_pods(
        &sources,
        &[
            pod("decode-0", CLIQUE, Some(6)),
            pod("decode-1", CLIQUE, None),
            pod("other", &[("app.kubernetes.io/part-of", "chat")], Some(1)),
        ],
    );
    sources
}

fn objects(resource: &str, name: &str) -> Subject {
    Subject::Objects {
        resource: resource.to_owned(),
        name: (name != "*").then(|| name.to_owned()),
    }
}

fn ask(
    sources: &Sources,
    subject: Subject,
    metric: &str,
    objects: &str,
    series: &str,
) -> Result<Response, Refusal> {
    let path = ObjectPath {
        api: Api::CustomV1Beta2,
        namespace: "serving".to_owned(),
        subject,
        metric: metric.to_owned(),
    };
    let request = ObjectRequest {
        path,
        objects: objects.to_owned(),
        series: series.to_owned(),
    };
    sources.of_objects(&Allowed::for_tests(request), &HeaderMap::new())
}

/// Kind, name and value of each item, and the warnings.
async fn items(
    response: Result<Response, Refusal>,
) -> (Vec<(String, String, String)>, Vec<String>) {
    let response = response.unwrap();
    let warnings = response.headers().get_all("warning").iter();
    let warnings = warnings
        .map(|value| value.to_str().unwrap().to_owned())
        .collect();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let list: Json = serde_json::from_slice(&body).unwrap();
    let text = |json: &Json| json.as_str().unwrap_or_default().to_owned();
    let items = list["items"].as_array().unwrap().iter();
    let items = items
        .map(|item| {
            let object = &item["describedObject"];
            (
                text(&object["kind"]),
                text(&object["name"]),
                text(&item["value"]),
            )
        })
        .collect();
    (items, warnings)
}

fn one(kind: &str, name: &str, value: &str) -> Vec<(String, String, String)> {
    vec![(kind.to_owned(), name.to_owned(), value.to_owned())]
}

#[tokio::test]
async fn a_pod_without_a_value_is_left_out_and_never_zero() {
    let sources = pods();
    let (found, warnings) = items(ask(
        &sources,
        objects("pods", "*"),
        METRIC,
        "app=decode",
        "",
    ))
    .await;
    assert_eq!(found, one("Pod", "decode-0", "6"));
    assert_eq!(
        warnings[0],
        "299 - \"1 of 2 pods have no value and are left out\""
    );
    assert!(warnings[1].contains("decode-1"), "{warnings:?}");
    let (found, warnings) = items(ask(&sources, objects("pods", "*"), METRIC, "", "")).await;
    assert_eq!((found.len(), warnings.len()), (2, 2));
}

#[tokio::test]
async fn when_no_pod_has_a_value_that_is_an_error() {
    let sources = pods();
    for (subject, metric, selector, code, part) in [
        (
            objects("pods", "decode-1"),
            METRIC,
            "",
            503,
            "decode-1 not scraped yet",
        ),
        (
            objects("pods", "*"),
            METRIC,
            "pod=decode-1",
            503,
            "not scraped yet",
        ),
        (
            objects("pods", "*"),
            METRIC,
            "app=absent",
            404,
            "no ready endpoint",
        ),
        (
            objects("pods", "absent"),
            METRIC,
            "",
            404,
            "no ready pod serving/absent",
        ),
        (
            objects("pods", "decode-0"),
            "coppice_kv_cache_usage",
            "",
            404,
            "not exposed by vllm",
        ),
        // A pod that may still have it decides over one that never will.
        (
            objects("pods", "*"),
            "coppice_kv_cache_usage",
            "app=decode",
            503,
            "none of 2 pods",
        ),
        (
            objects("pods", "*"),
            "coppice_nothing",
            "",
            404,
            "coppice_nothing",
        ),
        (
            objects("pods", "*"),
            "coppice_wanted_replicas",
            "",
            404,
            "as an External metric",
        ),
        (
            objects("podcliques.grove.io", "absent"),
            METRIC,
            "",
            404,
            "no ready endpoint",
        ),
    ] {
        let refusal = ask(&sources, subject, metric, selector, "").unwrap_err();
        assert_eq!(
            refusal.code(),
            StatusCode::from_u16(code).unwrap(),
            "{refusal:?}"
        );
        assert!(refusal.message().contains(part), "{refusal:?}");
    }
    let unlisted = crate::fixtures::sources();
    let refusal = ask(&unlisted, objects("pods", "a"), METRIC, "", "").unwrap_err();
    assert!(
        refusal.code() == 503 && refusal.message().contains("still being listed"),
        "{refusal:?}"
    );
}

/// One value for what pods belong to, with the external API's rules: a pod that is silent counts against the quorum.
#[tokio::test]
async fn an_objects_value_is_the_one_over_its_pods() {
    let sources = pods();
    let set = ask(
        &sources,
        objects("podcliquesets.grove.io", "chat"),
        METRIC,
        "",
        "",
    );
    assert_eq!(
        set.unwrap_err().code(),
        503,
        "half of its pods is no quorum"
    );
    list_pods(
        &sources,
        &[TestPod {
            name: "decode-1",
            labels: CLIQUE,
            waiting: Some(4),
        }],
    );
    for (subject, kind, name, value) in [
        (
            objects("podcliques.grove.io", "chat-0-decode"),
            "PodClique",
            "chat-0-decode",
            "10",
        ),
        // The pod `other` has the set's name in its label and is not the operator's.
        (
            objects("podcliquesets.grove.io", "chat"),
            "PodCliqueSet",
            "chat",
            "10",
        ),
        (Subject::Namespace, "Namespace", "serving", "11"),
        (objects("pods", "decode-1"), "Pod", "decode-1", "4"),
    ] {
        let answer = ask(&sources, subject, METRIC, "", "");
        assert_eq!(items(answer).await, (one(kind, name, value), vec![]));
    }
}

#[tokio::test]
async fn series_are_selected_apart_from_objects() {
    let sources = pods();
    let narrowed = |series: &str| {
        ask(
            &sources,
            objects("pods", "*"),
            METRIC,
            "pod=decode-0",
            series,
        )
    };
    let (found, _) = items(narrowed("model_id=qwen-qwen3")).await;
    assert_eq!(found, one("Pod", "decode-0", "6"));
    assert_eq!(narrowed("model_id=other").unwrap_err().code(), 404);
    let named = ask(
        &sources,
        objects("pods", "decode-0"),
        METRIC,
        "app=decode",
        "",
    );
    let refusal = named.unwrap_err();
    assert_eq!(refusal.code(), 400);
    assert!(
        refusal.message().contains("metricLabelSelector"),
        "{refusal:?}"
    );
}

/// The time is that of the sample, not of the question.
#[tokio::test]
async fn an_item_says_when_its_sample_was_taken() {
    let sources = sources();
    list_pods(
        &sources,
        &[TestPod {
            name: "a",
            labels: &[],
            waiting: None,
        }],
    );
    let taken = sources.signals.now() - SignedDuration::from_secs(20);
    let body = b"vllm:num_requests_running 1\nvllm:num_requests_waiting 2\n";
    sources
        .signals
        .ingest(&Default::default(), body, taken)
        .unwrap();
    let response = ask(&sources, objects("pods", "a"), METRIC, "", "").unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let list: Json = serde_json::from_slice(&body).unwrap();
    assert_eq!(list["items"][0]["timestamp"], json!(format!("{taken:.0}")));
    assert_eq!(list["items"][0].get("windowSeconds"), None, "a snapshot");
}
