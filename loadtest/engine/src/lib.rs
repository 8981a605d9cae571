//! A pure step model of an LLM inference engine that batches continuously, as vLLM does.
//!
//! The engine knows requests as lengths: so many prompt tokens, so many to make. It knows no text, no sockets and no clock:
//! the caller says what time it is and asks when something happens next.
//!
//! ```
//! use std::time::Duration;
//! use coppice_engine::{Engine, EventKind, Profile, Request, Settings};
//!
//! let profile = Profile::named("llama-3.1-8b-fp8_h200_tp1")?;
//! let mut engine = Engine::new(&profile, Settings::of(&profile));
//! let id = engine.submit(Duration::ZERO, Request::new(1000, 50))?;
//! let mut finished = None;
//! while let Some(at) = engine.next_event_at() {
//!     for event in engine.advance(at) {
//!         if matches!(event.kind, EventKind::Finished(_)) {
//!             finished = Some((event.request, event.at));
//!         }
//!     }
//! }
//! assert!(matches!(finished, Some((request, at)) if request == id && at > Duration::from_millis(250)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Rules: all tokens of a step appear at its end, and a request joins at the start of a step. Each step gives running
//! sequences their tokens first, in order of admission, then admits waiting ones while the token budget, the sequence limit
//! and KV blocks last. When a block is missing the sequence admitted last loses its KV and goes to the front of the queue, and
//! nothing is admitted in that step. Prompts are worked off in chunks.
//!
//! Steps of an unchanging batch are an arithmetic progression, so the engine jumps over them: its cost follows requests, not
//! tokens. Jumping and stepping give the same times to the nanosecond.

mod blocks;
mod engine;
mod event;
mod histogram;
mod noise;
mod profile;
mod progress;
mod queue;
mod request;
mod schedule;
mod sequence;
mod settings;
mod statistics;
mod step;
mod stretch;

pub use engine::{Engine, Load};
pub use event::{Event, EventKind};
pub use histogram::Histogram;
pub use profile::{CommunicationTimes, MixedStepTimes, Profile, ProfileError, StepTimes};
pub use request::{FinishReason, Request, RequestId, SubmitError};
pub use settings::{Detail, Settings, Transfer};
pub use statistics::{Finished, Statistics};
pub use step::{Chunk, Progression, StepModel};

/// Tokens of one KV block, as vLLM's default.
pub const BLOCK_TOKENS: u32 = 16;
