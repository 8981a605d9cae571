//! Grove's OperatorConfiguration file, for clusters that change operators: what it says becomes flags.
//!
//! Flags and the environment come first, so a file that is mounted already can be overruled without an edit. What this operator
//! has no use for is named, so that nobody waits for an effect; what it cannot do is an error, and so is what it does not know.

use std::ffi::OsString;
use std::fmt;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use clap::CommandFactory;
use coppice_operator_api::GoDuration;
use serde::Deserialize;

use crate::settings::Arguments;

const API_VERSION: &str = "operator.config.grove.io/v1alpha1";
const KIND: &str = "OperatorConfiguration";
/// Name of the Service of upstream's chart, which its code has, too.
const SERVICE: &str = "grove-operator";

macro_rules! section {
    ($name:ident { $($(#[$attribute:meta])* $field:ident: $type:ty),* $(,)? }) => {
        #[derive(Debug, Default, Deserialize)]
        #[serde(rename_all = "camelCase", deny_unknown_fields, default)]
        struct $name { $($(#[$attribute])* $field: Option<$type>,)* }
    };
}

section! {
    File {
        api_version: String,
        kind: String,
        runtime_client_connection: Connection,
        leader_election: Election,
        server: Server,
        debugging: Debugging,
        controllers: Controllers,
        log_level: String,
        log_format: String,
        authorizer: Authorizer,
        topology_aware_scheduling: Switch,
        network: Network,
        scheduler: Scheduler,
    }
}
section! { Connection { qps: f64, burst: i64, content_type: String, accept_content_types: String } }
section! {
    Election {
        enabled: bool,
        lease_duration: GoDuration,
        renew_deadline: GoDuration,
        retry_period: GoDuration,
        resource_lock: String,
        resource_name: String,
        resource_namespace: String,
    }
}
section! { Server { webhooks: Webhooks, health_probes: Endpoint, metrics: Endpoint } }
section! {
    Webhooks {
        bind_address: String,
        port: u16,
        server_cert_dir: String,
        secret_name: String,
        cert_provision_mode: String,
    }
}
section! { Endpoint { enable: bool, bind_address: String, port: u16 } }
section! { Debugging { enable_profiling: bool, pprof_bind_host: String, pprof_bind_port: u16 } }
section! {
    Controllers {
        pod_clique_set: Controller,
        pod_clique: Controller,
        pod_clique_scaling_group: Controller,
        pod_gang: Controller,
    }
}
section! { Controller { concurrent_syncs: i64 } }
section! { Authorizer { enabled: bool, exempt_service_account_user_names: Vec<String> } }
section! { Switch { enabled: bool } }
section! { Network { #[serde(rename = "autoMNNVLEnabled")] auto_mnnvl_enabled: bool } }
section! { Scheduler { profiles: Vec<Profile>, default_profile_name: String } }
section! { Profile { name: String, config: serde_json::Value } }

/// What a file comes to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Translated {
    /// Flags without dashes, and their values.
    pub(crate) flags: Vec<(&'static str, String)>,
    /// What has no effect here, and why.
    pub(crate) notes: Vec<String>,
}

impl Translated {
    fn flag(&mut self, name: &'static str, value: impl fmt::Display) {
        self.flags.push((name, value.to_string()));
    }

    fn note(&mut self, field: &str, why: &str) {
        self.notes.push(format!("{field} has no effect: {why}"));
    }
}

/// Reads the text of a file.
///
/// # Errors
/// It is no such file, a field is unknown or wrong, or it asks for what this operator cannot do.
pub(crate) fn translate(text: &str) -> anyhow::Result<Translated> {
    let file: File = serde_saphyr::from_str(text).context("it cannot be read")?;
    let version = file.api_version.as_deref().unwrap_or_default();
    let kind = file.kind.as_deref().unwrap_or_default();
    ensure!(
        (version, kind) == (API_VERSION, KIND),
        "apiVersion {version:?} and kind {kind:?} must be {API_VERSION} and {KIND}"
    );
    let mut to = Translated::default();
    if file.runtime_client_connection.is_some() {
        let why = "the number of requests on their way follows the server's answers, --max-writes is its limit";
        to.note("runtimeClientConnection", why);
    }
    election(&file.leader_election.unwrap_or_default(), &mut to)?;
    server(&file.server.unwrap_or_default(), &mut to)?;
    if file
        .debugging
        .is_some_and(|debugging| debugging.enable_profiling == Some(true))
    {
        to.note(
            "debugging.enableProfiling",
            "there is no profiling endpoint",
        );
    }
    controllers(&file.controllers.unwrap_or_default(), &mut to)?;
    if let Some(level) = &file.log_level {
        one_of("logLevel", level, &["debug", "info", "error"])?;
        to.flag("log-level", level);
    }
    if let Some(format) = &file.log_format {
        one_of("logFormat", format, &["json", "text"])?;
        to.flag("log-format", format);
    }
    let authorizer = file.authorizer.unwrap_or_default();
    if let Some(is_enabled) = authorizer.enabled {
        to.flag("authorizer", is_enabled);
    }
    let exempt = authorizer.exempt_service_account_user_names;
    if let Some(names) = exempt.filter(|names| !names.is_empty()) {
        to.flag("authorizer-exempt", names.join(","));
    }
    if file
        .topology_aware_scheduling
        .and_then(|switch| switch.enabled)
        == Some(false)
    {
        let why = "constraints are applied where their ClusterTopologyBinding exists";
        to.note("topologyAwareScheduling.enabled: false", why);
    }
    if let Some(is_enabled) = file.network.and_then(|network| network.auto_mnnvl_enabled) {
        to.flag("auto-mnnvl", is_enabled);
    }
    scheduler(&file.scheduler.unwrap_or_default(), &mut to)?;
    Ok(to)
}

fn one_of(field: &str, value: &str, choices: &[&str]) -> anyhow::Result<()> {
    ensure!(
        choices.contains(&value),
        "{field}: {value:?} must be one of {}",
        choices.join(", ")
    );
    Ok(())
}

fn election(of: &Election, to: &mut Translated) -> anyhow::Result<()> {
    let is_enabled = of.enabled.unwrap_or(false);
    to.flag("leader-elect", is_enabled);
    if let Some(lock) = &of.resource_lock {
        one_of("leaderElection.resourceLock", lock, &["leases"])?;
    }
    // The same lease as upstream's: while both are there, one works.
    let name = of
        .resource_name
        .as_deref()
        .unwrap_or("grove-operator-leader-election");
    ensure!(
        !(is_enabled && name.is_empty()),
        "leaderElection.resourceName: \"\" must be the name of the Lease"
    );
    if is_enabled {
        to.flag("lease-name", name);
    }
    if let Some(namespace) = &of.resource_namespace {
        to.flag("lease-namespace", namespace);
    }
    for (flag, field, duration) in [
        ("lease-duration", "leaseDuration", of.lease_duration),
        ("lease-renew-deadline", "renewDeadline", of.renew_deadline),
        ("lease-retry-period", "retryPeriod", of.retry_period),
    ] {
        let Some(duration) = duration else { continue };
        ensure!(
            duration.is_positive(),
            "leaderElection.{field}: {duration} must be longer than 0s"
        );
        to.flag(flag, format!("{}ms", duration.to_std().as_millis()));
    }
    Ok(())
}

fn server(of: &Server, to: &mut Translated) -> anyhow::Result<()> {
    let address = |host: Option<&str>, port: u16| {
        let host = host.filter(|host| !host.is_empty()).unwrap_or("0.0.0.0");
        match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        }
    };
    if let Some(webhooks) = &of.webhooks {
        let bound = address(
            webhooks.bind_address.as_deref(),
            webhooks.port.unwrap_or(2750),
        );
        to.flag("webhook-address", bound);
        to.flag("webhook-service", SERVICE);
        match webhooks.cert_provision_mode.as_deref().unwrap_or("auto") {
            "auto" => {
                let secret = webhooks.secret_name.as_deref();
                to.flag("tls-secret", secret.unwrap_or("grove-webhook-server-cert"));
            }
            "manual" => {
                let folder = webhooks.server_cert_dir.as_deref();
                let folder = Path::new(folder.unwrap_or("/etc/grove-operator/webhook-certs"));
                to.flag("tls-cert-file", folder.join("tls.crt").display());
                to.flag("tls-key-file", folder.join("tls.key").display());
            }
            other => {
                bail!("server.webhooks.certProvisionMode: {other:?} must be one of auto, manual")
            }
        }
    }
    if let Some(metrics) = &of.metrics {
        let bound = address(
            metrics.bind_address.as_deref(),
            metrics.port.unwrap_or(2752),
        );
        to.flag("admin-address", bound);
    }
    if of.health_probes.is_some() {
        let why = "/healthz and /readyz are served beside /metrics, at --admin-address: let the probes ask there";
        to.note("server.healthProbes", why);
    }
    Ok(())
}

fn controllers(of: &Controllers, to: &mut Translated) -> anyhow::Result<()> {
    let mut workers = 0;
    for (name, controller) in [
        ("podCliqueSet", &of.pod_clique_set),
        ("podClique", &of.pod_clique),
        ("podCliqueScalingGroup", &of.pod_clique_scaling_group),
        ("podGang", &of.pod_gang),
    ] {
        let Some(syncs) = controller.as_ref().and_then(|of| of.concurrent_syncs) else {
            continue;
        };
        ensure!(
            syncs > 0,
            "controllers.{name}.concurrentSyncs: {syncs} must be 1 or more"
        );
        workers += syncs;
    }
    // One pass here does what theirs do one after the other.
    if workers > 0 {
        to.flag("workers", workers.min(i64::from(u16::MAX)));
    }
    Ok(())
}

fn scheduler(of: &Scheduler, to: &mut Translated) -> anyhow::Result<()> {
    const KNOWN: [&str; 4] = [
        "default-scheduler",
        "kai-scheduler",
        "volcano",
        "lpx-scheduler",
    ];
    let mut names: Vec<&str> = Vec::new();
    for profile in of.profiles.iter().flatten() {
        let name = profile.name.as_deref().unwrap_or_default();
        one_of("scheduler.profiles[].name", name, &KNOWN)?;
        ensure!(
            !names.contains(&name),
            "scheduler.profiles[].name: {name:?} is listed twice"
        );
        names.push(name);
    }
    let default = of
        .default_profile_name
        .as_deref()
        .unwrap_or("default-scheduler");
    ensure!(
        default == "default-scheduler" || names.contains(&default),
        "scheduler.defaultProfileName: {default:?} must be one of scheduler.profiles"
    );
    match default {
        "kai-scheduler" => to.flag("gang-backend", "kai"),
        "volcano" => to.flag("gang-backend", "volcano"),
        "lpx-scheduler" => bail!(
            "scheduler.defaultProfileName: {default:?}: there is no backend for it. Name default-scheduler, kai-scheduler or volcano"
        ),
        _ => {}
    }
    Ok(())
}

/// The command line with what the file of `--config` says, where neither the command line nor the environment says it.
///
/// # Errors
/// The file cannot be read or translated.
pub(crate) fn expand(
    arguments: Vec<OsString>,
    environment: impl Fn(&str) -> Option<OsString>,
    read: impl Fn(&Path) -> std::io::Result<String>,
) -> anyhow::Result<(Vec<OsString>, Vec<String>)> {
    let Some(file) = config_file(&arguments, &environment) else {
        return Ok((arguments, Vec::new()));
    };
    let path = Path::new(&file);
    let place = || format!("--config {}", path.display());
    let text = read(path).with_context(place)?;
    let translated = translate(&text).with_context(place)?;
    let command = Arguments::command();
    let run = command.find_subcommand("run").context("no command `run`")?;
    let known = || run.get_arguments().chain(command.get_arguments());
    let mut expanded = arguments.clone();
    for (flag, value) in translated.flags {
        let argument = known()
            .find(|argument| argument.get_long() == Some(flag))
            .with_context(|| format!("no flag --{flag}"))?;
        let in_environment = argument
            .get_env()
            .and_then(|name| environment(&name.to_string_lossy()));
        let long = format!("--{flag}");
        let is_given = arguments.iter().any(|argument| {
            let argument = argument.to_string_lossy();
            argument == long || argument.starts_with(&format!("{long}="))
        });
        if in_environment.is_none() && !is_given {
            expanded.push(format!("{long}={value}").into());
        }
    }
    Ok((expanded, translated.notes))
}

/// The file that `run` is told of.
fn config_file(
    arguments: &[OsString],
    environment: impl Fn(&str) -> Option<OsString>,
) -> Option<OsString> {
    if !arguments.iter().any(|argument| argument == "run") {
        return None;
    }
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        if argument == "--config" {
            return rest.next().cloned();
        }
        if let Some(file) = argument.to_string_lossy().strip_prefix("--config=") {
            return Some(file.into());
        }
    }
    environment("COPPICE_CONFIG")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::settings::Command;

    /// What upstream's chart renders with its own values.
    const CHART: &str = r#"
apiVersion: operator.config.grove.io/v1alpha1
kind: OperatorConfiguration
runtimeClientConnection: {qps: 100, burst: 150}
leaderElection: {enabled: true, leaseDuration: 15s, renewDeadline: 10s, retryPeriod: 2s, resourceLock: leases, resourceName: grove-operator-leader-election}
server:
  webhooks: {bindAddress: "", port: 9443, serverCertDir: /etc/grove-operator/webhook-certs, secretName: grove-webhook-server-cert, certProvisionMode: auto}
  healthProbes: {enable: true, bindAddress: "", port: 9444}
  metrics: {bindAddress: "", port: 9445}
debugging: {enableProfiling: false, pprofBindHost: 127.0.0.1, pprofBindPort: 2753}
controllers:
  podCliqueSet: {concurrentSyncs: 3}
  podClique: {concurrentSyncs: 3}
  podCliqueScalingGroup: {concurrentSyncs: 3}
scheduler: {profiles: [{name: default-scheduler}, {name: kai-scheduler}]}
logLevel: info
logFormat: json
authorizer: {enabled: true, exemptServiceAccountUserNames: [a, b]}
topologyAwareScheduling: {enabled: true}
network: {autoMNNVLEnabled: false}
"#;

    fn expanded(given: &[&str], set: &[(&str, &str)]) -> Arguments {
        let given = ["coppice-operator", "run", "--config", "file"]
            .iter()
            .chain(given);
        let given = given.map(OsString::from).collect();
        let environment = |name: &str| {
            let found = set.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        };
        let (arguments, _) = expand(given, environment, |_| Ok(CHART.to_owned())).unwrap();
        Arguments::try_parse_from(arguments).unwrap()
    }

    #[test]
    fn what_upstreams_chart_renders_runs_this_operator() {
        let arguments = expanded(&[], &[]);
        let Command::Run(run) = arguments.command else {
            panic!("not run")
        };
        assert!(run.lease.leader_elect);
        assert_eq!(run.lease_name, "grove-operator-leader-election");
        assert_eq!(run.lease.lease_duration.as_secs(), 15);
        assert_eq!((run.workers, run.admin.admin_address.port()), (9, 9445));
        assert_eq!(
            run.admission.webhook_service.as_deref(),
            Some("grove-operator")
        );
        assert_eq!(run.admission.webhook_address.port(), 9443);
        let secret = run.admission.tls.tls_secret.as_deref();
        assert_eq!(secret, Some("grove-webhook-server-cert"));
        assert_eq!(arguments.log.log_level, "info");
        assert!(!run.auto_mnnvl && run.admission.authorizer);
        assert_eq!(run.admission.authorizer_exempt, ["a", "b"]);
        let notes = translate(CHART).unwrap().notes;
        assert_eq!(notes.len(), 2, "{notes:?}");
    }

    #[test]
    fn flags_and_the_environment_come_before_the_file() {
        let flags =
            translate(&CHART.replacen("autoMNNVLEnabled: false", "autoMNNVLEnabled: true", 1));
        let flags = flags.unwrap().flags;
        assert!(
            flags.contains(&("auto-mnnvl", "true".to_owned())),
            "{flags:?}"
        );
        let kai = "{name: kai-scheduler}], defaultProfileName: kai-scheduler";
        let flags = translate(&CHART.replacen("{name: kai-scheduler}]", kai, 1));
        let flags = flags.unwrap().flags;
        assert!(
            flags.contains(&("gang-backend", "kai".to_owned())),
            "{flags:?}"
        );
        let arguments = expanded(
            &["--workers=5", "--lease-name", "mine"],
            &[("COPPICE_LOG_LEVEL", "debug")],
        );
        let Command::Run(run) = &arguments.command else {
            panic!("not run")
        };
        assert_eq!((run.workers, run.lease_name.as_str()), (5, "mine"));
        // The file's level was not put before the environment's.
        let given: Vec<OsString> = ["coppice-operator", "run", "--config=file"]
            .map(OsString::from)
            .into();
        let environment =
            |name: &str| (name == "COPPICE_LOG_LEVEL").then(|| OsString::from("debug"));
        let (expanded, _) = expand(given, environment, |_| Ok(CHART.to_owned())).unwrap();
        let named = expanded
            .iter()
            .any(|argument| argument.to_string_lossy().starts_with("--log-level"));
        assert!(!named, "{expanded:?}");
    }

    #[test]
    fn mistakes_are_named_with_field_value_and_what_to_do() {
        for (from, to, expected) in [
            (
                "logLevel: info",
                "logLevel: trace",
                "logLevel: \"trace\" must be one of debug, info, error",
            ),
            ("logLevel: info", "loglevel: info", "unknown field"),
            (
                "{concurrentSyncs: 3}",
                "{concurrentSyncs: 0}",
                "controllers.podCliqueSet.concurrentSyncs: 0 must be 1 or more",
            ),
            (
                "retryPeriod: 2s",
                "retryPeriod: 0s",
                "leaderElection.retryPeriod: 0s must be longer than 0s",
            ),
            (
                "resourceLock: leases",
                "resourceLock: endpoints",
                "leaderElection.resourceLock: \"endpoints\" must be one of leases",
            ),
            (
                "certProvisionMode: auto",
                "certProvisionMode: magic",
                "server.webhooks.certProvisionMode: \"magic\" must be one of auto, manual",
            ),
            (
                "{name: kai-scheduler}",
                "{name: kay}",
                "scheduler.profiles[].name: \"kay\" must be one of",
            ),
            (
                "[{name: default-scheduler}, {name: kai-scheduler}]",
                "[], defaultProfileName: volcano",
                "scheduler.defaultProfileName: \"volcano\" must be one of scheduler.profiles",
            ),
            (
                "kind: OperatorConfiguration",
                "kind: Config",
                "kind \"Config\"",
            ),
        ] {
            assert!(CHART.contains(from), "{from}");
            let error = format!("{:#}", translate(&CHART.replacen(from, to, 1)).unwrap_err());
            assert!(error.contains(expected), "{to}: {error}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let given = ["coppice-operator", "run", "--config=gone.yaml"].map(OsString::from);
        let missing = |_: &Path| Err(std::io::Error::from(std::io::ErrorKind::NotFound));
        let error = expand(given.into(), |_| None, missing).unwrap_err();
        assert!(
            format!("{error:#}").starts_with("--config gone.yaml: "),
            "{error:#}"
        );
        let other: Vec<OsString> = ["coppice-operator", "crds"].map(OsString::from).into();
        assert_eq!(expand(other.clone(), |_| None, missing).unwrap().0, other);
    }
}
