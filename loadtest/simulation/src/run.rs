//! The event loop.

use std::collections::VecDeque;
use std::time::Duration;

use coppice_engine::{Event, EventKind, Request as Work, RequestId};
use coppice_scaler_plan::Stage;
use rand_distr::{Distribution, StandardNormal};

use crate::agenda::{ARRIVAL, Action, Agenda};
use crate::fault::{FaultKind, Faults};
use crate::fleet::Fleet;
use crate::outcome::{Ended, Fate, Life, Outcome, Target};
use crate::prepare::{RunError, check, initial};
use crate::route::Router;
use crate::scaler::Scaler;
use crate::scrape::{GatewayScrape, Scrape, UnitScrape};
use crate::sight::{RoleSight, Sight, UnitSight};
use crate::world::{Request, StartUp, Streams, World};

/// Scrapes older than this are forgotten; no policy looks further back.
const MEMORY: Duration = Duration::from_secs(45 * 60);

/// Runs `requests` (sorted by time) through `world` under `scaler` for `duration`, then for [`crate::Timing::follow`] at most, until all have ended; meanwhile
/// `faults` happen.
///
/// At one instant engines go first, then units that become ready, grace periods that end, faults, replicas that are written, arrivals, scrapes, decisions. The
/// policy goes on deciding behind `duration`; what that costs is not counted.
///
/// # Errors
/// [`RunError`]: requests out of order or too many, or a policy that starts with impossible units.
pub fn simulate(
    world: &World,
    faults: &Faults,
    requests: &[Request],
    duration: Duration,
    scaler: &mut dyn Scaler,
    seed: u64,
    streams: Streams,
) -> Result<Outcome, RunError> {
    check(requests)?;
    if scaler.period().is_zero() {
        return Err(RunError::Period);
    }
    let initial = initial(world, scaler)?;
    let mut run = Run {
        world,
        faults,
        requests,
        streams,
        seed,
        now: Duration::ZERO,
        agenda: Agenda::default(),
        fleet: Fleet::new(world, &initial),
        router: Router::new(
            world.routing,
            world.roles().len(),
            streams(seed, "routing", 0),
        ),
        flights: vec![Flight::default(); requests.len()],
        ended: vec![
            Ended {
                first: None,
                at: None,
                fate: Fate::Unfinished
            };
            requests.len()
        ],
        open: 0,
        held: vec![VecDeque::new(); world.roles().len()],
        gateway: GatewayScrape::new(),
        scrapes: VecDeque::new(),
        events: Vec::new(),
        pending: VecDeque::new(),
        touched: Vec::new(),
        writes_under_way: 0,
        targets: vec![Target {
            at: Duration::ZERO,
            units: initial,
        }],
        decisions: Vec::new(),
        waiting: Vec::new(),
    };
    run.go(duration, scaler);
    Ok(run.outcome())
}

/// Where a request is.
#[derive(Debug, Clone, Copy, Default)]
struct Flight {
    /// The unit that works on it.
    place: Option<(usize, RequestId)>,
    /// The prefill unit that keeps its KV.
    source: Option<(usize, RequestId)>,
}

#[derive(Debug)]
struct Run<'a> {
    world: &'a World,
    faults: &'a Faults,
    requests: &'a [Request],
    streams: Streams,
    seed: u64,
    now: Duration,
    agenda: Agenda,
    fleet: Fleet,
    router: Router,
    flights: Vec<Flight>,
    ended: Vec<Ended>,
    /// Requests that came and have not ended.
    open: u32,
    /// Requests that wait for a unit of each role.
    held: Vec<VecDeque<u32>>,
    gateway: GatewayScrape,
    scrapes: VecDeque<Scrape>,
    events: Vec<Event>,
    /// Events of engines that have not been acted on: which unit, about which request. Looked up at once, as the engine may give an id's index away.
    pending: VecDeque<(usize, u32, Event)>,
    /// Units whose engines may have another next event now.
    touched: Vec<usize>,
    writes_under_way: u32,
    targets: Vec<Target>,
    decisions: Vec<Target>,
    waiting: Vec<(Duration, u32)>,
}

impl Run<'_> {
    fn go(&mut self, duration: Duration, scaler: &mut dyn Scaler) {
        let end = duration + self.world.timing.follow;
        self.agenda.add(Duration::ZERO, Action::Scrape);
        self.agenda.add(scaler.period(), Action::Decide);
        for (index, fault) in self.faults.iter().enumerate() {
            self.agenda.add(fault.at, Action::Fault(index));
        }
        for relief in self.faults.reliefs() {
            self.agenda.add(relief, Action::Relief);
        }
        let mut next = 0;
        loop {
            let arrival = self.requests.get(next).map(|request| (request.at, ARRIVAL));
            let action = self.agenda.next();
            let Some((at, class)) = arrival.into_iter().chain(action).min() else {
                return;
            };
            let idle = next == self.requests.len() && self.open == 0;
            if at > end || (idle && at > duration) {
                return;
            }
            self.now = at;
            if class == ARRIVAL {
                self.arrive(next);
                next += 1;
            } else if let Some((_, action)) = self.agenda.take() {
                self.act(action, scaler);
            }
            self.settle();
        }
    }

    fn act(&mut self, action: Action, scaler: &mut dyn Scaler) {
        match action {
            Action::Wake(unit) => {
                // An entry for another time was overtaken by an event that came in between.
                if self.fleet.units[unit].wake == Some(self.now) {
                    self.fleet.units[unit].wake = None;
                    self.advance(unit);
                }
            }
            Action::Ready(unit) => {
                if self.fleet.units[unit].leaving.is_none() {
                    self.fleet.make_ready(self.world, unit, self.now);
                    self.fill(self.fleet.units[unit].role);
                }
            }
            Action::GraceOver(unit) => self.cut_off(unit),
            Action::Fault(index) => self.fail(index),
            Action::Relief => self.bind(),
            Action::Apply(wanted) => {
                self.writes_under_way -= 1;
                self.scale(wanted);
            }
            Action::Scrape => self.scrape(),
            Action::Decide => self.decide(scaler),
        }
    }

    /// Acts on what engines reported until nothing follows, then notes when they are to be woken.
    fn settle(&mut self) {
        while let Some((unit, request, event)) = self.pending.pop_front() {
            // A request that was aborted meanwhile has nothing more to say.
            if self.ended[request as usize].at.is_none() {
                self.happened(unit, request, event);
            }
        }
        while let Some(unit) = self.touched.pop() {
            let one = &mut self.fleet.units[unit];
            let next = one
                .engine
                .as_ref()
                .and_then(|engine| engine.next_event_at());
            let next = next.map(|next| next.max(self.now));
            if next != one.wake {
                one.wake = next;
                if let Some(next) = next {
                    self.agenda.add(next, Action::Wake(unit));
                }
            }
        }
    }

    /// Lets a unit's engine run until now.
    fn advance(&mut self, unit: usize) {
        let one = &mut self.fleet.units[unit];
        let Some(engine) = &mut one.engine else {
            return;
        };
        engine.advance_into(self.now, &mut self.events);
        self.touched.push(unit);
        for event in self.events.drain(..) {
            if let Some(request) = one.request(event.request) {
                self.pending.push_back((unit, request, event));
            }
        }
    }

    fn arrive(&mut self, index: usize) {
        let request = &self.requests[index];
        let tokens = u64::from(request.input_tokens);
        self.open += 1;
        self.gateway.arrived += 1;
        self.gateway.arrived_input_tokens += tokens;
        self.gateway.input_tokens_in_flight += tokens;
        // Checked at the start: there are fewer requests than that.
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        self.send(index, 0);
    }

    /// Sends a request to a unit of `role`, or holds it behind those that wait already.
    fn send(&mut self, request: u32, role: usize) {
        let chosen = if self.held[role].is_empty() {
            self.router.choose(&self.fleet, role)
        } else {
            None
        };
        match chosen {
            Some(unit) => self.submit(request, unit),
            None => self.held[role].push_back(request),
        }
    }

    /// Sends what waits for a role, oldest first, while units take it.
    fn fill(&mut self, role: usize) {
        while let Some(request) = self.held[role].front().copied() {
            if self.ended[request as usize].fate != Fate::Unfinished {
                self.held[role].pop_front();
                continue;
            }
            let Some(unit) = self.router.choose(&self.fleet, role) else {
                return;
            };
            self.held[role].pop_front();
            self.submit(request, unit);
        }
    }

    fn submit(&mut self, request: u32, unit: usize) {
        let index = request as usize;
        let role = self.fleet.units[unit].role;
        let work = work(self.world.roles()[role].stage, &self.requests[index]);
        let one = &mut self.fleet.units[unit];
        let Some(engine) = &mut one.engine else {
            return;
        };
        match engine.submit(self.now, work) {
            Ok(id) => {
                one.remember(id, request);
                if self.ended[index].first.is_none() {
                    one.prompt_tokens += u64::from(self.requests[index].input_tokens);
                }
                self.flights[index].place = Some((unit, id));
                self.touched.push(unit);
            }
            Err(_) => {
                self.let_go(index);
                self.end(request, self.now, Fate::Refused);
            }
        }
    }

    fn happened(&mut self, unit: usize, request: u32, event: Event) {
        let index = request as usize;
        match event.kind {
            EventKind::FirstToken => self.first_token(index, unit, event.at),
            EventKind::Token | EventKind::Preempted => {}
            EventKind::Fetched => self.let_go(index),
            EventKind::Expired => {
                self.flights[index].source = None;
                self.free(unit, event.request);
            }
            EventKind::Finished(_) => {
                self.flights[index].place = None;
                let hands_over = self.world.is_disaggregated()
                    && self.fleet.units[unit].role == 0
                    && self.requests[index].output_tokens > 1;
                if hands_over {
                    self.flights[index].source = Some((unit, event.request));
                    self.send(request, 1);
                } else {
                    self.end(request, event.at, Fate::Finished);
                    self.free(unit, event.request);
                }
            }
        }
    }

    fn first_token(&mut self, index: usize, unit: usize, at: Duration) {
        if self.ended[index].first.is_none() {
            let request = &self.requests[index];
            self.ended[index].first = Some(at);
            self.gateway.input_tokens_in_flight -= u64::from(request.input_tokens);
            self.fleet.units[unit].prompt_tokens -= u64::from(request.input_tokens);
            self.gateway.ttft.observe((at - request.at).as_secs_f64());
        }
    }

    /// Frees the KV that a prefill unit keeps for a request.
    fn let_go(&mut self, index: usize) {
        let Some((unit, id)) = self.flights[index].source.take() else {
            return;
        };
        self.advance(unit);
        if let Some(engine) = &mut self.fleet.units[unit].engine {
            engine.release(id);
        }
        self.free(unit, id);
    }

    /// A unit has one request less; a leaving one that has none is gone.
    fn free(&mut self, unit: usize, id: RequestId) {
        let one = &mut self.fleet.units[unit];
        one.forget(id);
        one.in_flight -= 1;
        let role = one.role;
        if one.leaving.is_none() {
            if !self.held[role].is_empty() {
                self.fill(role);
            }
        } else if one.in_flight == 0 && one.gone.is_none() {
            self.fleet.remove(self.world, unit, self.now);
            self.bind();
        }
    }

    fn end(&mut self, request: u32, at: Duration, fate: Fate) {
        let index = request as usize;
        let asked = &self.requests[index];
        self.open -= 1;
        let ended = &mut self.ended[index];
        if ended.first.is_none() {
            self.gateway.input_tokens_in_flight -= u64::from(asked.input_tokens);
        }
        ended.at = Some(at);
        ended.fate = fate;
        if fate != Fate::Finished {
            return;
        }
        self.gateway.finished += 1;
        self.gateway.finished_input_tokens += u64::from(asked.input_tokens);
        self.gateway.finished_output_tokens += u64::from(asked.output_tokens);
        if let Some(gap) = ended.mean_gap(asked.output_tokens) {
            self.gateway.tpot.observe(gap.as_secs_f64());
        }
    }

    /// Carries out what a fault does at its instant; what it does while it lasts is looked up where it matters.
    fn fail(&mut self, index: usize) {
        let Some(fault) = self.faults.get(index) else {
            return;
        };
        let mut random = (self.streams)(self.seed, "faults", index as u64);
        let dying = match fault.kind {
            FaultKind::UnitsDie { share } => self.fleet.struck(share, &mut random),
            FaultKind::NodeDies { gpus, .. } => self.fleet.on_node(self.world, gpus, &mut random),
            FaultKind::MetricsLost { .. }
            | FaultKind::MetricsFrozen { .. }
            | FaultKind::SlowStarts { .. }
            | FaultKind::NoGpus { .. } => return,
        };
        // All of them before any is cut off, so that none is sent what another one had.
        for unit in &dying {
            self.fleet.units[*unit].died = true;
            if self.fleet.units[*unit].leaving.is_none() {
                self.fleet.leave(*unit, self.now);
            }
        }
        for unit in dying {
            self.cut_off(unit);
        }
        self.replace();
    }

    /// Creates units until each role has those that are asked for.
    fn replace(&mut self) {
        for role in 0..self.fleet.desired.len() {
            for _ in self.fleet.staying(role)..self.fleet.desired[role] {
                let load = self.draw_load(role);
                self.fleet.create(role, self.now, load);
            }
        }
        self.bind();
    }

    /// Aborts what a leaving unit still has.
    fn cut_off(&mut self, unit: usize) {
        if self.fleet.units[unit].gone.is_some() {
            return;
        }
        self.advance(unit);
        self.settle();
        for request in self.fleet.units[unit].held() {
            let index = request as usize;
            if let Some((place, id)) = self.flights[index].place.take() {
                self.advance(place);
                if let Some(engine) = &mut self.fleet.units[place].engine {
                    engine.abort(self.now, id);
                }
                if self.ended[index].first.is_none() {
                    let tokens = u64::from(self.requests[index].input_tokens);
                    self.fleet.units[place].prompt_tokens -= tokens;
                }
                self.end(request, self.now, Fate::Aborted);
                self.let_go(index);
                self.free(place, id);
            } else if self.flights[index].source.is_some() {
                self.end(request, self.now, Fate::Aborted);
                self.let_go(index);
            }
        }
        if self.fleet.units[unit].gone.is_none() {
            self.fleet.remove(self.world, unit, self.now);
            self.bind();
        }
    }

    /// Writes the units that are wanted, and lets the fleet follow: what shrinks first.
    fn scale(&mut self, wanted: Vec<u32>) {
        if wanted == self.fleet.desired {
            return;
        }
        self.fleet.desired.clone_from(&wanted);
        for (role, wanted) in wanted.iter().enumerate() {
            while self.fleet.staying(role) > *wanted
                && let Some(unit) = self.fleet.victim(role)
            {
                self.retire(unit);
            }
        }
        self.replace();
        self.targets.push(Target {
            at: self.now,
            units: wanted,
        });
    }

    fn retire(&mut self, unit: usize) {
        self.fleet.leave(unit, self.now);
        if self.fleet.units[unit].in_flight == 0 {
            self.fleet.remove(self.world, unit, self.now);
        } else {
            let over = self.now + self.world.timing.grace;
            self.agenda.add(over, Action::GraceOver(unit));
        }
    }

    fn bind(&mut self) {
        if self.faults.no_gpus(self.now) {
            return;
        }
        let timing = &self.world.timing;
        let missing = self.faults.missing_gpus(self.now);
        for unit in self.fleet.bind(self.world, missing, self.now) {
            let ready = self.now + timing.scheduling + timing.node + self.fleet.units[unit].load;
            self.agenda.add(ready, Action::Ready(unit));
        }
    }

    fn draw_load(&mut self, role: usize) -> Duration {
        let number = self.fleet.started[role];
        self.fleet.started[role] += 1;
        let load = match self.world.timing.load {
            StartUp::Fixed(time) => time,
            StartUp::Lognormal { median, sigma } => {
                let entity = ((role as u64) << 48) | number;
                let mut random = (self.streams)(self.seed, "start-up", entity);
                let normal: f64 = StandardNormal.sample(&mut random);
                median.mul_f64((sigma * normal).exp())
            }
        };
        let slowness = self.faults.slowness(self.now);
        if slowness > 1.0 {
            load.mul_f64(slowness)
        } else {
            load
        }
    }

    fn scrape(&mut self) {
        let serving: Vec<usize> = {
            let mut all: Vec<usize> = self.fleet.serving.iter().flatten().copied().collect();
            all.sort_unstable();
            all
        };
        for unit in &serving {
            self.advance(*unit);
        }
        self.settle();
        let held: usize = self.held.iter().map(VecDeque::len).sum();
        self.gateway.held = u32::try_from(held).unwrap_or(u32::MAX);
        self.gateway.in_flight = self.open;
        let read = |unit: usize| {
            let one = &self.fleet.units[unit];
            let engine = one.engine.as_ref()?;
            Some(UnitScrape::of(unit, one, engine))
        };
        let units: Vec<UnitScrape> = serving.into_iter().filter_map(read).collect();
        let waiting = units.iter().map(|unit| unit.waiting).sum::<u32>() + self.gateway.held;
        self.waiting.push((self.now, waiting));
        let round = Scrape {
            at: self.now,
            gateway: self.gateway.clone(),
            units,
        };
        self.scrapes.extend(self.answered(round));
        let forgotten = self.now.saturating_sub(MEMORY);
        while self
            .scrapes
            .front()
            .is_some_and(|scrape| scrape.at < forgotten)
        {
            self.scrapes.pop_front();
        }
        let next = self.now + self.world.timing.scrape_interval;
        self.agenda.add(next, Action::Scrape);
    }

    /// What a round of scrapes brings of what there was to read; `None`: every scrape failed.
    fn answered(&self, round: Scrape) -> Option<Scrape> {
        if self.faults.metrics_lost(self.now) {
            return None;
        }
        if !self.faults.metrics_frozen(self.now) {
            return Some(round);
        }
        let mut repeated = self.scrapes.back()?.clone();
        repeated.at = round.at;
        let answers = |unit: usize| {
            let found = round.units.binary_search_by_key(&unit, |one| one.unit);
            found.is_ok()
        };
        repeated.units.retain(|unit| answers(unit.unit));
        Some(repeated)
    }

    fn decide(&mut self, scaler: &mut dyn Scaler) {
        let roles = (0..self.world.roles().len()).map(|role| self.seen(role));
        let sight = Sight::new(self.now, self.world, roles.collect(), &self.scrapes);
        let wanted: Vec<u32> = scaler
            .decide(&sight)
            .into_iter()
            .zip(self.world.roles())
            .map(|(wanted, role)| role.units.clamp(wanted))
            .collect();
        if self
            .decisions
            .last()
            .is_none_or(|last| last.units != wanted)
        {
            self.decisions.push(Target {
                at: self.now,
                units: wanted.clone(),
            });
        }
        if wanted.len() == self.fleet.desired.len()
            && (wanted != self.fleet.desired || self.writes_under_way > 0)
        {
            self.writes_under_way += 1;
            let at = self.now + self.world.timing.actuation;
            self.agenda.add(at, Action::Apply(wanted));
        }
        self.agenda.add(self.now + scaler.period(), Action::Decide);
    }

    fn seen(&self, role: usize) -> RoleSight {
        let units = self.fleet.live[role].iter().map(|unit| {
            let one = &self.fleet.units[*unit];
            UnitSight {
                unit: *unit,
                created: one.created,
                bound: one.bound,
                ready: one.ready,
                leaving: one.leaving.is_some(),
            }
        });
        RoleSight {
            desired: self.fleet.desired[role],
            units: units.collect(),
        }
    }

    fn outcome(self) -> Outcome {
        let units = self.fleet.units.into_iter().map(|unit| Life {
            role: unit.role,
            created: unit.created,
            bound: unit.bound,
            ready: unit.ready,
            leaving: unit.leaving,
            gone: unit.gone,
            died: unit.died,
            given: unit.given,
        });
        Outcome {
            requests: self.ended,
            units: units.collect(),
            targets: self.targets,
            decisions: self.decisions,
            waiting: self.waiting,
        }
    }
}

/// What a unit of a stage is asked to do for a request.
///
/// Prefill makes the first token and keeps the KV; decode goes on with the second, so it is handed the prompt with that token behind it.
fn work(stage: Stage, request: &Request) -> Work {
    let Request {
        at: _,
        input_tokens,
        output_tokens,
        cached_tokens,
    } = *request;
    match stage {
        Stage::Prefill => Work {
            cached_tokens,
            keeps_kv: output_tokens > 1,
            ..Work::new(input_tokens, 1)
        },
        Stage::Decode => Work {
            remote_tokens: input_tokens,
            ..Work::new(input_tokens.saturating_add(1), output_tokens - 1)
        },
        Stage::Aggregated | Stage::Encode | Stage::Other => Work {
            cached_tokens,
            ..Work::new(input_tokens, output_tokens)
        },
    }
}
