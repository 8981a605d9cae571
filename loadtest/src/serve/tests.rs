use std::time::{Duration, Instant};

use futures::StreamExt;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::hosted;
use super::instance::Neighbours;
use super::testing::*;
use crate::openai::{CACHED_TOKENS_HEADER, ENGINE_HEADER, PROMPT_TOKENS_HEADER};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

#[tokio::test]
async fn a_chat_stream_is_tokens_usage_and_done() {
    let engine = TestEngine::start(config(&["--name=e1"])).await;
    let events = stream(&engine.url(CHAT), &chat(30, 12)).await;
    let usage = events.last().unwrap();
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(
        usage["usage"],
        json!({"prompt_tokens": 30, "completion_tokens": 12, "total_tokens": 42, "prompt_tokens_details": {"cached_tokens": 0}})
    );
    let chunks = &events[..events.len() - 1];
    assert_eq!(
        chunks[0]["choices"][0]["delta"],
        json!({"role": "assistant", "content": ""})
    );
    let texts: Vec<&str> = chunks[1..]
        .iter()
        .map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().unwrap())
        .collect();
    assert_eq!(texts.len(), 12);
    assert!(texts.iter().all(|text| !text.is_empty()));
    let reasons: Vec<&Value> = chunks
        .iter()
        .map(|chunk| &chunk["choices"][0]["finish_reason"])
        .collect();
    assert!(reasons[..12].iter().all(|reason| reason.is_null()) && reasons[12] == "length");
    assert!(
        chunks
            .iter()
            .all(|chunk| chunk["id"] == chunks[0]["id"]
                && chunk["object"] == "chat.completion.chunk")
    );
}

#[tokio::test]
async fn a_whole_answer_says_who_made_it_and_what_was_cached() {
    let engine = TestEngine::start(config(&["--name=e1"])).await;
    let response = client()
        .post(engine.url(COMPLETIONS))
        .header(PROMPT_TOKENS_HEADER, "3000")
        .header(CACHED_TOKENS_HEADER, "1000")
        .json(&json!({"model": "sim", "prompt": "short", "max_completion_tokens": 7}))
        .send()
        .await
        .unwrap();
    assert_eq!(response.headers()[ENGINE_HEADER], "e1");
    let answer: Value = response.json().await.unwrap();
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(
        answer["choices"][0]["text"]
            .as_str()
            .unwrap()
            .split(' ')
            .count(),
        7
    );
    assert_eq!(answer["usage"]["prompt_tokens"], 3000);
    assert_eq!(
        answer["usage"]["prompt_tokens_details"]["cached_tokens"],
        1000
    );
    assert_eq!(answer["kv_transfer_params"], Value::Null);
    assert_eq!(engine.metric("vllm:prompt_tokens_total").await, 3000.0);
    // Whole blocks of 16.
    assert_eq!(engine.metric("vllm:prefix_cache_hits_total").await, 992.0);
}

#[tokio::test]
async fn tokens_come_at_the_models_pace() {
    // 50 tokens of 20 ms.
    let engine = TestEngine::start(slow_config(20.0, &[])).await;
    let begin = Instant::now();
    let response = post(&engine.url(CHAT), &chat(10, 50)).await;
    let mut body = response.bytes_stream();
    body.next().await.unwrap().unwrap();
    let first = begin.elapsed();
    let mut parts = 1;
    while let Some(part) = body.next().await {
        part.unwrap();
        parts += 1;
    }
    let whole = begin.elapsed();
    assert!(
        first >= Duration::from_millis(20) && first < Duration::from_millis(500),
        "{first:?}"
    );
    assert!(
        whole >= Duration::from_millis(1000) && whole < Duration::from_millis(2500),
        "{whole:?}"
    );
    assert!(parts > 25, "tokens do not come in heaps: {parts} parts");
    // The engine's own times are exact, however late this machine delivers.
    let itl = engine.metric("vllm:inter_token_latency_seconds_sum").await;
    assert!((itl - 49.0 * 0.02).abs() < 1e-6, "{itl}");
}

#[tokio::test]
async fn what_cannot_be_served_is_an_openai_error() {
    let engine = TestEngine::start(config(&["--model=m"])).await;
    for (body, status, kind, part) in [
        (
            json!({"model": "other", "prompt": "x"}),
            404,
            "NotFoundError",
            "\"other\"",
        ),
        (
            json!({"model": "m", "prompt": "x", "max_tokens": 40000}),
            400,
            "BadRequestError",
            "context of 32768",
        ),
        (
            json!({"model": "m"}),
            400,
            "BadRequestError",
            "prompt is missing",
        ),
        (
            json!({"model": "m", "prompt": ["a", "b"]}),
            400,
            "BadRequestError",
            "several prompts",
        ),
    ] {
        let response = post(&engine.url(COMPLETIONS), &body).await;
        assert_eq!(response.status(), status);
        let error: Value = response.json().await.unwrap();
        assert_eq!(
            (
                error["error"]["type"].as_str().unwrap(),
                error["error"]["code"].as_u64()
            ),
            (kind, Some(status.into()))
        );
        assert!(
            error["error"]["message"].as_str().unwrap().contains(part),
            "{error}"
        );
    }
    let failed = text(&engine.url("/metrics")).await;
    assert!(
        failed.contains(
            r#"http_requests_total{handler="/v1/completions",method="POST",status="4xx"} 4.0"#
        ),
        "{failed}"
    );
}

#[tokio::test]
async fn the_model_is_listed_and_the_engine_is_healthy() {
    let engine = TestEngine::start(config(&["--model=org/m"])).await;
    let models: Value = serde_json::from_str(&text(&engine.url("/v1/models")).await).unwrap();
    assert_eq!(models["data"][0]["id"], "org/m");
    assert_eq!(models["data"][0]["max_model_len"], 32768);
    assert_eq!(
        client()
            .get(engine.url("/health"))
            .send()
            .await
            .unwrap()
            .status(),
        200
    );
}

#[tokio::test]
async fn a_client_that_goes_away_aborts_its_request() {
    let engine = TestEngine::start(config(&[])).await;
    let mut body = post(&engine.url(CHAT), &chat(10, 30_000))
        .await
        .bytes_stream();
    body.next().await.unwrap().unwrap();
    assert_eq!(engine.metric("vllm:num_requests_running").await, 1.0);
    drop(body);
    eventually("the request is gone", async || {
        engine.metric("vllm:num_requests_running").await == 0.0
    })
    .await;
    let body = text(&engine.url("/metrics")).await;
    assert!(
        body.contains(r#"finished_reason="abort",model_name="sim"} 1.0"#),
        "{body}"
    );
    assert_eq!(metric(&body, "vllm:kv_cache_usage_perc"), 0.0);
}

#[tokio::test]
async fn a_client_that_goes_away_before_its_answer_aborts_its_request() {
    let engine = TestEngine::start(config(&[])).await;
    let mut body = chat(10, 30_000);
    body["stream"] = false.into();
    let asking = tokio::spawn({
        let url = engine.url(CHAT);
        async move { post(&url, &body).await.status() }
    });
    eventually("it runs", async || {
        engine.metric("vllm:num_requests_running").await == 1.0
    })
    .await;
    asking.abort();
    eventually("the request is gone", async || {
        engine.metric("vllm:num_requests_running").await == 0.0
    })
    .await;
}

#[tokio::test]
async fn a_draining_engine_finishes_and_refuses() {
    let engine = TestEngine::start(config(&[])).await;
    let mut body = post(&engine.url(CHAT), &chat(10, 200)).await.bytes_stream();
    body.next().await.unwrap().unwrap();
    engine.drain.cancel();
    eventually("it is unhealthy", async || {
        client()
            .get(engine.url("/health"))
            .send()
            .await
            .is_ok_and(|response| response.status() == 503)
    })
    .await;
    let refused = post(&engine.url(CHAT), &chat(10, 5)).await;
    assert_eq!(refused.status(), 503);
    assert_eq!(refused.headers()["retry-after"], "1");
    let mut answer = String::new();
    while let Some(part) = body.next().await {
        answer.push_str(std::str::from_utf8(&part.unwrap()).unwrap());
    }
    assert!(answer.ends_with("data: [DONE]\n\n"));
    let url = engine.url("/health");
    eventually("it has ended", async || {
        client().get(&url).send().await.is_err()
    })
    .await;
}

#[tokio::test]
async fn draining_ends_with_its_grace() {
    let engine = TestEngine::start(config(&[])).await;
    let mut body = post(&engine.url(CHAT), &chat(10, 30_000))
        .await
        .bytes_stream();
    body.next().await.unwrap().unwrap();
    engine.grace.send_replace(Some(Duration::from_millis(50)));
    engine.drain.cancel();
    let rest = tokio::time::timeout(DEADLINE, async {
        while let Some(part) = body.next().await {
            part?;
        }
        Ok::<_, reqwest::Error>(())
    });
    assert!(
        rest.await.expect("the connection is closed").is_err(),
        "the answer was cut off"
    );
}

#[tokio::test]
async fn frozen_metrics_stand_still_and_thaw() {
    let engine = TestEngine::start(config(&[])).await;
    let before = text(&engine.url("/metrics")).await;
    engine.frozen.send_replace(true);
    stream(&engine.url(CHAT), &chat(10, 5)).await;
    assert_eq!(
        metric(
            &text(&engine.url("/metrics")).await,
            "vllm:generation_tokens_total"
        ),
        metric(&before, "vllm:generation_tokens_total")
    );
    engine.frozen.send_replace(false);
    eventually("it thaws", async || {
        engine.metric("vllm:generation_tokens_total").await == 5.0
    })
    .await;
}

#[tokio::test]
async fn without_a_limit_an_answer_has_the_default_length_and_stops_by_probability() {
    let engine = TestEngine::start(config(&["--default-max-tokens=9"])).await;
    let answer: Value = post(&engine.url(COMPLETIONS), &json!({"prompt": "x"}))
        .await
        .json()
        .await
        .unwrap();
    assert_eq!(
        (
            &answer["usage"]["completion_tokens"],
            &answer["choices"][0]["finish_reason"]
        ),
        (&json!(9), &json!("length"))
    );

    let stopping = TestEngine::start(config(&["--stop-probability=0.5"])).await;
    let ask = async |more: Value| {
        let mut body = json!({"prompt": "x", "max_tokens": 60});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let answer: Value = post(&stopping.url(COMPLETIONS), &body)
            .await
            .json()
            .await
            .unwrap();
        (
            answer["usage"]["completion_tokens"].as_u64().unwrap(),
            answer["choices"][0]["finish_reason"].clone(),
        )
    };
    let (tokens, reason) = ask(json!({})).await;
    assert!(tokens < 60 && reason == "stop");
    assert_eq!(
        ask(json!({"ignore_eos": true})).await,
        (60, json!("length"))
    );
    assert!(ask(json!({"min_tokens": 30})).await.0 >= 30);
}

/// Prefill, then decode, as a P/D proxy does it.
async fn split(prefill: &TestEngine, decode: &TestEngine) -> Vec<Value> {
    let mut first = chat(500, 1);
    first["stream"] = false.into();
    first["kv_transfer_params"] =
        json!({"do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null});
    let answer: Value = post(&prefill.url(CHAT), &first).await.json().await.unwrap();
    let transfer = &answer["kv_transfer_params"];
    assert_eq!(
        (&transfer["do_remote_prefill"], &transfer["remote_host"]),
        (&json!(true), &json!("127.0.0.1"))
    );
    assert_eq!(transfer["remote_port"], prefill.address.port());
    assert_eq!(transfer["remote_request_id"], answer["id"]);
    assert!(
        prefill.metric("vllm:kv_cache_usage_perc").await > 0.0,
        "the KV is kept"
    );
    let mut second = chat(500, 8);
    second["kv_transfer_params"] = transfer.clone();
    stream(&decode.url(CHAT), &second).await
}

#[tokio::test]
async fn kv_is_handed_over_and_then_forgotten() {
    // Engines of one process know each other; others are told over HTTP.
    let shared = Neighbours::default();
    for (of_prefill, of_decode) in [
        (shared.clone(), shared),
        (Neighbours::default(), Neighbours::default()),
    ] {
        let prefill =
            TestEngine::start_among(config(&["--role=prefill", "--name=p"]), of_prefill).await;
        let decode =
            TestEngine::start_among(config(&["--role=decode", "--name=d"]), of_decode).await;
        let events = split(&prefill, &decode).await;
        assert_eq!(events.last().unwrap()["usage"]["completion_tokens"], 8);
        eventually("the KV is forgotten", async || {
            prefill.metric("vllm:kv_cache_usage_perc").await == 0.0
        })
        .await;
        let body = text(&decode.url("/metrics")).await;
        assert!(
            body.contains(r#"source="external_kv_transfer"} 499.0"#),
            "{body}"
        );
        assert!(body.contains(r#"source="local_compute"} 1.0"#), "{body}");
        assert_eq!(metric(&body, "vllm:nixl_xfer_time_seconds_count"), 1.0);
        assert_eq!(
            metric(&body, "vllm:nixl_num_failed_notifications_total"),
            0.0
        );
    }
}

#[tokio::test]
async fn kv_that_nobody_fetches_expires() {
    let prefill = TestEngine::start(config(&["--role=prefill", "--kv-kept-for=100ms"])).await;
    let body = json!({"prompt": "x ".repeat(500), "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": true}});
    post(&prefill.url(COMPLETIONS), &body).await;
    eventually("it expires", async || {
        prefill.metric("vllm:nixl_num_kv_expired_reqs_total").await == 1.0
    })
    .await;
    assert_eq!(prefill.metric("vllm:kv_cache_usage_perc").await, 0.0);
}

#[tokio::test]
async fn a_prefill_engine_drains_when_its_kv_is_fetched() {
    let prefill = TestEngine::start(config(&["--role=prefill"])).await;
    let body = json!({"prompt": "x ".repeat(500), "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": true}});
    let answer: Value = post(&prefill.url(COMPLETIONS), &body)
        .await
        .json()
        .await
        .unwrap();
    prefill.drain.cancel();
    eventually("it drains", async || {
        client()
            .get(prefill.url("/health"))
            .send()
            .await
            .unwrap()
            .status()
            == 503
    })
    .await;
    let release = prefill.url(&format!(
        "/internal/kv/release/{}",
        answer["id"].as_str().unwrap()
    ));
    assert_eq!(client().post(&release).send().await.unwrap().status(), 204);
    let url = prefill.url("/health");
    eventually("it has ended", async || {
        client().get(&url).send().await.is_err()
    })
    .await;
}

#[tokio::test]
async fn metrics_have_the_shape_of_vllms() {
    for (role, expected) in [
        (
            "aggregated",
            include_str!("../../testdata/shapes/vllm-0.33.0-aggregated.txt"),
        ),
        (
            "prefill",
            include_str!("../../testdata/shapes/vllm-0.33.0-prefill.txt"),
        ),
        (
            "decode",
            include_str!("../../testdata/shapes/vllm-0.33.0-decode.txt"),
        ),
    ] {
        let engine = TestEngine::start(config(&["--role", role])).await;
        stream(&engine.url(CHAT), &chat(10, 5)).await;
        let response = client().get(engine.url("/metrics")).send().await.unwrap();
        assert_eq!(
            response.headers()["content-type"],
            "text/plain; version=1.0.0; charset=utf-8"
        );
        let body = response.text().await.unwrap();
        let made = shape(&body, |family| family.starts_with("vllm:"));
        for (made, expected) in made.lines().zip(expected.lines()) {
            assert_eq!(made, expected, "{role}");
        }
        assert_eq!(made.lines().count(), expected.lines().count(), "{role}");
    }
}

#[tokio::test]
async fn metrics_count_what_was_done() {
    let engine = TestEngine::start(config(&[])).await;
    for _ in 0..3 {
        stream(&engine.url(CHAT), &chat(20, 10)).await;
    }
    let body = text(&engine.url("/metrics")).await;
    for (name, value) in [
        ("vllm:prompt_tokens_total", 60.0),
        ("vllm:generation_tokens_total", 30.0),
        ("vllm:request_success_total", 3.0),
        ("vllm:time_to_first_token_seconds_count", 3.0),
        ("vllm:inter_token_latency_seconds_count", 27.0),
        ("vllm:e2e_request_latency_seconds_count", 3.0),
        ("vllm:request_prompt_tokens_sum", 60.0),
        ("vllm:iteration_tokens_total_sum", 90.0),
        ("vllm:num_requests_running", 0.0),
        ("vllm:num_requests_waiting", 0.0),
        ("http_requests_total", 3.0),
    ] {
        assert_eq!(metric(&body, name), value, "{name}");
    }
    assert!(
        body.contains(r#"kv_cache_size_tokens="320000""#)
            && body.contains(r#"num_gpu_blocks="20000""#)
    );
}

/// A host of engines, spoken to as the fleet does.
struct TestHost {
    orders: mpsc::UnboundedSender<String>,
    notices: mpsc::UnboundedReceiver<String>,
}

impl TestHost {
    fn start() -> Self {
        let (orders, received) = mpsc::unbounded_channel();
        let (sent, notices) = mpsc::unbounded_channel();
        tokio::spawn(hosted::run(received, sent));
        Self { orders, notices }
    }

    fn order(&self, order: &Value) {
        self.orders.send(order.to_string()).unwrap();
    }

    async fn notice(&mut self) -> Value {
        let line = tokio::time::timeout(DEADLINE, self.notices.recv())
            .await
            .expect("a notice comes")
            .unwrap();
        serde_json::from_str(&line).unwrap()
    }
}

#[tokio::test]
async fn a_host_starts_drains_and_stops_engines() {
    let mut host = TestHost::start();
    let start = |id: &str, address: &str| json!({"op": "start", "id": id, "address": address, "args": ["--model=sim"]});
    host.order(&start("n/a", "127.64.0.1:18000"));
    assert_eq!(
        host.notice().await,
        json!({"event": "listening", "id": "n/a"})
    );
    host.order(&start("n/b", "127.64.0.2:18000"));
    assert_eq!(
        host.notice().await,
        json!({"event": "listening", "id": "n/b"})
    );
    let response = post(
        "http://127.64.0.2:18000/v1/completions",
        &json!({"prompt": "x", "max_tokens": 2}),
    )
    .await;
    assert_eq!(response.headers()[ENGINE_HEADER], "n/b");

    host.order(&json!({"op": "freezeMetrics", "id": null, "frozen": true}));
    host.order(&json!({"op": "drain", "id": "n/a", "graceSeconds": 5}));
    assert_eq!(
        host.notice().await,
        json!({"event": "drained", "id": "n/a"})
    );
    host.order(&start("n/a", "127.64.0.1:18000"));
    assert_eq!(
        host.notice().await,
        json!({"event": "listening", "id": "n/a"})
    );

    host.order(&json!({"op": "stop", "id": "n/b"}));
    eventually("it is gone", async || {
        client()
            .get("http://127.64.0.2:18000/health")
            .send()
            .await
            .is_err()
    })
    .await;
    drop(host.orders);
    eventually("all are gone", async || {
        client()
            .get("http://127.64.0.1:18000/health")
            .send()
            .await
            .is_err()
    })
    .await;
}

#[tokio::test]
async fn a_host_says_what_it_cannot_do() {
    let mut host = TestHost::start();
    let blocker = tokio::net::TcpListener::bind("127.64.0.3:18000")
        .await
        .unwrap();
    for (order, id, part) in [
        (
            json!({"op": "start", "id": "x", "address": "127.64.0.3:18000", "args": []}),
            Some("x"),
            "cannot listen on 127.64.0.3:18000",
        ),
        (
            json!({"op": "start", "id": "x", "address": "127.64.0.4:18000", "args": ["--role=router"]}),
            Some("x"),
            "--role",
        ),
        (
            json!({"op": "start", "id": "x", "address": "nowhere", "args": []}),
            Some("x"),
            "not valid",
        ),
        (json!({"op": "sleep", "id": "y"}), Some("y"), "sleep"),
        (
            json!({"op": "drain", "id": "z"}),
            Some("z"),
            "no such engine",
        ),
        (
            json!({"op": "stop", "id": "z"}),
            Some("z"),
            "no such engine",
        ),
        (json!({"hello": 1}), None, "not valid"),
    ] {
        host.order(&order);
        let notice = host.notice().await;
        assert_eq!(
            (notice["event"].as_str(), notice["id"].as_str()),
            (Some("failed"), id),
            "{order}"
        );
        assert!(
            notice["error"].as_str().unwrap().contains(part),
            "{order}: {notice}"
        );
    }
    drop(blocker);
}

#[tokio::test]
async fn a_host_serves_many_engines() {
    let mut host = TestHost::start();
    let address = |index: u32| format!("127.64.{}.{}:18000", 1 + index / 200, 1 + index % 200);
    for index in 0..400 {
        host.order(&json!({"op": "start", "id": format!("n/{index}"), "address": address(index), "args": []}));
    }
    for _ in 0..400 {
        assert_eq!(host.notice().await["event"], "listening");
    }
    let ask = async |index: u32| {
        let url = format!("http://{}/v1/completions", address(index));
        let response = post(&url, &json!({"prompt": "x", "max_tokens": 3})).await;
        assert_eq!(response.headers()[ENGINE_HEADER], format!("n/{index}"));
        response.json::<Value>().await.unwrap()["usage"]["completion_tokens"].as_u64()
    };
    let answers = futures::future::join_all((0..400).step_by(7).map(ask)).await;
    assert!(answers.iter().all(|tokens| *tokens == Some(3)));
}
