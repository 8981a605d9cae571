//! Signals read from one endpoint's memory.

use std::borrow::Cow;
use std::time::Duration;

use crate::channel::GaugeParts;
use crate::collection::Key;
use crate::engines::{Reading, Signal};
use crate::histogram::WindowHistogram;
use crate::query::Why;
use crate::target::{Channel, Target, Window};

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
    /// Channels, each with whether it is subtracted.
    parts: Vec<(u16, bool)>,
}

/// Where the channels of one signal are in the parts.
#[derive(Debug, Clone, Copy)]
struct Route {
    start: u16,
    end: u16,
    at_finish: bool,
}

/// The channels of one value, each with whether it is subtracted.
struct Parts<'a> {
    channels: Cow<'a, [(u16, bool)]>,
    at_finish: bool,
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
        let mut total = GaugeParts::NONE;
        let mut found = false;
        for (channel, negative) in self.channels_of(&parts, models) {
            check(channel, commits)?;
            let (Window::Gauge(gauge) | Window::Raw(gauge, _)) = &channel.window else {
                continue;
            };
            if channel.seen.wrapping_add(1) != commits || gauge.last.series == 0 {
                continue;
            }
            found = true;
            if negative {
                total.sum -= gauge.last.sum;
            } else {
                total.add(gauge.last);
            }
        }
        if !found {
            return Err(self.absent(what));
        }
        if matches!(what, What::Signal(_)) {
            total.sum = total.sum.max(0.0);
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
        let span = self.span(window, 0)?;
        let mut change = None;
        for (channel, negative) in self.channels_of(&parts, models) {
            if let Window::Gauge(gauge) | Window::Raw(gauge, _) = &channel.window
                && let Some(one) = gauge.change(self.row(span.from), self.row(span.to))
            {
                *change.get_or_insert(0.0) += if negative { -one } else { one };
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

    /// Adds the observations within a window to `merged`.
    pub(crate) fn add_histogram(
        &self,
        what: What,
        models: Models,
        window: Duration,
        merged: &mut WindowHistogram,
    ) -> Result<Read<()>, Absent> {
        let parts = self.parts(what)?;
        let span = self.span(window, 0)?;
        let (commits, _) = self.commits();
        for (channel, _) in self.channels_of(&parts, models) {
            check(channel, commits)?;
        }
        let mut found = false;
        for (channel, _) in self.channels_of(&parts, models) {
            let Window::Histogram(histogram) = &channel.window else {
                continue;
            };
            let term = self
                .collection()
                .and_then(|collection| collection.term(channel.key));
            let scale = match term.map(|(_, term)| term.reading) {
                Some(Reading::Histogram { scale, .. }) => scale,
                _ => 1.0,
            };
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
            value: (),
            span: span.length,
            at_finish: parts.at_finish,
        })
    }

    /// The channels of a value that the models include.
    fn channels_of<'a>(
        &'a self,
        parts: &'a Parts<'_>,
        models: Models,
    ) -> impl Iterator<Item = (&'a Channel, bool)> {
        parts
            .channels
            .iter()
            .filter_map(|(channel, negative)| {
                Some((self.channels.get(usize::from(*channel))?, *negative))
            })
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
                let channels = indices.map(|(index, _)| (index, false)).collect();
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
            let source = collection
                .sources(signal)
                .iter()
                .find(|source| source.terms.iter().all(is_there));
            let route = source.map(|source| {
                let start = found.parts.len();
                for term in &source.terms {
                    let key = Key::Term(*term);
                    let negative = collection.term(key).is_some_and(|(_, term)| term.negative);
                    let indices = (0..)
                        .zip(&self.channels)
                        .filter(|(_, channel)| channel.key == key);
                    found
                        .parts
                        .extend(indices.map(|(index, _)| (index, negative)));
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
