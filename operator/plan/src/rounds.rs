//! Which pods have to be placed together *now*.
//!
//! A scheduler that knows groups asks a group's whole minimum to be present at every attempt, also long after the gang
//! ran. A group that lost a member for good would then hold up every other pod that names it. So a group here is a
//! *round*: the pods that are placed together once.
//!
//! - A gang of which nothing is bound is placed as a whole: one round over the floors of all its cliques.
//! - When a gang that runs falls below its floor, what is missing forms a round of its own. A single missing pod, and
//!   every pod above the floor, is placed alone.
//! - Pods above the floor that are made while their floor waits *follow* the round: their group is made when the floor
//!   is placed, and until then they are held.
//!
//! A round is open until one of its pods is bound; a pod that goes missing from an open round is replaced in it. A pod
//! cannot change its group, so when an open round can no longer come about as it is (a clique became idle, woke up or
//! was scaled in) its unbound pods are *restarted*: deleted, and made again in the right round.

use std::collections::{BTreeMap, BTreeSet};

use crate::gang::Gang;
use crate::ids::{CliqueId, GangId, PodIndex, PodUid};
use crate::observed::{Lane, Pod, Replica, count};

/// Placement groups that exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    /// Groups by clique and lane.
    pub existing: BTreeMap<(CliqueId, Lane), Existing>,
    /// Composite groups by gang and round, with the number of children they demand.
    pub composites: BTreeMap<(GangId, u32), u32>,
}

/// A placement group that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Existing {
    /// Pods that must be placed together, `1..`.
    pub min: u32,
    /// It is a child of a composite group.
    pub parented: bool,
    /// The scheduler has reported it placed. Stays true for ever.
    pub placed: bool,
    /// It is being deleted; the server keeps it while pods name it.
    pub terminating: bool,
}

/// What the scheduler's groups should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rounds {
    /// The lane of each pod about to be created; absent: placed alone.
    pub lanes: BTreeMap<(CliqueId, PodIndex), Lane>,
    /// Unbound pods that wait in a round that cannot come about; to be deleted.
    pub restart: BTreeSet<PodUid>,
    /// Groups that must exist.
    pub groups: Vec<Group>,
    /// Existing groups that no pod names any more.
    pub remove: BTreeSet<(CliqueId, Lane)>,
    /// Existing composite groups without a group left.
    pub remove_composites: BTreeSet<(GangId, u32)>,
}

/// One placement of a gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The gang.
    pub gang: GangId,
    /// Which placement of it.
    pub round: u32,
    /// Clique and number of pods (`1..`) that must be placed together.
    pub floor: Vec<(CliqueId, u32)>,
    /// The floor's groups stand under one composite group: all or nothing.
    pub composite: bool,
    /// Cliques whose followers are released, one by one.
    pub followers: Vec<CliqueId>,
}

/// Assigns `creates` (pods about to be made) to rounds and says which groups must exist.
///
/// `may_place` tells whether a gang may be placed now: a scaled gang waits for the base gang's floor. A gang that may not
/// gets its pods and lanes, but its groups are withheld, which holds its pods.
#[must_use]
pub fn plan(
    gangs: &[Gang],
    replica: &Replica,
    creates: &BTreeMap<CliqueId, Vec<PodIndex>>,
    groups: &Groups,
    may_place: impl Fn(&GangId) -> bool,
) -> Rounds {
    let mut rounds = Rounds::default();
    for gang in gangs {
        let seats = gang.members.iter().map(|member| Seat {
            clique: &member.clique,
            min: member.min,
            pods: replica
                .cliques
                .get(&member.clique)
                .map_or(&[], |clique| &clique.pods),
            left: creates.get(&member.clique).map_or(&[], Vec::as_slice),
        });
        let mut view = View {
            gang: &gang.id,
            seats: seats.collect(),
            groups,
            out: &mut rounds,
        };
        if view.runs() {
            view.repair();
        } else {
            view.place_whole(may_place(&gang.id));
        }
        view.release_followers();
    }
    collect_garbage(gangs, replica, groups, &mut rounds);
    rounds
}

/// One clique's pods, seen from its gang's rounds.
struct Seat<'a> {
    clique: &'a CliqueId,
    min: u32,
    pods: &'a [Pod],
    /// Indexes about to be created that have no lane yet.
    left: &'a [PodIndex],
}

impl<'a> Seat<'a> {
    fn active(&self) -> impl Iterator<Item = &'a Pod> + use<'a> {
        self.pods.iter().filter(|pod| pod.is_active())
    }

    fn floor(&self, round: u32) -> u32 {
        let lane = Some(Lane { round, floor: true });
        count(self.active().filter(|pod| pod.lane == lane))
    }

    fn take(&mut self, wanted: u32) -> &'a [PodIndex] {
        let wanted = usize::try_from(wanted)
            .unwrap_or(usize::MAX)
            .min(self.left.len());
        let (taken, left) = self.left.split_at(wanted);
        self.left = left;
        taken
    }
}

struct View<'a> {
    gang: &'a GangId,
    seats: Vec<Seat<'a>>,
    groups: &'a Groups,
    out: &'a mut Rounds,
}

impl<'a> View<'a> {
    /// Something is bound, or is being bound: the scheduler tells of a group before it tells of the last of its pods.
    fn runs(&self) -> bool {
        self.seats.iter().any(|seat| {
            seat.active().any(|pod| {
                let floor = pod.lane.filter(|lane| lane.floor);
                pod.scheduled || floor.is_some_and(|lane| self.is_placed(lane.round))
            })
        })
    }

    fn existing(&self, clique: &CliqueId, round: u32, floor: bool) -> Option<Existing> {
        let lane = Lane { round, floor };
        self.groups.existing.get(&(clique.clone(), lane)).copied()
    }

    /// Every round that a pod or group of this gang names.
    fn known(&self) -> BTreeSet<u32> {
        let pods = self.seats.iter().flat_map(|seat| seat.pods);
        let of_pods = pods.filter_map(|pod| Some(pod.lane?.round));
        let groups = self.groups.existing.keys();
        let of_groups = groups
            .filter(|(clique, _)| self.seats.iter().any(|seat| seat.clique == clique))
            .map(|(_, lane)| lane.round);
        let composites = self.groups.composites.keys();
        let of_composites = composites
            .filter(|(gang, _)| gang == self.gang)
            .map(|(_, round)| *round);
        of_pods.chain(of_groups).chain(of_composites).collect()
    }

    fn is_placed(&self, round: u32) -> bool {
        self.seats.iter().any(|seat| {
            self.existing(seat.clique, round, true)
                .is_some_and(|group| group.placed)
                || seat
                    .pods
                    .iter()
                    .any(|pod| pod.scheduled && pod.lane == Some(Lane { round, floor: true }))
        })
    }

    fn assign(&mut self, seat: usize, wanted: u32, lane: Lane) -> u32 {
        let taken = self.seats[seat].take(wanted);
        let clique = self.seats[seat].clique;
        self.out
            .lanes
            .extend(taken.iter().map(|index| ((clique.clone(), *index), lane)));
        count(taken.iter())
    }

    /// Nothing is bound: the whole floor is one round.
    fn place_whole(&mut self, may_place: bool) {
        let alone = self.seats.iter().map(|seat| seat.min).sum::<u32>() == 1;
        let known = self.known();
        let open = known
            .last()
            .copied()
            .filter(|round| self.can_be_whole(*round));
        if alone && may_place && open.is_none() {
            // One pod is a gang by itself; nothing has to be said to the scheduler.
            self.restart(|pod| pod.lane.is_some());
            return;
        }
        let round = open.unwrap_or_else(|| known.last().map_or(0, |last| last + 1));
        self.restart(|pod| pod.lane.is_none_or(|lane| lane.round != round));
        let mut floor = Vec::new();
        for seat in 0..self.seats.len() {
            let Seat { clique, min, .. } = self.seats[seat];
            let mut short = min.saturating_sub(self.seats[seat].floor(round));
            short -= self.assign(seat, short, Lane { round, floor: true });
            self.assign(
                seat,
                u32::MAX,
                Lane {
                    round,
                    floor: false,
                },
            );
            self.promote(seat, round, short);
            floor.push((clique.clone(), min));
        }
        if may_place {
            self.out.groups.push(Group {
                gang: self.gang.clone(),
                round,
                composite: floor.len() > 1,
                floor,
                followers: Vec::new(),
            });
        }
    }

    /// Whether an existing round is, or can still become, the placement of the whole gang as it is now.
    fn can_be_whole(&self, round: u32) -> bool {
        let members = count(self.seats.iter());
        let composite = self
            .groups
            .composites
            .get(&(self.gang.clone(), round))
            .copied();
        if self.is_placed(round)
            || composite.is_some_and(|children| children != members || members == 1)
        {
            return false;
        }
        let fits = |clique: &CliqueId, group: Existing| {
            let seat = self.seats.iter().find(|seat| seat.clique == clique);
            !group.terminating
                && group.parented == (members > 1)
                && seat.is_some_and(|seat| seat.min == group.min)
        };
        let mut groups = self.groups.existing.iter();
        groups.all(|((clique, lane), group)| {
            let ours = self.seats.iter().any(|seat| seat.clique == clique);
            !ours || lane.round != round || !lane.floor || fits(clique, *group)
        })
    }

    /// The floor of an open round lacks `short` pods that nobody will create, because others took their place: they
    /// have to go, so that they come back in the floor.
    fn promote(&mut self, seat: usize, round: u32, short: u32) {
        let mut others: Vec<&Pod> = self.seats[seat]
            .active()
            .filter(|pod| !pod.scheduled && pod.lane != Some(Lane { round, floor: true }))
            .collect();
        others.sort_by_key(|pod| std::cmp::Reverse((pod.index, pod.uid.clone())));
        let short = usize::try_from(short).unwrap_or(usize::MAX);
        self.out
            .restart
            .extend(others.into_iter().take(short).map(|pod| pod.uid.clone()));
    }

    fn restart(&mut self, stale: impl Fn(&Pod) -> bool) {
        let pods = self.seats.iter().flat_map(Seat::active);
        let stale = pods.filter(|pod| !pod.scheduled && stale(pod));
        self.out.restart.extend(stale.map(|pod| pod.uid.clone()));
    }

    /// Something is bound: fill open rounds, then group what is missing below the floor.
    fn repair(&mut self) {
        let known = self.known();
        for &round in &known {
            if !self.is_placed(round) {
                self.fill(round);
            }
        }
        let below: Vec<u32> = self
            .seats
            .iter()
            .map(|seat| self.below_floor(seat))
            .collect();
        if below.iter().sum::<u32>() < 2 {
            return;
        }
        let round = known.last().map_or(0, |last| last + 1);
        let mut floor = Vec::new();
        for (seat, &missing) in below
            .iter()
            .enumerate()
            .filter(|(_, missing)| **missing > 0)
        {
            self.assign(seat, missing, Lane { round, floor: true });
            self.assign(
                seat,
                u32::MAX,
                Lane {
                    round,
                    floor: false,
                },
            );
            floor.push((self.seats[seat].clique.clone(), missing));
        }
        self.out.groups.push(Group {
            gang: self.gang.clone(),
            round,
            composite: floor.len() > 1,
            floor,
            followers: Vec::new(),
        });
    }

    /// Gives an open round back what it lost, or restarts it when that is impossible.
    fn fill(&mut self, round: u32) {
        let mut floor = Vec::new();
        let mut broken = false;
        for seat in 0..self.seats.len() {
            let clique = self.seats[seat].clique;
            let present = self.seats[seat].floor(round);
            let group = self.existing(clique, round, true);
            let min = group.map_or(present, |group| group.min);
            let filled = present
                + self.assign(
                    seat,
                    min.saturating_sub(present),
                    Lane { round, floor: true },
                );
            broken |= filled < min || group.is_some_and(|group| group.terminating);
            if min > 0 {
                floor.push((clique.clone(), min));
            }
        }
        let composite = self
            .groups
            .composites
            .get(&(self.gang.clone(), round))
            .copied();
        broken |= composite.is_some_and(|children| children != count(floor.iter()));
        // A round without a floor has lost it to scale-in: what follows it would wait for ever.
        broken |= floor.is_empty();
        if broken {
            self.out.lanes.retain(|(clique, _), lane| {
                lane.round != round || !self.seats.iter().any(|seat| seat.clique == clique)
            });
            self.restart(|pod| pod.lane.is_some_and(|lane| lane.round == round));
            return;
        }
        let composite = composite.is_some()
            || floor.len() > 1
                && floor.iter().all(|(clique, _)| {
                    self.existing(clique, round, true)
                        .is_none_or(|group| group.parented)
                });
        self.out.groups.push(Group {
            gang: self.gang.clone(),
            round,
            floor,
            composite,
            followers: Vec::new(),
        });
    }

    /// How many of the pods about to be made bring the clique up to its floor.
    fn below_floor(&self, seat: &Seat<'_>) -> u32 {
        let restarted = |pod: &&Pod| !self.out.restart.contains(&pod.uid);
        let active = count(seat.active().filter(restarted));
        let assigned = count(
            self.out
                .lanes
                .keys()
                .filter(|(clique, _)| clique == seat.clique),
        );
        seat.min
            .saturating_sub(active + assigned)
            .min(count(seat.left.iter()))
    }

    fn release_followers(&mut self) {
        for round in self.known() {
            let lane = Some(Lane {
                round,
                floor: false,
            });
            let named = |seat: &&Seat<'_>| {
                seat.pods
                    .iter()
                    .any(|pod| pod.is_active() && pod.lane == lane)
            };
            let followers: Vec<CliqueId> = self
                .seats
                .iter()
                .filter(named)
                .map(|seat| seat.clique.clone())
                .collect();
            if !followers.is_empty() && self.is_placed(round) {
                self.out.groups.push(Group {
                    gang: self.gang.clone(),
                    round,
                    floor: Vec::new(),
                    composite: false,
                    followers,
                });
            }
        }
    }
}

fn collect_garbage(gangs: &[Gang], replica: &Replica, groups: &Groups, rounds: &mut Rounds) {
    let mut used: BTreeSet<(CliqueId, Lane)> = BTreeSet::new();
    for (clique, observed) in &replica.cliques {
        used.extend(
            observed
                .pods
                .iter()
                .filter_map(|pod| Some((clique.clone(), pod.lane?))),
        );
    }
    used.extend(
        rounds
            .lanes
            .iter()
            .map(|((clique, _), lane)| (clique.clone(), *lane)),
    );
    let mut composites = BTreeSet::new();
    for group in &rounds.groups {
        let lane = |floor| Lane {
            round: group.round,
            floor,
        };
        used.extend(
            group
                .floor
                .iter()
                .map(|(clique, _)| (clique.clone(), lane(true))),
        );
        used.extend(
            group
                .followers
                .iter()
                .map(|clique| (clique.clone(), lane(false))),
        );
        if group.composite {
            composites.insert((group.gang.clone(), group.round));
        }
    }
    for gang in gangs {
        let of_gang =
            |clique: &CliqueId| gang.members.iter().any(|member| member.clique == *clique);
        let parents = used
            .iter()
            .filter(|(clique, lane)| lane.floor && of_gang(clique));
        composites.extend(parents.map(|(_, lane)| (gang.id.clone(), lane.round)));
    }
    let unused = groups
        .existing
        .iter()
        .filter(|(group, found)| !found.terminating && !used.contains(*group));
    rounds.remove = unused.map(|(group, _)| group.clone()).collect();
    let unused = groups
        .composites
        .keys()
        .filter(|composite| !composites.contains(*composite));
    rounds.remove_composites = unused.cloned().collect();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{CliqueName, GroupName};
    use crate::pods::fixtures::*;
    use crate::template::fixtures::wl2;
    use crate::template::{SetTemplate, Startup};

    /// `WL2` with nothing made yet, or further on.
    struct World {
        template: SetTemplate,
        scale: crate::gang::Scale,
        replica: Replica,
        groups: Groups,
    }

    impl World {
        fn new() -> Self {
            Self {
                template: wl2(Startup::AnyOrder),
                scale: crate::gang::Scale::default(),
                replica: Replica::default(),
                groups: Groups::default(),
            }
        }

        /// Plans, then does what the plan says.
        fn pass(&mut self) -> Rounds {
            let gangs = crate::gang::compose(&self.template, &self.scale);
            let mut creates = BTreeMap::new();
            for id in crate::gang::cliques(&self.template, &self.scale) {
                let observed = self
                    .replica
                    .cliques
                    .entry(id.clone())
                    .or_insert_with(|| clique(vec![]));
                let want = self.scale.clique(&self.template, &id);
                let changes = crate::pods::plan(observed, want, &observed.hash, now());
                for removal in &changes.delete {
                    observed.pods.retain(|pod| pod.uid != removal.pod);
                }
                creates.insert(id, changes.create);
            }
            let base_placed = self.scheduled("pc-a") > 0;
            let rounds = plan(&gangs, &self.replica, &creates, &self.groups, |gang| {
                *gang == GangId::Base || base_placed
            });
            for (id, indexes) in &creates {
                for index in indexes {
                    let mut made = pending(&format!("{id:?}/{index}/{}", self.made()), *index);
                    made.lane = rounds.lanes.get(&(id.clone(), *index)).copied();
                    self.replica.cliques.get_mut(id).unwrap().pods.push(made);
                }
            }
            for observed in self.replica.cliques.values_mut() {
                observed
                    .pods
                    .retain(|pod| !rounds.restart.contains(&pod.uid));
            }
            for group in &rounds.groups {
                for (id, min) in &group.floor {
                    let lane = Lane {
                        round: group.round,
                        floor: true,
                    };
                    self.groups
                        .existing
                        .entry((id.clone(), lane))
                        .or_insert(Existing {
                            min: *min,
                            parented: group.composite,
                            placed: false,
                            terminating: false,
                        });
                }
                if group.composite {
                    let children = count(group.floor.iter());
                    self.groups
                        .composites
                        .entry((group.gang.clone(), group.round))
                        .or_insert(children);
                }
                for id in &group.followers {
                    let lane = Lane {
                        round: group.round,
                        floor: false,
                    };
                    self.groups
                        .existing
                        .entry((id.clone(), lane))
                        .or_insert(Existing {
                            min: 1,
                            parented: false,
                            placed: false,
                            terminating: false,
                        });
                }
            }
            self.groups
                .existing
                .retain(|group, _| !rounds.remove.contains(group));
            self.groups
                .composites
                .retain(|group, _| !rounds.remove_composites.contains(group));
            rounds
        }

        fn made(&self) -> usize {
            self.replica
                .cliques
                .values()
                .map(|clique| clique.pods.len())
                .sum()
        }

        fn scheduled(&self, name: &str) -> usize {
            self.pods(name).filter(|pod| pod.scheduled).count()
        }

        fn pods(&self, name: &str) -> impl Iterator<Item = &Pod> {
            let name = name.to_owned();
            self.replica
                .cliques
                .iter()
                .filter(move |(id, _)| id.template().as_str() == name)
                .flat_map(|(_, clique)| &clique.pods)
        }

        /// Binds every pod whose group exists and is complete, as the scheduler would with endless room.
        fn bind(&mut self) {
            let groups = self.groups.clone();
            for (id, clique) in &mut self.replica.cliques {
                for pod in &mut clique.pods {
                    if pod
                        .lane
                        .is_none_or(|lane| groups.existing.contains_key(&(id.clone(), lane)))
                    {
                        *pod = Pod {
                            lane: pod.lane,
                            ..pod_at(pod)
                        };
                        if let Some(group) = pod
                            .lane
                            .and_then(|lane| self.groups.existing.get_mut(&(id.clone(), lane)))
                        {
                            group.placed = true;
                        }
                    }
                }
            }
        }

        fn settle(&mut self) {
            for _ in 0..6 {
                self.pass();
                self.bind();
            }
        }
    }

    fn pod_at(old: &Pod) -> Pod {
        pod(old.uid.as_str(), old.index.unwrap())
    }

    fn member(replica: u32, name: &str) -> CliqueId {
        CliqueId::Member {
            group: GroupName::new("sg-x").unwrap(),
            replica,
            clique: CliqueName::new(name).unwrap(),
        }
    }

    fn standalone(name: &str) -> CliqueId {
        CliqueId::Standalone(CliqueName::new(name).unwrap())
    }

    #[test]
    fn the_first_placement_is_the_whole_floor_and_the_scaled_gang_is_withheld() {
        let mut world = World::new();
        let rounds = world.pass();
        assert_eq!(rounds.groups.len(), 1);
        let base = &rounds.groups[0];
        assert_eq!(
            (&base.gang, base.round, base.composite),
            (&GangId::Base, 0, true)
        );
        assert_eq!(
            base.floor,
            [
                (standalone("pc-a"), 1),
                (member(0, "pc-b"), 1),
                (member(0, "pc-c"), 1)
            ]
        );
        let floor = |index| rounds.lanes[&(standalone("pc-a"), index)].floor;
        assert_eq!((floor(0), floor(1)), (true, false));
        // Everything has a lane: nothing may be bound before the floor.
        assert_eq!(rounds.lanes.len(), 10);

        world.bind();
        let rounds = world.pass();
        let made: Vec<_> = rounds
            .groups
            .iter()
            .map(|group| (group.gang.clone(), group.followers.len()))
            .collect();
        let scaled = GangId::Scaled {
            group: GroupName::new("sg-x").unwrap(),
            replica: 1,
        };
        assert_eq!(made, [(GangId::Base, 2), (scaled, 0)]);
    }

    #[test]
    fn planning_a_settled_gang_changes_nothing() {
        let mut world = World::new();
        world.settle();
        let before = (world.replica.clone(), world.groups.clone());
        let rounds = world.pass();
        assert_eq!(
            (
                rounds.lanes.len(),
                rounds.restart.len(),
                rounds.remove.len()
            ),
            (0, 0, 0)
        );
        assert_eq!((world.replica, world.groups), before);
    }

    #[test]
    fn a_replacement_in_a_running_gang_is_placed_alone() {
        let mut world = World::new();
        world.settle();
        world
            .replica
            .cliques
            .get_mut(&member(0, "pc-b"))
            .unwrap()
            .pods
            .clear();
        let rounds = world.pass();
        assert_eq!(rounds.lanes, BTreeMap::new());
        assert_eq!(world.pods("pc-b").count(), 2);
    }

    #[test]
    fn what_is_missing_below_the_floor_comes_back_together() {
        let mut world = World::new();
        world.settle();
        world
            .replica
            .cliques
            .get_mut(&member(0, "pc-b"))
            .unwrap()
            .pods
            .clear();
        world
            .replica
            .cliques
            .get_mut(&member(0, "pc-c"))
            .unwrap()
            .pods
            .clear();
        let rounds = world.pass();
        let repair = rounds.groups.iter().find(|group| group.round == 1).unwrap();
        assert!(repair.composite);
        assert_eq!(
            repair.floor,
            [(member(0, "pc-b"), 1), (member(0, "pc-c"), 1)]
        );
        // A pod lost while the repair waits is replaced inside it.
        world
            .replica
            .cliques
            .get_mut(&member(0, "pc-b"))
            .unwrap()
            .pods
            .clear();
        let rounds = world.pass();
        assert_eq!(
            rounds.lanes[&(member(0, "pc-b"), 0)],
            Lane {
                round: 1,
                floor: true
            }
        );
        world.settle();
        assert!(
            world
                .replica
                .cliques
                .values()
                .flat_map(|clique| &clique.pods)
                .all(|pod| pod.scheduled)
        );
    }

    #[test]
    fn pods_of_a_group_that_is_being_bound_are_left_alone() {
        let mut world = World::new();
        world.pass();
        for group in world.groups.existing.values_mut() {
            group.placed = true;
        }
        let rounds = world.pass();
        assert_eq!((rounds.restart.len(), rounds.lanes.len()), (0, 0));
    }

    #[test]
    fn a_clique_that_goes_idle_while_the_gang_waits_does_not_hold_the_rest() {
        let mut world = World::new();
        world.pass();
        world
            .scale
            .groups
            .insert(GroupName::new("sg-x").unwrap(), 0);
        world.replica.cliques.retain(|id, _| id.group().is_none());
        let rounds = world.pass();
        assert_eq!(
            rounds.restart.len(),
            2,
            "pods of pc-a name a group that demands three members"
        );
        world.settle();
        assert_eq!(world.scheduled("pc-a"), 2);
    }

    #[test]
    fn a_clique_that_wakes_while_the_gang_waits_joins_it() {
        let mut world = World::new();
        world
            .scale
            .groups
            .insert(GroupName::new("sg-x").unwrap(), 0);
        world.pass();
        world.scale.groups.clear();
        world.pass();
        let rounds = world.pass();
        let base = rounds
            .groups
            .iter()
            .find(|group| group.gang == GangId::Base)
            .unwrap();
        assert_eq!((base.floor.len(), base.composite), (3, true));
        world.settle();
        assert!(
            world
                .replica
                .cliques
                .values()
                .flat_map(|clique| &clique.pods)
                .all(|pod| pod.scheduled)
        );
    }

    #[test]
    fn the_floor_pod_lost_to_a_person_is_taken_over_by_a_follower() {
        let mut world = World::new();
        world.pass();
        let pods = &mut world
            .replica
            .cliques
            .get_mut(&standalone("pc-a"))
            .unwrap()
            .pods;
        pods.retain(|pod| !pod.lane.unwrap().floor);
        world.scale.cliques.insert(standalone("pc-a"), 1);
        let rounds = world.pass();
        assert_eq!(rounds.restart.len(), 1);
        world.settle();
        assert_eq!(world.scheduled("pc-a"), 1);
    }

    #[test]
    fn a_gang_that_lost_everything_is_placed_as_a_whole_again() {
        let mut world = World::new();
        world.settle();
        for clique in world.replica.cliques.values_mut() {
            clique.pods.clear();
        }
        let rounds = world.pass();
        let base = rounds
            .groups
            .iter()
            .find(|group| group.gang == GangId::Base)
            .unwrap();
        assert_eq!((base.round, base.floor.len()), (1, 3));
        assert!(rounds.lanes.values().all(|lane| lane.round > 0));
        world.settle();
        assert!(
            world.groups.existing.keys().all(|(_, lane)| lane.round > 0),
            "old groups are removed"
        );
    }
}
