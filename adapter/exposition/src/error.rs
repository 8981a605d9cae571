//! What can be wrong, and where.

use std::fmt;

/// A place in a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Line, from 1.
    pub line: u64,
    /// Byte within the line, from 1.
    pub column: u64,
}

/// The whole body is refused. Samples delivered before a limit was reached must not be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Larger than [`Limits::body_bytes`](crate::Limits::body_bytes).
    #[error("the body has {bytes} bytes, more than the limit of {limit} (body_bytes)")]
    BodyTooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// More sample lines than [`Limits::samples`](crate::Limits::samples).
    #[error("more samples than the limit of {limit} (samples) at {at}")]
    TooManySamples {
        /// The limit.
        limit: u64,
        /// The first sample beyond it.
        at: Position,
    },
    /// It is something else.
    #[error("the body is {found}, not an exposition")]
    NotAnExposition {
        /// What it looks like.
        found: Found,
    },
}

/// What a body looks like that is no exposition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Found {
    /// Starts with `<`.
    Html,
    /// Starts as a JSON object or array does.
    Json,
    /// Starts with gzip's magic number; it was not inflated.
    Gzip,
}

/// A line that breaks the format, and was skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {problem}")]
pub struct Malformed {
    /// Where.
    pub at: Position,
    /// What is wrong there.
    pub problem: Problem,
}

/// What is wrong with a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Problem {
    /// The metric name is empty or has a character that only quoted names may have.
    #[error("not a metric name")]
    Name,
    /// The metric name is longer than [`Limits::name_bytes`](crate::Limits::name_bytes).
    #[error("the metric name is longer than the limit of {limit} bytes (name_bytes)")]
    NameTooLong {
        /// The limit.
        limit: usize,
    },
    /// The line is longer than [`Limits::line_bytes`](crate::Limits::line_bytes).
    #[error("the line is longer than the limit of {limit} bytes (line_bytes)")]
    LineTooLong {
        /// The limit.
        limit: usize,
    },
    /// More labels than [`Limits::labels`](crate::Limits::labels).
    #[error("more labels than the limit of {limit} (labels)")]
    TooManyLabels {
        /// The limit.
        limit: usize,
    },
    /// A label name is missing or has a character that only quoted names may have.
    #[error("not a label name")]
    LabelName,
    /// A label name is not followed by `=`.
    #[error("'=' expected after the label name")]
    Equals,
    /// A label value or quoted name does not begin with a quote.
    #[error("a quoted string expected")]
    Quote,
    /// A quoted string does not end on its line.
    #[error("the quoted string does not end")]
    Unterminated,
    /// A label is followed neither by a comma nor by the closing brace.
    #[error("',' or '}}' expected after the label")]
    Separator,
    /// Quoted names inside the braces: none where one is needed, or a second one.
    #[error("exactly one metric name expected")]
    QuotedName,
    /// Bytes that are not UTF-8 in a name or a label.
    #[error("not UTF-8")]
    Utf8,
    /// There is no value.
    #[error("a value expected")]
    NoValue,
    /// The value is not a number.
    #[error("not a number")]
    Value,
    /// The timestamp is not a number.
    #[error("not a timestamp")]
    Timestamp,
    /// Something follows where the line should end.
    #[error("the end of the line expected")]
    Trailing,
    /// The exemplar does not start with its labels.
    #[error("the labels of the exemplar expected")]
    Exemplar,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Html => "HTML",
            Self::Json => "JSON",
            Self::Gzip => "gzip data",
        })
    }
}
