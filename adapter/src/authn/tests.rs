use std::sync::atomic::Ordering;

use super::config::AuthConfig;
use super::*;
use crate::fixtures::{FakeApi, Flaw, TestCa, headers, peer};

struct Cluster {
    clients: TestCa,
    proxies: TestCa,
    api: FakeApi,
}

impl Cluster {
    fn new() -> Self {
        coppice_runtime::crypto::install();
        Self {
            clients: TestCa::new("clients"),
            proxies: TestCa::new("front proxies"),
            api: FakeApi::default(),
        }
    }

    fn data(&self, allowed_names: &str) -> BTreeMap<String, String> {
        [
            ("client-ca-file", self.clients.pem()),
            ("requestheader-client-ca-file", self.proxies.pem()),
            (
                "requestheader-username-headers",
                r#"["X-Remote-User"]"#.to_owned(),
            ),
            (
                "requestheader-group-headers",
                r#"["X-Remote-Group"]"#.to_owned(),
            ),
            (
                "requestheader-extra-headers-prefix",
                r#"["X-Remote-Extra-"]"#.to_owned(),
            ),
            ("requestheader-allowed-names", allowed_names.to_owned()),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
    }

    fn authenticator(&self, allowed_names: &str) -> Authenticator {
        self.with(&self.data(allowed_names), true)
    }

    fn with(&self, data: &BTreeMap<String, String>, is_anonymous_served: bool) -> Authenticator {
        let config = ConfigState::fixed(AuthConfig::parse(data).unwrap());
        Authenticator::new(config, Tokens::new(self.api.client()), is_anonymous_served)
    }
}

const ALLOWED: &str = r#"["front-proxy-client"]"#;

fn code(outcome: Result<Caller, Refusal>) -> u16 {
    outcome.expect_err("refused").code().as_u16()
}

#[tokio::test]
async fn the_front_proxy_speaks_for_others() {
    let cluster = Cluster::new();
    let proxy = peer(&[cluster.proxies.issue("front-proxy-client", &[], Flaw::None)]);
    let mut headers = headers(&[
        ("x-remote-user", "ann"),
        ("x-remote-group", "team-a, not split"),
        ("x-remote-group", "team-b"),
        ("x-remote-extra-scopes%2fread", "one"),
        ("x-remote-extra-scopes%2fread", "two"),
        ("authorization", "Bearer good"),
        ("accept", "application/json"),
    ]);
    let caller = cluster
        .authenticator(ALLOWED)
        .authenticate(&mut headers, &proxy)
        .await
        .unwrap();
    assert_eq!(caller.user, "ann");
    assert_eq!(
        caller.groups,
        ["team-a, not split", "team-b", "system:authenticated"]
    );
    assert_eq!(
        caller.extra,
        BTreeMap::from([(
            "scopes/read".to_owned(),
            vec!["one".to_owned(), "two".to_owned()]
        )])
    );
    assert_eq!(
        headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(),
        ["accept"],
        "no identity goes further"
    );
    assert_eq!(cluster.api.asked.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn identity_headers_are_ignored_from_anybody_else() {
    let cluster = Cluster::new();
    let forged = || {
        headers(&[
            ("x-remote-user", "admin"),
            ("x-remote-group", "system:masters"),
        ])
    };
    let authenticator = cluster.authenticator(ALLOWED);
    let caller = authenticator
        .authenticate(&mut forged(), &peer(&[]))
        .await
        .unwrap();
    assert_eq!(caller, Caller::anonymous());
    let client = cluster.clients.issue("bob", &["devs"], Flaw::None);
    let caller = authenticator
        .authenticate(&mut forged(), &peer(&[client]))
        .await
        .unwrap();
    assert_eq!(
        (caller.user.as_str(), caller.groups.as_slice()),
        (
            "bob",
            &["devs".to_owned(), "system:authenticated".to_owned()][..]
        )
    );
    assert!(
        caller.extra["authentication.kubernetes.io/credential-id"][0].starts_with("X509SHA256=")
    );
}

#[tokio::test]
async fn the_front_proxys_name_must_be_allowed_unless_none_is_listed() {
    let cluster = Cluster::new();
    let other = peer(&[cluster.proxies.issue("somebody", &[], Flaw::None)]);
    let named = || headers(&[("x-remote-user", "ann")]);
    assert_eq!(
        code(
            cluster
                .authenticator(ALLOWED)
                .authenticate(&mut named(), &other)
                .await
        ),
        401
    );
    let caller = cluster
        .authenticator("[]")
        .authenticate(&mut named(), &other)
        .await
        .unwrap();
    assert_eq!(caller.user, "ann");
}

#[tokio::test]
async fn a_front_proxy_that_names_nobody_is_not_a_client() {
    let cluster = Cluster::new();
    let proxy =
        peer(&[cluster
            .proxies
            .issue("front-proxy-client", &["system:masters"], Flaw::None)]);
    assert_eq!(
        code(
            cluster
                .authenticator(ALLOWED)
                .authenticate(&mut HeaderMap::new(), &proxy)
                .await
        ),
        401
    );
    let mut data = cluster.data(ALLOWED);
    data.remove("client-ca-file");
    let caller = cluster
        .with(&data, true)
        .authenticate(&mut HeaderMap::new(), &proxy)
        .await
        .unwrap();
    assert_eq!(
        caller,
        Caller::anonymous(),
        "without a client CA the certificate says nothing"
    );
}

#[tokio::test]
async fn certificates_that_are_not_good_are_refused() {
    let cluster = Cluster::new();
    let authenticator = cluster.authenticator(ALLOWED);
    let foreign = TestCa::new("foreign");
    for certificate in [
        cluster
            .proxies
            .issue("front-proxy-client", &[], Flaw::Expired),
        cluster
            .proxies
            .issue("front-proxy-client", &[], Flaw::NotForClients),
        foreign.issue("front-proxy-client", &[], Flaw::None),
        cluster.clients.issue("bob", &[], Flaw::Expired),
        cluster.clients.issue("", &[], Flaw::None),
    ] {
        let mut headers = headers(&[("x-remote-user", "ann")]);
        assert_eq!(
            code(
                authenticator
                    .authenticate(&mut headers, &peer(&[certificate]))
                    .await
            ),
            401
        );
    }
}

#[tokio::test]
async fn tokens_are_reviewed_once_and_their_verdict_kept() {
    let cluster = Cluster::new();
    let authenticator = cluster.authenticator(ALLOWED);
    let ask = async |token: &str| {
        authenticator
            .authenticate(&mut headers(&[("authorization", token)]), &peer(&[]))
            .await
    };
    for _ in 0..3 {
        let caller = ask("Bearer good").await.unwrap();
        assert_eq!(
            (caller.user.as_str(), caller.groups.as_slice()),
            (
                "token-user",
                &["token-group".to_owned(), "system:authenticated".to_owned()][..]
            )
        );
        assert_eq!(code(ask("Bearer bad").await), 401);
    }
    assert_eq!(cluster.api.asked.load(Ordering::SeqCst), 2);
    assert_eq!(
        code(ask("Basic YTpi").await),
        401,
        "credentials of another kind are not nothing"
    );
}

#[tokio::test]
async fn a_reviewer_that_is_down_is_an_error_of_ours_and_not_kept() {
    let cluster = Cluster::new();
    let authenticator = cluster.authenticator(ALLOWED);
    let ask = async || {
        authenticator
            .authenticate(
                &mut headers(&[("authorization", "Bearer good")]),
                &peer(&[]),
            )
            .await
    };
    cluster.api.is_down.store(true, Ordering::SeqCst);
    assert_eq!(code(ask().await), 500);
    cluster.api.is_down.store(false, Ordering::SeqCst);
    assert!(ask().await.is_ok());
}

#[tokio::test]
async fn a_bad_certificate_does_not_spoil_a_good_token() {
    let cluster = Cluster::new();
    let foreign = peer(&[TestCa::new("foreign").issue("x", &[], Flaw::None)]);
    let mut headers = headers(&[("authorization", "Bearer good")]);
    assert_eq!(
        cluster
            .authenticator(ALLOWED)
            .authenticate(&mut headers, &foreign)
            .await
            .unwrap()
            .user,
        "token-user"
    );
}

#[tokio::test]
async fn impersonation_is_refused() {
    let cluster = Cluster::new();
    let mut headers = headers(&[
        ("impersonate-user", "admin"),
        ("authorization", "Bearer good"),
    ]);
    assert_eq!(
        code(
            cluster
                .authenticator(ALLOWED)
                .authenticate(&mut headers, &peer(&[]))
                .await
        ),
        403
    );
}

#[tokio::test]
async fn anonymous_callers_can_be_switched_off() {
    let cluster = Cluster::new();
    let authenticator = cluster.with(&cluster.data(ALLOWED), false);
    assert_eq!(
        code(
            authenticator
                .authenticate(&mut HeaderMap::new(), &peer(&[]))
                .await
        ),
        401
    );
}

#[tokio::test]
async fn before_the_settings_are_known_certificates_are_not_judged() {
    let cluster = Cluster::new();
    let unknown = ConfigState::unknown();
    let authenticator = Authenticator::new(unknown, Tokens::new(cluster.api.client()), true);
    let client = peer(&[cluster.clients.issue("bob", &[], Flaw::None)]);
    assert_eq!(
        code(
            authenticator
                .authenticate(&mut HeaderMap::new(), &client)
                .await
        ),
        503
    );
}

#[test]
fn broken_settings_name_the_key() {
    let cluster = Cluster::new();
    let mut data = cluster.data("front-proxy-client");
    let error = AuthConfig::parse(&data).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("requestheader-allowed-names of ConfigMap"),
        "{error}"
    );
    data.insert(
        "requestheader-client-ca-file".to_owned(),
        "no pem".to_owned(),
    );
    let error = AuthConfig::parse(&data).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("requestheader-client-ca-file of ConfigMap"),
        "{error}"
    );
}
