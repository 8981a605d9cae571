//! Pods that are simulated engines: the real `coppice-loadtest`, at the pods' own addresses.

use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;
use coppice_testbed::fleet::{Command, Fleet, FleetSettings};
use coppice_testbed::{Cluster, Profile, apply, wait};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::DeleteParams;

use crate::support::{LONG, condition, gone, ready};

/// The program beside this test; built if it is not there, as when only this crate is tested.
fn engine_program() -> anyhow::Result<PathBuf> {
    let program =
        Path::new(env!("CARGO_BIN_EXE_coppice-testbed")).with_file_name("coppice-loadtest");
    if !program.is_file() {
        let status = Process::new(env!("CARGO"))
            .args(["build", "-p", "coppice-loadtest"])
            .status()?;
        ensure!(
            status.success() && program.is_file(),
            "cannot build {}",
            program.display()
        );
    }
    Ok(program)
}

fn engine_pod(name: &str, arguments: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 20\n  containers:\n  \
         - {{name: engine, image: 'example/coppice-loadtest:dev', args: [engine, '--model=tiny', {arguments}]}}\n"
    )
}

async fn metrics(address: &str) -> anyhow::Result<String> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let request = client.get(format!("http://{address}/metrics").parse()?);
    let answer = tokio::time::timeout(Duration::from_secs(10), request).await??;
    Ok(String::from_utf8(
        answer.into_body().collect().await?.to_bytes().to_vec(),
    )?)
}

fn address(pod: &Pod, port: u16) -> anyhow::Result<String> {
    let ip = pod
        .status
        .as_ref()
        .and_then(|status| status.pod_ip.clone())
        .context("podIP")?;
    Ok(format!("{ip}:{port}"))
}

#[tokio::test]
async fn engines_serve_at_their_pods_addresses_and_end_with_them() -> anyhow::Result<()> {
    let cluster = Cluster::start(Profile::Plain).await?;
    let settings = FleetSettings {
        engine_program: Some(engine_program()?),
        ..FleetSettings::new(2)
    };
    let fleet = Fleet::start(&cluster, settings).await?;
    let namespace = cluster.namespace("engines").await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client(), &namespace);
    for (name, port) in [
        ("one", "'--port=8000'"),
        ("two", "'--port=9100'"),
        ("bad", "'--no-such-flag'"),
    ] {
        apply(&cluster.client(), &engine_pod(name, port), &namespace).await?;
    }
    let one = address(&ready(&pods, "one").await?, 8000)?;
    let two = ready(&pods, "two").await?;
    let two_address = address(&two, 9100)?;
    for address in [&one, &two_address] {
        let text = metrics(address).await?;
        ensure!(
            text.contains("vllm:num_requests_waiting") && text.contains("tiny"),
            "{text}"
        );
    }

    wait::until(
        LONG,
        "the engine with a wrong argument to back off with its reason",
        || async {
            let pod = pods.get("bad").await?;
            let containers = pod
                .status
                .clone()
                .and_then(|status| status.container_statuses)
                .unwrap_or_default();
            let waiting = containers.first().and_then(|c| c.state.clone()?.waiting);
            let message = waiting
                .and_then(|waiting| waiting.message)
                .unwrap_or_default();
            ensure!(message.contains("no-such-flag"), "{:?}", pod.status);
            Ok(())
        },
    )
    .await?;
    assert_eq!(condition(&pods.get("bad").await?, "Ready"), "False");

    let freeze = |pod: &str, frozen| Command::FreezeMetrics {
        pod: Some(format!("{namespace}/{pod}")),
        frozen,
    };
    fleet.command(freeze("one", true)).await?;
    let error = fleet
        .command(freeze("bad", true))
        .await
        .unwrap_err()
        .to_string();
    ensure!(error.contains("down"), "{error}");
    fleet.freeze_metrics(None, false).await?;

    fleet.crash_pod(&namespace, "one").await?;
    let back = wait::until(LONG, "the engine after its crash", || async {
        let pod = pods.get("one").await?;
        let restarts = pod
            .status
            .as_ref()
            .and_then(|s| Some(s.container_statuses.as_ref()?.first()?.restart_count));
        ensure!(
            restarts == Some(1) && condition(&pod, "Ready") == "True",
            "{:?}",
            pod.status
        );
        Ok(pod)
    })
    .await?;
    metrics(&address(&back, 8000)?).await?;

    pods.delete("one", &DeleteParams::default()).await?;
    gone(&pods, "one").await?;
    ensure!(
        metrics(&one).await.is_err(),
        "the engine is gone with its pod"
    );

    let node = two
        .spec
        .and_then(|spec| spec.node_name)
        .context("nodeName")?;
    fleet.kill_node(&node).await?;
    wait::until(LONG, "silence from the dead node", || async {
        ensure!(metrics(&two_address).await.is_err(), "it still answers");
        Ok(())
    })
    .await?;
    gone(&pods, "two").await
}
