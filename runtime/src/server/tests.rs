use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::Extension;
use axum::routing::get;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::*;
use crate::tls::{Authority, ClientAuth, MinVersion, Source, Tls};

type Sender = hyper::client::conn::http2::SendRequest<Empty<Bytes>>;

/// Says how many certificates the peer showed.
async fn who(Extension(peer): Extension<Peer>) -> String {
    format!("{} certificates", peer.certificates.len())
}

async fn start_https(
    app: Router,
    limits: Limits,
) -> (
    SocketAddr,
    Arc<str>,
    CancellationToken,
    tokio::task::JoinHandle<()>,
) {
    let draining = CancellationToken::new();
    let tls = Tls::start(
        Source::SelfIssued {
            names: vec!["localhost".into()],
        },
        draining.clone(),
    )
    .await
    .unwrap();
    let bundle = tls.ca_bundle().borrow().clone().expect("self-issued");
    let config = tls
        .server_config(MinVersion::Tls13, ClientAuth::Requested)
        .unwrap();
    let (listener, address) = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let server = tokio::spawn(serve_https(listener, config, app, limits, draining.clone()));
    (address, bundle, draining, server)
}

fn client_config(
    bundle: &str,
    identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(bundle.as_bytes()).unwrap())
        .unwrap();
    let builder = ClientConfig::builder().with_root_certificates(roots);
    let mut config = match identity {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).unwrap(),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}

async fn connect(address: SocketAddr, config: Arc<ClientConfig>) -> std::io::Result<Sender> {
    let stream = TcpStream::connect(address).await?;
    let stream = TlsConnector::from(config)
        .connect(ServerName::try_from("localhost").unwrap(), stream)
        .await?;
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .map_err(std::io::Error::other)?;
    tokio::spawn(connection);
    Ok(sender)
}

async fn ask(sender: &mut Sender, path: &str) -> hyper::Result<String> {
    let request = hyper::Request::get(format!("https://localhost{path}"))
        .body(Empty::new())
        .unwrap();
    let body = sender
        .send_request(request)
        .await?
        .into_body()
        .collect()
        .await?
        .to_bytes();
    Ok(String::from_utf8(body.to_vec()).unwrap())
}

fn identity() -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let authority = Authority::new("somebody", jiff::Timestamp::now()).unwrap();
    let issued = authority
        .issue(
            &["me".into()],
            jiff::Timestamp::now(),
            jiff::SignedDuration::from_hours(1),
        )
        .unwrap();
    (vec![issued.certificate], issued.key)
}

#[tokio::test]
async fn the_peer_and_its_certificate_reach_the_handler() {
    let app = Router::new().route("/who", get(who));
    let (address, bundle, draining, server) = start_https(app, Limits::default()).await;
    let mut anonymous = connect(address, client_config(&bundle, None))
        .await
        .unwrap();
    assert_eq!(ask(&mut anonymous, "/who").await.unwrap(), "0 certificates");
    let mut known = connect(address, client_config(&bundle, Some(identity())))
        .await
        .unwrap();
    assert_eq!(ask(&mut known, "/who").await.unwrap(), "1 certificates");
    draining.cancel();
    server.await.unwrap();
}

#[tokio::test]
async fn a_certificate_without_its_key_fails_in_the_handshake() {
    let app = Router::new().route("/who", get(who));
    let (address, bundle, draining, server) = start_https(app, Limits::default()).await;
    let (chain, _) = identity();
    let (_, other_key) = identity();
    let mut config = (*client_config(&bundle, None)).clone();
    let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&other_key).unwrap();
    config.client_auth_cert_resolver = Arc::new(Stolen(Arc::new(rustls::sign::CertifiedKey::new(
        chain, key,
    ))));
    // In TLS 1.3 the client believes that it is connected until it reads; the request must fail.
    let refused = match connect(address, Arc::new(config)).await {
        Ok(mut sender) => ask(&mut sender, "/who").await.is_err(),
        Err(_) => true,
    };
    assert!(refused);
    draining.cancel();
    server.await.unwrap();
}

/// Shows a certificate and signs with a key that is not its own.
#[derive(Debug)]
struct Stolen(Arc<rustls::sign::CertifiedKey>);

impl rustls::client::ResolvesClientCert for Stolen {
    fn resolve(
        &self,
        _: &[&[u8]],
        _: &[rustls::SignatureScheme],
    ) -> Option<Arc<rustls::sign::CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn draining_finishes_requests_in_flight_and_refuses_new_connections() {
    let (begun, release) = (
        Arc::new(tokio::sync::Notify::new()),
        Arc::new(tokio::sync::Notify::new()),
    );
    let slow = {
        let (begun, release) = (Arc::clone(&begun), Arc::clone(&release));
        move || async move {
            begun.notify_one();
            release.notified().await;
            "finished"
        }
    };
    let app = Router::new().route("/slow", get(slow));
    let (address, bundle, draining, server) = start_https(app, Limits::default()).await;
    let mut sender = connect(address, client_config(&bundle, None))
        .await
        .unwrap();
    let is_answered = Arc::new(AtomicBool::new(false));
    let answer = {
        let (mut sender, is_answered) = (sender.clone(), Arc::clone(&is_answered));
        tokio::spawn(async move {
            let text = ask(&mut sender, "/slow").await;
            is_answered.store(true, Ordering::SeqCst);
            text
        })
    };
    begun.notified().await;
    draining.cancel();
    // GOAWAY reaches the client: it may not start another request on this connection.
    while ask(&mut sender, "/none").await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(
        TcpStream::connect(address).await.is_err(),
        "the listener is closed"
    );
    assert!(!is_answered.load(Ordering::SeqCst));
    release.notify_one();
    assert_eq!(answer.await.unwrap().unwrap(), "finished");
    server.await.unwrap();
}

#[tokio::test]
async fn a_request_that_outlasts_the_drain_time_is_dropped() {
    let begun = Arc::new(tokio::sync::Notify::new());
    let hang = {
        let begun = Arc::clone(&begun);
        move || async move {
            begun.notify_one();
            std::future::pending::<&'static str>().await
        }
    };
    let limits = Limits {
        drain: Duration::from_millis(50),
        ..Limits::default()
    };
    let (address, bundle, draining, server) =
        start_https(Router::new().route("/hang", get(hang)), limits).await;
    let mut sender = connect(address, client_config(&bundle, None))
        .await
        .unwrap();
    let answer = tokio::spawn(async move { ask(&mut sender, "/hang").await });
    begun.notified().await;
    draining.cancel();
    server.await.unwrap();
    answer.abort();
}

#[tokio::test]
async fn a_silent_client_is_dropped_after_the_header_time() {
    let limits = Limits {
        headers: Duration::from_millis(50),
        ..Limits::default()
    };
    let draining = CancellationToken::new();
    let (listener, address) = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let server = tokio::spawn(serve_http(
        listener,
        Router::new(),
        limits,
        draining.clone(),
    ));
    let mut stream = TcpStream::connect(address).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stream, b"GET / HTTP/1.1\r\nHost: ")
        .await
        .unwrap();
    let mut rest = Vec::new();
    tokio::time::timeout(
        Duration::from_secs(10),
        tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest),
    )
    .await
    .expect("the server ends the connection")
    .unwrap();
    draining.cancel();
    server.await.unwrap();
}
