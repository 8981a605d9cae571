//! The operator against a real control plane: etcd, kube-apiserver, kube-controller-manager and kube-scheduler, with a
//! fleet of make-believe nodes. One control plane for the binary, a namespace and an operator process for each test.

#![expect(clippy::unwrap_used, reason = "a test stops where it cannot go on")]

mod admission;
mod contention;
mod faults;
mod gangs;
mod gated;
mod guard;
mod lifecycle;
mod mnnvl;
mod order;
mod rollout;
mod scenarios;
mod sharing;
mod steady;
mod support;
mod termination;
mod topology;
