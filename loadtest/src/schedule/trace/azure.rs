//! Azure LLM inference traces: `TIMESTAMP,ContextTokens,GeneratedTokens`.
//!
//! 2023 writes `2023-11-16 18:15:46.6805900`, 2024 writes `2024-05-10 00:00:00.009930+00:00`; either may lack the fraction.

use jiff::civil::DateTime;
use jiff::{Timestamp, tz::TimeZone};

use super::csv::{Header, count, field};
use super::{Line, LineReader, Prefix, RawRow};

pub(super) fn reader(header: &str) -> Result<LineReader, String> {
    let header = Header::new(header);
    let stamp = header.need("TIMESTAMP")?;
    let input = header.need("ContextTokens")?;
    let output = header.need("GeneratedTokens")?;
    Ok(Box::new(move |line| {
        let fields: Vec<&str> = line.trim_end_matches('\r').split(',').collect();
        Ok(Line::Request(RawRow {
            at_nanoseconds: instant(field(&fields, stamp, "TIMESTAMP")?)?,
            input_tokens: count(field(&fields, input, "ContextTokens")?, "ContextTokens")?,
            output_tokens: count(
                field(&fields, output, "GeneratedTokens")?,
                "GeneratedTokens",
            )?,
            client: 0,
            prefix: Prefix::None,
        }))
    }))
}

fn instant(text: &str) -> Result<i128, String> {
    let timestamp = match text.parse::<Timestamp>() {
        Ok(timestamp) => timestamp,
        Err(_) => text
            .parse::<DateTime>()
            .and_then(|civil| civil.to_zoned(TimeZone::UTC))
            .map(|zoned| zoned.timestamp())
            .map_err(|_| {
                format!(
                    "TIMESTAMP is {text:?}, not a date and time such as 2023-11-16 18:15:46.6805900"
                )
            })?,
    };
    Ok(timestamp.as_nanosecond())
}
