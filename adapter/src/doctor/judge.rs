//! From facts to findings, without a cluster.

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::Finding;
use super::facts::{Answer, Connection, Facts, bundle, reference};
use crate::groups::Api;
use crate::settings::DoctorArgs;

/// Judges one API, up to the first check that fails.
pub(super) fn judge(api: Api, facts: &Facts, args: &DoctorArgs) -> Vec<Finding> {
    let checks: [fn(Api, &Facts, &DoctorArgs) -> Finding; 6] = [
        registration,
        service,
        certificate,
        availability,
        discovery,
        query,
    ];
    let mut findings = Vec::new();
    for check in checks {
        let finding = check(api, facts, args);
        let is_bad = finding.is_bad();
        findings.push(finding);
        if is_bad {
            break;
        }
    }
    findings
}

const REGISTER: &str =
    "run the adapter with --register-apiservice, or apply what `coppice-adapter manifests` prints";

fn registration(api: Api, facts: &Facts, args: &DoctorArgs) -> Finding {
    let check = format!("APIService {}", api.service_name());
    let registered = match &facts.registration {
        Ok(Some(registered)) => registered,
        Ok(None) => return Finding::bad(check, "is not there", REGISTER),
        Err(error) => return Finding::bad(check, error, "run this as somebody who may read it"),
    };
    let Some((namespace, name, port)) = reference(registered) else {
        return Finding::bad(
            check,
            "names no Service: the API server answers the group itself",
            REGISTER,
        );
    };
    let is_ours = name == args.service.service_name
        && args
            .service
            .service_namespace
            .as_ref()
            .is_none_or(|wanted| *wanted == namespace);
    if !is_ours {
        return Finding::bad(
            check,
            format!("belongs to another server: it names Service {namespace}/{name}"),
            "a group has one owner: remove the other one's registration, or leave it this group and serve another (--apis, --keda-bind-address)",
        );
    }
    if is_trusting(registered) {
        return Finding::bad(
            check,
            "has insecureSkipTLSVerify: whoever answers for the Service is believed",
            "take the field out and put the certificate's authority into caBundle",
        );
    }
    Finding::good(
        check,
        format!("names Service {namespace}/{name}, port {port}"),
    )
}

fn is_trusting(registered: &APIService) -> bool {
    registered
        .spec
        .as_ref()
        .is_some_and(|spec| spec.insecure_skip_tls_verify == Some(true))
}

fn service(_: Api, facts: &Facts, _: &DoctorArgs) -> Finding {
    let Some((namespace, name, port)) = facts.registered().and_then(reference) else {
        return Finding::unknown("Service", "none is named");
    };
    let check = format!("Service {namespace}/{name}");
    let service = match &facts.service {
        Ok(Some(service)) => service,
        Ok(None) => {
            return Finding::bad(
                check,
                "is not there",
                "apply what `coppice-adapter manifests` prints",
            );
        }
        Err(error) => return Finding::unknown(check, error),
    };
    let spec = service.spec.clone().unwrap_or_default();
    if let Some(host) = spec.external_name {
        return Finding::good(check, format!("leads to {host}, outside the cluster"));
    }
    let Some(port_name) = port_name(service, port) else {
        return Finding::bad(
            check,
            format!("has no port {port}"),
            "let the APIService and the Service name the same port",
        );
    };
    match &facts.slices {
        Err(error) => Finding::unknown(check, error),
        Ok(slices) => match ready(slices, &port_name) {
            0 => Finding::bad(
                check,
                format!("has no ready endpoint with a port named {port_name:?}"),
                format!(
                    "look at the adapter's pods: kubectl -n {namespace} get pods -l app.kubernetes.io/name=coppice-adapter, and their /readyz?verbose"
                ),
            ),
            ready => Finding::good(check, format!("has {ready} ready endpoints")),
        },
    }
}

/// The name of a Service's port; the empty name is one, too.
fn port_name(service: &Service, port: u16) -> Option<String> {
    let ports = service.spec.as_ref()?.ports.as_ref()?;
    let found = ports.iter().find(|each| each.port == i32::from(port))?;
    Some(found.name.clone().unwrap_or_default())
}

/// Ready endpoints behind a port of this name. That the names fit is what the API server looks at, too.
fn ready(slices: &[EndpointSlice], port_name: &str) -> usize {
    let has_port = |slice: &&EndpointSlice| {
        let mut ports = slice.ports.iter().flatten();
        ports.any(|port| port.name.as_deref().unwrap_or_default() == port_name)
    };
    let endpoints = slices
        .iter()
        .filter(has_port)
        .flat_map(|slice| slice.endpoints.iter().flatten());
    let is_ready = |ready: &Option<bool>| ready.unwrap_or(true);
    endpoints
        .filter(|endpoint| {
            let conditions = endpoint.conditions.as_ref();
            conditions.is_none_or(|conditions| is_ready(&conditions.ready))
        })
        .count()
}

fn certificate(_: Api, facts: &Facts, _: &DoctorArgs) -> Finding {
    const CHECK: &str = "certificate";
    if let Some(pem) = facts.registered().and_then(bundle)
        && CertificateDer::pem_slice_iter(&pem).next().is_none()
    {
        return Finding::bad(
            CHECK,
            "caBundle holds no PEM certificate",
            "put the certificate's authority into caBundle (base64 of its PEM)",
        );
    }
    match &facts.connection {
        Connection::Trusted => Finding::good(
            CHECK,
            "is signed by the caBundle and has the Service's name",
        ),
        Connection::NoWay(why) => Finding::unknown(CHECK, why),
        Connection::Refused(error) => Finding::bad(
            CHECK,
            error,
            "let caBundle hold the authority of the certificate, and the certificate the DNS name SERVICE.NAMESPACE.svc; with --register-apiservice the adapter keeps both",
        ),
    }
}

fn availability(api: Api, facts: &Facts, _: &DoctorArgs) -> Finding {
    const CHECK: &str = "availability";
    let conditions = facts
        .registered()
        .and_then(|registered| registered.status.as_ref()?.conditions.clone())
        .unwrap_or_default();
    let Some(available) = conditions
        .iter()
        .find(|condition| condition.type_ == "Available")
    else {
        return Finding::unknown(CHECK, "the API server has not judged it yet");
    };
    let reason = available.reason.clone().unwrap_or_default();
    let message = available.message.clone().unwrap_or_default();
    if available.status == "True" {
        return Finding::good(CHECK, format!("the API server says {reason}"));
    }
    let next = match reason.as_str() {
        "FailedDiscoveryCheck" if message.contains("401") || message.contains("403") => {
            "the adapter does not accept the API server's front-proxy certificate: look at its log, and at ConfigMap kube-system/extension-apiserver-authentication"
        }
        "FailedDiscoveryCheck" if message.contains("x509") => {
            "caBundle and certificate do not fit: see the check of the certificate, from a pod of the cluster"
        }
        "FailedDiscoveryCheck" => {
            "let the control plane reach the pods' port: firewalls often pass 443 and 10250 alone (manifests --target-port)"
        }
        "ServiceNotFound" | "ServicePortError" => {
            "let the APIService name a Service and a port that are there"
        }
        _ => "let the Service have ready endpoints",
    };
    Finding::bad(
        CHECK,
        format!(
            "the API server says {reason} about {}: {message}",
            api.group()
        ),
        next,
    )
}

fn discovery(_: Api, facts: &Facts, _: &DoctorArgs) -> Finding {
    const CHECK: &str = "discovery";
    match &facts.listed {
        Ok(0) => Finding::bad(
            CHECK,
            "lists nothing",
            "ask the adapter itself; it always lists its metrics, so somebody else has answered",
        ),
        Ok(resources) => Finding::good(CHECK, format!("lists {resources} resources")),
        Err(error) => Finding::bad(
            CHECK,
            error,
            "run this as somebody who may read the API (ClusterRole coppice-metrics-viewer), or look at the API server's log",
        ),
    }
}

fn query(_: Api, facts: &Facts, args: &DoctorArgs) -> Finding {
    let check = format!("query {}", args.metric);
    match &facts.answer {
        Answer::Value(value) => Finding::good(check, format!("is {value}")),
        // The way there works, and there is nothing to measure in this namespace.
        Answer::Refused(404, message) => {
            Finding::unknown(check, format!("{message}; name a --namespace with engines"))
        }
        Answer::Refused(code, message) => Finding::bad(
            check,
            format!("{code}: {message}"),
            "see each endpoint with `coppice-adapter get METRIC --namespace NAMESPACE`",
        ),
        Answer::None(error) => Finding::bad(check, error, "look at the adapter's log"),
    }
}

#[cfg(test)]
mod tests;
