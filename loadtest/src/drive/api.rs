//! The two streaming endpoints of the OpenAI API: what to send, and what each event of the answer says.

use serde::de::{self, Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Which endpoint requests go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Api {
    /// `POST /v1/chat/completions`.
    #[default]
    Chat,
    /// `POST /v1/completions`.
    Completions,
}

impl Api {
    /// The path under a server's base path, which may already end in `/v1`.
    #[must_use]
    pub fn path(self, base: &str) -> String {
        let base = base.trim_end_matches('/');
        let version = if base.ends_with("/v1") { "" } else { "/v1" };
        let endpoint = match self {
            Self::Chat => "chat/completions",
            Self::Completions => "completions",
        };
        format!("{base}{version}/{endpoint}")
    }
}

/// Tokens as the server counted them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub struct Usage {
    /// Prompt.
    #[serde(default)]
    pub prompt_tokens: u32,
    /// Generated.
    #[serde(default)]
    pub completion_tokens: u32,
    /// Details of the prompt.
    #[serde(default, deserialize_with = "null_is_default")]
    pub prompt_tokens_details: PromptDetails,
}

/// The part of the prompt that the server did not have to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub struct PromptDetails {
    /// Prompt tokens found in the prefix cache.
    #[serde(default, deserialize_with = "null_is_default")]
    pub cached_tokens: u32,
}

fn null_is_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// What one event of a stream says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// `[DONE]`.
    Done,
    /// The server reports an error inside the stream.
    Error(String),
    /// A chunk.
    Chunk {
        /// It carries generated text. Chunks with only a role, or with empty text, carry none and are not tokens.
        content: bool,
        /// It says why generation ended.
        finished: bool,
        /// Tokens so far, where the server says so.
        usage: Option<Usage>,
    },
}

impl Event {
    /// Reads the data of an event.
    ///
    /// # Errors
    /// It is neither JSON of the expected shape nor `[DONE]`.
    pub fn parse(data: &[u8]) -> Result<Self, serde_json::Error> {
        if data == b"[DONE]" {
            return Ok(Self::Done);
        }
        let chunk: Chunk = serde_json::from_slice(data)?;
        if let Some(error) = chunk.error {
            return Ok(Self::Error(error.message()));
        }
        let Choices { content, finished } = chunk.choices;
        Ok(Self::Chunk {
            content,
            finished,
            usage: chunk.usage,
        })
    }
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Choices,
    #[serde(default)]
    usage: Option<Usage>,
    #[serde(default)]
    error: Option<ErrorBody>,
}

/// What a chunk's choices say together; they are read without being kept.
#[derive(Default, Clone, Copy)]
struct Choices {
    content: bool,
    finished: bool,
}

impl<'de> Deserialize<'de> for Choices {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Choices;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a list of choices or null")
            }

            fn visit_unit<E: de::Error>(self) -> Result<Choices, E> {
                Ok(Choices::default())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Choices, A::Error> {
                let mut choices = Choices::default();
                while let Some(choice) = list.next_element::<Choice>()? {
                    choices.content |= choice.has_content();
                    choices.finished |= choice.finish_reason.is_some();
                }
                Ok(choices)
            }
        }
        deserializer.deserialize_any(List)
    }
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default, deserialize_with = "null_is_default")]
    delta: Delta,
    #[serde(default)]
    text: HasText,
    #[serde(default)]
    finish_reason: Option<IgnoredAny>,
}

#[derive(Deserialize, Default)]
struct Delta {
    #[serde(default)]
    content: HasText,
    #[serde(default, alias = "reasoning")]
    reasoning_content: HasText,
    #[serde(default)]
    tool_calls: Option<IgnoredAny>,
}

impl Choice {
    fn has_content(&self) -> bool {
        let Delta {
            content,
            reasoning_content,
            tool_calls,
        } = &self.delta;
        content.0 || reasoning_content.0 || tool_calls.is_some() || self.text.0
    }
}

/// Whether a string is there and not empty; the text itself is not kept.
#[derive(Default, Clone, Copy)]
struct HasText(bool);

impl<'de> Deserialize<'de> for HasText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = HasText;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("text or null")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<HasText, E> {
                Ok(HasText(!text.is_empty()))
            }

            fn visit_unit<E: de::Error>(self) -> Result<HasText, E> {
                Ok(HasText(false))
            }
        }
        deserializer.deserialize_any(Text)
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ErrorBody {
    Message { message: String },
    Text(String),
    Other(serde_json::Value),
}

impl ErrorBody {
    fn message(self) -> String {
        match self {
            Self::Message { message } | Self::Text(message) => message,
            Self::Other(value) => value.to_string(),
        }
    }
}

/// The message of an error response's body: OpenAI's form, else its beginning.
#[must_use]
pub fn error_message(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Body {
        error: ErrorBody,
    }
    match serde_json::from_slice::<Body>(body) {
        Ok(body) => body.error.message(),
        Err(_) => String::from_utf8_lossy(body)
            .trim()
            .chars()
            .take(200)
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(text: &str) -> (bool, bool, Option<Usage>) {
        match Event::parse(text.as_bytes()).unwrap() {
            Event::Chunk {
                content,
                finished,
                usage,
            } => (content, finished, usage),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_text_is_content() {
        assert!(!chunk(r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#).0);
        assert!(!chunk(r#"{"choices":[{"index":0,"delta":{"role":"assistant"}}]}"#).0);
        assert!(!chunk(r#"{"choices":[{"delta":{"content":null}}]}"#).0);
        assert!(chunk(r#"{"choices":[{"delta":{"content":"caf\u00e9 \"x\""}}]}"#).0);
        assert!(chunk(r#"{"choices":[{"text":" word","index":0}]}"#).0);
        assert!(chunk(r#"{"choices":[{"delta":{"reasoning_content":"hm"}}]}"#).0);
        assert!(chunk(r#"{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}"#).0);
    }

    #[test]
    fn the_end_and_the_usage_are_seen() {
        let (content, finished, usage) =
            chunk(r#"{"choices":[{"delta":{},"finish_reason":"length"}],"usage":null}"#);
        assert_eq!((content, finished, usage), (false, true, None));
        let (_, _, usage) = chunk(
            r#"{"id":"x","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":12,"completion_tokens":8,"total_tokens":20,"prompt_tokens_details":{"cached_tokens":4}}}"#,
        );
        let usage = usage.unwrap();
        assert_eq!(
            (
                usage.prompt_tokens,
                usage.completion_tokens,
                usage.prompt_tokens_details.cached_tokens
            ),
            (12, 8, 4)
        );
        let (_, _, usage) = chunk(
            r#"{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2,"prompt_tokens_details":null}}"#,
        );
        assert_eq!(usage.unwrap().prompt_tokens_details.cached_tokens, 0);
        assert_eq!(Event::parse(b"[DONE]").unwrap(), Event::Done);
    }

    #[test]
    fn errors_are_read_in_every_form() {
        for text in [
            r#"{"error":{"message":"too long","code":400}}"#,
            r#"{"error":"too long"}"#,
        ] {
            assert_eq!(
                Event::parse(text.as_bytes()).unwrap(),
                Event::Error("too long".to_owned())
            );
            assert_eq!(error_message(text.as_bytes()), "too long");
        }
        assert_eq!(
            error_message(b"  upstream connect error\n"),
            "upstream connect error"
        );
        assert!(Event::parse(b"{\"choices\":").is_err());
        assert!(Event::parse(b"hello").is_err());
    }

    #[test]
    fn paths_accept_a_base_with_and_without_version() {
        assert_eq!(Api::Chat.path(""), "/v1/chat/completions");
        assert_eq!(Api::Completions.path("/v1/"), "/v1/completions");
        assert_eq!(
            Api::Chat.path("/serving/v1"),
            "/serving/v1/chat/completions"
        );
    }
}
