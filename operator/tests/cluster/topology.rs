//! Pods are packed into the domains that a set names, and stay there. Ids are upstream's scenarios.
//!
//! Nodes hold two pods, racks two nodes, blocks two racks; there are two blocks.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use coppice_operator_api::condition::{self, ConditionType};
use coppice_operator_api::{ClusterTopologyBinding, PodCliqueSet, PodGang, labels};
use coppice_testbed::Profile;
use coppice_testbed::fleet::{Farewell, Fleet, FleetSettings};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::support::{World, label, node};

const LEVELS: [(&str, &str); 3] = [
    ("block", "topology.example.com/block"),
    ("rack", "topology.example.com/rack"),
    ("host", "kubernetes.io/hostname"),
];

struct Site {
    world: World,
    _nodes: Fleet,
    pool: String,
}

impl Site {
    async fn new(profile: Profile, pool: &str) -> Result<Self> {
        let world = World::new(profile, pool, &[]).await?;
        let mut settings = FleetSettings::new(8);
        settings.name_prefix = format!("{pool}-");
        settings.labels = BTreeMap::from([("pool".to_owned(), pool.to_owned())]);
        settings.shape.gpus = 2;
        settings.farewell = Farewell::CleanUp;
        settings.topology.nodes_per_rack = 2;
        settings.topology.racks_per_block = 2;
        settings.topology.rack_keys = vec![LEVELS[1].1.to_owned()];
        settings.topology.block_keys = vec![LEVELS[0].1.to_owned()];
        let nodes = Fleet::start(world.cluster, settings).await?;
        let site = Self {
            world,
            _nodes: nodes,
            pool: pool.to_owned(),
        };
        site.bind(&LEVELS).await?;
        Ok(site)
    }

    fn bindings(&self) -> Api<ClusterTopologyBinding> {
        Api::all(self.world.client.clone())
    }

    async fn bind(&self, levels: &[(&str, &str)]) -> Result<()> {
        let levels: Vec<_> = levels
            .iter()
            .map(|(domain, key)| json!({"domain": domain, "key": key}))
            .collect();
        let binding = json!({
            "apiVersion": "grove.io/v1alpha1",
            "kind": "ClusterTopologyBinding",
            "metadata": {"name": self.pool},
            "spec": {"levels": levels},
        });
        let parameters = PatchParams::apply("tests").force();
        self.bindings()
            .patch(&self.pool, &parameters, &Patch::Apply(&binding))
            .await?;
        Ok(())
    }

    /// A set: its constraint, its cliques (name, pods that are all needed, constraint) and the rest of its template.
    async fn apply(
        &self,
        replicas: u32,
        constraint: &str,
        cliques: &[(&str, u32, &str)],
        rest: &str,
    ) -> Result<()> {
        let pool = &self.pool;
        let constrained = |kind: &str| match kind {
            "" => String::new(),
            kind => format!("topologyConstraint: {{topologyName: {pool}, pack: {{{kind}}}}}"),
        };
        let cliques: String = cliques
            .iter()
            .map(|(name, pods, of)| {
                let of = constrained(of);
                let comma = if of.is_empty() { "" } else { ", " };
                format!(
                    "    - {{name: {name}{comma}{of}, spec: {{roleName: {name}, replicas: {pods}, minAvailable: {pods}, podSpec: {{nodeSelector: {{pool: {pool}}}, \
                     containers: [{{name: main, image: \"registry.example/app:1\", resources: {{limits: {{nvidia.com/gpu: 1}}}}}}]}}}}}}\n"
                )
            })
            .collect();
        let rest = rest.replace("POOL", pool);
        let yaml = format!(
            "apiVersion: grove.io/v1alpha1\nkind: PodCliqueSet\nmetadata: {{name: workload}}\nspec:\n  replicas: {replicas}\n  template:\n    {}\n    \
             cliques:\n{cliques}{rest}",
            constrained(constraint),
        );
        self.world.apply(&yaml).await
    }

    /// The domains that pods of these labels are in, at a level.
    async fn domains(&self, level: usize, of: &[(&str, &str)]) -> Result<BTreeSet<String>> {
        let nodes: Api<Node> = Api::all(self.world.client.clone());
        let nodes = nodes
            .list(&ListParams::default().labels(&format!("pool={}", self.pool)))
            .await?;
        let nodes: BTreeMap<String, String> = nodes
            .iter()
            .map(|node| {
                let domain = node.labels().get(LEVELS[level].1).cloned();
                (node.name_any(), domain.unwrap_or_default())
            })
            .collect();
        let pods = self.world.active().await?;
        let chosen = pods
            .iter()
            .filter(|pod| of.iter().all(|(key, value)| label(pod, key) == *value));
        let domains = chosen.map(|pod| nodes[node(pod).unwrap()].clone());
        Ok(domains.collect())
    }

    async fn together(&self, level: usize, of: &[(&str, &str)]) -> Result<()> {
        let domains = self.domains(level, of).await?;
        ensure!(domains.len() == 1, "{of:?} are in {domains:?}");
        Ok(())
    }

    async fn levels_condition(&self) -> Result<(String, String)> {
        let set = self.world.api::<PodCliqueSet>().get("workload").await?;
        let conditions = set
            .status
            .unwrap_or_default()
            .conditions
            .unwrap_or_default();
        let found = condition::find(&conditions, ConditionType::TopologyLevelsUnavailable);
        let found = found.context("no condition")?;
        Ok((found.status.clone(), found.reason.clone()))
    }
}

const ALL: [(&str, &str); 0] = [];
const RACK: &str = "required: rack";

/// TAS3, TAS5 and TAS14: a set replica in a rack, a clique on a host; and what is lost comes back where the rest is.
async fn packed(profile: Profile, pool: &str) -> Result<()> {
    let site = Site::new(profile, pool).await?;
    let world = &site.world;
    site.apply(2, RACK, &[("router", 1, ""), ("worker", 3, "")], "")
        .await?;
    world.expect_pods(8, 0).await?;
    for replica in ["0", "1"] {
        site.together(1, &[(labels::SET_REPLICA_INDEX, replica)])
            .await?;
    }
    let before = site.domains(1, &[(labels::SET_REPLICA_INDEX, "0")]).await?;
    let pods = world.active().await?;
    let victim = pods
        .iter()
        .find(|pod| label(pod, labels::CLIQUE) == "workload-0-worker")
        .context("a worker")?;
    world.delete_pod(victim).await?;
    world
        .until("another pod in its place", || async {
            let pods = world.active().await?;
            ensure!(
                pods.len() == 8 && pods.iter().all(|pod| node(pod).is_some()),
                "{}",
                pods.len()
            );
            ensure!(
                pods.iter().all(|pod| pod.uid() != victim.uid()),
                "the old one"
            );
            anyhow::Ok(())
        })
        .await?;
    assert_eq!(
        site.domains(1, &[(labels::SET_REPLICA_INDEX, "0")]).await?,
        before
    );
    let (status, reason) = site.levels_condition().await?;
    assert_eq!(
        (status.as_str(), reason.as_str()),
        ("False", "AllClusterTopologyLevelsAvailable")
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn tas3_tas14_a_set_replica_is_packed_and_repaired_in_its_rack() -> Result<()> {
    packed(Profile::Native, "tas3").await
}

#[tokio::test(flavor = "multi_thread")]
async fn gated_tas3_tas14_a_set_replica_is_packed_and_repaired_in_its_rack() -> Result<()> {
    packed(Profile::Plain, "gated-tas3").await
}

/// A clique with a constraint of its own that has lost all its pods follows the rest of its gang, on every level.
async fn lost_all(profile: Profile, pool: &str) -> Result<()> {
    let site = Site::new(profile, pool).await?;
    let world = &site.world;
    let cliques = [("router", 1, "required: host"), ("worker", 2, "")];
    site.apply(1, RACK, &cliques, "").await?;
    world.expect_pods(3, 0).await?;
    let before = site.domains(1, &ALL).await?;
    assert_eq!(before.len(), 1, "{before:?}");
    // Wherever it is put by chance, one of these would be another of the four racks.
    for _ in 0..4 {
        let pods = world.active().await?;
        let of_router = |pod: &&Pod| label(pod, labels::CLIQUE) == "workload-0-router";
        let router = pods.iter().find(of_router).context("a router")?;
        world.delete_pod(router).await?;
        world
            .until("another router", || async {
                let pods = world.active().await?;
                let now = pods.iter().find(of_router).context("no router")?;
                ensure!(
                    now.uid() != router.uid() && node(now).is_some(),
                    "the old one, or not bound"
                );
                anyhow::Ok(())
            })
            .await?;
        assert_eq!(site.domains(1, &ALL).await?, before);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clique_that_lost_all_its_pods_comes_back_where_its_gang_is() -> Result<()> {
    lost_all(Profile::Native, "lost-all").await
}

#[tokio::test(flavor = "multi_thread")]
async fn gated_a_clique_that_lost_all_its_pods_comes_back_where_its_gang_is() -> Result<()> {
    lost_all(Profile::Plain, "gated-lost-all").await
}

/// TAS5: one clique on one host.
async fn one_host(profile: Profile, pool: &str) -> Result<()> {
    let site = Site::new(profile, pool).await?;
    site.apply(1, "", &[("worker", 2, "required: host")], "")
        .await?;
    site.world.expect_pods(2, 0).await?;
    site.together(2, &ALL).await
}

#[tokio::test(flavor = "multi_thread")]
async fn tas5_a_clique_is_packed_on_a_host() -> Result<()> {
    one_host(Profile::Native, "tas5").await
}

#[tokio::test(flavor = "multi_thread")]
async fn gated_tas5_a_clique_is_packed_on_a_host() -> Result<()> {
    one_host(Profile::Plain, "gated-tas5").await
}

/// TAS13: more pods than a rack has room for wait together, and the gang says why.
async fn too_many(profile: Profile, pool: &str) -> Result<()> {
    let site = Site::new(profile, pool).await?;
    let world = &site.world;
    site.apply(1, RACK, &[("worker", 5, "")], "").await?;
    world.expect_pods_for_good(0, 5).await?;
    world
        .until("the gang to say why it waits", || async {
            let gang = world.api::<PodGang>().get("workload-0").await?;
            let conditions = gang
                .status
                .unwrap_or_default()
                .conditions
                .unwrap_or_default();
            let scheduled = condition::find(&conditions, ConditionType::Scheduled);
            let scheduled = scheduled.context("no condition")?;
            ensure!(
                scheduled.status == "False" && scheduled.reason == "Unschedulable",
                "{scheduled:?}"
            );
            anyhow::Ok(())
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn tas13_a_gang_larger_than_its_domain_waits_as_a_whole() -> Result<()> {
    too_many(Profile::Native, "tas13").await
}

#[tokio::test(flavor = "multi_thread")]
async fn gated_tas13_a_gang_larger_than_its_domain_waits_as_a_whole() -> Result<()> {
    too_many(Profile::Plain, "gated-tas13").await
}

/// TAS2: cliques of one gang, each with a constraint of its own.
async fn own_constraints(profile: Profile, pool: &str) -> Result<()> {
    let site = Site::new(profile, pool).await?;
    let cliques = [("in-rack", 3, RACK), ("in-block", 4, "required: block")];
    site.apply(1, "", &cliques, "").await?;
    site.world.expect_pods(7, 0).await?;
    site.together(1, &[(labels::CLIQUE, "workload-0-in-rack")])
        .await?;
    site.together(0, &[(labels::CLIQUE, "workload-0-in-block")])
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn tas2_cliques_have_constraints_of_their_own() -> Result<()> {
    own_constraints(Profile::Native, "tas2").await
}

#[tokio::test(flavor = "multi_thread")]
async fn gated_tas2_cliques_have_constraints_of_their_own() -> Result<()> {
    own_constraints(Profile::Plain, "gated-tas2").await
}

/// TAS8 and TAS10: a block for the set replica, a rack for each replica of the group, in the base gang and beyond, a host
/// for each clique.
async fn three_levels(profile: Profile, pool: &str) -> Result<()> {
    let site = Site::new(profile, pool).await?;
    let world = &site.world;
    let cliques = [
        ("prefill", 2, "required: host"),
        ("decode", 2, "required: host"),
    ];
    let group = |minimum: u32| {
        format!(
            "    podCliqueScalingGroups:\n    - {{name: unit, cliqueNames: [prefill, decode], replicas: 2, minAvailable: {minimum}, \
             topologyConstraint: {{topologyName: POOL, pack: {{required: rack}}}}}}\n"
        )
    };
    for minimum in [2, 1] {
        site.apply(1, "required: block", &cliques, &group(minimum))
            .await?;
        world.expect_pods(8, 0).await?;
        // Only the base gang as a whole is bound to a block; a scaled gang has its own constraint.
        if minimum == 2 {
            site.together(0, &ALL).await?;
        }
        for replica in ["0", "1"] {
            site.together(1, &[(labels::GROUP_REPLICA_INDEX, replica)])
                .await?;
            for clique in ["prefill", "decode"] {
                let name = format!("workload-0-unit-{replica}-{clique}");
                site.together(2, &[(labels::CLIQUE, &name)]).await?;
            }
        }
        let gang = world.api::<PodGang>().get("workload-0").await?;
        let configs = gang
            .spec
            .topology_constraint_group_configs
            .unwrap_or_default();
        let names: Vec<&str> = configs.iter().map(|config| config.name.as_str()).collect();
        let expected = ["workload-0-unit-0", "workload-0-unit-1"];
        assert_eq!(names, expected[..usize::try_from(minimum)?]);
        assert_eq!(
            gang.metadata.annotations.unwrap_or_default()["grove.io/topology-name"],
            pool
        );
        world
            .api::<PodCliqueSet>()
            .delete("workload", &DeleteParams::default())
            .await?;
        world
            .until("the set to go", || async {
                let sets = world.api::<PodCliqueSet>().get_opt("workload").await?;
                ensure!(
                    sets.is_none() && world.pods().await?.is_empty(),
                    "it is there"
                );
                anyhow::Ok(())
            })
            .await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn tas8_tas10_three_levels_hold_at_once() -> Result<()> {
    three_levels(Profile::Native, "tas8").await
}

#[tokio::test(flavor = "multi_thread")]
async fn gated_tas8_tas10_three_levels_hold_at_once() -> Result<()> {
    three_levels(Profile::Plain, "gated-tas8").await
}

/// TAS20: without its binding a set runs unconstrained and says so; what runs keeps its constraints.
#[tokio::test(flavor = "multi_thread")]
async fn tas20_a_binding_goes_and_comes_back() -> Result<()> {
    let site = Site::new(Profile::Native, "tas20").await?;
    let world = &site.world;
    site.apply(1, RACK, &[("router", 1, ""), ("worker", 2, "")], "")
        .await?;
    world.expect_pods(3, 0).await?;
    let constraint = |name: &'static str| async move {
        let gang = world.api::<PodGang>().get(name).await?;
        anyhow::Ok(gang.spec.topology_constraint)
    };
    assert!(constraint("workload-0").await?.is_some());
    let expect = |status: &'static str, reason: &'static str| {
        let site = &site;
        async move {
            let what = format!("the condition {status}, {reason}");
            world
                .until(&what, || async {
                    let seen = site.levels_condition().await?;
                    ensure!(
                        (seen.0.as_str(), seen.1.as_str()) == (status, reason),
                        "{seen:?}"
                    );
                    anyhow::Ok(())
                })
                .await
        }
    };
    expect("False", "AllClusterTopologyLevelsAvailable").await?;
    site.bind(&LEVELS[..1]).await?;
    expect("True", "ClusterTopologyLevelsUnavailable").await?;
    site.bindings()
        .delete("tas20", &DeleteParams::default())
        .await?;
    expect("Unknown", "ClusterTopologyNotFound").await?;
    world.scale_set("workload", 2).await?;
    world.expect_pods(6, 0).await?;
    world.expect_available("workload", 2).await?;
    assert_eq!(constraint("workload-1").await?, None);
    site.bind(&LEVELS).await?;
    expect("False", "AllClusterTopologyLevelsAvailable").await?;
    world
        .until("the constraint of the second replica", || async {
            ensure!(constraint("workload-1").await?.is_some(), "none");
            anyhow::Ok(())
        })
        .await
}

/// TAS23: preferences move pods together where there is room, and nothing waits for them.
#[tokio::test(flavor = "multi_thread")]
async fn tas23_preferred_domains_are_preferences() -> Result<()> {
    let site = Site::new(Profile::Native, "tas23").await?;
    site.apply(1, "preferred: rack", &[("worker", 6, "")], "")
        .await?;
    site.world.expect_pods(6, 0).await?;
    let gang = site.world.api::<PodGang>().get("workload-0").await?;
    let constraint = gang
        .spec
        .topology_constraint
        .and_then(|of| of.pack_constraint);
    let constraint = constraint.context("a constraint")?;
    assert_eq!(
        (constraint.required, constraint.preferred.as_deref()),
        (None, Some(LEVELS[1].1))
    );
    Ok(())
}
