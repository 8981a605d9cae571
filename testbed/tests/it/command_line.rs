//! The command line, as a person or a Makefile uses it.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use coppice_testbed::{Instance, Liveness, ProcessId, wait};

use crate::support::LONG;

fn testbed(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_coppice-testbed"));
    command.env("COPPICE_TESTBED_DIR", dir);
    command
}

fn run(dir: &Path, arguments: &[&str]) -> anyhow::Result<Output> {
    testbed(dir)
        .args(arguments)
        .output()
        .context("run coppice-testbed")
}

fn succeed(dir: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let output = run(dir, arguments)?;
    if !output.status.success() {
        bail!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Ends what a failing test leaves.
struct Down<'a>(&'a Path);

impl Drop for Down<'_> {
    fn drop(&mut self) {
        run(self.0, &["down", "--all"])
            .expect("the program that the test has built can be started");
    }
}

#[test]
fn up_stays_until_down_and_everything_in_between_works() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let _down = Down(dir.path());
    let two = ["--name", "two"];
    let kubeconfig = succeed(
        dir.path(),
        &[
            "up",
            "--profile=plain",
            "--nodes=2",
            "--gpus=4",
            two[0],
            two[1],
        ],
    )?;
    ensure!(Path::new(&kubeconfig).is_file(), "{kubeconfig}");
    assert_eq!(
        succeed(dir.path(), &["up", "--profile=plain", two[0], two[1]])?,
        kubeconfig,
        "a second up finds the first"
    );
    assert_eq!(
        succeed(dir.path(), &["env", two[0], two[1]])?,
        format!("export KUBECONFIG='{kubeconfig}'")
    );

    let jsonpath = "-ojsonpath={.items[*].status.allocatable['nvidia\\.com/gpu']}";
    assert_eq!(
        succeed(
            dir.path(),
            &["kubectl", two[0], two[1], "get", "nodes", jsonpath]
        )?,
        "4 4"
    );
    let mine = succeed(
        dir.path(),
        &["kubeconfig", two[0], two[1], "--user=ann", "--group=dev"],
    )?;
    let who = [
        "kubectl",
        two[0],
        two[1],
        "--kubeconfig",
        &mine,
        "auth",
        "whoami",
        "-ojsonpath={.status.userInfo.username}",
    ];
    assert_eq!(succeed(dir.path(), &who)?, "ann");

    ensure!(
        succeed(dir.path(), &["fleet-ctl", two[0], two[1], "add-nodes", "1"])?
            .starts_with("3 nodes")
    );
    let error = run(
        dir.path(),
        &["fleet-ctl", two[0], two[1], "crash-pod", "a/b"],
    )?;
    ensure!(
        !error.status.success()
            && String::from_utf8_lossy(&error.stderr).contains("no pod \"a/b\""),
        "{error:?}"
    );
    ensure!(
        succeed(dir.path(), &["writes", two[0], two[1], "--user=fleet"])?
            .contains("coppice-testbed-fleet")
    );

    let status = succeed(dir.path(), &["status"])?;
    ensure!(
        status.contains("two: running") && status.contains("fleet: 3 nodes"),
        "{status}"
    );
    let instance = Instance::load(dir.path(), "two")?;
    assert_eq!(instance.processes.len(), 5);
    succeed(dir.path(), &["down", two[0], two[1]])?;
    ensure!(
        instance
            .processes
            .iter()
            .all(|record| !record.process.is_alive()),
        "down leaves nothing running"
    );
    ensure!(
        instance.logs().join("kube-apiserver.log").is_file(),
        "logs stay"
    );
    let error = run(dir.path(), &["status", two[0], two[1]])?;
    ensure!(
        !error.status.success() && String::from_utf8_lossy(&error.stderr).contains("up --name two"),
        "{error:?}"
    );
    Ok(())
}

/// The supervised processes of an instance that is being started, once there are `count`.
async fn processes(dir: &Path, count: usize) -> anyhow::Result<Vec<ProcessId>> {
    let found = wait::until(LONG, "processes", || async {
        let instance = Instance::load(dir, "default")?;
        ensure!(
            instance.processes.len() >= count,
            "{} processes",
            instance.processes.len()
        );
        let mut all: Vec<_> = instance
            .processes
            .iter()
            .map(|record| record.process)
            .collect();
        all.push(instance.supervisor);
        anyhow::Ok(all)
    });
    Ok(found.await?)
}

#[tokio::test]
async fn a_killed_parent_leaves_no_orphans() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    // Interrupted in the middle of the start, `up` still owns everything, as a test binary does all its life.
    let mut up = testbed(dir.path())
        .args(["up", "--profile=plain"])
        .stderr(Stdio::null())
        .spawn()?;
    let children = processes(dir.path(), 2).await?;
    up.kill()?;
    up.wait()?;
    wait::until(
        Duration::from_secs(20),
        "the end of all children",
        || async {
            let alive: Vec<_> = children
                .iter()
                .filter(|process| process.is_alive())
                .collect();
            ensure!(alive.is_empty(), "{alive:?}");
            Ok(())
        },
    )
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_killed_supervisor_takes_its_children_along_and_down_cleans_up() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let _down = Down(dir.path());
    succeed(dir.path(), &["up", "--profile=plain", "--nodes=1"])?;
    let instance = Instance::load(dir.path(), "default")?;
    let pid = instance.supervisor.pid.to_string();
    ensure!(
        Command::new("kill")
            .args(["-KILL", &pid])
            .status()?
            .success()
    );
    wait::until(
        Duration::from_secs(20),
        "the end of all children",
        || async {
            let alive: Vec<_> = instance
                .processes
                .iter()
                .filter(|record| record.process.is_alive())
                .collect();
            ensure!(alive.is_empty(), "{alive:?}");
            Ok(())
        },
    )
    .await?;
    assert_eq!(instance.liveness(), Liveness::Dead);
    succeed(dir.path(), &["down"])?;
    ensure!(Instance::load(dir.path(), "default").is_err());
    Ok(())
}

#[test]
fn a_missing_control_plane_names_the_command_that_builds_it() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let output = testbed(dir.path())
        .arg("up")
        .env("COPPICE_CONTROLPLANE", "/nonexistent/controlplane")
        .output()?;
    let error = String::from_utf8(output.stderr)?;
    ensure!(
        !output.status.success() && error.contains("make controlplane"),
        "{error}"
    );
    Ok(())
}
