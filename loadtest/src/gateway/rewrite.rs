//! The two requests that one request becomes when prefill and decode are served apart.
//!
//! Members that are not touched pass through as they are, byte for byte; a long prompt is not decoded.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::openai::error::ApiError;

type Members<'a> = BTreeMap<Cow<'a, str>, &'a RawValue>;

const KV_TRANSFER: &str = "kv_transfer_params";

/// What a prefill engine is told besides the request: keep the KV for another engine.
const KEEP: &str = r#"{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}"#;

/// The request for the prefill engine: the same prompt, one token, not streamed, KV kept.
///
/// # Errors
/// 400 when the body is no JSON object.
pub(crate) fn for_prefill(body: &[u8]) -> Result<Vec<u8>, ApiError> {
    with_members(body, |members| {
        for member in ["stream_options", "min_tokens", "max_completion_tokens"] {
            members.remove(member);
        }
        Ok(vec![
            ("stream", "false"),
            ("max_tokens", "1"),
            (KV_TRANSFER, KEEP),
        ])
    })
}

/// The request for the decode engine: the same, with where the KV is.
///
/// # Errors
/// 400 when the body is no JSON object.
pub(crate) fn for_decode(body: &[u8], kv_transfer: &RawValue) -> Result<Vec<u8>, ApiError> {
    with_members(body, |_| Ok(vec![(KV_TRANSFER, kv_transfer.get())]))
}

/// Where a prefill engine's answer says that the KV is; `None` when it keeps none.
///
/// # Errors
/// The answer is not JSON.
pub(crate) fn kv_transfer_of(answer: &[u8]) -> Result<Option<Box<RawValue>>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Answer {
        #[serde(default)]
        kv_transfer_params: Option<Box<RawValue>>,
    }
    Ok(serde_json::from_slice::<Answer>(answer)?.kv_transfer_params)
}

fn with_members<'a>(
    body: &'a [u8],
    change: impl FnOnce(&mut Members<'a>) -> Result<Vec<(&'static str, &'a str)>, ApiError>,
) -> Result<Vec<u8>, ApiError> {
    let mut members: Members<'a> = serde_json::from_slice(body).map_err(|error| {
        ApiError::bad_request("body", format!("the request is not valid: {error}"))
    })?;
    let added = change(&mut members)?;
    let mut out = Vec::with_capacity(body.len() + 512);
    out.push(b'{');
    for (name, _) in &added {
        members.remove(*name);
    }
    let kept = members
        .iter()
        .map(|(name, value)| (name.as_ref(), value.get()));
    for (index, (name, value)) in added.into_iter().chain(kept).enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(serde_json::Value::from(name).to_string().as_bytes());
        out.push(b':');
        out.extend_from_slice(value.as_bytes());
    }
    out.push(b'}');
    Ok(out)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn prefill_makes_one_token_and_keeps_its_kv() {
        let body = br#"{"model":"m","prompt":"caf\u00e9","stream":true,"stream_options":{"include_usage":true},
            "max_completion_tokens":50,"min_tokens":5,"temperature":0.25,"a\"b":[1]}"#;
        let rewritten = for_prefill(body).unwrap();
        assert!(
            String::from_utf8_lossy(&rewritten).contains(r"caf\u00e9"),
            "untouched members keep their bytes"
        );
        let value: Value = serde_json::from_slice(&rewritten).unwrap();
        assert_eq!(
            value,
            json!({"model": "m", "prompt": "café", "stream": false, "max_tokens": 1, "temperature": 0.25, "a\"b": [1],
                "kv_transfer_params": serde_json::from_str::<Value>(KEEP).unwrap()})
        );
    }

    #[test]
    fn decode_is_told_where_the_kv_is() {
        let answer =
            br#"{"id":"x","kv_transfer_params":{"do_remote_prefill":true,"remote_port":8000}}"#;
        let transfer = kv_transfer_of(answer).unwrap().unwrap();
        let body = br#"{"prompt":"a","max_tokens":9,"stream":true,"kv_transfer_params":null}"#;
        let value: Value = serde_json::from_slice(&for_decode(body, &transfer).unwrap()).unwrap();
        let expected = json!({"prompt": "a", "max_tokens": 9, "stream": true,
            "kv_transfer_params": {"do_remote_prefill": true, "remote_port": 8000}});
        assert_eq!(value, expected);
        assert!(
            kv_transfer_of(br#"{"kv_transfer_params":null}"#)
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn a_body_that_is_no_object_is_refused() {
        assert_eq!(for_prefill(b"[1]").unwrap_err().status, 400);
    }
}
