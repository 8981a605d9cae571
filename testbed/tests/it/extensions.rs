//! The API server reaches programs on this machine: an admission webhook by URL, an aggregated API through a Service of
//! type ExternalName.

use std::sync::Arc;

use anyhow::{Context, ensure};
use coppice_testbed::{Profile, apply, shared, wait};
use http::Request;
use rcgen::{CertificateParams, KeyPair};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use crate::support::LONG;

/// A server on localhost, for these names, with a certificate of its own; returns its port and the certificate as PEM.
async fn serve(names: Vec<String>) -> anyhow::Result<(u16, String)> {
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new(names)?.self_signed(&key)?;
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], private)?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(acceptor.clone(), stream));
        }
    });
    Ok((port, certificate.pem()))
}

/// One request a connection: as much HTTP as the API server needs.
async fn answer(acceptor: TlsAcceptor, stream: TcpStream) -> anyhow::Result<()> {
    let mut stream = acceptor.accept(stream).await?;
    let mut request = Vec::new();
    let (head, length) = loop {
        let mut piece = [0; 4096];
        let count = stream.read(&mut piece).await?;
        ensure!(count > 0, "the client is gone");
        request.extend_from_slice(&piece[..count]);
        let text = String::from_utf8_lossy(&request).to_ascii_lowercase();
        if let Some(head) = text.find("\r\n\r\n") {
            let length = text[..head]
                .lines()
                .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            break (head + 4, length.unwrap_or(0_usize));
        }
    };
    while request.len() < head + length {
        let mut piece = [0; 4096];
        let count = stream.read(&mut piece).await?;
        request.extend_from_slice(&piece[..count]);
    }
    let body = respond(&request[..head], &request[head..])?.to_string();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
    stream
        .write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes())
        .await?;
    Ok(stream.shutdown().await?)
}

fn respond(head: &[u8], body: &[u8]) -> anyhow::Result<Value> {
    if head.starts_with(b"POST") {
        let review: Value = serde_json::from_slice(body)?;
        return Ok(
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {
                "uid": review["request"]["uid"],
                "allowed": false,
                "status": {"message": format!("no {} today", review["request"]["object"]["metadata"]["name"])},
            }}),
        );
    }
    let path = String::from_utf8_lossy(head)
        .split(' ')
        .nth(1)
        .context("path")?
        .to_owned();
    Ok(
        json!({"kind": "APIResourceList", "groupVersion": "tests.example.com/v1", "resources": [], "path": path}),
    )
}

#[tokio::test]
async fn webhooks_and_aggregated_apis_on_localhost_are_called() -> anyhow::Result<()> {
    let cluster = shared(Profile::Plain).await?;
    let client = cluster.client();
    let namespace = cluster.namespace("extend").await?;
    // The aggregation layer insists on the Service's name, wherever the Service points.
    let (port, certificate) = serve(vec![
        "localhost".to_owned(),
        format!("extension.{namespace}.svc"),
    ])
    .await?;
    let bundle = json!(k8s_openapi::ByteString(certificate.into_bytes()));
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": namespace},
        "webhooks": [{
            "name": "no.example.com",
            "clientConfig": {"url": format!("https://localhost:{port}/validate"), "caBundle": bundle},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }],
    });
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "extension"},
        "spec": {"type": "ExternalName", "externalName": "localhost"},
    });
    let registration = json!({
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": "v1.tests.example.com"},
        "spec": {
            "group": "tests.example.com",
            "version": "v1",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "caBundle": bundle,
            "service": {"name": "extension", "namespace": namespace, "port": port},
        },
    });
    for object in [webhook, service, registration] {
        apply(&client, &object.to_string(), &namespace).await?;
    }

    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: sugar}\n";
    wait::until(LONG, "the webhook's refusal", || async {
        match apply(&client, map, &namespace).await {
            Err(error) if error.to_string().contains("no \"sugar\" today") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    wait::until(LONG, "the aggregated API", || async {
        let request = Request::get("/apis/tests.example.com/v1/anything").body(Vec::new())?;
        let answer: Value = client.request(request).await?;
        ensure!(
            answer["path"] == "/apis/tests.example.com/v1/anything",
            "{answer}"
        );
        Ok(())
    })
    .await?;
    Ok(())
}
