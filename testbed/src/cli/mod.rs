//! The command line: what can be said, and who does it.

mod bench;
mod control;
mod demo;
mod fleet;
mod plane;
mod steady;
mod writes;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

/// A real Kubernetes control plane and a make-believe data centre on one machine, without containers or root rights.
#[derive(Debug, Parser)]
#[command(name = "coppice-testbed", version, arg_required_else_help = true)]
pub(crate) struct Arguments {
    /// Print the version of Kubernetes that `up` starts, and exit.
    #[arg(long)]
    kube_version: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a control plane in the background, with a fleet if --nodes is given.
    Up(plane::Up),
    /// End a control plane and everything beside it; its logs stay.
    Down(plane::Down),
    /// Say what runs.
    Status(plane::Status),
    /// Print shell commands that point kubectl at the control plane: eval "$(coppice-testbed env)".
    Env(Which),
    /// Print the path of a kubeconfig, for the administrator or for any user.
    Kubeconfig(plane::KubeconfigArguments),
    /// Run kubectl against the control plane.
    Kubectl(plane::Kubectl),
    /// Count who changes what, from the audit log.
    Writes(writes::Writes),
    /// Play nodes and pods on a cluster until interrupted.
    Fleet(fleet::Run),
    /// Show the whole system under a production trace, judge it, and clean up.
    Demo(demo::Demo),
    /// Start the whole system with the samples, and count what it writes while nothing happens.
    Steady(steady::Steady),
    /// Figures of benchmarks: from divan's tables to files, from files to one table.
    Bench(bench::Bench),
    /// Command a running fleet: kill nodes, crash pods, slow starts, freeze metrics.
    FleetCtl(control::Control),
}

/// Which instance.
#[derive(Debug, Clone, Args)]
pub(crate) struct Which {
    /// The control plane's name; several run side by side.
    #[arg(long, default_value = "default", env = "COPPICE_TESTBED_NAME")]
    name: String,
    /// The folder in which every control plane has its own.
    #[arg(long, env = "COPPICE_TESTBED_DIR", default_value_os_t = coppice_testbed::default_root())]
    dir: PathBuf,
}

impl Which {
    fn instance(&self) -> anyhow::Result<coppice_testbed::Instance> {
        Ok(coppice_testbed::Instance::load(&self.dir, &self.name)?)
    }
}

impl Arguments {
    pub(crate) fn run(self) -> ExitCode {
        match self.dispatch() {
            Ok(code) => code,
            Err(error) => {
                complain(&format!("error: {error:#}"));
                ExitCode::FAILURE
            }
        }
    }

    fn dispatch(self) -> anyhow::Result<ExitCode> {
        if self.kube_version {
            return plane::kube_version();
        }
        match self.command {
            Some(Command::Up(up)) => block_on(up.run()),
            Some(Command::Down(down)) => down.run(),
            Some(Command::Status(status)) => block_on(status.run()),
            Some(Command::Env(which)) => plane::env(&which),
            Some(Command::Kubeconfig(arguments)) => arguments.run(),
            Some(Command::Kubectl(kubectl)) => kubectl.run(),
            Some(Command::Writes(writes)) => block_on(writes.run()),
            Some(Command::Fleet(run)) => block_on(run.run()),
            Some(Command::Demo(demo)) => block_on(demo.run()),
            Some(Command::Steady(steady)) => block_on(steady.run()),
            Some(Command::Bench(bench)) => bench.run(),
            Some(Command::FleetCtl(control)) => block_on(control.run()),
            None => anyhow::bail!("no command given; see `coppice-testbed --help`"),
        }
    }
}

fn block_on(work: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(work)
}

/// Reads `500ms`, `10s`, `2m`.
fn duration(text: &str) -> Result<Duration, String> {
    let parsed: jiff::SignedDuration = text
        .parse()
        .map_err(|e| format!("{e}; write a duration such as 500ms, 10s or 2m"))?;
    Duration::try_from(parsed).map_err(|_| "a duration cannot be negative".to_owned())
}

#[expect(clippy::print_stdout, reason = "the command's output")]
fn say(text: &str) {
    println!("{text}");
}

#[expect(
    clippy::print_stderr,
    reason = "messages for the person at the terminal"
)]
fn complain(text: &str) {
    eprintln!("{text}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn durations_are_read_and_bad_ones_explained() {
        assert_eq!(duration("500ms").unwrap(), Duration::from_millis(500));
        assert_eq!(duration("1m 30s").unwrap(), Duration::from_secs(90));
        assert!(duration("10").unwrap_err().contains("10s"));
        assert!(duration("-1s").unwrap_err().contains("negative"));
    }
}
