//! What the scaling law promises: rules one by one, properties over random worlds, and scripted days on a virtual clock.

#![expect(clippy::unwrap_used, clippy::panic, reason = "fixtures fail loudly")]

mod golden;
mod properties;
mod rules;
mod simulation;
mod support;
