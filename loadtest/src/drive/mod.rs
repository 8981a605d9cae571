//! Sends a schedule and measures what comes back.
//!
//! **Open loop**: a request is sent at its planned instant, whatever else is in flight. A pacing thread keeps the time,
//! workers send and read ([`worker`](self)), a collector adds up. Latency counts from the *planned* instant, so a driver that is
//! late cannot hide it; how late it was is measured beside it, and a run that was too late is called invalid before any figure.
//!
//! | measure | definition |
//! |---|---|
//! | TTFT | first chunk with text − planned; `ttft_sent`: − sent |
//! | E2E | last chunk with text − planned |
//! | TPOT | (last − first chunk) / (tokens − 1), per request |
//! | ITL | gaps between chunks; a chunk of k tokens counts as k gaps of 1/k |
//! | lateness | sent − planned |
//! | goodput | requests that met all their objectives per second; failed, cut, refused and unfinished ones are misses |
//!
//! Tokens are counted by the server (`usage`). Chunks with a role only, or with empty text, are no tokens.

pub mod api;
mod collect;
pub mod command;
mod connection;
mod exchange;
pub mod find_max;
pub mod host;
pub mod http;
mod measures;
pub mod objective;
mod pace;
pub mod progress;
pub mod prompt;
pub mod record;
mod requests_file;
pub mod route;
pub mod run;
pub mod self_test;
mod series;
pub mod settings;
mod sparse;
pub mod sse;
pub mod summary;
pub mod target;
pub mod text;
pub mod validity;
mod worker;

pub use collect::Progress;
pub use measures::FailureCount;
pub use series::Series;

#[cfg(test)]
mod tests;
