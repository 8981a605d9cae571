//! Searching bytes a word at a time.

const ONES: u64 = u64::from_ne_bytes([1; 8]);
const HIGHS: u64 = ONES << 7;

/// A word whose lowest set bit lies in the first byte that equals the one spread over `needle`; zero if none does.
const fn hits(word: u64, needle: u64) -> u64 {
    let difference = word ^ needle;
    difference.wrapping_sub(ONES) & !difference & HIGHS
}

fn word(bytes: &[u8]) -> u64 {
    bytes
        .first_chunk()
        .map_or(0, |chunk| u64::from_le_bytes(*chunk))
}

/// Index of the first `needle` in `bytes`.
pub(crate) fn find(bytes: &[u8], needle: u8) -> Option<usize> {
    let spread = ONES * u64::from(needle);
    let mut start = 0;
    let mut blocks = bytes.chunks_exact(32);
    for block in &mut blocks {
        let found = [0, 8, 16, 24].map(|at| hits(word(&block[at..]), spread));
        if found[0] | found[1] | found[2] | found[3] != 0 {
            for (index, hit) in found.into_iter().enumerate() {
                if hit != 0 {
                    return Some(start + index * 8 + hit.trailing_zeros() as usize / 8);
                }
            }
        }
        start += 32;
    }
    let rest = blocks.remainder();
    rest.iter()
        .position(|byte| *byte == needle)
        .map(|index| start + index)
}

/// Index of the first `one` or `other` in `bytes`.
pub(crate) fn find_either(bytes: &[u8], one: u8, other: u8) -> Option<usize> {
    let (spread_one, spread_other) = (ONES * u64::from(one), ONES * u64::from(other));
    let mut start = 0;
    let mut blocks = bytes.chunks_exact(8);
    for block in &mut blocks {
        let word = word(block);
        // The lowest hit of each is exact; a spurious higher one cannot precede it.
        let (one, other) = (hits(word, spread_one), hits(word, spread_other));
        if one | other != 0 {
            return Some(start + one.trailing_zeros().min(other.trailing_zeros()) as usize / 8);
        }
        start += 8;
    }
    let rest = blocks.remainder();
    rest.iter()
        .position(|byte| *byte == one || *byte == other)
        .map(|index| start + index)
}

/// Length of the metric name that `bytes` start with: it ends before a brace, a blank or any control character.
pub(crate) fn name_length(bytes: &[u8]) -> usize {
    const BRACE: u64 = ONES * b'{' as u64;
    const FIRST_IN_NAMES: u64 = ONES * (b' ' + 1) as u64;
    let mut start = 0;
    let mut blocks = bytes.chunks_exact(8);
    for block in &mut blocks {
        let word = word(block);
        let below = word.wrapping_sub(FIRST_IN_NAMES) & !word & HIGHS;
        let found = below | hits(word, BRACE);
        if found != 0 {
            return start + found.trailing_zeros() as usize / 8;
        }
        start += 8;
    }
    let rest = blocks.remainder();
    start
        + rest
            .iter()
            .position(|byte| *byte <= b' ' || *byte == b'{')
            .unwrap_or(rest.len())
}

/// A fast hash of `bytes`; not for keys that an adversary of the reader's owner may choose.
///
/// The last word overlaps the one before it rather than being copied together.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let step = |state: u64, word: u64| (state ^ word).wrapping_mul(FACTOR).rotate_left(29);
    let mut state = FACTOR ^ (bytes.len() as u64).wrapping_mul(FACTOR);
    match bytes.last_chunk::<8>() {
        Some(last) => {
            for chunk in bytes[..bytes.len() - 1].chunks_exact(8) {
                state = step(state, word(chunk));
            }
            state = step(state, u64::from_le_bytes(*last));
        }
        None => state = step(state, short(bytes)),
    }
    state ^= state >> 32;
    state.wrapping_mul(FACTOR) ^ (state >> 29)
}

/// Fewer than eight bytes as one number; two of the same length differ.
fn short(bytes: &[u8]) -> u64 {
    if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        return u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << 32;
    }
    bytes
        .iter()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn finds_what_a_plain_loop_finds(bytes in proptest::collection::vec(prop_oneof![Just(0u8), Just(1), Just(b'\n'), Just(0x80), Just(0xff), any::<u8>()], 0..200), needle: u8, other: u8) {
            for needle in [needle, b'\n', 0, 1, 0x80] {
                prop_assert_eq!(find(&bytes, needle), bytes.iter().position(|byte| *byte == needle));
                prop_assert_eq!(
                    find_either(&bytes, needle, other),
                    bytes.iter().position(|byte| *byte == needle || *byte == other)
                );
            }
        }

        #[test]
        fn names_end_where_a_plain_loop_says(bytes in proptest::collection::vec(prop_oneof![4 => Just(b'a'), 1 => any::<u8>()], 0..60)) {
            let plain = bytes.iter().position(|byte| *byte <= b' ' || *byte == b'{').unwrap_or(bytes.len());
            prop_assert_eq!(name_length(&bytes), plain);
        }

        #[test]
        fn hashes_tell_prefixes_and_paddings_apart(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let mut longer = bytes.clone();
            longer.push(0);
            prop_assert_ne!(hash(&bytes), hash(&longer));
        }
    }
}
