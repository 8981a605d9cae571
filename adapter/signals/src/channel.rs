//! What is kept of one term of one model: the last gauges, growth of counters, growth of buckets.
//!
//! Channels of one target share the rows of its ring: row `n` of every channel belongs to the same scrape.

use crate::engines::Fold;
use crate::histogram::WindowHistogram;

/// Where the series of a channel put their values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The value.
    Value,
    /// A value that stands in the labels, by its index in the target's constants.
    Constant(u16),
    /// A bucket, by its index in the bounds.
    Bucket(u16),
    /// The bucket without an upper bound.
    LastBucket,
    /// The sum of a histogram.
    Sum,
    /// The count of a histogram.
    Count,
}

/// Values of a gauge at each row, and of the last one its parts.
#[derive(Debug)]
pub(crate) struct Gauge {
    /// Sum over the series; NaN where there was none.
    rows: Box<[f64]>,
    pub(crate) last: GaugeParts,
    next: GaugeParts,
    fold: Fold,
}

/// Several series of a gauge as one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct GaugeParts {
    pub(crate) sum: f64,
    pub(crate) max: f64,
    pub(crate) series: u32,
}

impl GaugeParts {
    pub(crate) const NONE: Self = Self {
        sum: 0.0,
        max: f64::NEG_INFINITY,
        series: 0,
    };

    pub(crate) fn add(&mut self, other: Self) {
        self.sum += other.sum;
        self.max = self.max.max(other.max);
        self.series += other.series;
    }

    /// As one value.
    pub(crate) const fn one(value: f64) -> Self {
        Self {
            sum: value,
            max: value,
            series: 1,
        }
    }

    /// Several series become one, where the fold is not a sum.
    fn folded(self, fold: Fold) -> Self {
        match fold {
            _ if self.series == 0 => self,
            Fold::Sum => self,
            Fold::Max => Self::one(self.max),
            Fold::Mean => Self::one(self.sum / f64::from(self.series)),
        }
    }
}

impl Gauge {
    pub(crate) fn new(rows: usize, fold: Fold) -> Self {
        Self {
            rows: vec![f64::NAN; rows].into(),
            last: GaugeParts::NONE,
            next: GaugeParts::NONE,
            fold,
        }
    }

    pub(crate) fn observe(&mut self, value: f64) {
        self.next.add(GaugeParts::one(value));
    }

    pub(crate) fn commit(&mut self, row: usize) {
        self.last = std::mem::replace(&mut self.next, GaugeParts::NONE).folded(self.fold);
        self.rows[row] = if self.last.series > 0 {
            self.last.sum
        } else {
            f64::NAN
        };
    }

    /// Change between two rows; `None` where either is unknown.
    pub(crate) fn change(&self, from: usize, to: usize) -> Option<f64> {
        let change = self.rows[to] - self.rows[from];
        change.is_finite().then_some(change)
    }
}

/// Growth of a counter: all its series' increases, summed since the first scrape.
#[derive(Debug)]
pub(crate) struct Counter {
    total: f64,
    rows: Box<[f64]>,
}

impl Counter {
    pub(crate) fn new(rows: usize) -> Self {
        Self {
            total: 0.0,
            rows: vec![f64::NAN; rows].into(),
        }
    }

    pub(crate) fn grow(&mut self, increase: f64) {
        self.total += increase;
    }

    pub(crate) fn commit(&mut self, row: usize, previous: Option<usize>) {
        // A channel that begins later than its target began at zero.
        if let Some(previous) = previous
            && self.rows[previous].is_nan()
        {
            self.rows[previous] = 0.0;
        }
        self.rows[row] = self.total;
    }

    /// Growth between two rows; `None` where the earlier one is unknown.
    pub(crate) fn growth(&self, from: usize, to: usize) -> Option<f64> {
        let growth = self.rows[to] - self.rows[from];
        growth.is_finite().then_some(growth.max(0.0))
    }
}

/// Growth of a histogram's buckets, sum and count.
#[derive(Debug)]
pub(crate) struct Histogram {
    /// Finite upper bounds, rising, in the signal's unit.
    bounds: Vec<f64>,
    /// Bounds seen for the first time, in the order of sight; their indices continue those of `bounds`.
    new_bounds: Vec<f64>,
    /// Growth since the first scrape: of the count, the sum, each bucket.
    totals: Vec<f64>,
    /// Rows of these.
    rows: Vec<f64>,
    capacity: usize,
    /// Commit from which on the rows of the buckets belong together.
    buckets_since: u64,
    next: NextHistogram,
}

/// What a scrape said about a histogram, before it is committed.
#[derive(Debug, Default)]
struct NextHistogram {
    count: f64,
    counts: u32,
    sum: f64,
    last_bucket: f64,
    last_buckets: u32,
    /// For each bound, old and new: growth, value, number of series.
    buckets: Vec<(f64, f64, u32)>,
    /// Sum of the counts and of the last buckets as they are.
    count_value: f64,
    last_bucket_value: f64,
}

/// What [`Histogram::commit`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Committed {
    /// Nothing special.
    Same,
    /// Other bounds than before: buckets start over.
    BoundsChanged,
    /// Buckets that contradict each other: they start over at the next scrape.
    Inconsistent,
}

const COUNT: usize = 0;
const SUM: usize = 1;
const BUCKETS: usize = 2;

impl Histogram {
    pub(crate) fn new(rows: usize) -> Self {
        Self {
            bounds: Vec::new(),
            new_bounds: Vec::new(),
            totals: vec![0.0; BUCKETS],
            rows: vec![f64::NAN; rows * BUCKETS],
            capacity: rows,
            buckets_since: 0,
            next: NextHistogram::default(),
        }
    }

    /// The place of a bucket with this upper bound.
    pub(crate) fn place(&mut self, bound: f64) -> Option<Place> {
        if bound.is_nan() {
            return None;
        }
        if bound == f64::INFINITY {
            return Some(Place::LastBucket);
        }
        let known = self
            .bounds
            .iter()
            .chain(&self.new_bounds)
            .position(|other| other.total_cmp(&bound).is_eq());
        let index = known.unwrap_or_else(|| {
            self.new_bounds.push(bound);
            self.bounds.len() + self.new_bounds.len() - 1
        });
        u16::try_from(index).ok().map(Place::Bucket)
    }

    /// Takes in a series' value and its growth since the last scrape.
    pub(crate) fn observe(&mut self, place: Place, value: f64, increase: f64) {
        let next = &mut self.next;
        match place {
            Place::Bucket(index) => {
                let index = usize::from(index);
                if next.buckets.len() <= index {
                    next.buckets.resize(index + 1, (0.0, 0.0, 0));
                }
                let (growth, values, series) = &mut next.buckets[index];
                *growth += increase;
                *values += value;
                *series += 1;
            }
            Place::LastBucket => {
                next.last_bucket += increase;
                next.last_bucket_value += value;
                next.last_buckets += 1;
            }
            Place::Count => {
                next.count += increase;
                next.count_value += value;
                next.counts += 1;
            }
            Place::Sum => next.sum += increase,
            Place::Value | Place::Constant(_) => {}
        }
    }

    const fn width(&self) -> usize {
        BUCKETS + self.bounds.len()
    }

    /// Ends a scrape: writes `row`, the `commit`-th of this target.
    ///
    /// Where the bounds changed, `moved` gets the new index of each old one.
    pub(crate) fn commit(
        &mut self,
        row: usize,
        previous: Option<usize>,
        commit: u64,
        mut moved: impl FnMut(&[Option<u16>]),
    ) -> Committed {
        let mut next = std::mem::take(&mut self.next);
        next.buckets
            .resize(self.bounds.len() + self.new_bounds.len(), (0.0, 0.0, 0));
        let has_buckets = next.buckets.iter().any(|(_, _, series)| *series > 0);
        let mut committed = Committed::Same;
        if has_buckets
            && next
                .buckets
                .iter()
                .enumerate()
                .any(|(index, (_, _, series))| (*series > 0) != (index < self.bounds.len()))
        {
            let starts = self.bounds.is_empty();
            moved(&self.change_bounds(&mut next, starts));
            // Buckets that begin later than their target began at zero.
            self.buckets_since = if starts && previous.is_some() {
                commit.saturating_sub(1)
            } else {
                commit
            };
            if !starts {
                committed = Committed::BoundsChanged;
            }
        }
        let count = if next.counts > 0 {
            next.count
        } else {
            next.last_bucket
        };
        self.totals[COUNT] += count;
        self.totals[SUM] += next.sum;
        if has_buckets {
            if next.is_consistent() {
                for (total, (growth, _, _)) in self.totals[BUCKETS..].iter_mut().zip(&next.buckets)
                {
                    *total += growth;
                }
            } else {
                self.buckets_since = commit + 1;
                committed = Committed::Inconsistent;
            }
        }
        let width = self.width();
        if let Some(previous) = previous {
            for value in &mut self.rows[previous * width..(previous + 1) * width] {
                if value.is_nan() {
                    *value = 0.0;
                }
            }
        }
        self.rows[row * width..(row + 1) * width].copy_from_slice(&self.totals);
        committed
    }

    /// Sorts the bounds of this scrape in, drops those that it lacks, and starts the buckets over. Says where each bound,
    /// old and new, went.
    fn change_bounds(&mut self, next: &mut NextHistogram, keep_growth: bool) -> Vec<Option<u16>> {
        let all: Vec<f64> = self
            .bounds
            .iter()
            .chain(&self.new_bounds)
            .copied()
            .collect();
        let mut order: Vec<usize> = (0..all.len())
            .filter(|index| next.buckets[*index].2 > 0)
            .collect();
        order.sort_by(|one, other| all[*one].total_cmp(&all[*other]));
        let mut moved = vec![None; all.len()];
        for (new, old) in order.iter().enumerate() {
            moved[*old] = u16::try_from(new).ok();
        }
        next.buckets = order
            .iter()
            .map(|old| next.buckets[*old])
            .map(|(growth, value, series)| (if keep_growth { growth } else { 0.0 }, value, series))
            .collect();
        let old_width = self.width();
        self.bounds = order.iter().map(|old| all[*old]).collect();
        self.new_bounds.clear();
        self.totals.truncate(BUCKETS);
        self.totals.resize(self.width(), 0.0);
        let mut rows = vec![f64::NAN; self.capacity * self.width()];
        for row in 0..self.capacity {
            let kept = &self.rows[row * old_width..row * old_width + BUCKETS];
            rows[row * self.width()..row * self.width() + BUCKETS].copy_from_slice(kept);
        }
        self.rows = rows;
        moved
    }

    /// The commit from which on bucket rows may be compared.
    pub(crate) const fn buckets_since(&self) -> u64 {
        self.buckets_since
    }

    /// Whether there are buckets, for quantiles.
    pub(crate) fn has_buckets(&self) -> bool {
        !self.bounds.is_empty()
    }

    /// Adds what was observed between two rows to `merged`; buckets from another row on where they started over later.
    ///
    /// Returns false, having added nothing, where the earlier row is unknown.
    pub(crate) fn add_window(
        &self,
        merged: &mut WindowHistogram,
        from: usize,
        buckets_from: Option<usize>,
        to: usize,
        scale: f64,
    ) -> bool {
        let width = self.width();
        let row = |row: usize| &self.rows[row * width..(row + 1) * width];
        let growth = |from: usize, column: usize| (row(to)[column] - row(from)[column]).max(0.0);
        if row(from)[COUNT].is_nan() {
            return false;
        }
        let sum = (row(to)[SUM] - row(from)[SUM]) * scale;
        merged.add_count(growth(from, COUNT), sum);
        let has_buckets = |from: &usize| {
            !self.bounds.is_empty() && row(*from).iter().all(|value| !value.is_nan())
        };
        if let Some(from) = buckets_from.filter(has_buckets) {
            let bounds = self.bounds.iter().map(|bound| *bound * scale);
            let counts = row(from)[BUCKETS..]
                .iter()
                .zip(&row(to)[BUCKETS..])
                .map(|(from, to)| (to - from).max(0.0));
            merged.add_buckets(bounds.zip(counts), growth(from, COUNT));
        }
        true
    }
}

impl NextHistogram {
    /// Whether the buckets rise up to the count, as they are and in their growth, with as many series at each bound.
    fn is_consistent(&self) -> bool {
        let (mut growth, mut value) = (0.0, 0.0);
        let series = self.buckets.first().map_or(0, |(_, _, series)| *series);
        for (bucket_growth, bucket_value, bucket_series) in &self.buckets {
            if *bucket_growth < growth || *bucket_value < value || *bucket_series != series {
                return false;
            }
            (growth, value) = (*bucket_growth, *bucket_value);
        }
        let (count_growth, count_value) = if self.counts > 0 {
            (self.count, self.count_value)
        } else {
            (self.last_bucket, self.last_bucket_value)
        };
        let agrees = self.counts == 0
            || self.last_buckets == 0
            || (self.count_value - self.last_bucket_value).abs() < 0.5;
        growth <= count_growth && value <= count_value && agrees
    }
}
