//! The adapter on a real control plane: through the aggregation layer, with the real HPA.

mod api;
mod custom;
mod hpa;
mod keda;
mod recorder;
mod rights;
mod wanted;
mod world;
