//! Signals read from one endpoint's memory.

mod terms;

use std::borrow::Cow;
use std::time::Duration;

use crate::channel::GaugeParts;
use crate::collection::Key;
use crate::engines::{Kind, Role, Signal};
use crate::histogram::WindowHistogram;
use crate::query::Why;
use crate::target::{Channel, ROUNDING, Target, Window};

use terms::{Terms, Total};

/// What is read: one of our signals, or a series by its own name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum What {
    Signal(Signal),
    Raw(u32),
}

/// Which models of a target count; a bit for each of its models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Models {
    mask: u128,
    all: bool,
}

/// Why a target has no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Absent {
    /// For good or until something changes.
    Because(Why),
    /// The series appears with its first event: zero, if others have it.
    NotYet,
}

/// A value with what it rests on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Read<V> {
    pub(crate) value: V,
    /// Look-back; zero for a snapshot.
    pub(crate) span: Duration,
    pub(crate) at_finish: bool,
}

/// A part of a target's memory: from one commit to the last.
#[derive(Debug, Clone, Copy)]
struct Span {
    from: u64,
    to: u64,
    length: Duration,
}

impl Span {
    /// A change over the span as a rate.
    fn per_second(&self, change: f64, at_finish: bool) -> Read<f64> {
        Read {
            value: change / self.length.as_secs_f64(),
            span: self.length,
            at_finish,
        }
    }
}

/// The channels of each signal, found anew when the series of a target change.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    /// One for each of [`Signal::ALL`].
    routes: Vec<Option<Route>>,
    parts: Vec<Part>,
}

/// Where the channels of one signal are in the parts.
#[derive(Debug, Clone, Copy)]
struct Route {
    start: u16,
    end: u16,
    at_finish: bool,
}

/// A channel and what it does.
#[derive(Debug, Clone, Copy)]
struct Part {
    channel: u16,
    /// The place of its term in the source.
    term: u16,
    role: Role,
}

/// The channels of one value.
struct Parts<'a> {
    channels: Cow<'a, [Part]>,
    at_finish: bool,
}

impl Parts<'_> {
    /// Whether the channels are only added up, whatever their models.
    fn is_sum(&self) -> bool {
        self.channels.iter().all(|part| part.role.is_sum())
    }
}

impl Models {
    /// Every model, and series that name none.
    pub(crate) const ALL: Self = Self {
        mask: u128::MAX,
        all: true,
    };

    pub(crate) fn includes(self, model: Option<u16>) -> bool {
        self.all || model.is_some_and(|model| model < 128 && self.mask & (1 << model) != 0)
    }
}

impl Target {
    /// The models that pass a test; `None` if the target serves models, and none of them passes.
    ///
    /// Series that name no model count where all models do.
    pub(crate) fn select_models(&self, test: impl Fn(&str) -> bool) -> Option<Models> {
        let mut mask = 0;
        let mut all = true;
        for (index, model) in self.models().iter().enumerate() {
            if test(model) {
                mask |= 1_u128 << index.min(127);
            } else {
                all = false;
            }
        }
        (mask != 0).then_some(Models { mask, all })
    }

    /// A gauge now.
    pub(crate) fn gauge(&self, what: What, models: Models) -> Result<Read<GaugeParts>, Absent> {
        let parts = self.parts(what)?;
        let (commits, _) = self.commits();
        let mut terms = Terms::default();
        for (channel, part) in self.channels_of(&parts, models) {
            check(channel, commits)?;
            let (Window::Gauge(gauge) | Window::Raw(gauge, _)) = &channel.window else {
                continue;
            };
            let is_there = channel.seen.wrapping_add(1) == commits && gauge.last.series > 0;
            terms.take(channel.model, part, is_there.then_some(gauge.last));
        }
        let mut total = match terms.total() {
            Total::Known(total) => total,
            Total::Nothing => return Err(self.absent(what)),
            Total::Undefined => return Err(Absent::Because(Why::Undefined)),
        };
        if let What::Signal(signal) = what {
            total.sum = total.sum.max(0.0);
            if signal.kind() == Kind::Ratio {
                if total.max > 1.0 + ROUNDING {
                    return Err(Absent::Because(Why::Impossible));
                }
                total.max = total.max.min(1.0);
                total.sum = total.sum.min(f64::from(total.series));
            }
        }
        Ok(Read {
            value: total,
            span: Duration::ZERO,
            at_finish: parts.at_finish,
        })
    }

    /// How fast a gauge changes, per second, over a window.
    pub(crate) fn slope(
        &self,
        what: What,
        models: Models,
        window: Duration,
    ) -> Result<Read<f64>, Absent> {
        let parts = self.parts(what)?;
        if !parts.is_sum() {
            return Err(Absent::Because(Why::NotExposed));
        }
        let span = self.span(window, 0)?;
        let mut change = None;
        for (channel, part) in self.channels_of(&parts, models) {
            if let Window::Gauge(gauge) | Window::Raw(gauge, _) = &channel.window
                && let Some(one) = gauge.change(self.row(span.from), self.row(span.to))
            {
                *change.get_or_insert(0.0) += if part.role == Role::Subtract {
                    -one
                } else {
                    one
                };
            }
        }
        let change: f64 = change.ok_or_else(|| self.absent(what))?;
        Ok(span.per_second(change, parts.at_finish))
    }

    /// Increase of a counter per second over a window.
    pub(crate) fn rate(
        &self,
        what: What,
        models: Models,
        window: Duration,
    ) -> Result<Read<f64>, Absent> {
        let parts = self.parts(what)?;
        let since = match what {
            What::Signal(_) => 0,
            What::Raw(id) => self.since(Key::Raw(id)),
        };
        let (commits, _) = self.commits();
        let mut growth = None;
        let span = self.span(window, since)?;
        for (channel, _) in self.channels_of(&parts, models) {
            check(channel, commits)?;
            let (Window::Counter(counter) | Window::Raw(_, counter)) = &channel.window else {
                continue;
            };
            let from = (span.from..span.to)
                .find_map(|from| counter.growth(self.row(from), self.row(span.to)));
            if let Some(one) = from {
                *growth.get_or_insert(0.0) += one;
            }
        }
        let growth: f64 = growth.ok_or_else(|| self.absent(what))?;
        Ok(span.per_second(growth, parts.at_finish))
    }

    /// Adds the observations within a window to `merged`, and says whether the server has buckets of them.
    pub(crate) fn add_histogram(
        &self,
        what: What,
        models: Models,
        window: Duration,
        merged: &mut WindowHistogram,
    ) -> Result<Read<bool>, Absent> {
        let parts = self.parts(what)?;
        let span = self.span(window, 0)?;
        let (commits, _) = self.commits();
        for (channel, _) in self.channels_of(&parts, models) {
            check(channel, commits)?;
        }
        let (mut found, mut has_buckets) = (false, false);
        for (channel, _) in self.channels_of(&parts, models) {
            let Window::Histogram(histogram) = &channel.window else {
                continue;
            };
            has_buckets |= histogram.has_buckets();
            let scale = self
                .collection()
                .and_then(|collection| collection.term(channel.key))
                .map_or(1.0, |(_, term)| term.scale);
            found |= (span.from..span.to).any(|from| {
                let buckets = from.max(histogram.buckets_since());
                let buckets = (buckets < span.to).then(|| self.row(buckets));
                histogram.add_window(merged, self.row(from), buckets, self.row(span.to), scale)
            });
        }
        if !found {
            return Err(self.absent(what));
        }
        Ok(Read {
            value: has_buckets,
            span: span.length,
            at_finish: parts.at_finish,
        })
    }

    /// The channels of a value that the models include.
    fn channels_of<'a>(
        &'a self,
        parts: &'a Parts<'_>,
        models: Models,
    ) -> impl Iterator<Item = (&'a Channel, Part)> {
        parts
            .channels
            .iter()
            .filter_map(|part| Some((self.channels.get(usize::from(part.channel))?, *part)))
            .filter(move |(channel, _)| models.includes(channel.model))
    }

    /// The channels of the best alternative that the last body had.
    fn parts(&self, what: What) -> Result<Parts<'_>, Absent> {
        if self.collection().is_none() {
            return Err(Absent::Because(Why::NotScraped));
        }
        match what {
            What::Signal(signal) => {
                let route = self.routes.routes.get(signal as usize).copied().flatten();
                let route = route.ok_or_else(|| self.absent(what))?;
                let channels = &self.routes.parts[usize::from(route.start)..usize::from(route.end)];
                Ok(Parts {
                    channels: Cow::Borrowed(channels),
                    at_finish: route.at_finish,
                })
            }
            What::Raw(id) => {
                let indices = (0..)
                    .zip(&self.channels)
                    .filter(|(_, channel)| channel.key == Key::Raw(id));
                let channels = indices
                    .map(|(channel, _)| Part {
                        channel,
                        term: 0,
                        role: Role::Add,
                    })
                    .collect();
                Ok(Parts {
                    channels: Cow::Owned(channels),
                    at_finish: false,
                })
            }
        }
    }

    /// Finds for each signal the best alternative that the last body had, and its channels.
    pub(crate) fn find_routes(&self) -> Routes {
        let mut found = Routes::default();
        let Some(collection) = self.collection() else {
            return found;
        };
        for signal in Signal::ALL {
            let is_there = |term: &u16| {
                let optional = collection
                    .term(Key::Term(*term))
                    .is_some_and(|(_, term)| term.optional);
                optional || self.is_present(*term)
            };
            let has_series = |term: &u16| {
                let key = Key::Term(*term);
                self.channels.iter().any(|channel| channel.key == key)
            };
            let source = collection.sources(signal).iter().find(|source| {
                let role = |term: u16| collection.term(Key::Term(term)).map(|(_, term)| term.role);
                let is_operand = |term: &&u16| role(**term).is_some_and(|role| !role.is_sum());
                source.terms.iter().all(is_there)
                    && (!source.by_labels || source.terms.first().is_some_and(has_series))
                    && source.terms.iter().filter(is_operand).all(has_series)
            });
            let route = source.map(|source| {
                let start = found.parts.len();
                for (place, term) in (0..).zip(&source.terms) {
                    let key = Key::Term(*term);
                    let role = collection
                        .term(key)
                        .map_or(Role::Add, |(_, term)| term.role);
                    let indices = (0..)
                        .zip(&self.channels)
                        .filter(|(_, channel)| channel.key == key);
                    found.parts.extend(indices.map(|(channel, _)| Part {
                        channel,
                        term: place,
                        role,
                    }));
                }
                let position = |length: usize| u16::try_from(length).unwrap_or(u16::MAX);
                Route {
                    start: position(start),
                    end: position(found.parts.len()),
                    at_finish: source.at_finish,
                }
            });
            found.routes.push(route);
        }
        found
    }

    /// Why there is no series of it.
    fn absent(&self, what: What) -> Absent {
        let Some(collection) = self.collection() else {
            return Absent::Because(Why::NotScraped);
        };
        match what {
            What::Raw(_) => Absent::NotYet,
            What::Signal(_) if collection.recognition.is_unknown() => {
                Absent::Because(Why::Unrecognised)
            }
            What::Signal(signal) if collection.sources(signal).iter().any(|source| source.late) => {
                Absent::NotYet
            }
            What::Signal(_) => Absent::Because(Why::NotExposed),
        }
    }

    /// The part of the memory that a window asks for, not before commit `since`.
    ///
    /// Begins at the last body that is at least `window` older than the last one, unless that is more than twice as old,
    /// else at the oldest body there is.
    fn span(&self, window: Duration, since: u64) -> Result<Span, Absent> {
        let (commits, held) = self.commits();
        let first = (commits - held).max(since);
        let Some(to) = commits.checked_sub(1).filter(|to| *to > first) else {
            return Err(Absent::Because(Why::FirstSample));
        };
        let age = |commit: u64| {
            Duration::try_from(self.time(to).duration_since(self.time(commit))).unwrap_or_default()
        };
        let mut from = to;
        while from > first && age(from) < window {
            from -= 1;
        }
        if age(from) > window * 2 && from + 1 < to {
            from += 1;
        }
        let length = age(from);
        if from == to || length.is_zero() {
            return Err(Absent::Because(Why::FirstSample));
        }
        Ok(Span { from, to, length })
    }
}

fn check(channel: &Channel, commits: u64) -> Result<(), Absent> {
    if channel.impossible.wrapping_add(1) == commits {
        return Err(Absent::Because(Why::Impossible));
    }
    Ok(())
}
