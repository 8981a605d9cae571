//! The part of a generation request that matters here.

use std::num::NonZeroU32;

use axum::http::HeaderMap;
use serde::Deserialize;
use serde_json::Value;

use super::error::ApiError;
use super::tokens::{MessageTokens, PromptTokens};
use super::{CACHED_TOKENS_HEADER, Endpoint, PROMPT_TOKENS_HEADER};

/// A generation request, as lengths and switches.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationRequest {
    /// The model asked for; empty when the client named none.
    pub model: String,
    /// Prompt tokens, `1..`.
    pub prompt_tokens: u32,
    /// Of those, the leading ones that a prefix cache holds.
    pub cached_tokens: u32,
    /// The most tokens to make, where the client says.
    pub max_tokens: Option<u32>,
    /// The least tokens to make.
    pub min_tokens: u32,
    /// Go on past the model's own end.
    pub ignore_eos: bool,
    /// Answer token by token.
    pub stream: bool,
    /// End the stream with a chunk that carries the usage.
    pub include_usage: bool,
    /// vLLM's KV hand-over between prefill and decode engines.
    pub kv_transfer: Option<KvTransfer>,
}

/// `kv_transfer_params` of a request, and of a prefill engine's answer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, serde::Serialize)]
pub struct KvTransfer {
    /// Keep the KV for a decode engine.
    #[serde(default)]
    pub do_remote_decode: bool,
    /// Fetch the KV from a prefill engine.
    #[serde(default)]
    pub do_remote_prefill: bool,
    /// The prefill engine.
    #[serde(default)]
    pub remote_engine_id: Option<String>,
    /// Its name for the request.
    #[serde(default)]
    pub remote_request_id: Option<String>,
    /// Where it is.
    #[serde(default)]
    pub remote_host: Option<String>,
    /// Where it is.
    #[serde(default)]
    pub remote_port: Option<u16>,
    /// Which blocks hold the KV; passed on unread.
    #[serde(default)]
    pub remote_block_ids: Value,
    /// GPUs the KV is spread over.
    #[serde(default)]
    pub tp_size: Option<u32>,
}

#[derive(Deserialize)]
struct Body {
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    prompt: Option<PromptTokens>,
    #[serde(default)]
    messages: Option<MessageTokens>,
    #[serde(default)]
    max_tokens: Option<i64>,
    #[serde(default)]
    max_completion_tokens: Option<i64>,
    #[serde(default)]
    min_tokens: Option<i64>,
    #[serde(default)]
    ignore_eos: Option<bool>,
    #[serde(default)]
    stream: Option<bool>,
    #[serde(default)]
    stream_options: Option<StreamOptions>,
    #[serde(default)]
    n: Option<i64>,
    #[serde(default)]
    kv_transfer_params: Option<KvTransfer>,
}

#[derive(Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: Option<bool>,
}

impl GenerationRequest {
    /// Reads a request.
    ///
    /// # Errors
    /// 400 that names the member, its value and what is expected.
    pub fn parse(endpoint: Endpoint, headers: &HeaderMap, body: &[u8]) -> Result<Self, ApiError> {
        let body: Body = serde_json::from_slice(body).map_err(|error| {
            ApiError::bad_request("body", format!("the request is not valid: {error}"))
        })?;
        let (member, counted) = match endpoint {
            Endpoint::Completions => ("prompt", body.prompt.map(|prompt| prompt.0)),
            Endpoint::ChatCompletions => ("messages", body.messages.map(|messages| messages.0)),
        };
        let counted = counted.ok_or_else(|| {
            ApiError::bad_request(member, format!("{member} is missing; it holds the prompt"))
        })?;
        let prompt_tokens = match header_number(headers, PROMPT_TOKENS_HEADER)? {
            Some(0) => return Err(header_error(PROMPT_TOKENS_HEADER, "0")),
            Some(tokens) => tokens,
            // Every model puts a token in front of an empty prompt.
            None => counted.max(1),
        };
        let cached_tokens = header_number(headers, CACHED_TOKENS_HEADER)?
            .unwrap_or(0)
            .min(prompt_tokens);
        if body.n.is_some_and(|n| n != 1) {
            let message = format!(
                "n is {}; one answer per request is served",
                body.n.unwrap_or(0)
            );
            return Err(ApiError::bad_request("n", message));
        }
        let max_tokens = match (body.max_completion_tokens, body.max_tokens) {
            (Some(tokens), _) => Some(length("max_completion_tokens", tokens, 1)?),
            (None, Some(tokens)) => Some(length("max_tokens", tokens, 1)?),
            (None, None) => None,
        };
        let min_tokens = length("min_tokens", body.min_tokens.unwrap_or(0), 0)?;
        if let Some(max_tokens) = max_tokens.filter(|max_tokens| min_tokens > *max_tokens) {
            let message =
                format!("min_tokens is {min_tokens}, more than max_tokens, which is {max_tokens}");
            return Err(ApiError::bad_request("min_tokens", message));
        }
        Ok(Self {
            model: body.model.unwrap_or_default(),
            prompt_tokens,
            cached_tokens,
            max_tokens,
            min_tokens,
            ignore_eos: body.ignore_eos.unwrap_or(false),
            stream: body.stream.unwrap_or(false),
            include_usage: body
                .stream_options
                .and_then(|options| options.include_usage)
                .unwrap_or(false),
            kv_transfer: body.kv_transfer_params,
        })
    }

    /// The most tokens to make: the client's limit, else the given default.
    #[must_use]
    pub fn max_tokens_or(&self, default: NonZeroU32) -> u32 {
        self.max_tokens
            .unwrap_or_else(|| default.get().max(self.min_tokens))
    }
}

fn length(member: &'static str, value: i64, least: u32) -> Result<u32, ApiError> {
    u32::try_from(value)
        .ok()
        .filter(|value| *value >= least)
        .ok_or_else(|| {
            ApiError::bad_request(
                member,
                format!(
                    "{member} is {value}, a number from {least} to {} is expected",
                    u32::MAX
                ),
            )
        })
}

fn header_number(headers: &HeaderMap, name: &'static str) -> Result<Option<u32>, ApiError> {
    let Some(value) = headers.get(name) else {
        return Ok(None);
    };
    let number = value
        .to_str()
        .ok()
        .and_then(|text| text.trim().parse().ok());
    number
        .map(Some)
        .ok_or_else(|| header_error(name, &String::from_utf8_lossy(value.as_bytes())))
}

fn header_error(name: &'static str, value: &str) -> ApiError {
    ApiError::bad_request(
        name,
        format!("header {name} is {value:?}, a number of tokens is expected"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(
        endpoint: Endpoint,
        headers: &[(&'static str, &str)],
        body: &str,
    ) -> Result<GenerationRequest, ApiError> {
        let headers = headers
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect();
        GenerationRequest::parse(endpoint, &headers, body.as_bytes())
    }

    #[test]
    fn lengths_come_from_body_or_headers() {
        let body = r#"{"model": "m", "prompt": "a b c", "max_tokens": 5, "stream": true, "ignore_eos": true,
            "stream_options": {"include_usage": true}, "temperature": 0.5, "unknown": [1]}"#;
        let request = parse(Endpoint::Completions, &[], body).unwrap();
        assert_eq!(
            (
                request.prompt_tokens,
                request.max_tokens,
                request.cached_tokens
            ),
            (3, Some(5), 0)
        );
        assert!(request.stream && request.include_usage && request.ignore_eos);
        let headers = [
            (PROMPT_TOKENS_HEADER, "12000"),
            (CACHED_TOKENS_HEADER, "99999"),
        ];
        let request = parse(Endpoint::Completions, &headers, body).unwrap();
        assert_eq!(
            (request.prompt_tokens, request.cached_tokens),
            (12000, 12000)
        );
    }

    #[test]
    fn the_newer_limit_wins() {
        let body = r#"{"messages": [{"role": "user", "content": "x"}], "max_tokens": 5, "max_completion_tokens": 7}"#;
        assert_eq!(
            parse(Endpoint::ChatCompletions, &[], body)
                .unwrap()
                .max_tokens,
            Some(7)
        );
    }

    #[test]
    fn wrong_members_are_named_with_their_values() {
        let refused = |endpoint, headers: &[(&'static str, &str)], body: &str| {
            let error = parse(endpoint, headers, body).unwrap_err();
            assert_eq!(error.status, 400);
            (error.param.unwrap(), error.message)
        };
        let (param, message) = refused(
            Endpoint::Completions,
            &[],
            r#"{"prompt": "x", "max_tokens": 0}"#,
        );
        assert!(
            param == "max_tokens" && message.contains("is 0, a number from 1"),
            "{message}"
        );
        let (param, message) = refused(
            Endpoint::Completions,
            &[],
            r#"{"messages": [{"content": "x"}]}"#,
        );
        assert!(
            param == "prompt" && message.contains("missing"),
            "{message}"
        );
        let (param, message) = refused(Endpoint::Completions, &[], r#"{"prompt": "x", "n": 3}"#);
        assert!(param == "n" && message.contains("n is 3"), "{message}");
        let (param, _) = refused(
            Endpoint::Completions,
            &[],
            r#"{"prompt": "x", "max_tokens": 2, "min_tokens": 3}"#,
        );
        assert_eq!(param, "min_tokens");
        let (param, message) = refused(
            Endpoint::Completions,
            &[(PROMPT_TOKENS_HEADER, "many")],
            r#"{"prompt": "x"}"#,
        );
        assert!(
            param == PROMPT_TOKENS_HEADER && message.contains("\"many\""),
            "{message}"
        );
        let (_, message) = refused(Endpoint::Completions, &[], "{");
        assert!(message.contains("line 1"), "{message}");
    }

    #[test]
    fn kv_transfer_params_are_read_as_proxies_send_them() {
        let body = r#"{"prompt": "x", "kv_transfer_params": {"do_remote_decode": true, "do_remote_prefill": false,
            "remote_engine_id": null, "remote_block_ids": null, "remote_host": null, "remote_port": null}}"#;
        let transfer = parse(Endpoint::Completions, &[], body)
            .unwrap()
            .kv_transfer
            .unwrap();
        assert!(transfer.do_remote_decode && !transfer.do_remote_prefill);
        assert_eq!(transfer.remote_host, None);
    }
}
