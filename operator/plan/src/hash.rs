//! Hashes of what pods are made from.
//!
//! The caller renders a clique's labels, annotations and pod spec as canonical JSON (only the fields that are set, map
//! keys sorted); the digest depends on that text alone. A newer Kubernetes library that knows more fields renders the
//! same text, so an operator upgrade rolls nothing.

use std::fmt;
use std::sync::Arc;

use crate::ids::CliqueName;

/// Digest of one clique's pod template, or of a whole set's templates; safe as a label value.
///
/// Opaque: 14 characters of an alphabet without vowels. Hashes written by other implementations are accepted as they
/// are and simply differ.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TemplateHash(Arc<str>);

impl TemplateHash {
    /// Digest of a clique template rendered as canonical JSON.
    #[must_use]
    pub fn of(canonical: &str) -> Self {
        Self(Arc::from(encode(fnv1a(canonical.as_bytes(), OFFSET))))
    }

    /// Digest of all templates of a set. The order of `cliques` does not matter.
    pub fn of_set<'a>(cliques: impl IntoIterator<Item = (&'a CliqueName, &'a Self)>) -> Self {
        let mut pairs: Vec<_> = cliques.into_iter().collect();
        pairs.sort();
        let mut state = OFFSET;
        for (name, hash) in pairs {
            state = fnv1a(name.as_str().as_bytes(), state);
            state = fnv1a(b"=", state);
            state = fnv1a(hash.as_str().as_bytes(), state);
            state = fnv1a(b";", state);
        }
        Self(Arc::from(encode(state)))
    }

    /// A hash read back from a label or a status field.
    #[must_use]
    pub fn recorded(text: &str) -> Self {
        Self(Arc::from(text))
    }

    /// The label value.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for TemplateHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Five characters for a pod's name suffix, a function of its arguments: a create that is tried again asks for the same
/// name, so it cannot make a second pod.
///
/// `owner` is the uid of the owning clique, `attempt` counts the pods this index has had.
#[must_use]
pub fn pod_suffix(owner: &str, index: u32, attempt: u32) -> String {
    let mut state = fnv1a(owner.as_bytes(), OFFSET);
    state = fnv1a(&index.to_le_bytes(), state);
    state = fnv1a(&attempt.to_le_bytes(), state);
    // FNV's low bits carry little of the last bytes; a final mix spreads them.
    state ^= state >> 33;
    state = state.wrapping_mul(0xff51_afd7_ed55_8ccd);
    state ^= state >> 33;
    let mut text = encode(state);
    text.truncate(5);
    text
}

/// FNV-1a, 64 bit.
const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

fn fnv1a(bytes: &[u8], mut state: u64) -> u64 {
    for &byte in bytes {
        state ^= u64::from(byte);
        state = state.wrapping_mul(PRIME);
    }
    state
}

/// Kubernetes' alphabet for generated names: no vowels, nothing that looks like another character.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

fn encode(mut value: u64) -> String {
    let mut text = String::with_capacity(14);
    for _ in 0..14 {
        let digit = usize::try_from(value % 27).expect("a remainder below 27 fits");
        text.push(char::from(ALPHABET[digit]));
        value /= 27;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values_never_change() {
        // A change here would roll every workload in every cluster.
        assert_eq!(
            TemplateHash::of(r#"{"containers":[{"image":"x"}]}"#).as_str(),
            "sfv5jzhmz9rsqg"
        );
        assert_eq!(pod_suffix("5f0e", 3, 0), "ffrpx");
    }

    #[test]
    fn the_order_of_cliques_does_not_matter() {
        let (a, b) = (CliqueName::new("a").unwrap(), CliqueName::new("b").unwrap());
        let (x, y) = (TemplateHash::of("x"), TemplateHash::of("y"));
        assert_eq!(
            TemplateHash::of_set([(&a, &x), (&b, &y)]),
            TemplateHash::of_set([(&b, &y), (&a, &x)]),
        );
        assert_ne!(
            TemplateHash::of_set([(&a, &x), (&b, &y)]),
            TemplateHash::of_set([(&a, &y), (&b, &x)]),
        );
    }

    #[test]
    fn suffixes_differ_by_index_and_attempt() {
        let mut seen = std::collections::BTreeSet::new();
        for index in 0..200 {
            for attempt in 0..5 {
                assert!(
                    seen.insert(pod_suffix("uid", index, attempt)),
                    "{index}/{attempt}"
                );
            }
        }
    }
}
