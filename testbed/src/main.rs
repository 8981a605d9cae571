//! `coppice-testbed`: a control plane and a fleet of pretended nodes, from the command line.

mod cli;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    cli::Arguments::parse().run()
}
