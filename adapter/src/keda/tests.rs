use std::collections::HashMap;

use axum::body::Body;
use axum::http::{Request, Uri};
use coppice_runtime::tls::Source;
use coppice_signals::WatchId;
use tokio_util::sync::DropGuard;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Identity};
use tonic::{Code, Streaming};
use tower::ServiceExt;

use super::proto::external_scaler_client::ExternalScalerClient;
use super::proto::{
    GetMetricsRequest, GetMetricsResponse, IsActiveResponse, MetricSpec, MetricValue,
    ScaledObjectRef,
};
use super::*;
use crate::fixtures::{TestCa, TestPod, list_pods, sources};

/// The committed code is what the definition gives, made without protoc.
#[test]
fn the_generated_code_is_that_of_the_definition() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let definition = protox::compile(["externalscaler.proto"], [root.join("proto")]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    tonic_prost_build::configure()
        .build_transport(false)
        // Only these tests call the service.
        .client_mod_attribute(".", "#[cfg(test)]")
        .out_dir(folder.path())
        .compile_fds(definition)
        .unwrap();
    let generated = std::fs::read_to_string(folder.path().join("externalscaler.rs")).unwrap();
    let committed = root.join("src/keda/externalscaler.rs");
    if std::env::var_os("COPPICE_GENERATE").is_some() {
        std::fs::write(&committed, &generated).unwrap();
    }
    assert!(
        std::fs::read_to_string(&committed).unwrap() == generated,
        "src/keda/externalscaler.rs is not what proto/externalscaler.proto gives: run this test with COPPICE_GENERATE=1"
    );
}

const METRIC: &str = "coppice_requests_waiting";

fn object(metadata: &[(&str, &str)]) -> ScaledObjectRef {
    let metadata = metadata.iter();
    ScaledObjectRef {
        name: "chat".into(),
        namespace: "serving".into(),
        scaler_metadata: metadata
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect(),
    }
}

fn trigger() -> ScaledObjectRef {
    object(&[
        ("metric", METRIC),
        ("selector", "app=decode"),
        ("targetValue", "2.5"),
    ])
}

/// One pod that is asked about, and what waits there.
fn waiting(sources: &Sources, requests: Option<u32>) -> WatchId {
    let pod = TestPod {
        name: "decode-0",
        labels: &[("app", "decode")],
        waiting: requests,
    };
    list_pods(sources, &[pod])
}

/// A server, until it is dropped.
struct Server {
    address: SocketAddr,
    serving: tokio::task::JoinHandle<()>,
    stop: CancellationToken,
    _guard: DropGuard,
}

impl Server {
    async fn start(sources: &Sources, places: usize, tls: Option<Arc<ServerConfig>>) -> Self {
        let stop = CancellationToken::new();
        let look = Duration::from_millis(5);
        let app = router(Scaler::new(sources.clone(), places, look, stop.clone()));
        let (listener, address) = server::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let (limits, ending) = (Limits::default(), stop.clone());
        let serving = tokio::spawn(async move {
            match tls {
                Some(tls) => server::serve_https(listener, tls, app, limits, ending).await,
                None => server::serve_http(listener, app, limits, ending).await,
            }
        });
        Self {
            address,
            serving,
            _guard: stop.clone().drop_guard(),
            stop,
        }
    }

    async fn plain(sources: &Sources, places: usize) -> (Self, ExternalScalerClient<Channel>) {
        let server = Self::start(sources, places, None).await;
        let channel = Channel::builder(server.uri("http"))
            .connect()
            .await
            .unwrap();
        (server, ExternalScalerClient::new(channel))
    }

    fn uri(&self, scheme: &str) -> Uri {
        let Self { address, .. } = self;
        format!("{scheme}://{address}").parse().unwrap()
    }
}

async fn value(
    client: &mut ExternalScalerClient<Channel>,
    name: &str,
) -> Result<GetMetricsResponse, Status> {
    let request = GetMetricsRequest {
        scaled_object_ref: Some(trigger()),
        metric_name: name.to_owned(),
    };
    client
        .get_metrics(request)
        .await
        .map(tonic::Response::into_inner)
}

#[tokio::test]
async fn values_targets_and_activity_are_those_of_the_trigger() {
    let sources = sources();
    waiting(&sources, Some(7));
    let (_server, mut client) = Server::plain(&sources, 10).await;
    let spec = client.get_metric_spec(trigger()).await.unwrap();
    assert_eq!(
        spec.into_inner().metric_specs,
        [MetricSpec {
            metric_name: METRIC.into(),
            target_size: 3,
            target_size_float: 2.5,
        }]
    );
    assert_eq!(
        value(&mut client, METRIC).await.unwrap().metric_values,
        [MetricValue {
            metric_name: METRIC.into(),
            metric_value: 7,
            metric_value_float: 7.0,
        }]
    );
    for (activation, result) in [("0", true), ("6.9", true), ("7", false)] {
        let mut trigger = trigger();
        let metadata = &mut trigger.scaler_metadata;
        metadata.insert("activationTargetValue".into(), activation.into());
        let answer = client.is_active(trigger).await.unwrap().into_inner();
        assert_eq!(answer, IsActiveResponse { result }, "above {activation}");
    }
    let mut elsewhere = trigger();
    elsewhere.namespace = "other".into();
    let status = client.is_active(elsewhere).await.unwrap_err();
    assert_eq!(
        status.code(),
        Code::Unavailable,
        "another namespace's pods are not told: {status}"
    );
}

#[tokio::test]
async fn a_missing_value_is_unavailable_and_never_zero() {
    let sources = sources();
    let (_server, mut client) = Server::plain(&sources, 10).await;
    for part in ["still being listed", "not scraped yet"] {
        for status in [
            value(&mut client, METRIC).await.unwrap_err(),
            client.is_active(trigger()).await.unwrap_err(),
        ] {
            assert_eq!(status.code(), Code::Unavailable);
            assert!(status.message().contains(part), "{status}");
        }
        waiting(&sources, None);
    }
    // What a trigger asks for is known all the same.
    assert!(client.get_metric_spec(trigger()).await.is_ok());
}

#[tokio::test]
async fn what_cannot_be_asked_for_is_an_invalid_argument() {
    let (_server, mut client) = Server::plain(&sources(), 10).await;
    let broken = object(&[("metric", METRIC), ("targetValue", "many")]);
    let expected =
        "scalerMetadata.targetValue: \"many\": write a number up to 9e15, such as 5 or 0.8";
    for status in [
        client.is_active(broken.clone()).await.unwrap_err(),
        client.get_metric_spec(broken.clone()).await.unwrap_err(),
        client.stream_is_active(broken.clone()).await.unwrap_err(),
    ] {
        assert_eq!(
            (status.code(), status.message()),
            (Code::InvalidArgument, expected)
        );
    }
    let status = value(&mut client, "another").await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(
        status
            .message()
            .contains("\"another\": this trigger has one metric"),
        "{status}"
    );
    let nobody = GetMetricsRequest::default();
    assert_eq!(
        client.get_metrics(nobody).await.unwrap_err().code(),
        Code::InvalidArgument
    );
}

#[tokio::test]
async fn messages_are_bounded() {
    let (_server, mut client) = Server::plain(&sources(), 10).await;
    let large = object(&[("metric", &"m".repeat(MAX_MESSAGE_BYTES))]);
    let status = client.is_active(large).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
}

async fn next(stream: &mut Streaming<IsActiveResponse>) -> Result<bool, Status> {
    let message = tokio::time::timeout(Duration::from_secs(30), stream.message());
    let message = message.await.expect("a message in time")?;
    Ok(message.expect("the stream goes on").result)
}

#[tokio::test]
async fn a_stream_pushes_changes_and_says_nothing_while_nothing_is_known() {
    let sources = sources();
    let (server, mut client) = Server::plain(&sources, 10).await;
    // Opened before anything is known.
    let mut stream = client
        .stream_is_active(trigger())
        .await
        .unwrap()
        .into_inner();
    let watch = waiting(&sources, Some(3));
    assert!(next(&mut stream).await.unwrap());
    sources.signals.end_watch(watch);
    // Twenty looks: the pod is gone, which is no zero.
    let silence = tokio::time::timeout(Duration::from_millis(100), stream.message());
    assert!(silence.await.is_err(), "a message about what is not known");
    waiting(&sources, Some(0));
    assert!(!next(&mut stream).await.unwrap());
    // A server that ends says so; the client opens a stream elsewhere.
    server.stop.cancel();
    assert_eq!(
        next(&mut stream).await.unwrap_err().code(),
        Code::Unavailable
    );
    server.serving.await.unwrap();
}

#[tokio::test]
async fn streams_are_bounded_and_a_closed_one_makes_room() {
    let sources = sources();
    let (_server, mut client) = Server::plain(&sources, 1).await;
    let first = client.stream_is_active(trigger()).await.unwrap();
    let status = client.stream_is_active(trigger()).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("--keda-max-streams"), "{status}");
    drop(first);
    let opened = async {
        while client.stream_is_active(trigger()).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), opened)
        .await
        .expect("room after a stream has gone");
}

#[tokio::test]
async fn other_methods_are_unimplemented() {
    let stop = CancellationToken::new();
    let app = router(Scaler::new(sources(), 1, LOOK, stop));
    for path in [
        "/externalscaler.ExternalScaler/StreamMetricSpec",
        "/other.Service/Method",
    ] {
        let request = Request::post(path)
            .header("content-type", "application/grpc")
            .body(Body::empty())
            .unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        assert_eq!(response.headers()["grpc-status"], "12", "{path}");
    }
}

#[tokio::test]
async fn with_tls_the_server_proves_who_it_is_and_asks_who_calls() {
    let sources = sources();
    waiting(&sources, Some(7));
    let stop = CancellationToken::new();
    let _guard = stop.clone().drop_guard();
    let names = vec!["localhost".to_owned()];
    let tls = Tls::start(Source::SelfIssued { names }, stop.clone())
        .await
        .unwrap();
    let bundle = tls.ca_bundle().borrow().clone().expect("self-issued");
    let folder = tempfile::tempdir().unwrap();
    let (known, stranger) = (TestCa::new("known"), TestCa::new("stranger"));
    let path = folder.path().join("ca.crt");
    std::fs::write(&path, known.pem()).unwrap();
    let verified = ClientAuth::Verified(clients::follow(&path, stop.clone()).unwrap());
    let as_keda = |authority: &TestCa| {
        let (certificate, key) = authority.identity("keda-operator");
        Identity::from_pem(certificate, key)
    };
    for (auth, identity, is_served) in [
        (ClientAuth::Off, None, true),
        (verified.clone(), Some(as_keda(&known)), true),
        (verified.clone(), Some(as_keda(&stranger)), false),
        (verified, None, false),
    ] {
        let config = tls.server_config(MinVersion::Tls13, auth).unwrap();
        let server = Server::start(&sources, 10, Some(config)).await;
        let mut trust = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(bundle.as_bytes()))
            .domain_name("localhost");
        if let Some(identity) = identity {
            trust = trust.identity(identity);
        }
        let channel = Channel::builder(server.uri("https"))
            .tls_config(trust)
            .unwrap();
        // In TLS 1.3 a client learns only with its first call that it was refused.
        let outcome = async {
            let channel = channel.connect().await.map_err(|error| error.to_string())?;
            let mut client = ExternalScalerClient::new(channel);
            let answer = client.is_active(trigger()).await;
            answer.map_err(|status| status.to_string())
        };
        let outcome: Result<_, String> = outcome.await;
        assert_eq!(outcome.is_ok(), is_served, "{outcome:?}");
    }
}

/// The sample's trigger is one that this scaler takes, at the address that `manifests` gives it.
#[test]
fn the_samples_trigger_works() {
    let text = include_str!("../../../samples/keda.yaml");
    let mut triggers = 0;
    for document in coppice_testbed::parse_yaml(text).unwrap() {
        if document
            .types
            .as_ref()
            .is_none_or(|types| types.kind != "ScaledObject")
        {
            continue;
        }
        for of_sample in document.data["spec"]["triggers"].as_array().unwrap() {
            triggers += 1;
            assert_eq!(of_sample["type"], "external-push");
            let metadata: HashMap<String, String> =
                serde_json::from_value(of_sample["metadata"].clone()).unwrap();
            assert_eq!(
                metadata["scalerAddress"],
                "coppice-adapter.coppice-system.svc:6565"
            );
            let read = trigger::Trigger::read(&ScaledObjectRef {
                name: "chat".into(),
                namespace: "serving".into(),
                scaler_metadata: metadata,
            });
            assert!(read.is_ok(), "{read:?}");
        }
    }
    assert_eq!(triggers, 1);
}
