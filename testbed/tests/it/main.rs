//! The testbed, tried on itself: real control planes, a fleet, and the ways in which they can end.

mod command_line;
mod engines;
mod extensions;
mod fleet;
mod gangs;
mod node_death;
mod plane;
mod scale;
mod support;
