//! Random streams that do not disturb each other.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

/// The random stream of one thing in one run.
///
/// `name` says what is drawn ("arrivals", "lengths"), `entity` for whom. Two streams with any difference in
/// (seed, name, entity) are independent, so that drawing more of one never shifts another.
#[must_use]
pub fn stream(seed: u64, name: &str, entity: u64) -> ChaCha8Rng {
    let mut key = [0_u8; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    let mut hash = Fnv::new();
    hash.bytes(name.as_bytes());
    key[8..16].copy_from_slice(&hash.finish().to_le_bytes());
    key[16..24].copy_from_slice(&entity.to_le_bytes());
    key[24..].copy_from_slice(b"coppice\0");
    ChaCha8Rng::from_seed(key)
}

/// 64-bit FNV-1a.
#[derive(Debug, Clone, Copy)]
pub struct Fnv(u64);

impl Fnv {
    /// The empty hash.
    #[must_use]
    pub fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    /// Adds bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// The hash of everything added.
    #[must_use]
    pub fn finish(self) -> u64 {
        self.0
    }
}

impl Default for Fnv {
    fn default() -> Self {
        Self::new()
    }
}

/// Scrambles a number so that neighbours end up far apart (the finaliser of SplitMix64).
#[must_use]
pub fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
