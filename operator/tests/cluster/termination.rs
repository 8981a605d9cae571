//! A gang that has lost its minimum for too long is taken down as a whole, and only it. Ids are upstream's scenarios.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use coppice_operator_api::condition::{self, ConditionStatus, ConditionType};
use coppice_operator_api::{PodClique, PodCliqueScalingGroup, labels};
use coppice_testbed::{Profile, wait};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::ListParams;

use crate::support::{Workload, World, cordon, get, label, node, nodes, uids};

/// How long a minimum may be missing here.
const DELAY: Duration = Duration::from_secs(3);
/// Longer than that, and than what an operator on a busy machine needs to act on it.
const LONG_AFTER: Duration = Duration::from_secs(6);

/// A workload that runs, and its nodes, one for each pod.
struct Running {
    world: World,
    _nodes: coppice_testbed::fleet::Fleet,
    cordoned: parking_lot::Mutex<BTreeSet<String>>,
}

impl Running {
    async fn new(profile: Profile, pool: &str, count: usize, workload: Workload) -> Result<Self> {
        let world = World::new(profile, pool, &[]).await?;
        let nodes = nodes(world.cluster, pool, count).await?;
        let workload = Workload {
            delay: "3s",
            ..workload
        };
        world.apply(&workload.yaml(pool)).await?;
        let running = Self {
            world,
            _nodes: nodes,
            cordoned: parking_lot::Mutex::default(),
        };
        running.all_run(10).await?;
        Ok(running)
    }

    /// All pods are ready, and every clique and group has it on record.
    async fn all_run(&self, pods: usize) -> Result<()> {
        self.world.expect_pods(pods, 0).await?;
        self.world.expect_available("workload", 1).await?;
        self.world
            .until(
                "everything to have it on record that it has run",
                || async {
                    let all = ListParams::default();
                    for clique in self.world.api::<PodClique>().list(&all).await? {
                        let conditions = clique.status.unwrap_or_default().conditions;
                        ensure!(has_run(conditions.as_deref()), "{:?}", clique.metadata.name);
                    }
                    for group in self.world.api::<PodCliqueScalingGroup>().list(&all).await? {
                        let conditions = group.status.unwrap_or_default().conditions;
                        ensure!(has_run(conditions.as_deref()), "{:?}", group.metadata.name);
                    }
                    anyhow::Ok(())
                },
            )
            .await
    }

    async fn pods_of(&self, clique: &str) -> Result<Vec<Pod>> {
        let mut pods = self.world.active().await?;
        pods.retain(|pod| label(pod, labels::CLIQUE) == clique);
        pods.sort_by_key(ResourceExt::name_any);
        Ok(pods)
    }

    async fn uids_of(&self, clique: &str) -> Result<BTreeSet<String>> {
        Ok(uids(&self.pods_of(clique).await?))
    }

    /// As many bound pods lose their nodes for good: these are cordoned, the pods deleted.
    async fn lose(&self, clique: &str, count: usize) -> Result<()> {
        let pods = self.pods_of(clique).await?;
        let bound = pods.iter().filter(|pod| node(pod).is_some());
        let bound: Vec<&Pod> = bound.take(count).collect();
        ensure!(!bound.is_empty(), "no pod of {clique} is bound");
        for pod in &bound {
            let node = node(pod).context("a node")?;
            cordon(&self.world.client, node, true).await?;
            self.cordoned.lock().insert(node.to_owned());
        }
        for pod in bound {
            self.world.delete_pod(pod).await?;
        }
        Ok(())
    }

    async fn uncordon(&self) -> Result<()> {
        let nodes = std::mem::take(&mut *self.cordoned.lock());
        for node in nodes {
            cordon(&self.world.client, &node, false).await?;
        }
        Ok(())
    }

    /// None of these pods is left, and there are that many others.
    async fn made_anew(&self, before: &BTreeSet<String>, count: usize) -> Result<BTreeSet<String>> {
        self.world
            .until("all pods to be made anew", || async {
                let now = uids(&self.world.active().await?);
                let left = now.intersection(before).count();
                ensure!(
                    left == 0 && now.len() == count,
                    "{left} of {} are old",
                    now.len()
                );
                anyhow::Ok(now)
            })
            .await
    }

    /// These pods stay, long after any delay.
    async fn stay(&self, pods: &BTreeSet<String>) -> Result<()> {
        wait::holds(LONG_AFTER, "the pods to stay", || async {
            let now = uids(&self.world.active().await?);
            ensure!(
                pods.is_subset(&now),
                "{} of {} are left",
                pods.intersection(&now).count(),
                pods.len()
            );
            anyhow::Ok(())
        })
        .await?;
        Ok(())
    }

    /// The group says that its set replica is being taken down and made anew.
    async fn is_ending(&self) -> Result<bool> {
        let groups = self.world.api::<PodCliqueScalingGroup>();
        let group = groups.get("workload-0-sg-x").await?;
        let conditions = group.status.unwrap_or_default().conditions;
        Ok(condition::is(
            &conditions.unwrap_or_default(),
            ConditionType::GangTerminationInProgress,
            ConditionStatus::True,
        ))
    }

    /// How often gangs were taken down: set replicas, and replicas of a group.
    async fn terminations(&self) -> Result<(u32, u32)> {
        let (_, text) = get(&format!("http://{}/metrics", self.world.admin)).await?;
        let count = |level: &str| -> Result<u32> {
            let sample = format!("operator_gang_terminations_total{{level=\"{level}\"}} ");
            let line = text.lines().find_map(|line| line.split_once(&sample));
            let (_, count) = line.with_context(|| format!("no {sample} in {text}"))?;
            Ok(count.trim().parse()?)
        };
        Ok((count("set")?, count("group")?))
    }
}

fn has_run(
    conditions: Option<&[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition]>,
) -> bool {
    condition::is(
        conditions.unwrap_or_default(),
        ConditionType::HealthyStateObserved,
        ConditionStatus::True,
    )
}

/// GT1 and GT2: what breaks the base gang's floor takes all of it along, once.
async fn whole(profile: Profile, pool: &str, clique: &str) -> Result<()> {
    let running = Running::new(profile, pool, 10, Workload::ONE).await?;
    let world = &running.world;
    let before = uids(&world.active().await?);
    running.lose(clique, 1).await?;
    let after = running.made_anew(&before, 10).await?;
    world.expect_pods(0, 10).await?;
    // What was made anew has not run yet: however long it waits, it is left alone.
    running.stay(&after).await?;
    assert!(running.is_ending().await?);
    running.uncordon().await?;
    running.all_run(10).await?;
    assert_eq!(uids(&world.active().await?), after);
    world
        .until("the termination to be over", || async {
            ensure!(!running.is_ending().await?, "it goes on");
            anyhow::Ok(())
        })
        .await?;
    assert_eq!(running.terminations().await?, (1, 0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn gt1_a_standalone_clique_below_its_minimum_takes_the_gang_along() -> Result<()> {
    whole(Profile::Native, "gt1", "workload-0-pc-a").await
}

#[tokio::test(flavor = "multi_thread")]
async fn gated_gt1_a_standalone_clique_below_its_minimum_takes_the_gang_along() -> Result<()> {
    whole(Profile::Plain, "gated-gt1", "workload-0-pc-a").await
}

#[tokio::test(flavor = "multi_thread")]
async fn gt2_a_group_below_its_minimum_takes_the_gang_along() -> Result<()> {
    whole(Profile::Native, "gt2", "workload-0-sg-x-0-pc-c").await
}

/// GT3: above the minimum nothing is taken down; what somebody scaled comes back as it was scaled.
async fn above_the_minimum(profile: Profile, pool: &str) -> Result<()> {
    let running = Running::new(profile, pool, 11, Workload::TWO).await?;
    let world = &running.world;
    world.scale_clique("workload-0-pc-a", 3).await?;
    running.all_run(11).await?;
    running.lose("workload-0-pc-a", 2).await?;
    let rest = uids(
        &world
            .active()
            .await?
            .into_iter()
            .filter(|pod| node(pod).is_some())
            .collect::<Vec<_>>(),
    );
    running.stay(&rest).await?;
    assert_eq!(running.terminations().await?, (0, 0));
    let before = uids(&world.active().await?);
    running.lose("workload-0-pc-a", 1).await?;
    running.made_anew(&before, 11).await?;
    running.uncordon().await?;
    running.all_run(11).await?;
    assert_eq!(running.pods_of("workload-0-pc-a").await?.len(), 3);
    assert_eq!(running.terminations().await?, (1, 0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn gt3_above_the_minimum_nothing_is_taken_down_and_scaled_numbers_survive() -> Result<()> {
    above_the_minimum(Profile::Native, "gt3").await
}

/// GT4: one replica of a group goes alone, while the group keeps its minimum without it.
async fn one_replica(profile: Profile, pool: &str) -> Result<()> {
    let running = Running::new(profile, pool, 10, Workload::TWO).await?;
    let world = &running.world;
    let (zero, one) = ("workload-0-sg-x-0-pc-c", "workload-0-sg-x-1-pc-c");
    let mut others = running.uids_of("workload-0-pc-a").await?;
    let leader = running.uids_of("workload-0-sg-x-0-pc-b").await?;
    others.extend(running.uids_of("workload-0-sg-x-1-pc-b").await?);
    let of_one = running.uids_of(one).await?;

    running.lose(zero, 1).await?;
    running
        .stay(&others.union(&leader).cloned().collect())
        .await?;
    assert_eq!(running.terminations().await?, (0, 0));

    running.lose(zero, 2).await?;
    world
        .until("the group's replica to be made anew", || async {
            let now = running.uids_of("workload-0-sg-x-0-pc-b").await?;
            ensure!(now.len() == 1 && now.is_disjoint(&leader), "{now:?}");
            anyhow::Ok(())
        })
        .await?;
    running
        .stay(&others.union(&of_one).cloned().collect())
        .await?;
    assert_eq!(running.terminations().await?, (0, 1));

    running.lose(one, 1).await?;
    running.stay(&others).await?;
    assert_eq!(running.terminations().await?, (0, 1));

    // The lost pod may be back, on the node that the other replica left.
    let before = uids(&world.active().await?);
    running.lose(one, 3).await?;
    running.made_anew(&before, 10).await?;
    running.uncordon().await?;
    running.all_run(10).await?;
    assert_eq!(running.terminations().await?, (1, 1));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn gt4_a_broken_replica_goes_alone_while_its_group_keeps_its_minimum() -> Result<()> {
    one_replica(Profile::Native, "gt4").await
}

#[tokio::test(flavor = "multi_thread")]
async fn gated_gt4_a_broken_replica_goes_alone_while_its_group_keeps_its_minimum() -> Result<()> {
    one_replica(Profile::Plain, "gated-gt4").await
}

/// GT5 and GT6: a replica that needs all its pods goes alone; a pod above the floor is no reason for anything.
#[tokio::test(flavor = "multi_thread")]
async fn gt5_gt6_only_what_is_below_its_minimum_is_touched() -> Result<()> {
    let workload = Workload {
        a: (2, 1),
        x: (2, 1),
        ..Workload::ONE
    };
    let running = Running::new(Profile::Native, "gt5", 10, workload).await?;
    let world = &running.world;
    let all = uids(&world.active().await?);
    let zero: BTreeSet<String> = running
        .uids_of("workload-0-sg-x-0-pc-b")
        .await?
        .into_iter()
        .chain(running.uids_of("workload-0-sg-x-0-pc-c").await?)
        .collect();
    running.lose("workload-0-sg-x-0-pc-c", 1).await?;
    world
        .until("the group's replica to be made anew", || async {
            let now = uids(&world.active().await?);
            ensure!(
                now.is_disjoint(&zero) && now.len() == 10,
                "{} pods",
                now.len()
            );
            anyhow::Ok(())
        })
        .await?;
    running
        .stay(&all.difference(&zero).cloned().collect())
        .await?;
    running.uncordon().await?;
    running.all_run(10).await?;
    assert_eq!(running.terminations().await?, (0, 1));

    // With a minimum of one, a lost pod of the scaled gang is replaced and that is all.
    let running = Running::new(Profile::Native, "gt6", 10, Workload::TWO).await?;
    let rest = {
        let lost = running.pods_of("workload-0-sg-x-1-pc-c").await?;
        let mut rest = uids(&running.world.active().await?);
        rest.remove(&lost[0].uid().context("a uid")?);
        running.world.delete_pod(&lost[0]).await?;
        rest
    };
    running.stay(&rest).await?;
    running.all_run(10).await?;
    assert_eq!(running.terminations().await?, (0, 0));
    Ok(())
}

/// A gang that has not come up is left alone, whatever its delay says.
#[tokio::test(flavor = "multi_thread")]
async fn a_gang_that_never_ran_is_never_taken_down() -> Result<()> {
    let world = World::new(Profile::Native, "gt-never", &[]).await?;
    let _nodes = nodes(world.cluster, "gt-never", 9).await?;
    let workload = Workload {
        delay: "1s",
        ..Workload::ONE
    };
    world.apply(&workload.yaml("gt-never")).await?;
    world.expect_pods(0, 10).await?;
    let before = uids(&world.active().await?);
    wait::holds(LONG_AFTER, "the pods to stay", || async {
        let now = uids(&world.active().await?);
        ensure!(now == before, "{} pods", now.len());
        anyhow::Ok(())
    })
    .await?;
    Ok(())
}

/// A breach says when it will be the end; an operator that is killed and started again counts from where it began.
#[tokio::test(flavor = "multi_thread")]
async fn the_delay_is_announced_and_outlives_the_operator() -> Result<()> {
    let mut running = Running::new(Profile::Native, "gt-restart", 10, Workload::ONE).await?;
    let before = uids(&running.world.active().await?);
    running.lose("workload-0-pc-a", 1).await?;
    let since = running
        .world
        .until("the breach to be announced", || async {
            let clique = running
                .world
                .api::<PodClique>()
                .get("workload-0-pc-a")
                .await?;
            let conditions = clique
                .status
                .unwrap_or_default()
                .conditions
                .unwrap_or_default();
            let breach = condition::find(&conditions, ConditionType::MinAvailableBreached);
            let breach = breach.context("no condition")?;
            ensure!(
                breach.status == "True" && breach.message.contains("made anew at"),
                "{breach:?}"
            );
            anyhow::Ok(breach.last_transition_time.0)
        })
        .await?;
    running.world.kill_operator()?;
    running.world.start_operator().await?;
    running.made_anew(&before, 10).await?;
    let newest = running.world.active().await?;
    let newest = newest
        .iter()
        .filter_map(|pod| Some(pod.creation_timestamp()?.0))
        .min();
    let waited = newest.context("a pod")?.duration_since(since);
    // Both times are whole seconds.
    ensure!(
        waited.as_secs() + 1 >= i64::try_from(DELAY.as_secs())?,
        "made anew after {waited}"
    );
    running.uncordon().await?;
    running.all_run(10).await
}
