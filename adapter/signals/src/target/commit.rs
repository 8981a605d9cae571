//! Moving what a body said into the window.

use jiff::Timestamp;

use super::pass::Kind;
use super::process::NONE;
use super::{Glance, Ingested, Slot, SlotUse, Target, Window};
use crate::channel::{Committed, Place};
use crate::collection::Key;
use crate::engines::{Reading, Recognition, Tier};
use crate::reading::Models;

/// Commits after which a series that is not sent any more is forgotten, at least.
const FORGET_AFTER: u64 = 64;
/// A number of things above this is not one.
const ABSURD: f64 = 1e15;
/// How far outside 0–1 a share may be by rounding.
pub(crate) const ROUNDING: f64 = 1e-6;

impl Target {
    pub(super) fn commit(&mut self, at: Timestamp, restarted: bool, found: &mut Ingested) {
        let commit = self.commits;
        let row = self.row(commit);
        let alive = self.alive();
        for index in 0..self.slots.len() {
            let slot = self.slots[index];
            if slot.attempt != self.attempts {
                continue;
            }
            if slot.process == NONE || alive & 1 << slot.process != 0 {
                self.take_in(index, slot, restarted, found);
            } else {
                self.slots[index].commit = short(commit);
                self.slots[index].previous = slot.value;
            }
        }
        self.take_in_newest();
        for channel in 0..self.channels.len() {
            let previous = self.since(self.channels[channel].key) < commit;
            let previous = previous.then(|| self.row(commit.wrapping_sub(1)));
            let mut moves: Option<Vec<Option<u16>>> = None;
            match &mut self.channels[channel].window {
                Window::Gauge(gauge) => gauge.commit(row),
                Window::Counter(counter) => counter.commit(row, previous),
                Window::Raw(gauge, counter) => {
                    gauge.commit(row);
                    counter.commit(row, previous);
                }
                Window::Histogram(histogram) => {
                    match histogram
                        .commit(row, previous, commit, |moved| moves = Some(moved.to_vec()))
                    {
                        Committed::Same | Committed::BoundsChanged => {}
                        Committed::Inconsistent => found.inconsistent += 1,
                    }
                }
            }
            if let Some(moves) = moves {
                self.move_buckets(channel, &moves);
            }
        }
        self.times[row] = at;
        self.commits += 1;
        self.carried.clear();
        self.forget();
        let is_new = self.routed != self.channels.len() || self.present != self.present_next;
        std::mem::swap(&mut self.present, &mut self.present_next);
        if is_new {
            self.routes = self.find_routes();
            self.routed = self.channels.len();
            self.shrink();
        }
        self.glance = self.look(at);
    }

    /// The processes whose series count, as bits; see [`super::process`].
    fn alive(&mut self) -> u64 {
        if !self.processes.are_several() {
            // A change before there is a second one tells nothing about either.
            return u64::MAX;
        }
        for slot in &self.slots {
            // What is new has changed by coming, which its process' birth says already.
            let has_changed =
                !slot.previous.is_nan() && slot.value.to_bits() != slot.previous.to_bits();
            if slot.attempt == self.attempts && slot.process != NONE && has_changed {
                self.processes.changed(slot.process, self.commits);
            }
        }
        self.processes.alive()
    }

    /// Takes in what the series with the greatest values say.
    fn take_in_newest(&mut self) {
        let Some(collection) = self.collection.clone() else {
            return;
        };
        for (term, _, value) in std::mem::take(&mut self.newest) {
            let key = Key::Term(term);
            let Some(index) = self.channel(&collection, key, None, Kind::Gauge) else {
                continue;
            };
            let channel = &mut self.channels[usize::from(index)];
            channel.seen = self.commits;
            if let Window::Gauge(gauge) = &mut channel.window
                && (0.0..=ABSURD).contains(&value)
            {
                gauge.observe(value);
            }
        }
    }

    fn look(&self, last: Timestamp) -> Glance {
        let recognition = self.recognition();
        let known = recognition.filter(|known| !known.is_unknown());
        let is_frontend = known.is_some_and(Recognition::is_frontend);
        let tier = if is_frontend {
            Tier::Frontend
        } else {
            Tier::Engine
        };
        Glance {
            last: Some(last),
            tier: known.map(|_| tier),
            foreign: self.unknown_has_samples && recognition.is_some_and(Recognition::is_unknown),
            role: if is_frontend {
                Some("frontend")
            } else {
                self.role
            },
            only_model: self.only_model(Models::ALL),
        }
    }

    /// Gives back memory that was reserved for more series than there are.
    fn shrink(&mut self) {
        self.slots.shrink_to_fit();
        self.uses.shrink_to_fit();
        self.channels.shrink_to_fit();
        self.by_id.shrink_to_fit();
    }

    /// Takes one series of the body into its channels.
    fn take_in(&mut self, index: usize, slot: Slot, restarted: bool, found: &mut Ingested) {
        let commit = self.commits;
        let uses = slot.first_use as usize..slot.first_use as usize + usize::from(slot.uses);
        let mut plausible = true;
        for SlotUse { channel, place } in self.uses[uses].iter().copied() {
            let since = self.since(self.channels[usize::from(channel)].key);
            let channel = &mut self.channels[usize::from(channel)];
            channel.seen = commit;
            let value = match place {
                Place::Constant(index) => self.constants[usize::from(index)],
                Place::Value | Place::Bucket(_) | Place::LastBucket | Place::Sum | Place::Count => {
                    slot.value
                }
            };
            let increase = if slot.previous.is_nan() {
                // A series that is new in a body of a known process was not there, or zero, before.
                if since < commit { value } else { 0.0 }
            } else if restarted || value < slot.previous {
                value
            } else {
                value - slot.previous
            };
            let term = self
                .collection
                .as_ref()
                .and_then(|collection| collection.term(channel.key))
                .map(|(_, term)| term);
            let (reading, scale) = (
                term.map(|term| term.reading),
                term.map_or(1.0, |term| term.scale),
            );
            // A histogram's bounds are scaled when it is read.
            let (value, increase) = match channel.window {
                Window::Gauge(_) | Window::Counter(_) => (value * scale, increase * scale),
                Window::Histogram(_) | Window::Raw(..) => (value, increase),
            };
            let possible = match (&channel.window, reading) {
                (Window::Gauge(_), Some(Reading::Ratio)) => {
                    (-ROUNDING..=1.0 + ROUNDING).contains(&value)
                }
                (Window::Gauge(_), _) => (0.0..=ABSURD).contains(&value),
                (Window::Counter(_) | Window::Histogram(_), _) => {
                    value.is_finite() && (value >= 0.0 || place == Place::Sum)
                }
                (Window::Raw(..), _) => value.is_finite(),
            };
            if !possible {
                channel.impossible = commit;
                plausible = false;
                continue;
            }
            match &mut channel.window {
                Window::Gauge(gauge) => {
                    let is_ratio = matches!(reading, Some(Reading::Ratio));
                    gauge.observe(if is_ratio {
                        value.clamp(0.0, 1.0)
                    } else {
                        value
                    });
                }
                Window::Counter(counter) => counter.grow(increase),
                Window::Raw(gauge, counter) => {
                    gauge.observe(value);
                    counter.grow(increase);
                }
                Window::Histogram(histogram) => histogram.observe(place, value, increase),
            }
        }
        self.slots[index].commit = short(commit);
        if plausible {
            self.slots[index].previous = slot.value;
        } else {
            found.implausible += 1;
        }
    }

    /// Gives the buckets of a channel their new places; those without one are found out anew when they come back.
    fn move_buckets(&mut self, channel: usize, moves: &[Option<u16>]) {
        let mut homeless = Vec::new();
        for slot in &self.slots {
            let uses = slot.first_use as usize..slot.first_use as usize + usize::from(slot.uses);
            for slot_use in &mut self.uses[uses] {
                if usize::from(slot_use.channel) != channel {
                    continue;
                }
                if let Place::Bucket(bucket) = &mut slot_use.place {
                    match moves.get(usize::from(*bucket)).copied().flatten() {
                        Some(moved) => *bucket = moved,
                        None => homeless.push(slot.id),
                    }
                }
            }
        }
        self.drop_slots(|slot| homeless.contains(&slot.id));
    }

    /// Forgets series that were not sent for long, once they are the greater part.
    fn forget(&mut self) {
        let last = short(self.commits);
        let age = short(FORGET_AFTER.max(self.capacity as u64));
        let old = |slot: &Slot| last.wrapping_sub(slot.commit) > age;
        let count = self.slots.iter().filter(|slot| old(slot)).count();
        if count > 32 && count * 2 > self.slots.len() {
            let forgotten: Vec<u64> = self
                .slots
                .iter()
                .filter(|slot| old(slot))
                .map(|slot| slot.id)
                .collect();
            self.drop_slots(|slot| forgotten.contains(&slot.id));
        }
    }

    fn drop_slots(&mut self, dropped: impl Fn(&Slot) -> bool) {
        let before = self.slots.len();
        self.slots.retain(|slot| !dropped(slot));
        if self.slots.len() == before {
            return;
        }
        let mut uses = Vec::with_capacity(self.uses.len());
        self.by_id.clear();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let old = slot.first_use as usize..slot.first_use as usize + usize::from(slot.uses);
            slot.first_use = u32::try_from(uses.len()).unwrap_or(u32::MAX);
            uses.extend_from_slice(&self.uses[old]);
            self.by_id
                .insert(slot.id, u32::try_from(index).unwrap_or(u32::MAX));
        }
        self.uses = uses;
    }
}

/// The low half of a number of commits: slots compare them over short times only.
#[expect(clippy::cast_possible_truncation, reason = "meant")]
pub(super) const fn short(commit: u64) -> u32 {
    commit as u32
}
