//! The init container that holds a pod until the cliques it starts after are ready: its name, argument and mounts.

/// Name of the container; reserved in templates.
pub const NAME: &str = "grove-initc";
/// The argument that names a clique to wait for, repeatable; see [`argument`].
pub const ARGUMENT: &str = "--podcliques";
/// Volume with what the pod knows about itself; reserved in templates.
pub const POD_INFO_VOLUME: &str = "pod-info-vol";
/// Where that volume is mounted.
pub const POD_INFO_PATH: &str = "/var/grove/pod-info";
/// File in it: the pod's namespace.
pub const NAMESPACE_FILE: &str = "namespace";
/// File in it: the name of the pod's gang.
pub const POD_GANG_FILE: &str = "podgangname";
/// Volume with the token that the container reads PodCliques with; reserved in templates.
pub const TOKEN_VOLUME: &str = "sa-token-secret-vol";
/// Where that volume is mounted.
pub const TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The argument that makes the container wait until PodClique `clique` has `minimum` pods ready.
pub fn argument(clique: &str, minimum: u32) -> String {
    format!("{ARGUMENT}={clique}:{minimum}")
}
