//! An exact set of metric names with something for each.

use crate::scan::hash;

/// Finds exact metric names fast; nothing is allocated to look one up.
///
/// Exact, never by prefix: `prompt_tokens_total`, `prompt_tokens_created` and `prompt_tokens_by_source_total` differ in
/// their tails.
#[derive(Debug, Clone)]
pub struct NameTable<K> {
    /// Open addressing, a power of two, at most half full. Indices into `entries`, from 1; 0 is free.
    slots: Vec<u32>,
    entries: Vec<(Box<[u8]>, K)>,
    /// A bit for each name, by its length and three of its bytes: turns most other names away before they are hashed.
    filter: [u64; 4],
}

/// The word and the bit of the filter that a name sets.
fn filter_bit(name: &[u8]) -> (usize, u64) {
    let byte = |at: usize| name.get(at).copied().unwrap_or(0) as usize;
    let length = name.len();
    let mixed = length.wrapping_mul(37)
        ^ byte(length / 2).wrapping_mul(11)
        ^ byte(length / 4 * 3).wrapping_mul(5)
        ^ byte(length.wrapping_sub(8));
    (mixed / 64 % 4, 1 << (mixed % 64))
}

impl<K> Default for NameTable<K> {
    fn default() -> Self {
        Self {
            slots: vec![0],
            entries: Vec::new(),
            filter: [0; 4],
        }
    }
}

impl<K> NameTable<K> {
    /// A table of these names. Of a name given twice the last key holds.
    pub fn new<N: AsRef<[u8]>>(names: impl IntoIterator<Item = (N, K)>) -> Self {
        let mut entries: Vec<(Box<[u8]>, K)> = Vec::new();
        let mut sorted: Vec<(Box<[u8]>, K)> = names
            .into_iter()
            .map(|(name, key)| (name.as_ref().into(), key))
            .collect();
        sorted.sort_by(|(one, _), (other, _)| one.cmp(other));
        for (name, key) in sorted {
            match entries.last_mut() {
                Some((last, last_key)) if *last == name => *last_key = key,
                _ => entries.push((name, key)),
            }
        }
        let size = (entries.len() * 2).next_power_of_two().max(1);
        let mut table = Self {
            slots: vec![0; size],
            entries,
            filter: [0; 4],
        };
        for index in 0..table.entries.len() {
            let name = &table.entries[index].0;
            let (word, bit) = filter_bit(name);
            table.filter[word] |= bit;
            let mut slot = table.first_slot(name);
            while table.slots[slot] != 0 {
                slot = (slot + 1) & (table.slots.len() - 1);
            }
            table.slots[slot] = u32::try_from(index + 1).unwrap_or(u32::MAX);
        }
        table
    }

    fn first_slot(&self, name: &[u8]) -> usize {
        let mask = self.slots.len() - 1;
        usize::try_from(hash(name) & mask as u64).unwrap_or(0)
    }

    /// What belongs to this name.
    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<&K> {
        let (word, bit) = filter_bit(name);
        if self.filter[word] & bit == 0 {
            return None;
        }
        let mut slot = self.first_slot(name);
        loop {
            let index = usize::try_from(self.slots[slot])
                .unwrap_or(0)
                .checked_sub(1)?;
            let (found, key) = &self.entries[index];
            if **found == *name {
                return Some(key);
            }
            slot = (slot + 1) & (self.slots.len() - 1);
        }
    }

    /// The names with their keys, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &K)> {
        self.entries.iter().map(|(name, key)| (&**name, key))
    }

    /// Number of names.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn an_empty_table_finds_nothing() {
        let table: NameTable<u8> = NameTable::default();
        assert_eq!(table.get(b""), None);
        assert_eq!(table.get(b"up"), None);
        assert_eq!(
            NameTable::<u8>::new(Vec::<(&str, u8)>::new()).get(b"up"),
            None
        );
        assert_eq!(NameTable::new([("", 1)]).get(b""), Some(&1));
    }

    proptest! {
        #[test]
        fn finds_what_a_map_finds(
            names in proptest::collection::vec("[a-c_:]{0,6}", 0..60),
            others in proptest::collection::vec("[a-d_:]{0,6}", 0..60),
        ) {
            let map: BTreeMap<_, _> = names.iter().cloned().zip(0..).collect();
            let table = NameTable::new(names.iter().zip(0..));
            prop_assert_eq!(table.len(), map.len());
            for name in names.iter().chain(&others) {
                prop_assert_eq!(table.get(name.as_bytes()), map.get(name), "{}", name);
            }
        }
    }
}
