//! The first half of a pass over one policy: validate → observe. Nothing is decided here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use coppice_scaler_api::{Actuation, Mode, Reason, Role, ScalingPolicy};
use coppice_scaler_plan::{Fleet, Policy, StepObject};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;

use crate::consider::{Considerer, Trouble};
use crate::memory::Memory;
use crate::observe::endpoints::{self, Endpoints};
use crate::observe::fleet::{self, World, since};
use crate::observe::load::look;
use crate::policy::validate;
use crate::profile;
use crate::target::{self, NoTarget, Target, message};
use crate::views::{PodView, ScaledView, SetView};
use crate::watch::Key;
use crate::writers::Writers;

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

/// A policy that can be followed, and what there is of its target now.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) plan: Policy,
    pub(crate) target: Target,
    pub(crate) fleet: Fleet,
    /// Why the offered load is not known.
    pub(crate) traffic_trouble: Option<String>,
}

impl Considerer {
    /// Validates a policy, finds its target, and takes in what was measured.
    pub(crate) async fn prepare(
        &self,
        key: &Key,
        policy: &ScalingPolicy,
        memory: &mut Memory,
        views: &Views,
        leading: bool,
        now: Timestamp,
    ) -> Result<Prepared, Trouble> {
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
        Ok(Prepared {
            plan,
            target,
            fleet,
            traffic_trouble: seen.traffic_trouble,
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
