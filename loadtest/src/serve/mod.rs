//! Under construction.

pub mod command;
