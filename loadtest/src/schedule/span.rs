//! Durations as people write them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::NotValid;

/// A duration in a flag or a file: a number with its unit, `250ms`, `1.5s`, `10m`, `1h30m`.
///
/// A bare number is refused, because half of its readers would take it for another unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Span(pub Duration);

impl Span {
    /// Whole seconds.
    #[must_use]
    pub const fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }
}

impl FromStr for Span {
    type Err = NotValid;

    fn from_str(text: &str) -> Result<Self, NotValid> {
        const HINT: &str = "write a number with its unit, such as 250ms, 1.5s or 10m";
        let parsed: jiff::SignedDuration = text
            .trim()
            .parse()
            .map_err(|_| NotValid::new("a duration", text, HINT))?;
        Duration::try_from(parsed)
            .map(Self)
            .map_err(|_| NotValid::new("a duration", text, "it may not be negative"))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let nanoseconds = self.0.subsec_nanos();
        if nanoseconds == 0 && seconds > 0 && seconds.is_multiple_of(3600) {
            write!(formatter, "{}h", seconds / 3600)
        } else if nanoseconds == 0 && seconds > 0 && seconds.is_multiple_of(60) {
            write!(formatter, "{}m", seconds / 60)
        } else if seconds == 0 && nanoseconds > 0 && nanoseconds.is_multiple_of(1_000_000) {
            write!(formatter, "{}ms", nanoseconds / 1_000_000)
        } else if seconds == 0 && nanoseconds > 0 && nanoseconds.is_multiple_of(1_000) {
            write!(formatter, "{}us", nanoseconds / 1_000)
        } else if seconds == 0 && nanoseconds > 0 {
            write!(formatter, "{nanoseconds}ns")
        } else if nanoseconds == 0 {
            write!(formatter, "{seconds}s")
        } else {
            let fraction = format!("{nanoseconds:09}");
            write!(formatter, "{seconds}.{}s", fraction.trim_end_matches('0'))
        }
    }
}

impl TryFrom<String> for Span {
    type Error = NotValid;

    fn try_from(text: String) -> Result<Self, NotValid> {
        text.parse()
    }
}

impl From<Span> for String {
    fn from(span: Span) -> Self {
        span.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_survive_being_written_and_read() {
        for text in [
            "250ms",
            "1.5s",
            "10m",
            "2h",
            "0s",
            "90s",
            "500us",
            "7ns",
            "0.000000001s",
            "3600.25s",
            "1h30m",
        ] {
            let span: Span = text.parse().unwrap();
            assert_eq!(
                span.to_string().parse::<Span>().unwrap(),
                span,
                "{text} became {span}"
            );
        }
        assert_eq!(
            "1.5s".parse::<Span>().unwrap().0,
            Duration::from_millis(1500)
        );
        assert_eq!(
            "0.5ms".parse::<Span>().unwrap().0,
            Duration::from_micros(500)
        );
    }

    #[test]
    fn a_bare_number_and_a_negative_duration_are_refused_with_advice() {
        let error = "10".parse::<Span>().unwrap_err().to_string();
        assert_eq!(
            error,
            "\"10\" is not a duration: write a number with its unit, such as 250ms, 1.5s or 10m"
        );
        assert!(
            "-1s"
                .parse::<Span>()
                .unwrap_err()
                .to_string()
                .contains("may not be negative")
        );
    }
}
