//! From real numbers to whole units.

/// The least number of whole units that is not below `units`. Rounding noise of a division does not cost a unit; what is not above zero is none,
/// and what is not finite is the most there can be.
#[must_use]
pub fn ceil_units(units: f64) -> u32 {
    whole((units - 1e-9 * units.abs().max(1.0)).ceil())
}

/// The largest number of whole units that is not above `units`, with the same care for noise.
pub(crate) fn floor_units(units: f64) -> u32 {
    whole((units + 1e-9 * units.abs().max(1.0)).floor())
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the range is checked"
)]
fn whole(units: f64) -> u32 {
    if units.is_nan() || units >= f64::from(u32::MAX) {
        u32::MAX
    } else if units > 0.0 {
        units as u32
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_noise_costs_no_unit() {
        assert_eq!(ceil_units(1.1 / 0.1), 11);
        assert_eq!(ceil_units(7500.0 / 2500.0), 3);
        assert_eq!(ceil_units(3.000_001), 4);
        assert_eq!(ceil_units(0.0), 0);
        assert_eq!(ceil_units(1e-3), 1);
        assert_eq!(ceil_units(f64::INFINITY), u32::MAX);
        assert_eq!(floor_units(0.3 / 0.1), 3);
        assert_eq!(floor_units(-1.0), 0);
    }
}
