//! Histograms with fixed bounds, as Prometheus counts them.

/// Observations counted by upper bound.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    bounds: Box<[f64]>,
    counts: Box<[u64]>,
    sum: f64,
}

impl Histogram {
    /// An empty histogram; `bounds` are the finite upper bounds (inclusive), ascending.
    #[must_use]
    pub fn new(bounds: &[f64]) -> Self {
        debug_assert!(bounds.is_sorted(), "bounds ascend");
        Self {
            bounds: bounds.into(),
            counts: vec![0; bounds.len() + 1].into(),
            sum: 0.0,
        }
    }

    /// Adds one observation.
    pub fn observe(&mut self, value: f64) {
        self.observe_times(value, 1);
    }

    /// Adds the same observation `times` times.
    pub fn observe_times(&mut self, value: f64, times: u64) {
        if times == 0 {
            return;
        }
        let slot = self.bounds.partition_point(|bound| *bound < value);
        self.counts[slot] += times;
        self.sum += value * times as f64;
    }

    /// Adds `first + increment·i` for i in `0..terms`, each `times` times; `increment` is not negative.
    pub fn observe_progression(&mut self, first: f64, increment: f64, terms: u64, times: u64) {
        if terms == 0 || times == 0 {
            return;
        }
        let term = |index: u64| first + increment * index as f64;
        let mut slot = self.bounds.partition_point(|bound| *bound < first);
        let mut counted = 0;
        while counted < terms {
            let upto = match self.bounds.get(slot) {
                Some(bound) => terms_within(term, increment, first, *bound, terms),
                None => terms,
            };
            self.counts[slot] += (upto - counted) * times;
            counted = upto;
            slot += 1;
        }
        let count = terms as f64;
        self.sum += (first * count + increment * (count * (count - 1.0) / 2.0)) * times as f64;
    }

    /// Finite upper bounds, ascending.
    #[must_use]
    pub fn bounds(&self) -> &[f64] {
        &self.bounds
    }

    /// Observations at or below each finite bound and, last, all of them: what `_bucket` lines say.
    pub fn cumulative(&self) -> impl Iterator<Item = u64> + '_ {
        self.counts.iter().scan(0, |total, count| {
            *total += count;
            Some(*total)
        })
    }

    /// Number of observations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Sum of the observations.
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.sum
    }
}

/// How many of the first `terms` terms are at most `bound`, by the same comparison a single observation would get.
fn terms_within(
    term: impl Fn(u64) -> f64,
    increment: f64,
    first: f64,
    bound: f64,
    terms: u64,
) -> u64 {
    if increment <= 0.0 {
        return if first <= bound { terms } else { 0 };
    }
    let mut within = floor_to_u64((bound - first) / increment)
        .saturating_add(1)
        .min(terms);
    while within < terms && term(within) <= bound {
        within += 1;
    }
    while within > 0 && term(within - 1) > bound {
        within -= 1;
    }
    within
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and negative values are taken out before"
)]
pub(crate) fn floor_to_u64(value: f64) -> u64 {
    value.max(0.0).floor() as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        let mut histogram = Histogram::new(&[1.0, 2.0]);
        for value in [0.5, 1.0, 1.5, 2.0, 2.5] {
            histogram.observe(value);
        }
        assert_eq!(histogram.cumulative().collect::<Vec<_>>(), [2, 4, 5]);
        assert_eq!(histogram.count(), 5);
    }

    proptest! {
        #[test]
        fn a_progression_counts_like_its_terms(
            first in 0.0..0.2_f64,
            increment in prop_oneof![Just(0.0), 1e-7..1e-2_f64],
            terms in 0..2000_u64,
            times in 0..5_u64,
        ) {
            let bounds = [0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.5, 1.0];
            let mut at_once = Histogram::new(&bounds);
            at_once.observe_progression(first, increment, terms, times);
            let mut one_by_one = Histogram::new(&bounds);
            for index in 0..terms {
                one_by_one.observe_times(first + increment * index as f64, times);
            }
            prop_assert_eq!(&at_once.counts, &one_by_one.counts);
            prop_assert!((at_once.sum() - one_by_one.sum()).abs() <= 1e-9 * one_by_one.sum().max(1.0));
        }
    }
}
