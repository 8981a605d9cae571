//! What every Coppice program does the same way.
//!
//! Knows: settings that several programs share, logs, health and metrics endpoints, serving HTTP and HTTPS, certificates,
//! registration with the API server, the leader lease, shutting down. Knows nothing about any custom resource, nor about what a leader does.
//!
//! The pieces meet in `main` in this order: parse arguments, [`telemetry::init`], [`crypto::install`], [`shutdown::Shutdown::install`],
//! [`client::connect`], then the program's own parts behind [`admin`], [`server`] and [`lease`].

pub mod admin;
pub mod client;
pub mod crypto;
pub mod health;
pub mod lease;
mod process;
pub mod registration;
pub mod server;
pub mod settings;
pub mod shutdown;
pub mod telemetry;
pub mod tls;
