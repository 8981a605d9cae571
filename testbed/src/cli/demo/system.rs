//! Starting Coppice's programs beside a control plane, and the demo's workloads.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use coppice_testbed::{
    ExtraProcess, Instance, Profile, Settings, Started, apply, control_plane_program, start, wait,
};
use kube::{Client, Config};

/// GPUs that the policy of the disaggregated model may hold; also what `samples/slo-policy.yaml` says.
pub(super) const GPU_BUDGET: u32 = 192;
/// Namespace of Leases and Services of our own.
const SYSTEM_NAMESPACE: &str = "coppice-system";
/// Time between SIGTERM and SIGKILL of a program.
const GRACE: Duration = Duration::from_secs(10);

/// Where things are.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    name: String,
    root: PathBuf,
    samples: PathBuf,
    /// Namespace of the workloads.
    pub(super) namespace: String,
}

impl Places {
    /// For an instance `name` below `root`, with samples from a folder of the repository.
    pub(crate) fn new(name: String, root: PathBuf, samples: PathBuf) -> Self {
        Self {
            name,
            root,
            samples,
            namespace: "default".to_owned(),
        }
    }

    /// Namespace of the workloads.
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The file of one of our programs: beside this one.
    pub(super) fn program(&self, name: &str) -> PathBuf {
        let here = std::env::current_exe().unwrap_or_default();
        here.with_file_name(name)
    }

    fn sample(&self, name: &str) -> anyhow::Result<String> {
        let path = self.samples.join(name);
        std::fs::read_to_string(&path).with_context(|| {
            format!(
                "cannot read {}; run this in the repository or give --samples",
                path.display()
            )
        })
    }
}

/// A control plane and what runs beside it.
#[derive(Debug)]
pub(crate) struct Programs {
    started: Started,
    gateway: u16,
    scaler: u16,
}

impl Programs {
    /// Starts the control plane alone. One that an earlier demo left is ended first.
    pub(crate) async fn start_control_plane(
        places: &Places,
        profile: Profile,
    ) -> anyhow::Result<Self> {
        if let Ok(instance) = Instance::load(&places.root, &places.name) {
            instance.stop()?;
        }
        let settings = Settings {
            root: places.root.clone(),
            ..Settings::new(profile)
        };
        let started = start(&settings, &places.name).await?;
        Ok(Self {
            started,
            gateway: free_port()?,
            scaler: free_port()?,
        })
    }

    /// Takes over a control plane that was started by other means.
    pub(crate) fn beside(started: Started) -> anyhow::Result<Self> {
        Ok(Self {
            started,
            gateway: free_port()?,
            scaler: free_port()?,
        })
    }

    /// The control plane, with everything beside it.
    pub(crate) fn into_started(self) -> Started {
        self.started
    }

    pub(crate) fn instance(&self) -> &Instance {
        &self.started.instance
    }

    pub(crate) fn config(&self) -> Config {
        self.started.config.clone()
    }

    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::try_from(self.config())?)
    }

    pub(crate) fn detach(&self) -> anyhow::Result<()> {
        Ok(self.started.detach()?)
    }

    pub(crate) fn stop(&self) -> anyhow::Result<()> {
        Ok(self.started.instance.stop()?)
    }

    /// The scaler's page.
    pub(crate) fn scaler_page(&self) -> String {
        format!("http://127.0.0.1:{}/", self.scaler)
    }

    /// Where clients send requests.
    pub(crate) fn gateway_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.gateway)
    }

    /// Applies the definitions and starts operator, adapter, scaler and gateway; returns when all are ready.
    pub(crate) async fn start_coppice(&mut self, places: &Places) -> anyhow::Result<()> {
        self.start_operator(places).await?;
        self.define(places, "coppice-scaler").await?;
        let [admin, port] = [free_port()?, free_port()?];
        let config = self.kubeconfig("adapter")?;
        let arguments = [
            format!("--kubeconfig={config}"),
            "serve".to_owned(),
            format!("--bind-address=127.0.0.1:{port}"),
            format!("--admin-address=127.0.0.1:{admin}"),
            format!("--service-namespace={SYSTEM_NAMESPACE}"),
            format!("--scaler-lease-namespace={SYSTEM_NAMESPACE}"),
            "--register-apiservice".to_owned(),
            "--external-host=localhost".to_owned(),
            "--scrape-interval=2s".to_owned(),
            "--window=20s".to_owned(),
        ];
        self.start_program(
            places,
            "adapter",
            "coppice-adapter",
            &arguments,
            admin,
            "/readyz",
        )
        .await?;
        let config = self.kubeconfig("scaler")?;
        let arguments = [
            "run".to_owned(),
            format!("--kubeconfig={config}"),
            format!("--admin-address=127.0.0.1:{}", self.scaler),
            format!("--lease-namespace={SYSTEM_NAMESPACE}"),
            "--interval=2s".to_owned(),
            "--scrape-interval=2s".to_owned(),
            "--window=10s".to_owned(),
        ];
        self.start_program(
            places,
            "scaler",
            "coppice-scaler",
            &arguments,
            self.scaler,
            "/readyz",
        )
        .await?;
        let config = self.kubeconfig("gateway")?;
        let arguments = [
            "gateway".to_owned(),
            format!("--kubeconfig={config}"),
            format!("--namespace={}", places.namespace),
            "--host=127.0.0.1".to_owned(),
            format!("--port={}", self.gateway),
            "--model=qwen3=prefill:app=qwen3,role=prefill;decode:app=qwen3,role=decode".to_owned(),
            "--model=chat=aggregated:app=chat".to_owned(),
        ];
        self.start_program(
            places,
            "gateway",
            "coppice-loadtest",
            &arguments,
            self.gateway,
            "/health",
        )
        .await
    }

    /// Applies the operator's definitions and starts it alone.
    async fn start_operator(&mut self, places: &Places) -> anyhow::Result<()> {
        let namespace =
            format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {SYSTEM_NAMESPACE}}}\n");
        apply(&self.client()?, &namespace, "default").await?;
        self.define(places, "coppice-operator").await?;
        let admin = free_port()?;
        let config = self.kubeconfig("operator")?;
        let arguments = [
            "run".to_owned(),
            format!("--kubeconfig={config}"),
            format!("--admin-address=127.0.0.1:{admin}"),
            format!("--lease-namespace={SYSTEM_NAMESPACE}"),
            "--webhook-url-host=127.0.0.1".to_owned(),
            "--webhook-address=127.0.0.1:0".to_owned(),
        ];
        self.start_program(
            places,
            "operator",
            "coppice-operator",
            &arguments,
            admin,
            "/readyz",
        )
        .await
    }

    /// Applies the CustomResourceDefinitions that a program prints.
    async fn define(&self, places: &Places, program: &str) -> anyhow::Result<()> {
        let output = std::process::Command::new(places.program(program))
            .arg("crds")
            .output()
            .with_context(|| format!("cannot run {program}; build it with `make build`"))?;
        anyhow::ensure!(
            output.status.success(),
            "{program} crds: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        apply(
            &self.client()?,
            &String::from_utf8(output.stdout)?,
            "default",
        )
        .await?;
        Ok(())
    }

    /// A kubeconfig for one of our programs. Each is a user of its own, so that the audit log tells their writes apart.
    fn kubeconfig(&self, name: &str) -> anyhow::Result<String> {
        let identity = coppice_testbed::Identity {
            user: format!("coppice-{name}"),
            groups: vec!["system:masters".to_owned()],
        };
        let path = self.started.instance.kubeconfig_as(&identity)?;
        Ok(path.display().to_string())
    }

    /// Starts a program beside the control plane and waits until it says that it is ready.
    async fn start_program(
        &mut self,
        places: &Places,
        name: &str,
        program: &str,
        arguments: &[String],
        port: u16,
        path: &str,
    ) -> anyhow::Result<()> {
        self.started.run_beside(&ExtraProcess {
            name: name.to_owned(),
            program: places.program(program),
            arguments: arguments.to_vec(),
            grace: GRACE,
        })?;
        self.answers(name, port, path).await
    }

    async fn answers(&self, name: &str, port: u16, path: &str) -> anyhow::Result<()> {
        let log = self.started.instance.logs().join(format!("{name}.log"));
        wait::until(Duration::from_secs(60), name, || async {
            if let Some(status) = self.started.exit_of(name) {
                return Ok(Err(status));
            }
            ask(port, path).await.map(Ok)
        })
        .await
        .map_err(anyhow::Error::from)
        .and_then(|outcome| {
            outcome.map_err(|status| anyhow::anyhow!("{name} ended during the start ({status})"))
        })
        .with_context(|| format!("the end of {}:\n{}", log.display(), tail(&log)))
    }

    /// The disaggregated model with its policy and profile, and the model under the HPA.
    pub(crate) async fn apply_samples(&self, places: &Places) -> anyhow::Result<()> {
        let client = self.client()?;
        let policy = places.sample("slo-policy.yaml")?;
        // Here the gateway is a process of this machine, not a pod; and minutes stand for hours, so the scaler forgets sooner.
        let gateway =
            "endpoints: {selector: {matchLabels: {app: gateway}}, port: http, path: /metrics}";
        anyhow::ensure!(
            policy.contains(gateway),
            "samples/slo-policy.yaml no longer says {gateway:?}"
        );
        let policy = policy.replace(
            gateway,
            &format!(
                "endpoints: {{address: \"127.0.0.1:{}\", path: /metrics}}",
                self.gateway
            ),
        );
        let policy = format!(
            "{policy}  behavior:\n    scaleDown:\n      stabilizationWindowSeconds: 30\n      policies: [{{type: Percent, value: 50, periodSeconds: 15}}]\n"
        );
        for text in [
            places.sample("disaggregated.yaml")?,
            places.sample("qwen3-profile.yaml")?,
            policy,
            self.hpa(places)?,
        ] {
            apply(&client, &text, &places.namespace).await?;
        }
        Ok(())
    }

    fn hpa(&self, places: &Places) -> anyhow::Result<String> {
        places.sample("hpa.yaml")
    }

    /// Runs kubectl as the administrator.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = std::process::Command::new(control_plane_program()?)
            .arg("kubectl")
            .args(arguments)
            .env("KUBECONFIG", self.started.instance.kubeconfig())
            .output()
            .context("cannot run kubectl")?;
        anyhow::ensure!(
            output.status.success(),
            "kubectl {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(String::from_utf8_lossy(&output.stdout)
            .trim_end()
            .to_owned())
    }

    /// What the scaler says of its last decision.
    pub(super) fn explain(&self, places: &Places) -> anyhow::Result<String> {
        let output = std::process::Command::new(places.program("coppice-scaler"))
            .arg("explain")
            .arg(format!("{}/qwen3", places.namespace))
            .arg(format!(
                "--kubeconfig={}",
                self.started.instance.kubeconfig().display()
            ))
            .output()
            .context("cannot run coppice-scaler explain")?;
        anyhow::ensure!(
            output.status.success(),
            "coppice-scaler explain: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(String::from_utf8_lossy(&output.stdout)
            .trim_end()
            .to_owned())
    }
}

/// A port that is free now. Another program may take it before ours does; then ours says so and the start fails.
fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("no free port on 127.0.0.1")?;
    Ok(listener.local_addr()?.port())
}

/// One plain request; an error unless the answer is 200.
async fn ask(port: u16, path: &str) -> Result<(), String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let exchange = async {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
        stream
            .write_all(
                format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                    .as_bytes(),
            )
            .await?;
        let mut answer = Vec::new();
        stream.take(64 * 1024).read_to_end(&mut answer).await?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&answer).into_owned())
    };
    let answer = exchange.await.map_err(|e| format!("{path}: {e}"))?;
    let status = answer.lines().next().unwrap_or_default().to_owned();
    if status.contains(" 200 ") {
        return Ok(());
    }
    let body = answer.split("\r\n\r\n").nth(1).unwrap_or_default().trim();
    Err(format!("{path}: {status} {body}"))
}

fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}
