//! `bench`: what `make bench` does with the figures that benchmarks print.

mod divan;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};
use coppice_testbed::figures::Figures;

use super::say;

#[derive(Debug, Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Turn what divan prints (standard input) into a file of figures.
    Divan(divan::Divan),
    /// Print files of figures as one table.
    Show(Show),
}

impl Bench {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.what {
            What::Divan(divan) => divan.run(),
            What::Show(show) => show.run(),
        }
    }
}

#[derive(Debug, Args)]
struct Show {
    /// Files of figures.
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

impl Show {
    fn run(self) -> anyhow::Result<ExitCode> {
        for path in &self.files {
            let text =
                std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            let figures: Figures = serde_json::from_slice(&text)
                .with_context(|| format!("{} holds no figures", path.display()))?;
            print(&figures);
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn print(figures: &Figures) {
    for row in &figures.rows {
        say(&row.line());
    }
}
