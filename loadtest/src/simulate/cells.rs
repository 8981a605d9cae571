//! Cells and their runs on several threads.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

use anyhow::Context;
use coppice_simulation::policy::Spec;
use coppice_simulation::{Measures, simulate};

use super::row::{FORMAT, Key, Row};
use super::scenario::Scenario;
use crate::schedule::seed::stream;

/// A policy under the name that it was asked for by.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entrant {
    pub(super) label: String,
    pub(super) spec: Spec,
}

/// One run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Cell {
    /// Index of the scenario.
    pub(super) scenario: usize,
    pub(super) entrant: Entrant,
    pub(super) seed: u64,
}

impl Cell {
    pub(super) fn key(&self, scenarios: &[Scenario]) -> Key {
        (
            scenarios[self.scenario].digest.clone(),
            self.entrant.label.clone(),
            self.entrant.spec.to_string(),
            self.seed,
        )
    }

    /// Runs it.
    pub(super) fn run(&self, scenarios: &[Scenario]) -> anyhow::Result<Row> {
        let scenario = &scenarios[self.scenario];
        let instance = scenario.instance(self.seed)?;
        let mut scaler = self.entrant.spec.build(&instance.world)?;
        let outcome = simulate(
            &instance.world,
            &instance.faults,
            &instance.requests,
            instance.duration,
            scaler.as_mut(),
            self.seed,
            stream,
        )?;
        let row = Row {
            format: FORMAT.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            scenario: scenario.name(),
            scenario_digest: scenario.digest.clone(),
            policy: self.entrant.label.clone(),
            resolved: self.entrant.spec.to_string(),
            seed: self.seed,
            schedule_digest: instance.schedule_digest,
            measures: Measures::of(
                &instance.world,
                &instance.requests,
                &outcome,
                instance.duration,
            ),
        };
        row.rounded()
    }
}

/// Which part of the cells this process runs: `INDEX/COUNT`, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shard {
    index: usize,
    count: usize,
}

impl std::str::FromStr for Shard {
    type Err = crate::schedule::NotValid;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = || {
            crate::schedule::NotValid::new(
                "a shard",
                text,
                "write INDEX/COUNT with INDEX from 1 to COUNT, such as 2/4",
            )
        };
        let (index, count) = text.split_once('/').ok_or_else(refuse)?;
        let number = |text: &str| text.trim().parse::<usize>().map_err(|_| refuse());
        let (index, count) = (number(index)?, number(count)?);
        if (1..=count).contains(&index) {
            Ok(Self { index, count })
        } else {
            Err(refuse())
        }
    }
}

impl Shard {
    /// Whether the cell at `position` of all is one of this shard's.
    pub(super) fn has(self, position: usize) -> bool {
        position % self.count == self.index - 1
    }
}

/// Runs cells on `jobs` threads and hands each result over as it comes, in any order. The first failure ends it.
pub(super) fn run(
    cells: &[Cell],
    scenarios: &[Scenario],
    jobs: usize,
    mut each: impl FnMut(Row) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let next = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for _ in 0..jobs.clamp(1, cells.len().max(1)) {
            let sender = sender.clone();
            let (next, stop) = (&next, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed)
                    && let Some(cell) = cells.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let row = cell.run(scenarios).with_context(|| {
                        format!(
                            "scenario {}, policy {}, seed {}",
                            scenarios[cell.scenario].name(),
                            cell.entrant.label,
                            cell.seed
                        )
                    });
                    // Nobody listens any more: another cell failed.
                    if sender.send(row).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        for row in receiver {
            if let Err(error) = row.and_then(&mut each) {
                stop.store(true, Ordering::Relaxed);
                return Err(error);
            }
        }
        Ok(())
    })
}
