//! One policy, one pass: validate → observe → decide → carry out → record.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use coppice_runtime::lease::Tenure;
use coppice_scaler_api::{Actuation, Mode, Reason, Role, ScalingPolicy, ScalingPolicyStatus};
use coppice_scaler_plan::{self as plan, Decision, Fleet, StepObject, decide};
use coppice_signals::Signals;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tracing::{debug, error, warn};

use crate::actuate::{self, MANAGER, Outcome};
use crate::conditions::{Facts, conditions};
use crate::events::{self, Events};
use crate::memory::Memory;
use crate::metrics::Metrics;
use crate::observe::endpoints::{self, Endpoints};
use crate::observe::fleet::{self, World, since};
use crate::observe::load::look;
use crate::page::Board;
use crate::policy::{Pace, validate};
use crate::target::{self, NoTarget, Target, message};
use crate::translate;
use crate::views::{PodView, ScaledView, SetView};
use crate::watch::Key;
use crate::{profile, writers::Writers};

/// How long a profile that was read is used before it is read again.
const PROFILE_AGE: Duration = Duration::from_secs(60);

/// What all policies share in one pass.
#[derive(Debug)]
pub(crate) struct Views {
    pub(crate) sets: Option<BTreeMap<Key, Arc<SetView>>>,
    pub(crate) cliques: BTreeMap<Key, Arc<ScaledView>>,
    pub(crate) groups: BTreeMap<Key, Arc<ScaledView>>,
    pub(crate) pods: BTreeMap<String, Vec<Arc<PodView>>>,
    /// Why sets or their children are not known.
    pub(crate) trouble: Option<String>,
    pub(crate) children_listed: bool,
}

/// What becomes of a pass over one policy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Considered {
    /// When to look again at the latest.
    pub(crate) recheck_after: Duration,
}

/// Considers policies.
pub(crate) struct Considerer {
    pub(crate) client: Client,
    pub(crate) signals: Signals,
    pub(crate) metrics: Metrics,
    pub(crate) board: Board,
    pub(crate) events: Events,
    pub(crate) pace: Pace,
}

/// Why a policy cannot be followed now.
struct Trouble {
    reason: Reason,
    message: String,
}

/// What was decided about a policy that can be followed.
struct Decided {
    target: Target,
    decision: Decision,
    traffic_trouble: Option<String>,
    took: Duration,
}

impl Considerer {
    /// One pass over one policy. Without a tenure nothing is written: this process stands by with a warm memory.
    pub(crate) async fn consider(
        &self,
        key: &Key,
        policy: &ScalingPolicy,
        memory: &mut Memory,
        views: &Views,
        tenure: Option<&Tenure>,
        now: Timestamp,
    ) -> Considered {
        let outcome = self
            .decide(key, policy, memory, views, tenure.is_some(), now)
            .await;
        let status = self.status(policy, memory, &outcome, now);
        let mut recheck_after = self.pace.interval;
        let mut refusal = None;
        if outcome.is_err() {
            self.metrics.not_followed(key, &status);
        }
        if let Ok(decided) = &outcome {
            recheck_after = decided.decision.recheck_after;
            self.metrics
                .decided(key, &status, &decided.decision, decided.took, now);
            let writes =
                policy.spec.mode == Mode::Auto && policy.spec.actuation == Actuation::Scale;
            if let Some(tenure) = tenure.filter(|_| writes) {
                refusal = self
                    .actuate(key, policy, memory, decided, &status, tenure)
                    .await;
            }
        }
        self.board.show(key, policy, &status, tenure.is_some(), now);
        if let Some(tenure) = tenure {
            self.record(key, policy, memory, status, refusal, tenure, now)
                .await;
        }
        Considered { recheck_after }
    }

    async fn decide(
        &self,
        key: &Key,
        policy: &ScalingPolicy,
        memory: &mut Memory,
        views: &Views,
        leading: bool,
        now: Timestamp,
    ) -> Result<Decided, Trouble> {
        let namespace = &key.0;
        let spec = &policy.spec;
        self.read_profiles(namespace, policy, memory, now).await;
        if let Some(message) = &memory.profiles.trouble {
            return Err(Trouble {
                reason: Reason::ProfileUnavailable,
                message: message.clone(),
            });
        }
        let plan =
            validate(spec, &memory.profiles.by_role, self.pace).map_err(|invalid| Trouble {
                reason: Reason::InvalidPolicy,
                message: invalid.to_string(),
            })?;
        let target = self
            .target(namespace, policy, views)
            .await
            .map_err(|missing| {
                let reason = if missing.is_role() {
                    Reason::RoleNotFound
                } else {
                    Reason::TargetNotFound
                };
                Trouble {
                    reason,
                    message: missing.to_string(),
                }
            })?;
        let nothing = Vec::new();
        let pods = views.pods.get(namespace).unwrap_or(&nothing);
        let endpoints =
            endpoints::of_policy(namespace, &key.1, spec, &target, pods).map_err(|message| {
                Trouble {
                    reason: Reason::InvalidPolicy,
                    message,
                }
            })?;
        self.tell_collector(key, memory, endpoints);
        let seen = look(&self.signals, spec, &memory.endpoints, now);
        let writing = leading && spec.mode == Mode::Auto && spec.actuation == Actuation::Scale;
        let fleet = self.fleet(key, policy, memory, views, &target, pods, writing, now);
        memory.history.observe(&plan, &seen.observation);
        memory.history.observe_fleet(&plan, &fleet, now);
        let begun = Instant::now();
        let decision = decide(&plan, &memory.history, &fleet, now);
        let took = begun.elapsed();
        for violation in plan::violations(&plan, &fleet, &decision) {
            error!(
                namespace,
                name = key.1,
                ?violation,
                "a decision breaks a rule; please report this"
            );
        }
        memory.history.record(&plan, &decision, now);
        debug!(namespace, name = key.1, ?decision, "decided");
        Ok(Decided {
            target,
            decision,
            traffic_trouble: seen.traffic_trouble,
            took,
        })
    }

    async fn target(
        &self,
        namespace: &str,
        policy: &ScalingPolicy,
        views: &Views,
    ) -> Result<Target, NoTarget> {
        let spec = &policy.spec;
        if !target::is_set(spec) {
            return Ok(Target::Plain(
                target::read_plain(&self.client, namespace, spec).await?,
            ));
        }
        let Some(sets) = views.sets.as_ref().filter(|_| views.children_listed) else {
            let message = views
                .trouble
                .clone()
                .unwrap_or_else(|| "they are still being listed".to_owned());
            return Err(NoTarget::Unknown {
                what: "PodCliqueSets",
                message,
            });
        };
        let name = spec.target.name.clone();
        let view = sets.get(&(namespace.to_owned(), name.clone()));
        let view = view.ok_or_else(|| NoTarget::NotFound {
            kind: spec.target.kind.clone(),
            name: name.clone(),
        })?;
        target::check_roles(spec, view)?;
        Ok(Target::Set {
            name,
            view: Arc::clone(view),
        })
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "a step of one pass; a struct for it would be made once and taken apart once"
    )]
    fn fleet(
        &self,
        key: &Key,
        policy: &ScalingPolicy,
        memory: &mut Memory,
        views: &Views,
        target: &Target,
        pods: &[Arc<PodView>],
        writing: bool,
        now: Timestamp,
    ) -> Fleet {
        let roles = &policy.spec.roles;
        match target {
            Target::Plain(plain) => {
                let own: Vec<Arc<PodView>> = pods
                    .iter()
                    .filter(|pod| endpoints::is_of_plain(plain, pod))
                    .cloned()
                    .collect();
                memory.writers.observe(
                    StepObject::Role { role: 0, set: 0 },
                    (plain.replicas, plain.version),
                    writing,
                    now,
                );
                note_starts(memory, own.iter().map(|pod| (roles[0].name.as_str(), pod)));
                fleet::of_plain(
                    plain,
                    &roles[0],
                    &own,
                    writing && memory.writers.conflict(Some(0)),
                    now,
                )
            }
            Target::Set { name, view } => {
                let own: Vec<Arc<PodView>> = pods
                    .iter()
                    .filter(|pod| target::is_of_set(pod, name))
                    .cloned()
                    .collect();
                let world = World {
                    namespace: &key.0,
                    set_name: name,
                    set: view,
                    cliques: &views.cliques,
                    groups: &views.groups,
                    pods: &own,
                };
                let mut fleet = fleet::of_set(&world, roles, &[], now);
                observe_writers(&mut memory.writers, &world, roles, &fleet, writing, now);
                let sets_conflict = memory.writers.conflict(None);
                for (index, role) in fleet.roles.iter_mut().enumerate() {
                    role.conflict =
                        writing && (sets_conflict || memory.writers.conflict(Some(index)));
                }
                let of_roles = own.iter().filter_map(|pod| {
                    let role = roles.iter().find(|role| {
                        role.scales
                            .as_ref()
                            .is_some_and(|scales| target::is_of_role(pod, name, scales))
                    })?;
                    Some((role.name.as_str(), pod))
                });
                note_starts(memory, of_roles);
                fleet
            }
        }
    }

    /// Reads the profiles that roles name, when they may have changed.
    async fn read_profiles(
        &self,
        namespace: &str,
        policy: &ScalingPolicy,
        memory: &mut Memory,
        now: Timestamp,
    ) {
        let generation = policy.metadata.generation;
        let known = memory
            .profiles
            .read
            .filter(|(of, at)| *of == generation && since(Some(*at), now) < PROFILE_AGE);
        if known.is_some() {
            return;
        }
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        let mut by_role = BTreeMap::new();
        let mut trouble = None;
        for role in &policy.spec.roles {
            let Some(key) = role
                .profile
                .as_ref()
                .map(|profile| &profile.config_map)
                .filter(|_| role.signal.slo.is_some())
            else {
                continue;
            };
            let place = format!(
                "roles: profile of role \"{}\" (ConfigMap \"{}\", key \"{}\")",
                role.name, key.name, key.key
            );
            let read = match maps.get_opt(&key.name).await {
                Err(error) => Err(format!("{place} cannot be read: {}", message(&error))),
                Ok(None) => Err(format!("{place} does not exist: create it")),
                Ok(Some(map)) => match map.data.as_ref().and_then(|data| data.get(&key.key)) {
                    None => Err(format!("{place} does not exist: add the key")),
                    Some(text) => profile::parse(text).map_err(|error| format!("{place}: {error}")),
                },
            };
            match read {
                Ok(profile) => drop(by_role.insert(role.name.clone(), profile)),
                Err(message) => trouble = Some(message),
            }
        }
        memory.profiles.read = Some((generation, now));
        memory.profiles.by_role = by_role;
        memory.profiles.trouble = trouble;
    }

    fn tell_collector(&self, key: &Key, memory: &mut Memory, endpoints: Endpoints) {
        let owner = format!("{}/{}", key.0, key.1);
        if memory.endpoints.rules != endpoints.rules {
            self.signals
                .set_scrape_rules(&owner, endpoints.rules.clone());
        }
        if memory.endpoints.statics != endpoints.statics {
            self.signals
                .set_static_targets(&owner, endpoints.statics.clone());
        }
        memory.endpoints = endpoints;
    }

    /// Forgets a policy that is gone.
    pub(crate) fn forget(&self, key: &Key) {
        let owner = format!("{}/{}", key.0, key.1);
        self.signals.set_scrape_rules(&owner, Vec::new());
        self.signals.set_static_targets(&owner, Vec::new());
        self.metrics.forget(key);
    }

    /// The status that this pass leads to. A policy that cannot be followed keeps its last decision.
    fn status(
        &self,
        policy: &ScalingPolicy,
        memory: &Memory,
        outcome: &Result<Decided, Trouble>,
        now: Timestamp,
    ) -> ScalingPolicyStatus {
        let before = memory.record.written().cloned().unwrap_or_default();
        let (mut status, facts) = match outcome {
            Ok(decided) => {
                let is_set = matches!(decided.target, Target::Set { .. });
                let facts = Facts {
                    spec: &policy.spec,
                    generation: policy.metadata.generation,
                    trouble: None,
                    decision: Some(&decided.decision),
                    traffic_trouble: decided.traffic_trouble.as_deref(),
                };
                (
                    translate::record(&policy.spec, is_set, &decided.decision, now),
                    facts,
                )
            }
            Err(Trouble { reason, message }) => {
                let facts = Facts {
                    spec: &policy.spec,
                    generation: policy.metadata.generation,
                    trouble: Some((*reason, message.clone())),
                    decision: None,
                    traffic_trouble: None,
                };
                (before.clone(), facts)
            }
        };
        status.conditions = conditions(&facts, &before.conditions, now);
        status.observed_generation = policy.metadata.generation;
        status.history = serde_json::to_string(&memory.history.snapshot(now)).ok();
        status
    }

    /// Carries the decision out and tells what was done. Gives the first refusal.
    async fn actuate(
        &self,
        key: &Key,
        policy: &ScalingPolicy,
        memory: &mut Memory,
        decided: &Decided,
        status: &ScalingPolicyStatus,
        tenure: &Tenure,
    ) -> Option<String> {
        let steps = decided.decision.steps();
        let outcomes = actuate::carry_out(
            &self.client,
            &key.0,
            &decided.target,
            &policy.spec.roles,
            &steps,
            tenure,
        )
        .await;
        let (mut grew, mut shrank, mut refusal) = (false, false, None);
        for (step, outcome) in outcomes {
            self.metrics.wrote("scale", outcome.name());
            match outcome {
                Outcome::Done(version) => {
                    memory.writers.wrote(step.object, step.to, version);
                    grew |= step.to > step.from;
                    shrank |= step.to < step.from;
                }
                Outcome::Outdated => {}
                Outcome::Refused(message) => refusal = refusal.or(Some(message)),
            }
        }
        if grew || shrank {
            self.events
                .tell(policy, events::of_scaling(status, grew, shrank))
                .await;
        }
        refusal
    }

    /// Writes the status when it is due, and tells what turned bad.
    #[expect(
        clippy::too_many_arguments,
        reason = "a step of one pass; a struct for it would be made once and taken apart once"
    )]
    async fn record(
        &self,
        key: &Key,
        policy: &ScalingPolicy,
        memory: &mut Memory,
        mut status: ScalingPolicyStatus,
        refusal: Option<String>,
        tenure: &Tenure,
        now: Timestamp,
    ) {
        if let Some(message) = refusal {
            let ready = status.conditions.iter_mut().find(|condition| {
                condition.type_ == coppice_scaler_api::ConditionType::Ready.as_str()
            });
            if let Some(ready) = ready {
                ready.status = "False".to_owned();
                ready.reason = Reason::WriteRefused.as_str().to_owned();
                ready.message = message;
            }
        }
        if !memory.record.is_due(&status, now) || !tenure.is_current() {
            return;
        }
        let policies: Api<ScalingPolicy> = Api::namespaced(self.client.clone(), &key.0);
        let patch = json!({
            "apiVersion": "autoscaling.coppice.dev/v1alpha1",
            "kind": "ScalingPolicy",
            "metadata": {"name": key.1, "uid": policy.metadata.uid},
            "status": status,
        });
        match policies
            .patch_status(
                &key.1,
                &PatchParams::apply(MANAGER).force(),
                &Patch::Apply(&patch),
            )
            .await
        {
            Ok(_) => {
                self.metrics.wrote("status", "done");
                let before = memory
                    .record
                    .written()
                    .map(|status| status.conditions.clone())
                    .unwrap_or_default();
                for note in events::of_conditions(&before, &status.conditions) {
                    self.events.tell(policy, note).await;
                }
                memory.record.wrote(status);
            }
            Err(kube::Error::Api(answer)) if matches!(answer.code, 404 | 409) => {
                self.metrics.wrote("status", "outdated")
            }
            Err(error) => {
                self.metrics.wrote("status", "refused");
                warn!(namespace = key.0, name = key.1, error = %message(&error), "status could not be written");
            }
        }
    }
}

fn note_starts<'a>(memory: &mut Memory, pods: impl Iterator<Item = (&'a str, &'a Arc<PodView>)>) {
    for (role, took) in memory.starts.observe(pods) {
        memory.history.started_up(role, took);
    }
}

/// Takes in the values that the objects have now.
fn observe_writers(
    writers: &mut Writers,
    world: &World<'_>,
    roles: &[Role],
    fleet: &Fleet,
    writing: bool,
    now: Timestamp,
) {
    let sets = (fleet.desired_sets, world.set.version);
    writers.observe(StepObject::Sets, sets, writing, now);
    for set in &fleet.sets {
        for (role, units) in set.roles.iter().enumerate() {
            if let Some(desired) = units.desired {
                let scales = roles.get(role).and_then(|role| role.scales.as_ref());
                let version = scales.and_then(|scales| world.version(set.index, scales));
                let object = StepObject::Role {
                    role,
                    set: set.index,
                };
                writers.observe(object, (desired, version), writing, now);
            }
        }
    }
    let exists = |role: usize, index: u32| {
        fleet
            .sets
            .iter()
            .any(|set| set.index == index && set.roles[role].desired.is_some())
    };
    writers.keep(|object| object.is_none_or(|(role, set)| exists(role, set)));
}
