//! How the requests of one stream look on the wire.

use std::sync::Arc;

use crate::drive::api::Api;
use crate::drive::prompt::Prompts;
use crate::drive::target::Target;
use crate::openai::{CACHED_TOKENS_HEADER, PROMPT_TOKENS_HEADER};
use crate::schedule::{Planned, Prefix};

/// Words of a prompt whose length is told by a header.
const SHORT_PROMPT_WORDS: u32 = 8;

/// How prompts are made.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Default,
    serde::Serialize,
    serde::Deserialize,
    clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum PromptKind {
    /// Text of the planned length.
    #[default]
    Text,
    /// A few words, and headers with the planned length and the shared tokens: for simulated engines only.
    Headers,
}

/// A target with everything that the requests of one stream have in common.
#[derive(Debug, Clone)]
pub struct Route {
    /// Where to.
    pub target: Arc<Target>,
    prompts: Prompts,
    kind: PromptKind,
    /// Head up to the headers that differ.
    head: Vec<u8>,
    /// Body before the prompt, between prompt and `max_tokens`, and after.
    body: [Vec<u8>; 3],
}

/// The parts that a person may choose.
#[derive(Debug, Clone, Default)]
pub struct RouteOptions {
    /// Endpoint.
    pub api: Api,
    /// Prompts.
    pub prompt: PromptKind,
    /// Ask the engine to generate the planned number of tokens, whatever they are (`ignore_eos`).
    pub ignore_eos: bool,
    /// More headers, as `Name: value`.
    pub headers: Vec<String>,
    /// Members added to the body, as a JSON object.
    pub extra_body: serde_json::Map<String, serde_json::Value>,
}

impl Route {
    /// Requests for `model` at `target`.
    #[must_use]
    pub fn new(target: Arc<Target>, model: &str, options: &RouteOptions, prompts: Prompts) -> Self {
        let mut head = format!(
            "POST {} HTTP/1.1\r\nhost: {}\r\nuser-agent: coppice-loadtest/{}\r\naccept: text/event-stream\r\ncontent-type: application/json\r\n",
            options.api.path(&target.url.path),
            target.url.authority(),
            env!("CARGO_PKG_VERSION"),
        );
        for header in &options.headers {
            head.push_str(header);
            head.push_str("\r\n");
        }
        let model = serde_json::Value::from(model);
        let (before, after) = match options.api {
            Api::Chat => (
                format!(r#"{{"model":{model},"messages":[{{"role":"user","content":""#),
                "\"}]",
            ),
            Api::Completions => (format!(r#"{{"model":{model},"prompt":""#), "\""),
        };
        let mut end = String::from(r#","stream":true,"stream_options":{"include_usage":true}"#);
        if options.ignore_eos {
            end.push_str(r#","ignore_eos":true"#);
        }
        for (name, value) in &options.extra_body {
            end.push_str(&format!(
                ",{}:{value}",
                serde_json::Value::from(name.as_str())
            ));
        }
        end.push('}');
        Self {
            target,
            prompts,
            kind: options.prompt,
            head: head.into_bytes(),
            body: [
                before.into_bytes(),
                format!(r#"{after},"max_tokens":"#).into_bytes(),
                end.into_bytes(),
            ],
        }
    }

    /// Writes one whole request into `out`, replacing what is there. `number` tells requests of the run apart.
    pub fn write(&self, out: &mut Vec<u8>, planned: &Planned, number: u64) {
        out.clear();
        // The body goes first to learn its length, then the head is put before it.
        out.extend_from_slice(&self.body[0]);
        match self.kind {
            PromptKind::Text => {
                self.prompts
                    .write(out, planned.input_tokens, &planned.prefix, number)
            }
            PromptKind::Headers => {
                self.prompts
                    .write(out, SHORT_PROMPT_WORDS, &Prefix::None, number)
            }
        }
        out.extend_from_slice(&self.body[1]);
        out.extend_from_slice(planned.output_tokens.to_string().as_bytes());
        out.extend_from_slice(&self.body[2]);
        let mut head = self.head.clone();
        head.extend_from_slice(
            format!("{PROMPT_TOKENS_HEADER}: {}\r\n", planned.input_tokens).as_bytes(),
        );
        if self.kind == PromptKind::Headers
            && let Prefix::Shared { tokens, .. } = planned.prefix
        {
            head.extend_from_slice(format!("{CACHED_TOKENS_HEADER}: {tokens}\r\n").as_bytes());
        }
        head.extend_from_slice(format!("content-length: {}\r\n\r\n", out.len()).as_bytes());
        out.splice(0..0, head);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn request(api: Api, kind: PromptKind) -> (String, serde_json::Value) {
        let target = Arc::new(Target {
            url: "http://127.0.0.1:8000".parse().unwrap(),
            addresses: Vec::new(),
            tls: None,
        });
        let options = RouteOptions {
            api,
            prompt: kind,
            ignore_eos: true,
            headers: vec!["Authorization: Bearer x".to_owned()],
            extra_body: serde_json::from_str(r#"{"temperature":0.5}"#).unwrap(),
        };
        let planned = Planned {
            at: Duration::ZERO,
            stream: 0,
            client: 0,
            input_tokens: 300,
            output_tokens: 17,
            prefix: Prefix::Shared {
                group: 1,
                tokens: 64,
            },
        };
        let mut out = b"left over".to_vec();
        Route::new(target, "a \"model\"", &options, Prompts::new(1)).write(&mut out, &planned, 5);
        let text = String::from_utf8(out).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())));
        (head.to_owned(), serde_json::from_str(body).unwrap())
    }

    #[test]
    fn a_chat_request_is_complete() {
        let (head, body) = request(Api::Chat, PromptKind::Text);
        assert!(head.starts_with("POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:8000\r\n"));
        assert!(
            head.contains("Authorization: Bearer x")
                && head.contains("x-coppice-prompt-tokens: 300")
        );
        assert!(
            !head.contains("cached"),
            "real text brings its own cache hits"
        );
        assert_eq!(body["model"], "a \"model\"");
        assert_eq!(
            body["messages"][0]["content"]
                .as_str()
                .unwrap()
                .split(' ')
                .count(),
            300
        );
        assert_eq!(
            (&body["max_tokens"], &body["stream"], &body["ignore_eos"]),
            (&17.into(), &true.into(), &true.into())
        );
        assert_eq!(body["stream_options"]["include_usage"], true);
        assert_eq!(body["temperature"], 0.5);
    }

    #[test]
    fn a_prompt_told_by_headers_is_short() {
        let (head, body) = request(Api::Completions, PromptKind::Headers);
        assert!(head.starts_with("POST /v1/completions "));
        assert!(
            head.contains("x-coppice-prompt-tokens: 300")
                && head.contains("x-coppice-cached-tokens: 64")
        );
        assert_eq!(body["prompt"].as_str().unwrap().split(' ').count(), 8);
    }
}
