//! Many gangs compete for too little room, with churn: whole or absent, and no room wasted.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use coppice_operator_api::{PodCliqueSet, labels};
use coppice_testbed::fleet::{Fleet, FleetSettings};
use coppice_testbed::{Profile, wait};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use tokio::time::Instant;

use crate::support::{LIMIT, World, label, node};

const GANGS: usize = 100;
const ROOM: usize = 60;
/// Pods of a gang: a leader and three workers, half a node each, so that a gang fills two nodes.
const SIZE: usize = 4;
/// A gang seen partly bound must be wholly bound within this.
const PATIENCE: Duration = Duration::from_secs(5);

fn manifest(name: &str, pool: &str) -> String {
    let pod = format!(
        r#"podSpec: {{nodeSelector: {{pool: {pool}}}, tolerations: [{{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 1}}], containers: [{{name: main, image: "registry.example/app:1", resources: {{limits: {{nvidia.com/gpu: 4}}}}}}]}}"#
    );
    format!(
        "apiVersion: grove.io/v1alpha1\nkind: PodCliqueSet\nmetadata: {{name: {name}}}\nspec:\n  replicas: 1\n  template:\n    \
         cliques:\n    - name: lead\n      spec: {{roleName: lead, replicas: 1, {pod}}}\n    - name: work\n      \
         spec: {{roleName: work, replicas: 3, {pod}}}\n"
    )
}

/// Bound pods of each gang that are not on their way out.
async fn bound(pods: &Api<Pod>) -> Result<BTreeMap<String, usize>> {
    let mut bound: BTreeMap<String, usize> = BTreeMap::new();
    for pod in pods
        .list(&ListParams::default().labels(&labels::managed_selector()))
        .await?
    {
        if pod.metadata.deletion_timestamp.is_none() && node(&pod).is_some() {
            *bound
                .entry(label(&pod, labels::GANG).to_owned())
                .or_default() += 1;
        }
    }
    Ok(bound)
}

fn whole(bound: &BTreeMap<String, usize>) -> usize {
    bound.values().filter(|pods| **pods == SIZE).count()
}

/// Watches from the side: how long has each gang been seen partly bound?
async fn watch_for_partial(
    pods: Api<Pod>,
    stop: tokio_util::sync::CancellationToken,
) -> Result<Duration> {
    let mut since: BTreeMap<String, Instant> = BTreeMap::new();
    let mut longest = Duration::ZERO;
    while !stop.is_cancelled() {
        let bound = bound(&pods).await?;
        since.retain(|gang, _| bound.get(gang).is_some_and(|pods| *pods < SIZE));
        for (gang, _) in bound.iter().filter(|(_, pods)| **pods < SIZE) {
            let partial = since
                .entry(gang.clone())
                .or_insert_with(Instant::now)
                .elapsed();
            longest = longest.max(partial);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(longest)
}

async fn exactly_sixty(world: &World) -> Result<()> {
    let pods = world.api::<Pod>();
    wait::until(LIMIT * 2, "60 whole gangs", || async {
        let bound = bound(&pods).await?;
        let partial: Vec<_> = bound.iter().filter(|(_, pods)| **pods < SIZE).collect();
        ensure!(
            whole(&bound) == ROOM && partial.is_empty(),
            "{} whole, partial: {partial:?}",
            whole(&bound)
        );
        anyhow::Ok(())
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_gangs_compete_for_room_for_sixty() -> Result<()> {
    compete(Profile::Native, "room").await
}

pub(crate) async fn compete(profile: Profile, pool: &str) -> Result<()> {
    let world = World::new(profile, pool, &[]).await?;
    let mut settings = FleetSettings::new(ROOM * SIZE / 2);
    settings.name_prefix = format!("{pool}-");
    settings.labels = BTreeMap::from([("pool".to_owned(), pool.to_owned())]);
    let fleet = Fleet::start(world.cluster, settings).await?;
    let sets = world.api::<PodCliqueSet>();
    let stop = tokio_util::sync::CancellationToken::new();
    let watcher = tokio::spawn(watch_for_partial(world.api(), stop.clone()));
    for number in 0..GANGS {
        world
            .apply(&manifest(&format!("g{number:03}"), pool))
            .await?;
    }
    exactly_sixty(&world).await?;

    // Ten of those that run go, ten new ones come, twice; those that waited move up.
    let mut next = GANGS;
    for _ in 0..2 {
        let running: Vec<String> = bound(&world.api()).await?.into_keys().take(10).collect();
        for gang in running {
            let set = gang.trim_end_matches("-0");
            sets.delete(set, &DeleteParams::default()).await?;
            world.apply(&manifest(&format!("g{next:03}"), pool)).await?;
            next += 1;
        }
        exactly_sixty(&world).await?;
    }
    stop.cancel();
    let longest = watcher.await??;
    ensure!(
        longest <= PATIENCE,
        "a gang was partly bound for {longest:?}"
    );

    lose_and_regain(&world, &fleet).await?;
    fleet.clean_up().await;
    Ok(())
}

/// A node dies under one or two gangs; a new one brings exactly those back, not somebody else.
async fn lose_and_regain(world: &World, fleet: &Fleet) -> Result<()> {
    let pods = world.api::<Pod>();
    let before = bound(&pods).await?;
    let list = pods
        .list(&ListParams::default().labels(&labels::managed_selector()))
        .await?;
    let victim = list
        .iter()
        .find_map(|pod| node(pod).map(str::to_owned))
        .unwrap();
    let hurt: Vec<String> = list
        .iter()
        .filter(|pod| node(pod) == Some(&victim))
        .map(|pod| label(pod, labels::GANG).to_owned())
        .collect();
    ensure!(!hurt.is_empty(), "nobody was on {victim}");
    fleet.kill_node(&victim).await?;
    wait::until(
        LIMIT,
        "the pods of the dead node to be replaced",
        || async {
            let active = world.active().await?;
            ensure!(
                active.iter().all(|pod| node(pod) != Some(&victim)),
                "pods are still on {victim}"
            );
            anyhow::Ok(())
        },
    )
    .await?;
    fleet.add_nodes(1).await?;
    exactly_sixty(world).await?;
    let after = bound(&pods).await?;
    for gang in &hurt {
        ensure!(
            after.get(gang) == Some(&SIZE),
            "{gang} did not come back: {after:?}"
        );
    }
    ensure!(after.keys().eq(before.keys()), "others run than before");
    let partly = list
        .iter()
        .filter(|pod| hurt.contains(&label(pod, labels::GANG).to_owned()))
        .map(ResourceExt::name_any);
    let still: Vec<String> = world
        .active()
        .await?
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    ensure!(
        partly.filter(|name| still.contains(name)).count() > 0,
        "what was left of the gangs stayed"
    );
    Ok(())
}
