//! What a scaling policy would have done: a fleet of engines ([`coppice_engine`]) on a virtual clock, fed with requests and scaled by a [`Scaler`].
//!
//! ```text
//! requests → gateway → router → units (prefill → hand-over → decode, or both in one) → how each request ended
//!                         ↑                 │ scraped every interval, seen after a delay
//!                      replicas ← delay ← scaler ←┘
//! ```
//!
//! Discrete events in order of (time, class, number), see [`simulate`]. A run is a function of world, requests, policy and seed: nothing is read from
//! a clock, from the order of a hash or from outside, and what a policy is shown is only what a real one could see ([`Sight`]).
//!
//! Every policy under [`policy`] other than our own is written from its published formula; what is left out of one is said where it is defined.

mod agenda;
mod bound;
mod fault;
mod fleet;
mod known;
mod measure;
mod outcome;
pub mod policy;
mod prepare;
mod route;
mod run;
mod scaler;
mod scrape;
mod sight;
mod unit;
mod world;

pub use bound::least_gpu_hours;
pub use fault::{Fault, FaultKind, Faults};
pub use known::{Capacity, law_profile};
pub use measure::{Judged, Measures, Quantiles, RoleMeasures};
pub use outcome::{Ended, Fate, Life, Outcome, Target};
pub use prepare::RunError;
pub use run::simulate;
pub use scaler::Scaler;
pub use scrape::{GatewayScrape, Scrape, UnitScrape};
pub use sight::{RoleSight, Sight, UnitSight};
pub use world::{
    Lengths, Objectives, Request, Role, Routing, StartUp, Streams, Timing, World, WorldError,
};
