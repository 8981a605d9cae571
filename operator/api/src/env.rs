//! Environment variables that the operator puts into the containers of a pod, before the template's own ones so that
//! these may refer to them as `$(NAME)`.

/// Name of the set.
pub const SET_NAME: &str = "GROVE_PCS_NAME";
/// Index of the set replica.
pub const SET_REPLICA_INDEX: &str = "GROVE_PCS_INDEX";
/// Name of the PodClique.
pub const CLIQUE_NAME: &str = "GROVE_PCLQ_NAME";
/// DNS name of the headless service of the set replica.
pub const HEADLESS_SERVICE: &str = "GROVE_HEADLESS_SERVICE";
/// Index of the pod in its clique.
pub const POD_INDEX: &str = "GROVE_PCLQ_POD_INDEX";
/// Name of the PodCliqueScalingGroup; members of one only.
pub const GROUP_NAME: &str = "GROVE_PCSG_NAME";
/// Pods that one replica of the scaling group has by its template; members of one only.
pub const GROUP_TEMPLATE_PODS: &str = "GROVE_PCSG_TEMPLATE_NUM_PODS";
/// Index of the scaling-group replica; members of one only.
pub const GROUP_REPLICA_INDEX: &str = "GROVE_PCSG_INDEX";

/// Variables of every pod, in the order in which they come.
pub const OF_EVERY_POD: [&str; 5] = [
    SET_NAME,
    SET_REPLICA_INDEX,
    CLIQUE_NAME,
    HEADLESS_SERVICE,
    POD_INDEX,
];
/// Variables that members of a scaling group have too, behind those of every pod.
pub const OF_GROUP_MEMBERS: [&str; 3] = [GROUP_NAME, GROUP_TEMPLATE_PODS, GROUP_REPLICA_INDEX];

/// The operator's own environment: image of the init container, without tag.
pub const OPERATOR_INIT_IMAGE: &str = "GROVE_INIT_CONTAINER_IMAGE";
/// The operator's own environment: name of its service account.
pub const OPERATOR_SERVICE_ACCOUNT: &str = "GROVE_OPERATOR_SERVICE_ACCOUNT_NAME";
