//! GpuBudgets: what each policy that shares one may hold now, and the ledger of what was granted.
//!
//! A policy grows only after its grant is in the ledger, which is written by compare-and-swap: of two scalers that take the same GPUs one is refused
//! and looks again. A grant sinks when the pods are gone. So at every instant the GPUs of all policies, leaving ones included, are at most the limit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use coppice_scaler_api::{BudgetGrant, GpuBudget, Mode, ScalingPolicySpec};
use coppice_scaler_plan::pool::{Ask, Claim, allotments, ask, shares};
use coppice_scaler_plan::{Budget, Fleet, History, Holdings, Policy};
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::actuate::MANAGER;
use crate::observe::fleet::since;
use crate::target::message;
use crate::watch::Key;

/// A grant sinks at the earliest this long after it was raised: what was asked for with it has been seen by then.
const SETTLED: Duration = Duration::from_secs(15);

/// What is kept of a GpuBudget.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PoolView {
    pub(crate) resource: String,
    pub(crate) limit: u32,
    /// Priority by class.
    pub(crate) classes: BTreeMap<String, i32>,
    pub(crate) grants: Vec<BudgetGrant>,
    /// The state that a write must replace.
    version: Option<String>,
}

impl PoolView {
    pub(crate) fn new(budget: GpuBudget) -> Self {
        Self {
            version: budget.resource_version(),
            resource: budget.spec.resource,
            limit: budget.spec.limit,
            classes: budget
                .spec
                .classes
                .into_iter()
                .map(|class| (class.name, class.priority))
                .collect(),
            grants: budget
                .status
                .map(|status| status.grants)
                .unwrap_or_default(),
        }
    }

    /// The priority of a policy: that of its class, or the least one.
    fn priority(&self, class: Option<&str>) -> Result<i32, String> {
        match class {
            None => Ok(self.classes.values().min().copied().unwrap_or(0)),
            Some(class) => self.classes.get(class).copied().ok_or_else(|| {
                let known: Vec<&str> = self.classes.keys().map(String::as_str).collect();
                format!(
                    "budget.class: \"{class}\" is not one of its classes ({}): use one of these, or add it to spec.classes",
                    known.join(", ")
                )
            }),
        }
    }
}

/// All GpuBudgets, and which policies they are shared by.
#[derive(Debug)]
pub(crate) struct Pools {
    /// By name; the error says why they are not known.
    pub(crate) views: Result<BTreeMap<String, Arc<PoolView>>, String>,
    /// The pool that each policy of this scaler names.
    pub(crate) named: BTreeMap<Key, String>,
    /// The namespace that this scaler follows. `None`: all.
    pub(crate) scope: Option<String>,
    /// What this scaler counts as GPUs.
    pub(crate) resource: String,
}

/// A policy that names a pool and can be followed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Member<'a> {
    pub(crate) key: &'a Key,
    pub(crate) spec: &'a ScalingPolicySpec,
    pub(crate) plan: &'a Policy,
    pub(crate) history: &'a History,
    pub(crate) fleet: &'a Fleet,
}

/// How a policy stands with the pool that its budget names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It names none.
    Alone,
    /// The pool is not known, or does not know the policy: nothing grows.
    Unavailable(String),
    /// It may hold this much now.
    Member {
        /// Name of the pool.
        pool: String,
        /// GPUs of the pool.
        limit: u32,
        /// GPUs that the policy may hold now.
        allotted: u32,
        /// GPUs that it holds already.
        held: u32,
    },
}

impl Standing {
    /// The budget to decide under, where `own` is what the policy says itself.
    pub(crate) const fn budget(&self, own: Budget) -> Budget {
        match self {
            Self::Alone => own,
            Self::Unavailable(_) => Budget::Unknown,
            Self::Member { allotted, .. } => Budget::Gpus(*allotted),
        }
    }

    /// The same without room to grow.
    pub(crate) fn without_growth(&self) -> Self {
        match self {
            Self::Member {
                pool,
                limit,
                allotted,
                held,
            } => Self::Member {
                pool: pool.clone(),
                limit: *limit,
                allotted: *(allotted.min(held)),
                held: *held,
            },
            Self::Alone | Self::Unavailable(_) => self.clone(),
        }
    }
}

/// What a policy asks of its pool.
struct Request<'a> {
    member: Member<'a>,
    /// `None`: the GPUs of its units are not known.
    ask: Option<Ask>,
    granted: u64,
    priority: i32,
}

impl Request<'_> {
    fn held(&self) -> u64 {
        self.ask.map_or(0, |ask| ask.held).max(self.granted)
    }

    /// A policy that does not write asks for no more than it has.
    fn claim(&self) -> Option<Claim> {
        let ask = self.ask?;
        let held = self.held();
        let (minimum, wanted) = match self.member.spec.mode {
            Mode::Auto => (ask.minimum, ask.wanted),
            Mode::Advise | Mode::Paused => (held, held),
        };
        Some(Claim {
            priority: self.priority,
            held,
            minimum,
            wanted,
            step: ask.step,
        })
    }
}

impl Pools {
    /// How each of these policies stands with its pool at `now`, in their order.
    pub(crate) fn standings(&self, members: &[Member<'_>], now: Timestamp) -> Vec<Standing> {
        let mut standings = vec![Standing::Alone; members.len()];
        let mut by_pool: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (index, member) in members.iter().enumerate() {
            if let Some(pool) = self.named.get(member.key) {
                by_pool.entry(pool).or_default().push(index);
            }
        }
        for (pool, indices) in by_pool {
            let view = match self.view(pool) {
                Ok(view) => view,
                Err(why) => {
                    for index in indices {
                        standings[index] = Standing::Unavailable(why.clone());
                    }
                    continue;
                }
            };
            let mut requests = Vec::new();
            let mut asking = Vec::new();
            for index in indices {
                let member = members[index];
                let class = member
                    .spec
                    .budget
                    .as_ref()
                    .and_then(|own| own.class.as_deref());
                match view.priority(class) {
                    Err(why) => {
                        standings[index] =
                            Standing::Unavailable(format!("GpuBudget \"{pool}\": {why}"));
                    }
                    Ok(priority) => {
                        let ask = ask(member.plan, member.history, member.fleet, view.limit, now);
                        let granted = self.granted(view, |key| key == member.key);
                        asking.push(index);
                        requests.push(Request {
                            member,
                            ask,
                            granted,
                            priority,
                        });
                    }
                }
            }
            for (index, allotted) in asking.into_iter().zip(self.allot(pool, view, &requests)) {
                standings[index] = allotted;
            }
        }
        standings
    }

    /// The names of all pools.
    pub(crate) fn known(&self) -> impl Iterator<Item = &str> {
        let views = self.views.iter().flat_map(BTreeMap::keys);
        views.map(String::as_str)
    }

    /// Name, GPUs and granted GPUs of all pools.
    pub(crate) fn totals(&self) -> Vec<(String, u32, u64)> {
        let views = self.views.iter().flatten();
        views
            .map(|(name, view)| (name.clone(), view.limit, self.granted(view, |_| true)))
            .collect()
    }

    fn view(&self, pool: &str) -> Result<&PoolView, String> {
        let views = self
            .views
            .as_ref()
            .map_err(|why| format!("GpuBudgets cannot be read, so nothing grows: {why}"))?;
        let view = views.get(pool).ok_or_else(|| {
            format!("budget.name: GpuBudget \"{pool}\" does not exist, so nothing grows: create it, or give budget.gpus")
        })?;
        if view.resource == self.resource {
            Ok(view)
        } else {
            Err(format!(
                "GpuBudget \"{pool}\" counts {}, and this scaler counts {} (--gpu-resource), so nothing grows: make them the same",
                view.resource, self.resource
            ))
        }
    }

    /// GPUs granted to policies that `counts`.
    fn granted(&self, view: &PoolView, counts: impl Fn(&Key) -> bool) -> u64 {
        let grants = view.grants.iter();
        grants
            .filter(|grant| key_of(&grant.policy).is_some_and(|key| counts(&key)))
            .map(|grant| u64::from(grant.gpus))
            .sum()
    }

    /// Whether a policy with grants is gone, or has left this pool, as far as this scaler can tell.
    fn is_gone(&self, pool: &str, key: &Key) -> bool {
        let ours = self.scope.as_ref().is_none_or(|scope| *scope == key.0);
        ours && self.named.get(key).is_none_or(|named| named != pool)
    }

    fn allot(&self, pool: &str, view: &PoolView, requests: &[Request<'_>]) -> Vec<Standing> {
        let claims: Vec<Claim> = requests.iter().filter_map(Request::claim).collect();
        // Policies that others follow, that cannot be followed now, or whose GPUs are not known keep what they were granted.
        let elsewhere = self.granted(view, |key| {
            let claims = requests
                .iter()
                .any(|request| request.ask.is_some() && request.member.key == key);
            !claims && !self.is_gone(pool, key)
        });
        let ours = u64::from(view.limit).saturating_sub(elsewhere);
        let shares = shares(ours, &claims);
        let mut allotted = allotments(ours, &claims, &shares).into_iter();
        let free = ours.saturating_sub(claims.iter().map(|claim| claim.held).sum());
        let each = requests.iter().map(|request| {
            let now = match (request.ask, request.member.spec.mode) {
                // Growth is refused by the plan, which names the reason.
                (None, _) => u64::from(view.limit),
                (Some(_), Mode::Auto) => allotted.next().unwrap_or(0),
                (Some(_), Mode::Advise | Mode::Paused) => {
                    allotted.next();
                    request.held() + free
                }
            };
            Standing::Member {
                pool: pool.to_owned(),
                limit: view.limit,
                allotted: whole(now),
                held: whole(request.held()),
            }
        });
        each.collect()
    }

    /// The ledger of `pool` after these decisions. `None`: it stays as it is. Each decision comes with whether everything that was asked for before
    /// has been seen, so that its grant may sink.
    pub(crate) fn ledger(
        &self,
        pool: &str,
        decided: &[(Member<'_>, Option<&Holdings>, bool)],
        now: Timestamp,
    ) -> Option<Vec<BudgetGrant>> {
        let view = self.view(pool).ok()?;
        let mut grants: Vec<BudgetGrant> = view
            .grants
            .iter()
            .filter(|grant| {
                let Some(key) = key_of(&grant.policy) else {
                    return false;
                };
                let counted = decided
                    .iter()
                    .any(|(member, held, _)| *member.key == key && held.is_some());
                !counted && !self.is_gone(pool, &key)
            })
            .cloned()
            .collect();
        for (member, held, may_sink) in decided {
            let Some(held) = held else { continue };
            let policy = name_of(member.key);
            for (role, units, gpus) in parts(member, held) {
                let before = view
                    .grants
                    .iter()
                    .find(|grant| grant.policy == policy && grant.role == role);
                let wanted = BudgetGrant {
                    policy: policy.clone(),
                    role,
                    units,
                    gpus,
                    at: now,
                };
                grants.extend(next(before, wanted, *may_sink, now));
            }
        }
        grants.sort_by(|one, other| (&one.policy, &one.role).cmp(&(&other.policy, &other.role)));
        (grants != view.grants).then_some(grants)
    }

    /// Writes the ledger of `pool` unless someone else has written it since it was read.
    pub(crate) async fn write(
        &self,
        client: &Client,
        pool: &str,
        grants: &[BudgetGrant],
    ) -> Result<(), Refused> {
        let view = self.view(pool).map_err(Refused::ByServer)?;
        let granted: u64 = grants.iter().map(|grant| u64::from(grant.gpus)).sum();
        let patch = json!({
            "metadata": {"resourceVersion": view.version},
            "status": {"granted": whole(granted), "grants": grants},
        });
        let parameters = PatchParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let api: Api<GpuBudget> = Api::all(client.clone());
        match api
            .patch_status(pool, &parameters, &Patch::Merge(&patch))
            .await
        {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                Err(Refused::Outdated)
            }
            Err(error) => Err(Refused::ByServer(format!(
                "the grant cannot be written to GpuBudget \"{pool}\", so nothing grows: {}",
                message(&error)
            ))),
        }
    }
}

/// Why a ledger was not written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Someone else wrote it first: the next pass looks again.
    Outdated,
    /// The API server's reason.
    ByServer(String),
}

/// What a policy holds by role; pods that belong to no role come last, without one.
fn parts<'a>(
    member: &'a Member<'_>,
    held: &'a Holdings,
) -> impl Iterator<Item = (Option<String>, u32, u32)> + 'a {
    let roles = member.spec.roles.iter().zip(&member.fleet.roles);
    let of_roles = roles.zip(&held.roles).map(|((role, fleet), gpus)| {
        let units = gpus
            .checked_div(fleet.gpus_per_unit.unwrap_or(0).into())
            .unwrap_or(0);
        (Some(role.name.clone()), whole(units), whole(*gpus))
    });
    of_roles.chain([(None, 0, whole(held.beside))])
}

/// The grant after a decision that holds `wanted`: raised at once; lowered when it may sink and was not raised just now; gone at nothing.
fn next(
    before: Option<&BudgetGrant>,
    wanted: BudgetGrant,
    may_sink: bool,
    now: Timestamp,
) -> Option<BudgetGrant> {
    let Some(before) = before else {
        return (wanted.gpus > 0).then_some(wanted);
    };
    if wanted.gpus > before.gpus {
        return Some(wanted);
    }
    let sinks = may_sink && since(Some(before.at), now) >= SETTLED;
    if wanted.gpus == before.gpus || !sinks {
        return Some(before.clone());
    }
    (wanted.gpus > 0).then_some(BudgetGrant {
        at: before.at,
        ..wanted
    })
}

fn name_of(key: &Key) -> String {
    format!("{}/{}", key.0, key.1)
}

fn key_of(policy: &str) -> Option<Key> {
    let (namespace, name) = policy.split_once('/')?;
    Some((namespace.to_owned(), name.to_owned()))
}

fn whole(gpus: u64) -> u32 {
    u32::try_from(gpus).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use coppice_scaler_plan::{RoleFleet, RoleInSet, SetFleet};

    use super::*;
    use crate::policy::{Pace, validate};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn grant(policy: &str, role: Option<&str>, gpus: u32, second: i64) -> BudgetGrant {
        BudgetGrant {
            policy: policy.to_owned(),
            role: role.map(str::to_owned),
            units: gpus / 2,
            gpus,
            at: at(second),
        }
    }

    fn pools(scope: Option<&str>, grants: Vec<BudgetGrant>) -> Pools {
        let view = PoolView {
            resource: "nvidia.com/gpu".to_owned(),
            limit: 16,
            classes: BTreeMap::from([("batch".to_owned(), 10), ("production".to_owned(), 100)]),
            grants,
            version: Some("7".to_owned()),
        };
        Pools {
            views: Ok(BTreeMap::from([("pool".to_owned(), Arc::new(view))])),
            named: ["batch", "production"]
                .map(|name| (key(name), "pool".to_owned()))
                .into(),
            scope: scope.map(str::to_owned),
            resource: "nvidia.com/gpu".to_owned(),
        }
    }

    fn key(name: &str) -> Key {
        ("serving".to_owned(), name.to_owned())
    }

    /// A policy of one role with two GPUs a unit.
    struct Case {
        key: Key,
        spec: ScalingPolicySpec,
        plan: Policy,
        history: History,
        fleet: Fleet,
    }

    impl Case {
        /// Units that exist, in a class, of a role that has at least `min` units.
        fn new(name: &str, class: &str, units: u32, min: u32) -> Self {
            let spec = json!({
                "target": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
                "roles": [{"name": "server", "stage": "Aggregated", "min": min, "max": 20, "signal": {"queueDepth": {"waitingPerUnit": 4}}}],
                "budget": {"name": "pool", "class": class},
            });
            let spec: ScalingPolicySpec = serde_json::from_value(spec).unwrap();
            let pace = Pace {
                interval: Duration::from_secs(5),
                scrape_interval: Duration::from_secs(5),
            };
            let role = RoleInSet {
                desired: Some(units),
                ready: units,
                gpus: units * 2,
                ..RoleInSet::default()
            };
            Self {
                key: key(name),
                plan: validate(&spec, &BTreeMap::new(), pace).unwrap(),
                spec,
                history: History::new(at(0)),
                fleet: Fleet {
                    roles: vec![RoleFleet {
                        gpus_per_unit: Some(2),
                        quorum: 1,
                        initial: 1,
                        starting: Vec::new(),
                        conflict: false,
                    }],
                    desired_sets: 1,
                    sets: vec![SetFleet {
                        index: 0,
                        roles: vec![role],
                        other_gpus: 0,
                        other_terminating_gpus: 0,
                    }],
                    gpus_beside_roles: Some(0),
                    rollout: false,
                },
            }
        }

        fn member(&self) -> Member<'_> {
            Member {
                key: &self.key,
                spec: &self.spec,
                plan: &self.plan,
                history: &self.history,
                fleet: &self.fleet,
            }
        }
    }

    fn room(standing: &Standing) -> (u32, u32) {
        match standing {
            Standing::Member { allotted, held, .. } => (*allotted, *held),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_higher_class_takes_what_a_lower_one_lets_go_and_no_sooner() {
        let (batch, production) = (
            Case::new("batch", "batch", 7, 1),
            Case::new("production", "production", 1, 6),
        );
        let standings =
            pools(None, Vec::new()).standings(&[batch.member(), production.member()], at(100));
        assert_eq!(
            room(&standings[0]),
            (4, 14),
            "all but the minimum of the other"
        );
        assert_eq!(room(&standings[1]), (2, 2), "nothing is free yet");
    }

    #[test]
    fn a_grant_counts_before_its_pods_are_seen_and_so_does_a_foreign_one() {
        let batch = Case::new("batch", "batch", 2, 8);
        let grants = vec![
            grant("elsewhere/other", Some("server"), 4, 0),
            grant("serving/production", Some("server"), 6, 0),
        ];
        let standings = pools(Some("serving"), grants).standings(&[batch.member()], at(100));
        assert_eq!(
            room(&standings[0]),
            (6, 4),
            "16 less 4 elsewhere less 6 of a policy that cannot be followed now"
        );
    }

    #[test]
    fn grants_of_policies_that_are_gone_are_returned_by_those_who_can_tell() {
        let grants = vec![
            grant("elsewhere/other", Some("server"), 4, 0),
            grant("serving/deleted", Some("server"), 6, 0),
        ];
        let ledger = pools(Some("serving"), grants.clone()).ledger("pool", &[], at(100));
        assert_eq!(ledger, Some(vec![grants[0].clone()]), "one namespace");
        let ledger = pools(None, grants).ledger("pool", &[], at(100));
        assert_eq!(ledger, Some(Vec::new()), "the whole cluster");
    }

    #[test]
    fn a_grant_rises_at_once_and_sinks_when_its_writes_have_been_seen() {
        let old = grant("serving/batch", Some("server"), 8, 100);
        let more = grant("serving/batch", Some("server"), 10, 110);
        let less = grant("serving/batch", Some("server"), 6, 110);
        assert_eq!(next(Some(&old), more.clone(), false, at(110)), Some(more));
        assert_eq!(
            next(Some(&old), less.clone(), true, at(110)),
            Some(old.clone()),
            "raised just now"
        );
        assert_eq!(
            next(Some(&old), less.clone(), false, at(200)),
            Some(old.clone()),
            "a write has not been seen"
        );
        let sunk = BudgetGrant { at: old.at, ..less };
        assert_eq!(next(Some(&old), sunk.clone(), true, at(115)), Some(sunk));
        let nothing = grant("serving/batch", Some("server"), 0, 200);
        assert_eq!(next(Some(&old), nothing.clone(), true, at(200)), None);
        assert_eq!(next(None, nothing, true, at(200)), None);
    }

    #[test]
    fn a_ledger_that_says_what_is_held_is_not_written() {
        let batch = Case::new("batch", "batch", 3, 1);
        let held = batch.fleet.holdings().unwrap();
        let grants = vec![grant("serving/batch", Some("server"), 6, 0)];
        let decided = [(batch.member(), Some(&held), true)];
        assert_eq!(pools(None, grants).ledger("pool", &decided, at(100)), None);
        let raised = pools(None, Vec::new()).ledger("pool", &decided, at(100));
        assert_eq!(
            raised,
            Some(vec![grant("serving/batch", Some("server"), 6, 100)])
        );
    }

    #[test]
    fn what_is_not_known_grows_nothing_and_is_said_with_the_next_step() {
        let stranger = Case::new("batch", "gold", 1, 1);
        let mut all = pools(None, Vec::new());
        let why = |pools: &Pools| match pools.standings(&[stranger.member()], at(1)).remove(0) {
            Standing::Unavailable(why) => why,
            other => panic!("{other:?}"),
        };
        assert!(
            why(&all)
                .contains("budget.class: \"gold\" is not one of its classes (batch, production)")
        );
        all.resource = "amd.com/gpu".to_owned();
        assert!(why(&all).contains("counts nvidia.com/gpu, and this scaler counts amd.com/gpu"));
        all.views = Ok(BTreeMap::new());
        assert!(
            why(&all).contains("GpuBudget \"pool\" does not exist, so nothing grows: create it")
        );
        all.views = Err("forbidden".to_owned());
        assert!(why(&all).contains("cannot be read, so nothing grows: forbidden"));
    }

    #[test]
    fn a_policy_that_only_advises_asks_for_no_room() {
        let (mut advising, production) = (
            Case::new("batch", "production", 2, 8),
            Case::new("production", "production", 1, 6),
        );
        advising.spec.mode = Mode::Advise;
        let standings =
            pools(None, Vec::new()).standings(&[advising.member(), production.member()], at(100));
        assert_eq!(room(&standings[1]), (12, 2));
        assert_eq!(room(&standings[0]), (14, 4), "what it could have now");
    }
}
