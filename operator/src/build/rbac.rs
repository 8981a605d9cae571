//! What init containers need to read PodCliques.
//!
//! They use the service account of their pod, so the role is bound to the accounts that the template's cliques run under.
//! The account named after the set exists because upstream has it and people bind rights to it.

use std::collections::BTreeSet;

use coppice_operator_api::labels::Component;
use coppice_operator_api::{GROUP, names};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::scope::set_labels;
use crate::validated::Validated;

fn metadata(set: &Validated, name: String, component: Component) -> ObjectMeta {
    ObjectMeta {
        labels: Some(set_labels(set.key.name(), &name, component)),
        name: Some(name),
        namespace: Some(set.key.namespace().to_owned()),
        owner_references: Some(vec![set.owner()]),
        ..ObjectMeta::default()
    }
}

/// The service account named after the set.
pub(crate) fn service_account(set: &Validated) -> ServiceAccount {
    let name = names::service_account(set.key.name());
    ServiceAccount {
        metadata: metadata(set, name, Component::PodServiceAccount),
        automount_service_account_token: Some(true),
        ..ServiceAccount::default()
    }
}

/// The right to read PodCliques of the namespace; needed only where cliques start in an order.
pub(crate) fn role(set: &Validated) -> Role {
    Role {
        metadata: metadata(set, names::role(set.key.name()), Component::PodRole),
        rules: Some(vec![PolicyRule {
            api_groups: Some(vec![GROUP.to_owned()]),
            resources: Some(vec!["podcliques".to_owned()]),
            verbs: ["get", "list", "watch"].map(str::to_owned).into(),
            ..PolicyRule::default()
        }]),
    }
}

/// Gives that right to the accounts that pods of the set run under.
pub(crate) fn role_binding(set: &Validated) -> RoleBinding {
    let name = names::role(set.key.name());
    let of_cliques = set.object.spec.template.cliques.iter().map(|clique| {
        let account = clique.spec.pod_spec.service_account_name.as_deref();
        account
            .filter(|account| !account.is_empty())
            .unwrap_or("default")
            .to_owned()
    });
    let mut accounts: BTreeSet<String> = of_cliques.collect();
    accounts.insert(names::service_account(set.key.name()));
    let subject = |account: String| Subject {
        kind: "ServiceAccount".to_owned(),
        name: account,
        namespace: Some(set.key.namespace().to_owned()),
        api_group: None,
    };
    RoleBinding {
        metadata: metadata(set, name.clone(), Component::PodRoleBinding),
        role_ref: RoleRef {
            api_group: Some("rbac.authorization.k8s.io".to_owned()),
            kind: "Role".to_owned(),
            name,
        },
        subjects: Some(accounts.into_iter().map(subject).collect()),
    }
}
