//! From views and scrapes to what the plan takes.

pub(crate) mod endpoints;
pub(crate) mod fleet;
pub(crate) mod load;
pub(crate) mod starts;
