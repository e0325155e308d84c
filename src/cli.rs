//! The command line.

mod explain;

pub use explain::{Explain, Unexplained};

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
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Check the configuration, print every problem, and exit with 0 or 64.
    #[arg(short, long)]
    pub test: bool,
    /// Run in the background.
    #[arg(short, long)]
    pub daemon: bool,
    /// Take the listeners over from a running process.
    #[arg(short, long)]
    pub upgrade: bool,
    /// Replicas, separated by commas; enough to start without a file.
    #[arg(long, value_name = "URL,URL…")]
    pub upstream: Option<String>,
    /// Where clients connect.
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Where metrics are served.
    #[arg(long, value_name = "ADDR")]
    pub admin: Option<String>,
}

/// What ramjet does besides serving.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Print the commented reference configuration.
    Reference,
    /// Tell why a request went where it went, and what came of it.
    Explain(Explain),
}
