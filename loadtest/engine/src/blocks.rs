//! KV blocks: how many are free, and how a batch of growing sequences uses them up.

use crate::BLOCK_TOKENS;

/// Blocks that hold this many tokens.
pub(crate) const fn blocks_of(tokens: u32) -> u64 {
    tokens.div_ceil(BLOCK_TOKENS) as u64
}

/// The KV cache.
#[derive(Debug, Clone)]
pub(crate) struct Pool {
    total: u64,
    free: u64,
}

impl Pool {
    pub(crate) fn new(capacity_tokens: u64) -> Self {
        let total = capacity_tokens / u64::from(BLOCK_TOKENS);
        Self { total, free: total }
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    pub(crate) fn used(&self) -> u64 {
        self.total - self.free
    }

    /// Takes blocks if there are enough.
    #[must_use]
    pub(crate) fn take(&mut self, blocks: u64) -> bool {
        if blocks > self.free {
            return false;
        }
        self.free -= blocks;
        true
    }

    pub(crate) fn give_back(&mut self, blocks: u64) {
        self.free += blocks;
        debug_assert!(
            self.free <= self.total,
            "more blocks came back than were taken"
        );
    }
}

/// How many sequences of a batch have each remainder of tokens in their last block, in their first step.
///
/// A sequence of c tokens needs a new block in step j when c + j − 1 is one more than a multiple of the block size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Growth {
    /// Index: tokens in the last block after the first step, less one.
    fill: [u32; BLOCK_TOKENS as usize],
}

impl Growth {
    /// Adds a sequence that holds `tokens` (1..) after its first step.
    pub(crate) fn add(&mut self, tokens: u32) {
        self.fill[((tokens - 1) % BLOCK_TOKENS) as usize] += 1;
    }

    /// Blocks the batch needs in step `step` (from 1) beyond those of the first step.
    pub(crate) fn blocks_by(&self, step: u64) -> u64 {
        let further = step.saturating_sub(1);
        let size = u64::from(BLOCK_TOKENS);
        (0..size)
            .zip(self.fill)
            .map(|(fill, sequences)| u64::from(sequences) * ((fill + further) / size))
            .sum()
    }

    /// The last step, from 1 to `limit`, for which `free` blocks last beyond those of the first.
    pub(crate) fn last_step_within(&self, free: u64, limit: u64) -> u64 {
        if self.blocks_by(limit) <= free {
            return limit;
        }
        let (mut fits, mut fails) = (1, limit);
        while fails - fits > 1 {
            let middle = fits + (fails - fits) / 2;
            if self.blocks_by(middle) <= free {
                fits = middle;
            } else {
                fails = middle;
            }
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn growth_counts_like_each_sequence_by_itself(
            tokens in prop::collection::vec(1..2000_u32, 0..40),
            step in 1..500_u64,
        ) {
            let mut growth = Growth::default();
            let mut expected = 0;
            for tokens in &tokens {
                growth.add(*tokens);
                let later = *tokens + u32::try_from(step - 1).unwrap();
                expected += blocks_of(later) - blocks_of(*tokens);
            }
            prop_assert_eq!(growth.blocks_by(step), expected);
        }

        #[test]
        fn the_last_step_that_fits_fits_and_the_next_does_not(
            tokens in prop::collection::vec(1..2000_u32, 1..40),
            free in 0..200_u64,
            limit in 1..5000_u64,
        ) {
            let mut growth = Growth::default();
            for tokens in &tokens {
                growth.add(*tokens);
            }
            let last = growth.last_step_within(free, limit);
            prop_assert!(growth.blocks_by(last) <= free);
            prop_assert!(last == limit || growth.blocks_by(last + 1) > free);
        }
    }

    #[test]
    fn blocks_are_taken_whole_or_not_at_all() {
        let mut pool = Pool::new(100);
        assert_eq!(pool.total(), 6);
        assert!(!pool.take(7));
        assert!(pool.take(6) && pool.free() == 0 && pool.used() == 6);
        pool.give_back(2);
        assert_eq!(pool.free(), 2);
    }
}
