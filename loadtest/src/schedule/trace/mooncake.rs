//! Mooncake's traces: JSON lines with `timestamp` (ms), `input_length`, `output_length` and `hash_ids`.

use serde::Deserialize;

use super::{Line, Prefix, RawRow};

#[derive(Deserialize)]
struct Request {
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    #[serde(default)]
    hash_ids: Box<[u64]>,
}

pub(super) fn line(text: &str) -> Result<Line, String> {
    let request: Request = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let milliseconds = request.timestamp;
    let at = std::time::Duration::try_from_secs_f64(milliseconds / 1000.0)
        .map_err(|_| format!("timestamp is {milliseconds}, not a number of milliseconds from 0"))?;
    Ok(Line::Request(RawRow {
        at_nanoseconds: i128::try_from(at.as_nanos()).unwrap_or(i128::MAX),
        input_tokens: request.input_length,
        output_tokens: request.output_length,
        client: 0,
        prefix: if request.hash_ids.is_empty() {
            Prefix::None
        } else {
            Prefix::Blocks(request.hash_ids)
        },
    }))
}
