use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use coppice_runtime::health::Readiness;
use coppice_runtime::server::{Limits, bind, serve_http};
use futures::StreamExt;
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::forward::Forwarder;
use super::models::{Hold, Model, Models};
use super::routes::{Gateway, router};
use crate::drive::target::BaseUrl;
use crate::openai::{ENGINE_HEADER, PROMPT_TOKENS_HEADER};
use crate::serve::arguments::Role;
use crate::serve::testing::{
    TestEngine, chat, client, config, eventually, metric, post, shape, slow_config, stream, text,
};

const CHAT: &str = "/v1/chat/completions";

/// A gateway of one model, `sim`, on a free port.
struct TestGateway {
    address: SocketAddr,
    model: Arc<Model>,
    _running: DropGuard,
}

impl TestGateway {
    async fn start(engines: &[(Role, &TestEngine)]) -> Self {
        let gateway = Self::waiting(Duration::from_secs(20)).await;
        for role in [Role::Aggregated, Role::Prefill, Role::Decode] {
            let of_role = engines.iter().filter(|(other, _)| *other == role);
            gateway.set(
                role,
                &of_role
                    .map(|(_, engine)| engine.address)
                    .collect::<Vec<_>>(),
            );
        }
        gateway
    }

    /// Without engines; requests wait this long.
    async fn waiting(timeout: Duration) -> Self {
        let model = Arc::new(Model::new(
            "sim",
            Hold {
                timeout,
                requests: 100,
            },
        ));
        let models = Models::from([("sim".to_owned(), Arc::clone(&model))]);
        let gateway = Arc::new(Gateway {
            models,
            forwarder: Forwarder::new(),
        });
        let (listener, address) = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let draining = CancellationToken::new();
        tokio::spawn(serve_http(
            listener,
            router(gateway, Readiness::default()),
            Limits::default(),
            draining.clone(),
        ));
        Self {
            address,
            model,
            _running: draining.drop_guard(),
        }
    }

    fn set(&self, role: Role, addresses: &[SocketAddr]) {
        let engines: BTreeMap<String, BaseUrl> = addresses
            .iter()
            .map(|address| {
                (
                    address.to_string(),
                    format!("http://{address}").parse().unwrap(),
                )
            })
            .collect();
        self.model.set(role, &engines);
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    async fn metrics(&self) -> String {
        text(&self.url("/metrics")).await
    }

    async fn metric(&self, name: &str) -> f64 {
        metric(&self.metrics().await, name)
    }
}

/// An address that nothing listens on.
async fn dead_address() -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap()
}

fn contents(events: &[Value]) -> usize {
    events
        .iter()
        .filter(|event| {
            event["choices"][0]["delta"]["content"]
                .as_str()
                .is_some_and(|text| !text.is_empty())
        })
        .count()
}

#[tokio::test]
async fn requests_spread_over_the_engines() {
    let engines = [
        TestEngine::start(config(&["--name=a"])).await,
        TestEngine::start(config(&["--name=b"])).await,
    ];
    let gateway = TestGateway::start(&[
        (Role::Aggregated, &engines[0]),
        (Role::Aggregated, &engines[1]),
    ])
    .await;
    let ask = async |_| {
        let response = post(&gateway.url(CHAT), &chat(10, 100)).await;
        let engine = response.headers()[ENGINE_HEADER]
            .to_str()
            .unwrap()
            .to_owned();
        response.text().await.unwrap();
        engine
    };
    let served = futures::future::join_all((0..8).map(ask)).await;
    assert_eq!(
        served.iter().filter(|engine| *engine == "a").count(),
        4,
        "{served:?}"
    );
    let body = gateway.metrics().await;
    for (name, value) in [
        ("dynamo_frontend_requests_started_total", 8.0),
        ("dynamo_frontend_input_sequence_tokens_sum", 80.0),
        ("dynamo_frontend_output_tokens_total", 800.0),
        ("dynamo_frontend_output_sequence_tokens_sum", 800.0),
        ("dynamo_frontend_time_to_first_token_seconds_count", 8.0),
        ("dynamo_frontend_inflight_requests", 0.0),
        ("dynamo_frontend_queued_requests", 0.0),
        ("dynamo_frontend_model_ready", 1.0),
    ] {
        assert_eq!(metric(&body, name), value, "{name}");
    }
    // Tokens that came together with a first one have no gap.
    let gaps = metric(&body, "dynamo_frontend_inter_token_latency_seconds_count");
    assert!((600.0..=792.0).contains(&gaps), "{gaps}");
    let success = r#"dynamo_frontend_requests_total{endpoint="chat_completions",error_type="",model="sim",request_type="stream",status="success"} 8"#;
    assert!(body.contains(success), "{body}");
}

#[tokio::test]
async fn prefill_and_decode_serve_a_request_together() {
    let prefill = TestEngine::start(config(&["--role=prefill", "--name=p"])).await;
    let decode = TestEngine::start(config(&["--role=decode", "--name=d"])).await;
    let gateway = TestGateway::start(&[(Role::Prefill, &prefill), (Role::Decode, &decode)]).await;
    let response = client()
        .post(gateway.url(CHAT))
        .header(PROMPT_TOKENS_HEADER, "5000")
        .json(&chat(1, 20))
        .send()
        .await
        .unwrap();
    assert_eq!(response.headers()[ENGINE_HEADER], "d");
    let answer = response.text().await.unwrap();
    assert!(
        answer.contains(r#""prompt_tokens":5000"#) && answer.ends_with("data: [DONE]\n\n"),
        "{answer}"
    );

    let at_prefill = text(&prefill.url("/metrics")).await;
    assert_eq!(metric(&at_prefill, "vllm:generation_tokens_total"), 1.0);
    assert!(
        at_prefill.contains(r#"source="local_compute"} 5000.0"#),
        "{at_prefill}"
    );
    let at_decode = text(&decode.url("/metrics")).await;
    assert_eq!(metric(&at_decode, "vllm:generation_tokens_total"), 20.0);
    assert!(
        at_decode.contains(r#"source="external_kv_transfer"} 4999.0"#),
        "{at_decode}"
    );
    eventually("the KV is released", async || {
        prefill.metric("vllm:kv_cache_usage_perc").await == 0.0
    })
    .await;
    assert_eq!(
        gateway
            .metric("dynamo_frontend_input_sequence_tokens_sum")
            .await,
        5000.0
    );

    let mut whole = chat(10, 6);
    whole["stream"] = false.into();
    let answer: Value = post(&gateway.url(CHAT), &whole).await.json().await.unwrap();
    assert_eq!(answer["usage"]["completion_tokens"], 6);
    assert_eq!(
        gateway.metric("dynamo_frontend_output_tokens_total").await,
        26.0
    );
}

#[tokio::test]
async fn an_engine_that_cannot_be_reached_costs_the_client_nothing() {
    let engine = TestEngine::start(config(&[])).await;
    let gateway = TestGateway::waiting(Duration::from_secs(5)).await;
    gateway.set(
        Role::Aggregated,
        &[dead_address().await, dead_address().await, engine.address],
    );
    for _ in 0..4 {
        assert_eq!(contents(&stream(&gateway.url(CHAT), &chat(10, 5)).await), 5);
    }
    gateway.set(Role::Aggregated, &[dead_address().await]);
    let response = post(&gateway.url(CHAT), &chat(10, 5)).await;
    assert_eq!(
        (
            response.status().as_u16(),
            response.headers()["retry-after"].to_str().unwrap()
        ),
        (503, "1")
    );
    let error: Value = response.json().await.unwrap();
    assert!(
        error["error"]["message"]
            .as_str()
            .unwrap()
            .contains("could not be reached"),
        "{error}"
    );
    assert!(
        gateway
            .metrics()
            .await
            .contains(r#"error_type="unavailable""#)
    );
}

#[tokio::test]
async fn a_dead_half_of_a_pair_is_replaced() {
    let prefill = TestEngine::start(config(&["--role=prefill"])).await;
    let decode = TestEngine::start(config(&["--role=decode"])).await;
    let gateway = TestGateway::waiting(Duration::from_secs(5)).await;
    gateway.set(Role::Prefill, &[dead_address().await, prefill.address]);
    gateway.set(Role::Decode, &[dead_address().await, decode.address]);
    for _ in 0..3 {
        assert_eq!(contents(&stream(&gateway.url(CHAT), &chat(10, 5)).await), 5);
    }
}

#[tokio::test]
async fn a_draining_engine_is_passed_over() {
    let draining = TestEngine::start(config(&["--name=draining", "--drain=1m"])).await;
    let other = TestEngine::start(config(&["--name=other"])).await;
    let gateway =
        TestGateway::start(&[(Role::Aggregated, &draining), (Role::Aggregated, &other)]).await;
    // Keeps the draining engine alive.
    let mut long = post(&draining.url(CHAT), &chat(10, 30_000))
        .await
        .bytes_stream();
    long.next().await.unwrap().unwrap();
    draining.drain.cancel();
    eventually("it drains", async || {
        client()
            .get(draining.url("/health"))
            .send()
            .await
            .unwrap()
            .status()
            == 503
    })
    .await;
    for _ in 0..4 {
        let response = post(&gateway.url(CHAT), &chat(10, 5)).await;
        assert_eq!(response.headers()[ENGINE_HEADER], "other");
        response.text().await.unwrap();
    }
}

#[tokio::test]
async fn requests_wait_until_an_engine_is_ready_and_are_counted_meanwhile() {
    let gateway = TestGateway::waiting(Duration::from_secs(20)).await;
    let waiting = tokio::spawn({
        let url = gateway.url(CHAT);
        async move { stream(&url, &chat(33, 5)).await }
    });
    eventually("it is held", async || {
        gateway.metric("coppice_gateway_held_requests").await == 1.0
    })
    .await;
    let body = gateway.metrics().await;
    for (name, value) in [
        ("dynamo_frontend_requests_started_total", 1.0),
        ("dynamo_frontend_input_sequence_tokens_sum", 33.0),
        ("dynamo_frontend_queued_requests", 1.0),
        ("dynamo_frontend_model_ready", 0.0),
    ] {
        assert_eq!(metric(&body, name), value, "{name}");
    }
    let engine = TestEngine::start(config(&[])).await;
    gateway.set(Role::Aggregated, &[engine.address]);
    assert_eq!(contents(&waiting.await.unwrap()), 5);
    assert_eq!(gateway.metric("coppice_gateway_held_requests").await, 0.0);
}

#[tokio::test]
async fn waiting_ends_with_an_error_that_says_when_to_come_back() {
    let gateway = TestGateway::waiting(Duration::from_millis(50)).await;
    let response = post(&gateway.url(CHAT), &chat(10, 5)).await;
    assert_eq!(
        (
            response.status().as_u16(),
            response.headers()["retry-after"].to_str().unwrap()
        ),
        (503, "1")
    );
    assert_eq!(
        gateway.metric("dynamo_frontend_inflight_requests").await,
        0.0
    );
}

#[tokio::test]
async fn an_engine_that_dies_before_its_first_token_is_replaced() {
    // 100 s a step: the first token never comes.
    let stuck = TestEngine::start(slow_config(100_000.0, &[])).await;
    let gateway = TestGateway::start(&[(Role::Aggregated, &stuck)]).await;
    let asking = tokio::spawn({
        let url = gateway.url(CHAT);
        async move { stream(&url, &chat(10, 5)).await }
    });
    eventually("it is at the engine", async || {
        stuck.metric("vllm:num_requests_running").await == 1.0
    })
    .await;
    let other = TestEngine::start(config(&[])).await;
    gateway.set(Role::Aggregated, &[stuck.address, other.address]);
    drop(stuck);
    assert_eq!(contents(&asking.await.unwrap()), 5);
}

#[tokio::test]
async fn a_stream_that_breaks_off_says_so() {
    let engine = TestEngine::start(slow_config(5.0, &[])).await;
    let gateway = TestGateway::start(&[(Role::Aggregated, &engine)]).await;
    let mut body = post(&gateway.url(CHAT), &chat(10, 30_000))
        .await
        .bytes_stream();
    body.next().await.unwrap().unwrap();
    drop(engine);
    let mut rest = String::new();
    while let Some(part) = body.next().await {
        rest.push_str(std::str::from_utf8(&part.unwrap()).unwrap());
    }
    let last = rest.trim_end().rsplit("\n\n").next().unwrap();
    let error: Value = serde_json::from_str(last.strip_prefix("data: ").unwrap()).unwrap();
    assert!(
        error["error"]["message"]
            .as_str()
            .unwrap()
            .contains("broke off"),
        "{error}"
    );
    assert!(gateway.metrics().await.contains(r#"error_type="internal""#));
}

#[tokio::test]
async fn a_client_that_goes_away_is_counted_and_its_request_aborted() {
    let engine = TestEngine::start(config(&[])).await;
    let gateway = TestGateway::start(&[(Role::Aggregated, &engine)]).await;
    let mut body = post(&gateway.url(CHAT), &chat(10, 30_000))
        .await
        .bytes_stream();
    body.next().await.unwrap().unwrap();
    assert_eq!(
        gateway.metric("dynamo_frontend_inflight_requests").await,
        1.0
    );
    drop(body);
    eventually("the engine is free", async || {
        engine.metric("vllm:num_requests_running").await == 0.0
    })
    .await;
    eventually("it is counted", async || {
        gateway.metric("dynamo_frontend_disconnected_clients").await == 1.0
    })
    .await;
    assert_eq!(
        gateway.metric("dynamo_frontend_inflight_requests").await,
        0.0
    );
}

#[tokio::test]
async fn an_engines_refusal_reaches_the_client() {
    let engine = TestEngine::start(config(&[])).await;
    let gateway = TestGateway::start(&[(Role::Aggregated, &engine)]).await;
    let response = post(&gateway.url(CHAT), &chat(10, 40_000)).await;
    assert_eq!(response.status(), 400);
    assert!(response.text().await.unwrap().contains("context of 32768"));
    assert!(
        gateway
            .metrics()
            .await
            .contains(r#"error_type="validation""#)
    );
    let prefill = TestEngine::start(config(&["--role=prefill"])).await;
    let pair = TestGateway::start(&[(Role::Prefill, &prefill), (Role::Decode, &engine)]).await;
    assert_eq!(post(&pair.url(CHAT), &chat(10, 40_000)).await.status(), 400);
    let response = post(
        &pair.url(CHAT),
        &json!({"model": "x", "messages": [{"content": "a"}]}),
    )
    .await;
    assert_eq!(response.status(), 404);
    assert!(response.text().await.unwrap().contains("served: sim"));
}

#[tokio::test]
async fn metrics_have_the_shape_of_dynamos_frontend() {
    let engine = TestEngine::start(config(&[])).await;
    let gateway = TestGateway::start(&[(Role::Aggregated, &engine)]).await;
    stream(&gateway.url(CHAT), &chat(10, 5)).await;
    let body = gateway.metrics().await;
    let made = shape(&body, |family| family.starts_with("dynamo_frontend_"));
    let expected = include_str!("../../testdata/shapes/dynamo-frontend-1.6.1.txt");
    assert_eq!(made.trim_end(), expected.trim_end());
}

#[tokio::test]
async fn models_and_health_are_answered() {
    let gateway = TestGateway::waiting(Duration::from_secs(1)).await;
    let models: Value = serde_json::from_str(&text(&gateway.url("/v1/models")).await).unwrap();
    assert_eq!(models["data"][0]["id"], "sim");
    let health: Value = serde_json::from_str(&text(&gateway.url("/health")).await).unwrap();
    assert_eq!(health, json!({"status": "healthy", "ready_models": []}));
    assert_eq!(
        client()
            .get(gateway.url("/readyz"))
            .send()
            .await
            .unwrap()
            .status(),
        200
    );
}
