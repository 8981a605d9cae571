//! What the tests share: the adapter as a process with its own rights, engines that expose metrics, and pods that point at them.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use axum::Router;
use axum::extract::State;
use axum::routing::get;
use coppice_testbed::{Cluster, Identity, Profile, control_plane_program, wait};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

pub(crate) const SYSTEM: &str = "coppice-system";
pub(crate) const BASE: &str = "/apis/external.metrics.k8s.io/v1beta1";
pub(crate) const CUSTOM: &str = "/apis/custom.metrics.k8s.io/v1beta2";
/// Flags of `manifests` for an adapter that runs outside the cluster and serves everything.
pub(crate) const OUTSIDE: [&str; 3] = ["--external-host", "localhost", "--apis=both"];
const SERVICES: [&str; 3] = [
    "v1beta1.external.metrics.k8s.io",
    "v1beta2.custom.metrics.k8s.io",
    "v1beta1.custom.metrics.k8s.io",
];
/// Nothing here should take so long; a busy machine may.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);

/// A control plane with the adapter's rights in it.
pub(crate) struct World {
    pub(crate) cluster: Cluster,
    pub(crate) client: Client,
}

impl World {
    /// Starts a control plane of its own (the APIService is one for the whole cluster) and applies what `manifests` prints for an
    /// adapter outside the cluster, as which it runs here.
    pub(crate) async fn start() -> anyhow::Result<Self> {
        Self::start_with(&manifests(&OUTSIDE).await?).await
    }

    /// The same with other manifests.
    pub(crate) async fn start_with(manifests: &str) -> anyhow::Result<Self> {
        coppice_runtime::crypto::install();
        let cluster = Cluster::start(Profile::Plain).await?;
        // An answer of 503 is to be seen, not repeated.
        let mut config = cluster.config();
        config.default_retry = false;
        let client = Client::try_from(config)?;
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let metadata = ObjectMeta {
            name: Some(SYSTEM.to_owned()),
            ..ObjectMeta::default()
        };
        namespaces
            .create(
                &PostParams::default(),
                &Namespace {
                    metadata,
                    ..Namespace::default()
                },
            )
            .await?;
        coppice_testbed::apply(&client, manifests, SYSTEM).await?;
        Ok(Self { cluster, client })
    }

    /// Starts the adapter with the rights of its service account, and waits until the API server uses it.
    pub(crate) async fn adapter(&self) -> anyhow::Result<Adapter> {
        let identity = Identity::service_account(SYSTEM, "coppice-adapter");
        let kubeconfig = self.cluster.kubeconfig_as(&identity)?;
        let adapter = Adapter::start(&outside(), &kubeconfig).await?;
        let services: Api<APIService> = Api::all(self.client.clone());
        for name in SERVICES {
            wait::until(LIMIT, "an available APIService", || async {
                let service = services.get(name).await?;
                let port = service
                    .spec
                    .and_then(|spec| spec.service)
                    .and_then(|service| service.port);
                ensure!(
                    port == Some(i32::from(adapter.address.port())),
                    "{name} names port {port:?}"
                );
                let conditions = service
                    .status
                    .and_then(|status| status.conditions)
                    .unwrap_or_default();
                ensure!(
                    conditions
                        .iter()
                        .any(|condition| condition.type_ == "Available"
                            && condition.status == "True"),
                    "{name}: {conditions:?}"
                );
                Ok(())
            })
            .await?;
        }
        Ok(adapter)
    }

    /// A client that asks the adapter itself, around the API server, and trusts whom the API server trusts.
    pub(crate) async fn direct(&self, adapter: &Adapter) -> anyhow::Result<reqwest::Client> {
        Ok(self.direct_builder(adapter).await?.build()?)
    }

    /// The same, to be given an identity.
    pub(crate) async fn direct_builder(
        &self,
        adapter: &Adapter,
    ) -> anyhow::Result<reqwest::ClientBuilder> {
        Ok(reqwest::Client::builder()
            .tls_certs_only([reqwest::Certificate::from_pem(&self.bundle().await?)?])
            .resolve("localhost", adapter.address))
    }

    /// Whom the API server trusts for the adapter, as PEM.
    pub(crate) async fn bundle(&self) -> anyhow::Result<Vec<u8>> {
        let services: Api<APIService> = Api::all(self.client.clone());
        let bundle = wait::until(LIMIT, "a bundle in the APIService", || async {
            let service = services.get(SERVICES[0]).await?;
            let bundle = service.spec.and_then(|spec| spec.ca_bundle);
            bundle.context("no bundle")
        })
        .await?;
        Ok(bundle.0)
    }

    /// A token of a new service account.
    pub(crate) async fn token(&self, namespace: &str, name: &str) -> anyhow::Result<String> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), namespace);
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        };
        let account = ServiceAccount {
            metadata,
            ..ServiceAccount::default()
        };
        accounts.create(&PostParams::default(), &account).await?;
        let request = TokenRequest {
            spec: Some(TokenRequestSpec::default()),
            ..TokenRequest::default()
        };
        let token = accounts
            .create_token_request(name, &PostParams::default(), &request)
            .await?;
        token
            .status
            .and_then(|status| status.token)
            .context("a token")
    }

    /// What `kubectl get --raw` gives.
    pub(crate) async fn raw(&self, path: &str) -> kube::Result<Value> {
        raw(&self.client, path).await
    }

    /// Runs the real kubectl; returns what it printed, or what it complained about.
    pub(crate) async fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = Command::new(control_plane_program()?)
            .arg("kubectl")
            .arg("--kubeconfig")
            .arg(self.cluster.kubeconfig())
            .args(arguments)
            .output()
            .await?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8(output.stdout)?)
    }
}

pub(crate) async fn raw(client: &Client, path: &str) -> kube::Result<Value> {
    client
        .request(http::Request::get(path).body(Vec::new()).expect("a path"))
        .await
}

pub(crate) fn program() -> &'static str {
    env!("CARGO_BIN_EXE_coppice-adapter")
}

/// The code and message of a refusal.
pub(crate) fn refusal(outcome: kube::Result<Value>) -> anyhow::Result<(u16, String)> {
    match outcome {
        Ok(value) => bail!("expected a refusal, got {value}"),
        Err(kube::Error::Api(status)) => Ok((status.code, status.message.clone())),
        Err(other) => Err(other.into()),
    }
}

/// What `manifests` prints with these flags.
pub(crate) async fn manifests(flags: &[&str]) -> anyhow::Result<String> {
    let manifests = Command::new(program())
        .args(["manifests", "--namespace", SYSTEM])
        .args(flags)
        .output()
        .await?;
    ensure!(
        manifests.status.success(),
        "manifests: {}",
        String::from_utf8_lossy(&manifests.stderr)
    );
    Ok(String::from_utf8(manifests.stdout)?)
}

/// Flags of an adapter that runs outside the cluster.
pub(crate) fn outside() -> Vec<String> {
    let registers = [
        "--register-apiservice",
        "--external-host=localhost",
        "--apis=both",
        &format!("--service-namespace={SYSTEM}"),
        &format!("--scaler-lease-namespace={SYSTEM}"),
    ];
    registers.map(str::to_owned).into()
}

/// The adapter as a process.
pub(crate) struct Adapter {
    process: Child,
    /// Of its HTTPS endpoint.
    pub(crate) address: SocketAddr,
    /// Of its metrics.
    admin: SocketAddr,
    /// Of KEDA's external scaler.
    pub(crate) keda: SocketAddr,
}

impl Adapter {
    /// A metric of its own, by name and labels as they are exposed.
    pub(crate) async fn measured(&self, series: &str) -> anyhow::Result<f64> {
        let text = reqwest::get(format!("http://{}/metrics", self.admin))
            .await?
            .text()
            .await?;
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        Ok(value
            .with_context(|| format!("{series} is not in\n{text}"))?
            .parse()?)
    }

    /// Starts it with these flags of `serve`; where they listen is chosen here.
    pub(crate) async fn start(
        flags: &[String],
        kubeconfig: &std::path::Path,
    ) -> anyhow::Result<Self> {
        // Chosen here, so that its log line is told from those of the others; on an address of its own, where nobody else takes it meanwhile.
        let keda =
            std::net::TcpListener::bind((Ipv4Addr::new(127, 127, 255, 1), 0))?.local_addr()?;
        let mut process = Command::new(program())
            .args(["serve", "--log-format", "json"])
            .arg(format!("--keda-bind-address={keda}"))
            .args(["--bind-address", "127.0.0.1:0"])
            .args(["--admin-address", "127.0.0.1:0"])
            .args(["--scrape-interval", "500ms", "--scrape-timeout", "400ms"])
            .args(["--stale-after", "2s", "--window", "5s"])
            .args(flags)
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut lines = BufReader::new(process.stderr.take().context("stderr")?).lines();
        let mut seen = Vec::new();
        let (mut secure, mut plain): (Option<SocketAddr>, Option<SocketAddr>) = (None, None);
        let (address, admin) = loop {
            if let (Some(secure), Some(plain)) = (secure, plain) {
                break (secure, plain);
            }
            let Some(line) = lines.next_line().await? else {
                bail!("the adapter ended:\n{}", seen.join("\n"))
            };
            let event: Value = serde_json::from_str(&line).unwrap_or(Value::Null);
            seen.push(line);
            if event["message"] == "listening" {
                let address: SocketAddr =
                    event["address"].as_str().context("an address")?.parse()?;
                if address == keda {
                    continue;
                }
                let place = if event["tls"] == true {
                    &mut secure
                } else {
                    &mut plain
                };
                *place = Some(address);
            }
        };
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                show(&line);
            }
        });
        Ok(Self {
            process,
            address,
            admin,
            keda,
        })
    }

    /// Ends it as the kubelet would, and waits for the end.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        let id = self.process.id().context("it runs")?;
        let killed = Command::new("kill").arg(id.to_string()).status().await?;
        ensure!(killed.success(), "cannot signal the adapter");
        let status = tokio::time::timeout(LIMIT, self.process.wait()).await??;
        ensure!(status.success(), "the adapter ended with {status}");
        Ok(())
    }
}

#[expect(
    clippy::print_stderr,
    reason = "the adapter's log belongs to the output of a failed test"
)]
fn show(line: &str) {
    eprintln!("adapter: {line}");
}

/// An engine that exposes the number of waiting requests in vLLM's words.
pub(crate) struct Engine {
    pub(crate) address: SocketAddr,
    waiting: Arc<AtomicU64>,
    is_frozen: Arc<AtomicBool>,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Engine {
    /// Serves at an address of its own, as every pod has one.
    pub(crate) async fn start(waiting: u64) -> anyhow::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let [high, low] = u16::try_from(NEXT.fetch_add(1, Ordering::SeqCst))?.to_be_bytes();
        // Its own part of 127.64.0.0/10, so that it meets no fleet on the same machine.
        let listener =
            tokio::net::TcpListener::bind((Ipv4Addr::new(127, 127, high, low), 0)).await?;
        let address = listener.local_addr()?;
        let (waiting, is_frozen) = (
            Arc::new(AtomicU64::new(waiting)),
            Arc::new(AtomicBool::new(false)),
        );
        let app = Router::new()
            .route("/metrics", get(metrics))
            .with_state((Arc::clone(&waiting), Arc::clone(&is_frozen)));
        let server = tokio::spawn(async move {
            axum::serve(listener, app)
                .await
                .expect("serving does not end")
        });
        Ok(Self {
            address,
            waiting,
            is_frozen,
            server,
        })
    }

    pub(crate) fn set_waiting(&self, waiting: u64) {
        self.waiting.store(waiting, Ordering::SeqCst);
    }

    /// While frozen, requests for metrics get no answer.
    pub(crate) fn freeze(&self, is_frozen: bool) {
        self.is_frozen.store(is_frozen, Ordering::SeqCst);
    }

    /// Creates a ready pod that has this engine's address and is scheduled by nobody.
    pub(crate) async fn pod(
        &self,
        client: &Client,
        namespace: &str,
        name: &str,
    ) -> anyhow::Result<()> {
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let pod = serde_json::from_value(json!({
            "metadata": {
                "name": name,
                "labels": {
                    "app": "engine", "role": "decode",
                    "app.kubernetes.io/managed-by": "grove-operator", "grove.io/podcliquescalinggroup": "engines",
                },
                "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": self.address.port().to_string()},
            },
            "spec": {"schedulerName": "nobody", "containers": [{"name": "engine", "image": "engine"}]},
        }))?;
        pods.create(&PostParams::default(), &pod).await?;
        let ip = self.address.ip().to_string();
        let status = json!({"status": {
            "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": "True"}],
        }});
        pods.patch_status(name, &PatchParams::default(), &Patch::Merge(status))
            .await?;
        Ok(())
    }
}

async fn metrics(State((waiting, is_frozen)): State<(Arc<AtomicU64>, Arc<AtomicBool>)>) -> String {
    if is_frozen.load(Ordering::SeqCst) {
        std::future::pending::<()>().await;
    }
    let waiting = waiting.load(Ordering::SeqCst);
    format!(
        "# TYPE vllm:num_requests_running gauge\n\
         vllm:num_requests_running{{engine=\"0\",model_name=\"qwen3\"}} 4\n\
         # TYPE vllm:num_requests_waiting gauge\n\
         vllm:num_requests_waiting{{engine=\"0\",model_name=\"qwen3\"}} {waiting}\n"
    )
}
