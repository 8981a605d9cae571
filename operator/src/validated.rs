//! A PodCliqueSet as the planners take it: everything checked once, names and numbers that cannot be wrong.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use coppice_operator_api::pod_clique_set::{
    CliqueStartupType, PodCliqueTemplateSpec, UpdateStrategyType,
};
use coppice_operator_api::topology::TopologyConstraint;
use coppice_operator_api::{AutoScalingConfig, PodCliqueSet};
use coppice_operator_plan::hash::TemplateHash;
use coppice_operator_plan::ids::{CliqueName, GroupName, NameError};
use coppice_operator_plan::mnnvl::{self, Domains};
use coppice_operator_plan::sharing::{ClaimId, Sharing};
use coppice_operator_plan::template::{
    CliqueTemplate, GroupTemplate, SetTemplate, Startup, Strategy, TemplateError,
};
use coppice_operator_plan::topology::{self, Level, Topology, Wish, Wishes};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use serde_json::json;

use crate::admission::field::{FieldError, joined};
use crate::admission::{complete_pod_spec, rules};
use crate::canonical;
use crate::index::key::SetKey;

mod shared;

pub(crate) use shared::ClaimSource;

/// A set that can be planned. Made by [`Validated::new`] only, so nothing else reaches plan and build.
#[derive(Clone, Debug)]
pub(crate) struct Validated {
    /// Which set.
    pub(crate) key: SetKey,
    /// The set itself.
    pub(crate) object: Arc<PodCliqueSet>,
    /// What the planners see of it.
    pub(crate) template: SetTemplate,
    /// Copies wanted.
    pub(crate) replicas: u32,
    /// Where pods have to be, as far as the binding of the set tells.
    pub(crate) topology: Topology,
    /// Claims that its pods share.
    pub(crate) sharing: Sharing,
    /// Multi-node NVLink domains that its cliques are in.
    pub(crate) domains: Domains,
    /// The same as the set says it.
    wishes: Wishes,
    /// Position of each clique in the object.
    cliques: BTreeMap<CliqueName, usize>,
    /// Position of each group in the object.
    groups: BTreeMap<GroupName, usize>,
}

/// Most broken rules that a condition names; its message holds 32 KiB.
const MOST_SHOWN: usize = 10;

/// A set that cannot be planned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Invalid {
    /// It breaks rules of admission: each with field, value and what to do.
    #[error("{}", joined(.0, MOST_SHOWN))]
    Rules(Vec<FieldError>),
    /// A name that the rules let through and the planner does not: the schema was not asked, or there is a gap in the rules.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The same of the parts as a whole.
    #[error("spec.template: {0}")]
    Template(#[from] TemplateError),
}

impl Validated {
    /// Checks a set as far as planning depends on it. Admission checks more, and earlier; a cluster may run without it.
    pub(crate) fn new(object: Arc<PodCliqueSet>) -> Result<Self, Invalid> {
        let broken = rules::plannable(&object);
        if !broken.is_empty() {
            return Err(Invalid::Rules(broken));
        }
        let namespace = object.metadata.namespace.clone().unwrap_or_default();
        let name = object.metadata.name.clone().unwrap_or_default();
        let spec = &object.spec;
        let template = &spec.template;
        let mut cliques = Vec::new();
        let mut clique_positions = BTreeMap::new();
        for (position, clique) in template.cliques.iter().enumerate() {
            let is_ordered = template.startup_type == CliqueStartupType::Explicit;
            let parsed = read_clique(clique, template.priority_class_name.as_deref(), is_ordered)?;
            clique_positions.insert(parsed.name.clone(), position);
            cliques.push(parsed);
        }
        let mut groups = Vec::new();
        let mut group_positions = BTreeMap::new();
        for (position, group) in template.scaling_groups().iter().enumerate() {
            let name = GroupName::new(&group.name)?;
            let members = group.clique_names.iter().map(|name| CliqueName::new(name));
            group_positions.insert(name.clone(), position);
            groups.push(GroupTemplate {
                name,
                cliques: members.collect::<Result<_, _>>()?,
                replicas: count(group.template_replicas()),
                min_available: positive(group.effective_min_available()),
                autoscaled: group.scale_config.is_some(),
            });
        }
        let startup = match template.startup_type {
            CliqueStartupType::AnyOrder => Startup::AnyOrder,
            CliqueStartupType::InOrder => Startup::InOrder,
            CliqueStartupType::Explicit => Startup::Explicit,
        };
        let strategy = match spec.update_strategy.as_ref().map(|strategy| strategy.kind) {
            None | Some(UpdateStrategyType::RollingRecreate) => Strategy::RollingRecreate,
            Some(UpdateStrategyType::OnDelete) => Strategy::OnDelete,
        };
        let wishes = read_wishes(&object)?;
        let parsed = SetTemplate::new(cliques, groups, startup, strategy)?;
        Ok(Self {
            key: SetKey::new(&namespace, &name),
            sharing: shared::sharing(&object)?,
            domains: mnnvl::resolve(&parsed, &shared::choices(&object)?),
            template: parsed,
            replicas: count(spec.replicas),
            topology: topology::resolve(&wishes, None),
            wishes,
            cliques: clique_positions,
            groups: group_positions,
            object,
        })
    }

    /// The same set in a newer version whose spec is the same.
    pub(crate) fn with_object(&self, object: Arc<PodCliqueSet>) -> Self {
        Self {
            object,
            ..self.clone()
        }
    }

    /// The ClusterTopologyBinding that the set's constraints name.
    pub(crate) fn binding(&self) -> Option<&Arc<str>> {
        self.wishes.binding.as_ref()
    }

    /// The same set under these levels of its binding; `None`: it has no such binding.
    pub(crate) fn resolved(mut self, levels: Option<&[Level]>) -> Self {
        self.topology = topology::resolve(&self.wishes, levels);
        self
    }

    /// Where the content of a claim comes from.
    pub(crate) fn claim_source<'a>(&'a self, claim: &'a ClaimId) -> ClaimSource<'a> {
        shared::source(&self.object, claim)
    }

    /// The clique as the set's author wrote it.
    pub(crate) fn clique(&self, name: &CliqueName) -> Option<&PodCliqueTemplateSpec> {
        self.object
            .spec
            .template
            .cliques
            .get(*self.cliques.get(name)?)
    }

    /// The group as the set's author wrote it.
    pub(crate) fn group(
        &self,
        name: &GroupName,
    ) -> Option<&coppice_operator_api::pod_clique_set::PodCliqueScalingGroupConfig> {
        self.object
            .spec
            .template
            .scaling_groups()
            .get(*self.groups.get(name)?)
    }

    /// Limits of a clique's autoscaler, if it has one of its own.
    pub(crate) fn clique_autoscaling(&self, name: &CliqueName) -> Option<&AutoScalingConfig> {
        if self.template.group_of(name).is_some() {
            return None;
        }
        self.clique(name)?.spec.auto_scaling_config.as_ref()
    }

    /// Generation of the spec all this comes from.
    pub(crate) fn generation(&self) -> i64 {
        self.object.metadata.generation.unwrap_or_default()
    }

    /// The set as controlling owner.
    pub(crate) fn owner(&self) -> OwnerReference {
        OwnerReference {
            api_version: PodCliqueSet::api_version(&()).into_owned(),
            kind: PodCliqueSet::kind(&()).into_owned(),
            name: self.key.name().to_owned(),
            uid: self.object.metadata.uid.clone().unwrap_or_default(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }
    }

    /// Whether any clique waits for another to start.
    pub(crate) fn has_start_order(&self) -> bool {
        match self.template.startup() {
            Startup::AnyOrder => false,
            Startup::InOrder => self.template.cliques().len() > 1,
            Startup::Explicit => self
                .template
                .cliques()
                .iter()
                .any(|clique| !clique.starts_after.is_empty()),
        }
    }
}

/// What the set asks for.
fn read_wishes(set: &PodCliqueSet) -> Result<Wishes, NameError> {
    let template = &set.spec.template;
    let groups = template.scaling_groups();
    let wish = |constraint: &TopologyConstraint| Wish {
        required: constraint.required_domain().map(Arc::from),
        preferred: constraint.preferred_domain().map(Arc::from),
    };
    let mut wishes = Wishes {
        binding: rules::topology::binding_name(set).map(Arc::from),
        set: template.topology_constraint.as_ref().map(wish),
        ..Wishes::default()
    };
    for group in groups {
        if let Some(constraint) = &group.topology_constraint {
            wishes
                .groups
                .insert(GroupName::new(&group.name)?, wish(constraint));
        }
    }
    for clique in &template.cliques {
        if let Some(constraint) = &clique.topology_constraint {
            wishes
                .cliques
                .insert(CliqueName::new(&clique.name)?, wish(constraint));
        }
    }
    Ok(wishes)
}

fn read_clique(
    clique: &PodCliqueTemplateSpec,
    priority_class: Option<&str>,
    is_ordered: bool,
) -> Result<CliqueTemplate, NameError> {
    let parents = clique.spec.starts_after.iter().flatten();
    // Elsewhere they have no effect, so nobody has to keep them right.
    let parents = parents
        .filter(|_| is_ordered)
        .map(|name| CliqueName::new(name));
    Ok(CliqueTemplate {
        name: CliqueName::new(&clique.name)?,
        replicas: count(clique.spec.template_replicas()),
        min_available: positive(clique.spec.effective_min_available()),
        starts_after: parents.collect::<Result<_, _>>()?,
        hash: template_hash(clique, priority_class),
        autoscaled: clique.spec.auto_scaling_config.is_some(),
    })
}

/// Digest of what a clique's pods are made from, with the set's priority class in place of the clique's own, and with the defaults that
/// admission states: a set that is stored with them after it was stored without is the same set.
fn template_hash(clique: &PodCliqueTemplateSpec, priority_class: Option<&str>) -> TemplateHash {
    let mut spec = serde_json::to_value(&clique.spec.pod_spec).unwrap_or_default();
    if let Some(spec) = spec.as_object_mut() {
        complete_pod_spec(spec);
        spec.insert("priorityClassName".to_owned(), json!(priority_class));
    }
    let pods = json!({"labels": clique.labels, "annotations": clique.annotations, "spec": spec});
    TemplateHash::of(&canonical::text(&pods))
}

/// A number that the rules have found to be 0 or more.
fn count(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

/// A minimum, which is 1 or more wherever it comes from.
fn positive(value: i32) -> NonZeroU32 {
    NonZeroU32::new(count(value)).unwrap_or(NonZeroU32::MIN)
}

#[cfg(test)]
pub(crate) mod fixtures {
    use super::*;

    /// A set from YAML, with namespace `ns` and a uid.
    pub(crate) fn set(yaml: &str) -> Validated {
        let mut object: PodCliqueSet = serde_saphyr::from_str(yaml).expect("a set");
        object.metadata.namespace = Some("ns".to_owned());
        object.metadata.uid = Some("set-uid".to_owned());
        object.metadata.generation = Some(1);
        Validated::new(Arc::new(object)).expect("a valid set")
    }

    /// The worked example: a standalone `frontend`, a group `prefill` of leader and workers.
    pub(crate) const MN: &str = r#"
apiVersion: grove.io/v1alpha1
kind: PodCliqueSet
metadata: {name: mn, labels: {team: a}}
spec:
  replicas: 1
  template:
    cliqueStartupType: CliqueStartupTypeInOrder
    cliques:
    - name: frontend
      labels: {tier: web}
      spec:
        roleName: frontend
        replicas: 2
        autoScalingConfig: {minReplicas: 2, maxReplicas: 5}
        podSpec: {containers: [{name: main, image: "registry.example/fe:1", env: [{name: A, value: "$(GROVE_PCS_NAME)"}, {name: GROVE_PCS_INDEX, value: x}]}]}
    - name: pleader
      spec: {roleName: pleader, replicas: 1, podSpec: {containers: [{name: main, image: "registry.example/p:1"}]}}
    - name: pworker
      spec: {roleName: pworker, replicas: 3, podSpec: {schedulingGates: [{name: mine}], containers: [{name: main, image: "registry.example/p:1"}]}}
    podCliqueScalingGroups:
    - name: prefill
      cliqueNames: [pleader, pworker]
      replicas: 3
      scaleConfig: {minReplicas: 1, maxReplicas: 6}
"#;
}

#[cfg(test)]
mod tests {
    use super::fixtures::{MN, set};
    use super::*;

    fn refused(from: &str, to: &str) -> String {
        let mut object: PodCliqueSet = serde_saphyr::from_str(&MN.replacen(from, to, 1)).unwrap();
        object.metadata.namespace = Some("ns".to_owned());
        Validated::new(Arc::new(object)).unwrap_err().to_string()
    }

    /// The rules have tests of their own; this is that they are asked.
    #[test]
    fn what_cannot_be_planned_is_named_by_field_value_and_rule() {
        assert_eq!(
            refused("name: pleader\n", "name: p.leader\n"),
            "[spec.template.cliques[1].name: Invalid value: \"p.leader\": may only hold lowercase letters, digits and '-', \
             spec.template.podCliqueScalingGroups[0].cliqueNames[0]: Not found: \"pleader\": names no clique of the template: \
             name one of spec.template.cliques]"
        );
        assert_eq!(
            refused("replicas: 1\n", "replicas: -1\n"),
            "spec.replicas: Invalid value: -1: must be 0 or more"
        );
        // The schema's rule, where the schema was not asked.
        assert_eq!(
            refused("name: frontend\n", "name: pleader\n"),
            "spec.template: clique pleader is defined twice"
        );
    }

    #[test]
    fn what_admission_states_is_no_change() {
        let mut object: serde_json::Value = serde_saphyr::from_str(MN).unwrap();
        let pods = &mut object["spec"]["template"]["cliques"][0]["spec"]["podSpec"];
        pods["restartPolicy"] = json!("Always");
        pods["terminationGracePeriodSeconds"] = json!(30);
        let stated = serde_json::to_string(&object).unwrap();
        assert_eq!(set(&stated).template.hash(), set(MN).template.hash());
        let other = stated.replace(
            "\"terminationGracePeriodSeconds\":30",
            "\"terminationGracePeriodSeconds\":31",
        );
        assert_ne!(set(&other).template.hash(), set(MN).template.hash());
    }

    #[test]
    fn an_order_that_is_not_kept_is_not_read() {
        let odd = "replicas: 2\n        startsAfter: [\"no name\", frontend]\n";
        let template = set(&MN.replacen("replicas: 2\n", odd, 1)).template;
        assert!(template.cliques()[0].starts_after.is_empty());
    }

    #[test]
    fn the_digest_follows_what_pods_are_made_from_and_nothing_else() {
        let hashes = |yaml: &str| {
            let set = set(yaml);
            let cliques = set.template.cliques().iter();
            (
                cliques
                    .map(|clique| clique.hash.clone())
                    .collect::<Vec<_>>(),
                set.template.hash().clone(),
            )
        };
        let before = hashes(MN);
        for same in [
            MN.replace("replicas: 3", "replicas: 4"),
            MN.replace("maxReplicas: 6", "maxReplicas: 7"),
            MN.replace("CliqueStartupTypeInOrder", "CliqueStartupTypeAnyOrder"),
            MN.replace("team: a", "team: b"),
        ] {
            assert_eq!(hashes(&same), before);
        }
        let image = hashes(&MN.replace("fe:1", "fe:2"));
        assert_ne!(image.0[0], before.0[0]);
        assert_eq!(image.0[1..], before.0[1..]);
        assert_ne!(image.1, before.1);
        assert_ne!(
            hashes(&MN.replace("tier: web", "tier: api")).0[0],
            before.0[0]
        );
        let priority = hashes(&MN.replace(
            "cliqueStartupType:",
            "priorityClassName: high\n    cliqueStartupType:",
        ));
        assert!(
            priority
                .0
                .iter()
                .zip(&before.0)
                .all(|(new, old)| new != old)
        );
    }
}
