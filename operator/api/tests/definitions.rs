//! The committed CustomResourceDefinitions are those of the types, and hold what upstream's hold.

#![expect(clippy::unwrap_used, reason = "a test stops where it cannot go on")]

use coppice_operator_api::{crd, names};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::LazyLock;

static DEFINITIONS: LazyLock<Vec<CustomResourceDefinition>> = LazyLock::new(crd::crds);

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/crds"))
}

/// Set `COPPICE_BLESS=1` to write them anew.
#[test]
fn committed_definitions_are_up_to_date() {
    let bless = std::env::var_os("COPPICE_BLESS").is_some();
    for definition in &*DEFINITIONS {
        let path = folder().join(crd::file_name(definition));
        let printed = crd::to_yaml(definition);
        if bless {
            std::fs::write(&path, &printed).unwrap();
        }
        let committed = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(
            committed == printed,
            "{} is not what the types say; print the definitions anew with COPPICE_BLESS=1 cargo test -p coppice-operator-api --test definitions",
            path.display()
        );
        let read: CustomResourceDefinition = serde_saphyr::from_str(&committed).unwrap();
        assert_eq!(read, *definition, "the YAML says what the object says");
    }
    let files = std::fs::read_dir(folder()).unwrap().count();
    assert_eq!(
        files,
        DEFINITIONS.len(),
        "no other files in {}",
        folder().display()
    );
}

#[test]
fn definitions_have_upstreams_names_scopes_and_subresources() {
    let printed: Vec<Value> = DEFINITIONS
        .iter()
        .map(|definition| serde_json::to_value(definition).unwrap())
        .collect();
    let found: Vec<String> = printed
        .iter()
        .map(|of| of["metadata"]["name"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(found, names::custom_resource_definitions());
    let facts = |of: &Value| {
        let version = &of["spec"]["versions"][0];
        json!([
            of["spec"]["names"]["kind"],
            of["spec"]["names"]["singular"],
            of["spec"]["names"]["shortNames"],
            of["spec"]["scope"],
            version["name"],
            version["served"],
            version["storage"],
            version["subresources"]["scale"]["labelSelectorPath"],
            version["subresources"]["status"].is_object(),
            of["spec"]["versions"].as_array().unwrap().len(),
        ])
    };
    assert_eq!(
        printed.iter().map(facts).collect::<Vec<_>>(),
        [
            json!([
                "PodCliqueSet",
                "podcliqueset",
                ["pcs"],
                "Namespaced",
                "v1alpha1",
                true,
                true,
                ".status.hpaPodSelector",
                true,
                1
            ]),
            json!([
                "PodClique",
                "podclique",
                ["pclq"],
                "Namespaced",
                "v1alpha1",
                true,
                true,
                ".status.hpaPodSelector",
                true,
                1
            ]),
            json!([
                "PodCliqueScalingGroup",
                "podcliquescalinggroup",
                ["pcsg"],
                "Namespaced",
                "v1alpha1",
                true,
                true,
                ".status.selector",
                true,
                1
            ]),
            json!([
                "ClusterTopologyBinding",
                "clustertopologybinding",
                ["ct"],
                "Cluster",
                "v1alpha1",
                true,
                true,
                null,
                true,
                1
            ]),
            json!([
                "PodGang",
                "podgang",
                ["pg"],
                "Namespaced",
                "v1alpha1",
                true,
                true,
                null,
                true,
                1
            ]),
        ]
    );
    for scaled in &printed[..3] {
        let scale = &scaled["spec"]["versions"][0]["subresources"]["scale"];
        assert_eq!(
            (&scale["specReplicasPath"], &scale["statusReplicasPath"]),
            (&json!(".spec.replicas"), &json!(".status.replicas"))
        );
    }
}

/// A schema's node below a path of property names; `[]` goes to a list's entries.
fn at<'v>(schema: &'v Value, path: &str) -> &'v Value {
    path.split('.').fold(schema, |schema, name| match name {
        "[]" => &schema["items"],
        name => &schema["properties"][name],
    })
}

fn schemas() -> Vec<Value> {
    let schema = |of| {
        serde_json::to_value(of).unwrap()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
            .clone()
    };
    DEFINITIONS.iter().map(schema).collect()
}

#[test]
fn defaults_and_required_fields_are_upstreams_or_kinder() {
    let [set, clique, group, topology, gang]: [Value; 5] = schemas().try_into().unwrap();
    let default = |schema: &Value, path: &str| at(schema, path)["default"].clone();
    assert_eq!(default(&set, "spec.replicas"), json!(0));
    assert_eq!(
        default(&set, "spec.updateStrategy.type"),
        json!("RollingRecreate")
    );
    assert_eq!(
        default(&set, "spec.template.cliqueStartupType"),
        json!("CliqueStartupTypeAnyOrder")
    );
    assert_eq!(
        default(
            &set,
            "spec.template.headlessServiceConfig.publishNotReadyAddresses"
        ),
        json!(true)
    );
    assert_eq!(
        default(&set, "spec.template.podCliqueScalingGroups.[].replicas"),
        json!(1)
    );
    assert_eq!(
        default(&set, "spec.template.podCliqueScalingGroups.[].minAvailable"),
        json!(1)
    );
    assert_eq!(default(&set, "spec.template.terminationDelay"), Value::Null);
    assert_eq!(default(&set, "spec.updateStrategy"), Value::Null);
    assert_eq!(default(&clique, "spec.replicas"), json!(1));
    assert_eq!(default(&clique, "spec.minAvailable"), Value::Null);
    assert_eq!(
        (
            default(&group, "spec.replicas"),
            default(&group, "spec.minAvailable")
        ),
        (json!(1), json!(1))
    );
    assert_eq!(
        default(&clique, "spec.podSpec.containers.[].ports.[].protocol"),
        json!("TCP")
    );
    assert_eq!(
        default(
            &clique,
            "spec.podSpec.containers.[].livenessProbe.grpc.service"
        ),
        json!("")
    );
    assert_eq!(
        default(&clique, "spec.podSpec.imagePullSecrets.[].name"),
        json!("")
    );
    assert_eq!(
        default(&clique, "spec.podSpec.volumes.[].rbd.keyring"),
        json!("/etc/ceph/keyring")
    );

    let required = |schema: &Value, path: &str| {
        if path.is_empty() {
            schema["required"].clone()
        } else {
            at(schema, path)["required"].clone()
        }
    };
    assert_eq!(required(&set, "spec"), json!(["template"]));
    assert_eq!(required(&set, "spec.template"), json!(["cliques"]));
    assert_eq!(
        required(&set, "spec.template.cliques.[]"),
        json!(["name", "spec"])
    );
    assert_eq!(
        required(&clique, "spec"),
        json!(["podSpec"]),
        "neither roleName nor replicas"
    );
    assert_eq!(required(&clique, "spec.podSpec"), json!(["containers"]));
    assert_eq!(
        required(&set, "spec.template.podCliqueScalingGroups.[]"),
        json!(["cliqueNames", "name"])
    );
    assert_eq!(
        required(&set, "status"),
        json!(["availableReplicas", "updatedReplicas"])
    );
    assert_eq!(
        required(&clique, "status"),
        json!([
            "readyReplicas",
            "scheduleGatedReplicas",
            "scheduledReplicas",
            "updatedReplicas"
        ])
    );
    assert_eq!(
        required(&group, "status"),
        json!(["availableReplicas", "scheduledReplicas", "updatedReplicas"])
    );
    assert_eq!(required(&topology, "spec"), json!(["levels"]));
    assert_eq!(required(&gang, "spec"), json!(["podgroups"]));
    assert_eq!(required(&gang, "status"), json!(["phase"]));
    assert_eq!(required(&clique, ""), json!(["spec"]));
    assert_eq!(
        required(&set, "spec.template.topologyConstraint"),
        Value::Null
    );
    assert_eq!(
        required(&set, "spec.template.topologyConstraint.pack"),
        Value::Null
    );
    assert_eq!(
        required(&topology, "spec.levels.[]"),
        json!(["domain", "key"])
    );
    assert_eq!(
        required(&set, "spec.template.cliques.[].spec.autoScalingConfig"),
        json!(["maxReplicas"])
    );
}

#[test]
fn lists_with_keys_are_maps_and_all_others_are_atomic() {
    for schema in schemas() {
        let mut maps = Vec::new();
        walk(&schema, "", &mut |path, node| {
            if node["type"] == "array" {
                match node["x-kubernetes-list-type"].as_str() {
                    Some("map") => maps.push(path.to_owned()),
                    kind => assert_eq!(kind, Some("atomic"), "{path}"),
                }
                let keys = node["x-kubernetes-list-map-keys"]
                    .as_array()
                    .into_iter()
                    .flatten();
                for key in keys.filter_map(Value::as_str) {
                    let items = &node["items"];
                    let is_required = items["required"]
                        .as_array()
                        .is_some_and(|names| names.iter().any(|name| name == key));
                    assert!(
                        is_required || !items["properties"][key]["default"].is_null(),
                        "{path} needs its key {key}"
                    );
                }
            }
            assert!(node["nullable"].is_null(), "{path}");
        });
        for expected in [
            "containers",
            "env",
            "volumes",
            "ports",
            "volumeMounts",
            "topologySpreadConstraints",
        ] {
            let has_pods = serde_json::to_string(&schema)
                .unwrap()
                .contains("\"podSpec\"");
            assert_eq!(
                maps.iter()
                    .any(|path| path.ends_with(&format!(".{expected}"))),
                has_pods,
                "{expected}"
            );
        }
    }
}

#[test]
fn texts_of_kubernetes_own_types_are_left_out() {
    for (schema, limit) in schemas()
        .iter()
        .zip([450_000, 350_000, 30_000, 30_000, 30_000])
    {
        let size = serde_json::to_string(schema).unwrap().len();
        assert!(size < limit, "{size} bytes");
    }
    let [set, ..]: [Value; 5] = schemas().try_into().unwrap();
    assert!(at(&set, "spec.template.cliques.[].spec.podSpec.containers")["description"].is_null());
    assert!(at(&set, "spec.template.cliques.[].spec.minAvailable")["description"].is_string());
}

/// Calls `visit` for every property below `node` with its path.
fn walk(node: &Value, path: &str, visit: &mut impl FnMut(&str, &Value)) {
    visit(path, node);
    for (name, property) in node["properties"].as_object().into_iter().flatten() {
        walk(property, &format!("{path}.{name}"), visit);
    }
    for inner in ["items", "additionalProperties"] {
        if node[inner].is_object() {
            walk(&node[inner], path, visit);
        }
    }
}
