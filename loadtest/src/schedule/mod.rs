//! Schedules: when each request is due, how long it is, for which model, and what its prompt shares with others.
//!
//! A [`Schedule`] is a value. It is made from a published trace or drawn from rates and distributions, is sorted by time, and
//! is the same bit for bit for the same seed, whatever the machine's thread count. It knows nothing about sockets or clocks:
//! [`crate::drive`] sends it, a simulation may replay it.
//!
//! Everything random has a stream of its own ([`seed::stream`]), so that changing how lengths are drawn never moves an arrival.

pub mod gaps;
pub mod lengths;
pub mod numeric;
pub mod prefix;
pub mod rate;
pub mod reshape;
pub mod seed;
pub mod span;
pub mod spec;
pub mod statistics;
pub mod synthetic;
pub mod trace;

#[cfg(test)]
mod tests;

use std::time::Duration;

/// A value in a flag, a scenario file or a trace that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {what}: {hint}")]
pub struct NotValid {
    /// What was expected, with its article: "a rate", "a duration".
    pub what: &'static str,
    /// What was given.
    pub text: String,
    /// What to write instead.
    pub hint: String,
}

impl NotValid {
    pub(crate) fn new(what: &'static str, text: &str, hint: impl Into<String>) -> Self {
        Self {
            what,
            text: text.to_owned(),
            hint: hint.into(),
        }
    }
}

/// A value in a scenario file: text, or a bare number where the text would be one.
#[derive(Debug, serde::Deserialize)]
#[serde(untagged)]
enum Written {
    Whole(u64),
    Number(f64),
    Text(String),
}

impl std::fmt::Display for Written {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Whole(number) => write!(formatter, "{number}"),
            Self::Number(number) => write!(formatter, "{number}"),
            Self::Text(text) => formatter.write_str(text),
        }
    }
}

/// One request of a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// When it is due, from the schedule's start.
    pub at: Duration,
    /// Index into [`Schedule::streams`].
    pub stream: u16,
    /// Who sends it: the process of a many-client stream, 0 where the source names none.
    pub client: u32,
    /// Prompt length in tokens, `1..`.
    pub input_tokens: u32,
    /// Tokens to generate, `1..`.
    pub output_tokens: u32,
    /// What its prompt shares with other prompts.
    pub prefix: Prefix,
}

/// The part of a prompt that other prompts of the same stream begin with too.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Prefix {
    /// Nothing is shared.
    #[default]
    None,
    /// The first `tokens` tokens are those of the group's text; a longer prefix of the same group contains the shorter one.
    Shared {
        /// The group.
        group: u64,
        /// How many leading tokens, at most the prompt's length.
        tokens: u32,
    },
    /// The prompt is a row of blocks of [`Prefix::BLOCK_TOKENS`] tokens; equal identifiers mean equal text (Mooncake).
    Blocks(Box<[u64]>),
}

impl Prefix {
    /// Tokens in one block of [`Prefix::Blocks`]; the Mooncake traces use 512.
    pub const BLOCK_TOKENS: u32 = 512;
}

/// Where requests of one stream go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamName {
    /// The model that requests name.
    pub model: String,
}

/// Requests in order of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    streams: Vec<StreamName>,
    requests: Vec<Planned>,
    duration: Duration,
}

impl Schedule {
    /// Merges streams by time; at one instant the earlier stream goes first, and inside a stream the given order is kept.
    ///
    /// `duration` is extended to the last request.
    #[must_use]
    pub fn merge(streams: Vec<(StreamName, Vec<Planned>)>, duration: Duration) -> Self {
        let mut names = Vec::with_capacity(streams.len());
        let mut requests =
            Vec::with_capacity(streams.iter().map(|(_, requests)| requests.len()).sum());
        for (index, (name, planned)) in streams.into_iter().enumerate() {
            let index = u16::try_from(index).unwrap_or(u16::MAX);
            names.push(name);
            requests.extend(planned.into_iter().map(|request| Planned {
                stream: index,
                ..request
            }));
        }
        requests.sort_by_key(|request| (request.at, request.stream));
        let last = requests.last().map_or(Duration::ZERO, |request| request.at);
        Self {
            streams: names,
            requests,
            duration: duration.max(last),
        }
    }

    /// Requests, sorted by [`Planned::at`].
    #[must_use]
    pub fn requests(&self) -> &[Planned] {
        &self.requests
    }

    /// The streams that [`Planned::stream`] points to.
    #[must_use]
    pub fn streams(&self) -> &[StreamName] {
        &self.streams
    }

    /// From the start to the end of the planned time; never shorter than the last request's instant.
    #[must_use]
    pub fn duration(&self) -> Duration {
        self.duration
    }

    /// A number that two schedules share only when they are equal (64-bit FNV-1a over every field).
    ///
    /// It is printed with results so that two runs can be seen to have offered the same requests.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let mut hash = seed::Fnv::new();
        for stream in &self.streams {
            hash.bytes(stream.model.as_bytes());
            hash.bytes(&[0]);
        }
        for Planned {
            at,
            stream,
            client,
            input_tokens,
            output_tokens,
            prefix,
        } in &self.requests
        {
            hash.bytes(&at.as_nanos().to_le_bytes());
            hash.bytes(&stream.to_le_bytes());
            hash.bytes(&client.to_le_bytes());
            hash.bytes(&input_tokens.to_le_bytes());
            hash.bytes(&output_tokens.to_le_bytes());
            match prefix {
                Prefix::None => hash.bytes(&[0]),
                Prefix::Shared { group, tokens } => {
                    hash.bytes(&[1]);
                    hash.bytes(&group.to_le_bytes());
                    hash.bytes(&tokens.to_le_bytes());
                }
                Prefix::Blocks(blocks) => {
                    hash.bytes(&[2]);
                    for block in blocks {
                        hash.bytes(&block.to_le_bytes());
                    }
                }
            }
        }
        hash.finish()
    }
}
