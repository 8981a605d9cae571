//! What upstream's schemas say beyond types: keys of list maps and defaults inside pod specs.

/// Lists whose entries have keys, so that several writers can own entries of one list under server-side apply.
///
/// A pattern matches the last segments of a field's path, where every segment of a list or map is left out. Lists that
/// are not named here are replaced as a whole.
pub(super) const LIST_MAPS: &[(&[&str], &[&str])] = &[
    (&["template", "cliques"], &["name"]),
    // Upstream replaces this one as a whole; keys accept the same objects and let writers share the list.
    (&["template", "podCliqueScalingGroups"], &["name"]),
    // Likewise: a scheduler and the operator both write conditions of a PodGang.
    (&["status", "conditions"], &["type"]),
    (&["podGangStatuses", "conditions"], &["type"]),
    (&["podSpec", "containers"], &["name"]),
    (&["podSpec", "initContainers"], &["name"]),
    (&["podSpec", "ephemeralContainers"], &["name"]),
    (&["podSpec", "volumes"], &["name"]),
    (&["podSpec", "imagePullSecrets"], &["name"]),
    (&["podSpec", "resourceClaims"], &["name"]),
    (&["podSpec", "schedulingGates"], &["name"]),
    (&["podSpec", "hostAliases"], &["ip"]),
    (
        &["podSpec", "topologySpreadConstraints"],
        &["topologyKey", "whenUnsatisfiable"],
    ),
    (&["containers", "env"], &["name"]),
    (&["initContainers", "env"], &["name"]),
    (&["ephemeralContainers", "env"], &["name"]),
    (&["containers", "ports"], &["containerPort", "protocol"]),
    (&["initContainers", "ports"], &["containerPort", "protocol"]),
    (
        &["ephemeralContainers", "ports"],
        &["containerPort", "protocol"],
    ),
    (&["containers", "volumeMounts"], &["mountPath"]),
    (&["initContainers", "volumeMounts"], &["mountPath"]),
    (&["ephemeralContainers", "volumeMounts"], &["mountPath"]),
    (&["containers", "volumeDevices"], &["devicePath"]),
    (&["initContainers", "volumeDevices"], &["devicePath"]),
    (&["ephemeralContainers", "volumeDevices"], &["devicePath"]),
    (&["resources", "claims"], &["name"]),
];

/// Defaults that the schema of a pod spec carries. The other defaults of pods are added by the server when the
/// operator creates them, not before.
pub(super) const DEFAULTS: &[(&[&str], &str)] = &[
    (&["ports", "protocol"], r#""TCP""#),
    (&["livenessProbe", "grpc", "service"], r#""""#),
    (&["readinessProbe", "grpc", "service"], r#""""#),
    (&["startupProbe", "grpc", "service"], r#""""#),
    (&["imagePullSecrets", "name"], r#""""#),
    (&["secretRef", "name"], r#""""#),
    (&["configMapRef", "name"], r#""""#),
    (&["secretKeyRef", "name"], r#""""#),
    (&["configMapKeyRef", "name"], r#""""#),
    (&["nodePublishSecretRef", "name"], r#""""#),
    (&["volumes", "configMap", "name"], r#""""#),
    (&["sources", "configMap", "name"], r#""""#),
    (&["sources", "secret", "name"], r#""""#),
    (&["fileKeyRef", "optional"], "false"),
    (&["azureDisk", "fsType"], r#""ext4""#),
    (&["azureDisk", "readOnly"], "false"),
    (&["iscsi", "iscsiInterface"], r#""default""#),
    (&["rbd", "pool"], r#""rbd""#),
    (&["rbd", "user"], r#""admin""#),
    (&["rbd", "keyring"], r#""/etc/ceph/keyring""#),
    (&["scaleIO", "fsType"], r#""xfs""#),
    (&["scaleIO", "storageMode"], r#""ThinProvisioned""#),
    (&["tolerations", "operator"], r#""Equal""#),
];

/// Fields whose types are Kubernetes' own: their text is in Kubernetes' documentation, and would make the largest
/// definition four times as long.
pub(super) const FOREIGN: &[&str] = &["podSpec", "metrics", "templateSpec"];

/// Counters that are always on the wire, even at 0.
pub(super) const REQUIRED_COUNTERS: &[&str] = &[
    "availableReplicas",
    "readyReplicas",
    "scheduledReplicas",
    "scheduleGatedReplicas",
    "updatedReplicas",
];
