//! Objects to write, rendered from plans. Pure: what is wanted in, Kubernetes objects out; names, labels and environment
//! variables come from `coppice-operator-api`.

pub(crate) mod autoscaler;
pub(crate) mod claim;
pub(crate) mod clique;
pub(crate) mod compute_domain;
pub(crate) mod gang;
pub(crate) mod group;
pub(crate) mod pod;
pub(crate) mod rbac;
pub(crate) mod scope;
pub(crate) mod service;
pub(crate) mod variables;

/// On pods and placement groups: which placement of their gang they belong to, `<round>` or `<round>+` for pods that follow
/// the floor. See `coppice_operator_plan::rounds`.
pub(crate) const LANE_ANNOTATION: &str = "coppice.dev/placement-round";
/// On CompositePodGroups with parts in between: how many PodGroups are below them altogether.
pub(crate) const FLOOR_GROUPS_ANNOTATION: &str = "coppice.dev/floor-groups";
