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
    pub(crate) at: usize,
}

/// What is wrong, and at which byte of the line, from 0.
pub(crate) type Fault = (Problem, usize);

/// A name is `[a-zA-Z_:][a-zA-Z0-9_:]*`; a label name has no colon.
pub(crate) fn is_name(name: &[u8], colon: bool) -> bool {
    let allowed =
        |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || (colon && *byte == b':');
    name.first()
        .is_some_and(|byte| allowed(byte) && !byte.is_ascii_digit())
        && name.iter().all(allowed)
}

impl<'t> Cursor<'t> {
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
        let mut end = start;
        let mut escaped = false;
        loop {
            match scan::find_either(&self.line[end.min(self.line.len())..], b'"', b'\\') {
                None => return self.fault(Problem::Unterminated),
                Some(offset) if self.line[end + offset] == b'"' => {
                    end += offset;
                    break;
                }
                Some(offset) => {
                    escaped = true;
                    end += offset + 2;
                }
            }
        }
        let Ok(raw) = std::str::from_utf8(&self.line[start..end]) else {
            return self.fault(Problem::Utf8);
        };
        self.at = end + 1;
        Ok(Text::quoted(raw, escaped))
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
        let rest = &self.line[self.at..];
        let length = rest
            .iter()
            .take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_')
            .count();
        let name = &rest[..length];
        // ASCII by construction.
        match std::str::from_utf8(name) {
            Ok(text) if is_name(name, false) => {
                self.at += length;
                Ok(Text::plain(text))
            }
            _ => self.fault(Problem::LabelName),
        }
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
        if self.line.len() > limits.line_bytes {
            return Err((
                Problem::LineTooLong {
                    limit: limits.line_bytes,
                },
                limits.line_bytes,
            ));
        }
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
