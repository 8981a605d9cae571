use std::path::Path;
use std::sync::Arc;

use coppice_testbed::manifests_below;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::admission::defaults;
use crate::validated::Validated;

/// A set that breaks nothing and has something of everything.
fn base() -> Value {
    let pods = json!({"containers": [{"name": "main", "image": "i", "env": [{"name": "A"}]}], "volumes": [{"name": "v"}]});
    json!({
        "apiVersion": "grove.io/v1alpha1", "kind": "PodCliqueSet", "metadata": {"name": "svc", "namespace": "ns"},
        "spec": {"replicas": 1, "template": {
            "cliqueStartupType": "CliqueStartupTypeExplicit",
            "terminationDelay": "1h",
            "resourceClaimTemplates": [{"name": "gpu", "templateSpec": {"spec": {"devices": {"requests": [{"name": "d"}]}}}}],
            "resourceSharing": [{"name": "gpu", "scope": "PerReplica", "filter": {"childCliqueNames": ["front"]}}],
            "topologyConstraint": {"topologyName": "t", "pack": {"required": "zone"}},
            "cliques": [
                {"name": "front", "labels": {"tier": "web"}, "annotations": {"example.com/Note": "x"}, "spec": {
                    "roleName": "front", "replicas": 2, "minAvailable": 1, "podSpec": pods,
                    "autoScalingConfig": {"minReplicas": 1, "maxReplicas": 4, "metrics": [
                        {"type": "External", "external": {"metric": {"name": "m"}, "target": {"type": "AverageValue", "averageValue": "5"}}}]}}},
                {"name": "lead", "spec": {"roleName": "lead", "replicas": 1, "minAvailable": 1, "startsAfter": ["front"], "podSpec": pods}},
                {"name": "work", "spec": {"roleName": "work", "replicas": 3, "minAvailable": 3, "startsAfter": ["lead", "front"], "podSpec": pods}},
            ],
            "podCliqueScalingGroups": [
                {"name": "pre", "cliqueNames": ["lead", "work"], "replicas": 2, "minAvailable": 1,
                    "scaleConfig": {"minReplicas": 1, "maxReplicas": 5},
                    "resourceSharing": [{"name": "gpu", "scope": "AllReplicas", "filter": {"childCliqueNames": ["work"]}}]}],
        }},
    })
}

/// Puts values at paths of dots below `spec.template`, or anywhere with a leading dot; `null` takes away.
fn edited(edits: &[(&str, Value)]) -> PodCliqueSet {
    let mut set = base();
    for (path, value) in edits {
        let path = match path.strip_prefix('.') {
            Some(whole) => whole.to_owned(),
            None => format!("spec.template.{path}"),
        };
        let mut at = &mut set;
        for step in path.split('.').map(|step| step.replace('~', ".")) {
            at = match step.parse::<usize>() {
                Ok(position) => {
                    let list = at.as_array_mut().unwrap();
                    if position == list.len() {
                        list.push(Value::Null);
                    }
                    &mut list[position]
                }
                Err(_) => &mut at[step.as_str()],
            };
        }
        *at = value.clone();
    }
    serde_json::from_value(set).unwrap()
}

fn check(set: &PodCliqueSet) -> Vec<FieldError> {
    super::check(set, &Around::default())
}

/// Rules for new sets where MNNVL is on.
fn check_new(set: &PodCliqueSet) -> Vec<FieldError> {
    let around = Around {
        auto_mnnvl: true,
        ..Around::default()
    };
    super::check_new(set, &around)
}

fn texts(errors: &[FieldError]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

/// Every edit, and all that is said about it.
fn assert_refused(table: &[(&str, Value, &[&str])]) {
    for (path, value, said) in table {
        let errors = texts(&check(&edited(&[(path, value.clone())])));
        assert_eq!(&errors, said, "{path} = {value}");
    }
}

#[test]
fn the_base_breaks_nothing() {
    assert_eq!(texts(&check(&edited(&[]))), [""; 0]);
    assert_eq!(texts(&check_new(&edited(&[]))), [""; 0]);
}

/// One binding for a set, named where it cannot be inherited.
#[test]
fn topology_names() {
    let pack = |name: Option<&str>| match name {
        Some(name) => json!({"topologyName": name, "pack": {"required": "rack"}}),
        None => json!({"pack": {"required": "rack"}}),
    };
    let said = |edits: &[(&str, Value)]| texts(&check_new(&edited(edits)));
    let set = "spec.template.topologyConstraint.topologyName: Required value:";
    let one = "as around it, or be left out: a set uses one ClusterTopologyBinding";
    let unnamed = said(&[("topologyConstraint", pack(None))]);
    assert!(
        unnamed[0].starts_with(set) && unnamed.len() == 1,
        "{unnamed:?}"
    );
    let inherit = [
        ("podCliqueScalingGroups.0.topologyConstraint", pack(None)),
        ("cliques.0.topologyConstraint", pack(None)),
        ("cliques.1.topologyConstraint", pack(Some("t"))),
    ];
    assert_eq!(said(&inherit), [""; 0]);
    let other = said(&[
        (
            "podCliqueScalingGroups.0.topologyConstraint",
            pack(Some("u")),
        ),
        ("cliques.0.topologyConstraint", pack(Some("u"))),
    ]);
    assert_eq!(
        other,
        [
            format!(
                "spec.template.podCliqueScalingGroups[0].topologyConstraint.topologyName: Invalid value: \"u\": must be t, {one}"
            ),
            format!(
                "spec.template.cliques[0].topologyConstraint.topologyName: Invalid value: \"u\": must be t, {one}"
            ),
        ]
    );
    // Beside each other, without one around them.
    let siblings = said(&[
        ("topologyConstraint", Value::Null),
        ("cliques.0.topologyConstraint", pack(Some("t"))),
        ("cliques.1.topologyConstraint", pack(Some("u"))),
        ("cliques.2.topologyConstraint", pack(None)),
    ]);
    assert_eq!(siblings.len(), 2, "{siblings:?}");
    assert!(siblings[0].contains("cliques[1]") && siblings[0].contains("must be t"));
    assert!(siblings[1].contains("cliques[2]") && siblings[1].contains("Required"));
}

/// Zone, rack, host.
fn levels() -> Binding {
    let levels = ["zone", "rack", "host"].map(|name| (Arc::from(name), Arc::from("key")));
    Binding::Levels(levels.into())
}

fn under(binding: Binding, edits: &[(&str, Value)]) -> Vec<String> {
    let around = Around {
        binding,
        ..Around::default()
    };
    texts(&check_topology(&edited(edits), &around))
}

#[test]
fn the_binding_exists_and_has_every_domain() {
    assert_eq!(under(levels(), &[]), [""; 0]);
    let field = "spec.template.topologyConstraint.topologyName";
    let cliques = [
        ("topologyConstraint", Value::Null),
        (
            "cliques.0.topologyConstraint",
            json!({"topologyName": "u", "pack": {"required": "rack"}}),
        ),
    ];
    // Always at the set's field, as upstream, also where a clique names it.
    assert_eq!(
        under(Binding::Absent, &cliques),
        [format!(
            "{field}: Invalid value: \"u\": there is no ClusterTopologyBinding of that name: create it first, or name another"
        )]
    );
    assert_eq!(
        under(Binding::Unreadable("no right".to_owned()), &[]),
        [format!(
            "{field}: Internal error: ClusterTopologyBinding t cannot be read: no right"
        )]
    );
    let none = [("topologyConstraint", Value::Null)];
    assert_eq!(under(Binding::Absent, &none), [""; 0]);
    let rule = "is no level of ClusterTopologyBinding t: name one of zone, rack, host";
    let unknown = [
        (
            "topologyConstraint",
            json!({"topologyName": "t", "packDomain": "row", "pack": {"preferred": "cage"}}),
        ),
        (
            "podCliqueScalingGroups.0.topologyConstraint",
            json!({"pack": {"required": "shelf"}}),
        ),
    ];
    assert_eq!(
        under(levels(), &unknown),
        [
            format!("spec.template.topologyConstraint.packDomain: Invalid value: \"row\": {rule}"),
            format!(
                "spec.template.topologyConstraint.pack.preferred: Invalid value: \"cage\": {rule}"
            ),
            format!(
                "spec.template.podCliqueScalingGroups[0].topologyConstraint.pack.required: Invalid value: \"shelf\": {rule}"
            ),
        ]
    );
}

#[test]
fn what_is_inside_is_as_narrow_as_what_is_around_it() {
    let set = |pack: Value| {
        (
            "topologyConstraint",
            json!({"topologyName": "t", "pack": pack}),
        )
    };
    let group = |pack: Value| {
        (
            "podCliqueScalingGroups.0.topologyConstraint",
            json!({"pack": pack}),
        )
    };
    let front = |pack: Value| ("cliques.0.topologyConstraint", json!({"pack": pack}));
    let work = |pack: Value| ("cliques.2.topologyConstraint", json!({"pack": pack}));
    let required = |domain: &str| json!({"required": domain});
    let preferred = |domain: &str| json!({"preferred": domain});
    for right in [
        [
            set(required("zone")),
            group(required("rack")),
            work(required("host")),
        ],
        [
            set(required("rack")),
            group(required("rack")),
            work(required("rack")),
        ],
        // Of different kinds, they are not compared.
        [
            set(required("host")),
            group(preferred("zone")),
            front(preferred("rack")),
        ],
    ] {
        assert_eq!(under(levels(), &right), [""; 0], "{right:?}");
    }
    let wrong = |edits: &[(&str, Value)], field: &str| {
        let said = under(levels(), edits);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(
            said[0].starts_with(&format!("{field}: Invalid value:")),
            "{said:?}"
        );
    };
    let of_set = "spec.template.topologyConstraint";
    let of_group = "spec.template.podCliqueScalingGroups[0].topologyConstraint";
    wrong(&[set(required("rack")), front(required("zone"))], of_set);
    wrong(&[set(required("rack")), group(required("zone"))], of_set);
    wrong(
        &[
            set(required("zone")),
            group(required("host")),
            work(required("rack")),
        ],
        of_group,
    );
    wrong(
        &[set(preferred("host")), front(preferred("rack"))],
        &format!("{of_set}.pack.preferred"),
    );
    // `front` is no member of the group.
    let beside = [
        set(required("zone")),
        group(required("host")),
        front(required("rack")),
    ];
    assert_eq!(under(levels(), &beside), [""; 0]);
}

#[test]
fn a_preference_broader_than_what_is_required_and_a_deprecated_field_are_warned_of() {
    let warned = |constraint: Value| {
        let around = Around {
            binding: levels(),
            ..Around::default()
        };
        warnings(&edited(&[("topologyConstraint", constraint)]), &around)
    };
    let pack = |required: &str, preferred: &str| json!({"topologyName": "t", "pack": {"required": required, "preferred": preferred}});
    assert_eq!(warned(pack("zone", "rack")), [""; 0]);
    assert_eq!(warned(pack("rack", "rack")), [""; 0]);
    let said = warned(pack("rack", "zone"));
    assert!(
        said.len() == 1 && said[0].contains("broader than what is required"),
        "{said:?}"
    );
    let said = warned(json!({"topologyName": "t", "packDomain": "rack"}));
    assert!(
        said.len() == 1 && said[0].contains("packDomain is deprecated"),
        "{said:?}"
    );
}

#[test]
fn names() {
    let front = "spec.template.cliques[0].name: Invalid value:";
    let long = "x".repeat(64);
    assert_refused(&[
        (
            ".metadata.name",
            json!("a.b"),
            &[
                "metadata.name: Invalid value: \"a.b\": may only hold lowercase letters, digits and '-'",
            ],
        ),
        (
            ".metadata.name",
            json!(""),
            &["metadata.name: Invalid value: \"\": is empty"],
        ),
        (
            ".metadata.name",
            json!("9svc"),
            &[
                "metadata.name: Invalid value: \"9svc\": must start with a letter: the headless Service is named after it, and servers \
               before 1.34 want that of a Service",
            ],
        ),
        (
            "podCliqueScalingGroups.0.name",
            json!("-pre"),
            &[
                "spec.template.podCliqueScalingGroups[0].name: Invalid value: \"-pre\": must start and end with a letter or digit",
            ],
        ),
        (
            "podCliqueScalingGroups.1",
            json!({"name": "pre", "cliqueNames": ["front"]}),
            &[
                "spec.template.podCliqueScalingGroups[1].name: Duplicate value: \"pre\": is the name of \
                 spec.template.podCliqueScalingGroups[0] already: rename one of them",
                "spec.template.cliques[0].spec.autoScalingConfig: Forbidden: clique front scales with scaling group pre: take it out \
                 here, and write scaleConfig of the group",
            ],
        ),
    ]);
    let with_name = |name: &str| {
        let set = edited(&[
            ("cliques.0.name", json!(name)),
            ("cliques.1.spec.startsAfter", json!([])),
            ("cliques.2.spec.startsAfter", json!([])),
            ("resourceSharing", json!([])),
        ]);
        texts(&check(&set))
    };
    assert_eq!(
        with_name("Front"),
        [format!(
            "{front} \"Front\": may only hold lowercase letters, digits and '-'"
        )]
    );
    assert_eq!(
        with_name(&long),
        [
            format!("{front} {long:?}: is longer than 63 characters"),
            format!(
                "{front} {long:?}: has 67 characters together with the name svc of the set, and 45 is the limit: shorten one of them"
            ),
        ]
    );
    assert_eq!(with_name(&"x".repeat(42)), [""; 0]);
    assert_eq!(with_name(&"x".repeat(43)).len(), 1);
}

#[test]
fn lengths_count_the_scaling_group_and_the_highest_indexes() {
    let set_name = "s".repeat(37);
    assert_refused(&[
        (
            ".metadata.name",
            json!(set_name),
            &["spec.template.podCliqueScalingGroups[0].cliqueNames[0]: Invalid value: \"lead\": has 44 characters together with the names";
                0],
        ),
        (
            ".metadata.name",
            json!(format!("{set_name}ss")),
            &[
                "spec.template.podCliqueScalingGroups[0].cliqueNames[0]: Invalid value: \"lead\": has 46 characters together with the names \
                 sssssssssssssssssssssssssssssssssssssss of the set and pre of the scaling group, and 45 is the limit: shorten one of them",
                "spec.template.podCliqueScalingGroups[0].cliqueNames[1]: Invalid value: \"work\": has 46 characters together with the names \
                 sssssssssssssssssssssssssssssssssssssss of the set and pre of the scaling group, and 45 is the limit: shorten one of them",
            ],
        ),
    ]);
    let many = edited(&[
        (".metadata.name", json!(set_name)),
        (".spec.replicas", json!(2_000_000_000)),
    ]);
    let errors = texts(&check(&many));
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert_eq!(
        errors[0],
        "spec.template.podCliqueScalingGroups[0].cliqueNames[0]: Invalid value: \"lead\": leads to a PodClique with a name of 59 characters \
         at the replicas asked for, and 57 is the limit: shorten a name, or ask for fewer replicas"
    );
    let pods = edited(&[
        (".metadata.name", json!("s".repeat(40))),
        ("podCliqueScalingGroups", json!([])),
        (".spec.replicas", json!(1_000_000_000)),
        (
            "cliques.0.spec.autoScalingConfig.maxReplicas",
            json!(1_000_000_000),
        ),
    ]);
    assert!(
        texts(&check(&pods))[0].contains("leads to a host name of 66 characters"),
        "{:?}",
        texts(&check(&pods))
    );
}

#[test]
fn no_two_places_lead_to_one_object() {
    let plain = |edits: &[(&str, Value)]| {
        let mut all = vec![
            ("cliqueStartupType", json!("CliqueStartupTypeAnyOrder")),
            ("resourceSharing", json!([])),
        ];
        all.extend(edits.iter().cloned());
        texts(&check(&edited(&all)))
    };
    assert_eq!(
        plain(&[("cliques.0.name", json!("pre-0-lead"))]),
        [
            "spec.template.cliques[0].name: Duplicate value: \"pre-0-lead\": is what clique lead is called in replica 0 of scaling group pre: \
          rename one of them"
        ]
    );
    assert_eq!(
        plain(&[("cliques.0.name", json!("pre-00-lead"))]),
        [""; 0],
        "no index is written like that"
    );
    assert_eq!(plain(&[("cliques.0.name", json!("pre-0-other"))]), [""; 0]);
    assert_eq!(
        plain(&[("cliques.0.name", json!("pre"))]),
        [
            "spec.template.podCliqueScalingGroups[0].name: Duplicate value: \"pre\": is the name of a clique, and both autoscalers would be \
          called <set>-<replica>-pre: rename one of them"
        ]
    );
    // Group `a` with member `2-b` in its replica 1, and group `a-1` with member `b` in its replica 2.
    let two_groups = |outer: &str, member: &str, inner: &str, other: &str| {
        let groups = json!([{"name": outer, "cliqueNames": [member]}, {"name": inner, "cliqueNames": [other]}]);
        plain(&[
            ("cliques.1.name", json!(member)),
            ("cliques.2.name", json!(other)),
            ("podCliqueScalingGroups", groups),
        ])
    };
    assert_eq!(
        two_groups("a", "2-b", "a-1", "b"),
        [
            "spec.template.podCliqueScalingGroups[1].name: Duplicate value: \"a-1\": with clique b leads to the same names as scaling group a \
          with clique 2-b: rename one of them"
        ]
    );
    assert_eq!(two_groups("a", "s-2-b", "a-1-s", "b").len(), 1);
    assert_eq!(two_groups("a", "s-2-b", "a-1-t", "b"), [""; 0]);
    assert_eq!(two_groups("a", "b", "a-1", "c"), [""; 0]);
}

/// The test above by brute force: names collide exactly where the rule says so.
#[test]
fn names_that_meet_are_found_as_by_trying_all_indexes() {
    let parts = ["a", "1", "a-1", "1-a", "a-1-a", "1-1", "a-a"];
    let mut met = 0;
    for outer in parts {
        for member in parts {
            for inner in parts {
                for other in parts {
                    if outer == inner || member == other {
                        continue;
                    }
                    let set = edited(&[
                        ("cliqueStartupType", json!("CliqueStartupTypeAnyOrder")),
                        ("cliques.1.name", json!(member)),
                        ("cliques.2.name", json!(other)),
                        (
                            "podCliqueScalingGroups",
                            json!([{"name": outer, "cliqueNames": [member]}, {"name": inner, "cliqueNames": [other]}]),
                        ),
                    ]);
                    let meets = (0..2).any(|k| {
                        (0..2).any(|l| {
                            format!("{outer}-{k}-{member}") == format!("{inner}-{l}-{other}")
                        })
                    });
                    let errors = texts(&plannable(&set));
                    met += usize::from(meets);
                    assert_eq!(
                        !errors.is_empty(),
                        meets,
                        "{outer} {member} {inner} {other}: {errors:?}"
                    );
                }
            }
        }
    }
    assert_eq!(met, 10);
}

#[test]
fn minimums() {
    assert_refused(&[
        (
            "cliques.1.spec.minAvailable",
            json!(2),
            &[
                "spec.template.cliques[1].spec.minAvailable: Invalid value: 2: must be at most replicas, which is 1: lower it, or raise replicas",
            ],
        ),
        (
            "podCliqueScalingGroups.0.minAvailable",
            json!(3),
            &[
                "spec.template.podCliqueScalingGroups[0].minAvailable: Invalid value: 3: must be at most replicas, which is 2: lower it, or \
                 raise replicas",
                "spec.template.podCliqueScalingGroups[0].scaleConfig.minReplicas: Invalid value: 1: must be 0, or at least minAvailable, which \
                 is 3: fewer are no whole gang",
            ],
        ),
        (
            ".spec.replicas",
            json!(-1),
            &["spec.replicas: Invalid value: -1: must be 0 or more"],
        ),
    ]);
}

#[test]
fn roles_are_unique_and_one_may_be_left_out() {
    assert_refused(&[
        (
            "cliques.2.spec.roleName",
            json!("lead"),
            &[
                "spec.template.cliques[2].spec.roleName: Duplicate value: \"lead\": is the role of clique lead already: each clique has a role \
               of its own",
            ],
        ),
        ("cliques.2.spec.roleName", Value::Null, &[]),
    ]);
    let two = edited(&[
        ("cliques.1.spec.roleName", json!("")),
        ("cliques.2.spec.roleName", Value::Null),
    ]);
    assert_eq!(
        texts(&check(&two)),
        [
            "spec.template.cliques[2].spec.roleName: Required value: clique lead has no roleName either, and at most one may leave it out: \
          write one"
        ]
    );
}

#[test]
fn one_scheduler_places_a_gang() {
    let field = "spec.template.cliques[1].spec.podSpec.schedulerName: Invalid value:";
    assert_refused(&[
        (
            "cliques.1.spec.podSpec.schedulerName",
            json!("mine"),
            &[&format!(
                "{field} \"mine\": must be the same for all cliques, and clique front goes to default-scheduler: a gang is placed by one \
                 scheduler"
            )],
        ),
        (
            "cliques.1.spec.podSpec.schedulerName",
            json!("volcano"),
            &[&format!(
                "{field} \"volcano\": the operator does not have gangs placed by that scheduler: leave schedulerName out, or have the operator started with its --gang-backend"
            )],
        ),
        (
            "cliques.1.spec.podSpec.schedulerName",
            json!("default-scheduler"),
            &[],
        ),
        ("cliques.1.spec.podSpec.schedulerName", json!(""), &[]),
    ]);
}

#[test]
fn a_scheduler_of_its_own_is_the_only_one_and_wants_a_queue() {
    let under = |scheduler: &'static str, queue: Queue, edits: &[(&str, Value)]| {
        let around = Around {
            scheduler: Some(scheduler),
            queue,
            ..Around::default()
        };
        texts(&super::check(&edited(edits), &around))
    };
    let kai = |edits: &[(&str, Value)]| under("kai-scheduler", Queue::Unasked, edits);
    let queue = (
        ".metadata.labels",
        json!({"kai.scheduler/queue": "research"}),
    );
    assert_eq!(kai(std::slice::from_ref(&queue)), [""; 0]);
    let other = ("cliques.0.spec.podSpec.schedulerName", json!("mine"));
    let same = (
        "cliques.1.spec.podSpec.schedulerName",
        json!("kai-scheduler"),
    );
    let said = kai(&[queue, other, same]);
    assert!(
        said.len() == 1 && said[0].contains("gangs are placed by kai-scheduler here"),
        "{said:?}"
    );
    assert!(kai(&[])[0].starts_with("metadata.labels.kai.scheduler/queue: Required value"));

    let free = [("topologyConstraint", Value::Null)];
    assert_eq!(under("volcano", Queue::Open, &free), [""; 0]);
    let field = "metadata.annotations.scheduling.grove.io/volcano-queue";
    for (queue, why) in [
        (Queue::Absent, "there is no Volcano Queue"),
        (
            Queue::Shut("Closed".to_owned()),
            "is Closed and takes no pods",
        ),
        (
            Queue::Unreadable("no right".to_owned()),
            "cannot be read: no right",
        ),
    ] {
        let said = under("volcano", queue, &free);
        assert!(
            said.len() == 1 && said[0].starts_with(field) && said[0].contains(why),
            "{said:?}"
        );
    }
    let constrained = under("volcano", Queue::Open, &[]);
    assert!(
        constrained[0].starts_with("spec.template.topologyConstraint: Forbidden"),
        "{constrained:?}"
    );
}

#[test]
fn a_queue_stays() {
    let set = |queue: &str| edited(&[(".metadata.labels", json!({"kai.scheduler/queue": queue}))]);
    let around = |scheduler| Around {
        scheduler,
        ..Around::default()
    };
    let changed = |scheduler| check_queue(&set("a"), &set("b"), &around(scheduler)).len();
    assert_eq!(changed(Some("kai-scheduler")), 1);
    assert_eq!(changed(None), 0);
    assert_eq!(
        check_queue(&set("a"), &set("a"), &around(Some("kai-scheduler"))),
        []
    );
}

#[test]
fn start_order() {
    let after = |clique: usize, entry: usize| {
        format!("spec.template.cliques[{clique}].spec.startsAfter[{entry}]:")
    };
    let round = "closes a cycle in which every clique waits for another to start";
    assert_refused(&[
        (
            "cliques.1.spec.startsAfter",
            json!(["", "lead", "gone", "front", "front"]),
            &[
                &format!(
                    "{} Required value: names no clique: name one, or take the entry out",
                    after(1, 0)
                ),
                &format!(
                    "{} Invalid value: \"lead\": a clique cannot start after itself: take the entry out",
                    after(1, 1)
                ),
                &format!(
                    "{} Not found: \"gone\": names no clique of the template: name one of spec.template.cliques",
                    after(1, 2)
                ),
                &format!(
                    "{} Duplicate value: \"front\": is listed twice: list it once",
                    after(1, 4)
                ),
            ],
        ),
        (
            "cliques.0.spec.startsAfter",
            json!(["work"]),
            &[
                &format!(
                    "{} Invalid value: \"front\": {round} (front after work after lead after front): take one of these entries out",
                    after(1, 0)
                ),
                &format!(
                    "{} Invalid value: \"front\": {round} (front after work after front): take one of these entries out",
                    after(2, 1)
                ),
            ],
        ),
    ]);
    let elsewhere = edited(&[
        ("cliqueStartupType", json!("CliqueStartupTypeInOrder")),
        ("cliques.0.spec.startsAfter", json!(["work", "gone"])),
    ]);
    assert_eq!(
        texts(&check(&elsewhere)),
        [""; 0],
        "they count only where the type says so"
    );
    assert_eq!(
        warnings(&elsewhere, &Around::default()).len(),
        3,
        "{:?}",
        warnings(&elsewhere, &Around::default())
    );
}

#[test]
fn a_long_chain_is_followed_without_a_deep_stack() {
    let cliques = (0..20_000).map(|n| {
        json!({"name": format!("c{n}"), "spec": {"roleName": format!("c{n}"), "podSpec": {"containers": []}, "startsAfter": [format!("c{}", (n + 1) % 20_000)]}})
    });
    let chain = edited(&[
        ("cliques", cliques.collect()),
        ("podCliqueScalingGroups", json!([])),
        ("resourceSharing", json!([])),
    ]);
    let errors = texts(&check(&chain));
    assert_eq!(errors.len(), 1);
    assert_eq!(
        errors[0],
        "spec.template.cliques[19999].spec.startsAfter[0]: Invalid value: \"c0\": closes a cycle in which every clique waits for another to \
         start (c0 after c1 after c2 after c3 after … after c19998 after c19999 after c0): take one of these entries out"
    );
}

#[test]
fn membership() {
    assert_refused(&[
        (
            "podCliqueScalingGroups.0.cliqueNames",
            json!(["lead", "work", "gone", "lead"]),
            &[
                "spec.template.podCliqueScalingGroups[0].cliqueNames[2]: Not found: \"gone\": names no clique of the template: name one of \
                 spec.template.cliques",
                "spec.template.podCliqueScalingGroups[0].cliqueNames[3]: Duplicate value: \"lead\": is listed twice by this scaling group: \
                 list it once",
            ],
        ),
        (
            "podCliqueScalingGroups.1",
            json!({"name": "other", "cliqueNames": ["work"]}),
            &[
                "spec.template.podCliqueScalingGroups[1].cliqueNames[0]: Duplicate value: \"work\": is a member of scaling group pre already: a \
               clique is in at most one scaling group",
            ],
        ),
        (
            "cliques.2.spec.autoScalingConfig",
            json!({"minReplicas": 3, "maxReplicas": 4}),
            &[
                "spec.template.cliques[2].spec.autoScalingConfig: Forbidden: clique work scales with scaling group pre: take it out here, and \
               write scaleConfig of the group",
            ],
        ),
    ]);
}

#[test]
fn autoscalers_that_the_server_would_refuse_later() {
    let clique = "spec.template.cliques[0].spec.autoScalingConfig";
    let group = "spec.template.podCliqueScalingGroups[0].scaleConfig";
    let metric = format!("{clique}.metrics[0]");
    let of = |metric: Value| json!([metric]);
    assert_refused(&[
        (
            "cliques.0.spec.autoScalingConfig.minReplicas",
            json!(0),
            &[],
        ),
        (
            "podCliqueScalingGroups.0.scaleConfig.minReplicas",
            json!(0),
            &[&format!(
                "{group}.minReplicas: Invalid value: 0: 0 needs a metric of type Object or External, for nothing else can be measured without \
                 pods: add one, or raise minReplicas"
            )],
        ),
        (
            "podCliqueScalingGroups.0.scaleConfig.maxReplicas",
            json!(1),
            &[&format!(
                "{group}.maxReplicas: Invalid value: 1: must be at least replicas, which is 2: raise it, or lower replicas"
            )],
        ),
        (
            "cliques.0.spec.autoScalingConfig.metrics",
            of(json!({"type": "Queue"})),
            &[&format!(
                "{metric}.type: Invalid value: \"Queue\": must be ContainerResource, External, Object, Pods or Resource"
            )],
        ),
        (
            "cliques.0.spec.autoScalingConfig.metrics",
            of(
                json!({"type": "Resource", "pods": {"metric": {"name": "m"}, "target": {"type": "Value"}}}),
            ),
            &[
                &format!(
                    "{metric}.pods: Forbidden: must be absent where type is Resource: take it out, or change the type"
                ),
                &format!(
                    "{metric}.resource: Required value: says what a metric of type Resource reads: write it"
                ),
            ],
        ),
        (
            "cliques.0.spec.autoScalingConfig.metrics",
            of(
                json!({"type": "Pods", "pods": {"metric": {"name": ""}, "target": {"type": "Utilization", "averageUtilization": 5}}}),
            ),
            &[
                &format!(
                    "{metric}.pods.metric.name: Required value: names what is measured: write it"
                ),
                &format!(
                    "{metric}.pods.target.type: Invalid value: \"Utilization\": must be AverageValue for a metric of type Pods"
                ),
            ],
        ),
        (
            "cliques.0.spec.autoScalingConfig.metrics",
            of(
                json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization"}}}),
            ),
            &[&format!(
                "{metric}.resource.target.averageUtilization: Required value: must be set, to more than 0, where the target's type is Utilization"
            )],
        ),
        (
            "cliques.0.spec.autoScalingConfig.metrics",
            of(
                json!({"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "c", "target": {"type": "Utilization", "averageUtilization": 50}}}),
            ),
            &[],
        ),
    ]);
}

#[test]
fn pod_templates() {
    let pods = "spec.template.cliques[1].spec.podSpec";
    assert_refused(&[
        (
            "cliques.1.spec.podSpec.topologySpreadConstraints",
            json!([]),
            &[&format!(
                "{pods}.topologySpreadConstraints: Forbidden: must be absent: a gang is placed together; topologyConstraint of the clique says how close"
            )],
        ),
        (
            "cliques.1.spec.podSpec.nodeName",
            json!("n1"),
            &[&format!(
                "{pods}.nodeName: Invalid value: \"n1\": must be absent: the gang's placement chooses nodes; nodeSelector or affinity narrows the choice"
            )],
        ),
        ("cliques.1.spec.podSpec.nodeName", json!(""), &[]),
        (
            "cliques.1.spec.podSpec.initContainers",
            json!([{"name": "grove-initc", "env": [{"name": "A=B"}]}]),
            &[
                &format!(
                    "{pods}.initContainers[0].name: Invalid value: \"grove-initc\": is the name of the container that the operator adds for the start order: choose another"
                ),
                &format!(
                    "{pods}.initContainers[0].env[0].name: Invalid value: \"A=B\": must be printable ASCII characters other than '=', and at least one"
                ),
            ],
        ),
        (
            "cliques.1.spec.podSpec.containers.0.env.0.name",
            json!(""),
            &[&format!(
                "{pods}.containers[0].env[0].name: Invalid value: \"\": must be printable ASCII characters other than '=', and at least one"
            )],
        ),
        (
            "cliques.1.spec.podSpec.containers.0.env.0.name",
            json!("my.var-1 x"),
            &[],
        ),
        (
            "cliques.1.spec.podSpec.volumes.0.name",
            json!("pod-info-vol"),
            &[&format!(
                "{pods}.volumes[0].name: Invalid value: \"pod-info-vol\": is the name of a volume that the operator adds for the start order: choose another"
            )],
        ),
    ]);
}

#[test]
fn metadata_of_templates() {
    let labels = "spec.template.cliques[0].labels";
    let annotations = "spec.template.cliques[0].annotations";
    let name_rule = "the name of a key must be 1 to 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends";
    assert_refused(&[
        (
            "cliques.0.labels",
            json!({"a b": "x"}),
            &[&format!("{labels}: Invalid value: \"a b\": {name_rule}")],
        ),
        (
            "cliques.0.labels",
            json!({"Bad/a": "x"}),
            &[&format!(
                "{labels}: Invalid value: \"Bad/a\": the part of a key before '/' must be a domain in lower case, such as example.com"
            )],
        ),
        (
            "cliques.0.labels",
            json!({"a": "x y"}),
            &[&format!(
                "{labels}.a: Invalid value: \"x y\": must be at most 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends"
            )],
        ),
        ("cliques.0.labels", json!({"example.com/a_b": ""}), &[]),
        (
            "cliques.0.annotations",
            json!({"a/b/c": ""}),
            &[&format!(
                "{annotations}: Invalid value: \"a/b/c\": {name_rule}"
            )],
        ),
        (
            "cliques.0.annotations",
            json!({"big": "x".repeat(300_000)}),
            &[&format!(
                "{annotations}: Forbidden: are 300003 bytes together, and 262144 is the limit: shorten them"
            )],
        ),
        (
            "podCliqueScalingGroups.0.annotations",
            json!({"": "x"}),
            &[&format!(
                "spec.template.podCliqueScalingGroups[0].annotations: Invalid value: \"\": {name_rule}"
            )],
        ),
    ]);
    let none = edited(&[(
        "cliques.0.annotations",
        json!({"grove.io/mnnvl-group": "none"}),
    )]);
    assert_eq!(texts(&check_new(&none)), [""; 0]);
}

#[test]
fn mnnvl_groups_are_names_and_need_the_feature() {
    let said = |value: &str, auto_mnnvl: bool| {
        let set = edited(&[(
            ".metadata.annotations",
            json!({"grove.io/mnnvl-group": value}),
        )]);
        let around = Around {
            auto_mnnvl,
            ..Around::default()
        };
        texts(&super::check_new(&set, &around))
    };
    let field = "metadata.annotations.grove.io/mnnvl-group: Invalid value:";
    for good in ["none", "g", "train-2"] {
        assert_eq!(said(good, true), [""; 0]);
    }
    assert_eq!(said("none", false), [""; 0]);
    for (value, enabled, rule) in [
        ("", true, "is empty: name a group, or write none"),
        (
            "a.b",
            true,
            "may only hold lowercase letters, digits and '-'",
        ),
        ("g", false, "MNNVL is switched off in this cluster"),
    ] {
        let all = said(value, enabled);
        assert_eq!(all.len(), 1, "{all:?}");
        assert!(
            all[0].starts_with(&format!("{field} {value:?}: {rule}")),
            "{all:?}"
        );
    }
    let long = said(&"g".repeat(58), true);
    assert!(long[0].contains("a name of 64 characters"), "{long:?}");
    assert_eq!(said(&"g".repeat(57), true), [""; 0]);
    let pods = "spec.template.cliques[0].spec.podSpec.resourceClaims[0].name";
    assert_refused(&[(
        "cliques.0.spec.podSpec.resourceClaims",
        json!([{"name": "mnnvl-claim"}]),
        &[&format!(
            "{pods}: Invalid value: \"mnnvl-claim\": is the name of the claim that the operator adds for an MNNVL group: choose another"
        )],
    )]);
}

#[test]
fn claims() {
    let own = "spec.template.resourceClaimTemplates";
    let set = "spec.template.resourceSharing[0]";
    let group = "spec.template.podCliqueScalingGroups[0].resourceSharing[0]";
    assert_refused(&[
        (
            "resourceClaimTemplates",
            json!([{"name": "gpu", "templateSpec": {"spec": {}}}, {"name": "gpu", "templateSpec": {"spec": {"devices": {"requests": [{"name": "d"}]}}}}, {"name": "", "templateSpec": {"spec": {"devices": {"requests": []}}}}]),
            &[
                &format!(
                    "{own}[0].templateSpec.spec.devices.requests: Required value: a claim asks for at least one device: add a request"
                ),
                &format!(
                    "{own}[1].name: Duplicate value: \"gpu\": is the name of another claim template: rename one of them"
                ),
                &format!(
                    "{own}[2].name: Required value: names the template for resourceSharing: write it"
                ),
                &format!(
                    "{own}[2].templateSpec.spec.devices.requests: Required value: a claim asks for at least one device: add a request"
                ),
            ],
        ),
        (
            "resourceSharing.0",
            json!({"name": "gpu", "namespace": "n", "scope": "PerReplica", "filter": {}}),
            &[
                &format!(
                    "{set}.namespace: Invalid value: \"n\": must be absent, because gpu is one of spec.template.resourceClaimTemplates: take it out"
                ),
                &format!(
                    "{set}.filter: Required value: must name cliques or scaling groups: fill one of the lists, or leave the filter out for all"
                ),
            ],
        ),
        (
            "resourceSharing.0.filter",
            json!({"childCliqueNames": ["gone"], "childScalingGroupNames": ["front"]}),
            &[
                &format!(
                    "{set}.filter.childCliqueNames[0]: Not found: \"gone\": is no clique: name one that exists"
                ),
                &format!(
                    "{set}.filter.childScalingGroupNames[0]: Not found: \"front\": is no scaling group: name one that exists"
                ),
            ],
        ),
        (
            "podCliqueScalingGroups.0.resourceSharing.0.filter",
            json!({"childCliqueNames": ["front"]}),
            &[&format!(
                "{group}.filter.childCliqueNames[0]: Not found: \"front\": is no member of the group: name one that exists"
            )],
        ),
        (
            "podCliqueScalingGroups.0.resourceSharing.0.filter",
            json!({}),
            &[&format!(
                "{group}.filter: Required value: must name members of the group: fill childCliqueNames, or leave the filter out for all"
            )],
        ),
        (
            "cliques.0.resourceSharing",
            json!([{"name": "", "scope": "PerReplica"}, {"name": "x", "scope": "PerReplica"}, {"name": "x", "namespace": "n", "scope": "AllReplicas"}]),
            &[
                "spec.template.cliques[0].resourceSharing[0].name: Required value: names the claim template: write it",
                "spec.template.cliques[0].resourceSharing[2].name: Duplicate value: \"x\": is shared by another entry of the list: list it once",
            ],
        ),
        (
            "resourceSharing",
            json!([{"name": "a.b", "scope": "AllReplicas"}]),
            &[
                "spec.template.resourceSharing[0].name: Invalid value: \"a.b\": may only hold lowercase letters, digits and '-'",
            ],
        ),
    ]);
}

/// `svc` has three characters, `svc-0-pre-0-work-0-` with a group and a clique nineteen.
#[test]
fn names_of_claims_fit_at_the_most_replicas() {
    let said = |path: &str, length: usize, scope: &str| {
        let share = json!([{"name": "t".repeat(length), "scope": scope}]);
        let all = texts(&check(&edited(&[(path, share)])));
        all.iter()
            .any(|text| text.contains("leads to a claim with a name of 64 characters"))
    };
    for (path, before, scope) in [
        ("resourceSharing", "svc-0-", "PerReplica"),
        ("resourceSharing", "svc-all-", "AllReplicas"),
        (
            "podCliqueScalingGroups.0.resourceSharing",
            "svc-0-pre-4-",
            "PerReplica",
        ),
        ("cliques.0.resourceSharing", "svc-0-front-3-", "PerReplica"),
        (
            "cliques.2.resourceSharing",
            "svc-0-pre-4-work-all-",
            "AllReplicas",
        ),
    ] {
        let room = 63 - before.len();
        assert!(!said(path, room, scope), "{path} {scope}");
        assert!(said(path, room + 1, scope), "{path} {scope}");
    }
}

#[test]
fn all_errors_come_at_once() {
    let many = edited(&[
        (".metadata.name", json!("A")),
        ("cliques.1.spec.minAvailable", json!(2)),
        ("cliques.2.spec.startsAfter", json!(["gone"])),
        (
            "podCliqueScalingGroups.0.cliqueNames",
            json!(["lead", "work", "nobody"]),
        ),
    ]);
    assert_eq!(check(&many).len(), 4, "{:?}", texts(&check(&many)));
}

fn changed(edits: &[(&str, Value)]) -> Vec<String> {
    texts(&update::check(&edited(&[]), &edited(edits)))
}

#[test]
fn what_may_change_may() {
    for (path, value) in [
        (".spec.replicas", json!(7)),
        (".spec.updateStrategy", json!({"type": "OnDelete"})),
        (".metadata.labels", json!({"a": "b"})),
        ("terminationDelay", json!("2h")),
        ("priorityClassName", json!("high")),
        (
            "headlessServiceConfig",
            json!({"publishNotReadyAddresses": false}),
        ),
        ("cliques.0.spec.replicas", json!(3)),
        ("cliques.0.spec.autoScalingConfig", Value::Null),
        ("cliques.0.labels", json!({})),
        ("cliques.0.annotations", json!({"a": "b"})),
        ("cliques.0.spec.podSpec.containers.0.image", json!("other")),
        (
            "cliques.0.spec.podSpec.schedulerName",
            json!("default-scheduler"),
        ),
        ("cliques.2.spec.startsAfter", json!(["front", "lead"])),
        ("cliques.1.resourceSharing", json!([])),
        ("cliques.2.spec.minAvailable", Value::Null),
        ("podCliqueScalingGroups.0.replicas", json!(3)),
        ("podCliqueScalingGroups.0.scaleConfig", Value::Null),
        ("podCliqueScalingGroups.0.annotations", json!({"a": "b"})),
        ("podCliqueScalingGroups.0.minAvailable", Value::Null),
    ] {
        assert_eq!(
            changed(&[(path, value.clone())]),
            [""; 0],
            "{path} = {value}"
        );
    }
}

#[test]
fn what_gangs_were_placed_by_may_not_change() {
    let pods = json!({"containers": []});
    let clique = |name: &str| json!({"name": name, "spec": {"roleName": name, "podSpec": pods}});
    let table: &[(&str, Value, &[&str])] = &[
        (
            "cliqueStartupType",
            json!("CliqueStartupTypeAnyOrder"),
            &[
                "spec.template.cliqueStartupType: Invalid value: \"CliqueStartupTypeAnyOrder\": field is immutable and was \
               \"CliqueStartupTypeExplicit\": create another PodCliqueSet for that",
            ],
        ),
        (
            "cliques.1.spec.roleName",
            json!("boss"),
            &[
                "spec.template.cliques[1].spec.roleName: Invalid value: \"boss\": field is immutable and was \"lead\": create another \
               PodCliqueSet for that",
            ],
        ),
        (
            "cliques.2.spec.minAvailable",
            json!(2),
            &[
                "spec.template.cliques[2].spec.minAvailable: Invalid value: 2: field is immutable and was 3: create another PodCliqueSet for \
               that",
            ],
        ),
        (
            "cliques.1.spec.startsAfter",
            json!([]),
            &[
                "spec.template.cliques[1].spec.startsAfter: Invalid value: []: field is immutable and was [\"front\"]: create another \
               PodCliqueSet for that",
            ],
        ),
        (
            "cliques.1.spec.podSpec.schedulerName",
            json!("mine"),
            &[
                "spec.template.cliques[1].spec.podSpec.schedulerName: Invalid value: \"mine\": field is immutable and was \
               \"default-scheduler\": create another PodCliqueSet for that",
            ],
        ),
        (
            "cliques.1.resourceSharing",
            json!([{"name": "x", "scope": "PerReplica"}]),
            &[
                "spec.template.cliques[1].resourceSharing: Invalid value: [{\"name\":\"x\",\"scope\":\"PerReplica\"}]: field is immutable: \
               create another PodCliqueSet for that",
            ],
        ),
        (
            "cliques.3",
            clique("new"),
            &[
                "spec.template.cliques[3].name: Forbidden: clique new cannot be added or renamed: create another PodCliqueSet for that",
            ],
        ),
        (
            "cliques.0.name",
            json!("back"),
            &[
                "spec.template.cliques[0].name: Forbidden: clique back cannot be added or renamed: create another PodCliqueSet for that",
                "spec.template.cliques: Forbidden: clique front cannot be taken out or renamed: create another PodCliqueSet for that",
            ],
        ),
        (
            "podCliqueScalingGroups",
            json!([]),
            &[
                "spec.template.podCliqueScalingGroups: Forbidden: scaling group pre cannot be taken out or renamed: create another \
               PodCliqueSet for that",
            ],
        ),
        (
            "podCliqueScalingGroups.0.cliqueNames",
            json!(["work", "lead"]),
            &[
                "spec.template.podCliqueScalingGroups[0].cliqueNames: Invalid value: [\"work\",\"lead\"]: field is immutable and was \
               [\"lead\",\"work\"]: create another PodCliqueSet for that",
            ],
        ),
        (
            "podCliqueScalingGroups.0.minAvailable",
            json!(2),
            &[
                "spec.template.podCliqueScalingGroups[0].minAvailable: Invalid value: 2: field is immutable and was 1: create another \
               PodCliqueSet for that",
            ],
        ),
        (
            "podCliqueScalingGroups.0.resourceSharing",
            Value::Null,
            &[
                "spec.template.podCliqueScalingGroups[0].resourceSharing: Invalid value: []: field is immutable: create another PodCliqueSet \
               for that",
            ],
        ),
        (
            "resourceSharing",
            json!([]),
            &[
                "spec.template.resourceSharing: Invalid value: []: field is immutable: create another PodCliqueSet for that",
            ],
        ),
        (
            "resourceClaimTemplates",
            json!([]),
            &[
                "spec.template.resourceClaimTemplates: Invalid value: []: field is immutable: create another PodCliqueSet for that",
            ],
        ),
        (
            "topologyConstraint.pack.required",
            json!("rack"),
            &[
                "spec.template.topologyConstraint: Forbidden: the constraint cannot change while gangs are placed by it: create another \
               PodCliqueSet for that",
            ],
        ),
        (
            "cliques.1.topologyConstraint",
            json!({"pack": {"preferred": "rack"}}),
            &[
                "spec.template.cliques[1].topologyConstraint: Forbidden: the constraint cannot change while gangs are placed by it: create \
               another PodCliqueSet for that",
            ],
        ),
        (
            "podCliqueScalingGroups.0.topologyConstraint",
            json!({"pack": {"preferred": "rack"}}),
            &[
                "spec.template.podCliqueScalingGroups[0].topologyConstraint: Forbidden: the constraint cannot change while gangs are placed by \
               it: create another PodCliqueSet for that",
            ],
        ),
        (
            ".metadata.annotations",
            json!({"grove.io/mnnvl-group": "none"}),
            &[
                "metadata.annotations.grove.io/mnnvl-group: Forbidden: cannot be added: create another PodCliqueSet for that",
            ],
        ),
    ];
    for (path, value, said) in table {
        assert_eq!(&changed(&[(path, value.clone())]), said, "{path} = {value}");
    }
}

#[test]
fn the_order_of_cliques_stays_where_it_means_something() {
    let swapped = |kind: &str| {
        let kind = ("cliqueStartupType", json!(kind));
        let mut new = edited(std::slice::from_ref(&kind));
        new.spec.template.cliques.swap(0, 1);
        texts(&update::check(&edited(&[kind]), &new))
    };
    assert_eq!(swapped("CliqueStartupTypeAnyOrder"), [""; 0]);
    for kind in ["CliqueStartupTypeInOrder", "CliqueStartupTypeExplicit"] {
        assert_eq!(
            swapped(kind),
            [
                "spec.template.cliques: Invalid value: [\"lead\",\"front\",\"work\"]: the order of cliques cannot change where it is the start \
              order; it was [\"front\",\"lead\",\"work\"]"
            ]
        );
    }
}

#[test]
fn a_deprecated_constraint_may_be_mended_and_an_mnnvl_group_not() {
    let with = |path: &'static str, value: Value| edited(&[(path, value)]);
    let place = |value: Value| with("topologyConstraint", value);
    let old = place(json!({"packDomain": "rack"}));
    for new in [
        json!({"pack": {"required": "rack"}}),
        json!({"topologyName": "t", "packDomain": "rack"}),
    ] {
        assert_eq!(
            texts(&update::check(&old, &place(new.clone()))),
            [""; 0],
            "{new}"
        );
    }
    assert_eq!(
        update::check(&old, &place(json!({"packDomain": "zone"}))).len(),
        1
    );
    assert_eq!(
        update::check(
            &edited(&[]),
            &place(json!({"topologyName": "u", "pack": {"required": "zone"}}))
        )
        .len(),
        1
    );

    let group = |value: Value| {
        with(
            "cliques.0.annotations",
            json!({"grove.io/mnnvl-group": value}),
        )
    };
    let path = "spec.template.cliques[0].annotations.grove.io/mnnvl-group";
    assert_eq!(
        texts(&update::check(&group(json!("a")), &group(json!("b")))),
        [format!(
            "{path}: Invalid value: \"b\": field is immutable and was \"a\": create another PodCliqueSet for that"
        )]
    );
    assert_eq!(
        texts(&update::check(&group(json!("a")), &edited(&[]))),
        [format!(
            "{path}: Forbidden: cannot be taken out: create another PodCliqueSet for that"
        )]
    );
}

#[test]
fn samples_and_workloads_are_accepted_before_and_after_their_defaults() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let below = |folder: &str| manifests_below(&root.join(folder)).unwrap();
    let files = [below("testdata/workloads"), below("../samples")].concat();
    let mut sets = 0;
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for document in coppice_testbed::parse_yaml(&text).unwrap() {
            let mut object = serde_json::to_value(&document).unwrap();
            if object["kind"] != "PodCliqueSet" {
                continue;
            }
            sets += 1;
            let written: PodCliqueSet = serde_json::from_value(object.clone()).unwrap();
            defaults::complete(&mut object, None);
            let completed: PodCliqueSet = serde_json::from_value(object.clone()).unwrap();
            for set in [&written, &completed] {
                assert_eq!(texts(&check(set)), [""; 0], "{}", file.display());
                assert_eq!(texts(&check_new(set)), [""; 0], "{}", file.display());
                assert!(
                    Validated::new(Arc::new(set.clone())).is_ok(),
                    "{}",
                    file.display()
                );
            }
            assert_eq!(
                texts(&update::check(&written, &completed)),
                [""; 0],
                "{}",
                file.display()
            );
        }
    }
    assert!(sets >= 13, "{sets}");
}

/// Sets that the schema lets through: unique clique names, no empty lists, numbers in range.
fn any_set() -> impl Strategy<Value = PodCliqueSet> {
    let name = || prop_oneof![6 => "[a-d]", 1 => Just(String::new()), 1 => Just("A.b".to_owned()), 1 => "[ab]-[01](-[ab])?"];
    let clique = (
        name(),
        0..4i32,
        prop::option::of(1..4i32),
        prop::collection::vec(name(), 0..3),
        any::<bool>(),
    );
    let cliques = prop::collection::btree_map(name(), clique, 1..5);
    let group = (
        name(),
        prop::collection::vec(name(), 1..4),
        1..4i32,
        prop::option::of(1..4i32),
        any::<bool>(),
    );
    let kinds = prop_oneof![Just("AnyOrder"), Just("InOrder"), Just("Explicit")];
    let set_name = prop_oneof![8 => Just("s".to_owned()), 1 => name()];
    (cliques, prop::collection::vec(group, 0..3), kinds, set_name, -1..3i32).prop_map(|(cliques, groups, kind, set_name, replicas)| {
        let scaling = |wanted: bool| wanted.then(|| json!({"maxReplicas": 9}));
        let cliques = cliques.into_iter().map(|(name, (role, replicas, minimum, after, scaled))| {
            json!({"name": name, "spec": {"roleName": role, "replicas": replicas, "minAvailable": minimum, "startsAfter": after,
                "autoScalingConfig": scaling(scaled), "podSpec": {"containers": []}}})
        });
        let groups = groups.into_iter().map(|(name, members, replicas, minimum, scaled)| {
            json!({"name": name, "cliqueNames": members, "replicas": replicas, "minAvailable": minimum, "scaleConfig": scaling(scaled)})
        });
        let set = json!({"metadata": {"name": set_name}, "spec": {"replicas": replicas, "template": {
            "cliqueStartupType": format!("CliqueStartupType{kind}"),
            "cliques": cliques.collect::<Value>(), "podCliqueScalingGroups": groups.collect::<Value>()}}});
        serde_json::from_value(set).unwrap()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// The planner's types refuse nothing that the rules let through, so a stored set can be planned.
    #[test]
    fn what_the_rules_accept_can_be_planned(set in any_set()) {
        let accepted = plannable(&set).is_empty();
        prop_assert_eq!(Validated::new(Arc::new(set)).is_ok(), accepted);
    }

    #[test]
    fn a_set_may_stay_as_it_is_and_have_its_defaults_stated(set in any_set()) {
        if plannable(&set).is_empty() {
            prop_assert_eq!(texts(&update::check(&set, &set)), texts(&[]));
        }
        let mut object = serde_json::to_value(&set).unwrap();
        defaults::complete(&mut object, None);
        let completed: PodCliqueSet = serde_json::from_value(object).unwrap();
        if plannable(&set).is_empty() {
            prop_assert_eq!(texts(&update::check(&set, &completed)), texts(&[]));
        }
        prop_assert_eq!(texts(&check(&completed)), texts(&check(&set)));
    }
}
