//! Shows how far the cells are: a bar on a terminal, lines elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::drive::progress::ProgressKind;

/// Lines are printed this often where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// The display of a batch of cells; on standard error.
#[derive(Debug)]
pub(super) enum Display {
    Bar(ProgressBar),
    Lines {
        last: Instant,
        done: usize,
        all: usize,
    },
    None,
}

impl Display {
    pub(super) fn new(kind: ProgressKind, all: usize) -> Self {
        let bar = match kind {
            ProgressKind::None => return Self::None,
            ProgressKind::Lines => false,
            ProgressKind::Bar => true,
            ProgressKind::Auto => std::io::stderr().is_terminal(),
        };
        if !bar {
            return Self::Lines {
                last: Instant::now(),
                done: 0,
                all,
            };
        }
        let bar = ProgressBar::with_draw_target(Some(all as u64), ProgressDrawTarget::stderr());
        // The template is constant; the default style would only look different.
        if let Ok(style) = ProgressStyle::with_template(
            "{elapsed_precise} {bar:24} {pos}/{len} cells, {eta} left  {msg}",
        ) {
            bar.set_style(style);
        }
        Self::Bar(bar)
    }

    #[expect(clippy::print_stderr, reason = "progress of a command line program")]
    pub(super) fn done(&mut self, what: &str) {
        match self {
            Self::None => {}
            Self::Bar(bar) => {
                bar.inc(1);
                bar.set_message(what.to_owned());
            }
            Self::Lines { last, done, all } => {
                *done += 1;
                if last.elapsed() >= LINE_EVERY {
                    *last = Instant::now();
                    eprintln!("{done} of {all} cells, last {what}");
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
