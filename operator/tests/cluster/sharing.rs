//! Claims that pods share, with real claims, a real scheduler that allocates them, and devices that every node reaches.
//! Ids are upstream's scenarios.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use coppice_operator_api::condition::{self, ConditionType};
use coppice_operator_api::{PodClique, PodCliqueScalingGroup, PodCliqueSet, labels};
use coppice_testbed::fleet::Fleet;
use coppice_testbed::{Profile, wait};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{
    DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice,
};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::support::{QUIET, World, label, more_nodes};

/// Devices on a network, which any pod on any node may use.
pub(crate) async fn devices(world: &World, pool: &str, count: usize) -> Result<()> {
    let driver = format!("{pool}.example.com");
    let parameters = PatchParams::apply("tests").force();
    let class = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": driver},
        "spec": {"selectors": [{"cel": {"expression": format!("device.driver == '{driver}'")}}]},
    });
    Api::<DeviceClass>::all(world.client.clone())
        .patch(&driver, &parameters, &Patch::Apply(&class))
        .await?;
    let devices: Vec<Value> = (0..count)
        .map(|number| json!({"name": format!("d{number}")}))
        .collect();
    let slice = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": pool},
        "spec": {
            "driver": driver, "allNodes": true, "devices": devices,
            "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1},
        },
    });
    Api::<ResourceSlice>::all(world.client.clone())
        .patch(pool, &parameters, &Patch::Apply(&slice))
        .await?;
    Ok(())
}

/// A ResourceClaimTemplate beside the set.
async fn external_template(world: &World, pool: &str) -> Result<()> {
    let template = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "ext"},
        "spec": {"spec": request(pool)},
    });
    world
        .api::<ResourceClaimTemplate>()
        .patch(
            "ext",
            &PatchParams::apply("tests").force(),
            &Patch::Apply(&template),
        )
        .await?;
    Ok(())
}

pub(crate) fn request(pool: &str) -> Value {
    json!({"devices": {"requests": [{"name": "d", "exactly": {"deviceClassName": format!("{pool}.example.com")}}]}})
}

/// Both scopes on every level, with filters, from the set's own template and from another one:
///
/// - of the set, for all replicas: `int` for `worker-a` alone, `ext` for everybody; for each replica: `per` for the group;
/// - of `worker-a`: `int` and `two` for all pods, `own` for each;
/// - of the group: `int` for all, `two` for the clique `worker-b` of it; `own` for each replica;
/// - of `worker-b`: `own` for each pod.
fn manifest(pool: &str) -> Value {
    let template = |name: &str| json!({"name": name, "templateSpec": {"spec": request(pool)}});
    let pods = json!({
        "nodeSelector": {"pool": pool},
        "initContainers": [{"name": "first", "image": "registry.example/app:1"}],
        "containers": [{"name": "main", "image": "registry.example/app:1"}, {"name": "side", "image": "registry.example/app:1"}],
    });
    let share = |name: &str, scope: &str| json!({"name": name, "scope": scope});
    let filtered = |name: &str, scope: &str, filter: Value| json!({"name": name, "scope": scope, "filter": filter});
    json!({
        "apiVersion": "grove.io/v1alpha1", "kind": "PodCliqueSet", "metadata": {"name": "workload"},
        "spec": {"replicas": 1, "template": {
            "resourceClaimTemplates": [template("int"), template("two"), template("per"), template("own")],
            "resourceSharing": [
                filtered("int", "AllReplicas", json!({"childCliqueNames": ["worker-a"]})),
                share("ext", "AllReplicas"),
                filtered("per", "PerReplica", json!({"childScalingGroupNames": ["sga"]})),
            ],
            "cliques": [
                {"name": "worker-a", "spec": {"roleName": "a", "replicas": 1, "minAvailable": 1, "podSpec": pods},
                    "resourceSharing": [share("own", "PerReplica"), share("int", "AllReplicas"), share("two", "AllReplicas")]},
                {"name": "worker-b", "spec": {"roleName": "b", "replicas": 1, "minAvailable": 1, "podSpec": pods},
                    "resourceSharing": [share("own", "PerReplica")]},
            ],
            "podCliqueScalingGroups": [{"name": "sga", "cliqueNames": ["worker-b"], "replicas": 2, "minAvailable": 1, "resourceSharing": [
                share("int", "AllReplicas"),
                filtered("two", "AllReplicas", json!({"childCliqueNames": ["worker-b"]})),
                share("own", "PerReplica"),
            ]}],
        }},
    })
}

struct Site {
    world: World,
    _nodes: Fleet,
}

impl Site {
    async fn new(profile: Profile, pool: &str) -> Result<Self> {
        let world = World::new(profile, pool, &[]).await?;
        let nodes = more_nodes(world.cluster, pool, "", 4, 8).await?;
        devices(&world, pool, 32).await?;
        Ok(Self {
            world,
            _nodes: nodes,
        })
    }

    async fn claims(&self) -> Result<Vec<ResourceClaim>> {
        let list = self.world.api::<ResourceClaim>();
        let list = list
            .list(&kube::api::ListParams::default().labels(&labels::managed_selector()))
            .await?;
        Ok(list.items)
    }

    /// So many claims, none of them on its way out, and so many ready pods.
    async fn expect(&self, claims: usize, pods: usize) -> Result<()> {
        let what = format!("{claims} claims");
        self.world
            .until(&what, || async {
                let found = self.claims().await?;
                let names: Vec<String> = found.iter().map(ResourceExt::name_any).collect();
                ensure!(names.len() == claims, "{}: {names:?}", names.len());
                ensure!(
                    found
                        .iter()
                        .all(|claim| claim.metadata.deletion_timestamp.is_none()),
                    "some are going"
                );
                anyhow::Ok(())
            })
            .await?;
        self.world.expect_pods(pods, 0).await
    }

    /// Claims that each pod names, by PodClique and index; all of its containers name the same.
    async fn claims_of_pods(&self) -> Result<BTreeMap<String, Vec<String>>> {
        let mut found = BTreeMap::new();
        for pod in self.world.active().await? {
            let spec = pod.spec.clone().context("a spec")?;
            let claims = spec.resource_claims.unwrap_or_default();
            let names: Vec<String> = claims.iter().map(|claim| claim.name.clone()).collect();
            ensure!(
                claims
                    .iter()
                    .all(|claim| claim.resource_claim_name.as_ref() == Some(&claim.name)),
                "{claims:?}"
            );
            for container in spec
                .containers
                .iter()
                .chain(spec.init_containers.iter().flatten())
            {
                let used = container
                    .resources
                    .iter()
                    .flat_map(|resources| resources.claims.iter().flatten());
                let used: Vec<String> = used.map(|claim| claim.name.clone()).collect();
                ensure!(used == names, "{}: {used:?}", container.name);
            }
            let key = format!(
                "{}#{}",
                label(&pod, labels::CLIQUE),
                label(&pod, labels::POD_INDEX)
            );
            found.insert(key, names);
        }
        Ok(found)
    }
}

/// RS1a–RS1e and RS1g: names, owners, labels, who uses what, and that all of it follows every scale.
async fn on_every_level(profile: Profile, pool: &str) -> Result<()> {
    let site = Site::new(profile, pool).await?;
    let world = &site.world;
    external_template(world, pool).await?;
    world.apply(&manifest(pool).to_string()).await?;
    site.expect(12, 3).await?;
    let text =
        |names: &[&str]| -> Vec<String> { names.iter().map(|name| (*name).to_owned()).collect() };
    let member = |replica: u32| {
        let own = [
            format!("workload-0-sga-{replica}-own"),
            format!("workload-0-sga-{replica}-worker-b-0-own"),
        ];
        let around = [
            "workload-all-ext",
            "workload-0-per",
            "workload-0-sga-all-int",
            "workload-0-sga-all-two",
        ];
        [text(&around), own.into()].concat()
    };
    let expected: BTreeMap<String, Vec<String>> = [
        (
            "workload-0-worker-a#0".to_owned(),
            text(&[
                "workload-all-int",
                "workload-all-ext",
                "workload-0-worker-a-all-int",
                "workload-0-worker-a-all-two",
                "workload-0-worker-a-0-own",
            ]),
        ),
        ("workload-0-sga-0-worker-b#0".to_owned(), member(0)),
        ("workload-0-sga-1-worker-b#0".to_owned(), member(1)),
    ]
    .into();
    assert_eq!(site.claims_of_pods().await?, expected);
    owners_and_labels(&site).await?;
    reserved(&site).await?;

    world.scale_group("workload-0-sga", 1).await?;
    site.expect(10, 2).await?;
    world.scale_group("workload-0-sga", 3).await?;
    site.expect(14, 4).await?;
    world.scale_clique("workload-0-worker-a", 2).await?;
    site.expect(15, 5).await?;
    world.scale_clique("workload-0-worker-a", 1).await?;
    site.expect(14, 4).await?;
    world.scale_set("workload", 2).await?;
    site.expect(24, 7).await?;
    world.scale_set("workload", 1).await?;
    site.expect(14, 4).await?;

    world.settle(QUIET).await?;
    world
        .api::<PodCliqueSet>()
        .delete("workload", &DeleteParams::default())
        .await?;
    site.expect(0, 0).await?;
    world
        .until("the set to go", || async {
            let set = world.api::<PodCliqueSet>().get_opt("workload").await?;
            ensure!(set.is_none(), "it is there");
            anyhow::Ok(())
        })
        .await
}

async fn owners_and_labels(site: &Site) -> Result<()> {
    let world = &site.world;
    let uid = |object: Option<String>| object.context("a uid");
    let set = uid(world.api::<PodCliqueSet>().get("workload").await?.uid())?;
    let group = uid(world
        .api::<PodCliqueScalingGroup>()
        .get("workload-0-sga")
        .await?
        .uid())?;
    let member = uid(world
        .api::<PodClique>()
        .get("workload-0-sga-1-worker-b")
        .await?
        .uid())?;
    let claims = site.claims().await?;
    let find = |name: &str| {
        let found = claims.iter().find(|claim| claim.name_any() == name);
        found.with_context(|| format!("no claim {name}"))
    };
    for (name, owner, label) in [
        ("workload-all-ext", &set, None),
        (
            "workload-0-per",
            &set,
            Some((labels::SET_REPLICA_INDEX, "0")),
        ),
        (
            "workload-0-sga-all-two",
            &group,
            Some((labels::SCALING_GROUP, "workload-0-sga")),
        ),
        (
            "workload-0-sga-1-own",
            &group,
            Some((labels::GROUP_REPLICA_INDEX, "1")),
        ),
        (
            "workload-0-sga-1-worker-b-0-own",
            &member,
            Some((labels::POD_INDEX, "0")),
        ),
    ] {
        let claim = find(name)?;
        let owners = claim.owner_references();
        ensure!(
            owners.len() == 1 && owners[0].uid == *owner && owners[0].controller == Some(true),
            "{name}: {owners:?}"
        );
        ensure!(
            claim.labels()[labels::COMPONENT] == "resource-claim",
            "{name}"
        );
        if let Some((key, value)) = label {
            ensure!(
                claim.labels().get(key).map(String::as_str) == Some(value),
                "{name}: {:?}",
                claim.labels()
            );
        }
    }
    Ok(())
}

/// The scheduler has given each claim its device, for the pods that name it.
async fn reserved(site: &Site) -> Result<()> {
    let mut users: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for pod in site.world.active().await? {
        let spec = pod.spec.clone().context("a spec")?;
        for claim in spec.resource_claims.unwrap_or_default() {
            users.entry(claim.name).or_default().insert(pod.name_any());
        }
    }
    for claim in site.claims().await? {
        let status = claim.status.clone().unwrap_or_default();
        ensure!(
            status.allocation.is_some(),
            "{} has no device",
            claim.name_any()
        );
        let reserved = status.reserved_for.unwrap_or_default();
        let reserved: BTreeSet<String> = reserved.into_iter().map(|user| user.name).collect();
        let expected = users.remove(&claim.name_any()).unwrap_or_default();
        ensure!(
            reserved == expected,
            "{} is for {reserved:?}",
            claim.name_any()
        );
    }
    ensure!(users.is_empty(), "no claims {users:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn rs1_claims_follow_what_they_are_for_on_every_level() -> Result<()> {
    on_every_level(Profile::Native, "rs1").await
}

#[tokio::test(flavor = "multi_thread")]
async fn gated_rs1_claims_come_before_their_pods_and_go_with_the_set() -> Result<()> {
    on_every_level(Profile::Plain, "gated-rs1").await
}

/// Pods come when their claims are there, the set says what is missing until then, and a restart writes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn pods_wait_for_a_claim_that_cannot_be_made_and_the_set_says_why() -> Result<()> {
    let pool = "rs-wait";
    let mut site = Site::new(Profile::Native, pool).await?;
    let world = &site.world;
    world.apply(&manifest(pool).to_string()).await?;
    world
        .until("the set to say what is missing", || async {
            let set = world.api::<PodCliqueSet>().get("workload").await?;
            let conditions = set
                .status
                .unwrap_or_default()
                .conditions
                .unwrap_or_default();
            let degraded = condition::find(&conditions, ConditionType::Degraded);
            let degraded = degraded.context("no condition")?;
            ensure!(
                degraded.status == "True"
                    && degraded.message.contains("ResourceClaimTemplate")
                    && degraded.message.contains("does not exist: create it"),
                "{degraded:?}"
            );
            anyhow::Ok(())
        })
        .await?;
    wait::holds(QUIET, "no pods", || async {
        let pods = world.pods().await?;
        ensure!(pods.is_empty(), "{} pods", pods.len());
        anyhow::Ok(())
    })
    .await?;
    external_template(world, pool).await?;
    site.expect(12, 3).await?;
    world.expect_available("workload", 1).await?;

    world.settle(QUIET).await?;
    site.world.kill_operator()?;
    let audit = site.world.cluster.audit();
    let mark = audit.mark()?;
    site.world.start_operator().await?;
    site.world.settle(QUIET).await?;
    let user = format!("operator-{}", site.world.namespace);
    let writes = audit.since(mark)?;
    let ours = writes
        .iter()
        .find(|write| write.user == user && !write.is_lease());
    ensure!(ours.is_none(), "a restart wrote {ours:?}");
    Ok(())
}

/// A pod that is lost comes back with its claim, and a claim that somebody deletes comes back when nobody uses it any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_pod_uses_its_claim_again_and_a_lost_claim_is_made_anew() -> Result<()> {
    let pool = "rs-repair";
    let site = Site::new(Profile::Native, pool).await?;
    let world = &site.world;
    external_template(world, pool).await?;
    world.apply(&manifest(pool).to_string()).await?;
    site.expect(12, 3).await?;
    let own = "workload-0-worker-a-0-own";
    let api = world.api::<ResourceClaim>();
    let before = api.get(own).await?.uid();
    let worker = |pods: Vec<Pod>| {
        let mut of_a = pods.into_iter();
        of_a.find(|pod| label(pod, labels::CLIQUE) == "workload-0-worker-a")
    };
    let victim = worker(world.active().await?).context("a pod")?;
    world.delete_pod(&victim).await?;
    world
        .until("another pod", || async {
            let pod = worker(world.active().await?).context("no pod")?;
            ensure!(pod.uid() != victim.uid(), "the old one");
            anyhow::Ok(())
        })
        .await?;
    site.expect(12, 3).await?;
    assert_eq!(api.get(own).await?.uid(), before, "the claim stayed");

    // In use, it goes with its last pod.
    api.delete(own, &DeleteParams::default()).await?;
    let pod = worker(world.active().await?).context("a pod")?;
    world.delete_pod(&pod).await?;
    world
        .until("another claim", || async {
            let claim = api.get(own).await?;
            ensure!(
                claim.uid() != before && claim.metadata.deletion_timestamp.is_none(),
                "the old one"
            );
            anyhow::Ok(())
        })
        .await?;
    site.expect(12, 3).await
}
