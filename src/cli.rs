//! The command line.

mod explain;
mod replay;

pub use explain::{Explain, Unexplained};
pub use replay::{Replay, Unplayed};

use clap::{Parser, Subcommand};
use std::path::PathBuf;

/// A reverse proxy that sends each inference request to the replica that can answer it with the least repeated work.
#[derive(Debug, Parser)]
#[command(name = "ramjet", version)]
pub struct Cli {
    /// What to do instead of serving.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The configuration file.
    #[arg(short, long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
    /// Check the configuration, print every problem, and exit with 0 or 64.
    #[arg(short, long)]
    pub test: bool,
    /// Run in the background.
    #[arg(short, long, global = true)]
    pub daemon: bool,
    /// Take over from the running process, its listeners and what it knows. `ramjet upgrade` does it and reports.
    #[arg(short, long)]
    pub upgrade: bool,
    /// With -u: starts afresh where no process runs, as one that is started again after a crash must.
    #[arg(long, requires = "upgrade")]
    pub or_start: bool,
    /// Replicas, separated by commas; enough to start without a file.
    #[arg(long, value_name = "URL,URL…", global = true)]
    pub upstream: Option<String>,
    /// Where clients connect.
    #[arg(long, value_name = "ADDR", global = true)]
    pub listen: Option<String>,
    /// Where metrics are served.
    #[arg(long, value_name = "ADDR")]
    pub admin: Option<String>,
}

/// What ramjet does besides serving.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start this binary in place of the running one, without a lost request: waits until it serves, and reports.
    Upgrade,
    /// Print the commented reference configuration.
    Reference,
    /// Tell why a request went where it went, and what came of it.
    Explain(Explain),
    /// Make the choices of a journal again, under other settings if asked: what would have gone elsewhere?
    Replay(Replay),
}
