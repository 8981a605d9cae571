//! One sample line, after its name was selected.

use crate::error::Problem;
use crate::limits::Limits;
use crate::number;
use crate::sample::{Label, Text};
use crate::scan;

/// What a line holds besides its labels, which are in the buffer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Line {
    /// How many of the buffered labels belong to the series; the others are the exemplar's.
    pub(crate) labels: usize,
    pub(crate) value: f64,
    pub(crate) timestamp: Option<f64>,
    pub(crate) exemplar: Option<(f64, Option<f64>)>,
}

/// A position within a line, and the line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cursor<'t> {
    pub(crate) line: &'t [u8],
    text: &'t str,
    pub(crate) at: usize,
}

/// What is wrong, and at which byte of the line, from 0.
pub(crate) type Fault = (Problem, usize);

/// Bytes that a plain metric name may have.
const IN_NAMES: [bool; 256] = {
    let mut allowed = [false; 256];
    let mut byte = 0_usize;
    while byte < 128 {
        #[expect(clippy::cast_possible_truncation, reason = "below 128")]
        let character = byte as u8;
        allowed[byte] = character.is_ascii_alphanumeric() || character == b'_' || character == b':';
        byte += 1;
    }
    allowed
};

/// Whether it is `[a-zA-Z_:][a-zA-Z0-9_:]*`.
pub(crate) fn is_name(name: &[u8]) -> bool {
    // Without an early exit: nearly every name passes.
    let all = name
        .iter()
        .fold(true, |all, byte| all & IN_NAMES[usize::from(*byte)]);
    all && name.first().is_some_and(|byte| !byte.is_ascii_digit())
}

/// Where the string that starts at `start`, behind its opening quote, has its closing quote, and whether it has escapes.
pub(crate) fn closing_quote(line: &[u8], start: usize) -> Option<(usize, bool)> {
    let mut at = start;
    let mut escaped = false;
    loop {
        at += scan::find_either(line.get(at..)?, b'"', b'\\')?;
        if line[at] == b'"' {
            return Some((at, escaped));
        }
        escaped = true;
        at += 2;
    }
}

impl<'t> Cursor<'t> {
    /// A cursor at byte `at` of a line, which must be UTF-8.
    pub(crate) fn new(line: &'t [u8], at: usize) -> Result<Self, Fault> {
        match std::str::from_utf8(line) {
            Ok(text) => Ok(Self { line, text, at }),
            Err(error) => Err((Problem::Utf8, error.valid_up_to())),
        }
    }

    pub(crate) fn peek(&self) -> Option<u8> {
        self.line.get(self.at).copied()
    }

    pub(crate) fn skip_blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t')) {
            self.at += 1;
        }
    }

    fn fault<T>(&self, problem: Problem) -> Result<T, Fault> {
        Err((problem, self.at))
    }

    /// The string at the quote under the cursor, and moves behind its closing quote.
    pub(crate) fn quoted(&mut self) -> Result<Text<'t>, Fault> {
        if self.peek() != Some(b'"') {
            return self.fault(Problem::Quote);
        }
        let start = self.at + 1;
        let Some((end, escaped)) = closing_quote(self.line, start) else {
            return self.fault(Problem::Unterminated);
        };
        self.at = end + 1;
        Ok(Text::quoted(self.piece(start, end), escaped))
    }

    /// A piece of the line between two ASCII characters.
    pub(crate) fn piece(&self, start: usize, end: usize) -> &'t str {
        self.text.get(start..end).unwrap_or_default()
    }

    /// Labels up to the closing brace, the cursor standing behind the opening one. Quoted strings that are no label
    /// are metric names.
    fn labels(
        &mut self,
        labels: &mut Vec<Label<'t>>,
        limit: usize,
    ) -> Result<Option<Text<'t>>, Fault> {
        let mut metric = None;
        loop {
            self.skip_blanks();
            if self.peek() == Some(b'}') {
                self.at += 1;
                return Ok(metric);
            }
            let start = self.at;
            let name = match self.peek() {
                Some(b'"') => {
                    let name = self.quoted()?;
                    self.skip_blanks();
                    if matches!(self.peek(), Some(b',' | b'}')) {
                        if metric.replace(name).is_some() {
                            return Err((Problem::QuotedName, start));
                        }
                        self.separator()?;
                        continue;
                    }
                    name
                }
                _ => self.label_name()?,
            };
            self.skip_blanks();
            if self.peek() != Some(b'=') {
                return self.fault(Problem::Equals);
            }
            self.at += 1;
            self.skip_blanks();
            let value = self.quoted()?;
            if labels.len() == limit {
                return Err((Problem::TooManyLabels { limit }, start));
            }
            labels.push(Label { name, value });
            self.separator()?;
        }
    }

    /// The metric name quoted between the braces, the cursor standing behind the opening one.
    pub(crate) fn metric_name(&mut self, limit: usize) -> Result<Option<Text<'t>>, Fault> {
        self.labels(&mut Vec::new(), limit)
    }

    /// Moves behind a comma, or to the closing brace.
    fn separator(&mut self) -> Result<(), Fault> {
        self.skip_blanks();
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                Ok(())
            }
            Some(b'}') => Ok(()),
            _ => self.fault(Problem::Separator),
        }
    }

    fn label_name(&mut self) -> Result<Text<'t>, Fault> {
        let start = self.at;
        let rest = &self.line[start..];
        let length = rest
            .iter()
            .take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_')
            .count();
        if length == 0 || rest[0].is_ascii_digit() {
            return self.fault(Problem::LabelName);
        }
        self.at += length;
        Ok(Text::plain(self.piece(start, start + length)))
    }

    /// The bytes up to the next blank or the end.
    fn token(&mut self) -> &'t [u8] {
        self.skip_blanks();
        let rest = &self.line[self.at..];
        let length = rest
            .iter()
            .position(|byte| matches!(byte, b' ' | b'\t'))
            .unwrap_or(rest.len());
        &rest[..length]
    }

    fn number(&mut self, absent: Problem, wrong: Problem) -> Result<f64, Fault> {
        let token = self.token();
        if token.is_empty() {
            return self.fault(absent);
        }
        let Some(value) = number::parse(token) else {
            return self.fault(wrong);
        };
        self.at += token.len();
        Ok(value)
    }

    fn timestamp(&mut self) -> Result<Option<f64>, Fault> {
        self.skip_blanks();
        match self.peek() {
            None | Some(b'#') => Ok(None),
            Some(_) => match number::parse(self.token()) {
                Some(timestamp) if timestamp.is_finite() => {
                    self.at += self.token().len();
                    Ok(Some(timestamp))
                }
                _ => self.fault(Problem::Timestamp),
            },
        }
    }

    fn end(&mut self) -> Result<(), Fault> {
        self.skip_blanks();
        if self.at < self.line.len() {
            self.fault(Problem::Trailing)
        } else {
            Ok(())
        }
    }

    /// Everything behind the metric name; `named` says whether it stood before the braces.
    pub(crate) fn sample(
        &mut self,
        named: bool,
        labels: &mut Vec<Label<'t>>,
        limits: &Limits,
    ) -> Result<Line, Fault> {
        labels.clear();
        self.skip_blanks();
        if self.peek() == Some(b'{') {
            let brace = self.at;
            self.at += 1;
            if self.labels(labels, limits.labels)?.is_some() == named {
                return Err((Problem::QuotedName, brace));
            }
        }
        let count = labels.len();
        let value = self.number(Problem::NoValue, Problem::Value)?;
        let timestamp = self.timestamp()?;
        self.skip_blanks();
        let exemplar = match self.peek() {
            Some(b'#') => Some(self.exemplar(labels, limits)?),
            _ => None,
        };
        self.end()?;
        Ok(Line {
            labels: count,
            value,
            timestamp,
            exemplar,
        })
    }

    fn exemplar(
        &mut self,
        labels: &mut Vec<Label<'t>>,
        limits: &Limits,
    ) -> Result<(f64, Option<f64>), Fault> {
        self.at += 1;
        self.skip_blanks();
        if self.peek() != Some(b'{') {
            return self.fault(Problem::Exemplar);
        }
        self.at += 1;
        if self.labels(labels, limits.labels)?.is_some() {
            return self.fault(Problem::QuotedName);
        }
        let value = self.number(Problem::NoValue, Problem::Value)?;
        Ok((value, self.timestamp()?))
    }
}
