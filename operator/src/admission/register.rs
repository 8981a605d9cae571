//! The webhook configurations, and keeping them right: two for PodCliqueSets and, where it is switched on, one for what the
//! operator manages.
//!
//! They ask about PodCliqueSets and nothing else, so that an operator that is away holds up no other object; and not about sets that
//! are being deleted, so that it does not hold up their end either. An operator for some namespaces registers under a name of its own
//! and for these namespaces.
//!
//! The leader writes them; the other replicas serve with the same certificate. A configuration is written when it differs: at the first
//! start, after a change of the authority, or when somebody else has edited it. So a restart writes nothing, as long as the certificate
//! outlives the process (`--tls-secret`, or files).

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::Ipv6Addr;
use std::sync::Arc;

use coppice_operator_api::{GROUP, SCHEDULER_GROUP, VERSION, labels};
use coppice_runtime::crypto;
use coppice_runtime::lease::Tenure;
use coppice_runtime::registration::{self, Keeper, Kept};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations,
    ServiceReference, ValidatingWebhook, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    LabelSelector, LabelSelectorRequirement, ObjectMeta,
};
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::core::ClusterResourceScope;
use kube::{Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::serve::{AUTHORIZER_PATH, DEFAULTING_PATH, VALIDATING_PATH};
use crate::apply::FIELD_MANAGER;

/// Names of the webhooks inside the configurations, which refusals begin with. Upstream's.
const DEFAULTING: &str = "pcs.defaulting.webhooks.grove.io";
const VALIDATING: &str = "pcs.validating.webhooks.grove.io";
const AUTHORIZER: &str = "authorizer.webhooks.grove.io";
/// As upstream: what cannot be checked is not stored, and the answer comes within this time.
const FAILURE_POLICY: &str = "Fail";
const TIMEOUT_SECONDS: i32 = 10;

/// Where the API server finds the endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// Outside the cluster.
    Url {
        /// Host name or address.
        host: String,
        /// Port of the endpoint.
        port: u16,
    },
    /// In the cluster.
    Service {
        /// Namespace of the Service.
        namespace: String,
        /// Its name.
        name: String,
        /// Its port.
        port: u16,
    },
}

impl Address {
    /// Names and addresses that the certificate must be valid for.
    pub(crate) fn names(&self) -> Vec<String> {
        match self {
            Self::Url { host, port: _ } => vec![host.clone()],
            Self::Service {
                namespace,
                name,
                port: _,
            } => vec![
                format!("{name}.{namespace}.svc"),
                format!("{name}.{namespace}.svc.cluster.local"),
            ],
        }
    }

    fn client_config(&self, path: &str, authorities: Option<&str>) -> WebhookClientConfig {
        let (url, service) = match self {
            Self::Url { host, port } => {
                let host = match host.parse::<Ipv6Addr>() {
                    Ok(address) => format!("[{address}]"),
                    Err(_) => host.clone(),
                };
                (Some(format!("https://{host}:{port}{path}")), None)
            }
            Self::Service {
                namespace,
                name,
                port,
            } => {
                let service = ServiceReference {
                    name: name.clone(),
                    namespace: namespace.clone(),
                    path: Some(path.to_owned()),
                    port: Some(i32::from(*port)),
                };
                (None, Some(service))
            }
        };
        WebhookClientConfig {
            ca_bundle: authorities.map(|pem| ByteString(pem.as_bytes().to_vec())),
            service,
            url,
        }
    }
}

/// What is registered.
#[derive(Debug, Clone)]
pub(crate) struct Registration {
    /// Where the endpoint is.
    pub(crate) address: Address,
    /// Writes to managed objects are asked about, too.
    pub(crate) has_authorizer: bool,
    /// Namespaces that the operator works in; empty means all.
    pub(crate) namespaces: Vec<String>,
    /// What the API server should trust, as PEM; nothing where somebody else puts that into the configurations.
    pub(crate) authorities: watch::Receiver<Option<Arc<str>>>,
}

/// Names of the configurations: upstream's for the whole cluster, with something behind them for an operator of some namespaces, so
/// that several of these can live beside each other.
pub(crate) fn names(namespaces: &[String]) -> [String; 3] {
    let mut sorted = namespaces.to_vec();
    sorted.sort();
    let suffix = match sorted.as_slice() {
        [] => String::new(),
        [one] => format!("-{one}"),
        many => {
            let digest = crypto::hex(&crypto::sha256(&[many.join(",").as_bytes()]));
            format!("-{}", &digest[..10])
        }
    };
    [
        "podcliqueset-defaulting-webhook",
        "podcliqueset-validating-webhook",
        "authorizer-webhook",
    ]
    .map(|name| format!("{name}{suffix}"))
}

/// A configuration with one webhook of ours in it.
trait Configuration:
    Resource<DynamicType = (), Scope = ClusterResourceScope>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    /// Whether the server holds our webhook as it should be. Webhooks of others in the same object are theirs.
    fn holds(&self, wanted: &Self) -> bool;
}

/// Completes sets.
fn defaulting(
    registration: &Registration,
    authorities: Option<&str>,
) -> MutatingWebhookConfiguration {
    let [name, _, _] = names(&registration.namespaces);
    let webhook = MutatingWebhook {
        admission_review_versions: versions(),
        client_config: registration
            .address
            .client_config(DEFAULTING_PATH, authorities),
        failure_policy: Some(FAILURE_POLICY.to_owned()),
        match_conditions: Some(conditions()),
        match_policy: Some("Exact".to_owned()),
        name: DEFAULTING.to_owned(),
        namespace_selector: Some(selector(&registration.namespaces)),
        object_selector: Some(LabelSelector::default()),
        reinvocation_policy: Some("Never".to_owned()),
        rules: Some(rules()),
        side_effects: "None".to_owned(),
        timeout_seconds: Some(TIMEOUT_SECONDS),
    };
    MutatingWebhookConfiguration {
        metadata: metadata(name),
        webhooks: Some(vec![webhook]),
    }
}

/// Checks sets.
fn validating(
    registration: &Registration,
    authorities: Option<&str>,
) -> ValidatingWebhookConfiguration {
    let [_, name, _] = names(&registration.namespaces);
    let webhook = ValidatingWebhook {
        admission_review_versions: versions(),
        client_config: registration
            .address
            .client_config(VALIDATING_PATH, authorities),
        failure_policy: Some(FAILURE_POLICY.to_owned()),
        match_conditions: Some(conditions()),
        match_policy: Some("Exact".to_owned()),
        name: VALIDATING.to_owned(),
        namespace_selector: Some(selector(&registration.namespaces)),
        object_selector: Some(LabelSelector::default()),
        rules: Some(rules()),
        side_effects: "None".to_owned(),
        timeout_seconds: Some(TIMEOUT_SECONDS),
    };
    ValidatingWebhookConfiguration {
        metadata: metadata(name),
        webhooks: Some(vec![webhook]),
    }
}

/// Asks about writes to what the operator manages. Only objects with its label are asked about, and no subresources: scaling,
/// statuses and binding pass by.
fn authorizer(
    registration: &Registration,
    authorities: Option<&str>,
) -> ValidatingWebhookConfiguration {
    let [_, _, name] = names(&registration.namespaces);
    let managed = LabelSelector {
        match_labels: Some([(labels::MANAGED_BY.to_owned(), labels::OPERATOR.to_owned())].into()),
        match_expressions: None,
    };
    let webhook = ValidatingWebhook {
        admission_review_versions: versions(),
        client_config: registration
            .address
            .client_config(AUTHORIZER_PATH, authorities),
        failure_policy: Some(FAILURE_POLICY.to_owned()),
        match_conditions: None,
        match_policy: Some("Exact".to_owned()),
        name: AUTHORIZER.to_owned(),
        namespace_selector: Some(selector(&registration.namespaces)),
        object_selector: Some(managed),
        rules: Some(managed_rules()),
        side_effects: "None".to_owned(),
        timeout_seconds: Some(TIMEOUT_SECONDS),
    };
    ValidatingWebhookConfiguration {
        metadata: metadata(name),
        webhooks: Some(vec![webhook]),
    }
}

impl Configuration for MutatingWebhookConfiguration {
    fn holds(&self, wanted: &Self) -> bool {
        let (held, wanted) = (self.webhooks.as_deref(), wanted.webhooks.as_deref());
        holds(held, wanted, |webhook| {
            (&webhook.name, &mut webhook.client_config)
        })
    }
}

impl Configuration for ValidatingWebhookConfiguration {
    fn holds(&self, wanted: &Self) -> bool {
        let (held, wanted) = (self.webhooks.as_deref(), wanted.webhooks.as_deref());
        holds(held, wanted, |webhook| {
            (&webhook.name, &mut webhook.client_config)
        })
    }
}

/// Whether our webhook is among those that are held, as it should be; `parts` are its name and its client.
fn holds<W: Clone + PartialEq>(
    held: Option<&[W]>,
    wanted: Option<&[W]>,
    parts: impl Fn(&mut W) -> (&String, &mut WebhookClientConfig),
) -> bool {
    let Some(mut wanted) = wanted.and_then(<[W]>::first).cloned() else {
        return false;
    };
    let (name, client) = parts(&mut wanted);
    let (name, brings_bundle) = (name.clone(), client.ca_bundle.is_some());
    held.into_iter().flatten().cloned().any(|mut webhook| {
        let (its_name, client) = parts(&mut webhook);
        let is_ours = *its_name == name;
        if !brings_bundle {
            // Whoever brought the certificate brings the bundle, and what is there is right.
            client.ca_bundle = None;
        }
        is_ours && webhook == wanted
    })
}

fn metadata(name: String) -> ObjectMeta {
    let labels = [
        ("app.kubernetes.io/name", "coppice-operator"),
        ("app.kubernetes.io/part-of", "coppice"),
    ];
    let labels: BTreeMap<String, String> = labels
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
    ObjectMeta {
        name: Some(name),
        labels: Some(labels),
        ..ObjectMeta::default()
    }
}

fn versions() -> Vec<String> {
    vec!["v1".to_owned()]
}

fn rule(
    group: &str,
    versions: &[&str],
    resources: &[&str],
    operations: &[&str],
) -> RuleWithOperations {
    let list = |items: &[&str]| Some(items.iter().map(|&item| item.to_owned()).collect());
    RuleWithOperations {
        api_groups: list(&[group]),
        api_versions: list(versions),
        operations: list(operations),
        resources: list(resources),
        scope: Some("Namespaced".to_owned()),
    }
}

/// PodCliqueSets themselves, not their `status` and `scale`.
fn rules() -> Vec<RuleWithOperations> {
    vec![rule(
        GROUP,
        &[VERSION],
        &["podcliquesets"],
        &["CREATE", "UPDATE"],
    )]
}

/// As upstream: everybody may delete pods, and nobody else may make what only the operator makes.
fn managed_rules() -> Vec<RuleWithOperations> {
    let own = ["CREATE", "UPDATE", "DELETE"];
    let change = ["UPDATE", "DELETE"];
    let rbac = "rbac.authorization.k8s.io";
    vec![
        rule(
            "",
            &["v1"],
            &["secrets", "serviceaccounts", "services"],
            &change,
        ),
        rule("", &["v1"], &["pods"], &["UPDATE"]),
        rule(rbac, &["v1"], &["roles", "rolebindings"], &change),
        rule(
            "autoscaling",
            &["v1", "v2"],
            &["horizontalpodautoscalers"],
            &change,
        ),
        rule(
            GROUP,
            &[VERSION],
            &["podcliques", "podcliquescalinggroups"],
            &own,
        ),
        rule(SCHEDULER_GROUP, &[VERSION], &["podgangs"], &own),
    ]
}

/// The finalizer of a set must come off also while nobody answers.
fn conditions() -> Vec<MatchCondition> {
    vec![MatchCondition {
        expression: "!has(object.metadata.deletionTimestamp)".to_owned(),
        name: "not-being-deleted".to_owned(),
    }]
}

fn selector(namespaces: &[String]) -> LabelSelector {
    if namespaces.is_empty() {
        return LabelSelector::default();
    }
    let mut sorted = namespaces.to_vec();
    sorted.sort();
    LabelSelector {
        match_expressions: Some(vec![LabelSelectorRequirement {
            // The API server puts it on every namespace.
            key: "kubernetes.io/metadata.name".to_owned(),
            operator: "In".to_owned(),
            values: Some(sorted),
        }]),
        match_labels: None,
    }
}

/// Keeps the configurations right until `stop`, and takes away one that an earlier operator has left. What cannot be written is
/// logged and tried again.
pub(crate) async fn keep(
    client: Client,
    registration: Registration,
    tenure: Tenure,
    stop: CancellationToken,
) {
    let managed = async {
        if registration.has_authorizer {
            keep_one(&client, &registration, authorizer, &tenure, stop.clone()).await;
        } else {
            forget_authorizer(&client, &registration).await;
        }
    };
    tokio::join!(
        keep_one(&client, &registration, defaulting, &tenure, stop.clone()),
        keep_one(&client, &registration, validating, &tenure, stop.clone()),
        managed,
    );
}

/// Nobody keeps its certificate right any more; it would hold up every write to a managed object.
async fn forget_authorizer(client: &Client, registration: &Registration) {
    let api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let [_, _, name] = names(&registration.namespaces);
    // A start that has nothing to take away writes nothing.
    let found = api.get_metadata_opt(&name).await;
    if matches!(found, Ok(None)) {
        return;
    }
    match api.delete(&name, &DeleteParams::default()).await {
        Ok(_) => info!(
            name,
            "took away the authorizer's webhook, which is switched off"
        ),
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(error) => {
            warn!(name, error = %coppice_runtime::telemetry::chain(&error), "cannot take away the authorizer's webhook, if there is one");
        }
    }
}

type Wanted<K> = fn(&Registration, Option<&str>) -> K;

async fn keep_one<K: Configuration>(
    client: &Client,
    registration: &Registration,
    wanted: Wanted<K>,
    tenure: &Tenure,
    stop: CancellationToken,
) {
    let api: Api<K> = Api::all(client.clone());
    let name = wanted(registration, None)
        .meta()
        .name
        .clone()
        .unwrap_or_default();
    let authorities = registration.authorities.clone();
    let writer = Writer {
        api: api.clone(),
        name: &name,
        registration,
        wanted,
        tenure,
    };
    registration::keep(api, &name, writer, authorities, stop).await;
}

struct Writer<'a, K> {
    api: Api<K>,
    name: &'a str,
    registration: &'a Registration,
    wanted: Wanted<K>,
    tenure: &'a Tenure,
}

impl<K: Configuration> Keeper for Writer<'_, K> {
    type Object = K;

    async fn put(&mut self, held: Option<&K>, authorities: Option<&str>) -> kube::Result<Kept<K>> {
        let Self {
            api,
            name,
            registration,
            wanted,
            tenure,
        } = self;
        let wanted = wanted(registration, authorities);
        if held.is_some_and(|held| held.holds(&wanted)) {
            return Ok(Kept::AsWanted);
        }
        if !tenure.is_current() {
            return Ok(Kept::Over);
        }
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let written = api.patch(name, &params, &Patch::Apply(&wanted)).await?;
        info!(name, address = ?registration.address, "registered an admission webhook");
        Ok(Kept::Written(written))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registration(address: Address, namespaces: &[&str]) -> Registration {
        Registration {
            address,
            has_authorizer: false,
            namespaces: namespaces.iter().map(|&name| name.to_owned()).collect(),
            authorities: watch::channel(None).1,
        }
    }

    fn by_url(host: &str) -> Address {
        Address::Url {
            host: host.to_owned(),
            port: 9443,
        }
    }

    fn by_service() -> Address {
        Address::Service {
            namespace: "system".to_owned(),
            name: "op".to_owned(),
            port: 443,
        }
    }

    #[test]
    fn the_configurations_are_upstreams_and_ask_about_sets_alone() {
        let all = registration(by_service(), &[]);
        let object = serde_json::to_value(defaulting(&all, Some("pem"))).unwrap();
        assert_eq!(
            object["metadata"]["name"],
            "podcliqueset-defaulting-webhook"
        );
        let webhook = &object["webhooks"][0];
        assert_eq!(webhook["name"], "pcs.defaulting.webhooks.grove.io");
        assert_eq!(
            webhook["rules"],
            serde_json::json!([{"apiGroups": ["grove.io"], "apiVersions": ["v1alpha1"], "operations": ["CREATE", "UPDATE"],
                "resources": ["podcliquesets"], "scope": "Namespaced"}])
        );
        assert_eq!(
            webhook["clientConfig"],
            serde_json::json!({"caBundle": "cGVt", "service": {"name": "op", "namespace": "system", "path": "/webhooks/default-podcliqueset", "port": 443}})
        );
        assert_eq!(
            (&webhook["failurePolicy"], &webhook["timeoutSeconds"]),
            (&"Fail".into(), &10.into())
        );
        let validating = validating(&all, None);
        assert_eq!(
            validating.metadata.name.as_deref(),
            Some("podcliqueset-validating-webhook")
        );
    }

    #[test]
    fn the_authorizer_asks_about_managed_objects_and_no_subresource() {
        let all = registration(by_service(), &["a"]);
        let object = serde_json::to_value(authorizer(&all, Some("pem"))).unwrap();
        assert_eq!(object["metadata"]["name"], "authorizer-webhook-a");
        let webhook = &object["webhooks"][0];
        assert_eq!(webhook["name"], "authorizer.webhooks.grove.io");
        assert_eq!(
            webhook["objectSelector"],
            serde_json::json!({"matchLabels": {"app.kubernetes.io/managed-by": "grove-operator"}})
        );
        let rules = webhook["rules"].as_array().unwrap();
        let of = |resource: &str| {
            let is_in = |rule: &&serde_json::Value| {
                let resources = rule["resources"].as_array().unwrap();
                resources.iter().any(|known| known == resource)
            };
            rules.iter().find(is_in).map(|rule| &rule["operations"])
        };
        assert_eq!(of("pods"), Some(&serde_json::json!(["UPDATE"])));
        assert_eq!(
            of("podcliques"),
            Some(&serde_json::json!(["CREATE", "UPDATE", "DELETE"]))
        );
        assert_eq!(
            of("services"),
            Some(&serde_json::json!(["UPDATE", "DELETE"]))
        );
        for other in ["pods/binding", "podcliques/scale", "resourceclaims"] {
            assert_eq!(of(other), None);
        }
    }

    #[test]
    fn an_operator_of_some_namespaces_asks_for_these_under_a_name_of_its_own() {
        let some = registration(by_url("::1"), &["a"]);
        let object = serde_json::to_value(validating(&some, None)).unwrap();
        assert_eq!(
            object["metadata"]["name"],
            "podcliqueset-validating-webhook-a"
        );
        assert_eq!(
            object["webhooks"][0]["namespaceSelector"]["matchExpressions"][0]["values"],
            serde_json::json!(["a"])
        );
        assert_eq!(
            object["webhooks"][0]["clientConfig"]["url"],
            "https://[::1]:9443/webhooks/validate-podcliqueset"
        );
        let of = |names_of: &[&str]| {
            names(
                &names_of
                    .iter()
                    .map(|&name| name.to_owned())
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(of(&["a", "b"]), of(&["b", "a"]));
        assert_ne!(of(&["a", "b"]), of(&["a", "c"]));
        assert_eq!(
            of(&["a", "b"])[0].len(),
            "podcliqueset-defaulting-webhook-".len() + 10
        );
    }

    #[test]
    fn a_configuration_that_differs_is_not_held_and_what_others_bring_is_left_alone() {
        let here = registration(by_url("localhost"), &[]);
        let wanted = validating(&here, Some("pem"));
        assert!(wanted.holds(&wanted));
        let elsewhere = registration(by_url("example"), &[]);
        assert!(!validating(&elsewhere, Some("pem")).holds(&wanted));
        assert!(!validating(&here, Some("old")).holds(&wanted));
        let without = validating(&here, None);
        assert!(wanted.holds(&without), "somebody else brought the bundle");
        let mut softened = wanted.clone();
        softened.webhooks.as_mut().unwrap()[0].failure_policy = Some("Ignore".to_owned());
        assert!(!softened.holds(&wanted));
        let mut shared = wanted.clone();
        let mut other = shared.webhooks.as_ref().unwrap()[0].clone();
        other.name = "other.example.com".to_owned();
        shared.webhooks.as_mut().unwrap().insert(0, other);
        assert!(shared.holds(&wanted));
        assert!(!ValidatingWebhookConfiguration::default().holds(&wanted));
    }
}
