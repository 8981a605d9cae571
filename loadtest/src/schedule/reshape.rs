//! What may be done to a trace before it is replayed: cut, spread, thin, multiply, speed up.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use rand::RngExt;
use serde::{Deserialize, Serialize};

use super::NotValid;
use super::numeric::duration;
use super::seed::stream;
use super::span::Span;
use super::trace::Row;

/// A part of a trace, in the trace's own time: `START..END`, either may be left out (`30m..`, `..10m`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Window {
    /// Rows before are dropped.
    pub start: Duration,
    /// Rows at or after are dropped.
    pub end: Option<Duration>,
}

impl FromStr for Window {
    type Err = NotValid;

    fn from_str(text: &str) -> Result<Self, NotValid> {
        let refuse = |hint: &str| NotValid::new("a window", text, hint);
        let (start, end) = text
            .split_once("..")
            .ok_or_else(|| refuse("write START..END in the trace's time, such as 10m..20m"))?;
        let read = |text: &str| {
            text.parse::<Span>()
                .map(|span| span.0)
                .map_err(|error| refuse(&error.to_string()))
        };
        let window = Self {
            start: if start.is_empty() {
                Duration::ZERO
            } else {
                read(start)?
            },
            end: if end.is_empty() {
                None
            } else {
                Some(read(end)?)
            },
        };
        if window.end.is_some_and(|end| end <= window.start) {
            return Err(refuse("its end must come after its start"));
        }
        Ok(window)
    }
}

impl fmt::Display for Window {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}..", Span(self.start))?;
        self.end
            .map_or(Ok(()), |end| write!(formatter, "{}", Span(end)))
    }
}

impl TryFrom<String> for Window {
    type Error = NotValid;

    fn try_from(text: String) -> Result<Self, NotValid> {
        text.parse()
    }
}

impl From<Window> for String {
    fn from(window: Window) -> Self {
        window.to_string()
    }
}

/// What to do to a trace, in this order.
#[derive(Debug, Clone, PartialEq)]
pub struct Reshape {
    /// Keep only this part; it then starts at 0.
    pub window: Option<Window>,
    /// Add a uniform draw from 0 to this to every instant: undoes stamps that were rounded down to a grid.
    pub spread: Duration,
    /// Requests per request of the trace, above 0.
    ///
    /// Below 1 each is kept with that probability (*thinned*: bursts shorter than the mean gap of what is left become
    /// Poisson). Above 1 each is sent ⌊k⌋ times and once more with the remaining probability (*multiplied*): the first copy
    /// at its own instant, the others moved by a uniform draw from ±[`Reshape::copy_jitter`], with the same lengths.
    pub rate_scale: f64,
    /// How far copies are moved, in the trace's time.
    pub copy_jitter: Duration,
    /// Speed: instants are divided by it, above 0.
    pub time_scale: f64,
}

impl Reshape {
    /// The length in replayed time of `span` of the trace's time.
    #[must_use]
    pub fn replayed(&self, span: Duration) -> Duration {
        duration(span.as_secs_f64() / self.time_scale)
    }

    /// The rows, reshaped and sorted.
    #[must_use]
    pub fn apply(&self, rows: &[Row], seed: u64, entity: u64) -> Vec<Row> {
        let mut copies = stream(seed, "copies", entity);
        let mut spread = stream(seed, "spread", entity);
        let mut jitter = stream(seed, "jitter", entity);
        let window = self.window.unwrap_or(Window {
            start: Duration::ZERO,
            end: None,
        });
        let last = rows.last().map_or(Duration::ZERO, |row| row.at);
        let length = window
            .end
            .map_or(last, |end| end.min(last))
            .saturating_sub(window.start)
            .as_secs_f64();
        let mut reshaped = Vec::with_capacity(rows.len());
        for row in rows {
            if row.at < window.start || window.end.is_some_and(|end| row.at >= end) {
                continue;
            }
            let mut at = (row.at - window.start).as_secs_f64();
            if !self.spread.is_zero() {
                at += self.spread.as_secs_f64() * spread.random::<f64>();
            }
            let chance: f64 = copies.random();
            let mut remaining = self.rate_scale;
            let mut first = true;
            // Whole copies while at least one is due, then one more by chance.
            while remaining >= 1.0 || chance < remaining {
                let moved = if first {
                    at
                } else {
                    let moved =
                        at + self.copy_jitter.as_secs_f64() * (2.0 * jitter.random::<f64>() - 1.0);
                    // What would leave the window is reflected at its border, so that the rate there stays what it is.
                    let reflected = if moved > length {
                        2.0 * length - moved
                    } else {
                        moved
                    };
                    reflected.abs().min(length)
                };
                reshaped.push(Row {
                    at: duration(moved / self.time_scale),
                    ..row.clone()
                });
                first = false;
                if remaining < 1.0 {
                    break;
                }
                remaining -= 1.0;
            }
        }
        reshaped.sort_by_key(|row| row.at);
        reshaped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Prefix;

    fn rows(count: u32) -> Vec<Row> {
        (0..count)
            .map(|n| Row {
                at: Duration::from_millis(u64::from(n) * 100),
                input_tokens: n + 1,
                output_tokens: 1,
                client: 0,
                prefix: Prefix::None,
            })
            .collect()
    }

    fn as_is() -> Reshape {
        Reshape {
            window: None,
            spread: Duration::ZERO,
            rate_scale: 1.0,
            copy_jitter: Duration::from_secs(5),
            time_scale: 1.0,
        }
    }

    #[test]
    fn nothing_asked_changes_nothing() {
        let rows = rows(1000);
        assert_eq!(as_is().apply(&rows, 1, 0), rows);
    }

    #[test]
    fn a_window_starts_at_zero_and_excludes_its_end() {
        let reshape = Reshape {
            window: Some("10s..20s".parse().unwrap()),
            ..as_is()
        };
        let cut = reshape.apply(&rows(1000), 1, 0);
        assert_eq!(cut.len(), 100);
        assert_eq!(cut[0].at, Duration::ZERO);
        assert_eq!(cut[0].input_tokens, 101);
    }

    #[test]
    fn time_scale_divides_instants() {
        let reshape = Reshape {
            time_scale: 10.0,
            ..as_is()
        };
        assert_eq!(
            reshape.apply(&rows(101), 1, 0)[100].at,
            Duration::from_secs(1)
        );
        assert_eq!(
            reshape.replayed(Duration::from_secs(60)),
            Duration::from_secs(6)
        );
    }

    #[test]
    fn thinning_keeps_the_share_and_multiplying_gives_the_factor() {
        for (scale, tolerance) in [(0.25, 0.02), (1.5, 0.02), (3.0, 0.0), (0.999, 0.005)] {
            let reshape = Reshape {
                rate_scale: scale,
                ..as_is()
            };
            let scaled = reshape.apply(&rows(20_000), 4, 0).len() as f64 / 20_000.0;
            assert!(
                (scaled - scale).abs() <= tolerance,
                "scale {scale} gave {scaled}"
            );
        }
    }

    #[test]
    fn thinning_brings_dispersion_towards_poisson_as_the_formula_says() {
        // 40 requests at once every second: dispersion of 10-second counts is 0 for the grid itself, so use on/off blocks:
        // 100 requests in every other second. Counts per second are 100 or 0: D = variance/mean = 50.
        let rows: Vec<Row> = (0..200_000_u32)
            .map(|n| Row {
                at: Duration::from_millis(u64::from(n / 100) * 2000 + u64::from(n % 100) * 10),
                input_tokens: 1,
                output_tokens: 1,
                client: 0,
                prefix: Prefix::None,
            })
            .collect();
        let reshape = Reshape {
            rate_scale: 0.1,
            ..as_is()
        };
        let kept = reshape.apply(&rows, 9, 0);
        let dispersion = crate::schedule::statistics::dispersion(
            kept.iter().map(|row| row.at.as_secs_f64()),
            1.0,
            4000.0,
        );
        let expected = 1.0 + 0.1 * (50.0 - 1.0);
        assert!(
            (dispersion / expected - 1.0).abs() < 0.1,
            "dispersion {dispersion}, expected {expected}"
        );
    }

    #[test]
    fn spreading_fills_the_grid() {
        let gridded: Vec<Row> = rows(3000)
            .into_iter()
            .map(|row| Row {
                at: Duration::from_secs(row.at.as_secs() / 3 * 3),
                ..row
            })
            .collect();
        let reshape = Reshape {
            spread: Duration::from_secs(3),
            ..as_is()
        };
        let spread = reshape.apply(&gridded, 2, 0);
        let distinct: std::collections::BTreeSet<Duration> =
            spread.iter().map(|row| row.at).collect();
        assert_eq!(distinct.len(), 3000);
        assert!(spread.last().unwrap().at < Duration::from_secs(300));
    }

    #[test]
    fn windows_are_read_and_nonsense_is_refused() {
        assert_eq!("30m..".parse::<Window>().unwrap().end, None);
        assert_eq!("..10m".parse::<Window>().unwrap().start, Duration::ZERO);
        assert_eq!("1m..90s".parse::<Window>().unwrap().to_string(), "1m..90s");
        for text in ["10m", "20s..10s", "1..2"] {
            assert!(text.parse::<Window>().is_err(), "{text} was accepted");
        }
    }
}
