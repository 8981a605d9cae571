//! Axes: from numbers to places, and which numbers to print.

/// A vertical axis.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
    /// Values with a line and a label.
    pub(crate) ticks: Vec<f64>,
}

impl Axis {
    /// From zero to a round number not below `highest`. `whole`: only whole numbers are printed.
    pub(crate) fn linear(highest: f64, whole: bool) -> Self {
        let highest = if highest > 0.0 && highest.is_finite() {
            highest
        } else {
            1.0
        };
        let mut step = round_step(highest / 4.0);
        if whole {
            step = step.max(1.0).ceil();
        }
        let count = (highest / step).ceil().max(1.0);
        let high = step * count;
        let ticks = std::iter::successors(Some(0.0), |tick| Some(tick + step))
            .take_while(|tick| *tick <= high + step * 0.001)
            .collect();
        Self {
            low: 0.0,
            high,
            logarithmic: false,
            ticks,
        }
    }

    /// Powers of ten around the values; for values that differ by orders of magnitude.
    pub(crate) fn logarithmic(lowest: f64, highest: f64) -> Self {
        let low = 10_f64.powf(lowest.log10().floor());
        let high = 10_f64.powf(highest.log10().ceil()).max(low * 10.0);
        let ticks = std::iter::successors(Some(low), |tick| Some(tick * 10.0))
            .take_while(|tick| *tick <= high * 1.001)
            .collect();
        Self {
            low,
            high,
            logarithmic: true,
            ticks,
        }
    }

    /// The axis that shows these values best: logarithmic where the largest would flatten the others.
    pub(crate) fn for_times(values: impl Iterator<Item = f64>) -> Self {
        let mut positive: Vec<f64> = values
            .filter(|value| *value > 0.0 && value.is_finite())
            .collect();
        positive.sort_by(f64::total_cmp);
        let (Some(lowest), Some(highest)) = (positive.first(), positive.last()) else {
            return Self::linear(1.0, false);
        };
        let middle = positive[positive.len() / 2];
        if highest / middle > 20.0 {
            Self::logarithmic(*lowest, *highest)
        } else {
            Self::linear(*highest, false)
        }
    }

    pub(crate) fn is_logarithmic(&self) -> bool {
        self.logarithmic
    }

    /// 0 at the bottom, 1 at the top; values outside are put on the border.
    pub(crate) fn place(&self, value: f64) -> f64 {
        let place = if self.logarithmic {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        place.clamp(0.0, 1.0)
    }
}

/// 1, 2 or 5 times a power of ten, not below `least`.
fn round_step(least: f64) -> f64 {
    let power = 10_f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|step| *step >= least * 0.999)
        .unwrap_or(10.0 * power)
}

/// Instants to print on a time axis of this many seconds: at most seven, at round distances.
pub(crate) fn time_ticks(seconds: f64) -> Vec<f64> {
    const STEPS: [f64; 17] = [
        1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0,
        14_400.0, 21_600.0, 86_400.0,
    ];
    let step = STEPS
        .into_iter()
        .find(|step| seconds / step <= 6.0)
        .unwrap_or_else(|| (seconds / 6.0 / 86_400.0).ceil() * 86_400.0);
    std::iter::successors(Some(0.0), |tick| Some(tick + step))
        .take_while(|tick| *tick <= seconds)
        .collect()
}

/// An instant as minutes and seconds, or hours and minutes where the axis is longer than two hours.
pub(crate) fn clock(seconds: f64, axis_seconds: f64) -> String {
    let whole = crate::schedule::numeric::index(seconds.round());
    if axis_seconds > 7200.0 {
        format!("{}:{:02} h", whole / 3600, whole % 3600 / 60)
    } else {
        format!("{}:{:02}", whole / 60, whole % 60)
    }
}

/// A number with as many digits as its size needs.
pub(crate) fn number(value: f64) -> String {
    if value >= 10_000.0 {
        let thousands = value / 1000.0;
        return if thousands.fract() < 0.05 {
            format!("{thousands:.0}k")
        } else {
            format!("{thousands:.1}k")
        };
    }
    let text = if value >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.3}")
    };
    let trimmed = if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        &text
    };
    trimmed.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_on_round_numbers_not_below_the_highest_value() {
        for (highest, whole, high, ticks) in [
            (87.0, false, 100.0, 3),
            (4.0, true, 4.0, 5),
            (1.0, true, 1.0, 2),
            (0.0, false, 1.0, 3),
            (23.0, true, 30.0, 4),
        ] {
            let axis = Axis::linear(highest, whole);
            assert!((axis.high - high).abs() < 1e-9, "{highest}: {axis:?}");
            assert_eq!(axis.ticks.len(), ticks, "{highest}: {axis:?}");
            assert!((axis.place(high) - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn outliers_make_an_axis_logarithmic() {
        let calm = Axis::for_times((1..100).map(|n| 0.05 + f64::from(n) * 0.001));
        assert!(!calm.is_logarithmic());
        let spiky = Axis::for_times((1..100).map(|n| if n == 50 { 30.0 } else { 0.05 }));
        assert!(spiky.is_logarithmic());
        assert!(spiky.place(0.05) > 0.0 && spiky.place(30.0) < 1.0);
        assert_eq!(spiky.ticks.len(), 5, "{spiky:?}");
    }

    #[test]
    fn times_are_printed_at_round_distances() {
        assert_eq!(time_ticks(60.0), [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0]);
        assert_eq!(time_ticks(370.0).len(), 4);
        assert!(time_ticks(10.0 * 86_400.0).len() <= 7);
        assert_eq!(clock(90.0, 300.0), "1:30");
        assert_eq!(clock(5400.0, 86_400.0), "1:30 h");
    }

    #[test]
    fn numbers_carry_no_needless_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.25, "0.25"),
            (5.0, "5"),
            (12.5, "12.5"),
            (100.0, "100"),
            (20_000.0, "20k"),
            (12_500.0, "12.5k"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
