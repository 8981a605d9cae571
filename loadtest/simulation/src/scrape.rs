//! What one round of scrapes brings.

use std::time::Duration;

use coppice_engine::{Engine, Histogram};

use crate::unit::Unit;

/// One round of scrapes; counters count since the beginning.
#[derive(Debug, Clone)]
pub struct Scrape {
    /// When the numbers were read.
    pub at: Duration,
    /// The gateway's.
    pub gateway: GatewayScrape,
    /// Those of units that were ready and not leaving, by number.
    pub units: Vec<UnitScrape>,
}

/// What the gateway counts.
#[derive(Debug, Clone)]
pub struct GatewayScrape {
    /// Requests that came.
    pub arrived: u64,
    /// Their prompt tokens.
    pub arrived_input_tokens: u64,
    /// Requests that ended well.
    pub finished: u64,
    /// Their prompt tokens.
    pub finished_input_tokens: u64,
    /// Their output tokens.
    pub finished_output_tokens: u64,
    /// Requests that no unit took yet.
    pub held: u32,
    /// Requests that came and have not ended.
    pub in_flight: u32,
    /// Prompt tokens of requests without a first token.
    pub input_tokens_in_flight: u64,
    /// Arrival to first token, seconds.
    pub ttft: Histogram,
    /// Mean time between tokens of a request that ended, seconds.
    pub tpot: Histogram,
}

/// What one engine exports.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UnitScrape {
    /// The unit.
    pub unit: usize,
    /// Index of its role.
    pub role: usize,
    /// Requests that wait.
    pub waiting: u32,
    /// Requests in the batch.
    pub running: u32,
    /// Prompt tokens of requests that it has and that have no first token; an engine's own metric in some systems, the router's in others.
    pub prompt_tokens_in_flight: u64,
    /// Share of the KV cache in use, `0..=1`.
    pub kv_usage: f64,
    /// Prompt tokens of requests that made a first token.
    pub prompt_tokens: u64,
    /// Tokens made.
    pub generation_tokens: u64,
    /// Requests that ended.
    pub finished: u64,
}

impl UnitScrape {
    /// The numbers of an engine that was advanced to the time of the scrape.
    pub(crate) fn of(unit: usize, of: &Unit, engine: &Engine) -> Self {
        let load = engine.load();
        let statistics = engine.statistics();
        Self {
            unit,
            role: of.role,
            prompt_tokens_in_flight: of.prompt_tokens,
            waiting: load.waiting(),
            running: load.running,
            kv_usage: load.kv_usage(),
            prompt_tokens: statistics.prompt_tokens,
            generation_tokens: statistics.generation_tokens,
            finished: statistics.finished.total(),
        }
    }
}

/// Bounds of vLLM's histogram of the time to first token.
const TTFT: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
/// Bounds of vLLM's histogram of the time between tokens.
const TPOT: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];

impl GatewayScrape {
    /// A gateway that has seen nothing.
    pub(crate) fn new() -> Self {
        Self {
            arrived: 0,
            arrived_input_tokens: 0,
            finished: 0,
            finished_input_tokens: 0,
            finished_output_tokens: 0,
            held: 0,
            in_flight: 0,
            input_tokens_in_flight: 0,
            ttft: Histogram::new(TTFT),
            tpot: Histogram::new(TPOT),
        }
    }
}
