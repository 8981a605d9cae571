//! Shows a run while it goes on: a bar on a terminal, lines elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::collect::Progress;
use super::text::{count, time};

/// Lines are printed this often where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// How progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum ProgressKind {
    /// A bar on a terminal, lines elsewhere.
    #[default]
    Auto,
    /// A bar.
    Bar,
    /// A line every 10 seconds.
    Lines,
    /// Nothing.
    None,
}

/// The display of one run; on standard error.
#[derive(Debug)]
pub(super) enum Display {
    Bar(ProgressBar),
    Lines { last: Instant },
    None,
}

impl Display {
    /// A display for a run of this length.
    pub(super) fn new(kind: ProgressKind, duration: Duration) -> Self {
        let bar = match kind {
            ProgressKind::None => return Self::None,
            ProgressKind::Lines => false,
            ProgressKind::Bar => true,
            ProgressKind::Auto => std::io::stderr().is_terminal(),
        };
        if !bar {
            return Self::Lines {
                last: Instant::now(),
            };
        }
        let bar = ProgressBar::with_draw_target(
            Some(milliseconds(duration)),
            ProgressDrawTarget::stderr(),
        );
        // The template is constant; the default style would only look different.
        if let Ok(style) = ProgressStyle::with_template("{elapsed_precise} {bar:24} {msg}") {
            bar.set_style(style);
        }
        Self::Bar(bar)
    }

    #[expect(clippy::print_stderr, reason = "progress of a command line program")]
    pub(super) fn show(&mut self, progress: &Progress) {
        match self {
            Self::None => {}
            Self::Bar(bar) => {
                bar.set_position(milliseconds(progress.elapsed.min(progress.duration)));
                bar.set_message(describe(progress));
            }
            Self::Lines { last } => {
                if last.elapsed() >= LINE_EVERY {
                    *last = Instant::now();
                    eprintln!(
                        "{:>5.0} s  {}",
                        progress.elapsed.as_secs_f64(),
                        describe(progress)
                    );
                }
            }
        }
    }

    pub(super) fn finish(&self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// One line with everything that matters while waiting.
fn describe(progress: &Progress) -> String {
    let times = progress.ttft_p50.zip(progress.ttft_p99).map_or_else(
        || "no answer yet".to_owned(),
        |(p50, p99)| {
            format!(
                "TTFT p50 {} p99 {}",
                time(p50.as_secs_f64()),
                time(p99.as_secs_f64())
            )
        },
    );
    let failed = if progress.failed > 0 {
        format!(", {} failed", count(progress.failed))
    } else {
        String::new()
    };
    let late = progress
        .lateness_p99
        .filter(|lateness| *lateness > Duration::from_millis(2))
        .map_or_else(String::new, |lateness| {
            format!(", sent {} late (p99)", time(lateness.as_secs_f64()))
        });
    format!(
        "offered {} of {}, sent {}, done {}, good {}, in flight {}{failed}, {times}{late}",
        count(progress.offered),
        count(progress.planned),
        count(progress.sent),
        count(progress.done),
        count(progress.good),
        count(progress.in_flight()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_names_everything() {
        let progress = Progress {
            elapsed: Duration::from_secs(3),
            duration: Duration::from_secs(10),
            planned: 12_000,
            offered: 3000,
            sent: 2999,
            done: 2500,
            good: 2400,
            failed: 9,
            ttft_p50: Some(Duration::from_millis(51)),
            ttft_p99: Some(Duration::from_millis(1250)),
            lateness_p99: Some(Duration::from_millis(5)),
        };
        assert_eq!(
            describe(&progress),
            "offered 3,000 of 12,000, sent 2,999, done 2,500, good 2,400, in flight 490, 9 failed, TTFT p50 51.0 ms p99 1.25 s, sent 5.00 ms late (p99)"
        );
        assert!(describe(&Progress::default()).ends_with("no answer yet"));
    }
}
