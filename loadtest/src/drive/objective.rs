//! What a good request keeps: limits on the time to its first token and between its tokens.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::schedule::NotValid;
use crate::schedule::span::Span;

/// A limit on the time to first token: `1s`, or `1s+0.5ms/token` with a part that grows with the prompt.
///
/// A flat limit blames the server for physics: prompts of 100,000 tokens take seconds on any hardware.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TtftLimit {
    /// The part that every request gets.
    pub base: Duration,
    /// What each prompt token adds.
    pub per_input_token: Duration,
}

impl TtftLimit {
    /// The limit for a prompt.
    #[must_use]
    pub fn of(&self, input_tokens: u32) -> Duration {
        self.base
            .saturating_add(self.per_input_token.saturating_mul(input_tokens))
    }
}

impl FromStr for TtftLimit {
    type Err = NotValid;

    fn from_str(text: &str) -> Result<Self, NotValid> {
        let refuse = |hint: &str| NotValid::new("a limit on the time to first token", text, hint);
        let (base, per_token) = match text.split_once('+') {
            None => (text, None),
            Some((base, rest)) => {
                let per_token = rest
                    .trim()
                    .strip_suffix("/token")
                    .ok_or_else(|| refuse("write it as 1s+0.5ms/token"))?;
                (base, Some(per_token))
            }
        };
        let read = |text: &str| {
            text.trim()
                .parse::<Span>()
                .map(|span| span.0)
                .map_err(|error| refuse(&error.hint))
        };
        let limit = Self {
            base: read(base)?,
            per_input_token: per_token.map_or(Ok(Duration::ZERO), read)?,
        };
        if limit.base.is_zero() {
            return Err(refuse("no request meets a limit of zero"));
        }
        Ok(limit)
    }
}

impl fmt::Display for TtftLimit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", Span(self.base))?;
        if self.per_input_token.is_zero() {
            return Ok(());
        }
        write!(formatter, "+{}/token", Span(self.per_input_token))
    }
}

impl TryFrom<String> for TtftLimit {
    type Error = NotValid;

    fn try_from(text: String) -> Result<Self, NotValid> {
        text.parse()
    }
}

impl From<TtftLimit> for String {
    fn from(limit: TtftLimit) -> Self {
        limit.to_string()
    }
}

/// The objectives of one stream's requests. Without any, every complete request is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Objectives {
    /// On the time to first token, counted from the planned instant.
    pub ttft: Option<TtftLimit>,
    /// On the request's mean gap between tokens.
    pub itl: Option<Span>,
}

/// Which objectives a complete request met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Met {
    /// The time to first token was within its limit, or there is none.
    pub ttft: bool,
    /// The mean gap was within its limit, or there is none, or there was one token only.
    pub itl: bool,
}

impl Objectives {
    /// Judges a complete request. `mean_gap` is none for one token.
    #[must_use]
    pub fn judge(&self, input_tokens: u32, ttft: Duration, mean_gap: Option<Duration>) -> Met {
        Met {
            ttft: self.ttft.is_none_or(|limit| ttft <= limit.of(input_tokens)),
            itl: match (self.itl, mean_gap) {
                (Some(limit), Some(gap)) => gap <= limit.0,
                (None, _) | (_, None) => true,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_grows_with_the_prompt() {
        let limit: TtftLimit = "1s+0.5ms/token".parse().unwrap();
        assert_eq!(limit.of(1000), Duration::from_millis(1500));
        assert_eq!(limit.to_string(), "1s+500us/token");
        assert_eq!(
            "200ms".parse::<TtftLimit>().unwrap().of(100_000),
            Duration::from_millis(200)
        );
    }

    #[test]
    fn limits_are_met_up_to_and_with_their_value() {
        let objectives = Objectives {
            ttft: Some("100ms+1ms/token".parse().unwrap()),
            itl: Some("50ms".parse().unwrap()),
        };
        let judge = |ttft, gap: Option<u64>| {
            objectives.judge(
                10,
                Duration::from_millis(ttft),
                gap.map(Duration::from_millis),
            )
        };
        assert_eq!(
            judge(110, Some(50)),
            Met {
                ttft: true,
                itl: true
            }
        );
        assert_eq!(
            judge(111, Some(51)),
            Met {
                ttft: false,
                itl: false
            }
        );
        assert_eq!(
            judge(1, None),
            Met {
                ttft: true,
                itl: true
            }
        );
        assert_eq!(
            Objectives::default().judge(1, Duration::from_secs(99), None),
            Met {
                ttft: true,
                itl: true
            }
        );
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["1", "1s+5ms", "0s", "1s+x/token", ""] {
            assert!(text.parse::<TtftLimit>().is_err(), "{text} was accepted");
        }
    }
}
