//! The pass over a body.

use crate::error::{Found, Malformed, Position, Problem, Refused};
use crate::limits::Limits;
use crate::line::{Cursor, Fault, closing_quote, is_name};
use crate::sample::{Exemplar, Label, Sample, Text};
use crate::scan::{find, name_length};

/// How many malformed lines a [`Report`] describes; all are counted.
const DESCRIBED: usize = 8;

/// Who gets the samples.
///
/// Called in the order of the body. Samples count only once [`read`] has returned `Ok`.
pub trait Consumer<'t> {
    /// What [`Self::select`] found out about a name, handed on to [`Self::sample`].
    type Key;

    /// Whether [`Self::metadata`] is to be called; comments cost nothing otherwise.
    const METADATA: bool = false;

    /// Whether samples of this name are wanted. Called for each sample line, so it must be quick; see
    /// [`NameTable`](crate::NameTable).
    ///
    /// `name` is any run of bytes without blanks, or a quoted name with its escapes undone. Where nothing is selected the
    /// line is not looked at further, well-formed or not.
    fn select(&mut self, name: &[u8]) -> Option<Self::Key>;

    /// A well-formed sample with a selected name.
    fn sample(&mut self, key: Self::Key, sample: &Sample<'t, '_>);

    /// A `HELP`, `TYPE` or `UNIT` line; malformed ones are free comments.
    fn metadata(&mut self, metadata: &Metadata<'t>) {
        let _ = metadata;
    }
}

/// What a comment says about a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metadata<'t> {
    /// The family's name as sent; OpenMetrics leaves `_total` off counters.
    pub family: Text<'t>,
    /// What is said.
    pub part: MetadataPart<'t>,
}

/// A piece of metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetadataPart<'t> {
    /// The help text.
    Help(Text<'t>),
    /// The type.
    Type(Kind),
    /// The unit.
    Unit(Text<'t>),
}

/// The type of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Only grows, but for restarts.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Buckets.
    Histogram,
    /// Buckets that go up and down.
    GaugeHistogram,
    /// Quantiles.
    Summary,
    /// A constant 1 with labels.
    Info,
    /// One series a state.
    StateSet,
    /// `untyped` or `unknown`.
    Unknown,
}

/// What a body held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Lines, blank ones and comments included.
    pub lines: u64,
    /// Samples delivered.
    pub samples: u64,
    /// Sample lines whose name was not selected.
    pub passed_over: u64,
    /// Selected lines that break the format or a limit, and were skipped.
    pub malformed: u64,
    /// The first of these.
    pub problems: Vec<Malformed>,
    /// How the body ended.
    pub ending: Ending,
}

/// How a body ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ending {
    /// With a newline, or empty.
    Newline,
    /// With OpenMetrics' `# EOF`; this many bytes behind it were not read.
    Eof {
        /// Bytes not read.
        ignored: usize,
    },
    /// Within a line. A body cut short looks like this, and so does one of a careless sender.
    WithinLine {
        /// Whether that last line is malformed; if so, the body was cut short.
        malformed: bool,
    },
}

impl Report {
    /// Whether the body was surely cut short: its last line neither ends nor is well-formed.
    #[must_use]
    pub const fn is_truncated(&self) -> bool {
        matches!(self.ending, Ending::WithinLine { malformed: true })
    }
}

/// Reads a body, line by line, into `consumer`.
///
/// Guarantees: every selected, well-formed sample line up to `# EOF` is delivered once, in order; the reader does not
/// panic, whatever the bytes; its memory is that of one line's labels.
///
/// # Errors
/// The body as a whole is [`Refused`]: larger than a limit, or something other than an exposition. Samples may have been
/// delivered by then.
pub fn read<'t, C: Consumer<'t>>(
    text: &'t [u8],
    limits: &Limits,
    consumer: &mut C,
) -> Result<Report, Refused> {
    if text.len() > limits.body_bytes {
        return Err(Refused::BodyTooLarge {
            bytes: text.len(),
            limit: limits.body_bytes,
        });
    }
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    if let Some(found) = sniff(text) {
        return Err(Refused::NotAnExposition { found });
    }
    let mut pass = Pass {
        consumer,
        limits,
        labels: Vec::with_capacity(16),
        report: Report {
            lines: 0,
            samples: 0,
            passed_over: 0,
            malformed: 0,
            problems: Vec::new(),
            ending: Ending::Newline,
        },
    };
    pass.run(text)?;
    Ok(pass.report)
}

/// Tells bodies that are no exposition by their first bytes.
fn sniff(text: &[u8]) -> Option<Found> {
    if text.starts_with(b"\x1f\x8b") {
        return Some(Found::Gzip);
    }
    let start = text.iter().position(|byte| !byte.is_ascii_whitespace())?;
    let rest = &text[start..];
    match rest[0] {
        b'<' => Some(Found::Html),
        b'[' => Some(Found::Json),
        b'{' => {
            // `{"a": ...` and `{}` are JSON; `{"a"} 1` and `{"a",b="c"} 1` are samples with a quoted name.
            let inside = &rest[1..];
            let start = inside.iter().position(|byte| !byte.is_ascii_whitespace())?;
            let json = match inside[start] {
                b'}' => true,
                b'"' => {
                    let (end, _) = closing_quote(inside, start + 1)?;
                    let next = inside[end + 1..]
                        .iter()
                        .find(|byte| !byte.is_ascii_whitespace());
                    next == Some(&b':')
                }
                _ => false,
            };
            json.then_some(Found::Json)
        }
        _ => None,
    }
}

struct Pass<'t, 'c, C> {
    consumer: &'c mut C,
    limits: &'c Limits,
    labels: Vec<Label<'t>>,
    report: Report,
}

impl<'t, C: Consumer<'t>> Pass<'t, '_, C> {
    fn run(&mut self, text: &'t [u8]) -> Result<(), Refused> {
        let mut start = 0;
        while start < text.len() {
            self.report.lines += 1;
            let rest = &text[start..];
            let blanks = rest
                .iter()
                .take_while(|byte| matches!(byte, b' ' | b'\t'))
                .count();
            // Where a line of interest was looked at, its end is known already.
            let (length, was_malformed) = match rest.get(blanks) {
                None => (rest.len(), false),
                Some(b'\n') => (blanks, false),
                Some(b'#') => {
                    let length = line_length(rest);
                    if self.comment(line(rest, length), blanks) {
                        let ignored = text.len() - (start + length + 1).min(text.len());
                        self.report.ending = Ending::Eof { ignored };
                        return Ok(());
                    }
                    (length, false)
                }
                Some(_) => self.sample_line(rest, blanks)?,
            };
            start += length + 1;
            if start > text.len() {
                self.report.ending = Ending::WithinLine {
                    malformed: was_malformed,
                };
            }
        }
        Ok(())
    }

    /// A line that may hold a sample: its length, and whether it is malformed.
    fn sample_line(&mut self, rest: &'t [u8], blanks: usize) -> Result<(usize, bool), Refused> {
        let name_length = name_length(&rest[blanks..]);
        let name = &rest[blanks..blanks + name_length];
        if name.is_empty() {
            if rest[blanks] == b'{' {
                return self.quoted_sample_line(rest, blanks);
            }
            // A carriage return alone ends a blank line.
            let length = line_length(rest);
            if line(rest, length)[blanks..].is_empty() {
                return Ok((length, false));
            }
        }
        let key = self.consumer.select(name);
        // What is left of the line holds its end, the name does not.
        let behind = blanks + name_length;
        let length = behind + line_length(&rest[behind..]);
        self.count_sample(blanks)?;
        let Some(key) = key else {
            self.report.passed_over += 1;
            return Ok((length, false));
        };
        let line = line(rest, length);
        let read = self.plain_sample(key, line, blanks, name);
        Ok((length, self.note(read)))
    }

    fn plain_sample(
        &mut self,
        key: C::Key,
        line: &'t [u8],
        start: usize,
        name: &'t [u8],
    ) -> Result<(), Fault> {
        if !is_name(name) {
            return Err((Problem::Name, start));
        }
        if name.len() > self.limits.name_bytes {
            return Err((
                Problem::NameTooLong {
                    limit: self.limits.name_bytes,
                },
                start,
            ));
        }
        let end = start + name.len();
        let mut cursor = self.cursor(line, end)?;
        self.deliver(
            key,
            Text::plain(cursor.piece(start, end)),
            true,
            &mut cursor,
        )
    }

    /// A line that starts with its braces, the metric name quoted inside.
    fn quoted_sample_line(
        &mut self,
        rest: &'t [u8],
        blanks: usize,
    ) -> Result<(usize, bool), Refused> {
        let length = line_length(rest);
        let line = line(rest, length);
        self.count_sample(blanks)?;
        let found = self.cursor(line, blanks).and_then(|cursor| {
            // The name usually comes first; anywhere inside the braces is legal.
            let name = quoted_name(cursor, self.limits)?;
            Ok((cursor, name))
        });
        let read = match found {
            Err(fault) => Err(fault),
            Ok((mut cursor, name)) => match self.consumer.select(name.unescaped().as_bytes()) {
                None => {
                    self.report.passed_over += 1;
                    return Ok((length, false));
                }
                Some(key) => self.deliver(key, name, false, &mut cursor),
            },
        };
        Ok((length, self.note(read)))
    }

    /// A cursor on a line that is not too long.
    fn cursor(&self, line: &'t [u8], at: usize) -> Result<Cursor<'t>, Fault> {
        let limit = self.limits.line_bytes;
        if line.len() > limit {
            return Err((Problem::LineTooLong { limit }, limit));
        }
        Cursor::new(line, at)
    }

    fn deliver(
        &mut self,
        key: C::Key,
        name: Text<'t>,
        named: bool,
        cursor: &mut Cursor<'t>,
    ) -> Result<(), Fault> {
        let line = cursor.sample(named, &mut self.labels, self.limits)?;
        let (labels, others) = self.labels.split_at(line.labels);
        let exemplar = line.exemplar.map(|(value, timestamp)| Exemplar {
            labels: others,
            value,
            timestamp,
        });
        let sample = Sample {
            name,
            labels,
            value: line.value,
            timestamp: line.timestamp,
            exemplar,
        };
        self.consumer.sample(key, &sample);
        self.report.samples += 1;
        Ok(())
    }

    fn count_sample(&self, column: usize) -> Result<(), Refused> {
        let seen = self.report.samples + self.report.passed_over + self.report.malformed;
        if seen < self.limits.samples {
            return Ok(());
        }
        Err(Refused::TooManySamples {
            limit: self.limits.samples,
            at: self.position(column),
        })
    }

    /// Notes a malformed line; says whether it is one.
    fn note(&mut self, read: Result<(), Fault>) -> bool {
        let Err((problem, column)) = read else {
            return false;
        };
        self.report.malformed += 1;
        if self.report.problems.len() < DESCRIBED {
            let at = self.position(column);
            self.report.problems.push(Malformed { at, problem });
        }
        true
    }

    const fn position(&self, column: usize) -> Position {
        Position {
            line: self.report.lines,
            column: column as u64 + 1,
        }
    }

    /// A comment; says whether it is the end marker.
    fn comment(&mut self, line: &'t [u8], blanks: usize) -> bool {
        if line == b"# EOF" {
            return true;
        }
        if C::METADATA
            && let Some(metadata) = metadata(line, blanks)
        {
            self.consumer.metadata(&metadata);
        }
        false
    }
}

/// Bytes up to the newline, or to the end.
fn line_length(rest: &[u8]) -> usize {
    find(rest, b'\n').unwrap_or(rest.len())
}

/// The line without its end: carriage returns, blanks and tabs cut off.
fn line(rest: &[u8], length: usize) -> &[u8] {
    let mut line = &rest[..length];
    while let [head @ .., b'\r' | b' ' | b'\t'] = line {
        line = head;
    }
    line
}

/// The quoted metric name inside the braces under the cursor.
fn quoted_name<'t>(mut cursor: Cursor<'t>, limits: &Limits) -> Result<Text<'t>, Fault> {
    cursor.at += 1;
    let start = cursor.at;
    let name = cursor.metric_name(limits.labels)?;
    match name {
        Some(name) if name.raw().is_empty() => Err((Problem::Name, start)),
        Some(name) if name.raw().len() > limits.name_bytes => Err((
            Problem::NameTooLong {
                limit: limits.name_bytes,
            },
            start,
        )),
        Some(name) => Ok(name),
        None => Err((Problem::QuotedName, start)),
    }
}

/// `# HELP name text`, `# TYPE name type`, `# UNIT name unit`.
fn metadata(line: &[u8], blanks: usize) -> Option<Metadata<'_>> {
    let mut cursor = Cursor::new(line, blanks + 1).ok()?;
    if !matches!(cursor.peek(), Some(b' ' | b'\t')) {
        return None;
    }
    let keyword = word(&mut cursor)?;
    cursor.skip_blanks();
    let family = match cursor.peek()? {
        b'"' => cursor.quoted().ok()?,
        _ => Text::plain(word(&mut cursor)?),
    };
    cursor.skip_blanks();
    let rest = cursor.piece(cursor.at, line.len());
    let part = match keyword {
        "HELP" => MetadataPart::Help(Text::quoted(rest, rest.contains('\\'))),
        "UNIT" => MetadataPart::Unit(Text::plain(rest)),
        "TYPE" => MetadataPart::Type(match rest {
            "counter" => Kind::Counter,
            "gauge" => Kind::Gauge,
            "histogram" => Kind::Histogram,
            "gaugehistogram" => Kind::GaugeHistogram,
            "summary" => Kind::Summary,
            "info" => Kind::Info,
            "stateset" => Kind::StateSet,
            "untyped" | "unknown" => Kind::Unknown,
            _ => return None,
        }),
        _ => return None,
    };
    Some(Metadata { family, part })
}

fn word<'t>(cursor: &mut Cursor<'t>) -> Option<&'t str> {
    cursor.skip_blanks();
    let start = cursor.at;
    let rest = &cursor.line[start..];
    let length = rest
        .iter()
        .position(|byte| matches!(byte, b' ' | b'\t'))
        .unwrap_or(rest.len());
    cursor.at += length;
    (length > 0).then(|| cursor.piece(start, start + length))
}
