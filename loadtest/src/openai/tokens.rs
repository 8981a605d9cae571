//! Counting tokens without a tokenizer.
//!
//! A token is a word of up to 6 bytes; each further 6 bytes of the word are one more. English text comes out near what
//! byte-pair vocabularies make of it, text of short words exactly, and long strings without blanks are not free. A prompt given
//! as token ids counts its ids, and [`PROMPT_TOKENS_HEADER`](super::PROMPT_TOKENS_HEADER) overrides both.

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;

const BYTES_PER_TOKEN: usize = 6;

/// Tokens of a text.
#[must_use]
pub fn of_text(text: &str) -> u32 {
    let tokens: usize = text
        .split_ascii_whitespace()
        .map(|word| word.len().div_ceil(BYTES_PER_TOKEN))
        .sum();
    u32::try_from(tokens).unwrap_or(u32::MAX)
}

/// Tokens of a completion prompt: a text, token ids, or a list of exactly one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptTokens(pub u32);

/// Tokens of chat messages: those of their contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageTokens(pub u32);

impl<'de> Deserialize<'de> for PromptTokens {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer
            .deserialize_any(PromptVisitor)
            .map(|item| Self(item.tokens))
    }
}

/// A prompt, or one of its parts.
struct Item {
    tokens: u32,
    is_id: bool,
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PromptVisitor)
    }
}

struct PromptVisitor;

impl<'de> Visitor<'de> for PromptVisitor {
    type Value = Item;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("one prompt: a text or an array of token ids")
    }

    fn visit_str<E>(self, text: &str) -> Result<Item, E> {
        Ok(Item {
            tokens: of_text(text),
            is_id: false,
        })
    }

    fn visit_u64<E>(self, _id: u64) -> Result<Item, E> {
        Ok(Item {
            tokens: 1,
            is_id: true,
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Item, A::Error> {
        let Some(first) = items.next_element::<Item>()? else {
            return Ok(Item {
                tokens: 0,
                is_id: false,
            });
        };
        let mut tokens = first.tokens;
        while let Some(next) = items.next_element::<Item>()? {
            if !first.is_id || !next.is_id {
                return Err(serde::de::Error::custom(
                    "several prompts in one request; send one request each",
                ));
            }
            tokens = tokens.saturating_add(1);
        }
        Ok(Item {
            tokens,
            is_id: false,
        })
    }
}

impl<'de> Deserialize<'de> for MessageTokens {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let messages = Vec::<Message>::deserialize(deserializer)?;
        if messages.is_empty() {
            return Err(serde::de::Error::custom(
                "messages is empty, at least one is needed",
            ));
        }
        Ok(Self(messages.iter().fold(0, |tokens, message| {
            tokens.saturating_add(message.content.0)
        })))
    }
}

#[derive(serde::Deserialize)]
struct Message {
    #[serde(default)]
    content: ContentTokens,
}

/// A message's content: a text, nothing, or parts of which the texts count.
#[derive(Default)]
struct ContentTokens(u32);

impl<'de> Deserialize<'de> for ContentTokens {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor).map(Self)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = u32;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a text or an array of content parts")
    }

    fn visit_str<E>(self, text: &str) -> Result<u32, E> {
        Ok(of_text(text))
    }

    fn visit_unit<E>(self) -> Result<u32, E> {
        Ok(0)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<u32, A::Error> {
        let mut tokens = 0_u32;
        while let Some(ContentTokens(part)) = parts.next_element()? {
            tokens = tokens.saturating_add(part);
        }
        Ok(tokens)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut part: A) -> Result<u32, A::Error> {
        let mut tokens = 0;
        while let Some(key) = part.next_key::<std::borrow::Cow<'de, str>>()? {
            if key == "text" {
                tokens = part.next_value::<ContentTokens>()?.0;
            } else {
                part.next_value::<IgnoredAny>()?;
            }
        }
        Ok(tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_count_by_their_length() {
        assert_eq!(of_text(""), 0);
        assert_eq!(of_text("four four\tfour\n four"), 4);
        assert_eq!(of_text("sixsix sevenup"), 3);
        assert_eq!(of_text(&"x".repeat(600)), 100);
    }

    #[test]
    fn prompts_are_texts_or_ids() {
        let count = |json: &str| serde_json::from_str::<PromptTokens>(json).map(|prompt| prompt.0);
        assert_eq!(count(r#""a b c""#).unwrap(), 3);
        assert_eq!(count("[5, 6, 7, 8]").unwrap(), 4);
        assert_eq!(count(r#"["a b"]"#).unwrap(), 2);
        assert_eq!(count("[[1, 2, 3]]").unwrap(), 3);
        let error = count(r#"["a", "b"]"#).unwrap_err().to_string();
        assert!(error.contains("several prompts"), "{error}");
        assert!(count("{}").is_err());
    }

    #[test]
    fn messages_count_their_texts() {
        let count =
            |json: &str| serde_json::from_str::<MessageTokens>(json).map(|messages| messages.0);
        let json = r#"[{"role": "system", "content": "be brief"}, {"role": "assistant", "content": null},
            {"role": "user", "content": [{"type": "text", "text": "a b c"}, {"type": "image_url", "image_url": {}}]}]"#;
        assert_eq!(count(json).unwrap(), 5);
        assert!(count("[]").is_err());
        assert!(count(r#"[{"role": "user", "content": 5}]"#).is_err());
    }
}
