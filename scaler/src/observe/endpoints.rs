//! Which endpoints a policy reads: its roles' pods and its gateway.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use coppice_operator_api::labels;
use coppice_scaler_api::{Role, RoleEndpoints, ScalingPolicySpec, Traffic};
use coppice_signals::discover::DEFAULT_PATH;
use coppice_signals::{Port, ScrapeRule, Selection, Selector, StaticTarget};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::target::{PlainTarget, Target, is_endpoint, is_of_role, is_of_set};
use crate::views::PodView;

/// Label of a static target: the policy that names it.
const POLICY_LABEL: &str = "autoscaling.coppice.dev/policy";

/// Everything that one policy reads.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Endpoints {
    /// For each role its endpoints; `None` while it has no pod.
    pub(crate) roles: Vec<Option<Selection>>,
    /// The gateway; `None` without `traffic`.
    pub(crate) traffic: Option<Selection>,
    /// Pods to scrape, by uid.
    pub(crate) pods: BTreeSet<String>,
    /// Where their metrics are, where the policy says so.
    pub(crate) rules: Vec<ScrapeRule>,
    /// The gateway's fixed address, if it has one.
    pub(crate) statics: Vec<StaticTarget>,
}

/// What `spec` reads of the pods of its namespace.
///
/// # Errors
/// A label selector that cannot be read, as text naming the field.
pub(crate) fn of_policy(
    namespace: &str,
    policy: &str,
    spec: &ScalingPolicySpec,
    target: &Target,
    pods: &[Arc<PodView>],
) -> Result<Endpoints, String> {
    let mut endpoints = Endpoints::default();
    for role in &spec.roles {
        let (selection, own) = match target {
            Target::Set { name, .. } => of_set_role(namespace, name, role, pods),
            Target::Plain(plain) => of_plain_role(namespace, plain, pods),
        };
        endpoints
            .pods
            .extend(own.iter().map(|pod| pod.facts.uid.clone()));
        if let (Some(selection), Some(places)) = (&selection, &role.endpoints) {
            endpoints.rules.extend(rule(selection, places));
        }
        endpoints.roles.push(selection);
    }
    if let Some(traffic) = &spec.traffic {
        add_traffic(&mut endpoints, namespace, policy, traffic, pods)?;
    }
    Ok(endpoints)
}

type Found = (Option<Selection>, Vec<Arc<PodView>>);

fn of_set_role(namespace: &str, set: &str, role: &Role, pods: &[Arc<PodView>]) -> Found {
    let Some(scales) = &role.scales else {
        return (None, Vec::new());
    };
    let is_own = |pod: &&Arc<PodView>| {
        is_of_set(pod, set) && is_of_role(pod, set, scales) && is_endpoint(pod, set, role)
    };
    let own: Vec<Arc<PodView>> = pods.iter().filter(is_own).cloned().collect();
    let cliques: BTreeSet<&str> = own
        .iter()
        .filter_map(|pod| pod.label(labels::CLIQUE))
        .collect();
    if cliques.is_empty() {
        return (None, own);
    }
    let names = cliques.into_iter().collect::<Vec<_>>().join(",");
    let selector = format!("{}={set},{} in ({names})", labels::PART_OF, labels::CLIQUE)
        .parse()
        .ok();
    (
        selector.map(|selector| Selection {
            namespace: Some(namespace.to_owned()),
            selector,
        }),
        own,
    )
}

fn of_plain_role(namespace: &str, target: &PlainTarget, pods: &[Arc<PodView>]) -> Found {
    let Some(selector) = &target.selector else {
        return (None, Vec::new());
    };
    let own = pods
        .iter()
        .filter(|pod| selector.matches(|key| pod.label(key)))
        .cloned()
        .collect();
    (
        Some(Selection {
            namespace: Some(namespace.to_owned()),
            selector: selector.clone(),
        }),
        own,
    )
}

/// Whether a pod is one of a plain target's.
pub(crate) fn is_of_plain(target: &PlainTarget, pod: &PodView) -> bool {
    target
        .selector
        .as_ref()
        .is_some_and(|selector| selector.matches(|key| pod.label(key)))
}

fn rule(selection: &Selection, places: &RoleEndpoints) -> Option<ScrapeRule> {
    let said = places.port.is_some() || places.path.is_some();
    said.then(|| ScrapeRule {
        selection: selection.clone(),
        port: port(places.port.as_ref()),
        path: places.path.clone(),
    })
}

fn port(port: Option<&IntOrString>) -> Option<Port> {
    match port? {
        IntOrString::Int(number) => u16::try_from(*number).ok().map(Port::Number),
        IntOrString::String(name) => Some(
            name.parse()
                .map_or_else(|_| Port::Name(name.clone()), Port::Number),
        ),
    }
}

fn add_traffic(
    endpoints: &mut Endpoints,
    namespace: &str,
    policy: &str,
    traffic: &Traffic,
    pods: &[Arc<PodView>],
) -> Result<(), String> {
    let places = &traffic.endpoints;
    let path = places.path.clone();
    let selection = |selector| Selection {
        namespace: Some(namespace.to_owned()),
        selector,
    };
    if let Some(address) = &places.address {
        let target = StaticTarget {
            namespace: namespace.to_owned(),
            name: format!("{policy}-traffic"),
            address: address.clone(),
            path: path.unwrap_or_else(|| DEFAULT_PATH.to_owned()),
            labels: BTreeMap::from([(POLICY_LABEL.to_owned(), policy.to_owned())]),
        };
        endpoints.statics.push(target);
        endpoints.traffic = Some(selection(
            Selector::everything().and_equals(POLICY_LABEL, policy),
        ));
        return Ok(());
    }
    let Some(labels) = &places.selector else {
        return Err("traffic.endpoints: add selector or address".to_owned());
    };
    let selector: Selector = text(labels)
        .parse()
        .map_err(|error| format!("traffic.endpoints.selector: {error}"))?;
    let own = pods
        .iter()
        .filter(|pod| selector.matches(|key| pod.label(key)));
    endpoints.pods.extend(own.map(|pod| pod.facts.uid.clone()));
    let selection = selection(selector);
    if places.port.is_some() || path.is_some() {
        endpoints.rules.push(ScrapeRule {
            selection: selection.clone(),
            port: port(places.port.as_ref()),
            path,
        });
    }
    endpoints.traffic = Some(selection);
    Ok(())
}

/// A label selector in the text grammar.
fn text(selector: &LabelSelector) -> String {
    let mut parts: Vec<String> = selector
        .match_labels
        .iter()
        .flatten()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    for expression in selector.match_expressions.iter().flatten() {
        let values = expression
            .values
            .iter()
            .flatten()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(",");
        let mut part = String::new();
        let key = &expression.key;
        let written = match expression.operator.as_str() {
            "In" => write!(part, "{key} in ({values})"),
            "NotIn" => write!(part, "{key} notin ({values})"),
            "DoesNotExist" => write!(part, "!{key}"),
            _ => write!(part, "{key}"),
        };
        debug_assert!(written.is_ok(), "a string takes all text");
        parts.push(part);
    }
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_label_selector_keeps_its_meaning_as_text() {
        let selector: LabelSelector = serde_json::from_value(json!({
            "matchLabels": {"app": "gateway"},
            "matchExpressions": [
                {"key": "tier", "operator": "In", "values": ["a", "b"]},
                {"key": "canary", "operator": "DoesNotExist"},
                {"key": "zone", "operator": "NotIn", "values": ["c"]},
                {"key": "model", "operator": "Exists"},
            ],
        }))
        .unwrap();
        assert_eq!(
            text(&selector),
            "app=gateway,tier in (a,b),!canary,zone notin (c),model"
        );
        assert!(text(&selector).parse::<Selector>().is_ok());
    }

    #[test]
    fn ports_are_names_or_numbers_also_as_text() {
        assert_eq!(
            port(Some(&IntOrString::Int(8000))),
            Some(Port::Number(8000))
        );
        assert_eq!(
            port(Some(&IntOrString::String("8000".to_owned()))),
            Some(Port::Number(8000))
        );
        assert_eq!(
            port(Some(&IntOrString::String("http".to_owned()))),
            Some(Port::Name("http".to_owned()))
        );
        assert_eq!(port(None), None);
    }
}
