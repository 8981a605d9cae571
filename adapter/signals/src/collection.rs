//! Which series of a body are kept, and what for.

use std::collections::BTreeMap;
use std::sync::Arc;

use coppice_exposition::NameTable;

use crate::engines::{Engine, Reading, Recognition, Signal, Term};

/// What a series contributes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Key {
    /// A term of the recognised servers' rules, by its index in [`Collection::terms`].
    Term(u16),
    /// A series asked for by its own name, by the id it keeps for as long as it is collected.
    Raw(u32),
}

/// Which part of a histogram a series name is; `Value` for everything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Value,
    Bucket,
    Sum,
    Count,
    /// A series of which only the one with the greatest value is kept.
    Newest,
    /// The process' start time.
    Start,
}

/// One use of a series name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NameUse {
    pub(crate) key: Key,
    pub(crate) part: Part,
}

/// One alternative for a signal, as indices into [`Collection::terms`].
#[derive(Debug)]
pub(crate) struct SourceTerms {
    pub(crate) terms: Vec<u16>,
    pub(crate) at_finish: bool,
    pub(crate) late: bool,
    /// Whether a series must pass the first term's tests.
    pub(crate) by_labels: bool,
}

/// The series to keep of bodies that were recognised alike.
#[derive(Debug)]
pub(crate) struct Collection {
    pub(crate) recognition: Recognition,
    /// Every term of the servers' rules with its server, in the order of the rules.
    pub(crate) terms: Vec<(&'static Engine, &'static Term)>,
    /// Alternatives for each signal, best first.
    sources: BTreeMap<Signal, Vec<SourceTerms>>,
    /// Index into `uses` for each series name.
    names: NameTable<u32>,
    uses: Vec<Vec<NameUse>>,
    /// Ids of the series collected by their own names.
    raw: Vec<u32>,
    /// Series without which a body is incomplete, if they were there before, with their terms.
    required: Vec<(u16, &'static str)>,
    /// Labels that may name the model, best first.
    pub(crate) model_labels: Vec<&'static str>,
    /// What stands there where a server was not told a name.
    pub(crate) unnamed_models: Vec<&'static str>,
    /// The label that tells processes apart whose gauges outlive them.
    pub(crate) process_label: Option<&'static str>,
}

/// The names under which a series may come: as the rules spell it, and as servers do besides.
fn spellings(engine: &Engine, name: &str) -> Vec<String> {
    let mut names = vec![name.to_owned()];
    for spelling in engine.spellings {
        if let Some(rest) = name.strip_prefix(spelling.rule) {
            names.extend(spelling.others.iter().map(|other| format!("{other}{rest}")));
        }
    }
    names
}

impl Collection {
    /// What to keep of a body of these servers, and of these series by their own names.
    pub(crate) fn new(recognition: Recognition, raw: &BTreeMap<String, u32>) -> Self {
        let mut terms = Vec::new();
        let mut sources: BTreeMap<Signal, Vec<SourceTerms>> = BTreeMap::new();
        let mut uses: BTreeMap<String, Vec<NameUse>> = BTreeMap::new();
        let mut add = |engine: &Engine, name: &str, key: Key, part: Part| {
            for name in spellings(engine, name) {
                uses.entry(name).or_default().push(NameUse { key, part });
            }
        };
        let appears_late = recognition.engines().any(|engine| engine.appears_late);
        for engine in recognition.engines() {
            if let Some(name) = engine.start_time {
                add(engine, name, Key::Term(u16::MAX), Part::Start);
            }
            for rule in engine.rules {
                for source in rule.sources {
                    let mut indices = Vec::with_capacity(source.terms.len());
                    for term in source.terms {
                        let index = u16::try_from(terms.len()).unwrap_or(u16::MAX);
                        indices.push(index);
                        terms.push((engine, term));
                        let key = Key::Term(index);
                        match term.reading {
                            Reading::Histogram { buckets } => {
                                if buckets {
                                    let name = format!("{}_bucket", term.name);
                                    add(engine, &name, key, Part::Bucket);
                                }
                                add(engine, &format!("{}_sum", term.name), key, Part::Sum);
                                add(engine, &format!("{}_count", term.name), key, Part::Count);
                            }
                            Reading::Mean { count } => {
                                add(engine, term.name, key, Part::Sum);
                                add(engine, count, key, Part::Count);
                            }
                            Reading::Newest { .. } => add(engine, term.name, key, Part::Newest),
                            Reading::Gauge
                            | Reading::Ratio
                            | Reading::Counter
                            | Reading::Labels(_) => add(engine, term.name, key, Part::Value),
                        }
                    }
                    sources.entry(rule.signal).or_default().push(SourceTerms {
                        terms: indices,
                        at_finish: source.at_finish,
                        late: source.late || appears_late,
                        by_labels: source.by_labels,
                    });
                }
            }
        }
        for (name, id) in raw {
            uses.entry(name.clone()).or_default().push(NameUse {
                key: Key::Raw(*id),
                part: Part::Value,
            });
        }
        let mut model_labels: Vec<_> = recognition
            .engines()
            .filter_map(|engine| engine.model_label)
            .collect();
        // A router tells its clients' names and those of its engines' models apart: only the latter are models.
        if model_labels.is_empty() || !recognition.is_frontend() {
            let others = ["model_name", "model"]
                .into_iter()
                .filter(|label| !model_labels.contains(label));
            model_labels.extend(others.collect::<Vec<_>>());
        }
        let required = [Signal::Running, Signal::Waiting]
            .into_iter()
            .filter_map(|signal| sources.get(&signal)?.first()?.terms.first().copied())
            .filter_map(|index| Some((index, terms.get(usize::from(index))?.1.name)))
            .collect();
        let (names, uses): (Vec<_>, Vec<_>) = uses.into_iter().unzip();
        Self {
            recognition,
            terms,
            sources,
            names: NameTable::new(names.into_iter().zip(0..)),
            uses,
            raw: raw.values().copied().collect(),
            required,
            model_labels,
            unnamed_models: recognition
                .engines()
                .filter_map(|engine| engine.unnamed_model)
                .collect(),
            process_label: recognition
                .engines()
                .find_map(|engine| engine.process_label),
        }
    }

    /// The index of a name's uses; `None` for a name that nobody needs.
    pub(crate) fn find(&self, name: &[u8]) -> Option<u32> {
        if let Some(index) = self.names.get(name) {
            return Some(*index);
        }
        if !self.raw.is_empty() && name.iter().any(u8::is_ascii_uppercase) {
            return self.names.get(&name.to_ascii_lowercase()).copied();
        }
        None
    }

    /// What a name found by [`Self::find`] is used for.
    pub(crate) fn uses(&self, index: u32) -> &[NameUse] {
        usize::try_from(index)
            .ok()
            .and_then(|index| self.uses.get(index))
            .map_or(&[], Vec::as_slice)
    }

    /// Series without which a body is incomplete, if they were there before: their terms and names.
    pub(crate) fn required(&self) -> impl Iterator<Item = (u16, &'static str)> {
        self.required.iter().copied()
    }

    /// Ids of the series collected by their own names.
    pub(crate) fn raw_ids(&self) -> impl Iterator<Item = u32> {
        self.raw.iter().copied()
    }

    /// Whether a series is collected by its own name under this id.
    pub(crate) fn has_raw_id(&self, id: u32) -> bool {
        self.raw.contains(&id)
    }

    /// The alternatives for a signal, best first.
    pub(crate) fn sources(&self, signal: Signal) -> &[SourceTerms] {
        self.sources.get(&signal).map_or(&[], Vec::as_slice)
    }

    /// The term of a key; `None` for a raw name.
    pub(crate) fn term(&self, key: Key) -> Option<(&'static Engine, &'static Term)> {
        match key {
            Key::Term(index) => self.terms.get(usize::from(index)).copied(),
            Key::Raw(_) => None,
        }
    }
}

/// The collections in use, one for each recognition, and the names asked for.
#[derive(Debug, Default)]
pub(crate) struct Catalogue {
    raw: BTreeMap<String, u32>,
    next_raw: u32,
    collections: Vec<Arc<Collection>>,
}

impl Catalogue {
    /// The collection for a recognition.
    pub(crate) fn collection(&mut self, recognition: Recognition) -> Arc<Collection> {
        if let Some(found) = self
            .collections
            .iter()
            .find(|collection| collection.recognition == recognition)
        {
            return Arc::clone(found);
        }
        let collection = Arc::new(Collection::new(recognition, &self.raw));
        self.collections.push(Arc::clone(&collection));
        collection
    }

    /// The id of a series collected by its own name.
    pub(crate) fn raw(&self, name: &str) -> Option<u32> {
        self.raw.get(name).copied()
    }

    /// Makes the collections anew when they are next asked for.
    pub(crate) fn renew(&mut self) {
        self.collections.clear();
    }

    /// How many series are collected by their own names.
    pub(crate) fn raw_count(&self) -> usize {
        self.raw.len()
    }

    /// Collects a series by its own name from now on.
    pub(crate) fn add_raw(&mut self, name: &str) {
        if !self.raw.contains_key(name) {
            self.raw.insert(name.to_owned(), self.next_raw);
            self.next_raw = self.next_raw.wrapping_add(1);
            self.collections.clear();
        }
    }

    /// Keeps only some of the series collected by their own names.
    pub(crate) fn retain_raw(&mut self, keep: impl Fn(&str) -> bool) {
        let before = self.raw.len();
        self.raw.retain(|name, _| keep(name));
        if self.raw.len() != before {
            self.collections.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::recognise;
    use coppice_exposition::Limits;

    fn recognition(body: &str) -> Recognition {
        recognise(body.as_bytes(), &Limits::default()).unwrap()
    }

    #[test]
    fn needed_names_are_found_exactly_and_with_escaped_colons() {
        let collection = Collection::new(
            recognition("sglang:x 1\n"),
            &BTreeMap::from([("my_gauge".to_owned(), 7)]),
        );
        let keys = |name: &str| -> Vec<Key> {
            collection
                .find(name.as_bytes())
                .map_or(Vec::new(), |index| {
                    collection.uses(index).iter().map(|each| each.key).collect()
                })
        };
        assert_eq!(keys("sglang:num_running_reqs").len(), 1);
        assert_eq!(
            keys("sglang:num_running_reqs"),
            keys("sglang_num_running_reqs")
        );
        assert_eq!(keys("sglang:num_grammar_queue_reqs").len(), 2);
        assert_eq!(keys("sglang:num_running_reqs_total"), []);
        assert_eq!(keys("vllm:num_requests_running"), []);
        assert_eq!(keys("My_Gauge"), [Key::Raw(7)]);
        assert!(!collection.sources(Signal::Waiting).is_empty());
    }

    #[test]
    fn a_raw_name_keeps_its_id_and_renews_the_collections() {
        let mut catalogue = Catalogue::default();
        let before = catalogue.collection(recognition("vllm:x 1\n"));
        assert!(Arc::ptr_eq(
            &before,
            &catalogue.collection(recognition("vllm:y 1\n"))
        ));
        catalogue.add_raw("a");
        catalogue.add_raw("b");
        let after = catalogue.collection(recognition("vllm:x 1\n"));
        assert!(!Arc::ptr_eq(&before, &after));
        assert_eq!(
            (catalogue.raw("a"), catalogue.raw("b"), catalogue.raw("c")),
            (Some(0), Some(1), None)
        );
        catalogue.retain_raw(|name| name == "b");
        assert_eq!(
            (
                catalogue.raw("a"),
                catalogue.raw("b"),
                catalogue.raw_count()
            ),
            (None, Some(1), 1)
        );
    }
}
