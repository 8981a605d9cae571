//! What a scaling policy would have done on a trace: policies × scenarios × seeds on the virtual clock of `coppice-simulation`.
//!
//! ```text
//! scenario file → world + schedule ┐
//! policy text → policy             ├→ cells → threads → one line of JSON a cell → table, page
//! seeds                            ┘
//! ```
//!
//! A cell is (scenario, policy, seed). Every policy runs on the same draws of arrivals, lengths and start-up times of a seed.

mod builtin;
mod cells;
pub mod command;
mod fault;
mod overview;
mod page;
mod progress;
mod row;
mod scenario;
mod statistics;
mod summary;
mod sweep;
mod text;

#[cfg(test)]
mod tests;
