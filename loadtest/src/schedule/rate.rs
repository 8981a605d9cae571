//! Rates of arrival that change with time, and the operational time they define.
//!
//! Arrivals under a changing rate λ(t) are drawn with unit-mean gaps in Λ(t) = ∫λ and mapped back through Λ⁻¹: no seams where
//! the rate changes, and exact for Poisson arrivals.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::numeric::index;
use super::span::Span;
use super::{NotValid, Written};

/// Requests per second as a function of time. Written:
///
/// | text | rate |
/// |---|---|
/// | `20` | 20 per second throughout |
/// | `step:5@0s,20@60s,5@120s` | holds each value until the next instant |
/// | `ramp:2@0s,10@300s,1@600s` | straight lines between the points, constant before and after |
/// | `sine:5..45@600s` | from 5 to 45 and back every 600 s, starting at the lowest; `sine:5..45@600s+0.25` starts a quarter later |
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "String")]
pub struct Rate {
    text: String,
    curve: Curve,
}

#[derive(Debug, Clone, PartialEq)]
enum Curve {
    /// Sorted; the first starts at 0, the last never ends.
    Segments(Vec<Segment>),
    Sine {
        mean: f64,
        amplitude: f64,
        period: f64,
        phase: f64,
    },
}

/// A straight piece: `from` at `start`, `to` at `end`; `before` is Λ(start).
#[derive(Debug, Clone, Copy, PartialEq)]
struct Segment {
    start: f64,
    end: f64,
    from: f64,
    to: f64,
    before: f64,
}

impl Segment {
    fn slope(&self) -> f64 {
        if self.end.is_finite() {
            (self.to - self.from) / (self.end - self.start)
        } else {
            0.0
        }
    }

    fn cumulative(&self, t: f64) -> f64 {
        let dt = t - self.start;
        self.before + dt * (self.from + 0.5 * self.slope() * dt)
    }

    /// The instant inside this piece at which Λ reaches `total`; the positive root of from·dt + slope·dt²/2 = total − before.
    fn inverse(&self, total: f64) -> f64 {
        let need = total - self.before;
        if need <= 0.0 {
            return self.start;
        }
        let slope = self.slope();
        let root = (self.from * self.from + 2.0 * slope * need).max(0.0).sqrt();
        // This form of the quadratic's root does not cancel when the slope is small.
        self.start + 2.0 * need / (self.from + root)
    }
}

impl Rate {
    /// The same rate throughout, per second.
    #[must_use]
    pub fn constant(per_second: f64) -> Self {
        Self {
            text: per_second.to_string(),
            curve: Curve::Segments(steps(&[(0.0, per_second)])),
        }
    }

    /// λ(t) in requests per second; `t` in seconds, not negative.
    #[must_use]
    pub fn at(&self, t: f64) -> f64 {
        match &self.curve {
            Curve::Segments(segments) => {
                let segment = segments[segment_at(segments, |segment| segment.start <= t)];
                segment.from + segment.slope() * (t - segment.start)
            }
            Curve::Sine {
                mean,
                amplitude,
                period,
                phase,
            } => mean - amplitude * (std::f64::consts::TAU * (t / period + phase)).cos(),
        }
    }

    /// Λ(t): requests expected in the first `t` seconds.
    #[must_use]
    pub fn cumulative(&self, t: f64) -> f64 {
        match &self.curve {
            Curve::Segments(segments) => {
                segments[segment_at(segments, |segment| segment.start <= t)].cumulative(t)
            }
            Curve::Sine {
                mean,
                amplitude,
                period,
                phase,
            } => {
                let tau = std::f64::consts::TAU;
                mean * t
                    - amplitude * period / tau
                        * ((tau * (t / period + phase)).sin() - (tau * phase).sin())
            }
        }
    }

    /// Λ⁻¹(total): the first instant at which `total` requests are expected; none when the rate ends at zero before that.
    #[must_use]
    pub fn inverse(&self, total: f64) -> Option<f64> {
        match &self.curve {
            Curve::Segments(segments) => {
                let segment = segments[segment_at(segments, |segment| segment.before < total)];
                let never =
                    segment.end.is_infinite() && segment.from <= 0.0 && total > segment.before;
                (!never).then(|| segment.inverse(total))
            }
            Curve::Sine { mean, period, .. } => {
                let per_period = mean * period;
                let whole = (total / per_period).floor();
                let (mut low, mut high) = (whole * period, (whole + 1.0) * period);
                for _ in 0..70 {
                    let middle = 0.5 * (low + high);
                    if self.cumulative(middle) < total {
                        low = middle;
                    } else {
                        high = middle;
                    }
                }
                Some(0.5 * (low + high))
            }
        }
    }

    /// This rate times `factor`, for splitting a stream over clients.
    #[must_use]
    pub fn times(&self, factor: f64) -> Self {
        let curve = match &self.curve {
            Curve::Segments(segments) => Curve::Segments(
                segments
                    .iter()
                    .map(|segment| Segment {
                        from: segment.from * factor,
                        to: segment.to * factor,
                        before: segment.before * factor,
                        ..*segment
                    })
                    .collect(),
            ),
            Curve::Sine {
                mean,
                amplitude,
                period,
                phase,
            } => Curve::Sine {
                mean: mean * factor,
                amplitude: amplitude * factor,
                period: *period,
                phase: *phase,
            },
        };
        Self {
            text: self.text.clone(),
            curve,
        }
    }
}

/// Index of the last segment for which `reached` holds; `reached` holds for a leading run of them.
fn segment_at(segments: &[Segment], reached: impl Fn(&Segment) -> bool) -> usize {
    segments.partition_point(reached).saturating_sub(1)
}

fn steps(points: &[(f64, f64)]) -> Vec<Segment> {
    chain(points, |from, _| from)
}

fn lines(points: &[(f64, f64)]) -> Vec<Segment> {
    chain(points, |_, to| to)
}

/// Joins points (instant, rate) to segments; `end` gives the rate at a segment's end from those of its two points.
fn chain(points: &[(f64, f64)], end: impl Fn(f64, f64) -> f64) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::with_capacity(points.len() + 1);
    let mut before = 0.0;
    let mut push = |start: f64, end: f64, from: f64, to: f64| {
        segments.push(Segment {
            start,
            end,
            from,
            to,
            before,
        });
        if end.is_finite() {
            before += 0.5 * (from + to) * (end - start);
        }
    };
    if let Some((first, rate)) = points.first().filter(|(first, _)| *first > 0.0) {
        push(0.0, *first, *rate, *rate);
    }
    for pair in points.windows(2) {
        let ((start, from), (stop, to)) = (pair[0], pair[1]);
        push(start, stop, from, end(from, to));
    }
    if let Some((last, rate)) = points.last() {
        push(*last, f64::INFINITY, *rate, *rate);
    }
    segments
}

impl FromStr for Rate {
    type Err = NotValid;

    fn from_str(text: &str) -> Result<Self, NotValid> {
        let refuse = |hint: &str| NotValid::new("a rate", text, hint);
        let curve = match text.split_once(':') {
            None => Curve::Segments(steps(&[(0.0, positive(text).ok_or_else(|| {
                refuse("write requests per second (20), step:5@0s,20@60s, ramp:2@0s,10@300s or sine:5..45@600s")
            })?)])),
            Some(("step", points)) => Curve::Segments(steps(&parse_points(points).map_err(|hint| refuse(&hint))?)),
            Some(("ramp", points)) => Curve::Segments(lines(&parse_points(points).map_err(|hint| refuse(&hint))?)),
            Some(("sine", wave)) => parse_sine(wave).ok_or_else(|| refuse("write sine:LOW..HIGH@PERIOD, such as sine:5..45@600s"))?,
            Some((kind, _)) => return Err(refuse(&format!("{kind:?} is no kind of rate; known are step, ramp and sine"))),
        };
        let rate = Self {
            text: text.to_owned(),
            curve,
        };
        let offers_nothing = match &rate.curve {
            Curve::Segments(segments) => segments
                .iter()
                .all(|segment| segment.from <= 0.0 && segment.to <= 0.0),
            Curve::Sine { mean, .. } => *mean <= 0.0,
        };
        if offers_nothing {
            return Err(refuse("it is zero throughout"));
        }
        Ok(rate)
    }
}

/// A rate of zero or more.
fn positive(text: &str) -> Option<f64> {
    text.trim()
        .parse()
        .ok()
        .filter(|rate: &f64| rate.is_finite() && *rate >= 0.0)
}

fn parse_points(text: &str) -> Result<Vec<(f64, f64)>, String> {
    let mut points: Vec<(f64, f64)> = Vec::new();
    for part in text.split(',') {
        let (rate, at) = part.split_once('@').ok_or_else(|| {
            format!("{part:?} has no instant; write RATE@INSTANT, such as 20@60s")
        })?;
        let rate = positive(rate)
            .ok_or_else(|| format!("{rate:?} is not a number of requests per second"))?;
        let at = at
            .parse::<Span>()
            .map_err(|error| error.to_string())?
            .0
            .as_secs_f64();
        if points.last().is_some_and(|(previous, _)| *previous >= at) {
            return Err(format!(
                "instants must grow, and {part:?} does not come after the one before it"
            ));
        }
        points.push((at, rate));
    }
    Ok(points)
}

fn parse_sine(text: &str) -> Option<Curve> {
    let (band, rest) = text.split_once('@')?;
    let (low, high) = band.split_once("..")?;
    let (period, phase) = rest.split_once('+').unwrap_or((rest, "0"));
    let (low, high, phase) = (positive(low)?, positive(high)?, positive(phase)?);
    let period = period.parse::<Span>().ok()?.0.as_secs_f64();
    (low <= high && period > 0.0).then_some(Curve::Sine {
        mean: 0.5 * (low + high),
        amplitude: 0.5 * (high - low),
        period,
        phase,
    })
}

impl fmt::Display for Rate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl TryFrom<Written> for Rate {
    type Error = NotValid;

    fn try_from(written: Written) -> Result<Self, NotValid> {
        written.to_string().parse()
    }
}

impl From<Rate> for String {
    fn from(rate: Rate) -> Self {
        rate.text
    }
}

/// Splits a span of time into equal windows and counts what falls into each.
#[must_use]
pub fn counts(instants: impl Iterator<Item = f64>, window: f64, duration: f64) -> Vec<u32> {
    let mut counts = vec![0_u32; index((duration / window).ceil()).max(1)];
    let last = counts.len() - 1;
    for instant in instants {
        counts[index(instant / window).min(last)] += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(text: &str) -> Rate {
        text.parse().unwrap()
    }

    #[test]
    fn the_cumulative_rate_is_the_integral_of_the_rate() {
        for text in [
            "20",
            "step:5@0s,20@60s,5@120s",
            "ramp:2@0s,10@300s,1@600s",
            "ramp:4@30s,8@90s",
            "sine:5..45@600s",
            "sine:0..10@60s+0.25",
            "step:0@0s,3@50s",
        ] {
            let rate = rate(text);
            let mut integral = 0.0;
            let step = 0.01;
            for n in 0..100_000_u32 {
                let t = f64::from(n) * step;
                integral += rate.at(t + 0.5 * step) * step;
                if n % 9_973 == 0 {
                    let cumulative = rate.cumulative(t + step);
                    assert!(
                        (cumulative - integral).abs() < 0.02 + 1e-4 * integral,
                        "{text} at {t}: {cumulative} against {integral}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_inverse_undoes_the_cumulative_rate() {
        for text in [
            "20",
            "step:5@0s,20@60s,5@120s",
            "ramp:2@0s,10@300s,1@600s",
            "sine:5..45@600s",
            "sine:1..1@60s",
        ] {
            let rate = rate(text);
            for n in 1..700_u32 {
                let t = f64::from(n) * 1.37;
                let back = rate.inverse(rate.cumulative(t)).unwrap();
                assert!(
                    (back - t).abs() < 1e-6 * t.max(1.0),
                    "{text}: {t} came back as {back}"
                );
            }
        }
    }

    #[test]
    fn a_pause_is_jumped_over_and_an_end_is_an_end() {
        let pause = rate("step:10@0s,0@10s,10@50s");
        assert!((pause.inverse(100.0).unwrap() - 10.0).abs() < 1e-9);
        assert!((pause.inverse(100.5).unwrap() - 50.05).abs() < 1e-9);
        let end = rate("ramp:10@0s,0@10s");
        assert!(end.inverse(49.9).is_some());
        assert_eq!(end.inverse(50.1), None);
    }

    #[test]
    fn refusals_say_what_to_write() {
        for (text, hint) in [
            ("fast", "requests per second"),
            ("-1", "requests per second"),
            ("step:5", "RATE@INSTANT"),
            ("step:5@10", "unit"),
            ("step:5@10s,6@10s", "instants must grow"),
            ("sine:9..3@60s", "sine:LOW..HIGH@PERIOD"),
            ("saw:1..2", "known are step, ramp and sine"),
            ("0", "zero throughout"),
        ] {
            let error = text.parse::<Rate>().unwrap_err().to_string();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }
}
