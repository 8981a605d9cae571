//! Gang termination: what has lost its minimum for too long is taken down as a whole, and comes back as a whole.
//!
//! A gang below its minimum serves nothing and holds what others could use; its lost pods may have no place beside the
//! rest any more. Two levels: a scaling-group replica that is broken goes alone while its group keeps its minimum without
//! it; a group or standalone clique below its minimum takes the whole set replica along.
//!
//! Only what has run is taken down. That is a recorded fact of the very object ([`Breach::ran`]), so what was re-created and
//! has not come up yet is left alone, also by an operator that has just started. What is broken again and again waits twice
//! as long each time.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::gang::Scale;
use crate::ids::{CliqueId, GroupIndex, GroupName};
use crate::observed::count;
use crate::template::SetTemplate;

/// The delay doubles with each time in a row, this many times at most.
const MOST_DOUBLINGS: u32 = 5;
/// What has held for this long, and for its last delay, is forgiven.
const FORGIVEN_AFTER: SignedDuration = SignedDuration::from_mins(10);

/// Something is below its minimum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breach {
    /// Since when.
    pub since: Timestamp,
    /// It has had its minimum ready before.
    pub ran: bool,
}

/// A scaling group, as far as termination is concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// It has fewer healthy replicas than its minimum.
    pub breach: Option<Breach>,
    /// An update of it runs: its replicas are left alone.
    pub updates: bool,
    /// The set replica was taken down as a whole at this time, and the group has not come up since; whole seconds.
    pub ending_since: Option<Timestamp>,
}

/// What is taken down together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// The whole set replica.
    Whole,
    /// One replica of a scaling group.
    GroupReplica(GroupName, GroupIndex),
}

/// How often something was taken down in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Episodes {
    /// How often.
    pub count: u32,
    /// The last time.
    pub last: Timestamp,
}

/// What is known of one set replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Cliques below their minimum. What is being updated, or deleted, is not judged and not listed.
    pub cliques: BTreeMap<CliqueId, Breach>,
    /// All scaling groups.
    pub groups: BTreeMap<GroupName, Group>,
    /// When the oldest PodClique that is not on its way out was created.
    pub oldest: Option<Timestamp>,
    /// What was taken down before.
    pub episodes: BTreeMap<Scope, Episodes>,
}

/// What is to be taken down, and what will be unless it recovers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Termination {
    /// What goes now, and for which time in a row. [`Scope::Whole`] is alone.
    pub now: BTreeMap<Scope, u32>,
    /// When cliques in breach will be a reason to take something down.
    pub cliques: BTreeMap<CliqueId, Timestamp>,
    /// The same of groups.
    pub groups: BTreeMap<GroupName, Timestamp>,
}

impl Termination {
    /// Everything goes.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.now.contains_key(&Scope::Whole)
    }

    /// When to look again, if nothing happens before.
    #[must_use]
    pub fn wake(&self) -> Option<Timestamp> {
        self.cliques
            .values()
            .chain(self.groups.values())
            .min()
            .copied()
    }
}

/// Decides for one set replica. `delay` is how long a minimum may be missing.
#[must_use]
pub fn plan(
    template: &SetTemplate,
    scale: &Scale,
    state: &State,
    delay: SignedDuration,
    now: Timestamp,
) -> Termination {
    let mut termination = Termination::default();
    // A whole termination that was begun, and that nobody ended.
    let begun = state
        .groups
        .values()
        .filter_map(|group| group.ending_since)
        .max();
    if begun.is_some_and(|begun| state.oldest.is_some_and(|oldest| oldest < begun)) {
        let count = state
            .episodes
            .get(&Scope::Whole)
            .map_or(1, |episodes| episodes.count);
        termination.now.insert(Scope::Whole, count);
        return termination;
    }

    let mut whole = None;
    for (id, breach) in state
        .cliques
        .iter()
        .filter(|(id, breach)| id.group().is_none() && breach.ran)
    {
        let (due, count) = due(state, &Scope::Whole, *breach, delay);
        whole = whole.max((due <= now).then_some(count));
        termination.cliques.insert(id.clone(), due);
    }
    for (name, group) in &state.groups {
        if let Some(breach) = group
            .breach
            .filter(|breach| breach.ran && group.ending_since.is_none())
        {
            let (due, count) = due(state, &Scope::Whole, breach, delay);
            whole = whole.max((due <= now).then_some(count));
            termination.groups.insert(name.clone(), due);
        }
    }
    if let Some(count) = whole {
        return Termination {
            now: BTreeMap::from([(Scope::Whole, count)]),
            ..Termination::default()
        };
    }
    for group in template.groups() {
        let known = state.groups.get(&group.name).copied().unwrap_or_default();
        if !known.updates {
            group_replicas(
                template,
                scale,
                &group.name,
                state,
                delay,
                now,
                &mut termination,
            );
        }
    }
    termination
}

/// Broken replicas of a group that keeps its minimum without them.
fn group_replicas(
    template: &SetTemplate,
    scale: &Scale,
    group: &GroupName,
    state: &State,
    delay: SignedDuration,
    now: Timestamp,
    termination: &mut Termination,
) {
    let replicas = scale.group(template, group);
    let minimum = template
        .group(group)
        .map_or(0, |group| group.min_available.get());
    let members = || {
        state.cliques.iter().filter_map(|(id, breach)| {
            let (of, replica) = id.group()?;
            (of == group && replica < replicas).then_some((id, replica, *breach))
        })
    };
    let down: BTreeSet<GroupIndex> = members().map(|(_, replica, _)| replica).collect();
    if replicas.saturating_sub(count(down.iter())) < minimum {
        return;
    }
    for (id, replica, breach) in members().filter(|(_, _, breach)| breach.ran) {
        let scope = Scope::GroupReplica(group.clone(), replica);
        let (due, count) = due(state, &scope, breach, delay);
        if due <= now {
            termination.now.insert(scope, count);
        } else {
            termination.cliques.insert(id.clone(), due);
        }
    }
    // What goes now is no reason to look again.
    let gone = &termination.now;
    termination.cliques.retain(|id, _| {
        id.group().is_none_or(|(group, replica)| {
            !gone.contains_key(&Scope::GroupReplica(group.clone(), replica))
        })
    });
}

/// When the breach will have lasted too long, and for which time in a row that will be.
fn due(state: &State, scope: &Scope, breach: Breach, delay: SignedDuration) -> (Timestamp, u32) {
    let earlier = state.episodes.get(scope).map_or(0, |episodes| {
        let last_delay = doubled(delay, episodes.count.saturating_sub(1));
        let held = breach.since.duration_since(episodes.last);
        let is_forgiven = held > last_delay.max(FORGIVEN_AFTER);
        if is_forgiven { 0 } else { episodes.count }
    });
    let due = breach.since.checked_add(doubled(delay, earlier));
    (due.unwrap_or(Timestamp::MAX), earlier.saturating_add(1))
}

fn doubled(delay: SignedDuration, times: u32) -> SignedDuration {
    delay
        .checked_mul(1 << times.min(MOST_DOUBLINGS))
        .unwrap_or(SignedDuration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::CliqueName;
    use crate::pods::fixtures::now;
    use crate::template::fixtures::wl2;
    use crate::template::{Startup, effective};

    const DELAY: SignedDuration = SignedDuration::from_secs(60);

    fn at(second: i64) -> Timestamp {
        now() + SignedDuration::from_secs(second)
    }

    fn alone() -> CliqueId {
        CliqueId::Standalone(CliqueName::new("pc-a").unwrap())
    }

    fn group() -> GroupName {
        GroupName::new("sg-x").unwrap()
    }

    fn member(replica: u32) -> CliqueId {
        CliqueId::Member {
            group: group(),
            replica,
            clique: CliqueName::new("pc-c").unwrap(),
        }
    }

    fn ran(second: i64) -> Breach {
        Breach {
            since: at(second),
            ran: true,
        }
    }

    fn never_ran(second: i64) -> Breach {
        Breach {
            since: at(second),
            ran: false,
        }
    }

    /// WL2: `pc-a` 2 (min 1), group `sg-x` 2 (min 1) of `pc-b` 1 and `pc-c` 3 (min 1).
    fn decide(state: &State, second: i64) -> Termination {
        plan(
            &wl2(Startup::AnyOrder),
            &Scale::default(),
            state,
            DELAY,
            at(second),
        )
    }

    fn whole() -> BTreeMap<Scope, u32> {
        BTreeMap::from([(Scope::Whole, 1)])
    }

    fn state(cliques: &[(CliqueId, Breach)], of_group: Group) -> State {
        State {
            cliques: cliques.iter().cloned().collect(),
            groups: BTreeMap::from([(group(), of_group)]),
            oldest: Some(at(-1000)),
            episodes: BTreeMap::new(),
        }
    }

    #[test]
    fn the_workload_is_what_these_tests_think() {
        let template = wl2(Startup::AnyOrder);
        let of = template.group(&group()).unwrap();
        assert_eq!(
            (
                effective(of.replicas, of.min_available),
                of.min_available.get()
            ),
            (2, 1)
        );
    }

    #[test]
    fn a_standalone_clique_takes_all_along_when_the_delay_is_over_and_says_when_before() {
        let state = state(&[(alone(), ran(0))], Group::default());
        let waiting = decide(&state, 59);
        assert!(waiting.now.is_empty());
        assert_eq!(
            (waiting.cliques[&alone()], waiting.wake()),
            (at(60), Some(at(60)))
        );
        assert_eq!(decide(&state, 60).now, whole());
    }

    #[test]
    fn what_never_ran_is_left_alone() {
        let broken = Group {
            breach: Some(never_ran(0)),
            ..Group::default()
        };
        let state = state(
            &[(alone(), never_ran(0)), (member(0), never_ran(0))],
            broken,
        );
        assert_eq!(decide(&state, 10_000), Termination::default());
    }

    #[test]
    fn a_broken_replica_goes_alone_while_its_group_keeps_its_minimum() {
        let state = state(&[(member(0), ran(0))], Group::default());
        let goes = BTreeMap::from([(Scope::GroupReplica(group(), 0), 1)]);
        assert_eq!(decide(&state, 59).wake(), Some(at(60)));
        let due = decide(&state, 60);
        assert_eq!((due.now.clone(), due.wake()), (goes, None));
    }

    #[test]
    fn a_broken_replica_stays_while_the_other_has_not_come_up() {
        let down = state(
            &[(member(0), ran(0)), (member(1), never_ran(0))],
            Group::default(),
        );
        assert_eq!(decide(&down, 60), Termination::default());
    }

    #[test]
    fn a_group_below_its_minimum_takes_all_along_and_its_replicas_do_not_go_alone() {
        let broken = Group {
            breach: Some(ran(30)),
            ..Group::default()
        };
        let state = state(&[(member(0), ran(0)), (member(1), ran(30))], broken);
        let waiting = decide(&state, 89);
        assert!(waiting.now.is_empty(), "{waiting:?}");
        assert_eq!(
            (waiting.groups[&group()], waiting.wake()),
            (at(90), Some(at(90)))
        );
        assert_eq!(decide(&state, 90).now, whole());
    }

    #[test]
    fn replicas_of_a_group_that_is_updated_are_left_alone() {
        let updated = Group {
            updates: true,
            ..Group::default()
        };
        assert_eq!(
            decide(&state(&[(member(0), ran(0))], updated), 100),
            Termination::default()
        );
    }

    #[test]
    fn an_episode_ends_a_gang_once() {
        // All objects are new; the group has not come up again.
        let mut after = state(
            &[
                (alone(), never_ran(100)),
                (member(0), never_ran(100)),
                (member(1), never_ran(100)),
            ],
            Group {
                breach: Some(ran(30)),
                updates: false,
                ending_since: Some(at(90)),
            },
        );
        after.oldest = Some(at(90));
        assert_eq!(decide(&after, 10_000), Termination::default());
    }

    #[test]
    fn a_termination_that_was_cut_short_is_ended() {
        let begun = Group {
            breach: Some(ran(30)),
            updates: false,
            ending_since: Some(at(90)),
        };
        let mut state = state(&[(member(0), ran(30))], begun);
        state.oldest = Some(at(89));
        assert_eq!(decide(&state, 91).now, whole());
    }

    #[test]
    fn each_time_in_a_row_waits_twice_as_long_until_it_has_held() {
        let mut episodes = None;
        let mut begin = 0;
        let mut waits = Vec::new();
        for _ in 0..8 {
            let mut state = state(&[(alone(), ran(begin))], Group::default());
            state.episodes = episodes
                .map(|episodes| (Scope::Whole, episodes))
                .into_iter()
                .collect();
            let due = decide(&state, begin).wake().unwrap();
            waits.push(due.duration_since(at(begin)).as_secs());
            let at_last = plan(
                &wl2(Startup::AnyOrder),
                &Scale::default(),
                &state,
                DELAY,
                due,
            );
            episodes = Some(Episodes {
                count: at_last.now[&Scope::Whole],
                last: due,
            });
            // It came up, ran for half a minute, and broke again.
            begin = due.duration_since(now()).as_secs() + 30;
        }
        assert_eq!(waits, [60, 120, 240, 480, 960, 1920, 1920, 1920]);
        let mut state = state(&[(alone(), ran(begin + 4000))], Group::default());
        state.episodes = episodes
            .map(|episodes| (Scope::Whole, episodes))
            .into_iter()
            .collect();
        assert_eq!(decide(&state, begin + 4000).wake(), Some(at(begin + 4060)));
    }
}
