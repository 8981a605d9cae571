//! Amounts of resources.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Amounts by resource name, in thousandths of the resource's unit (a GPU is 1000, a byte is 1000).
///
/// Absent means none. Sums saturate: 9.2 PB of memory is the most that can be told apart.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Resources {
    milli: BTreeMap<Arc<str>, i64>,
}

impl Resources {
    /// The amount of a resource in thousandths; 0 when it is absent.
    #[must_use]
    pub fn milli(&self, name: &str) -> i64 {
        self.milli.get(name).copied().unwrap_or(0)
    }

    /// Sets the amount of a resource in thousandths.
    pub fn set(&mut self, name: impl Into<Arc<str>>, milli: i64) {
        self.milli.insert(name.into(), milli);
    }

    /// Names and amounts in thousandths, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, i64)> {
        self.milli.iter().map(|(name, milli)| (name, *milli))
    }

    /// Adds each amount of `other`.
    pub fn add(&mut self, other: &Self) {
        for (name, milli) in &other.milli {
            let entry = self.milli.entry(Arc::clone(name)).or_insert(0);
            *entry = entry.saturating_add(*milli);
        }
    }

    /// Takes each amount of `other` away. What was not there becomes negative: the node is overfull.
    pub fn subtract(&mut self, other: &Self) {
        for (name, milli) in &other.milli {
            let entry = self.milli.entry(Arc::clone(name)).or_insert(0);
            *entry = entry.saturating_sub(*milli);
        }
    }

    /// The larger amount of each resource: what init containers need if they come one after the other.
    pub fn raise_to(&mut self, other: &Self) {
        for (name, milli) in &other.milli {
            let entry = self.milli.entry(Arc::clone(name)).or_insert(0);
            *entry = (*entry).max(*milli);
        }
    }
}

impl<N: Into<Arc<str>>> FromIterator<(N, i64)> for Resources {
    fn from_iter<I: IntoIterator<Item = (N, i64)>>(amounts: I) -> Self {
        Self {
            milli: amounts
                .into_iter()
                .map(|(name, milli)| (name.into(), milli))
                .collect(),
        }
    }
}

/// Whether a resource is one that only some nodes have, such as a GPU: its name carries a domain.
#[must_use]
pub(super) fn is_extended(name: &str) -> bool {
    name.contains('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_add_up_and_saturate() {
        let mut sum = Resources::from_iter([("cpu", 500)]);
        sum.add(&Resources::from_iter([("cpu", 250), ("memory", i64::MAX)]));
        sum.add(&Resources::from_iter([("memory", 1)]));
        assert_eq!(
            (sum.milli("cpu"), sum.milli("memory"), sum.milli("gpu")),
            (750, i64::MAX, 0)
        );
        sum.subtract(&Resources::from_iter([("cpu", 1000), ("gpu", 1)]));
        assert_eq!((sum.milli("cpu"), sum.milli("gpu")), (-250, -1));
        sum.raise_to(&Resources::from_iter([("cpu", 100), ("memory", 5)]));
        assert_eq!((sum.milli("cpu"), sum.milli("memory")), (100, i64::MAX));
    }
}
