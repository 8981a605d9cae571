//! Numbers as the text formats spell them.

const POWERS: [f64; 16] = [
    1.0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
];

/// Reads a value: a decimal number with or without exponent, `NaN`, `Inf` or `Infinity`, signed, in any case.
///
/// Go's hexadecimal and underscored numbers are refused, as Prometheus refuses them.
pub(crate) fn parse(token: &[u8]) -> Option<f64> {
    short_decimal(token).or_else(|| std::str::from_utf8(token).ok()?.parse().ok())
}

/// Reads `-?[0-9]*(\.[0-9]*)?` with at most 15 digits, which is nearly every number sent.
///
/// Exact: both the digits and the power of ten are floating-point numbers without error, so their quotient is the
/// nearest number to the decimal one (Clinger 1990).
fn short_decimal(token: &[u8]) -> Option<f64> {
    let (negative, digits) = match token {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    let mut mantissa = 0_u64;
    let mut count = 0_usize;
    let mut point = None;
    for byte in digits {
        match byte {
            b'0'..=b'9' => {
                mantissa = mantissa * 10 + u64::from(byte - b'0');
                count += 1;
            }
            b'.' if point.is_none() => point = Some(count),
            _ => return None,
        }
    }
    if count == 0 || count > 15 {
        return None;
    }
    #[expect(clippy::cast_precision_loss, reason = "15 digits are exact in 53 bits")]
    let value = mantissa as f64 / POWERS[point.map_or(0, |point| count - point)];
    Some(if negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn spellings() {
        for (text, expected) in [
            ("0", 0.0),
            ("5", 5.0),
            ("5.", 5.0),
            (".5", 0.5),
            ("-0.25", -0.25),
            ("+5", 5.0),
            ("1e3", 1000.0),
            ("6.02E23", 6.02e23),
            ("4.9e-324", 5e-324),
            ("18446744073709551615", 18_446_744_073_709_551_615.0),
            ("Inf", f64::INFINITY),
            ("+inf", f64::INFINITY),
            ("-INF", f64::NEG_INFINITY),
            ("999999999999999", 999_999_999_999_999.0),
        ] {
            assert_eq!(
                parse(text.as_bytes()).map(f64::to_bits),
                Some(expected.to_bits()),
                "{text}"
            );
        }
        assert!(parse(b"NaN").is_some_and(f64::is_nan));
        assert!(parse(b"nan").is_some_and(f64::is_nan));
        assert_eq!(parse(b"-0").map(f64::to_bits), Some((-0.0_f64).to_bits()));
        for text in [
            "", "-", ".", "-.", "1.2.3", "0x1p4", "1_000", "five", "1e", "--1", "1 ", "\u{661}",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn short_decimals_are_read_as_the_standard_library_does(text in "-?[0-9]{0,16}(\\.[0-9]{0,16})?") {
            prop_assert_eq!(parse(text.as_bytes()).map(f64::to_bits), text.parse::<f64>().ok().map(f64::to_bits));
        }
    }
}
