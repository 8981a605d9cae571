//! Answers as text: chunks of a stream, and whole ones.

use std::fmt::Write as _;

use coppice_engine::FinishReason;
use serde_json::{Value, json};

use crate::openai::Endpoint;

/// Made-up words; which one comes at a place is fixed, so answers of one length are equal in size.
const WORDS: [&str; 32] = [
    "coppice", "of", "hazel", "stools", "grows", "back", "from", "the", "cut", "and", "each",
    "stem", "is", "thin", "while", "roots", "stay", "old", "so", "a", "wood", "may", "be", "young",
    "for", "ever", "under", "oaks", "that", "stand", "over", "it",
];

/// What every piece of one answer repeats.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    endpoint: Endpoint,
    id: String,
    created: i64,
    /// A JSON string.
    model: String,
}

/// Token counts of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt: u32,
    pub(crate) cached: u32,
    pub(crate) made: u32,
}

impl Answer {
    pub(crate) fn new(endpoint: Endpoint, request_id: &str, created: i64, model: &str) -> Self {
        let prefix = match endpoint {
            Endpoint::Completions => "cmpl",
            Endpoint::ChatCompletions => "chatcmpl",
        };
        let id = format!("{prefix}-{request_id}");
        Self {
            endpoint,
            id,
            created,
            model: Value::from(model).to_string(),
        }
    }

    /// The answer's name.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Appends a stream's events for the tokens `from..upto`; the last one says why the answer ended.
    pub(crate) fn write_chunks(
        &self,
        out: &mut String,
        from: u32,
        upto: u32,
        ended: Option<FinishReason>,
    ) {
        if from == 0 && upto > 0 && self.endpoint == Endpoint::ChatCompletions {
            self.write_chunk(out, r#"{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}"#);
        }
        for place in from..upto {
            let (space, word) = (if place == 0 { "" } else { " " }, word(place));
            let reason = ended
                .filter(|_| place + 1 == upto)
                .map_or("null", reason_json);
            self.write_head(out);
            let written = match self.endpoint {
                Endpoint::Completions => write!(
                    out,
                    r#"{{"index":0,"text":"{space}{word}","logprobs":null,"finish_reason":{reason},"stop_reason":null}}]}}"#
                ),
                Endpoint::ChatCompletions => write!(
                    out,
                    r#"{{"index":0,"delta":{{"content":"{space}{word}"}},"logprobs":null,"finish_reason":{reason}}}]}}"#
                ),
            };
            debug_assert!(written.is_ok(), "a string takes everything");
            out.push_str("\n\n");
        }
    }

    /// Appends the chunk without choices that carries the usage.
    pub(crate) fn write_usage(&self, out: &mut String, usage: Usage) {
        self.write_head(out);
        let written = write!(out, "],\"usage\":{}}}\n\n", usage.json());
        debug_assert!(written.is_ok(), "a string takes everything");
    }

    /// Appends the end of a stream.
    pub(crate) fn write_done(out: &mut String) {
        out.push_str("data: [DONE]\n\n");
    }

    /// The whole answer at once.
    pub(crate) fn whole(
        &self,
        ended: FinishReason,
        usage: Usage,
        kv_transfer: Option<Value>,
    ) -> String {
        let text = (0..usage.made).map(word).collect::<Vec<_>>().join(" ");
        let reason: Value = reason_name(ended).into();
        let (object, choice) = match self.endpoint {
            Endpoint::Completions => (
                "text_completion",
                json!({"index": 0, "text": text, "logprobs": null, "finish_reason": reason, "stop_reason": null}),
            ),
            Endpoint::ChatCompletions => (
                "chat.completion",
                json!({
                    "index": 0, "message": {"role": "assistant", "content": text},
                    "logprobs": null, "finish_reason": reason,
                }),
            ),
        };
        format!(
            r#"{{"id":"{}","object":"{object}","created":{},"model":{},"choices":[{choice}],"usage":{},"kv_transfer_params":{}}}"#,
            self.id,
            self.created,
            self.model,
            usage.json(),
            kv_transfer.unwrap_or(Value::Null)
        )
    }

    fn write_chunk(&self, out: &mut String, choice: &str) {
        self.write_head(out);
        out.push_str(choice);
        out.push_str("]}\n\n");
    }

    fn write_head(&self, out: &mut String) {
        let object = match self.endpoint {
            Endpoint::Completions => "text_completion",
            Endpoint::ChatCompletions => "chat.completion.chunk",
        };
        let Self {
            id, created, model, ..
        } = self;
        let written = write!(
            out,
            r#"data: {{"id":"{id}","object":"{object}","created":{created},"model":{model},"choices":["#
        );
        debug_assert!(written.is_ok(), "a string takes everything");
    }
}

impl Usage {
    fn json(self) -> String {
        let Self {
            prompt,
            cached,
            made,
        } = self;
        let total = u64::from(prompt) + u64::from(made);
        format!(
            r#"{{"prompt_tokens":{prompt},"total_tokens":{total},"completion_tokens":{made},"prompt_tokens_details":{{"cached_tokens":{cached}}}}}"#
        )
    }
}

fn word(place: u32) -> &'static str {
    WORDS[place as usize % WORDS.len()]
}

fn reason_name(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Abort => "abort",
    }
}

fn reason_json(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "\"stop\"",
        FinishReason::Length => "\"length\"",
        FinishReason::Abort => "\"abort\"",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(text: &str) -> Vec<Value> {
        text.split_terminator("\n\n")
            .map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap())
            .collect()
    }

    #[test]
    fn a_chat_stream_begins_with_the_role_and_ends_with_the_reason() {
        let answer = Answer::new(Endpoint::ChatCompletions, "7", 1, "a \"b\"");
        let mut text = String::new();
        answer.write_chunks(&mut text, 0, 1, None);
        answer.write_chunks(&mut text, 1, 3, Some(FinishReason::Length));
        answer.write_usage(
            &mut text,
            Usage {
                prompt: 10,
                cached: 4,
                made: 3,
            },
        );
        let events = events(&text);
        assert_eq!(events.len(), 5);
        assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
        assert_eq!(events[2]["choices"][0]["finish_reason"], Value::Null);
        assert_eq!(events[3]["choices"][0]["finish_reason"], "length");
        assert_eq!(events[3]["model"], "a \"b\"");
        assert_eq!(events[4]["choices"], json!([]));
        assert_eq!(
            events[4]["usage"]["prompt_tokens_details"]["cached_tokens"],
            4
        );
        assert_eq!(events[4]["usage"]["total_tokens"], 13);
    }

    #[test]
    fn streamed_text_is_the_text_of_the_whole_answer() {
        let answer = Answer::new(Endpoint::Completions, "7", 1, "m");
        let mut text = String::new();
        answer.write_chunks(&mut text, 0, 40, Some(FinishReason::Stop));
        let streamed: String = events(&text)
            .iter()
            .map(|event| event["choices"][0]["text"].as_str().unwrap().to_owned())
            .collect();
        let usage = Usage {
            prompt: 1,
            cached: 0,
            made: 40,
        };
        let whole: Value =
            serde_json::from_str(&answer.whole(FinishReason::Stop, usage, None)).unwrap();
        assert_eq!(whole["choices"][0]["text"], streamed);
        assert_eq!(whole["choices"][0]["finish_reason"], "stop");
        assert_eq!(whole["id"], "cmpl-7");
    }
}
