//! An operator process on the shared control plane, and a look at what it made.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use coppice_operator_api::{PodClique, PodCliqueScalingGroup, PodCliqueSet, PodGang, crd, labels};
use coppice_testbed::{Cluster, Profile, shared, wait};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::sync::OnceCell;

mod nodes;
mod pods;
mod workload;

pub(crate) use nodes::{cordon, more_nodes, nodes, open_nodes};
pub(crate) use pods::{condition_time, is_ready, label, node, phase, uids};
pub(crate) use workload::Workload;

use pods::describe;

/// Long enough for a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);
/// How long something must stay as it is to count as settled.
pub(crate) const QUIET: Duration = Duration::from_secs(3);

/// A cluster with the definitions, shared by the tests of a binary.
pub(crate) async fn cluster(profile: Profile) -> Result<&'static Cluster> {
    // One for each: a test binary uses several clusters.
    static READY: [OnceCell<()>; Profile::ALL.len()] =
        [const { OnceCell::const_new() }; Profile::ALL.len()];
    let position = Profile::ALL.iter().position(|of| *of == profile);
    let ready = &READY[position.context("an unknown profile")?];
    let cluster = shared(profile).await?;
    ready.get_or_try_init(|| install(cluster)).await?;
    Ok(cluster)
}

async fn install(cluster: &Cluster) -> Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(cluster.client());
    for definition in crd::crds() {
        let parameters = PatchParams::apply("tests").force();
        api.patch(
            &definition.name_any(),
            &parameters,
            &Patch::Apply(&definition),
        )
        .await?;
    }
    let sets: Api<PodCliqueSet> = Api::all(cluster.client());
    let gangs: Api<PodGang> = Api::all(cluster.client());
    wait::until(LIMIT, "the definitions to be served", || async {
        sets.list(&ListParams::default()).await?;
        gangs.list(&ListParams::default()).await?;
        anyhow::Ok(())
    })
    .await?;
    Ok(())
}

/// Gives `user` what the operator's own manifests give its service account in one namespace.
async fn grant(client: &Client, namespace: &str, user: &str) -> Result<()> {
    let printed = Command::new(env!("CARGO_BIN_EXE_coppice-operator"))
        .args(["manifests", "--namespace", namespace])
        .output()
        .context("cannot print manifests")?;
    ensure!(
        printed.status.success(),
        "{}",
        String::from_utf8_lossy(&printed.stderr)
    );
    let subject = json!([{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}]);
    let mut wanted = Vec::new();
    for document in String::from_utf8(printed.stdout)?.split("---\n") {
        let mut object: serde_json::Value =
            serde_saphyr::from_str(document).context("a manifest")?;
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        let lease = object["metadata"]["name"] == "coppice-operator-lease";
        if !matches!(
            kind.as_str(),
            "ClusterRole" | "ClusterRoleBinding" | "Role" | "RoleBinding"
        ) || lease
        {
            continue;
        }
        if kind.starts_with("Cluster") {
            object["metadata"]["name"] = json!(user);
        }
        if kind.ends_with("Binding") {
            object["subjects"] = subject.clone();
            if kind == "ClusterRoleBinding" {
                object["roleRef"]["name"] = json!(user);
            }
        }
        wanted.push(serde_json::to_string(&object)?);
    }
    ensure!(
        wanted.len() == 4,
        "a role and a binding for the cluster and for the namespace: {wanted:?}"
    );
    coppice_testbed::apply(client, &wanted.join("\n---\n"), namespace).await?;
    Ok(())
}

/// One namespace with an operator of its own and nodes of its own.
pub(crate) struct World {
    pub(crate) cluster: &'static Cluster,
    pub(crate) namespace: String,
    pub(crate) client: Client,
    operator: Option<Child>,
    pub(crate) admin: String,
    arguments: Vec<String>,
    kubeconfig: PathBuf,
}

impl World {
    /// A namespace and an operator for it, with the rights that `coppice-operator manifests` gives and no others. In the
    /// audit log it is the user `operator-<namespace>`.
    pub(crate) async fn new(profile: Profile, name: &str, arguments: &[&str]) -> Result<Self> {
        let cluster = cluster(profile).await?;
        let namespace = cluster.namespace(name).await?;
        let identity = coppice_testbed::Identity {
            user: format!("operator-{namespace}"),
            groups: Vec::new(),
        };
        grant(&cluster.client(), &namespace, &identity.user).await?;
        let kubeconfig = cluster.kubeconfig_as(&identity)?;
        let mut world = Self {
            client: cluster.client(),
            cluster,
            namespace,
            operator: None,
            admin: String::new(),
            arguments: arguments
                .iter()
                .map(|&argument| argument.to_owned())
                .collect(),
            kubeconfig,
        };
        world.start_operator().await?;
        Ok(world)
    }

    pub(crate) async fn start_operator(&mut self) -> Result<()> {
        self.spawn_operator(None)?;
        let address = format!("http://{}/readyz", self.admin);
        wait::until(LIMIT, "the operator to be ready", || async {
            let (status, body) = get(&address).await?;
            ensure!(status == 200, "{status} {body}");
            anyhow::Ok(())
        })
        .await?;
        Ok(())
    }

    /// Starts an operator that dies after so many writes. Tells whether it has died, or lives when `is_over` holds.
    #[allow(dead_code, reason = "the tests ask, the benchmark does not")]
    pub(crate) async fn live_for(
        &mut self,
        writes: u32,
        is_over: impl AsyncFn(&Self) -> Result<bool>,
    ) -> Result<bool> {
        self.spawn_operator(Some(writes))?;
        let operator = parking_lot::Mutex::new(self.operator.take().context("an operator")?);
        let world: &Self = self;
        let died = wait::until(LIMIT, "the operator to die, or the end", || async {
            if operator.lock().try_wait()?.is_some() {
                return Ok(true);
            }
            ensure!(is_over(world).await?, "it lives, and it is not over");
            Ok(false)
        })
        .await?;
        if !died {
            self.operator = Some(operator.into_inner());
        }
        Ok(died)
    }

    fn spawn_operator(&mut self, dies_after: Option<u32>) -> Result<()> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
            .local_addr()?
            .port();
        self.admin = format!("127.0.0.1:{port}");
        let log = log_file(&self.namespace)?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_coppice-operator"));
        if let Some(writes) = dies_after {
            command.env("COPPICE_TEST_DIE_AFTER_WRITES", writes.to_string());
        }
        let child = command
            .arg("run")
            .args(["--kubeconfig".as_ref(), self.kubeconfig.as_os_str()])
            .args([
                "--admin-address",
                &self.admin,
                "--leader-elect=false",
                "--namespace",
                &self.namespace,
            ])
            .args(&self.arguments)
            .env("COPPICE_LOG_LEVEL", "info,coppice_operator=debug")
            .stdout(Stdio::from(log.try_clone()?))
            .stderr(Stdio::from(log))
            .spawn()
            .context("cannot start the operator")?;
        self.operator = Some(child);
        Ok(())
    }

    /// Stops the operator as a crash would.
    pub(crate) fn kill_operator(&mut self) -> Result<()> {
        if let Some(mut child) = self.operator.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Processor seconds and resident bytes of the operator so far.
    #[allow(dead_code, reason = "the benchmark asks, the tests do not")]
    pub(crate) fn usage(&self) -> Result<(f64, u64)> {
        let id = self.operator.as_ref().context("it does not run")?.id();
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat"))?;
        let fields: Vec<&str> = stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .collect();
        let ticks: f64 = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
        let pages: u64 = fields[21].parse()?;
        Ok((ticks / 100.0, pages * 4096))
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Applies a PodCliqueSet.
    pub(crate) async fn apply(&self, yaml: &str) -> Result<()> {
        let set: serde_json::Value = serde_saphyr::from_str(yaml).context("a manifest")?;
        let name = set["metadata"]["name"].as_str().context("a name")?;
        let parameters = PatchParams::apply("tests").force();
        self.api::<PodCliqueSet>()
            .patch(name, &parameters, &Patch::Apply(&set))
            .await?;
        Ok(())
    }

    /// Waits for a state of the world; if it does not come, the error also says what pods and operator were about.
    pub(crate) async fn until<T, F, Fut>(&self, what: &str, look: F) -> Result<T>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Result<T>>,
    {
        match wait::until(LIMIT, what, look).await {
            Ok(found) => Ok(found),
            Err(error) => Err(anyhow::anyhow!("{error}\n{}", self.diagnosis().await)),
        }
    }

    /// Every pod that is not ready, and the last lines of the operator's log.
    async fn diagnosis(&self) -> String {
        let mut lines = Vec::new();
        match self.pods().await {
            Ok(pods) => {
                lines.push(format!("{} pods, of these not ready:", pods.len()));
                lines.extend(pods.iter().filter(|pod| !is_ready(pod)).map(describe));
            }
            Err(error) => lines.push(format!("no pods: {error:#}")),
        }
        lines.push("the operator's last words:".to_owned());
        let log = std::fs::read_to_string(log_path(&self.namespace)).unwrap_or_default();
        let words: Vec<&str> = log.lines().collect();
        let last = &words[words.len().saturating_sub(60)..];
        lines.extend(last.iter().map(|line| (*line).to_owned()));
        lines.join("\n  ")
    }

    /// Names of all objects of a kind, sorted.
    pub(crate) async fn names<K>(&self) -> Result<Vec<String>>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
            + Clone
            + serde::de::DeserializeOwned
            + std::fmt::Debug,
    {
        let list = self
            .api::<K>()
            .list(&ListParams::default().labels(&labels::managed_selector()))
            .await?;
        let mut names: Vec<String> = list.iter().map(ResourceExt::name_any).collect();
        names.sort();
        Ok(names)
    }

    pub(crate) async fn pods(&self) -> Result<Vec<Pod>> {
        Ok(self
            .api::<Pod>()
            .list(&ListParams::default().labels(&labels::managed_selector()))
            .await?
            .items)
    }

    /// Active pods: not being deleted and not ended.
    pub(crate) async fn active(&self) -> Result<Vec<Pod>> {
        let pods = self.pods().await?.into_iter();
        Ok(pods
            .filter(|pod| {
                pod.metadata.deletion_timestamp.is_none()
                    && !matches!(phase(pod), "Failed" | "Succeeded")
            })
            .collect())
    }

    /// Somebody deletes a pod.
    pub(crate) async fn delete_pod(&self, pod: &Pod) -> Result<()> {
        self.api::<Pod>()
            .delete(&pod.name_any(), &DeleteParams::default())
            .await?;
        Ok(())
    }

    /// Waits until exactly `ready` pods are ready and `pending` are not bound, and nothing else is there.
    pub(crate) async fn expect_pods(&self, ready: usize, pending: usize) -> Result<()> {
        let what = format!("{ready} ready and {pending} pending pods");
        self.until(&what, || async {
            let pods = self.active().await?;
            let (is_ready, is_pending) = (
                pods.iter().filter(|pod| is_ready(pod)).count(),
                pods.iter().filter(|pod| node(pod).is_none()).count(),
            );
            let total = pods.len();
            ensure!(
                (is_ready, is_pending, total) == (ready, pending, ready + pending),
                "{is_ready} ready, {is_pending} pending, {total} in all"
            );
            anyhow::Ok(())
        })
        .await
    }

    /// That state, and that it stays.
    pub(crate) async fn expect_pods_for_good(&self, ready: usize, pending: usize) -> Result<()> {
        self.expect_pods(ready, pending).await?;
        wait::holds(QUIET, "the pods to stay as they are", || async {
            let pods = self.active().await?;
            let bound = pods.iter().filter(|pod| node(pod).is_some()).count();
            ensure!(
                bound == ready && pods.len() == ready + pending,
                "{bound} of {} bound",
                pods.len()
            );
            anyhow::Ok(())
        })
        .await?;
        Ok(())
    }

    /// Waits until the set has that many available replicas and its last generation is observed.
    pub(crate) async fn expect_available(&self, set: &str, replicas: i32) -> Result<PodCliqueSet> {
        let sets = self.api::<PodCliqueSet>();
        let what = format!("{replicas} available replicas of {set}");
        self.until(&what, || async {
            let found = sets.get(set).await?;
            let status = found.status.clone().unwrap_or_default();
            ensure!(
                status.observed_generation == found.metadata.generation,
                "generation {:?}",
                status.observed_generation
            );
            ensure!(
                status.available_replicas == replicas,
                "{} available",
                status.available_replicas
            );
            anyhow::Ok(found)
        })
        .await
    }

    pub(crate) async fn scale<K>(&self, name: &str, replicas: i32) -> Result<()>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
            + Clone
            + serde::de::DeserializeOwned
            + std::fmt::Debug,
    {
        let patch = json!({"spec": {"replicas": replicas}});
        self.api::<K>()
            .patch_scale(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
        Ok(())
    }

    pub(crate) async fn scale_set(&self, name: &str, replicas: i32) -> Result<()> {
        self.scale::<PodCliqueSet>(name, replicas).await
    }

    pub(crate) async fn scale_group(&self, name: &str, replicas: i32) -> Result<()> {
        self.scale::<PodCliqueScalingGroup>(name, replicas).await
    }

    pub(crate) async fn scale_clique(&self, name: &str, replicas: i32) -> Result<()> {
        self.scale::<PodClique>(name, replicas).await
    }

    /// Waits until the operator has written nothing for `period`.
    pub(crate) async fn settle(&self, period: Duration) -> Result<()> {
        let user = format!("operator-{}", self.namespace);
        let audit = self.cluster.audit();
        let mut mark = audit.mark()?;
        let deadline = tokio::time::Instant::now() + LIMIT;
        loop {
            let quiet = wait::holds(period, "no writes", || async {
                let writes = audit.since(mark)?;
                let ours = writes
                    .iter()
                    .find(|write| write.user == user && !write.is_lease());
                ensure!(ours.is_none(), "{ours:?}");
                anyhow::Ok(())
            })
            .await;
            match quiet {
                Ok(()) => return Ok(()),
                Err(error) => ensure!(
                    tokio::time::Instant::now() < deadline,
                    "it goes on writing: {error}"
                ),
            }
            mark = audit.mark()?;
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(mut child) = self.operator.take() {
            drop(child.kill());
            drop(child.wait());
        }
        self.cluster.abandon(&self.namespace);
    }
}

fn log_path(namespace: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("operator-logs")
        .join(format!("{namespace}.log"))
}

fn log_file(namespace: &str) -> Result<std::fs::File> {
    let path = log_path(namespace);
    std::fs::create_dir_all(path.parent().context("a folder")?)?;
    Ok(std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)?)
}

pub(crate) async fn get(address: &str) -> Result<(u16, String)> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let rest = address.strip_prefix("http://").context("http only")?;
    let (host, path) = rest.split_once('/').context("a path")?;
    let mut stream = tokio::net::TcpStream::connect(host).await?;
    let request = format!("GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let status = answer
        .split_whitespace()
        .nth(1)
        .context("no status line")?
        .parse()?;
    Ok((status, answer))
}
