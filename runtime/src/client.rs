//! A client for the Kubernetes API from shared flags.

use std::path::PathBuf;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// Flags that say which cluster to use.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct KubeArgs {
    /// Kubeconfig file; without it $KUBECONFIG, then ~/.kube/config, then the pod's service account
    #[arg(long, env = "COPPICE_KUBECONFIG", global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig; without it the current one
    #[arg(long, env = "COPPICE_CONTEXT", global = true, value_name = "NAME")]
    pub context: Option<String>,
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The kubeconfig given by a flag cannot be used.
    #[error("cannot use kubeconfig {}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: Box<kube::config::KubeconfigError>,
    },
    /// The context given by a flag cannot be used.
    #[error("cannot use context `{context}`")]
    Context {
        /// The name given.
        context: String,
        /// What is wrong.
        #[source]
        source: Box<kube::config::KubeconfigError>,
    },
    /// Neither a kubeconfig nor a service account was found.
    #[error(
        "no cluster found; give --kubeconfig, set KUBECONFIG, or run in a pod with a service account"
    )]
    Infer(#[source] Box<kube::config::InferConfigError>),
    /// The configuration was read, the client could not be built from it.
    #[error("cannot build a client for the cluster")]
    Build(#[source] Box<kube::Error>),
}

/// Connections and reading of answers; a hung API server must not hang the program. Watches are renewed within it.
const READ_TIMEOUT: Duration = Duration::from_secs(295);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The client configuration that the flags name.
///
/// # Errors
/// [`ClientError`] when no usable configuration was found.
pub async fn config(args: &KubeArgs) -> Result<Config, ClientError> {
    let options = KubeConfigOptions {
        context: args.context.clone(),
        ..KubeConfigOptions::default()
    };
    let mut config = match (&args.kubeconfig, &args.context) {
        (Some(path), _) => {
            let wrong = |source| ClientError::Kubeconfig {
                path: path.clone(),
                source: Box::new(source),
            };
            let file = Kubeconfig::read_from(path).map_err(wrong)?;
            Config::from_custom_kubeconfig(file, &options)
                .await
                .map_err(wrong)?
        }
        (None, Some(context)) => {
            Config::from_kubeconfig(&options)
                .await
                .map_err(|source| ClientError::Context {
                    context: context.clone(),
                    source: Box::new(source),
                })?
        }
        (None, None) => Config::infer()
            .await
            .map_err(|source| ClientError::Infer(Box::new(source)))?,
    };
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    // Callers retry at their own pace and within their own deadlines. kube would repeat a 429, 503 or 504 up to fifteen times inside the
    // call, with pauses that double from 5 ms: it would sleep on for minutes after the server is back, and hide the reason meanwhile.
    config.default_retry = false;
    Ok(config)
}

/// A client for the cluster that the flags name. No request is sent yet.
///
/// # Errors
/// [`ClientError`] when no usable configuration was found.
pub async fn connect(args: &KubeArgs) -> Result<Client, ClientError> {
    crate::crypto::install();
    let config = config(args).await?;
    Client::try_from(config).map_err(|source| ClientError::Build(Box::new(source)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::Router;
    use axum::http::StatusCode;
    use k8s_openapi::api::core::v1::Pod;
    use kube::Api;

    use super::*;

    #[tokio::test]
    async fn a_busy_server_is_the_callers_business() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        let busy = Router::new().fallback(move || {
            counted.fetch_add(1, Ordering::SeqCst);
            std::future::ready(StatusCode::SERVICE_UNAVAILABLE)
        });
        let serving = tokio::spawn(async move { axum::serve(listener, busy).await.unwrap() });
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubeconfig");
        let text = format!(
            "{{apiVersion: v1, kind: Config, current-context: a, clusters: [{{name: a, cluster: {{server: '{server}'}}}}], \
             users: [{{name: a, user: {{}}}}], contexts: [{{name: a, context: {{cluster: a, user: a}}}}]}}"
        );
        std::fs::write(&path, text).unwrap();
        let args = KubeArgs {
            kubeconfig: Some(path),
            context: None,
        };
        let pods: Api<Pod> = Api::default_namespaced(connect(&args).await.unwrap());
        assert!(pods.get("a").await.is_err());
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        serving.abort();
    }

    #[tokio::test]
    async fn a_missing_kubeconfig_is_named() {
        let args = KubeArgs {
            kubeconfig: Some("/nowhere/kubeconfig".into()),
            context: None,
        };
        let error = connect(&args).await.err().expect("no such file");
        let text = crate::telemetry::chain(&error).to_string();
        assert!(
            text.starts_with("cannot use kubeconfig /nowhere/kubeconfig: "),
            "{text}"
        );
    }
}
