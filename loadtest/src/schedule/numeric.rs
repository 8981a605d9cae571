//! The few special functions and conversions that schedules need.

use std::time::Duration;

/// ln Γ(x) for x > 0, by Lanczos' approximation (g = 7, nine terms; relative error below 1e-14).
#[must_use]
pub fn ln_gamma(x: f64) -> f64 {
    const TERMS: [f64; 9] = [
        0.999_999_999_999_809_9,
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    if x < 0.5 {
        let pi = std::f64::consts::PI;
        return (pi / (pi * x).sin().abs()).ln() - ln_gamma(1.0 - x);
    }
    let x = x - 1.0;
    let base = x + 7.5;
    let sum = TERMS
        .iter()
        .enumerate()
        .skip(1)
        .fold(TERMS[0], |sum, (index, term)| {
            sum + term / (x + f64::from(u32::try_from(index).unwrap_or(u32::MAX)))
        });
    0.5 * (2.0 * std::f64::consts::PI).ln() + (x + 0.5) * base.ln() - base + sum.ln()
}

/// The standard normal distribution function, Φ(z); absolute error below 1e-14 for |z| ≤ 6.
///
/// Series near zero, continued fraction in the tails (Abramowitz and Stegun 26.2.10 and 26.2.14).
#[must_use]
pub fn normal_cdf(z: f64) -> f64 {
    let density = (-0.5 * z * z).exp() / (2.0 * std::f64::consts::PI).sqrt();
    if z.abs() < 3.0 {
        let mut term = z;
        let mut sum = z;
        let mut odd = 1.0;
        while term.abs() > 1e-17 {
            odd += 2.0;
            term *= z * z / odd;
            sum += term;
        }
        return 0.5 + density * sum;
    }
    let mut fraction = z.abs();
    for step in (1..=60).rev() {
        fraction = z.abs() + f64::from(step) / fraction;
    }
    let tail = density / fraction;
    if z < 0.0 { tail } else { 1.0 - tail }
}

/// The standard normal quantile, Φ⁻¹(p) for 0 < p < 1, by bisection and Newton steps on [`normal_cdf`].
///
/// Clamped to ±8, beyond what a 53-bit uniform number can ask for.
#[must_use]
pub fn normal_quantile(p: f64) -> f64 {
    if p <= normal_cdf(-8.0) {
        return -8.0;
    }
    if p >= normal_cdf(8.0) {
        return 8.0;
    }
    let (mut low, mut high) = (-8.0, 8.0);
    let mut z: f64 = 0.0;
    for _ in 0..80 {
        let excess = normal_cdf(z) - p;
        if excess.abs() < 1e-15 {
            break;
        }
        if excess > 0.0 {
            high = z;
        } else {
            low = z;
        }
        let density = (-0.5 * z * z).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let newton = z - excess / density;
        z = if newton > low && newton < high {
            newton
        } else {
            0.5 * (low + high)
        };
        if high - low < 1e-14 {
            break;
        }
    }
    z
}

/// A count of tokens from a drawn number: rounded, at least 1, at most `u32::MAX`.
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to u32's range on the line before"
)]
pub fn tokens(value: f64) -> u32 {
    let clamped = value.round().clamp(1.0, f64::from(u32::MAX));
    if clamped.is_nan() { 1 } else { clamped as u32 }
}

/// The whole part of a non-negative number as an index; 0 for NaN and negatives, saturating above.
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates, and negatives and NaN become 0 as wanted"
)]
pub fn index(value: f64) -> usize {
    value as usize
}

/// Seconds as a duration; negatives and NaN become zero, the far future saturates.
#[must_use]
pub fn duration(seconds: f64) -> Duration {
    if seconds.is_nan() || seconds <= 0.0 {
        return Duration::ZERO;
    }
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ln_gamma_matches_factorials_and_the_half() {
        let mut factorial: f64 = 1.0;
        for n in 1..20_u32 {
            assert!(
                (ln_gamma(f64::from(n)) - factorial.ln()).abs() < 1e-12,
                "Γ({n})"
            );
            factorial *= f64::from(n);
        }
        assert!((ln_gamma(0.5) - std::f64::consts::PI.sqrt().ln()).abs() < 1e-13);
        assert!((ln_gamma(0.1) - 2.252_712_651_734_206).abs() < 1e-12);
    }

    #[test]
    fn the_normal_distribution_matches_tables_and_its_own_inverse() {
        for (z, p) in [
            (0.0, 0.5),
            (1.0, 0.841_344_746_068_542_9),
            (-1.959_963_984_540_054, 0.025),
            (3.5, 0.999_767_370_920_964_5),
        ] {
            assert!(
                (normal_cdf(z) - p).abs() < 1e-13,
                "Φ({z}) = {}",
                normal_cdf(z)
            );
        }
        for p in [1e-9, 1e-3, 0.1, 0.5, 0.77, 0.999, 1.0 - 1e-9] {
            assert!(
                (normal_cdf(normal_quantile(p)) - p).abs() < 1e-12,
                "p = {p}"
            );
        }
    }

    #[test]
    fn conversions_saturate() {
        assert_eq!(tokens(0.2), 1);
        assert_eq!(tokens(f64::NAN), 1);
        assert_eq!(tokens(1e30), u32::MAX);
        assert_eq!(tokens(10.6), 11);
        assert_eq!(duration(-1.0), Duration::ZERO);
        assert_eq!(duration(f64::INFINITY), Duration::MAX);
    }
}
