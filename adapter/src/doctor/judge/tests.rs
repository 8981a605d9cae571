use clap::Parser;
use serde_json::{Value, json};

use super::*;
use crate::doctor::Outcome;
use crate::fixtures::TestCa;
use crate::objects::{self, ServiceAddress};
use crate::settings::{Arguments, Command};

fn args() -> DoctorArgs {
    let parsed = Arguments::parse_from(["coppice-adapter", "doctor"]);
    let Command::Doctor(args) = parsed.command else {
        panic!("doctor")
    };
    args
}

/// A cluster in which all is well.
fn healthy() -> Facts {
    let address = ServiceAddress {
        namespace: "coppice-system".into(),
        name: "coppice-adapter".into(),
        port: 443,
    };
    let pem = TestCa::new("adapter").pem();
    let mut registered = objects::api_service(Api::External, &address, Some(&pem));
    registered.status = Some(status("True", "Passed", "all checks passed"));
    Facts {
        registration: Ok(Some(registered)),
        service: Ok(Some(objects::pod_service(&address, 6443, None))),
        slices: Ok(vec![slice("https", &[json!({"ready": true}), json!({})])]),
        connection: Connection::Trusted,
        listed: Ok(28),
        answer: Answer::Value("7".into()),
    }
}

fn status<T: serde::de::DeserializeOwned>(status: &str, reason: &str, message: &str) -> T {
    let condition =
        json!({"type": "Available", "status": status, "reason": reason, "message": message});
    serde_json::from_value(json!({"conditions": [condition]})).unwrap()
}

fn slice(port: &str, conditions: &[Value]) -> EndpointSlice {
    let endpoints: Vec<Value> = conditions
        .iter()
        .map(|conditions| json!({"addresses": ["10.0.0.1"], "conditions": conditions}))
        .collect();
    serde_json::from_value(json!({
        "addressType": "IPv4", "ports": [{"name": port, "port": 6443}], "endpoints": endpoints,
    }))
    .unwrap()
}

#[test]
fn where_all_is_well_every_check_says_what_it_saw() {
    let findings = judge(Api::External, &healthy(), &args());
    assert_eq!(findings.len(), 6);
    let seen: Vec<_> = findings
        .iter()
        .map(|finding| match &finding.outcome {
            Outcome::Good(seen) => seen.as_str(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        seen[0],
        "names Service coppice-system/coppice-adapter, port 443"
    );
    assert_eq!(seen[1], "has 2 ready endpoints");
    assert_eq!(seen[5], "is 7");
}

/// Each thing that can be wrong fails at its own check, which is the last one that is reported, and says what to do.
#[test]
fn the_first_check_that_fails_is_named_with_its_next_step() {
    type Break = fn(&mut Facts);
    fn registered(facts: &mut Facts) -> &mut APIService {
        facts.registration.as_mut().unwrap().as_mut().unwrap()
    }
    let cases: [(Break, &str, &str, &str); 13] = [
        (
            |facts| facts.registration = Ok(None),
            "APIService",
            "is not there",
            "--register-apiservice",
        ),
        (
            |facts| {
                let spec = registered(facts).spec.as_mut().unwrap();
                spec.service.as_mut().unwrap().name = Some("keda-metrics".into());
            },
            "APIService",
            "names Service coppice-system/keda-metrics",
            "one owner",
        ),
        (
            |facts| registered(facts).spec.as_mut().unwrap().service = None,
            "APIService",
            "names no Service",
            "manifests",
        ),
        (
            |facts| {
                registered(facts)
                    .spec
                    .as_mut()
                    .unwrap()
                    .insecure_skip_tls_verify = Some(true)
            },
            "APIService",
            "insecureSkipTLSVerify",
            "caBundle",
        ),
        (
            |facts| facts.service = Ok(None),
            "Service",
            "is not there",
            "manifests",
        ),
        (
            |facts| {
                registered(facts)
                    .spec
                    .as_mut()
                    .unwrap()
                    .service
                    .as_mut()
                    .unwrap()
                    .port = Some(80)
            },
            "Service",
            "has no port 80",
            "the same port",
        ),
        (
            |facts| facts.slices = Ok(vec![slice("web", &[json!({"ready": true})])]),
            "Service",
            "no ready endpoint with a port named \"https\"",
            "pods",
        ),
        (
            |facts| facts.slices = Ok(vec![slice("https", &[json!({"ready": false})])]),
            "Service",
            "no ready endpoint",
            "pods",
        ),
        (
            |facts| {
                registered(facts).spec.as_mut().unwrap().ca_bundle =
                    Some(k8s_openapi::ByteString(b"no".to_vec()))
            },
            "certificate",
            "no PEM",
            "base64",
        ),
        (
            |facts| facts.connection = Connection::Refused("UnknownIssuer".into()),
            "certificate",
            "UnknownIssuer",
            "caBundle",
        ),
        (
            |facts| {
                registered(facts).status =
                    Some(status("False", "FailedDiscoveryCheck", "bad status 401"))
            },
            "availability",
            "FailedDiscoveryCheck",
            "front-proxy",
        ),
        (
            |facts| facts.listed = Ok(0),
            "discovery",
            "lists nothing",
            "somebody else",
        ),
        (
            |facts| facts.answer = Answer::Refused(503, "2 of 5 endpoints have a value".into()),
            "query",
            "503: 2 of 5",
            "coppice-adapter get",
        ),
    ];
    for (spoil, check, part, step) in cases {
        let mut facts = healthy();
        spoil(&mut facts);
        let findings = judge(Api::External, &facts, &args());
        let last = findings.last().unwrap();
        let Outcome::Bad { problem, next } = &last.outcome else {
            panic!("{check}, {part}: {findings:?}")
        };
        assert!(last.check.starts_with(check), "{last:?}");
        assert!(problem.contains(part) && next.contains(step), "{last:?}");
        assert!(
            findings
                .iter()
                .rev()
                .skip(1)
                .all(|finding| !finding.is_bad())
        );
    }
}

#[test]
fn what_cannot_be_seen_from_here_is_no_failure() {
    let mut facts = healthy();
    facts.connection = Connection::NoWay("no route".into());
    facts.slices = Err("forbidden".into());
    facts.answer = Answer::Refused(404, "no ready endpoint".into());
    let findings = judge(Api::External, &facts, &args());
    let unknown = findings
        .iter()
        .filter(|finding| matches!(finding.outcome, Outcome::Unknown(_)))
        .count();
    assert_eq!((findings.len(), unknown), (6, 3));
}
