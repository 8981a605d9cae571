//! GpuBudgets: what each policy that shares one may hold now, and the ledger of what was granted.
//!
//! A policy grows only after its grant is in the ledger, which is written by compare-and-swap: of two scalers that take the same GPUs one is refused
//! and looks again. A grant sinks when the pods are gone. So at every instant the GPUs of all policies, leaving ones included, are at most the limit.

use std::collections::BTreeMap;
use std::sync::Arc;

use coppice_scaler_api::{BudgetGrant, GpuBudget, Mode, ScalingPolicySpec};
use coppice_scaler_plan::pool::{Ask, Claim, allotments, ask, shares};
use coppice_scaler_plan::{Budget, Fleet, History, Policy};
use jiff::Timestamp;
use kube::ResourceExt;

use crate::watch::Key;

mod ledger;
#[cfg(test)]
mod tests;

pub(crate) use ledger::Refused;

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
