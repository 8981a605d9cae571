//! The scaler on a real control plane: its definitions, and a serving system that it sizes.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail loudly")]

mod gateway;
mod plain;
mod pool;
mod schema;
mod sets;
mod support;
