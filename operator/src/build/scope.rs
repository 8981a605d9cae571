//! Names and labels inside one set replica, from ids and back.

use std::collections::BTreeMap;

use coppice_operator_api::labels::{self, Component};
use coppice_operator_api::names;
use coppice_operator_plan::ids::{CliqueId, GangId, GroupName};

use crate::validated::Validated;

/// One set replica, as far as naming goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope<'a> {
    /// The set.
    pub(crate) set: &'a Validated,
    /// Which replica of it.
    pub(crate) replica: u32,
}

impl Scope<'_> {
    /// Name of a PodClique.
    pub(crate) fn clique(&self, id: &CliqueId) -> String {
        match id {
            CliqueId::Standalone(clique) => {
                names::standalone_clique(self.set.key.name(), self.replica, clique.as_str())
            }
            CliqueId::Member {
                group,
                replica,
                clique,
            } => names::member_clique(&self.group(group), *replica, clique.as_str()),
        }
    }

    /// Name of a PodCliqueScalingGroup.
    pub(crate) fn group(&self, group: &GroupName) -> String {
        names::scaling_group(self.set.key.name(), self.replica, group.as_str())
    }

    /// Name of the base PodGang.
    pub(crate) fn base_gang(&self) -> String {
        names::base_gang(self.set.key.name(), self.replica)
    }

    /// Name of a PodGang.
    pub(crate) fn gang(&self, gang: &GangId) -> String {
        let GangId::Scaled { group, replica } = gang else {
            return self.base_gang();
        };
        let minimum = self
            .set
            .template
            .group(group)
            .map_or(1, |group| group.min_available.get());
        names::scaled_gang(&self.group(group), *replica, minimum)
            .unwrap_or_else(|| self.base_gang())
    }

    /// Which clique an object is, from its name and the labels that tell its place in a group. Names are compared with
    /// what they would have to be; nothing is cut out of them.
    pub(crate) fn clique_id(
        &self,
        name: &str,
        group: Option<&str>,
        group_replica: Option<u32>,
    ) -> Option<CliqueId> {
        let (Some(group), Some(replica)) = (group, group_replica) else {
            let mut ids = self
                .set
                .template
                .standalone()
                .map(|clique| CliqueId::Standalone(clique.name.clone()));
            return ids.find(|id| self.clique(id) == name);
        };
        let group = self
            .set
            .template
            .groups()
            .iter()
            .find(|known| self.group(&known.name) == group)?;
        let mut ids = group.cliques.iter().map(|clique| CliqueId::Member {
            group: group.name.clone(),
            replica,
            clique: clique.clone(),
        });
        ids.find(|id| self.clique(id) == name)
    }

    /// Which group an object is.
    pub(crate) fn group_name(&self, name: &str) -> Option<GroupName> {
        let mut groups = self.set.template.groups().iter().map(|group| &group.name);
        groups.find(|group| self.group(group) == name).cloned()
    }

    /// Labels of every object in the replica.
    pub(crate) fn labels(&self, name: &str, component: Component) -> BTreeMap<String, String> {
        let mut labels = set_labels(self.set.key.name(), name, component);
        labels.insert(
            labels::SET_REPLICA_INDEX.to_owned(),
            self.replica.to_string(),
        );
        labels
    }
}

/// Labels of an object that belongs to the set as a whole.
pub(crate) fn set_labels(set: &str, name: &str, component: Component) -> BTreeMap<String, String> {
    let mut labels = labels::of_set(set);
    labels.insert(labels::NAME.to_owned(), names::as_label_value(name));
    labels.insert(labels::COMPONENT.to_owned(), component.as_str().to_owned());
    labels
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validated::fixtures::{MN, set};
    use coppice_operator_plan::gang::{Scale, cliques, compose};

    #[test]
    fn names_are_found_back_by_comparison() {
        let set = set(MN);
        let scope = Scope {
            set: &set,
            replica: 0,
        };
        let mut seen = Vec::new();
        for id in cliques(&set.template, &Scale::default()) {
            let name = scope.clique(&id);
            let group = id.group().map(|(group, _)| scope.group(group));
            let replica = id.group().map(|(_, replica)| replica);
            assert_eq!(scope.clique_id(&name, group.as_deref(), replica), Some(id));
            seen.push(name);
        }
        assert_eq!(
            seen[..3],
            [
                "mn-0-frontend",
                "mn-0-prefill-0-pleader",
                "mn-0-prefill-0-pworker"
            ]
        );
        assert_eq!(scope.clique_id("mn-0-prefill-0-pleader", None, None), None);
        let gangs: Vec<_> = compose(&set.template, &Scale::default())
            .iter()
            .map(|gang| scope.gang(&gang.id))
            .collect();
        assert_eq!(gangs, ["mn-0", "mn-0-prefill-0", "mn-0-prefill-1"]);
    }
}
