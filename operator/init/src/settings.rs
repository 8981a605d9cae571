use clap::Parser;
use coppice_operator_api::init_container::{NAMESPACE_FILE, POD_INFO_PATH};
use coppice_operator_plan::start::{RuleError, StartRules};
use std::path::{Path, PathBuf};
use tracing_subscriber::EnvFilter;

/// Waits until the PodCliques that a pod starts after have enough ready pods.
#[derive(Debug, Parser)]
#[command(name = "coppice-init", version)]
pub(crate) struct Arguments {
    /// A PodClique to wait for and the ready pods it needs, such as set-0-router:1; may be given several times
    #[arg(
        long = "podcliques",
        short = 'p',
        value_name = "NAME:MINIMUM",
        required = true
    )]
    podcliques: Vec<String>,
    /// Namespace of the PodCliques; without it the one in the pod info folder
    #[arg(long, env = "COPPICE_NAMESPACE")]
    namespace: Option<String>,
    /// Folder in which the pod finds what it knows about itself
    #[arg(long, env = "COPPICE_POD_INFO", default_value = POD_INFO_PATH, value_name = "FOLDER")]
    pod_info: PathBuf,
    /// Kubeconfig file; without it the pod's own service account
    #[arg(long, env = "COPPICE_KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// What to log: a level (error, warn, info, debug, trace), or filters such as info,kube=debug
    #[arg(
        long,
        env = "COPPICE_LOG_LEVEL",
        default_value = "info",
        value_name = "FILTER"
    )]
    log_level: String,
    /// How log lines look
    #[arg(long, env = "COPPICE_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum LogFormat {
    /// For people: one line an event.
    Text,
    /// For collectors: one JSON object an event.
    Json,
}

/// What the program was asked to do.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) rules: StartRules,
    pub(crate) namespace: String,
    pub(crate) kubeconfig: Option<PathBuf>,
}

/// Why the arguments cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SettingsError {
    #[error("--podcliques cannot be used")]
    Rules(#[source] RuleError),
    #[error("cannot read the namespace from {}; give --namespace", path.display())]
    Namespace {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{} is empty; give --namespace", path.display())]
    EmptyNamespace { path: PathBuf },
}

impl SettingsError {
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Rules(_) => 2,
            Self::Namespace { .. } | Self::EmptyNamespace { .. } => 1,
        }
    }
}

impl Settings {
    /// Reads what the arguments leave to files.
    pub(crate) fn resolve(arguments: Arguments) -> Result<Self, SettingsError> {
        let Arguments {
            podcliques,
            namespace,
            pod_info,
            kubeconfig,
            log_level: _,
            log_format: _,
        } = arguments;
        let rules = StartRules::parse(podcliques.iter().map(String::as_str))
            .map_err(SettingsError::Rules)?;
        let namespace = match namespace {
            Some(namespace) => namespace,
            None => read_namespace(&pod_info)?,
        };
        Ok(Self {
            rules,
            namespace,
            kubeconfig,
        })
    }
}

fn read_namespace(pod_info: &Path) -> Result<String, SettingsError> {
    let path = pod_info.join(NAMESPACE_FILE);
    match std::fs::read_to_string(&path) {
        Ok(text) if text.trim().is_empty() => Err(SettingsError::EmptyNamespace { path }),
        Ok(text) => Ok(text.trim().to_owned()),
        Err(source) => Err(SettingsError::Namespace { path, source }),
    }
}

/// Why logging cannot be started.
#[derive(Debug, thiserror::Error)]
#[error("--log-level {filter:?} is neither a level nor a filter; try info, or info,kube=debug")]
pub(crate) struct LogLevelError {
    filter: String,
    source: tracing_subscriber::filter::ParseError,
}

/// Logs go to standard error, where `kubectl logs` finds them.
pub(crate) fn start_logging(arguments: &Arguments) -> Result<(), LogLevelError> {
    let Arguments {
        log_level,
        log_format,
        ..
    } = arguments;
    let wrong = |source| LogLevelError {
        filter: log_level.clone(),
        source,
    };
    let filter = EnvFilter::try_new(log_level).map_err(wrong)?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false);
    match log_format {
        LogFormat::Text => builder.init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(arguments: &[&str]) -> Result<Settings, SettingsError> {
        let arguments = Arguments::try_parse_from([&["coppice-init"], arguments].concat());
        Settings::resolve(arguments.unwrap_or_else(|error| panic!("{error}")))
    }

    #[test]
    fn the_namespace_comes_from_the_flag_or_the_pod_info() {
        let folder = tempfile::tempdir().unwrap();
        let pod_info = format!("--pod-info={}", folder.path().display());
        let missing = resolve(&["-pa:1", &pod_info]).unwrap_err();
        assert!(
            missing.to_string().ends_with("namespace; give --namespace"),
            "{missing}"
        );
        std::fs::write(folder.path().join("namespace"), " \n").unwrap();
        assert!(
            resolve(&["-pa:1", &pod_info])
                .unwrap_err()
                .to_string()
                .contains("is empty")
        );
        std::fs::write(folder.path().join("namespace"), "ml\n").unwrap();
        assert_eq!(resolve(&["-pa:1", &pod_info]).unwrap().namespace, "ml");
        assert_eq!(
            resolve(&["-pa:1", "--namespace=x", &pod_info])
                .unwrap()
                .namespace,
            "x"
        );
    }

    #[test]
    fn what_the_operator_writes_is_understood() {
        let argument = coppice_operator_api::init_container::argument("set-0-router", 2);
        let settings = resolve(&[
            &argument,
            "--podcliques=set-0-pre-0-lead:1",
            "--namespace=ml",
        ])
        .unwrap();
        assert_eq!(
            settings.rules.cliques().collect::<Vec<_>>(),
            ["set-0-pre-0-lead", "set-0-router"]
        );
    }

    #[test]
    fn wrong_rules_are_a_matter_of_arguments() {
        let error = resolve(&["-pa:0", "--namespace=ml"]).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(Arguments::try_parse_from(["coppice-init"]).is_err());
    }
}
