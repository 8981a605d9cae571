//! Keeps the rules of the moment current with their file.
//!
//! The content is compared every few seconds rather than the modification time, which the links of a mounted ConfigMap do not show; and
//! at once on SIGHUP. A file that cannot be used is told about once, and the last rules stay.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use coppice_signals::Signals;
use parking_lot::RwLock;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::file::{self, Invalid};
use super::{Bounds, RuleSet, Rules};
use crate::discovery::Discovery;
use crate::groups::Groups;

/// The file's content is compared this often.
const PAUSE: Duration = Duration::from_secs(5);

/// What is measured about rules.
#[derive(Debug, Clone)]
pub(crate) struct RuleMetrics {
    reloads: Family<OutcomeLabels, Counter>,
    rules: Gauge,
    refused: Gauge,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

const APPLIED: OutcomeLabels = OutcomeLabels { outcome: "applied" };
const REFUSED: OutcomeLabels = OutcomeLabels { outcome: "refused" };

impl RuleMetrics {
    /// Registers under the prefix of the registry, `adapter`.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            reloads: Family::default(),
            rules: Gauge::default(),
            refused: Gauge::default(),
        };
        registry.register(
            "rules_loads",
            "Contents of the rules file that were taken or refused, by outcome",
            metrics.reloads.clone(),
        );
        registry.register("rules", "Rules in force", metrics.rules.clone());
        registry.register(
            "rules_file_refused",
            "1 while the rules file cannot be used and the last rules stay",
            metrics.refused.clone(),
        );
        for labels in [APPLIED, REFUSED] {
            drop(metrics.reloads.get_or_create(&labels));
        }
        metrics
    }
}

/// Follows a file.
#[derive(Debug)]
pub(crate) struct Follower {
    path: PathBuf,
    bounds: Bounds,
    signals: Signals,
    rules: Rules,
    /// Lists the names of the rules in force.
    discovery: Arc<RwLock<Discovery>>,
    groups: Groups,
    metrics: RuleMetrics,
    /// What was taken or refused last; `None`: it could not be read.
    last: Option<Vec<u8>>,
}

impl Follower {
    /// Takes the file's rules.
    ///
    /// # Errors
    /// The file cannot be used to begin with.
    pub(crate) fn start(
        path: PathBuf,
        signals: Signals,
        rules: Rules,
        discovery: Arc<RwLock<Discovery>>,
        groups: Groups,
        metrics: RuleMetrics,
    ) -> anyhow::Result<Self> {
        let mut follower = Self {
            bounds: Bounds {
                window: signals.settings().window,
            },
            path,
            signals,
            rules,
            discovery,
            groups,
            metrics,
            last: None,
        };
        let wrong = || format!("--rules {}", follower.path.display());
        let content = file::content(&follower.path).with_context(wrong)?;
        follower.take(&content).with_context(wrong)?;
        follower.last = Some(content);
        Ok(follower)
    }

    /// Follows the file until `stop`.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut hangups = signal(SignalKind::hangup())
            .inspect_err(|error| warn!(%error, "SIGHUP cannot be listened for"))
            .ok();
        loop {
            let hangup = async {
                match &mut hangups {
                    Some(hangups) => hangups.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(PAUSE) => {}
                _ = hangup => {}
            }
            self.look();
        }
    }

    /// Compares the file with what it last was, and takes what is new.
    fn look(&mut self) {
        let content = file::content(&self.path);
        let is_first = match &content {
            Ok(content) => self.last.as_ref() != Some(content),
            Err(_) => self.last.is_some(),
        };
        if !is_first {
            return;
        }
        let outcome = match &content {
            Ok(content) => self.take(content),
            Err(invalid) => Err(invalid.clone()),
        };
        if let Err(invalid) = outcome {
            self.metrics.reloads.get_or_create(&REFUSED).inc();
            self.metrics.refused.set(1);
            warn!(path = %self.path.display(), error = %invalid, "the rules file is refused, the last rules stay");
        }
        self.last = content.ok();
    }

    /// Takes a content, all of it or nothing.
    fn take(&self, content: &[u8]) -> Result<(), Invalid> {
        let set = file::read(content, self.bounds)?;
        let RuleSet { rules, mappings } = &set;
        let (rules, engines) = (rules.len(), mappings.len());
        self.signals
            .set_mappings(mappings.clone())
            .map_err(|error| Invalid::whole(error.to_string()))?;
        *self.discovery.write() = Discovery::new(self.groups, &set.names());
        self.rules.replace(set);
        self.metrics.reloads.get_or_create(&APPLIED).inc();
        self.metrics.refused.set(0);
        self.metrics
            .rules
            .set(i64::try_from(rules).unwrap_or(i64::MAX));
        info!(path = %self.path.display(), rules, engines, "rules taken");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text;

    use super::*;
    use crate::fixtures;

    const GOOD: &str = "rules: [{name: backlog, expression: waiting}]\n";

    struct Scene {
        _folder: tempfile::TempDir,
        registry: Registry,
        follower: anyhow::Result<Follower>,
        rules: Rules,
        discovery: Arc<RwLock<Discovery>>,
        path: PathBuf,
    }

    fn scene(content: Option<&str>) -> Scene {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rules.yaml");
        if let Some(content) = content {
            std::fs::write(&path, content).unwrap();
        }
        let mut registry = Registry::default();
        let metrics = RuleMetrics::register(&mut registry);
        let sources = fixtures::sources();
        let groups = Groups::External;
        let discovery = Arc::new(RwLock::new(Discovery::new(groups, &[])));
        let follower = Follower::start(
            path.clone(),
            sources.signals,
            sources.rules.clone(),
            Arc::clone(&discovery),
            groups,
            metrics,
        );
        Scene {
            _folder: folder,
            registry,
            follower,
            rules: sources.rules,
            discovery,
            path,
        }
    }

    impl Scene {
        fn look(&mut self) {
            self.follower.as_mut().unwrap().look();
        }

        fn has(&self, name: &str) -> bool {
            let is_listed = self.discovery.read().lists(name);
            assert_eq!(is_listed, self.rules.find(name).is_some(), "{name}");
            is_listed
        }

        #[track_caller]
        fn exposes(&self, line: &str) {
            let mut all = String::new();
            text::encode(&mut all, &self.registry).unwrap();
            assert!(
                all.lines().any(|each| each == line),
                "{line} is not in\n{all}"
            );
        }
    }

    #[tokio::test]
    async fn rules_follow_the_file_and_a_wrong_one_changes_nothing_and_is_told_once() {
        let mut scene = scene(Some(GOOD));
        assert!(scene.has("backlog"));
        std::fs::write(&scene.path, "rules: [{name: b, expression: waiting +}]\n").unwrap();
        scene.look();
        scene.look();
        assert!(scene.has("backlog") && !scene.has("b"));
        scene.exposes("rules_loads_total{outcome=\"refused\"} 1");
        scene.exposes("rules_file_refused 1");
        // The old content again is a new one: it heals.
        std::fs::write(&scene.path, GOOD).unwrap();
        scene.look();
        scene.exposes("rules_file_refused 0");
        std::fs::write(&scene.path, "rules: [{name: b, expression: waiting}]\n").unwrap();
        scene.look();
        assert!(scene.has("b") && !scene.has("backlog"));
        scene.exposes("rules_loads_total{outcome=\"applied\"} 3");
        scene.exposes("rules 1");
    }

    #[tokio::test]
    async fn a_file_that_goes_leaves_the_rules_and_may_come_back() {
        let mut scene = scene(Some(GOOD));
        std::fs::remove_file(&scene.path).unwrap();
        scene.look();
        scene.look();
        assert!(scene.has("backlog"));
        scene.exposes("rules_loads_total{outcome=\"refused\"} 1");
        std::fs::write(&scene.path, GOOD).unwrap();
        scene.look();
        scene.exposes("rules_file_refused 0");
    }

    #[tokio::test]
    async fn a_wrong_file_stops_the_start_with_its_line() {
        let wrong = scene(Some("rules:\n- name: B\n  expression: waiting\n"));
        let error = format!("{:#}", wrong.follower.unwrap_err());
        assert!(
            error.contains("rules.yaml: line 2: rules[0].name is \"B\""),
            "{error}"
        );
        let absent = format!("{:#}", scene(None).follower.unwrap_err());
        assert!(absent.contains("rules.yaml: it cannot be read"), "{absent}");
    }
}
