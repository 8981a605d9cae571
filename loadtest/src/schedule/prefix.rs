//! Prompts that share their beginnings.

use std::fmt;
use std::str::FromStr;

use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Zipf};
use serde::{Deserialize, Serialize};

use super::{NotValid, Prefix};

/// Which prompts share a beginning. Written `none` or `groups:COUNT,TOKENS` or `groups:COUNT,TOKENS,ZIPF`.
///
/// With groups, each prompt begins with its group's `TOKENS` tokens (a system prompt, a few-shot preamble); group k of
/// `COUNT` is chosen with probability proportional to k^−ZIPF (default 1).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum PrefixSpec {
    /// Nothing is shared.
    None,
    /// Groups of prompts.
    Groups {
        /// How many.
        count: u32,
        /// Length of the shared beginning.
        tokens: u32,
        /// Exponent of the popularity.
        zipf: f64,
    },
}

impl PrefixSpec {
    /// Draws one prompt's prefix. The prompt keeps at least one token of its own.
    pub fn draw(self, input_tokens: u32, rng: &mut ChaCha8Rng) -> Prefix {
        let Self::Groups {
            count,
            tokens,
            zipf,
        } = self
        else {
            return Prefix::None;
        };
        // The parameters were checked when the text was read.
        let group = Zipf::new(f64::from(count), zipf).map_or(1.0, |zipf| zipf.sample(rng));
        Prefix::Shared {
            group: u64::from(super::numeric::tokens(group)),
            tokens: tokens.min(input_tokens.saturating_sub(1)),
        }
    }
}

impl FromStr for PrefixSpec {
    type Err = NotValid;

    fn from_str(text: &str) -> Result<Self, NotValid> {
        let refuse = || {
            NotValid::new(
                "a prefix",
                text,
                "write none, groups:COUNT,TOKENS or groups:COUNT,TOKENS,ZIPF, such as groups:50,800,1.1",
            )
        };
        if text == "none" {
            return Ok(Self::None);
        }
        let numbers: Vec<&str> = text
            .strip_prefix("groups:")
            .ok_or_else(refuse)?
            .split(',')
            .map(str::trim)
            .collect();
        let (count, tokens, zipf) = match numbers.as_slice() {
            [count, tokens] => (*count, *tokens, "1"),
            [count, tokens, zipf] => (*count, *tokens, *zipf),
            _ => return Err(refuse()),
        };
        match (count.parse(), tokens.parse(), zipf.parse::<f64>()) {
            (Ok(count), Ok(tokens), Ok(zipf))
                if count > 0 && tokens > 0 && (0.0..=10.0).contains(&zipf) =>
            {
                Ok(Self::Groups {
                    count,
                    tokens,
                    zipf,
                })
            }
            _ => Err(refuse()),
        }
    }
}

impl fmt::Display for PrefixSpec {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => write!(formatter, "none"),
            Self::Groups {
                count,
                tokens,
                zipf,
            } => write!(formatter, "groups:{count},{tokens},{zipf}"),
        }
    }
}

impl TryFrom<String> for PrefixSpec {
    type Error = NotValid;

    fn try_from(text: String) -> Result<Self, NotValid> {
        text.parse()
    }
}

impl From<PrefixSpec> for String {
    fn from(spec: PrefixSpec) -> Self {
        spec.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::seed::stream;

    #[test]
    fn popular_groups_come_first_and_a_prompt_keeps_a_token_of_its_own() {
        let spec: PrefixSpec = "groups:10,100,1".parse().unwrap();
        let mut rng = stream(1, "prefixes", 0);
        let mut counts = [0_u32; 11];
        for _ in 0..10_000 {
            match spec.draw(50, &mut rng) {
                Prefix::Shared { group, tokens } => {
                    assert_eq!(tokens, 49);
                    counts[usize::try_from(group).unwrap()] += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        // Harmonic number H(10) = 2.929: the first group takes 34.1 %, the second half of that.
        assert!(
            (f64::from(counts[1]) / 10_000.0 - 0.341).abs() < 0.02,
            "{counts:?}"
        );
        assert!(
            (f64::from(counts[2]) / 10_000.0 - 0.171).abs() < 0.02,
            "{counts:?}"
        );
    }

    #[test]
    fn texts_are_read_and_nonsense_is_refused() {
        assert_eq!(
            "groups:50,800".parse::<PrefixSpec>().unwrap().to_string(),
            "groups:50,800,1"
        );
        for text in [
            "groups",
            "groups:5",
            "groups:0,10",
            "groups:5,10,99",
            "turns:3",
        ] {
            assert!(text.parse::<PrefixSpec>().is_err(), "{text} was accepted");
        }
    }
}
