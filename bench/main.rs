//! `ramjet-bench`: simulated engines and the load to put on them.
//!
//! An independent judge: it talks HTTP and does not link the router, so that a mistake in the router cannot hide in a
//! shared helper.

mod engine;
mod num;
mod signal;
mod swarm;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Simulated engines, load and comparisons for ramjet.
#[derive(Parser)]
#[command(version, about)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// simulated inference engines
    Engine(engine::EngineArgs),
    /// coding-agent load on a router or an engine
    Swarm(swarm::SwarmArgs),
}

fn main() -> ExitCode {
    let line = Line::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("ramjet-bench: {error}");
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(async {
        match line.command {
            Command::Engine(args) => engine::run(args).await,
            Command::Swarm(args) => swarm::run(args).await,
        }
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ramjet-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
