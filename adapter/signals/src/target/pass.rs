//! The reading of one body into a target's slots.

use std::borrow::Cow;

use coppice_exposition::{Consumer, Sample, Text};

use super::commit::short;
use super::process::NONE;
use super::{Channel, Ingested, Slot, SlotUse, Target, Window};
use crate::channel::{Counter, Gauge, Histogram, Place};
use crate::collection::{Collection, Key, NameUse, Part};
use crate::engines::{Fold, Reading};
use crate::settings::Limits;

/// What was read, before it is committed.
#[derive(Debug, Default)]
pub(super) struct Parsed {
    pub(super) found: Ingested,
    pub(super) start_time: Option<f64>,
}

/// The reading of one body into a target.
pub(super) struct Pass<'a> {
    pub(super) target: &'a mut Target,
    pub(super) collection: &'a Collection,
    pub(super) limits: &'a Limits,
    /// The slot expected next: bodies keep their order.
    pub(super) next: usize,
    pub(super) parsed: Parsed,
    pub(super) over_limit: Option<(&'static str, usize)>,
}

impl<'t> Consumer<'t> for Pass<'_> {
    type Key = u32;

    fn select(&mut self, name: &[u8]) -> Option<u32> {
        self.collection.find(name)
    }

    fn sample(&mut self, name: u32, sample: &Sample<'t, '_>) {
        let uses = self.collection.uses(name);
        if uses.iter().all(|each| each.part == Part::Newest) {
            return self.newest(uses, sample);
        }
        let id = sample.fingerprint();
        let slot = match self.target.slots.get(self.next) {
            Some(slot) if slot.id == id => Some(self.next),
            _ => self.target.by_id.get(&id).map(|index| *index as usize),
        };
        for NameUse { key, part } in uses {
            match (key, part) {
                (_, Part::Start) => self.parsed.start_time = Some(sample.value),
                (Key::Term(term), _) => self.target.present_next[usize::from(*term)] = true,
                (Key::Raw(_), _) => {}
            }
        }
        let Some(index) = slot.or_else(|| self.add(id, uses, sample)) else {
            return;
        };
        self.next = index + 1;
        let slot = &mut self.target.slots[index];
        if slot.attempt == self.target.attempts {
            self.parsed.found.duplicates += 1;
        }
        slot.attempt = self.target.attempts;
        slot.value = sample.value;
    }
}

impl Pass<'_> {
    /// Keeps what stands in a label, if this series' value is the greatest of its name so far.
    ///
    /// A server may have any number of such series, so none of them is remembered.
    fn newest(&mut self, uses: &[NameUse], sample: &Sample<'_, '_>) {
        for NameUse { key, .. } in uses {
            let Key::Term(index) = *key else { continue };
            self.target.present_next[usize::from(index)] = true;
            let Some((_, term)) = self.collection.term(*key) else {
                continue;
            };
            let Reading::Newest { label, names } = term.reading else {
                continue;
            };
            let newest = &mut self.target.newest;
            let known = newest.iter().position(|(known, ..)| *known == index);
            let is_newer = known.is_none_or(|known| newest[known].1 < sample.value);
            if !is_newer || !sample.value.is_finite() {
                continue;
            }
            let Some(value) = sample.label(label) else {
                continue;
            };
            let value = value.unescaped();
            let found = if names {
                Some(count_names(&value))
            } else {
                value.parse().ok().filter(|number: &f64| number.is_finite())
            };
            let Some(found) = found else { continue };
            match known {
                Some(known) => newest[known] = (index, sample.value, found),
                None => newest.push((index, sample.value, found)),
            }
        }
    }

    /// The process that a series names.
    fn process(&mut self, sample: &Sample<'_, '_>) -> u8 {
        let label = self.collection.process_label;
        let Some(id) = label.and_then(|label| sample.label(label)) else {
            return NONE;
        };
        let id = id.unescaped();
        if id.len() > 32 {
            return NONE;
        }
        self.target.processes.index(&id, self.target.commits)
    }

    /// Finds out what a series is used for, once.
    fn add(&mut self, id: u64, uses: &[NameUse], sample: &Sample<'_, '_>) -> Option<usize> {
        if self.target.slots.len() >= self.limits.series_per_target {
            self.over_limit = Some(("limits.series_per_target", self.limits.series_per_target));
            return None;
        }
        self.find_role(uses, sample);
        let first_use = self.target.uses.len();
        let mut counts = false;
        for name_use in uses {
            let Some((place, window)) = self.place(*name_use, sample) else {
                continue;
            };
            let model = self.model(sample).ok()?;
            let channel = self
                .target
                .channel(self.collection, name_use.key, model, window)?;
            let place = match (
                &mut self.target.channels[usize::from(channel)].window,
                place,
            ) {
                (Window::Histogram(histogram), Place::Bucket(_)) => {
                    let bound = sample
                        .label("le")
                        .and_then(|le| le.unescaped().trim().parse().ok());
                    bound.and_then(|bound| histogram.place(bound))
                }
                (_, place) => Some(place),
            };
            let Some(place) = place else { continue };
            counts |= matches!(window, Kind::Counter | Kind::Histogram);
            self.target.uses.push(SlotUse { channel, place });
        }
        let process = self.process(sample);
        let index = self.target.slots.len();
        self.target.slots.push(Slot {
            id,
            previous: self.target.carried.remove(&id).unwrap_or(f64::NAN),
            value: sample.value,
            attempt: 0,
            commit: short(self.target.commits),
            first_use: u32::try_from(first_use).ok()?,
            uses: u16::try_from(self.target.uses.len() - first_use).ok()?,
            counts,
            process,
        });
        self.target.by_id.insert(id, u32::try_from(index).ok()?);
        Some(index)
    }

    /// Where a series goes, and what kind of memory it needs; `None` if its labels rule it out.
    fn place(&mut self, name_use: NameUse, sample: &Sample<'_, '_>) -> Option<(Place, Kind)> {
        if name_use.part == Part::Start {
            return None;
        }
        let Some((_, term)) = self.collection.term(name_use.key) else {
            return Some((Place::Value, Kind::Raw));
        };
        let holds = term.labels.iter().all(|(label, test)| {
            sample
                .label(label)
                .map_or_else(|| test.holds(""), |value| test.holds(&value.unescaped()))
        });
        if !holds {
            return None;
        }
        match (term.reading, name_use.part) {
            (Reading::Labels(lists), _) => {
                let number = |label: &&str| {
                    sample
                        .label(label)?
                        .unescaped()
                        .parse::<f64>()
                        .ok()
                        .filter(|number| number.is_finite())
                };
                let product = lists
                    .iter()
                    .find_map(|labels| labels.iter().map(number).product::<Option<f64>>())?;
                let index = u16::try_from(self.target.constants.len()).ok()?;
                self.target.constants.push(product);
                Some((Place::Constant(index), Kind::Gauge))
            }
            (Reading::Gauge | Reading::Ratio, _) => Some((Place::Value, Kind::Gauge)),
            (Reading::Counter, _) => Some((Place::Value, Kind::Counter)),
            (Reading::Histogram { .. }, Part::Bucket) => Some((Place::Bucket(0), Kind::Histogram)),
            (Reading::Histogram { .. } | Reading::Mean { .. }, Part::Sum) => {
                Some((Place::Sum, Kind::Histogram))
            }
            (Reading::Histogram { .. } | Reading::Mean { .. }, Part::Count) => {
                Some((Place::Count, Kind::Histogram))
            }
            (Reading::Histogram { .. } | Reading::Mean { .. } | Reading::Newest { .. }, _) => None,
        }
    }

    fn find_role(&mut self, uses: &[NameUse], sample: &Sample<'_, '_>) {
        if self.target.role.is_some() {
            return;
        }
        for name_use in uses {
            let Some((engine, _)) = self.collection.term(name_use.key) else {
                continue;
            };
            let Some(role_label) = &engine.role_label else {
                continue;
            };
            let Some(value) = sample.label(role_label.label) else {
                continue;
            };
            self.target.role = role_label
                .roles
                .iter()
                .find(|(name, _)| value.is(name))
                .map(|(_, role)| *role);
        }
    }

    /// The index of the sample's model, remembered if it is new.
    fn model(&mut self, sample: &Sample<'_, '_>) -> Result<Option<u16>, ()> {
        let Some(value) = self
            .collection
            .model_labels
            .iter()
            .find_map(|label| sample.label(label))
        else {
            return Ok(None);
        };
        let value = value.unescaped();
        if self.collection.unnamed_models.contains(&&*value) {
            return Ok(None);
        }
        let name = shortened(&value, self.limits.label_bytes);
        let known = self.target.models.iter().position(|model| **model == *name);
        let index = match known {
            Some(index) => index,
            None if self.target.models.len() >= self.limits.models_per_target => {
                self.over_limit = Some(("limits.models_per_target", self.limits.models_per_target));
                return Err(());
            }
            None => {
                self.target.model_hashes.push(fingerprint(&name));
                self.target.models.push(name.into());
                self.target.models.len() - 1
            }
        };
        Ok(u16::try_from(index).ok())
    }
}

impl Target {
    /// The channel of a key and a model, made if it is new.
    pub(super) fn channel(
        &mut self,
        collection: &Collection,
        key: Key,
        model: Option<u16>,
        kind: Kind,
    ) -> Option<u16> {
        let rows = self.capacity;
        let channels = &mut self.channels;
        let known = channels
            .iter()
            .position(|channel| channel.key == key && channel.model == model);
        let index = known.unwrap_or_else(|| {
            let fold = collection
                .term(key)
                .map_or(Fold::Sum, |(_, term)| term.fold);
            let window = match kind {
                Kind::Gauge => Window::Gauge(Gauge::new(rows, fold)),
                Kind::Counter => Window::Counter(Counter::new(rows)),
                Kind::Histogram => Window::Histogram(Box::new(Histogram::new(rows))),
                Kind::Raw => Window::Raw(Gauge::new(rows, Fold::Sum), Counter::new(rows)),
            };
            channels.push(Channel {
                key,
                model,
                window,
                seen: u64::MAX,
                impossible: u64::MAX,
            });
            channels.len() - 1
        });
        u16::try_from(index).ok()
    }
}

/// The kinds of [`Window`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Gauge,
    Counter,
    Histogram,
    Raw,
}

/// How many names a list with commas holds.
fn count_names(list: &str) -> f64 {
    let names = list.split(',').filter(|name| !name.is_empty()).count();
    f64::from(u32::try_from(names).unwrap_or(u32::MAX))
}

/// A number for a text.
fn fingerprint(text: &str) -> u64 {
    let name = Text::plain(text);
    Sample {
        name,
        labels: &[],
        value: 0.0,
        timestamp: None,
        exemplar: None,
    }
    .fingerprint()
}

/// A model's name, cut to `limit` bytes with a hash of the whole where it is longer.
fn shortened(name: &str, limit: usize) -> Cow<'_, str> {
    if name.len() <= limit {
        return Cow::Borrowed(name);
    }
    let hash = fingerprint(name);
    Cow::Owned(format!(
        "{}~{hash:016x}",
        &name[..name.floor_char_boundary(limit)]
    ))
}
