//! Objects as they are on the wire.

#![expect(clippy::panic, reason = "a test stops where it cannot go on")]

use coppice_operator_api::gang::{NamespacedName, PodGroup};
use coppice_operator_api::pod_clique_set::{CliqueStartupType, UpdateStrategyType};
use coppice_operator_api::{
    GoDuration, PodClique, PodCliqueScalingGroup, PodCliqueSet, PodGang, PodGangPhase,
};
use serde_json::{Value, json};

fn set(yaml: &str) -> PodCliqueSet {
    serde_saphyr::from_str(yaml).unwrap_or_else(|error| panic!("{error}"))
}

/// The manifest of a service with all that the API has; nothing of it may get lost.
const FULL: &str = include_str!("full.yaml");

#[test]
fn nothing_is_lost_between_reading_and_writing() {
    let written: Value = serde_saphyr::from_str(FULL).unwrap();
    let object: PodCliqueSet = serde_json::from_value(written.clone()).unwrap();
    let again = serde_json::to_value(&object).unwrap();
    assert_eq!(again, written);
}

#[test]
fn a_short_manifest_gets_the_defaults_of_the_schema() {
    let set = set("
apiVersion: grove.io/v1alpha1
kind: PodCliqueSet
metadata: {name: a}
spec:
  updateStrategy: {}
  template:
    terminationDelay: 90s
    headlessServiceConfig: {}
    cliques:
    - {name: w, spec: {podSpec: {containers: [{name: c}]}}}
    podCliqueScalingGroups:
    - {name: g, cliqueNames: [w]}
");
    let template = &set.spec.template;
    assert_eq!(
        (set.spec.replicas, set.spec.update_strategy.unwrap().kind),
        (0, UpdateStrategyType::RollingRecreate)
    );
    assert_eq!(template.startup_type, CliqueStartupType::AnyOrder);
    assert_eq!(template.effective_termination_delay().to_string(), "1m30s");
    assert!(template.publishes_not_ready_addresses());
    let clique = &template.cliques[0].spec;
    assert_eq!(
        (
            clique.replicas,
            clique.min_available,
            clique.effective_min_available()
        ),
        (1, None, 1)
    );
    let group = &template.scaling_groups()[0];
    assert_eq!(
        (group.template_replicas(), group.effective_min_available()),
        (1, 1)
    );
    assert_eq!(group.replicas, Some(1));
}

#[test]
fn a_clique_without_a_minimum_needs_the_replicas_that_were_meant() {
    for (replicas, minimum) in [(0, 1), (1, 1), (3, 3)] {
        let yaml = format!("{{replicas: {replicas}, podSpec: {{containers: []}}}}");
        let clique: coppice_operator_api::PodCliqueSpec = serde_saphyr::from_str(&yaml).unwrap();
        assert_eq!(
            (clique.template_replicas(), clique.effective_min_available()),
            (minimum, minimum)
        );
    }
}

#[test]
fn the_termination_delay_is_4_hours_and_durations_are_normalised() {
    assert_eq!(
        coppice_operator_api::defaults::TERMINATION_DELAY.to_string(),
        "4h0m0s"
    );
    assert_eq!(
        serde_json::to_value("90s".parse::<GoDuration>().unwrap()).unwrap(),
        json!("1m30s")
    );
}

#[test]
fn counters_are_written_even_at_zero_and_absent_fields_are_not() {
    let of = |status: Value| {
        status
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect::<Vec<_>>()
    };
    let set = PodCliqueSet {
        status: Some(Default::default()),
        ..PodCliqueSet::default()
    };
    assert_eq!(
        of(serde_json::to_value(&set).unwrap()["status"].clone()),
        ["availableReplicas", "replicas", "updatedReplicas"]
    );
    let clique = PodClique {
        status: Some(Default::default()),
        ..PodClique::default()
    };
    assert_eq!(
        of(serde_json::to_value(&clique).unwrap()["status"].clone()),
        [
            "readyReplicas",
            "replicas",
            "scheduleGatedReplicas",
            "scheduledReplicas",
            "updatedReplicas"
        ]
    );
    let group = PodCliqueScalingGroup {
        status: Some(Default::default()),
        ..PodCliqueScalingGroup::default()
    };
    assert_eq!(
        of(serde_json::to_value(&group).unwrap()["status"].clone()),
        [
            "availableReplicas",
            "replicas",
            "scheduledReplicas",
            "updatedReplicas"
        ]
    );
}

#[test]
fn a_gang_is_written_in_upstreams_spelling_with_empty_lists() {
    let mut gang = PodGang::default();
    gang.spec.pod_groups = vec![PodGroup {
        name: "mn-0-frontend".to_owned(),
        min_replicas: 2,
        ..PodGroup::default()
    }];
    assert_eq!(
        serde_json::to_value(&gang).unwrap()["spec"],
        json!({"podgroups": [{"name": "mn-0-frontend", "podReferences": [], "minReplicas": 2}]})
    );
    let pod = NamespacedName {
        namespace: "ml".to_owned(),
        name: "p".to_owned(),
    };
    gang.spec.pod_groups[0].pod_references.push(pod);
    let again: PodGang = serde_json::from_value(serde_json::to_value(&gang).unwrap()).unwrap();
    assert_eq!(again, gang);
}

#[test]
fn a_phase_that_a_scheduler_made_up_is_kept() {
    for (text, phase) in [
        ("Running", PodGangPhase::Running),
        ("Preempted", PodGangPhase::Other("Preempted".to_owned())),
    ] {
        let read: PodGangPhase = serde_json::from_value(json!(text)).unwrap();
        assert_eq!(
            (&read, serde_json::to_value(&read).unwrap(), read.as_str()),
            (&phase, json!(text), text)
        );
    }
}

#[test]
fn upstreams_status_reads_with_fields_that_are_not_known_here() {
    let clique: PodClique = serde_json::from_value(json!({
        "apiVersion": "grove.io/v1alpha1", "kind": "PodClique", "metadata": {"name": "a"},
        "spec": {"roleName": "", "replicas": 0, "podSpec": {"containers": [], "aFieldOfTomorrow": 1}},
        "status": {"readyReplicas": 2, "updatedReplicas": 0, "scheduleGatedReplicas": 0, "scheduledReplicas": 2, "podGangMapping": {}},
    }))
    .unwrap();
    assert_eq!(
        (clique.spec.role_name.as_deref(), clique.spec.replicas),
        (Some(""), 0)
    );
    assert_eq!(clique.status.unwrap().ready_replicas, 2);
}
