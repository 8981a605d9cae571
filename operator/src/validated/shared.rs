//! What a set says about claims and NVLink domains that its pods share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use coppice_operator_api::PodCliqueSet;
use coppice_operator_api::labels::{self, annotations};
use coppice_operator_api::sharing::SharingScope;
use coppice_operator_plan::ids::{CliqueName, GroupName, NameError};
use coppice_operator_plan::mnnvl::{Choice, Choices};
use coppice_operator_plan::sharing::{Among, ClaimId, Owner, Scope, Share, Sharing};
use k8s_openapi::api::resource::v1::ResourceClaimSpec;

use crate::build::compute_domain::has_gpus;

/// Where the content of a claim comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ClaimSource<'a> {
    /// A claim template of the set itself.
    Set(&'a ResourceClaimSpec),
    /// A ResourceClaimTemplate.
    Object {
        /// Its namespace.
        namespace: &'a str,
        /// Its name.
        name: &'a str,
    },
}

fn share(name: &str, scope: SharingScope, among: Among) -> Share {
    Share {
        template: Arc::from(name),
        scope: match scope {
            SharingScope::AllReplicas => Scope::AllReplicas,
            SharingScope::PerReplica => Scope::PerReplica,
        },
        among,
    }
}

fn clique_names(list: Option<&Vec<String>>) -> Result<BTreeSet<CliqueName>, NameError> {
    list.into_iter()
        .flatten()
        .map(|name| CliqueName::new(name))
        .collect()
}

fn group_names(list: Option<&Vec<String>>) -> Result<BTreeSet<GroupName>, NameError> {
    list.into_iter()
        .flatten()
        .map(|name| GroupName::new(name))
        .collect()
}

/// Lists of claims on all levels.
pub(super) fn sharing(set: &PodCliqueSet) -> Result<Sharing, NameError> {
    let template = &set.spec.template;
    let mut sharing = Sharing::default();
    for of_set in template.resource_sharing.iter().flatten() {
        let among = match &of_set.filter {
            None => Among::Everybody,
            Some(filter) => Among::Only {
                cliques: clique_names(filter.child_clique_names.as_ref())?,
                groups: group_names(filter.child_scaling_group_names.as_ref())?,
            },
        };
        sharing.set.push(share(&of_set.name, of_set.scope, among));
    }
    for group in template.scaling_groups() {
        let mut shares = Vec::new();
        for of_group in group.resource_sharing.iter().flatten() {
            let among = match &of_group.filter {
                None => Among::Everybody,
                Some(filter) => Among::Only {
                    cliques: clique_names(filter.child_clique_names.as_ref())?,
                    groups: BTreeSet::new(),
                },
            };
            shares.push(share(&of_group.name, of_group.scope, among));
        }
        if !shares.is_empty() {
            sharing.groups.insert(GroupName::new(&group.name)?, shares);
        }
    }
    for clique in &template.cliques {
        let shares = clique.resource_sharing.iter().flatten();
        let shares: Vec<Share> = shares
            .map(|of_clique| share(&of_clique.name, of_clique.scope, Among::Everybody))
            .collect();
        if !shares.is_empty() {
            sharing
                .cliques
                .insert(CliqueName::new(&clique.name)?, shares);
        }
    }
    Ok(sharing)
}

/// A name without a namespace means a template of the set, if it has one of that name; else a ResourceClaimTemplate beside
/// the set.
pub(super) fn source<'a>(set: &'a PodCliqueSet, claim: &'a ClaimId) -> ClaimSource<'a> {
    let template = &set.spec.template;
    let named = stated_namespace(set, claim).filter(|namespace| !namespace.is_empty());
    let own = || {
        let mut templates = template.resource_claim_templates.iter().flatten();
        let found = templates.find(|found| found.name == *claim.template)?;
        found.template_spec.spec.as_ref()
    };
    match (named, named.is_none().then(own).flatten()) {
        (_, Some(spec)) => ClaimSource::Set(spec),
        (named, None) => ClaimSource::Object {
            namespace: named
                .or(set.metadata.namespace.as_deref())
                .unwrap_or_default(),
            name: &claim.template,
        },
    }
}

/// The namespace that the claim's entry states.
fn stated_namespace<'a>(set: &'a PodCliqueSet, claim: &ClaimId) -> Option<&'a str> {
    let template = &set.spec.template;
    let name = &*claim.template;
    match &claim.owner {
        Owner::Set => {
            let mut entries = template.resource_sharing.iter().flatten();
            entries
                .find(|entry| entry.name == name)?
                .namespace
                .as_deref()
        }
        Owner::Group(group) => {
            let mut groups = template.scaling_groups().iter();
            let group = groups.find(|found| found.name == group.as_str())?;
            let mut entries = group.resource_sharing.iter().flatten();
            entries
                .find(|entry| entry.name == name)?
                .namespace
                .as_deref()
        }
        Owner::Clique(clique) => {
            let clique = clique.template().as_str();
            let clique = template.cliques.iter().find(|found| found.name == clique)?;
            let mut entries = clique.resource_sharing.iter().flatten();
            entries
                .find(|entry| entry.name == name)?
                .namespace
                .as_deref()
        }
    }
}

/// MNNVL groups on all levels, and who has GPUs.
pub(super) fn choices(set: &PodCliqueSet) -> Result<Choices, NameError> {
    let choice = |annotations: Option<&BTreeMap<String, String>>| {
        let group = annotations?.get(annotations::MNNVL_GROUP)?;
        match group.as_str() {
            "" => None,
            labels::MNNVL_NONE => Some(Choice::Off),
            group => Some(Choice::Group(Arc::from(group))),
        }
    };
    let template = &set.spec.template;
    let mut choices = Choices {
        set: choice(set.metadata.annotations.as_ref()),
        ..Choices::default()
    };
    for group in template.scaling_groups() {
        if let Some(choice) = choice(group.annotations.as_ref()) {
            choices.groups.insert(GroupName::new(&group.name)?, choice);
        }
    }
    for clique in &template.cliques {
        let name = CliqueName::new(&clique.name)?;
        if has_gpus(&clique.spec.pod_spec) {
            choices.with_gpus.insert(name.clone());
        }
        if let Some(choice) = choice(clique.annotations.as_ref()) {
            choices.cliques.insert(name, choice);
        }
    }
    Ok(choices)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validated::fixtures::{MN, set};

    const SHARED: &str = "  template:
    resourceClaimTemplates:
    - {name: gpu, templateSpec: {spec: {devices: {requests: [{name: d}]}}}}
    resourceSharing:
    - {name: gpu, scope: AllReplicas, filter: {childCliqueNames: [frontend], childScalingGroupNames: [prefill]}}
    - {name: out, scope: PerReplica}
    - {name: far, namespace: other, scope: PerReplica}
";

    #[test]
    fn a_claim_comes_from_the_sets_own_template_or_from_a_named_object() {
        let set = set(&MN.replacen("  template:\n", SHARED, 1));
        let [gpu, out, far] = [0, 1, 2].map(|position| ClaimId {
            owner: Owner::Set,
            of: None,
            template: Arc::clone(&set.sharing.set[position].template),
        });
        assert!(matches!(set.claim_source(&gpu), ClaimSource::Set(_)));
        let object = |namespace, name| ClaimSource::Object { namespace, name };
        assert_eq!(set.claim_source(&out), object("ns", "out"));
        assert_eq!(set.claim_source(&far), object("other", "far"));
        // The group says nothing of it, so nothing of a namespace either.
        let of_group = ClaimId {
            owner: Owner::Group(GroupName::new("prefill").unwrap()),
            ..far
        };
        assert_eq!(set.claim_source(&of_group), object("ns", "far"));
        let Among::Only { cliques, groups } = &set.sharing.set[0].among else {
            panic!("everybody")
        };
        assert_eq!((cliques.len(), groups.len()), (1, 1));
        assert_eq!(set.sharing.set[1].among, Among::Everybody);
    }
}
