//! The two streams of requests: what is driven, and what came of it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use parking_lot::Mutex;
use serde_json::Value;

use super::{Places, Programs};

/// A running driver.
#[derive(Debug)]
pub(super) struct Driving {
    child: Mutex<Child>,
    latest: Arc<Mutex<Option<String>>>,
    file: PathBuf,
}

/// The driver's result.
#[derive(Debug)]
pub(super) struct Load {
    file: PathBuf,
    run: Value,
}

/// A model's requests in figures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Served {
    /// Due.
    pub(super) planned: u64,
    /// Complete and within the objectives.
    pub(super) good: u64,
    /// Not answered completely.
    pub(super) failed: u64,
    /// 95th percentile of the time to first token, seconds.
    pub(super) ttft_p95: Option<f64>,
    /// 95th percentile of the gaps between tokens, seconds.
    pub(super) itl_p95: Option<f64>,
}

impl Load {
    /// Starts the driver: the trace for the disaggregated model, a sine for the other.
    pub(super) fn start(
        places: &Places,
        programs: &Programs,
        output: &Path,
        lasts: Duration,
        time_scale: f64,
    ) -> anyhow::Result<Driving> {
        let seconds = lasts.as_secs_f64();
        let file = output.join("run.json");
        let scenario = output.join("load.toml");
        std::fs::write(&scenario, scenario_text(seconds, time_scale))
            .with_context(|| format!("cannot write {}", scenario.display()))?;
        let mut child = Command::new(places.program("coppice-loadtest"))
            .args([
                "drive",
                "--prompts=headers",
                "--progress=lines",
                "--timeout=60s",
            ])
            .arg(format!("--scenario={}", scenario.display()))
            .arg(format!("--url={}", programs.gateway_url()))
            .arg("--ttft=qwen3=2s+0.5ms/token,chat=3s")
            .arg("--itl=qwen3=60ms,chat=80ms")
            .arg(format!("--output={}", file.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run coppice-loadtest drive")?;
        let latest = Arc::new(Mutex::new(None));
        let lines = BufReader::new(
            child
                .stderr
                .take()
                .context("the driver has no standard error")?,
        );
        let shared = Arc::clone(&latest);
        std::thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                *shared.lock() = Some(line);
            }
        });
        Ok(Driving {
            child: Mutex::new(child),
            latest,
            file,
        })
    }

    /// Files for the report.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        vec![self.file.clone()]
    }

    /// What became of a model's requests; none when the run has no such stream.
    pub(super) fn served(&self, model: &str) -> Option<Served> {
        let stream = self.run["streams"]
            .as_array()?
            .iter()
            .find(|stream| stream["model"] == model)?;
        let requests = &stream["requests"];
        Some(Served {
            planned: requests["planned"].as_u64()?,
            good: requests["good"].as_u64()?,
            failed: requests["failed"].as_u64()?,
            ttft_p95: stream["ttft"]["p95"].as_f64(),
            itl_p95: stream["itl"]["p95"].as_f64(),
        })
    }
}

/// A scenario for the driver: the trace from its quiet beginning over its peak. Sped up by `time_scale` it would send as
/// many times more requests a second; [`SHARE`] of them are sent, which is what two processors can serve token by token.
fn scenario_text(seconds: f64, time_scale: f64) -> String {
    let to = seconds * time_scale;
    format!(
        "seed = 1\n\n\
         [[stream]]\nmodel = \"qwen3\"\ntrace = \"azure-2023-conv\"\nwindow = \"0s..{to}s\"\ntime-scale = {time_scale}\nrate-scale = {SHARE}\nmax-input = 8192\n\n\
         [[stream]]\nmodel = \"chat\"\nrate = \"sine:1..10@{seconds}s\"\nduration = \"{seconds}s\"\ninput-tokens = 300\noutput-tokens = 100\n"
    )
}

/// Share of the trace's requests that are sent.
const SHARE: f64 = 0.25;

impl Driving {
    /// The driver's last line of progress.
    pub(super) fn latest(&self) -> Option<String> {
        self.latest.lock().clone()
    }

    pub(super) fn has_ended(&self) -> bool {
        !matches!(self.child.lock().try_wait(), Ok(None))
    }

    /// Waits for the driver and reads its result.
    pub(super) async fn finish(self) -> anyhow::Result<Load> {
        let Self {
            child,
            latest,
            file,
        } = self;
        let status = tokio::task::spawn_blocking(move || child.lock().wait()).await??;
        // 3: the run's own validity is in doubt. It says so in the report; the system is judged all the same.
        anyhow::ensure!(
            matches!(status.code(), Some(0 | 3)),
            "the driver failed ({status}): {}",
            latest.lock().clone().unwrap_or_default()
        );
        let text =
            std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok(Load {
            file,
            run: serde_json::from_slice(&text)?,
        })
    }
}
