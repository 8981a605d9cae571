//! Durations as Go writes them: `4h0m0s`, `90s`, `1.5h`, `300ms`.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A duration in Go's notation, printed the way Go prints it (`90s` becomes `1m30s`).
///
/// Range: that of 64 bit nanoseconds, about 292 years to either side. Whether a negative one makes sense is up to
/// the field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration {
    nanoseconds: i64,
}

/// Why a text is not a duration in Go's notation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseDurationError {
    /// There is no text.
    #[error("a duration is needed, such as 4h or 90s")]
    Empty,
    /// Something else where a number should be.
    #[error("{text:?} is not a duration: a number is missing before {rest:?}")]
    MissingNumber {
        /// The whole text.
        text: String,
        /// What stands in the number's place.
        rest: String,
    },
    /// A number without unit.
    #[error("{text:?} is not a duration: a unit is missing at the end (ns, us, ms, s, m or h)")]
    MissingUnit {
        /// The whole text.
        text: String,
    },
    /// A unit that does not exist.
    #[error("{text:?} is not a duration: unknown unit {unit:?} (ns, us, ms, s, m or h)")]
    UnknownUnit {
        /// The whole text.
        text: String,
        /// The unit.
        unit: String,
    },
    /// More than 64 bit nanoseconds.
    #[error("{text:?} is too long for a duration (about 292 years at most)")]
    TooLong {
        /// The whole text.
        text: String,
    },
}

const NANOSECONDS_PER_SECOND: i64 = 1_000_000_000;

impl GoDuration {
    /// A whole number of seconds; saturates at the ends of the range.
    pub const fn from_seconds(seconds: i64) -> Self {
        Self {
            nanoseconds: seconds.saturating_mul(NANOSECONDS_PER_SECOND),
        }
    }

    /// A number of nanoseconds.
    pub const fn from_nanoseconds(nanoseconds: i64) -> Self {
        Self { nanoseconds }
    }

    /// The length in nanoseconds.
    pub const fn as_nanoseconds(self) -> i64 {
        self.nanoseconds
    }

    /// Whether it is longer than nothing.
    pub const fn is_positive(self) -> bool {
        self.nanoseconds > 0
    }

    /// The length as a span of time; a negative one is zero.
    pub fn to_std(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.nanoseconds).unwrap_or(0))
    }
}

impl TryFrom<Duration> for GoDuration {
    type Error = std::num::TryFromIntError;

    fn try_from(duration: Duration) -> Result<Self, Self::Error> {
        Ok(Self {
            nanoseconds: i64::try_from(duration.as_nanos())?,
        })
    }
}

impl FromStr for GoDuration {
    type Err = ParseDurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (negative, unsigned) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        if unsigned.is_empty() {
            return Err(ParseDurationError::Empty);
        }
        if unsigned == "0" {
            return Ok(Self::default());
        }
        let mut total: i128 = 0;
        let mut rest = unsigned;
        while !rest.is_empty() {
            let (nanoseconds, behind) = read_component(text, rest)?;
            total = total.saturating_add(nanoseconds);
            rest = behind;
        }
        let signed = if negative { -total } else { total };
        let nanoseconds = i64::try_from(signed).map_err(|_| ParseDurationError::TooLong {
            text: text.to_owned(),
        })?;
        Ok(Self { nanoseconds })
    }
}

/// Reads one number with its unit and returns its nanoseconds and what follows.
fn read_component<'t>(text: &str, rest: &'t str) -> Result<(i128, &'t str), ParseDurationError> {
    let (whole, behind_whole) = split_digits(rest);
    let (fraction, behind_number) = match behind_whole.strip_prefix('.') {
        Some(behind_point) => split_digits(behind_point),
        None => ("", behind_whole),
    };
    if whole.is_empty() && fraction.is_empty() {
        return Err(ParseDurationError::MissingNumber {
            text: text.to_owned(),
            rest: rest.to_owned(),
        });
    }
    let unit_length = behind_number
        .find(|c: char| c.is_ascii_digit() || c == '.')
        .unwrap_or(behind_number.len());
    let (unit, behind) = behind_number.split_at(unit_length);
    if unit.is_empty() {
        return Err(ParseDurationError::MissingUnit {
            text: text.to_owned(),
        });
    }
    let scale: i128 = match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => {
            return Err(ParseDurationError::UnknownUnit {
                text: text.to_owned(),
                unit: unit.to_owned(),
            });
        }
    };
    let too_long = || ParseDurationError::TooLong {
        text: text.to_owned(),
    };
    // Nineteen digits hold any number in range, and keep the products below inside 128 bits.
    let whole = whole.trim_start_matches('0');
    if whole.len() > 19 {
        return Err(too_long());
    }
    let whole: i128 = if whole.is_empty() {
        0
    } else {
        whole.parse().map_err(|_| too_long())?
    };
    // Digits behind the fifteenth are below a nanosecond even in hours.
    let mut part: i128 = 0;
    let mut weight = scale;
    let mut remainder: i128 = 0;
    let mut denominator: i128 = 1;
    for digit in fraction.bytes().take(15) {
        remainder = remainder * 10 + i128::from(digit - b'0');
        denominator *= 10;
    }
    weight *= remainder;
    part += weight / denominator;
    Ok((whole * scale + part, behind))
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(
        text.find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len()),
    )
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.nanoseconds < 0 { "-" } else { "" };
        let nanoseconds = self.nanoseconds.unsigned_abs();
        match nanoseconds {
            0 => f.write_str("0s"),
            1..1_000 => write!(f, "{sign}{nanoseconds}ns"),
            1_000..1_000_000 => write!(
                f,
                "{sign}{}µs",
                Decimal {
                    value: nanoseconds,
                    digits: 3
                }
            ),
            1_000_000..1_000_000_000 => write!(
                f,
                "{sign}{}ms",
                Decimal {
                    value: nanoseconds,
                    digits: 6
                }
            ),
            _ => {
                let minutes = nanoseconds / 60_000_000_000;
                let seconds = Decimal {
                    value: nanoseconds % 60_000_000_000,
                    digits: 9,
                };
                match (minutes / 60, minutes % 60) {
                    (0, 0) => write!(f, "{sign}{seconds}s"),
                    (0, minutes) => write!(f, "{sign}{minutes}m{seconds}s"),
                    (hours, minutes) => write!(f, "{sign}{hours}h{minutes}m{seconds}s"),
                }
            }
        }
    }
}

/// A number with a fixed count of digits behind the point, printed without trailing zeros.
struct Decimal {
    value: u64,
    digits: u32,
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = 10_u64.pow(self.digits);
        write!(f, "{}", self.value / unit)?;
        let fraction = self.value % unit;
        if fraction > 0 {
            let digits = format!("{fraction:0width$}", width = self.digits as usize);
            write!(f, ".{}", digits.trim_end_matches('0'))?;
        }
        Ok(())
    }
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for GoDuration {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": 64,
            "pattern": r"^[-+]?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(text: &str, printed: &str) {
        let duration: GoDuration = text.parse().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(duration.to_string(), printed, "for {text}");
    }

    #[test]
    fn prints_what_go_prints() {
        check("4h", "4h0m0s");
        check("4h0m0s", "4h0m0s");
        check("90s", "1m30s");
        check("1.5h", "1h30m0s");
        check("1h30m", "1h30m0s");
        check("300ms", "300ms");
        check("1500ms", "1.5s");
        check("1us", "1µs");
        check("1.5µs", "1.5µs");
        check("999ns", "999ns");
        check("0", "0s");
        check("0s", "0s");
        check("-90s", "-1m30s");
        check("+5s", "5s");
        check(".5s", "500ms");
        check("1.s", "1s");
        check("1m0.000000001s", "1m0.000000001s");
        check("0.9999999999s", "999.999999ms");
        check("2562047h47m16.854775807s", "2562047h47m16.854775807s");
        check("-2562047h47m16.854775808s", "-2562047h47m16.854775808s");
    }

    #[test]
    fn refuses_what_go_refuses_and_says_why() {
        let why = |text: &str| text.parse::<GoDuration>().unwrap_err().to_string();
        assert_eq!(why(""), "a duration is needed, such as 4h or 90s");
        assert_eq!(why("-"), "a duration is needed, such as 4h or 90s");
        assert_eq!(
            why("4"),
            r#""4" is not a duration: a unit is missing at the end (ns, us, ms, s, m or h)"#
        );
        assert_eq!(
            why("4d"),
            r#""4d" is not a duration: unknown unit "d" (ns, us, ms, s, m or h)"#
        );
        assert_eq!(
            why("h4"),
            r#""h4" is not a duration: a number is missing before "h4""#
        );
        assert_eq!(
            why("1h."),
            r#""1h." is not a duration: a number is missing before ".""#
        );
        assert_eq!(
            why("2562048h"),
            r#""2562048h" is too long for a duration (about 292 years at most)"#
        );
        assert!(why("99999999999999999999h").contains("too long"));
        assert!(why("4 h").contains("unknown unit \" h\""));
    }

    proptest! {
        #[test]
        fn printing_and_reading_are_inverse(nanoseconds: i64) {
            let duration = GoDuration::from_nanoseconds(nanoseconds);
            prop_assert_eq!(duration.to_string().parse(), Ok(duration));
        }

        #[test]
        fn no_text_panics(text in "[-+0-9.a-zµ ]{0,40}") {
            text.parse::<GoDuration>().ok();
        }
    }
}
