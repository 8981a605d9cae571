//! Server-sent events, read as their bytes arrive (WHATWG HTML, "Server-sent events").

/// Longest event that is accepted.
const EVENT_LIMIT: usize = 16 * 1024 * 1024;

/// An event longer than 16 MiB: not a stream of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event is longer than {EVENT_LIMIT} bytes")]
pub struct TooLong;

/// Splits a body into events.
#[derive(Debug, Default)]
pub struct Events {
    /// The beginning of a line whose end has not arrived.
    line: Vec<u8>,
    /// Data of the event so far.
    data: Vec<u8>,
    has_data: bool,
    /// The last byte was a carriage return: a line feed that follows belongs to it.
    after_return: bool,
}

impl Events {
    /// Takes bytes as they came and hands the data of each complete event to `event`.
    ///
    /// # Errors
    /// An event is too long.
    pub fn feed(&mut self, mut bytes: &[u8], mut event: impl FnMut(&[u8])) -> Result<(), TooLong> {
        if self.after_return && bytes.first() == Some(&b'\n') {
            bytes = &bytes[1..];
        }
        if !bytes.is_empty() {
            self.after_return = false;
        }
        while let Some(at) = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            // Nearly every event is one line of data with the empty line right behind it: no need to collect it.
            if self.line.is_empty()
                && !self.has_data
                && bytes[at..].starts_with(b"\n\n")
                && let Some(value) = data_value(&bytes[..at])
            {
                event(value);
                bytes = &bytes[at + 2..];
                continue;
            }
            if self.line.is_empty() {
                self.take_line(&bytes[..at], &mut event);
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(&bytes[..at]);
                self.take_line(&line, &mut event);
                line.clear();
                self.line = line;
            }
            let mut next = at + 1;
            if bytes[at] == b'\r' {
                if bytes.get(next) == Some(&b'\n') {
                    next += 1;
                } else if next == bytes.len() {
                    self.after_return = true;
                }
            }
            bytes = &bytes[next..];
        }
        self.line.extend_from_slice(bytes);
        if self.line.len() + self.data.len() > EVENT_LIMIT {
            Err(TooLong)
        } else {
            Ok(())
        }
    }

    /// No event is half-read.
    #[must_use]
    pub fn is_between_events(&self) -> bool {
        self.line.is_empty() && !self.has_data
    }

    fn take_line(&mut self, line: &[u8], event: &mut impl FnMut(&[u8])) {
        if line.is_empty() {
            if self.has_data {
                event(&self.data);
                self.data.clear();
                self.has_data = false;
            }
            return;
        }
        // Other fields (event, id, retry) and comments carry no tokens.
        let Some(value) = data_value(line) else {
            return;
        };
        if self.has_data {
            self.data.push(b'\n');
        }
        self.data.extend_from_slice(value);
        self.has_data = true;
    }
}

/// The value of a `data` line; none for other fields.
fn data_value(line: &[u8]) -> Option<&[u8]> {
    let rest = line.strip_prefix(b"data")?;
    if rest.is_empty() {
        return Some(rest);
    }
    let value = rest.strip_prefix(b":")?;
    Some(value.strip_prefix(b" ").unwrap_or(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(text: &str, size: usize) -> Vec<String> {
        let mut reader = Events::default();
        let mut events = Vec::new();
        for piece in text.as_bytes().chunks(size) {
            reader
                .feed(piece, |data| {
                    events.push(String::from_utf8(data.to_vec()).unwrap())
                })
                .unwrap();
        }
        events
    }

    #[test]
    fn events_are_the_same_however_they_are_cut_and_whatever_ends_lines() {
        for ending in ["\n", "\r\n", "\r"] {
            let text = ": ping\n\ndata: {\"a\":1}\n\nevent: x\ndata:two\ndata: lines\nid: 4\n\ndata\n\ndata: [DONE]\n\n".replace('\n', ending);
            for size in 1..text.len() + 1 {
                assert_eq!(
                    events(&text, size),
                    ["{\"a\":1}", "two\nlines", "", "[DONE]"],
                    "{ending:?}, pieces of {size}"
                );
            }
        }
    }

    #[test]
    fn an_unfinished_event_is_not_an_event() {
        let mut reader = Events::default();
        reader
            .feed(b"data: half", |_| panic!("no event yet"))
            .unwrap();
        assert!(!reader.is_between_events());
    }

    #[test]
    fn an_endless_event_is_refused() {
        let mut reader = Events::default();
        let piece = vec![b'x'; 1 << 20];
        let mut result = Ok(());
        for _ in 0..17 {
            result = reader.feed(&piece, |_| {});
        }
        assert_eq!(result, Err(TooLong));
    }
}
