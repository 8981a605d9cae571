//! What the scaling law promises: rules one by one, properties over random worlds, and scripted days on a virtual clock.

mod golden;
mod properties;
mod rules;
mod simulation;
mod support;
