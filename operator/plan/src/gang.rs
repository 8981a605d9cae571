//! Which cliques form which gang.

use std::collections::BTreeMap;

use crate::ids::{CliqueId, GangId, GroupName};
use crate::template::{SetTemplate, effective};

/// A gang and its floor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gang {
    /// Which gang.
    pub id: GangId,
    /// Its cliques in the order they are listed: standalone cliques in template order, then for each scaling group, for
    /// each of its replicas, its members.
    pub members: Vec<Member>,
}

/// One clique of a gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The clique.
    pub clique: CliqueId,
    /// Pods of it that must be placed with the rest of the gang: the template's minimum, whatever the clique is scaled to.
    pub min: u32,
}

/// How many copies of each thing run, after the rule for numbers below the minimum.
///
/// Cliques and groups that are not listed run at their template's count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scale {
    /// Replicas of each scaling group.
    pub groups: BTreeMap<GroupName, u32>,
    /// Pods of each clique.
    pub cliques: BTreeMap<CliqueId, u32>,
}

impl Scale {
    /// Group replicas that run.
    #[must_use]
    pub fn group(&self, template: &SetTemplate, group: &GroupName) -> u32 {
        let Some(of) = template.group(group) else {
            return 0;
        };
        effective(
            self.groups.get(group).copied().unwrap_or(of.replicas),
            of.min_available,
        )
    }

    /// Pods that run in the clique.
    #[must_use]
    pub fn clique(&self, template: &SetTemplate, clique: &CliqueId) -> u32 {
        let Some(of) = template.clique(clique.template()) else {
            return 0;
        };
        effective(
            self.cliques.get(clique).copied().unwrap_or(of.replicas),
            of.min_available,
        )
    }
}

/// Every clique that should exist in one set replica, in gang order.
#[must_use]
pub fn cliques(template: &SetTemplate, scale: &Scale) -> Vec<CliqueId> {
    let mut all: Vec<CliqueId> = standalone(template).collect();
    for group in template.groups() {
        for replica in 0..scale.group(template, &group.name) {
            all.extend(members(template, &group.name, replica));
        }
    }
    all
}

/// The gangs of one set replica, base gang first. Idle cliques take no part; a gang of idle cliques does not exist.
#[must_use]
pub fn compose(template: &SetTemplate, scale: &Scale) -> Vec<Gang> {
    let member = |clique: CliqueId| {
        let min = template.clique(clique.template())?.min_available.get();
        (scale.clique(template, &clique) > 0).then_some(Member { clique, min })
    };
    let mut base: Vec<Member> = standalone(template).filter_map(member).collect();
    let mut scaled = Vec::new();
    for group in template.groups() {
        let replicas = scale.group(template, &group.name);
        for replica in 0..replicas {
            let cliques = members(template, &group.name, replica).filter_map(member);
            if replica < group.min_available.get() {
                base.extend(cliques);
            } else {
                scaled.push(Gang {
                    id: GangId::Scaled {
                        group: group.name.clone(),
                        replica,
                    },
                    members: cliques.collect(),
                });
            }
        }
    }
    let base = Gang {
        id: GangId::Base,
        members: base,
    };
    let mut gangs = vec![base];
    gangs.append(&mut scaled);
    gangs.retain(|gang| !gang.members.is_empty());
    gangs
}

/// The gang a clique's pods belong to.
#[must_use]
pub fn gang_of(template: &SetTemplate, clique: &CliqueId) -> GangId {
    match clique.group() {
        Some((group, replica)) if !crate::order::in_base(template, clique) => GangId::Scaled {
            group: group.clone(),
            replica,
        },
        None | Some(_) => GangId::Base,
    }
}

fn standalone(template: &SetTemplate) -> impl Iterator<Item = CliqueId> {
    template
        .standalone()
        .map(|clique| CliqueId::Standalone(clique.name.clone()))
}

fn members(
    template: &SetTemplate,
    group: &GroupName,
    replica: u32,
) -> impl Iterator<Item = CliqueId> {
    template
        .group(group)
        .into_iter()
        .flat_map(|group| &group.cliques)
        .map(move |clique| CliqueId::Member {
            group: group.clone(),
            replica,
            clique: clique.clone(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::Startup;
    use crate::template::fixtures::*;

    fn text(gangs: &[Gang]) -> Vec<String> {
        let clique = |id: &CliqueId| match id {
            CliqueId::Standalone(name) => name.to_string(),
            CliqueId::Member {
                group,
                replica,
                clique,
            } => format!("{group}-{replica}-{clique}"),
        };
        gangs
            .iter()
            .map(|gang| {
                let members: Vec<_> = gang
                    .members
                    .iter()
                    .map(|member| format!("{}:{}", clique(&member.clique), member.min))
                    .collect();
                format!("{:?} {}", gang.id, members.join(" "))
            })
            .collect()
    }

    #[test]
    fn base_holds_the_minimum_and_every_further_group_replica_is_a_gang() {
        let set = set(
            vec![
                clique("front", 2, 2),
                clique("lead", 1, 1),
                clique("work", 3, 3),
                clique("tail", 1, 1),
            ],
            vec![group("pre", &["lead", "work"], 3, 1)],
            Startup::AnyOrder,
        );
        insta::assert_yaml_snapshot!(text(&compose(&set, &Scale::default())), @r#"
        - "Base front:2 tail:1 pre-0-lead:1 pre-0-work:3"
        - "Scaled { group: pre, replica: 1 } pre-1-lead:1 pre-1-work:3"
        - "Scaled { group: pre, replica: 2 } pre-2-lead:1 pre-2-work:3"
        "#);
    }

    #[test]
    fn idle_components_leave_the_gang_and_too_few_run_as_the_minimum() {
        let set = wl2(Startup::AnyOrder);
        let mut scale = Scale::default();
        scale.groups.insert(GroupName::new("sg-x").unwrap(), 0);
        insta::assert_yaml_snapshot!(text(&compose(&set, &scale)), @r#"- "Base pc-a:1""#);
        scale.cliques.insert(
            CliqueId::Standalone(crate::ids::CliqueName::new("pc-a").unwrap()),
            0,
        );
        assert_eq!(compose(&set, &scale), []);
    }
}
