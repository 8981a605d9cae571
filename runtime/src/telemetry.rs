//! Logs on standard error, and the one way to print an error with its causes.

use std::error::Error;
use std::fmt;
use std::process::ExitCode;

use kube::runtime::watcher;
use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people: one line an event.
    Text,
    /// For collectors: one JSON object an event.
    Json,
}

/// Flags about logs.
#[derive(Debug, Clone, clap::Args)]
pub struct LogArgs {
    /// What to log: a level (error, warn, info, debug, trace), or filters such as `info,coppice_scaler=debug`
    #[arg(
        long,
        env = "COPPICE_LOG_LEVEL",
        default_value = "info",
        global = true,
        value_name = "FILTER"
    )]
    pub log_level: String,
    /// How log lines look
    #[arg(long, env = "COPPICE_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text, global = true)]
    pub log_format: LogFormat,
}

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// `--log-level` is not a filter.
    #[error("--log-level `{filter}` is not a level or filter; try `info` or `info,kube=debug`")]
    Filter {
        /// What was given.
        filter: String,
        /// What the filter parser says.
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    /// Another logger is installed already.
    #[error("logging is set up twice in one process")]
    Twice,
}

/// Starts logging to standard error for the whole process. Call once, in `main`.
///
/// # Errors
/// [`TelemetryError`] when the filter cannot be read, or logging has been set up before.
pub fn init(args: &LogArgs) -> Result<(), TelemetryError> {
    let filter = EnvFilter::try_new(&args.log_level).map_err(|source| TelemetryError::Filter {
        filter: args.log_level.clone(),
        source,
    })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(true);
    let installed = match args.log_format {
        LogFormat::Text => builder
            .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    installed.map_err(|_| TelemetryError::Twice)
}

/// An error with its causes on one line, outermost first, for people to read: `chain(&error).to_string()`.
///
/// A cause that its parent already printed is left out. An answer of the Kubernetes API is shown as its message alone, and ends
/// the chain: `kube`'s own text would repeat it and add a debug dump.
#[must_use]
pub fn chain<'a>(error: &'a (dyn Error + 'static)) -> Chain<'a> {
    Chain(error)
}

/// See [`chain`].
#[derive(Debug)]
pub struct Chain<'a>(&'a (dyn Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut printed = String::new();
        let mut next = Some(self.0);
        while let Some(error) = next {
            let (text, source) = own_text(error);
            if !text.is_empty() && !printed.ends_with(&text) {
                if !printed.is_empty() {
                    printed.push_str(": ");
                }
                printed.push_str(&text);
            }
            next = source;
        }
        f.write_str(&printed)
    }
}

/// What this error adds itself, and the cause to go on with.
fn own_text<'a>(error: &'a (dyn Error + 'static)) -> (String, Option<&'a (dyn Error + 'static)>) {
    if let Some(error) = error.downcast_ref::<kube::Error>() {
        return match error {
            kube::Error::Api(status) => (status_text(status), None),
            // Transparent: the inner error says what happened, and does not print its own causes.
            kube::Error::Service(inner) => (String::new(), Some(inner.as_ref())),
            other => (other.to_string(), None),
        };
    }
    if let Some(error) = error.downcast_ref::<watcher::Error>() {
        return match error {
            watcher::Error::InitialListFailed(source) => {
                ("first list failed".to_owned(), Some(source))
            }
            watcher::Error::WatchStartFailed(source) => {
                ("watch did not start".to_owned(), Some(source))
            }
            watcher::Error::WatchFailed(source) => ("watch broke".to_owned(), Some(source)),
            watcher::Error::WatchError(status) => (
                format!("watch ended by the server: {}", status_text(status)),
                None,
            ),
            watcher::Error::NoResourceVersion => (error.to_string(), None),
        };
    }
    (error.to_string(), error.source())
}

fn status_text(status: &kube::core::Status) -> String {
    if status.message.is_empty() {
        format!("the API server answered {} {}", status.code, status.reason)
    } else {
        status.message.clone()
    }
}

/// Turns the outcome of `main` into an exit code: an error is printed with its causes on standard error, code 1.
#[must_use]
pub fn exit_code(outcome: anyhow::Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(error.as_ref());
            ExitCode::FAILURE
        }
    }
}

#[expect(
    clippy::print_stderr,
    reason = "the last words of a program, also where logging is off or not set up"
)]
fn print_error(error: &(dyn Error + 'static)) {
    eprintln!("error: {}", chain(error));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot read policy `{0}`")]
    struct Outer(&'static str, #[source] kube::Error);

    fn refused() -> kube::Error {
        kube::Error::Api(Box::new(
            kube::core::Status::failure("scalingpolicies is forbidden", "Forbidden").with_code(403),
        ))
    }

    #[test]
    fn an_api_error_is_its_message_and_ends_the_chain() {
        assert_eq!(
            chain(&Outer("a", refused())).to_string(),
            "cannot read policy `a`: scalingpolicies is forbidden"
        );
    }

    #[test]
    fn a_watch_error_names_the_step_and_the_message() {
        let error = watcher::Error::InitialListFailed(refused());
        assert_eq!(
            chain(&error).to_string(),
            "first list failed: scalingpolicies is forbidden"
        );
    }

    #[test]
    fn an_unreachable_server_shows_the_system_error_once() {
        let io = std::io::Error::new(std::io::ErrorKind::ConnectionRefused, "connection refused");
        let error = kube::Error::Service(Box::new(io));
        assert_eq!(
            chain(&Outer("a", error)).to_string(),
            "cannot read policy `a`: connection refused"
        );
    }

    #[test]
    fn causes_that_were_printed_are_not_repeated() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer: {0}")]
        struct Repeats(#[source] std::io::Error);
        let error = Repeats(std::io::Error::other("inner"));
        assert_eq!(chain(&error).to_string(), "outer: inner");
    }
}
