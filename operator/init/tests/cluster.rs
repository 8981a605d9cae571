//! The program against a real API server, with an account that may read the named PodCliques and nothing else.

#![expect(clippy::unwrap_used, reason = "a test stops where it cannot go on")]

use anyhow::{Context as _, Result, ensure};
use coppice_operator_api::{PodClique, crd};
use coppice_testbed::{Cluster, Component, Identity, Profile, apply, shared, wait};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

const LIMIT: Duration = Duration::from_secs(30);

/// The program, and what it has logged.
struct Init {
    child: Child,
    log: Arc<Mutex<String>>,
}

impl Init {
    fn start(kubeconfig: &Path, arguments: &[&str], pod_info: &Path) -> Result<Self> {
        let mut child = Command::new(env!("CARGO_BIN_EXE_coppice-init"))
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg("--pod-info")
            .arg(pod_info)
            .args(arguments)
            .env_remove("COPPICE_NAMESPACE")
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let log = Arc::new(Mutex::new(String::new()));
        let mut lines = BufReader::new(child.stderr.take().context("a pipe")?).lines();
        let into = Arc::clone(&log);
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                let mut log = into.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        Ok(Self { child, log })
    }

    async fn logs(&mut self, text: &str) -> Result<()> {
        wait::until(LIMIT, &format!("a log with {text:?}"), || {
            let log = self.log.lock().unwrap().clone();
            async move {
                ensure!(log.contains(text), "{log}");
                Ok(())
            }
        })
        .await?;
        ensure!(
            self.child.try_wait()?.is_none(),
            "it ended: {}",
            self.log.lock().unwrap()
        );
        Ok(())
    }

    async fn ends(&mut self) -> Result<ExitStatus> {
        let ended = tokio::time::timeout(LIMIT, self.child.wait()).await;
        Ok(ended.with_context(|| format!("still running: {}", self.log.lock().unwrap()))??)
    }
}

/// A namespace with a folder that tells a pod so, and an account that may read the PodCliques `names`.
struct Place {
    namespace: String,
    pod_info: tempfile::TempDir,
    kubeconfig: std::path::PathBuf,
    cliques: Api<PodClique>,
}

async fn place(cluster: &Cluster, prefix: &str) -> Result<Place> {
    let client = cluster.client();
    for definition in crd::crds() {
        apply(&client, &crd::to_yaml(&definition), "").await?;
    }
    let namespace = cluster.namespace(prefix).await?;
    let pod_info = tempfile::tempdir()?;
    std::fs::write(pod_info.path().join("namespace"), &namespace)?;
    let kubeconfig = cluster.kubeconfig_as(&Identity::service_account(&namespace, "set"))?;
    Ok(Place {
        cliques: Api::namespaced(client, &namespace),
        namespace,
        pod_info,
        kubeconfig,
    })
}

impl Place {
    async fn allow(&self, cluster: &Cluster, names: &[&str]) -> Result<()> {
        let objects = json!([
            {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "set"},
             "rules": [{"apiGroups": ["grove.io"], "resources": ["podcliques"], "resourceNames": names, "verbs": ["get", "list", "watch"]}]},
            {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "set"},
             "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "set"},
             "subjects": [{"kind": "ServiceAccount", "name": "set", "namespace": self.namespace}]},
        ]);
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
        apply(&cluster.client(), &list, &self.namespace).await?;
        Ok(())
    }

    async fn create(&self, name: &str) -> Result<()> {
        let clique = json!({
            "apiVersion": "grove.io/v1alpha1", "kind": "PodClique", "metadata": {"name": name},
            "spec": {"replicas": 2, "podSpec": {"containers": [{"name": "main"}]}},
        });
        self.cliques
            .create(&PostParams::default(), &serde_json::from_value(clique)?)
            .await?;
        Ok(())
    }

    async fn ready(&self, name: &str, pods: u32) -> Result<()> {
        let status = json!({"status": {"readyReplicas": pods}});
        self.cliques
            .patch_status(name, &PatchParams::default(), &Patch::Merge(status))
            .await?;
        Ok(())
    }

    fn start(&self, arguments: &[&str]) -> Result<Init> {
        Init::start(&self.kubeconfig, arguments, self.pod_info.path())
    }
}

#[tokio::test]
async fn it_ends_when_all_parents_are_ready_at_once() -> Result<()> {
    let cluster = shared(Profile::Plain).await?;
    let place = place(cluster, "init").await?;
    place.allow(cluster, &["s-0-pc", "s-0-sg-0-pc"]).await?;
    // A name that begins like a parent's, and is more than ready.
    place.create("s-0-pc-b").await?;
    place.ready("s-0-pc-b", 9).await?;
    let mut init = place.start(&["--podcliques=s-0-pc:2", "--podcliques=s-0-sg-0-pc:1"])?;
    init.logs("s-0-pc does not exist yet (2 ready pods needed), s-0-sg-0-pc does not exist yet (1 ready pods needed)").await?;
    place.create("s-0-pc").await?;
    place.create("s-0-sg-0-pc").await?;
    place.ready("s-0-pc", 1).await?;
    init.logs("missing=s-0-pc has 1 of 2 pods ready, s-0-sg-0-pc has 0 of 1 pods ready")
        .await?;
    place.ready("s-0-sg-0-pc", 1).await?;
    init.logs("missing=s-0-pc has 1 of 2 pods ready\n").await?;
    // One that was ready goes: both must be ready at the same time.
    place
        .cliques
        .delete("s-0-sg-0-pc", &DeleteParams::default())
        .await?;
    init.logs("s-0-sg-0-pc does not exist yet (1 ready pods needed)")
        .await?;
    place.ready("s-0-pc", 2).await?;
    init.logs("missing=s-0-sg-0-pc does not exist yet (1 ready pods needed)\n")
        .await?;
    place.create("s-0-sg-0-pc").await?;
    place.ready("s-0-sg-0-pc", 1).await?;
    assert_eq!(init.ends().await?.code(), Some(0));
    Ok(())
}

#[tokio::test]
async fn a_missing_right_is_named_and_waited_for() -> Result<()> {
    let cluster = shared(Profile::Plain).await?;
    let place = place(cluster, "init-rights").await?;
    place.create("a").await?;
    place.ready("a", 1).await?;
    let mut init = place.start(&["-p", "a:1"])?;
    init.logs("cannot list resource \"podcliques\" in API group \"grove.io\"")
        .await?;
    place.allow(cluster, &["a"]).await?;
    assert_eq!(init.ends().await?.code(), Some(0));
    Ok(())
}

#[tokio::test]
async fn it_survives_a_restart_of_the_api_server() -> Result<()> {
    let cluster = Cluster::start(Profile::Plain).await?;
    let place = place(&cluster, "init-restart").await?;
    place.allow(&cluster, &["a"]).await?;
    place.create("a").await?;
    let mut init = place.start(&["-pa:2"])?;
    init.logs("a has 0 of 2 pods ready").await?;
    cluster.stop_component(Component::ApiServer)?;
    init.logs("cannot watch the clique, trying again").await?;
    cluster.start_component(Component::ApiServer).await?;
    place.ready("a", 2).await?;
    assert_eq!(init.ends().await?.code(), Some(0));
    Ok(())
}

#[tokio::test]
async fn it_stops_when_told_and_refuses_wrong_arguments() -> Result<()> {
    let cluster = shared(Profile::Plain).await?;
    let place = place(cluster, "init-stop").await?;
    let mut init = place.start(&["-pa:1"])?;
    init.logs("a does not exist yet").await?;
    let process = nix::unistd::Pid::from_raw(i32::try_from(init.child.id().context("running")?)?);
    nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGTERM)?;
    assert_eq!(init.ends().await?.code(), Some(143));

    let mut wrong = place.start(&["-pa:0"])?;
    assert_eq!(wrong.ends().await?.code(), Some(2));
    let mut none = place.start(&[])?;
    assert_eq!(none.ends().await?.code(), Some(2));
    Ok(())
}
