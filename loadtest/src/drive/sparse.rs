//! A small histogram for one second of one stream.

use std::collections::BTreeMap;

/// Counts of values rounded to three significant digits; costs memory only for what was seen.
#[derive(Debug, Clone, Default)]
pub(super) struct Sparse {
    counts: BTreeMap<u64, u64>,
    total: u64,
}

impl Sparse {
    pub(super) fn add(&mut self, value: u64, count: u64) {
        if count > 0 {
            *self.counts.entry(rounded(value)).or_default() += count;
            self.total += count;
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        for (value, count) in &other.counts {
            *self.counts.entry(*value).or_default() += count;
        }
        self.total += other.total;
    }

    /// The smallest value that a share of all reaches; none when empty.
    pub(super) fn quantile(&self, share: f64) -> Option<u64> {
        let rank = share * self.total as f64;
        let mut seen = 0;
        for (value, count) in &self.counts {
            seen += count;
            if seen as f64 >= rank {
                return Some(*value);
            }
        }
        None
    }
}

fn rounded(value: u64) -> u64 {
    let mut step = 1;
    while value / step >= 1000 {
        step *= 10;
    }
    (value + step / 2) / step * step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_to_three_digits() {
        let mut sparse = Sparse::default();
        for value in 1..=100_000_u64 {
            sparse.add(value, 1);
        }
        for (share, expected) in [(0.5, 50_000.0), (0.99, 99_000.0), (0.001, 100.0)] {
            let seen = sparse.quantile(share).unwrap() as f64;
            assert!((seen / expected - 1.0).abs() < 0.006, "{share}: {seen}");
        }
        assert_eq!(Sparse::default().quantile(0.5), None);
    }
}
