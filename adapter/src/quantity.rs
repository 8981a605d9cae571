//! Floating-point values as Kubernetes quantities.
//!
//! Knows the canonical form that `resource.Quantity` prints, and the range within which the HPA's own arithmetic is sound. Reading
//! quantities is not needed here.

/// The greatest value that is sent. Above 9.22e15 the HPA's thousandths no longer fit 64 bits and wrap around, to zero or below.
pub(crate) const MAX: f64 = 9e15;

/// A quantity to send, and whether the value had to be changed for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Quantity {
    /// The canonical text, with thousandths where the value has a fraction.
    pub text: String,
    /// The same number in thousandths, which is what the HPA computes with.
    pub thousandths: i64,
    /// Why the text is not the value.
    pub clamped: Option<Clamped>,
}

/// How a value was brought into range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clamped {
    /// It was below zero, and zero is sent: the HPA takes a negative sum for an overflow and scales to the maximum.
    Negative,
    /// It was above [`MAX`].
    TooLarge,
}

/// The quantity of a value; `None` for NaN and infinities, which are no values.
///
/// Thousandths are rounded to the nearest, ties to even, as the HPA computes in thousandths; but a value above zero never becomes 0: it is
/// at least `1m`, so that a small backlog does not vanish.
#[must_use]
pub(crate) fn quantity(value: f64) -> Option<Quantity> {
    if !value.is_finite() {
        return None;
    }
    if value < 0.0 {
        return Some(Quantity {
            text: "0".to_owned(),
            thousandths: 0,
            clamped: Some(Clamped::Negative),
        });
    }
    let clamped = (value > MAX).then_some(Clamped::TooLarge);
    let rounded = (value.min(MAX) * 1000.0).round_ties_even();
    #[expect(clippy::cast_possible_truncation, reason = "0 to 9e18 fits i64")]
    let mut thousandths = rounded as i64;
    if thousandths == 0 && value > 0.0 {
        thousandths = 1;
    }
    Some(Quantity {
        text: canonical(thousandths),
        thousandths,
        clamped,
    })
}

impl Quantity {
    /// The number that the text stands for, where a protocol sends numbers.
    #[must_use]
    pub(crate) fn number(&self) -> f64 {
        #[expect(
            clippy::cast_precision_loss,
            reason = "above 2^53 thousandths there are none to lose"
        )]
        let thousandths = self.thousandths as f64;
        thousandths / 1000.0
    }
}

/// The canonical text of thousandths, `0..`.
fn canonical(thousandths: i64) -> String {
    if thousandths % 1000 != 0 {
        return format!("{thousandths}m");
    }
    let mut number = thousandths / 1000;
    let mut suffixes = ["", "k", "M", "G", "T", "P", "E"].into_iter();
    let mut suffix = suffixes.next().unwrap_or_default();
    while number != 0 && number % 1000 == 0 {
        let Some(next) = suffixes.next() else { break };
        number /= 1000;
        suffix = next;
    }
    format!("{number}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: f64) -> String {
        quantity(value).expect("finite").text
    }

    #[test]
    fn values_take_their_canonical_form() {
        for (value, expected) in [
            (0.0, "0"),
            (-0.0, "0"),
            (0.0004, "1m"),
            (0.0015, "2m"),
            (0.001, "1m"),
            (1.0, "1"),
            (1.5, "1500m"),
            (37.0, "37"),
            (999.9996, "1k"),
            (999.9994, "999999m"),
            (1000.0, "1k"),
            (1001.0, "1001"),
            (1500.0, "1500"),
            (1.5e6, "1500k"),
            (1e15, "1P"),
            (12.3456, "12346m"),
        ] {
            assert_eq!(text(value), expected, "{value}");
        }
    }

    #[test]
    fn what_is_out_of_range_is_clamped_and_says_so() {
        assert_eq!(
            quantity(-3.0),
            Some(Quantity {
                text: "0".into(),
                thousandths: 0,
                clamped: Some(Clamped::Negative)
            })
        );
        assert_eq!(
            quantity(1e300),
            Some(Quantity {
                text: "9P".into(),
                thousandths: 9_000_000_000_000_000_000,
                clamped: Some(Clamped::TooLarge)
            })
        );
        assert_eq!(
            quantity(9e15),
            Some(Quantity {
                text: "9P".into(),
                thousandths: 9_000_000_000_000_000_000,
                clamped: None
            })
        );
    }

    #[test]
    fn no_number_is_no_value() {
        assert_eq!(quantity(f64::NAN), None);
        assert_eq!(quantity(f64::INFINITY), None);
        assert_eq!(quantity(f64::NEG_INFINITY), None);
    }

    #[test]
    fn what_is_sent_reads_back_as_the_value_in_thousandths() {
        for value in [
            0.0,
            0.001,
            0.25,
            1.0,
            7.125,
            1234.5,
            1e6,
            123_456_789.0,
            8.999e15,
        ] {
            let read: kube_quantity::ParsedQuantity =
                text(value).as_str().try_into().expect("a quantity");
            let back = read.to_bytes_f64().expect("a number");
            assert!(
                (back - value).abs() <= 0.0005 + value * 1e-15,
                "{value} read as {back}"
            );
            let number = quantity(value).expect("finite").number();
            assert!(
                (back - number).abs() <= value * 1e-15,
                "{back} as text, {number} as a number"
            );
        }
    }
}
