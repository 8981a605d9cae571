//! Pure planning for gangs of pods: what should exist, what changes now, and why.
//!
//! Nothing here knows Kubernetes, a clock, or how an object is named. Input is what is there (a snapshot) and what is
//! wanted (a template); output is data that leaves nothing to decide. `now` is an argument, and the next instant at
//! which a plan would differ by itself is part of the answer.
//!
//! Rooms: [`ids`] and [`template`] are the vocabulary; [`gang`] composes base and scaled gangs; [`order`] finds what a
//! clique starts after; [`pods`] decides which pods come and go; [`rounds`] groups pods that have to be placed
//! together; [`sharing`] and [`mnnvl`] say which claims and NVLink domains there are and who gets them; [`rollout`] admits template changes; [`replica`] and [`set`] put it together for one set replica and for
//! the whole set; [`status`] counts and judges what is there; [`violations`] checks a plan against its promises.

pub mod gang;
pub mod hash;
pub mod ids;
pub mod mnnvl;
pub mod observed;
pub mod order;
pub mod placement;
pub mod pods;
pub mod replica;
pub mod rollout;
pub mod rounds;
pub mod set;
pub mod sharing;
pub mod start;
pub mod status;
pub mod template;
pub mod termination;
pub mod topology;
pub mod violations;
