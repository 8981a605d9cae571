//! Kubernetes' notation for amounts: `500m`, `1.5`, `64Gi`, `2e3`.

/// Why a text is not an amount.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an amount such as 500m, 1.5 or 64Gi")]
pub struct QuantityError {
    /// The text.
    pub text: String,
}

/// Reads an amount in thousandths of its unit, rounded up: what a pod asks for is never taken for less.
///
/// Amounts beyond the range become its end.
///
/// # Errors
/// The text is not in Kubernetes' notation.
pub fn parse_milli(text: &str) -> Result<i64, QuantityError> {
    read(text).ok_or_else(|| QuantityError {
        text: text.to_owned(),
    })
}

/// Digits that are looked at; more than any amount that can be told apart has.
const DIGITS: usize = 19;

fn read(text: &str) -> Option<i64> {
    let (negative, unsigned) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let end = unsigned
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.len() + fraction.len() == 0 || fraction.contains('.') {
        return None;
    }
    let (binary, decimal) = scale(suffix)?;
    // The value is digits × 2^binary × 10^(decimal - fraction), and thousandths are wanted.
    let digits: String = whole
        .chars()
        .chain(fraction.chars())
        .skip_while(|digit| *digit == '0')
        .collect();
    let kept = &digits[..digits.len().min(DIGITS)];
    let dropped = i32::try_from(digits.len() - kept.len()).ok()?;
    let exponent = decimal + 3 + dropped - i32::try_from(fraction.len()).ok()?;
    let rounds_up = digits[kept.len()..].bytes().any(|digit| digit != b'0');
    let value: i128 = if kept.is_empty() {
        0
    } else {
        kept.parse::<i128>().ok()? + i128::from(rounds_up)
    };
    let magnitude = multiply(value, binary, exponent);
    let signed = if negative { -magnitude } else { magnitude };
    Some(i64::try_from(signed).unwrap_or(if negative { i64::MIN } else { i64::MAX }))
}

/// `value × 2^binary × 10^exponent`, rounded up, saturating.
fn multiply(value: i128, binary: u32, exponent: i32) -> i128 {
    if value == 0 {
        return 0;
    }
    let scaled = value.saturating_mul(1 << binary);
    let power = 10_i128.checked_pow(exponent.unsigned_abs());
    match (exponent >= 0, power) {
        (true, Some(power)) => scaled.saturating_mul(power),
        (true, None) => i128::MAX,
        (false, Some(power)) => scaled / power + i128::from(scaled % power != 0),
        (false, None) => 1,
    }
}

/// Powers of two and of ten that a suffix stands for.
fn scale(suffix: &str) -> Option<(u32, i32)> {
    let known = match suffix {
        "" => (0, 0),
        "n" => (0, -9),
        "u" => (0, -6),
        "m" => (0, -3),
        "k" => (0, 3),
        "M" => (0, 6),
        "G" => (0, 9),
        "T" => (0, 12),
        "P" => (0, 15),
        "E" => (0, 18),
        "Ki" => (10, 0),
        "Mi" => (20, 0),
        "Gi" => (30, 0),
        "Ti" => (40, 0),
        "Pi" => (50, 0),
        "Ei" => (60, 0),
        exponent => {
            let digits = exponent.strip_prefix(['e', 'E'])?;
            let unsigned = digits.strip_prefix(['+', '-']).unwrap_or(digits);
            let is_number =
                !unsigned.is_empty() && unsigned.bytes().all(|digit| digit.is_ascii_digit());
            // Beyond this every amount is 0 or the end of the range.
            let exponent = if is_number {
                digits.parse::<i32>().unwrap_or(1000).clamp(-1000, 1000)
            } else {
                return None;
            };
            (0, exponent)
        }
    };
    Some(known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(text: &str, milli: i64) {
        assert_eq!(parse_milli(text), Ok(milli), "{text}");
    }

    #[test]
    fn every_notation_is_read() {
        check("0", 0);
        check("1", 1000);
        check("500m", 500);
        check("1.5", 1500);
        check(".5", 500);
        check("5.", 5000);
        check("+3", 3000);
        check("-1", -1000);
        check("2k", 2_000_000);
        check("1M", 1_000_000_000);
        check("1Ki", 1_024_000);
        check("1.5Gi", 1_610_612_736_000);
        check("1P", 1_000_000_000_000_000_000);
        check("1E", i64::MAX);
        check("2e3", 2_000_000);
        check("2E3", 2_000_000);
        check("1e-2", 10);
        check("12E+1", 120_000);
    }

    #[test]
    fn what_is_finer_than_a_thousandth_is_rounded_up() {
        check("1n", 1);
        check("100u", 1);
        check("1.0001", 1001);
        check("0.0000000000000000000000000000000001", 1);
        check("1.0000000000000000000000000000000001", 1001);
        check("1e-999999999", 1);
    }

    #[test]
    fn amounts_beyond_the_range_become_its_end() {
        check("99999999999999999999", i64::MAX);
        check("9Ei", i64::MAX);
        check("1e999999999999", i64::MAX);
        check("-1e30", i64::MIN);
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "", "-", "m", ".", "1.2.3", "1 Gi", "1gi", "1e", "1e1.5", "0x10", "1Kb", "ten", "--1",
        ] {
            assert!(parse_milli(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn whole_thousandths_are_exact(milli in 0i64..1_000_000_000_000) {
            prop_assert_eq!(parse_milli(&format!("{milli}m")), Ok(milli));
            prop_assert_eq!(parse_milli(&format!("{}.{:03}", milli / 1000, milli % 1000)), Ok(milli));
        }

        #[test]
        fn no_text_panics(text in "[-+0-9.a-zA-Z]{0,50}") {
            parse_milli(&text).ok();
        }
    }
}
