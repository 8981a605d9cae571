//! Our own compact form: `arrival_s,input_tokens,output_tokens[,prefix_hit_tokens]`.

use super::csv::{Header, count, field, seconds};
use super::{Line, LineReader, Prefix, RawRow};

pub(super) fn reader(header: &str) -> Result<LineReader, String> {
    let header = Header::new(header);
    let arrival = header.need("arrival_s")?;
    let input = header.need("input_tokens")?;
    let output = header.need("output_tokens")?;
    let hit = header.find("prefix_hit_tokens");
    Ok(Box::new(move |line| {
        let fields: Vec<&str> = line.trim_end_matches('\r').split(',').collect();
        let input_tokens = count(field(&fields, input, "input_tokens")?, "input_tokens")?;
        let prefix = match hit {
            None => Prefix::None,
            Some(position) => match count(
                field(&fields, position, "prefix_hit_tokens")?,
                "prefix_hit_tokens",
            )? {
                0 => Prefix::None,
                // One common text: whoever hits n tokens begins with its first n.
                tokens => Prefix::Shared {
                    group: 0,
                    tokens: tokens.min(input_tokens),
                },
            },
        };
        Ok(Line::Request(RawRow {
            at_nanoseconds: seconds(field(&fields, arrival, "arrival_s")?, "arrival_s")?,
            input_tokens,
            output_tokens: count(field(&fields, output, "output_tokens")?, "output_tokens")?,
            client: 0,
            prefix,
        }))
    }))
}
