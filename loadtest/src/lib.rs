//! Load tests for LLM inference: schedules, an open-loop driver, simulated engines, a gateway, simulations of policies and reports.
//!
//! Each sub-command of `coppice-loadtest` is a module with a `command` inside it: its arguments and `run`.
//! The step model of an engine is the pure crate `coppice-engine`; this crate gives it sockets and a clock.

pub mod drive;
pub mod exposition;
pub mod gateway;
pub mod openai;
pub mod report;
pub mod schedule;
pub mod serve;
pub mod simulate;
