//! Histograms of a window: merged over endpoints, read as quantiles.

/// What was observed within a window.
///
/// Made of bucket increases. Endpoints with different bounds are merged by their cumulative distributions, so that a
/// rollout which changes bounds does not spoil a quantile.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WindowHistogram {
    /// Finite upper bounds, rising, with the number of observations at or below each.
    buckets: Vec<(f64, f64)>,
    /// Observations whose buckets are known; at least the last cumulative count.
    bucketed: f64,
    /// All observations.
    count: f64,
    /// Sum of all observations.
    sum: f64,
}

impl WindowHistogram {
    /// A histogram from finite bounds with cumulative counts, the number of observations and their sum.
    ///
    /// `buckets` rise in both parts; empty ones mean that only count and sum are known.
    #[must_use]
    pub fn new(buckets: Vec<(f64, f64)>, count: f64, sum: f64) -> Self {
        let bucketed = if buckets.is_empty() { 0.0 } else { count };
        Self {
            buckets,
            bucketed,
            count,
            sum,
        }
    }

    /// Observations.
    #[must_use]
    pub const fn count(&self) -> f64 {
        self.count
    }

    /// Sum of the observations, in the signal's unit.
    #[must_use]
    pub const fn sum(&self) -> f64 {
        self.sum
    }

    /// Mean of the observations; `None` without any.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0.0).then(|| self.sum / self.count)
    }

    /// Finite upper bounds with the number of observations at or below each.
    #[must_use]
    pub fn buckets(&self) -> &[(f64, f64)] {
        &self.buckets
    }

    /// Adds another endpoint's observations.
    pub fn merge(&mut self, other: &Self) {
        self.add_count(other.count, other.sum);
        self.add_buckets(other.buckets.iter().copied(), other.bucketed);
    }

    /// Adds observations of which only number and sum are known.
    pub(crate) fn add_count(&mut self, count: f64, sum: f64) {
        self.count += count;
        self.sum += sum;
    }

    /// Adds the buckets of observations that were counted already: rising bounds with cumulative counts, and how many
    /// observations they hold.
    pub(crate) fn add_buckets(
        &mut self,
        buckets: impl Iterator<Item = (f64, f64)> + Clone,
        bucketed: f64,
    ) {
        let others = buckets.clone().map(|(bound, _)| bound);
        if self.bounds().eq(others.clone()) {
            for ((_, own), (_, other)) in self.buckets.iter_mut().zip(buckets) {
                *own += other;
            }
        } else if self.buckets.is_empty() {
            self.buckets.extend(buckets);
        } else {
            let mut bounds: Vec<f64> = self.bounds().chain(others).collect();
            bounds.sort_by(f64::total_cmp);
            bounds.dedup_by(|a, b| a.total_cmp(b).is_eq());
            let other = Self {
                buckets: buckets.collect(),
                ..Self::default()
            };
            self.buckets = bounds
                .into_iter()
                .map(|bound| (bound, self.at_or_below(bound) + other.at_or_below(bound)))
                .collect();
        }
        self.bucketed += bucketed;
    }

    fn bounds(&self) -> impl Iterator<Item = f64> {
        self.buckets.iter().map(|(bound, _)| *bound)
    }

    /// Observations at or below `value`, interpolated linearly inside the bucket that holds it.
    ///
    /// Above the last finite bound nothing is known: the count at that bound is given.
    #[must_use]
    pub fn at_or_below(&self, value: f64) -> f64 {
        let index = self.buckets.partition_point(|(bound, _)| *bound < value);
        let Some((upper, at_upper)) = self.buckets.get(index).copied() else {
            return self.buckets.last().map_or(0.0, |(_, count)| *count);
        };
        let (lower, at_lower) = match index.checked_sub(1) {
            Some(previous) => self.buckets[previous],
            None if upper > 0.0 => (0.0, 0.0),
            None => return if value < upper { 0.0 } else { at_upper },
        };
        if value <= lower {
            return if value < lower { 0.0 } else { at_lower };
        }
        at_lower + (at_upper - at_lower) * (value - lower) / (upper - lower)
    }

    /// Share of the observations at or below `value`, 0–1; `None` without any.
    ///
    /// An objective's attainment: `share_at_or_below(target)`.
    #[must_use]
    pub fn share_at_or_below(&self, value: f64) -> Option<f64> {
        (self.bucketed > 0.0).then(|| (self.at_or_below(value) / self.bucketed).clamp(0.0, 1.0))
    }

    /// The value below which the share `q` of the observations lies.
    ///
    /// Interpolates linearly inside the bucket, from 0 in the first one, as PromQL's `histogram_quantile` does; above the
    /// last finite bound the answer is that bound. `None` without observations or buckets, or for `q` outside 0–1.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<f64> {
        if !(0.0..=1.0).contains(&q) || self.bucketed <= 0.0 {
            return None;
        }
        let rank = q * self.bucketed;
        let (last_bound, _) = self.buckets.last()?;
        let index = self.buckets.partition_point(|(_, count)| *count < rank);
        let Some((upper, at_upper)) = self.buckets.get(index).copied() else {
            return Some(*last_bound);
        };
        let (lower, at_lower) = match index.checked_sub(1) {
            Some(previous) => self.buckets[previous],
            None if upper > 0.0 => (0.0, 0.0),
            None => return Some(upper),
        };
        let inside = at_upper - at_lower;
        if inside <= 0.0 {
            return Some(upper);
        }
        Some(lower + (upper - lower) * (rank - at_lower) / inside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(value: Option<f64>, expected: f64) -> bool {
        value.is_some_and(|value| (value - expected).abs() < 1e-9)
    }

    #[test]
    fn quantiles_interpolate_from_zero_and_stop_at_the_last_bound() {
        let histogram = WindowHistogram::new(vec![(1.0, 2.0), (2.0, 6.0), (4.0, 8.0)], 10.0, 21.0);
        assert!(near(histogram.quantile(0.1), 0.5));
        assert!(near(histogram.quantile(0.5), 1.75));
        assert!(near(histogram.quantile(0.8), 4.0));
        assert!(near(histogram.quantile(0.99), 4.0));
        assert!(near(histogram.mean(), 2.1));
        assert_eq!(histogram.quantile(1.5), None);
        assert_eq!(WindowHistogram::default().quantile(0.5), None);
        assert_eq!(
            WindowHistogram::new(Vec::new(), 5.0, 1.0).quantile(0.5),
            None
        );
    }

    #[test]
    fn a_first_bound_of_zero_is_answered_as_it_is() {
        let histogram = WindowHistogram::new(vec![(0.0, 5.0), (2.0, 6.0)], 6.0, 1.0);
        assert!(near(histogram.quantile(0.5), 0.0));
        assert!(near(histogram.share_at_or_below(0.0), 5.0 / 6.0));
    }

    #[test]
    fn merging_equal_bounds_adds_and_different_bounds_interpolate() {
        let one = WindowHistogram::new(vec![(1.0, 10.0), (2.0, 20.0)], 20.0, 20.0);
        let two = WindowHistogram::new(vec![(1.0, 4.0), (2.0, 6.0)], 8.0, 10.0);
        let mut same = one.clone();
        same.merge(&two);
        assert_eq!(same.buckets(), [(1.0, 14.0), (2.0, 26.0)]);
        assert!(near(Some(same.count()), 28.0));

        let finer = WindowHistogram::new(vec![(0.5, 5.0), (1.0, 10.0), (2.0, 20.0)], 20.0, 20.0);
        let mut merged = one.clone();
        merged.merge(&finer);
        assert_eq!(merged.buckets(), [(0.5, 10.0), (1.0, 20.0), (2.0, 40.0)]);
        for q in [0.1, 0.5, 0.9, 1.0] {
            assert!(near(merged.quantile(q), one.quantile(q).unwrap()), "{q}");
        }
    }

    #[test]
    fn attainment_is_the_share_below_the_target() {
        let histogram = WindowHistogram::new(vec![(1.0, 5.0), (2.0, 9.0)], 10.0, 12.0);
        assert!(near(histogram.share_at_or_below(1.0), 0.5));
        assert!(near(histogram.share_at_or_below(1.5), 0.7));
        assert!(near(histogram.share_at_or_below(100.0), 0.9));
    }

    use proptest::prelude::*;

    /// Rising bounds with any number of observations in each bucket, and some above the last.
    fn histogram() -> impl Strategy<Value = WindowHistogram> {
        let bounds = proptest::collection::btree_map(0_u32..1000, 0_u32..50, 1..12);
        (bounds, 0_u32..20).prop_map(|(buckets, above)| {
            let mut count = 0.0;
            let buckets: Vec<(f64, f64)> = buckets
                .into_iter()
                .map(|(bound, inside)| {
                    count += f64::from(inside);
                    (f64::from(bound) / 100.0, count)
                })
                .collect();
            let count = count + f64::from(above);
            WindowHistogram::new(buckets, count, count * 2.0)
        })
    }

    proptest! {
        #[test]
        fn quantiles_rise_and_stay_within_the_bounds(histogram in histogram(), mut shares in proptest::collection::vec(0.0..=1.0_f64, 2..6)) {
            shares.sort_by(f64::total_cmp);
            let quantiles: Vec<_> = shares.iter().filter_map(|share| histogram.quantile(*share)).collect();
            prop_assert!(quantiles.len() == shares.len() || histogram.count() <= 0.0);
            prop_assert!(quantiles.windows(2).all(|pair| pair[0] <= pair[1] + 1e-12), "{:?}", quantiles);
            let last = histogram.buckets().last().unwrap().0;
            prop_assert!(quantiles.iter().all(|value| (0.0..=last).contains(value)));
        }

        #[test]
        fn merging_keeps_counts_and_does_not_depend_on_the_order(one in histogram(), other in histogram()) {
            let (mut ab, mut ba) = (one.clone(), other.clone());
            ab.merge(&other);
            ba.merge(&one);
            prop_assert!(near(Some(ab.count()), one.count() + other.count()));
            prop_assert_eq!(ab.buckets().len(), ba.buckets().len());
            for ((bound, count), (same_bound, same_count)) in ab.buckets().iter().zip(ba.buckets()) {
                prop_assert!(near(Some(*bound), *same_bound) && (count - same_count).abs() < 1e-6);
                prop_assert!((count - one.at_or_below(*bound) - other.at_or_below(*bound)).abs() < 1e-6);
            }
        }

        #[test]
        fn attainment_and_quantile_are_inverse(histogram in histogram(), share in 0.01..=0.99_f64) {
            if let Some(value) = histogram.quantile(share) {
                let last = histogram.buckets().last().unwrap().0;
                if value < last {
                    prop_assert!(histogram.share_at_or_below(value).unwrap() >= share - 1e-9);
                }
            }
        }
    }
}
