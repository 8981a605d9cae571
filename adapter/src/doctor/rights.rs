//! Whether the adapter and the HPA controller have the rights that they need, by asking the API server about them.

use coppice_runtime::telemetry::chain;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::Client;
use kube::api::{Api, PostParams};

use super::Finding;
use super::facts::Question;
use crate::groups::Api as MetricsApi;
use crate::settings::DoctorArgs;

/// Something that somebody must be able to do.
#[derive(Debug, Clone, PartialEq)]
struct Right {
    namespace: String,
    account: String,
    attributes: ResourceAttributes,
}

/// One finding for each right that is lacking, or one for all when none is.
pub(super) async fn check(
    client: &Client,
    args: &DoctorArgs,
    namespace: &str,
    question: &Question,
) -> Vec<Finding> {
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    let needed = needed(args, namespace, question);
    let (count, mut findings) = (needed.len(), Vec::new());
    for right in needed {
        let review = SubjectAccessReview {
            spec: spec(&right),
            ..SubjectAccessReview::default()
        };
        match reviews.create(&PostParams::default(), &review).await {
            Ok(answer) if answer.status.as_ref().is_some_and(|status| status.allowed) => {}
            Ok(_) => findings.push(Finding::bad(
                "rights",
                describe(&right),
                "apply the rights that `coppice-adapter manifests` prints",
            )),
            Err(error) => {
                let why = format!("cannot be asked for: {}", chain(&error));
                return vec![Finding::unknown("rights", why)];
            }
        }
    }
    if findings.is_empty() {
        let seen = format!("the adapter and the HPA controller have the {count} that they need");
        findings.push(Finding::good("rights", seen));
    }
    findings
}

fn needed(args: &DoctorArgs, namespace: &str, question: &Question) -> Vec<Right> {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let attributes = |group: &str, resource: &str, verb: &str, within: &str, name: &str| {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        ResourceAttributes {
            group: some(group),
            resource: some(resource),
            subresource: some(subresource),
            verb: some(verb),
            namespace: some(within),
            name: some(name),
            ..ResourceAttributes::default()
        }
    };
    let of = |namespace: &str, account: &str, attributes| Right {
        namespace: namespace.to_owned(),
        account: account.to_owned(),
        attributes,
    };
    let mut needed: Vec<Right> = [
        attributes("", "pods", "list", "", ""),
        attributes("", "pods", "watch", "", ""),
        attributes("authentication.k8s.io", "tokenreviews", "create", "", ""),
        attributes(
            "authorization.k8s.io",
            "subjectaccessreviews",
            "create",
            "",
            "",
        ),
        attributes(
            "",
            "configmaps",
            "watch",
            "kube-system",
            "extension-apiserver-authentication",
        ),
    ]
    .into_iter()
    .map(|attributes| of(namespace, &args.service_account, attributes))
    .collect();
    let Question {
        metric,
        namespace: asked,
    } = question;
    needed.extend(args.apis.apis().map(|api| {
        let attributes = match api {
            MetricsApi::External => attributes(api.group(), metric, "list", asked, ""),
            MetricsApi::CustomV1Beta2 | MetricsApi::CustomV1Beta1 => {
                attributes(api.group(), &format!("pods/{metric}"), "get", asked, "*")
            }
        };
        of("kube-system", "horizontal-pod-autoscaler", attributes)
    }));
    needed.dedup();
    needed
}

fn spec(right: &Right) -> SubjectAccessReviewSpec {
    let Right {
        namespace,
        account,
        attributes,
    } = right;
    SubjectAccessReviewSpec {
        user: Some(format!("system:serviceaccount:{namespace}:{account}")),
        groups: Some(vec![
            "system:serviceaccounts".to_owned(),
            format!("system:serviceaccounts:{namespace}"),
            "system:authenticated".to_owned(),
        ]),
        resource_attributes: Some(attributes.clone()),
        ..SubjectAccessReviewSpec::default()
    }
}

fn describe(right: &Right) -> String {
    let Right {
        namespace,
        account,
        attributes,
    } = right;
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let mut resource = text(&attributes.resource);
    if let Some(subresource) = &attributes.subresource {
        resource = format!("{resource}/{subresource}");
    }
    if let Some(group) = &attributes.group {
        resource = format!("{resource} of {group}");
    }
    let scope = match &attributes.namespace {
        Some(namespace) => format!("in namespace {namespace}"),
        None => "in all namespaces".to_owned(),
    };
    let verb = text(&attributes.verb);
    format!("ServiceAccount {namespace}/{account} may not {verb} {resource} {scope}")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::settings::{Arguments, Command};

    #[test]
    fn rights_are_asked_for_under_the_names_that_requests_have() {
        let parsed = Arguments::parse_from(["coppice-adapter", "doctor", "--apis=both"]);
        let Command::Doctor(args) = parsed.command else {
            panic!("doctor")
        };
        let question = Question {
            metric: "m".into(),
            namespace: "serving".into(),
        };
        let needed = needed(&args, "system", &question);
        let texts: Vec<String> = needed.iter().map(describe).collect();
        assert_eq!(
            texts,
            [
                "ServiceAccount system/coppice-adapter may not list pods in all namespaces",
                "ServiceAccount system/coppice-adapter may not watch pods in all namespaces",
                "ServiceAccount system/coppice-adapter may not create tokenreviews of authentication.k8s.io in all namespaces",
                "ServiceAccount system/coppice-adapter may not create subjectaccessreviews of authorization.k8s.io in all namespaces",
                "ServiceAccount system/coppice-adapter may not watch configmaps in namespace kube-system",
                "ServiceAccount kube-system/horizontal-pod-autoscaler may not list m of external.metrics.k8s.io in namespace serving",
                "ServiceAccount kube-system/horizontal-pod-autoscaler may not get pods/m of custom.metrics.k8s.io in namespace serving",
            ]
        );
        assert_eq!(
            spec(&needed[0]).user.unwrap(),
            "system:serviceaccount:system:coppice-adapter"
        );
    }
}
