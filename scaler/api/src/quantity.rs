//! Numbers as they are written in a policy: exact decimals and durations with a unit.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Fractional digits that a [`Decimal`] keeps.
const FRACTION_DIGITS: u32 = 6;
const SCALE: u64 = 1_000_000;

/// A decimal number of at least zero with at most six digits behind the point, kept exactly.
///
/// Written as a number without a fraction (`2500`) or as text (`"0.25"`); read from both. Range: 0 to 9 × 10¹².
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Decimal {
    millionths: u64,
}

/// The text is not a [`Decimal`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a decimal number: write digits with at most {FRACTION_DIGITS} behind a point, such as 2500 or \"0.25\""
)]
pub struct DecimalError(String);

impl Decimal {
    /// A whole number.
    #[must_use]
    pub const fn whole(value: u32) -> Self {
        Self {
            millionths: value as u64 * SCALE,
        }
    }

    /// The nearest decimal to `value`, with `digits` behind the point (at most six); values below zero, not-a-number and infinities have none.
    #[must_use]
    pub fn rounded(value: f64, digits: u32) -> Option<Self> {
        let step = 10_u64.pow(FRACTION_DIGITS - digits.min(FRACTION_DIGITS));
        let steps = (value * SCALE as f64 / step as f64).round();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "range is checked in the line before"
        )]
        (0.0..9e18 / step as f64).contains(&steps).then(|| Self {
            millionths: steps as u64 * step,
        })
    }

    /// The nearest floating-point number.
    #[must_use]
    pub fn as_f64(self) -> f64 {
        self.millionths as f64 / SCALE as f64
    }
}

impl FromStr for Decimal {
    type Err = DecimalError;

    fn from_str(text: &str) -> Result<Self, DecimalError> {
        let error = || DecimalError(text.to_owned());
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty()
            || whole.len() > 12
            || fraction.len() > FRACTION_DIGITS as usize
            || !digits(whole)
            || !digits(fraction)
        {
            return Err(error());
        }
        if text.ends_with('.') {
            return Err(error());
        }
        let padded = format!(
            "{whole}{fraction:0<width$}",
            width = FRACTION_DIGITS as usize
        );
        padded
            .parse()
            .map(|millionths| Self { millionths })
            .map_err(|_| error())
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, fraction) = (self.millionths / SCALE, self.millionths % SCALE);
        if fraction == 0 {
            return write!(f, "{whole}");
        }
        let digits = format!("{fraction:06}");
        write!(f, "{whole}.{}", digits.trim_end_matches('0'))
    }
}

impl Serialize for Decimal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.millionths.is_multiple_of(SCALE) {
            serializer.serialize_u64(self.millionths / SCALE)
        } else {
            serializer.collect_str(self)
        }
    }
}

impl<'de> Deserialize<'de> for Decimal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Decimal;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number or a decimal as text")
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Decimal, E> {
                value.to_string().parse().map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Decimal, E> {
                value.to_string().parse().map_err(E::custom)
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<Decimal, E> {
                value.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl JsonSchema for Decimal {
    fn schema_name() -> Cow<'static, str> {
        "Decimal".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        decimal(r"^[0-9]{1,12}([.][0-9]{1,6})?$", 0, 999_999_999_999)
    }
}

/// A whole number or a decimal as text. Ranges are a pattern and bounds, not rules: the API server takes such a value to be as long as a whole request when
/// it estimates what a rule costs.
fn decimal(pattern: &str, minimum: i64, maximum: i64) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "pattern": pattern,
        "minimum": minimum,
        "maximum": maximum,
    })
}

/// Schema of a decimal above 0.
pub(crate) fn positive(_: &mut SchemaGenerator) -> Schema {
    decimal(
        r"^([0-9]{0,11}[1-9][0-9]{0,11}([.][0-9]{1,6})?|[0-9]{1,12}[.][0-9]{0,5}[1-9][0-9]{0,5})$",
        1,
        999_999_999_999,
    )
}

/// Schema of a decimal from 0 to 1.
pub(crate) fn share(_: &mut SchemaGenerator) -> Schema {
    decimal(r"^(0([.][0-9]{1,6})?|1([.]0{1,6})?)$", 0, 1)
}

/// Schema of a decimal above 0 and up to 1.
pub(crate) fn positive_share(_: &mut SchemaGenerator) -> Schema {
    decimal(r"^(0[.][0-9]{0,5}[1-9][0-9]{0,5}|1([.]0{1,6})?)$", 1, 1)
}

/// A length of time as Go and Kubernetes write it: `500us`, `1s`, `2m30s`.
///
/// Units: ns, us (or µs), ms, s, m, h. Range: 0 to about 584 years; resolution 1 ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Duration(std::time::Duration);

/// The text is not a [`Duration`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a duration: write a number with a unit (ns, us, ms, s, m or h), such as 500us, 120s or 5m"
)]
pub struct DurationError(String);

impl From<std::time::Duration> for Duration {
    fn from(duration: std::time::Duration) -> Self {
        Self(duration)
    }
}

impl From<Duration> for std::time::Duration {
    fn from(duration: Duration) -> Self {
        duration.0
    }
}

impl Duration {
    /// Whole seconds.
    #[must_use]
    pub const fn from_secs(seconds: u64) -> Self {
        Self(std::time::Duration::from_secs(seconds))
    }
}

const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

impl FromStr for Duration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, DurationError> {
        let error = || DurationError(text.to_owned());
        let mut rest = text;
        let mut nanos: u128 = 0;
        if text.is_empty() || text.len() > 32 {
            return Err(error());
        }
        while !rest.is_empty() {
            let (number, tail) = rest.split_at(
                rest.find(|c: char| !c.is_ascii_digit() && c != '.')
                    .ok_or_else(error)?,
            );
            let (unit, tail) = tail.split_at(
                tail.find(|c: char| c.is_ascii_digit())
                    .unwrap_or(tail.len()),
            );
            let &(_, nanos_per_unit) = UNITS
                .iter()
                .find(|(name, _)| *name == unit)
                .ok_or_else(error)?;
            nanos += part(number, nanos_per_unit).ok_or_else(error)?;
            rest = tail;
        }
        let nanos = u64::try_from(nanos).map_err(|_| error())?;
        Ok(Self(std::time::Duration::from_nanos(nanos)))
    }
}

/// `number` (digits, perhaps with a point) times the unit, in nanoseconds, cut off below one.
fn part(number: &str, nanos_per_unit: u64) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let fraction = &fraction[..fraction.len().min(15)];
    if whole.is_empty() || whole.len() > 18 || fraction.contains('.') || number.ends_with('.') {
        return None;
    }
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    Some(digits * u128::from(nanos_per_unit) / 10_u128.pow(u32::try_from(fraction.len()).ok()?))
}

impl fmt::Display for Duration {
    /// The largest unit that gives a whole number; `0s` for nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        let whole = UNITS
            .iter()
            .rev()
            .filter(|(name, _)| name.is_ascii())
            .find(|(_, unit)| nanos.is_multiple_of(u128::from(*unit)));
        match whole {
            Some((name, unit)) if nanos > 0 => write!(f, "{}{name}", nanos / u128::from(*unit)),
            _ => f.write_str("0s"),
        }
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for Duration {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": 32,
            "x-kubernetes-validations": [{
                "rule": "self.matches('^([0-9]{1,18}([.][0-9]+)?(ns|us|\u{b5}s|\u{3bc}s|ms|s|m|h))+$')",
                "messageExpression": "'value \"' + self + '\" is not a duration: write a number with a unit (ns, us, ms, s, m or h), such as 500us, 120s or 5m'",
            }],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_exact_and_round_trip() {
        for (text, canonical) in [
            ("0", "0"),
            ("2500", "2500"),
            ("0.25", "0.25"),
            ("1.500000", "1.5"),
            ("999999999999.999999", "999999999999.999999"),
        ] {
            let value: Decimal = text.parse().unwrap();
            assert_eq!(value.to_string(), canonical);
            let json = serde_json::to_string(&value).unwrap();
            assert_eq!(
                serde_json::from_str::<Decimal>(&json).unwrap(),
                value,
                "{json}"
            );
        }
        for wrong in [
            "",
            ".5",
            "5.",
            "-1",
            "1e3",
            "0.1234567",
            "1234567890123",
            "1.2.3",
            "a",
        ] {
            assert!(wrong.parse::<Decimal>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn rounding_refuses_what_is_no_quantity() {
        assert_eq!(
            Decimal::rounded(0.123_456_7, 2).unwrap().to_string(),
            "0.12"
        );
        assert_eq!(
            Decimal::rounded(1e6 + 0.5, 0).unwrap().to_string(),
            "1000001"
        );
        for wrong in [f64::NAN, f64::INFINITY, -1.0] {
            assert_eq!(Decimal::rounded(wrong, 3), None);
        }
    }

    #[test]
    fn durations_read_and_print_with_units() {
        for (text, nanos, canonical) in [
            ("500us", 500_000, "500us"),
            ("500\u{b5}s", 500_000, "500us"),
            ("1s", 1_000_000_000, "1s"),
            ("1.5s", 1_500_000_000, "1500ms"),
            ("2m30s", 150_000_000_000, "150s"),
            ("0s", 0, "0s"),
            ("4h", 14_400_000_000_000, "4h"),
        ] {
            let value: Duration = text.parse().unwrap();
            assert_eq!(value.0.as_nanos(), nanos, "{text}");
            assert_eq!(value.to_string(), canonical);
        }
        for wrong in [
            "",
            "5",
            "5 s",
            "-5s",
            "s",
            "5x",
            "5.s",
            "1..5s",
            "99999999999999999999h",
            "999999999999h",
        ] {
            assert!(wrong.parse::<Duration>().is_err(), "{wrong}");
        }
    }
}
