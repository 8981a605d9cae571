//! Fixtures: policies, fleets, observations, and a world that follows decisions on a virtual clock.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use coppice_scaler_plan::*;
use jiff::Timestamp;

pub(crate) fn at(seconds: u64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + i64::try_from(seconds).unwrap()).unwrap()
}

pub(crate) const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) fn bounds(min: u32, max: u32) -> Bounds {
    Bounds::new(min, max).unwrap()
}

pub(crate) fn per_unit(source: Source, target: f64) -> Sizing {
    Sizing::PerUnit {
        source,
        target: Positive::new(target).unwrap(),
    }
}

pub(crate) fn role(name: &str, stage: Stage, units: Bounds, sizing: Sizing) -> RolePolicy {
    RolePolicy {
        name: name.to_owned(),
        stage,
        units,
        sizing,
    }
}

/// An 8B model on one H200.
pub(crate) fn h200() -> Profile {
    Profile::new(
        [0.018_55, 1.411e-5, 4.919e-10],
        [4.38e-3, 3.948e-5, 3.009e-8],
        945_029.0,
        1_024.0,
        0.0,
    )
    .unwrap()
}

pub(crate) fn slo() -> Sizing {
    let objective = |milliseconds| Objective {
        share: 0.95,
        target: Duration::from_millis(milliseconds),
        per_input_token: Duration::ZERO,
    };
    Sizing::Slo(Box::new(SloSizing {
        ttft: Some(objective(3_000)),
        itl: Some(objective(35)),
        profile: h200(),
    }))
}

/// Start-up 30 s, scrapes and decisions every 5 s, default behaviour, a gateway.
pub(crate) fn limits() -> Limits {
    Limits {
        sets: None,
        ratio: None,
        budget: Budget::Unlimited,
        startup: seconds(30),
        up: Rules::default_up(),
        down: Rules::default_down(),
        lost: WhenLost {
            hold: seconds(300),
            replicas: Vec::new(),
        },
        paused: false,
        traffic: true,
        scrape_interval: seconds(5),
        interval: seconds(5),
    }
}

/// A prefill group that works off 10,000 input tokens/s and a decode group that makes 2,000 output tokens/s, 1 to 8 units of each in a set.
pub(crate) fn prefill_and_decode(limits: Limits) -> Policy {
    let roles = vec![
        role(
            "prefill",
            Stage::Prefill,
            bounds(1, 8),
            per_unit(Source::InputTokens, 10_000.0),
        ),
        role(
            "decode",
            Stage::Decode,
            bounds(1, 8),
            per_unit(Source::OutputTokens, 2_000.0),
        ),
    ];
    Policy::new(roles, limits).unwrap()
}

/// One pool sized by its queue, four waiting requests a unit.
pub(crate) fn queue(units: Bounds, limits: Limits) -> Policy {
    Policy::new(
        vec![role(
            "server",
            Stage::Aggregated,
            units,
            per_unit(Source::Waiting, 4.0),
        )],
        limits,
    )
    .unwrap()
}

/// One set in which every role has these units, all ready, 4 GPUs each, gang minimum 1.
pub(crate) fn fleet(units: &[u32]) -> Fleet {
    fleet_of(&[units])
}

/// A fleet of sets with these units of each role, all ready, 4 GPUs each, gang minimum 1.
pub(crate) fn fleet_of(sets: &[&[u32]]) -> Fleet {
    let roles = sets[0].iter().map(|_| RoleFleet {
        gpus_per_unit: Some(4),
        quorum: 1,
        initial: 1,
        starting: Vec::new(),
        conflict: false,
    });
    let set = |(index, units): (usize, &&[u32])| SetFleet {
        index: u32::try_from(index).unwrap(),
        roles: units
            .iter()
            .map(|units| RoleInSet {
                desired: Some(*units),
                ready: *units,
                gpus: units * 4,
                ..RoleInSet::default()
            })
            .collect(),
        other_gpus: 0,
        other_terminating_gpus: 0,
    };
    Fleet {
        roles: roles.collect(),
        desired_sets: u32::try_from(sets.len()).unwrap(),
        sets: sets.iter().enumerate().map(set).collect(),
        gpus_beside_roles: Some(0),
        rollout: false,
    }
}

/// What a gateway reports.
pub(crate) fn offered(requests: f64, input: f64, output: f64) -> Offered {
    Offered {
        requests_per_second: Some(requests),
        input_tokens_per_second: Some(requests * input),
        mean_output_tokens: Some(output),
        waiting: Some(0.0),
    }
}

/// What engines report whose queue holds `waiting`.
pub(crate) fn waiting(waiting: f64) -> RoleObservation {
    RoleObservation {
        endpoints: 1,
        answered: 1,
        waiting: Some(waiting),
        running: Some(1.0),
        ..RoleObservation::default()
    }
}

pub(crate) fn observation(
    at: Timestamp,
    offered: Option<Offered>,
    roles: &[(&str, RoleObservation)],
) -> Observation {
    Observation {
        at,
        offered,
        roles: roles
            .iter()
            .map(|(name, role)| ((*name).to_owned(), *role))
            .collect(),
    }
}

/// Decides, and checks that nothing that no decision may do was done.
pub(crate) fn decide_checked(
    policy: &Policy,
    history: &History,
    fleet: &Fleet,
    now: Timestamp,
) -> Decision {
    let decision = decide(policy, history, fleet, now);
    assert_eq!(
        violations(policy, fleet, &decision),
        [],
        "{decision:#?}\n{fleet:#?}"
    );
    decision
}

pub(crate) fn wanted(decision: &Decision) -> Vec<u32> {
    decision.roles.iter().map(|role| role.wanted).collect()
}

/// A serving system that follows decisions: units take their start-up time, leave after a grace period, and serve as a fluid.
pub(crate) struct World {
    pub(crate) policy: Policy,
    pub(crate) history: History,
    pub(crate) now: u64,
    pub(crate) load: Load,
    pub(crate) startup: u64,
    /// What a unit does, as a share of what it should.
    pub(crate) pace: f64,
    grace: u64,
    gpus_per_unit: u32,
    initial: u32,
    desired_sets: u32,
    sets: BTreeMap<u32, Vec<SimRole>>,
    queues: Vec<f64>,
    lost: bool,
    /// GPUs that nodes have; units beyond cannot be scheduled.
    pub(crate) hardware: u32,
    /// The budget is what it has of a pool now: it may shrink below what is held.
    pub(crate) pooled: bool,
    pub(crate) peak_gpus: u32,
    pub(crate) timeline: String,
    pub(crate) writes: usize,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) requests: f64,
    pub(crate) input: f64,
    pub(crate) output: f64,
}

#[derive(Debug, Clone, Default)]
struct SimRole {
    desired: u32,
    /// Creation and, once scheduled, readiness.
    units: Vec<(u64, Option<u64>)>,
    gone_at: Vec<u64>,
}

impl World {
    /// One set with one unit of each role, ready.
    pub(crate) fn new(policy: Policy) -> Self {
        let roles = policy.roles().len();
        let first = vec![
            SimRole {
                desired: 1,
                units: vec![(0, Some(0))],
                gone_at: Vec::new()
            };
            roles
        ];
        Self {
            history: History::new(at(0)),
            policy,
            now: 0,
            load: Load {
                requests: 0.0,
                input: 2_000.0,
                output: 200.0,
            },
            startup: 30,
            pace: 1.0,
            grace: 10,
            gpus_per_unit: 4,
            initial: 1,
            desired_sets: 1,
            sets: BTreeMap::from([(0, first)]),
            queues: vec![0.0; roles],
            lost: false,
            hardware: u32::MAX,
            pooled: false,
            peak_gpus: 0,
            timeline: String::new(),
            writes: 0,
        }
    }

    /// Runs a script: one command a line, `<second>s <command>`; commands: `load <requests/s> [<input> <output>]`, `metrics lost|back`, `hardware
    /// <gpus>`, `restart`, `end`.
    pub(crate) fn run(&mut self, script: &str) {
        for line in script
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
        {
            let words: Vec<&str> = line.split_whitespace().collect();
            let second: u64 = words[0].trim_end_matches('s').parse().unwrap();
            while self.now < second {
                self.step();
            }
            writeln!(self.timeline, "{:>6}s -- {}", second, words[1..].join(" ")).unwrap();
            let number = |index: usize| words[index].parse::<f64>().unwrap();
            match words[1] {
                "load" if words.len() == 3 => self.load.requests = number(2),
                "load" => {
                    self.load = Load {
                        requests: number(2),
                        input: number(3),
                        output: number(4),
                    }
                }
                "metrics" => self.lost = words[2] == "lost",
                "hardware" => self.hardware = words[2].parse().unwrap(),
                "restart" => {
                    let snapshot = self.history.snapshot(at(self.now));
                    let text = serde_json::to_string(&snapshot).unwrap();
                    self.history =
                        History::restore(&serde_json::from_str(&text).unwrap(), at(self.now))
                            .unwrap();
                }
                "end" => {}
                other => panic!("unknown command {other}"),
            }
        }
    }

    /// Five seconds: the world moves on, then one decision is taken and carried out.
    pub(crate) fn step(&mut self) {
        self.now += 5;
        self.advance();
        if !self.lost {
            let observation = self.observe();
            self.history.observe(&self.policy, &observation);
        }
        let fleet = self.fleet();
        self.history
            .observe_fleet(&self.policy, &fleet, at(self.now));
        let decision = decide_checked(&self.policy, &self.history, &fleet, at(self.now));
        self.history.record(&self.policy, &decision, at(self.now));
        self.note(&decision);
        for step in decision.steps() {
            self.writes += 1;
            match step.object {
                StepObject::Sets => {
                    assert_eq!(self.desired_sets, step.from);
                    self.desired_sets = step.to;
                }
                StepObject::Role { role, set } => {
                    let role = &mut self.sets.get_mut(&set).unwrap()[role];
                    assert_eq!(role.desired, step.from);
                    role.desired = step.to;
                }
            }
        }
        self.count_gpus();
    }

    fn note(&mut self, decision: &Decision) {
        let moved = decision
            .roles
            .iter()
            .any(|role| role.wanted != role.current)
            || decision.sets.wanted != decision.sets.current;
        if !moved {
            return;
        }
        let mut line = format!("{:>6}s ", self.now);
        for (role, decided) in self.policy.roles().iter().zip(&decision.roles) {
            write!(
                line,
                "{} {}→{} ({:?}) ",
                role.name, decided.current, decided.wanted, decided.because
            )
            .unwrap();
        }
        writeln!(
            self.timeline,
            "{line}sets {}→{}",
            decision.sets.current, decision.sets.wanted
        )
        .unwrap();
    }

    fn advance(&mut self) {
        let roles = self.policy.roles().len();
        for index in 0..self.desired_sets {
            let initial = self.initial;
            self.sets.entry(index).or_insert_with(|| {
                vec![
                    SimRole {
                        desired: initial,
                        ..SimRole::default()
                    };
                    roles
                ]
            });
        }
        let (now, desired_sets, startup, grace) =
            (self.now, self.desired_sets, self.startup, self.grace);
        for (index, set) in &mut self.sets {
            for role in set {
                let desired = if *index < desired_sets {
                    role.desired
                } else {
                    0
                } as usize;
                role.gone_at.retain(|gone| *gone > now);
                while role.units.len() > desired {
                    role.units.pop();
                    role.gone_at.push(now + grace);
                }
                while role.units.len() < desired {
                    role.units.push((now, None));
                }
            }
        }
        self.sets.retain(|index, set| {
            *index < desired_sets
                || set
                    .iter()
                    .any(|role| !role.units.is_empty() || !role.gone_at.is_empty())
        });
        let mut room = (self.hardware / self.gpus_per_unit).saturating_sub(self.scheduled());
        for unit in self
            .sets
            .values_mut()
            .flatten()
            .flat_map(|role| &mut role.units)
        {
            if unit.1.is_none() && room > 0 {
                unit.1 = Some(now + startup);
                room -= 1;
            }
        }
        self.count_gpus();
    }

    fn scheduled(&self) -> u32 {
        let scheduled = |role: &SimRole| {
            role.units.iter().filter(|unit| unit.1.is_some()).count() + role.gone_at.len()
        };
        u32::try_from(self.sets.values().flatten().map(scheduled).sum::<usize>()).unwrap()
    }

    /// GPUs of all units, leaving ones included.
    pub(crate) fn gpus(&self) -> u32 {
        let units: usize = self
            .sets
            .values()
            .flatten()
            .map(|role| role.units.len() + role.gone_at.len())
            .sum();
        u32::try_from(units).unwrap() * self.gpus_per_unit
    }

    /// What this system would do with `pool` GPUs for itself.
    pub(crate) fn ask(&self, pool: u32) -> pool::Ask {
        pool::ask(
            &self.policy,
            &self.history,
            &self.fleet(),
            pool,
            at(self.now),
        )
        .unwrap()
    }

    fn count_gpus(&mut self) {
        self.peak_gpus = self.peak_gpus.max(self.gpus());
        if let (Budget::Gpus(limit), false) = (self.policy.limits().budget, self.pooled) {
            assert!(
                self.peak_gpus <= limit,
                "{} GPUs of {limit} at {} s",
                self.peak_gpus,
                self.now
            );
        }
    }

    pub(crate) fn ready(&self, role: usize) -> u32 {
        let now = self.now;
        let ready = |set: &Vec<SimRole>| {
            set[role]
                .units
                .iter()
                .filter(|unit| unit.1.is_some_and(|ready| ready <= now))
                .count()
        };
        u32::try_from(self.sets.values().map(ready).sum::<usize>()).unwrap()
    }

    pub(crate) fn desired(&self, role: usize) -> u32 {
        self.sets
            .iter()
            .filter(|(index, _)| **index < self.desired_sets)
            .map(|(_, set)| set[role].desired)
            .sum()
    }

    /// Requests that wait for a role.
    pub(crate) fn waiting(&self, role: usize) -> f64 {
        self.queues[role]
    }

    pub(crate) fn desired_sets(&self) -> u32 {
        self.desired_sets
    }

    fn fleet(&self) -> Fleet {
        let now = self.now;
        let set = |(index, roles): (&u32, &Vec<SimRole>)| SetFleet {
            index: *index,
            roles: roles
                .iter()
                .map(|role| {
                    let unscheduled: Vec<u64> = role
                        .units
                        .iter()
                        .filter(|unit| unit.1.is_none())
                        .map(|unit| now - unit.0)
                        .collect();
                    RoleInSet {
                        desired: (*index < self.desired_sets).then_some(role.desired),
                        ready: u32::try_from(
                            role.units
                                .iter()
                                .filter(|unit| unit.1.is_some_and(|ready| ready <= now))
                                .count(),
                        )
                        .unwrap(),
                        unschedulable: u32::try_from(unscheduled.len()).unwrap(),
                        unschedulable_for: seconds(unscheduled.iter().copied().max().unwrap_or(0)),
                        gpus: u32::try_from(role.units.len()).unwrap() * self.gpus_per_unit,
                        terminating_gpus: u32::try_from(role.gone_at.len()).unwrap()
                            * self.gpus_per_unit,
                    }
                })
                .collect(),
            other_gpus: 0,
            other_terminating_gpus: 0,
        };
        let starting = |role: usize| {
            let units = self.sets.values().flat_map(move |set| &set[role].units);
            units
                .filter(|unit| unit.1.is_none_or(|ready| ready > now))
                .map(|unit| seconds(now - unit.0))
                .collect()
        };
        let role = |role: usize| RoleFleet {
            gpus_per_unit: Some(self.gpus_per_unit),
            quorum: 1,
            initial: self.initial,
            starting: starting(role),
            conflict: false,
        };
        Fleet {
            roles: (0..self.policy.roles().len()).map(role).collect(),
            desired_sets: self.desired_sets,
            sets: self.sets.iter().map(set).collect(),
            gpus_beside_roles: Some(0),
            rollout: false,
        }
    }

    /// Five seconds of a fluid: each role serves what arrives and waits, up to its capacity; the next role gets what this one lets through.
    fn observe(&mut self) -> Observation {
        let mut passing = self.load.requests;
        let mut roles = BTreeMap::new();
        for (index, role) in self.policy.roles().iter().enumerate() {
            let per_unit = match role.stage {
                Stage::Prefill => 10_000.0 / self.load.input,
                _ => 2_000.0 / self.load.output,
            };
            let capacity = self.pace * per_unit * f64::from(self.ready(index));
            let served = (passing + self.queues[index] / 5.0).min(capacity);
            self.queues[index] = (self.queues[index] + (passing - served) * 5.0).max(0.0);
            passing = served;
            let ready = self.ready(index);
            let observed = RoleObservation {
                endpoints: ready,
                answered: ready,
                input_tokens_per_second: Some(served * self.load.input),
                output_tokens_per_second: Some(served * self.load.output),
                finished_per_second: Some(served),
                waiting: Some(self.queues[index]),
                running: Some(served),
                kv_usage: Some(if capacity > 0.0 {
                    served / capacity * f64::from(ready)
                } else {
                    0.0
                }),
                metric: None,
            };
            roles.insert(role.name.clone(), observed);
        }
        Observation {
            at: at(self.now),
            offered: Some(offered(
                self.load.requests,
                self.load.input,
                self.load.output,
            )),
            roles,
        }
    }
}
