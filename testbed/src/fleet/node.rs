//! What a pretended node writes about itself. Pure.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::settings::{FleetSettings, NodeShape, Topology};

/// The name of node `index`.
pub(super) fn name(prefix: &str, index: usize) -> String {
    format!("{prefix}{index:04}")
}

/// Host, rack, block, zone, and what the settings add.
pub(super) fn labels(settings: &FleetSettings, index: usize) -> BTreeMap<String, String> {
    let name = name(&settings.name_prefix, index);
    let mut labels: BTreeMap<String, String> = [
        ("kubernetes.io/hostname", name.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", "amd64"),
        (FLEET_LABEL, "true"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    let Topology {
        nodes_per_rack,
        racks_per_block,
        blocks_per_zone,
        rack_keys,
        block_keys,
        zone_keys,
    } = &settings.topology;
    let rack = index / (*nodes_per_rack).max(1);
    let block = rack / (*racks_per_block).max(1);
    let zone = block / (*blocks_per_zone).max(1);
    for (keys, level, number) in [
        (rack_keys, "rack", rack),
        (block_keys, "block", block),
        (zone_keys, "zone", zone),
    ] {
        labels.extend(
            keys.iter()
                .map(|key| (key.clone(), format!("{level}-{number}"))),
        );
    }
    labels.extend(settings.labels.clone());
    labels
}

/// Marks nodes that a fleet plays, so that other fleets and real kubelets' nodes are told apart.
pub(super) const FLEET_LABEL: &str = "testbed.coppice.dev/fleet";

/// The Node object as it is registered.
pub(super) fn object(settings: &FleetSettings, index: usize) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name(&settings.name_prefix, index), "labels": labels(settings, index)},
        "spec": {},
    })
}

/// The status of a node that is ready.
pub(super) fn ready_status(
    shape: &NodeShape,
    name: &str,
    address: Ipv4Addr,
    now: Timestamp,
) -> Value {
    let mut resources = json!({
        "cpu": shape.cpu,
        "memory": shape.memory,
        "pods": shape.pods.to_string(),
        "ephemeral-storage": "4Ti",
    });
    if shape.gpus > 0 {
        resources[&shape.gpu_resource] = json!(shape.gpus.to_string());
    }
    let now = super::status::time(now);
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({
            "type": kind,
            "status": status,
            "reason": reason,
            "message": "played by coppice-testbed",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        })
    };
    json!({
        "capacity": resources,
        "allocatable": resources,
        "addresses": [
            {"type": "InternalIP", "address": address},
            {"type": "Hostname", "address": name},
        ],
        "conditions": [
            condition("Ready", "True", "KubeletReady"),
            condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
            condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
            condition("PIDPressure", "False", "KubeletHasSufficientPID"),
        ],
        "nodeInfo": {
            "architecture": "amd64",
            "bootID": "",
            "containerRuntimeVersion": "testbed://1",
            "kernelVersion": "testbed",
            "kubeProxyVersion": "",
            "kubeletVersion": concat!("v1.37.2-testbed.", env!("CARGO_PKG_VERSION")),
            "machineID": "",
            "operatingSystem": "linux",
            "osImage": "coppice-testbed",
            "systemUUID": "",
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn racks_blocks_and_zones_nest() {
        let mut settings = FleetSettings::new(0);
        settings
            .topology
            .rack_keys
            .push("kubernetes.io/rack".to_owned());
        settings.labels.insert("pool".to_owned(), "h200".to_owned());
        let labels = labels(&settings, 4 * 4 * 4 + 4 * 4 + 4 + 1);
        assert_eq!(labels["topology.kubernetes.io/rack"], "rack-21");
        assert_eq!(labels["kubernetes.io/rack"], "rack-21");
        assert_eq!(labels["topology.kubernetes.io/block"], "block-5");
        assert_eq!(labels["topology.kubernetes.io/zone"], "zone-1");
        assert_eq!(labels["kubernetes.io/hostname"], "node-0085");
        assert_eq!(labels["pool"], "h200");
    }

    #[test]
    fn a_node_without_gpus_does_not_mention_them() {
        let shape = NodeShape {
            gpus: 0,
            ..NodeShape::default()
        };
        let status = ready_status(&shape, "n", Ipv4Addr::LOCALHOST, Timestamp::UNIX_EPOCH);
        assert_eq!(status["allocatable"]["nvidia.com/gpu"], Value::Null);
        let status = ready_status(
            &NodeShape::default(),
            "n",
            Ipv4Addr::LOCALHOST,
            Timestamp::UNIX_EPOCH,
        );
        assert_eq!(status["allocatable"]["nvidia.com/gpu"], "8");
    }
}
