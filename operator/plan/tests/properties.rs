//! Promises of the planner under anything that can happen to a set replica: scaling, edits of the template, pods that
//! start, crash, end, are deleted by people, and passes that are cut short.

#![expect(clippy::unwrap_used, reason = "a test stops where it cannot go on")]

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use coppice_operator_plan::gang::Gang;
use coppice_operator_plan::hash::TemplateHash;
use coppice_operator_plan::ids::{CliqueId, CliqueName, GangId, GroupName, PodUid};
use coppice_operator_plan::observed::{Clique, Group, Lane, Phase, Pod, Replica};
use coppice_operator_plan::replica::{Permit, Plan, plan};
use coppice_operator_plan::rounds::{self, Existing, Groups};
use coppice_operator_plan::status::Progress;
use coppice_operator_plan::status::clique::{self, CliqueStatus};
use coppice_operator_plan::status::gang::is_floor_scheduled;
use coppice_operator_plan::status::group::{self, GroupStatus};
use coppice_operator_plan::status::summary::{Summary, summarise};
use coppice_operator_plan::template::{
    CliqueTemplate, GroupTemplate, SetTemplate, Startup, Strategy as Update,
};
use coppice_operator_plan::violations::violations;
use jiff::Timestamp;
use proptest::prelude::*;

/// One thing that happens between two passes.
#[derive(Clone, Debug)]
enum Event {
    /// The pod with this number (of those there are) becomes ready, or stops being so.
    Ready(usize, bool),
    /// It ends by itself.
    Fail(usize),
    /// Somebody deletes it; it terminates for a while.
    Delete(usize),
    /// Terminating pods are gone.
    Reap,
    /// A clique is scaled.
    ScaleClique(usize, u32),
    /// A group is scaled.
    ScaleGroup(usize, u32),
    /// The template of a clique changes.
    Edit(usize, u8),
    /// The turn to update comes or goes.
    Turn(bool),
    /// The update strategy changes.
    Strategy(bool),
    /// The scheduler places what it can, with room for this many pods.
    Bind(u32),
    /// A node dies: every pod whose number leaves this rest when divided by three is gone.
    LoseNode(usize),
    /// A pass, of which only part of the pods are made.
    CutShort(usize),
    /// A whole pass.
    Pass,
    /// Statuses are written; between two of these anything may happen unseen.
    Write,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0..60usize, any::<bool>()).prop_map(|(pod, ready)| Event::Ready(pod, ready)),
        1 => (0..60usize).prop_map(Event::Fail),
        2 => (0..60usize).prop_map(Event::Delete),
        2 => Just(Event::Reap),
        2 => (0..6usize, 0..6u32).prop_map(|(clique, n)| Event::ScaleClique(clique, n)),
        2 => (0..3usize, 0..5u32).prop_map(|(group, n)| Event::ScaleGroup(group, n)),
        1 => (0..4usize, 0..3u8).prop_map(|(clique, version)| Event::Edit(clique, version)),
        1 => any::<bool>().prop_map(Event::Turn),
        1 => any::<bool>().prop_map(Event::Strategy),
        4 => prop_oneof![0..6u32, Just(u32::MAX)].prop_map(Event::Bind),
        1 => (0..3usize).prop_map(Event::LoseNode),
        1 => (0..8usize).prop_map(Event::CutShort),
        6 => Just(Event::Pass),
        3 => Just(Event::Write),
    ]
}

fn template() -> impl Strategy<Value = (Vec<CliqueTemplate>, Vec<GroupTemplate>, Update)> {
    let clique = (1..4u32, 1..4u32);
    let cliques = proptest::collection::vec(clique, 1..5);
    (cliques, 0..3usize, (1..4u32, 1..3u32), any::<bool>()).prop_map(
        |(counts, grouped, group, on_delete)| {
            let cliques: Vec<CliqueTemplate> = counts
                .iter()
                .enumerate()
                .map(|(number, &(a, b))| CliqueTemplate {
                    name: CliqueName::new(&format!("c{number}")).unwrap(),
                    replicas: a.max(b),
                    min_available: NonZeroU32::new(a.min(b)).unwrap(),
                    starts_after: Vec::new(),
                    hash: TemplateHash::of(&format!("c{number}/0")),
                    autoscaled: false,
                })
                .collect();
            let members: Vec<CliqueName> = cliques
                .iter()
                .rev()
                .take(grouped)
                .map(|clique| clique.name.clone())
                .collect();
            let groups = if members.is_empty() {
                Vec::new()
            } else {
                vec![GroupTemplate {
                    name: GroupName::new("g").unwrap(),
                    cliques: members,
                    replicas: group.0.max(group.1),
                    min_available: NonZeroU32::new(group.0.min(group.1)).unwrap(),
                    autoscaled: false,
                }]
            };
            (cliques, groups, strategy(on_delete))
        },
    )
}

fn strategy(on_delete: bool) -> Update {
    if on_delete {
        Update::OnDelete
    } else {
        Update::RollingRecreate
    }
}

struct World {
    cliques: Vec<CliqueTemplate>,
    groups: Vec<GroupTemplate>,
    strategy: Update,
    replica: Replica,
    placement: Groups,
    may_update: bool,
    born: u32,
    /// What the statuses say.
    cliques_said: BTreeMap<CliqueId, clique::Before>,
    groups_said: BTreeMap<GroupName, group::Before>,
}

impl World {
    fn template(&self) -> SetTemplate {
        SetTemplate::new(
            self.cliques.clone(),
            self.groups.clone(),
            Startup::AnyOrder,
            self.strategy,
        )
        .unwrap()
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + i64::from(self.born)).unwrap()
    }

    fn pods(&mut self) -> Vec<&mut Pod> {
        self.replica
            .cliques
            .values_mut()
            .flat_map(|clique| &mut clique.pods)
            .collect()
    }

    fn happen(&mut self, event: &Event) {
        match event {
            Event::Ready(number, ready) => {
                if let Some(pod) = self
                    .pods()
                    .into_iter()
                    .filter(|pod| pod.scheduled)
                    .nth(*number)
                {
                    pod.ready = *ready && pod.is_active();
                }
            }
            Event::Fail(number) => {
                if let Some(pod) = self
                    .pods()
                    .into_iter()
                    .filter(|pod| pod.scheduled)
                    .nth(*number)
                {
                    (pod.phase, pod.ready) = (Phase::Failed, false);
                }
            }
            Event::Delete(number) => {
                if let Some(pod) = self.pods().into_iter().nth(*number) {
                    pod.terminating = true;
                }
            }
            Event::Reap => {
                for clique in self.replica.cliques.values_mut() {
                    clique.pods.retain(|pod| !pod.terminating);
                }
            }
            Event::ScaleClique(number, replicas) => {
                if let Some(clique) = self.replica.cliques.values_mut().nth(*number) {
                    clique.replicas = *replicas;
                }
            }
            Event::ScaleGroup(number, replicas) => {
                if let Some(group) = self.replica.groups.values_mut().nth(*number) {
                    group.replicas = *replicas;
                }
            }
            Event::Edit(number, version) => {
                if let Some(clique) = self.cliques.get_mut(*number) {
                    clique.hash = TemplateHash::of(&format!("c{number}/{version}"));
                }
            }
            Event::Turn(may_update) => self.may_update = *may_update,
            Event::Strategy(on_delete) => self.strategy = strategy(*on_delete),
            Event::Bind(room) => self.bind(*room),
            Event::LoseNode(rest) => {
                let mut number = 0;
                for clique in self.replica.cliques.values_mut() {
                    clique.pods.retain(|pod| {
                        number += 1;
                        !pod.scheduled || number % 3 != *rest
                    });
                }
            }
            Event::CutShort(made) => self.pass(*made),
            Event::Pass => self.pass(usize::MAX),
            Event::Write => drop(self.write()),
        }
    }

    fn pass(&mut self, limit: usize) {
        let template = self.template();
        let permit = Permit {
            may_update: self.may_update,
        };
        let planned = plan(&template, &self.replica, permit, self.now());
        assert_eq!(
            planned,
            plan(&template, &self.replica, permit, self.now()),
            "same input, same plan"
        );
        assert_eq!(
            violations(&template, &self.replica, self.may_update, &planned),
            []
        );
        let rounds = self.rounds(&planned);
        self.apply(&template, &planned, &rounds, limit);
    }

    fn rounds(&self, planned: &Plan) -> rounds::Rounds {
        let base = planned.gangs.iter().find(|gang| gang.id == GangId::Base);
        let base_runs = base.is_none_or(|gang| is_floor_scheduled(gang, &self.replica));
        rounds::plan(
            &planned.gangs,
            &self.replica,
            &planned.create,
            &self.placement,
            |gang| *gang == GangId::Base || base_runs,
        )
    }

    fn apply(
        &mut self,
        template: &SetTemplate,
        planned: &Plan,
        rounds: &rounds::Rounds,
        limit: usize,
    ) {
        for group in &planned.groups {
            let found = Group {
                replicas: group.replicas,
                terminating: false,
            };
            self.replica
                .groups
                .entry(group.name.clone())
                .or_insert(found);
        }
        for clique in &planned.cliques {
            let hash = template.clique(clique.id.template()).unwrap().hash.clone();
            let object = self
                .replica
                .cliques
                .entry(clique.id.clone())
                .or_insert_with(|| Clique {
                    replicas: clique.replicas,
                    hash: hash.clone(),
                    terminating: false,
                    hold_until: None,
                    pods: Vec::new(),
                });
            if !clique.keep_template {
                object.hash = hash;
            }
        }
        for removal in &planned.delete {
            let pods = &mut self.replica.cliques.get_mut(&removal.clique).unwrap().pods;
            for pod in pods.iter_mut().filter(|pod| pod.uid == removal.pod) {
                pod.terminating = true;
            }
            // A pod that never reached a node is gone at once.
            pods.retain(|pod| pod.uid != removal.pod || pod.scheduled);
        }
        for pod in self.pods() {
            if rounds.restart.contains(&pod.uid) {
                pod.terminating = true;
            }
        }
        self.replica
            .cliques
            .retain(|id, _| !planned.remove_cliques.contains(id));
        let mut left = limit;
        for (id, indexes) in &planned.create {
            for index in indexes {
                if left == 0 {
                    return;
                }
                left -= 1;
                self.born += 1;
                let clique = self.replica.cliques.get_mut(id).unwrap();
                clique.pods.push(Pod {
                    uid: PodUid::new(&format!("{:06}", self.born)),
                    index: Some(*index),
                    phase: Phase::Pending,
                    terminating: false,
                    scheduled: false,
                    gated: false,
                    ready: false,
                    started_unready: false,
                    crashed: false,
                    hash: clique.hash.clone(),
                    created: Timestamp::from_second(1_800_000_000 + i64::from(self.born) / 4)
                        .unwrap(),
                    lane: rounds.lanes.get(&(id.clone(), *index)).copied(),
                });
            }
        }
        self.place_groups(rounds);
    }

    fn place_groups(&mut self, rounds: &rounds::Rounds) {
        self.placement
            .existing
            .retain(|group, _| !rounds.remove.contains(group));
        self.placement
            .composites
            .retain(|group, _| !rounds.remove_composites.contains(group));
        for group in &rounds.groups {
            let lane = |floor| Lane {
                round: group.round,
                floor,
            };
            let make = |min, parented| Existing {
                min,
                parented,
                placed: false,
                terminating: false,
            };
            if group.composite {
                let children = u32::try_from(group.floor.len()).unwrap();
                self.placement
                    .composites
                    .entry((group.gang.clone(), group.round))
                    .or_insert(children);
            }
            for (clique, min) in &group.floor {
                let key = (clique.clone(), lane(true));
                self.placement
                    .existing
                    .entry(key)
                    .or_insert_with(|| make(*min, group.composite));
            }
            for clique in &group.followers {
                let key = (clique.clone(), lane(false));
                self.placement
                    .existing
                    .entry(key)
                    .or_insert_with(|| make(1, false));
            }
        }
    }

    /// A scheduler that knows groups: pods are bound when their group, and every other group under its composite, has
    /// its minimum of pods, and there is room for all of these that are not bound yet.
    fn bind(&mut self, mut room: u32) {
        let gangs = {
            let template = self.template();
            let scale = coppice_operator_plan::replica::scale(&self.replica);
            coppice_operator_plan::gang::compose(&template, &scale)
        };
        let units: Vec<Vec<(CliqueId, Lane)>> = self.placeable(&gangs);
        for unit in units {
            let bound_before = room;
            let unbound = |world: &Self, (id, lane): &(CliqueId, Lane)| {
                let pods = world
                    .replica
                    .cliques
                    .get(id)
                    .map_or(&[][..], |clique| &clique.pods);
                pods.iter()
                    .filter(|pod| pod.is_active() && !pod.scheduled && pod.lane == Some(*lane))
                    .count()
            };
            let needed: usize = unit.iter().map(|key| unbound(self, key)).sum();
            if u32::try_from(needed).unwrap() > room {
                continue;
            }
            for key in &unit {
                for pod in &mut self.replica.cliques.get_mut(&key.0).unwrap().pods {
                    if pod.is_active() && !pod.scheduled && pod.lane == Some(key.1) {
                        (pod.scheduled, pod.phase, pod.ready) = (true, Phase::Running, true);
                        room -= 1;
                    }
                }
            }
            if room < bound_before {
                for key in unit.iter().filter(|(_, lane)| lane.floor) {
                    self.placement.existing.get_mut(key).unwrap().placed = true;
                }
            }
        }
        let alone = self
            .pods()
            .into_iter()
            .filter(|pod| pod.is_active() && !pod.scheduled && pod.lane.is_none());
        for pod in alone.take(usize::try_from(room).unwrap()) {
            (pod.scheduled, pod.phase, pod.ready) = (true, Phase::Running, true);
        }
    }

    /// Groups that are complete, those under one composite together.
    fn placeable(&self, gangs: &[Gang]) -> Vec<Vec<(CliqueId, Lane)>> {
        let mut units: Vec<Vec<(CliqueId, Lane)>> = Vec::new();
        for ((id, lane), group) in &self.placement.existing {
            let own = (id.clone(), *lane);
            if units.iter().any(|unit| unit.contains(&own))
                || !self.replica.cliques.contains_key(id)
            {
                continue;
            }
            if !group.parented {
                if !lane.floor || self.members(id, *lane) >= group.min {
                    units.push(vec![own]);
                }
                continue;
            }
            let Some((gang, wanted)) = self.composite_of(gangs, id, lane.round) else {
                continue;
            };
            let complete: Vec<(CliqueId, Lane)> = gang
                .members
                .iter()
                .map(|member| (member.clique.clone(), *lane))
                .filter(|key| {
                    let sibling = self.placement.existing.get(key);
                    sibling.is_some_and(|sibling| self.members(&key.0, *lane) >= sibling.min)
                })
                .collect();
            if complete.len() >= wanted {
                units.push(complete);
            }
        }
        units
    }

    fn composite_of<'g>(
        &self,
        gangs: &'g [Gang],
        id: &CliqueId,
        round: u32,
    ) -> Option<(&'g Gang, usize)> {
        let gang = gangs
            .iter()
            .find(|gang| gang.members.iter().any(|member| member.clique == *id))?;
        let wanted = self.placement.composites.get(&(gang.id.clone(), round))?;
        Some((gang, usize::try_from(*wanted).unwrap()))
    }

    fn members(&self, id: &CliqueId, lane: Lane) -> u32 {
        let pods = self
            .replica
            .cliques
            .get(id)
            .map_or(&[][..], |clique| &clique.pods);
        u32::try_from(pods.iter().filter(|pod| pod.lane == Some(lane)).count()).unwrap()
    }

    /// Judges everything, writes it into the statuses, and tells what the set would hear.
    fn write(
        &mut self,
    ) -> (
        Summary,
        BTreeMap<CliqueId, CliqueStatus>,
        BTreeMap<GroupName, GroupStatus>,
    ) {
        let template = self.template();
        let permit = Permit {
            may_update: self.may_update,
        };
        let planned = plan(&template, &self.replica, permit, self.now());
        let mut cliques = BTreeMap::new();
        for clique in &planned.cliques {
            let Some(observed) = self.replica.cliques.get(&clique.id) else {
                continue;
            };
            let wanted = clique::Wanted {
                template: template.clique(clique.id.template()).unwrap(),
                set_hash: template.hash(),
                strategy: template.strategy(),
                effective: clique.effective,
            };
            let before = self
                .cliques_said
                .get(&clique.id)
                .cloned()
                .unwrap_or_default();
            let status = clique::status(observed, wanted, &before, self.now());
            cliques.insert(clique.id.clone(), status);
        }
        let mut groups = BTreeMap::new();
        for planned in planned
            .groups
            .iter()
            .filter(|group| self.replica.groups.contains_key(&group.name))
        {
            let before = self
                .groups_said
                .get(&planned.name)
                .cloned()
                .unwrap_or_default();
            let of = template.group(&planned.name).unwrap();
            let status = group::status(
                &template,
                of,
                planned.effective,
                &cliques,
                &before,
                self.now(),
            );
            groups.insert(planned.name.clone(), status);
        }
        let said = |status: &CliqueStatus| clique::Before {
            progress: status.progress.clone(),
            current: status.current.clone(),
            current_set: status.current_set.clone(),
        };
        self.cliques_said = cliques
            .iter()
            .map(|(id, status)| (id.clone(), said(status)))
            .collect();
        let said = |status: &GroupStatus| group::Before {
            progress: status.progress.clone(),
            current_set: status.current_set.clone(),
        };
        self.groups_said = groups
            .iter()
            .map(|(name, status)| (name.clone(), said(status)))
            .collect();
        let summary = summarise(&template, &cliques, &groups, planned.report.is_old);
        (summary, cliques, groups)
    }

    fn settle(&mut self) {
        for _ in 0..40 {
            self.pass(usize::MAX);
            self.bind(u32::MAX);
            self.happen(&Event::Reap);
            for pod in self.pods() {
                pod.ready = pod.scheduled;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn whatever_happens_promises_hold_and_the_replica_settles(
        (cliques, groups, strategy) in template(),
        events in proptest::collection::vec(event(), 0..60),
    ) {
        let mut world = World {
            cliques,
            groups,
            strategy,
            replica: Replica::default(),
            placement: Groups::default(),
            may_update: false,
            born: 0,
            cliques_said: BTreeMap::new(),
            groups_said: BTreeMap::new(),
        };
        for event in &events {
            world.happen(event);
        }
        world.may_update = true;
        world.settle();

        let template = world.template();
        let planned = plan(&template, &world.replica, Permit { may_update: true }, world.now());
        prop_assert!(!planned.changes_pods(), "{planned:?}");
        let strategy = world.strategy;
        prop_assert_eq!(planned.report.is_old && strategy == Update::RollingRecreate, false);
        let rounds = world.rounds(&planned);
        prop_assert!(rounds.restart.is_empty() && rounds.lanes.is_empty());
        prop_assert!(rounds.remove.is_empty() && rounds.remove_composites.is_empty());
        let mut expected = BTreeMap::new();
        for clique in &planned.cliques {
            expected.insert(clique.id.clone(), clique.effective);
        }
        for (id, clique) in &world.replica.cliques {
            prop_assert_eq!(clique.ready(), expected[id], "{:?}: {:?}", id, clique);
        }

        // Nothing happens any more, so what one look does not write is never written.
        let written = world.write();
        prop_assert_eq!(&written, &world.write());
        if strategy == Update::RollingRecreate {
            prop_assert!(written.0.is_updated, "{:?}", written);
        }
        for status in written.1.values() {
            prop_assert!(!status.progress.as_ref().is_some_and(Progress::runs), "{:?}", status);
        }
        for status in written.2.values() {
            prop_assert!(!status.progress.as_ref().is_some_and(Progress::runs), "{:?}", status);
        }
    }
}
