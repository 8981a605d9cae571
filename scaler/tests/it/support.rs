//! A scaler process on the shared control plane, with an operator and nodes where a test needs them.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use coppice_operator_api::crd;
use coppice_scaler_api::{ScalingPolicy, ScalingPolicyStatus, crds};
use coppice_testbed::audit::{Mark, Write};
use coppice_testbed::fleet::{Farewell, Fleet, FleetSettings};
use coppice_testbed::{Cluster, Identity, Profile, shared, wait};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::sync::OnceCell;

/// Long enough for a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// The shared control plane with the definitions of operator and scaler.
pub(crate) async fn cluster() -> Result<&'static Cluster> {
    static READY: OnceCell<()> = OnceCell::const_new();
    let cluster = shared(Profile::Native).await?;
    READY.get_or_try_init(|| install(cluster)).await?;
    Ok(cluster)
}

async fn install(cluster: &Cluster) -> Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(cluster.client());
    for definition in crds().into_iter().chain(crd::crds()) {
        let parameters = PatchParams::apply("tests").force();
        api.patch(
            &definition.name_any(),
            &parameters,
            &Patch::Apply(&definition),
        )
        .await?;
    }
    let policies: Api<ScalingPolicy> = Api::all(cluster.client());
    let sets: Api<coppice_operator_api::PodCliqueSet> = Api::all(cluster.client());
    wait::until(LIMIT, "the definitions to be served", || async {
        policies.list(&ListParams::default()).await?;
        sets.list(&ListParams::default()).await?;
        anyhow::Ok(())
    })
    .await?;
    Ok(())
}

/// A program of the workspace, built beside the scaler.
fn program(name: &str) -> Result<PathBuf> {
    let path = Path::new(env!("CARGO_BIN_EXE_coppice-scaler")).with_file_name(name);
    ensure!(
        path.exists(),
        "{} is not built: run `cargo build -p {name}`",
        path.display()
    );
    Ok(path)
}

/// A child process that ends with this value.
pub(crate) struct Program(Child);

impl Program {
    fn start(path: &Path, arguments: &[String], log: &str) -> Result<Self> {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("scaler-logs");
        std::fs::create_dir_all(&folder)?;
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(folder.join(format!("{log}.log")))?;
        let child = Command::new(path)
            .args(arguments)
            .env(
                "COPPICE_LOG",
                "info,coppice_scaler=debug,coppice_operator=info",
            )
            .stdout(Stdio::from(log.try_clone()?))
            .stderr(Stdio::from(log))
            .spawn()
            .with_context(|| format!("cannot start {}", path.display()))?;
        Ok(Self(child))
    }
}

impl Drop for Program {
    /// As a crash would.
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// One namespace with a scaler of its own.
pub(crate) struct World {
    pub(crate) cluster: &'static Cluster,
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) admin: String,
    kubeconfig: PathBuf,
    scaler: Option<Program>,
    operator: Option<Program>,
    _fleet: Option<Fleet>,
}

impl World {
    /// A namespace and a scaler for it, with the rights that `coppice-scaler manifests` gives and no others. In the audit log it is the user
    /// `scaler-<namespace>`.
    pub(crate) async fn new(name: &str) -> Result<Self> {
        let cluster = cluster().await?;
        let namespace = cluster.namespace(name).await?;
        let identity = Identity {
            user: format!("scaler-{namespace}"),
            groups: Vec::new(),
        };
        grant(
            &cluster.client(),
            env!("CARGO_BIN_EXE_coppice-scaler").as_ref(),
            &namespace,
            &identity.user,
        )
        .await?;
        let kubeconfig = cluster.kubeconfig_as(&identity)?;
        let client = cluster.client();
        let admin = String::new();
        let mut world = Self {
            cluster,
            client,
            namespace,
            admin,
            kubeconfig,
            scaler: None,
            operator: None,
            _fleet: None,
        };
        world.start_scaler().await?;
        Ok(world)
    }

    /// The same with `nodes` nodes of eight GPUs, which only pods with `pool=<namespace>` in their node selector use.
    pub(crate) async fn with_fleet(name: &str, nodes: usize) -> Result<Self> {
        let mut world = Self::new(name).await?;
        let mut settings = FleetSettings::new(nodes);
        settings.name_prefix = format!("{}-", world.namespace);
        settings.labels = BTreeMap::from([("pool".to_owned(), world.namespace.clone())]);
        settings.farewell = Farewell::CleanUp;
        world._fleet = Some(Fleet::start(world.cluster, settings).await?);
        Ok(world)
    }

    /// The same with an operator.
    pub(crate) async fn with_operator(name: &str, nodes: usize) -> Result<Self> {
        let mut world = Self::with_fleet(name, nodes).await?;
        let identity = Identity {
            user: format!("operator-{}", world.namespace),
            groups: vec!["system:masters".to_owned()],
        };
        let kubeconfig = world.cluster.kubeconfig_as(&identity)?;
        let admin = free_address()?;
        let arguments = [
            "run".to_owned(),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--admin-address={admin}"),
            "--leader-elect=false".to_owned(),
            format!("--namespace={}", world.namespace),
        ];
        world.operator = Some(Program::start(
            &program("coppice-operator")?,
            &arguments,
            &format!("{}-operator", world.namespace),
        )?);
        ready(&admin, "the operator").await?;
        Ok(world)
    }

    pub(crate) async fn start_scaler(&mut self) -> Result<()> {
        self.admin = free_address()?;
        let arguments = [
            "run".to_owned(),
            format!("--kubeconfig={}", self.kubeconfig.display()),
            format!("--admin-address={}", self.admin),
            format!("--lease-namespace={}", self.namespace),
            "--lease-duration=5s".to_owned(),
            "--lease-renew-deadline=3s".to_owned(),
            "--lease-retry-period=500ms".to_owned(),
            format!("--namespace={}", self.namespace),
            "--interval=2s".to_owned(),
            "--scrape-interval=500ms".to_owned(),
            "--window=2s".to_owned(),
        ];
        self.scaler = Some(Program::start(
            env!("CARGO_BIN_EXE_coppice-scaler").as_ref(),
            &arguments,
            &self.namespace,
        )?);
        ready(&self.admin, "the scaler").await
    }

    /// Stops the scaler as a crash would.
    pub(crate) fn kill_scaler(&mut self) {
        self.scaler = None;
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) async fn apply(&self, object: &serde_json::Value) -> Result<()> {
        coppice_testbed::apply(&self.client, &object.to_string(), &self.namespace).await?;
        Ok(())
    }

    pub(crate) async fn status(&self, policy: &str) -> Result<ScalingPolicyStatus> {
        let policy = self.api::<ScalingPolicy>().get_status(policy).await?;
        policy.status.context("no status yet")
    }

    /// Waits until the record of `policy` is as `look` wants it.
    pub(crate) async fn until(
        &self,
        policy: &str,
        what: &str,
        look: impl Fn(&ScalingPolicyStatus) -> bool,
    ) -> Result<ScalingPolicyStatus> {
        let found = wait::until(LIMIT, what, || async {
            let status = self.status(policy).await?;
            ensure!(look(&status), "{}", brief(&status));
            anyhow::Ok(status)
        });
        Ok(found.await?)
    }

    pub(crate) fn mark(&self) -> Result<Mark> {
        Ok(self.cluster.audit().mark()?)
    }

    /// What this scaler wrote since `mark`, Leases aside.
    pub(crate) fn writes(&self, mark: Mark) -> Result<Vec<Write>> {
        let user = format!("scaler-{}", self.namespace);
        let writes = self.cluster.audit().since(mark)?;
        Ok(writes
            .into_iter()
            .filter(|write| write.user == user && !write.is_lease())
            .collect())
    }

    /// Waits until the scaler has written nothing for `period`.
    pub(crate) async fn settle(&self, period: Duration) -> Result<()> {
        let deadline = tokio::time::Instant::now() + LIMIT;
        loop {
            let mark = self.mark()?;
            let quiet = wait::holds(period, "no writes", || async {
                let writes = self.writes(mark)?;
                ensure!(writes.is_empty(), "{writes:?}");
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
        }
    }
}

/// The most GPUs that were held at any instant that was seen: ten looks a second.
pub(crate) struct MostHeld {
    most: Arc<AtomicU32>,
    looks: Arc<AtomicU32>,
    stop: Arc<AtomicBool>,
}

impl MostHeld {
    /// Looks until the end; a look that fails is none.
    pub(crate) fn watch<F>(held: impl Fn() -> F + Send + 'static) -> Self
    where
        F: Future<Output = Result<u32>> + Send,
    {
        let watch = Self {
            most: Arc::default(),
            looks: Arc::default(),
            stop: Arc::default(),
        };
        let (most, looks, stop) = (
            Arc::clone(&watch.most),
            Arc::clone(&watch.looks),
            Arc::clone(&watch.stop),
        );
        tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                if let Ok(held) = held().await {
                    most.fetch_max(held, Ordering::Relaxed);
                    looks.fetch_add(1, Ordering::Relaxed);
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        watch
    }

    /// Ends the watch, which must have seen enough.
    pub(crate) fn end(&self) -> Result<u32> {
        self.stop.store(true, Ordering::Relaxed);
        let looks = self.looks.load(Ordering::Relaxed);
        ensure!(looks > 50, "only {looks} looks");
        Ok(self.most.load(Ordering::Relaxed))
    }
}

/// The record in a line.
pub(crate) fn brief(status: &ScalingPolicyStatus) -> String {
    let conditions = status.conditions.iter().map(|each| {
        format!(
            "{}={} {}: {}",
            each.type_, each.status, each.reason, each.message
        )
    });
    let sentence = status
        .decision
        .as_ref()
        .map(|decision| decision.sentence.clone())
        .unwrap_or_default();
    format!(
        "{} | {sentence} | {}",
        coppice_scaler_api::summary(status),
        conditions.collect::<Vec<_>>().join("; ")
    )
}

/// Wanted units of each role.
pub(crate) fn wanted(status: &ScalingPolicyStatus) -> Vec<u32> {
    status.roles.iter().map(|role| role.wanted).collect()
}

fn free_address() -> Result<String> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
        .local_addr()?
        .to_string())
}

async fn ready(admin: &str, what: &str) -> Result<()> {
    wait::until(LIMIT, &format!("{what} to be ready"), || async {
        let answer = get(admin, "/readyz").await?;
        ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        anyhow::Ok(())
    })
    .await?;
    Ok(())
}

/// The answer to a GET, head and body.
pub(crate) async fn get(address: &str, path: &str) -> Result<String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    stream
        .write_all(
            format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")
                .as_bytes(),
        )
        .await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// Gives `user` what the program's own manifests give its service account in one namespace, its Lease there included.
async fn grant(client: &Client, program: &Path, namespace: &str, user: &str) -> Result<()> {
    let arguments = [
        "manifests",
        "--namespace",
        namespace,
        "--install-namespace",
        namespace,
    ];
    let printed = Command::new(program)
        .args(arguments)
        .output()
        .context("cannot print manifests")?;
    ensure!(
        printed.status.success(),
        "{}",
        String::from_utf8_lossy(&printed.stderr)
    );
    let documents: Vec<serde_json::Value> =
        serde_saphyr::from_multiple(&String::from_utf8(printed.stdout)?)?;
    let mut wanted = Vec::new();
    for mut object in documents {
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        if kind.ends_with("Binding") {
            object["subjects"] =
                json!([{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}]);
        }
        if kind.contains("Role") {
            wanted.push(object.to_string());
        }
    }
    ensure!(wanted.len() == 6, "three roles and bindings: {wanted:?}");
    coppice_testbed::apply(client, &wanted.join("\n---\n"), namespace).await?;
    Ok(())
}
