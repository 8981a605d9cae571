//! BurstGPT: `Timestamp,[Session ID,Elapsed time,]Model,Request tokens,Response tokens,Total tokens,Log Type`.
//!
//! A response of 0 tokens marks a request that failed in production: it is counted and left out.

use super::csv::{Header, count, field, seconds};
use super::{Line, LineReader, Prefix, RawRow};
use crate::schedule::seed::Fnv;

pub(super) fn reader(header: &str) -> Result<LineReader, String> {
    let header = Header::new(header);
    let stamp = header.need("Timestamp")?;
    let input = header.need("Request tokens")?;
    let output = header.need("Response tokens")?;
    let session = header.find("Session ID");
    Ok(Box::new(move |line| {
        let fields: Vec<&str> = line.trim_end_matches('\r').split(',').collect();
        let output_tokens = count(
            field(&fields, output, "Response tokens")?,
            "Response tokens",
        )?;
        if output_tokens == 0 {
            return Ok(Line::Failed);
        }
        let client = match session {
            None => 0,
            Some(position) => client(field(&fields, position, "Session ID")?),
        };
        Ok(Line::Request(RawRow {
            at_nanoseconds: seconds(field(&fields, stamp, "Timestamp")?, "Timestamp")?,
            input_tokens: count(field(&fields, input, "Request tokens")?, "Request tokens")?,
            output_tokens,
            client,
            prefix: Prefix::None,
        }))
    }))
}

/// A number for a session; API requests have none and share 0.
fn client(session: &str) -> u32 {
    if session.is_empty() {
        return 0;
    }
    let mut hash = Fnv::new();
    hash.bytes(session.as_bytes());
    u32::try_from(hash.finish() >> 33)
        .unwrap_or(0)
        .saturating_add(1)
}
