//! `ramjet-bench`: simulated engines and the load to put on them.
//!
//! An independent judge: it talks HTTP and does not link the router, so that a mistake in the router cannot hide in a
//! shared helper. Only `sim`, `instructions` and `contention` link it: decisions cannot be judged in virtual time without the
//! code that makes them, nor can its instructions be counted or its locks be fought for.

mod chaos;
mod clients;
mod cluster;
mod compare;
mod crowd;
mod demo;
mod engine;
mod faults;
mod hours;
mod load;
mod memory;
mod micro;
mod num;
mod overhead;
mod router;
mod signal;
mod sim;
mod stream;
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
    /// users of applications that share system prompts, on a router or an engine
    Chat(crowd::ChatArgs),
    /// programs that ask ten things at once about something new
    Fanout(crowd::FanoutArgs),
    /// a recorded trace at its own pace
    Trace(crowd::TraceArgs),
    /// the same work through every routing setting
    Compare(compare::CompareArgs),
    /// several routers before the same engines, alone and as a group, and what the death of one costs
    Cluster(cluster::ClusterArgs),
    /// engines, router and agents in one command, for about a minute
    Demo(demo::DemoArgs),
    /// minutes of mixed traffic on engines that go wrong in every way, every byte checked
    Chaos(chaos::ChaosArgs),
    /// ten hours of coding agents in ten minutes, and whether the router's memory grows
    Hours(hours::HoursArgs),
    /// what each kind of fault of a replica costs, with the real router
    Faults(faults::FaultsArgs),
    /// what a router costs between a client and engines that answer at once: latency, processor time, memory
    Overhead(overhead::OverheadArgs),
    /// what a router adds to each event of many open streams
    Stream(stream::StreamArgs),
    /// engines that answer at once
    Instant(overhead::InstantArgs),
    /// how many instructions the request path takes, compared with a file
    Instructions(micro::InstructionsArgs),
    /// how many choices several threads make together
    Contention(micro::ContentionArgs),
    /// the least that a proxy on Pingora can be
    Bare(overhead::BareArgs),
    /// routing rules against modelled engines in virtual time, no sockets
    Sim(sim::SimArgs),
}

fn main() -> ExitCode {
    let line = Line::parse();
    match line.command {
        // these make their own runtimes
        Command::Bare(args) => told(overhead::bare(&args)),
        Command::Instant(args) => told(overhead::instant(&args)),
        Command::Instructions(args) => told(micro::instructions(&args)),
        Command::Contention(args) => told(micro::contention(&args)),
        command => told(run_on_all_processors(command)),
    }
}

fn told(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ramjet-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_on_all_processors(command: Command) -> Result<(), String> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|error| error.to_string())?;
    // on a signal the command is dropped, and with it every process it started
    let runs_for_ever = matches!(command, Command::Engine(_));
    runtime.block_on(async {
        tokio::select! {
            result = run(command) => result,
            asked = signal::ended() => match asked {
                Ok(()) if !runs_for_ever => Err("interrupted".to_owned()),
                other => other,
            },
        }
    })
}

async fn run(command: Command) -> Result<(), String> {
    match command {
        Command::Engine(args) => engine::run(args).await,
        Command::Swarm(args) => swarm::run(args).await,
        Command::Chat(args) => crowd::chat(args).await,
        Command::Fanout(args) => crowd::fanout(args).await,
        Command::Trace(args) => crowd::trace(args).await,
        Command::Compare(args) => compare::run(args).await,
        Command::Cluster(args) => cluster::run(args).await,
        Command::Demo(args) => demo::run(args).await,
        Command::Chaos(args) => chaos::run(args).await,
        Command::Hours(args) => hours::run(args).await,
        Command::Faults(args) => faults::run(args).await,
        Command::Overhead(args) => overhead::run(args).await,
        Command::Stream(args) => stream::run(args).await,
        Command::Instant(_) | Command::Instructions(_) | Command::Contention(_) | Command::Bare(_) => {
            Err("it makes its own runtime".to_owned())
        }
        Command::Sim(args) => sim::run(&args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn every_command_line_is_consistent_and_asks_for_what_it_needs() {
        Line::command().debug_assert();
        let fine = |line: &str| Line::try_parse_from(line.split(' ')).is_ok();
        for load in ["swarm", "chat", "fanout", "trace --file t"] {
            assert!(fine(&format!("ramjet-bench {load} --target http://127.0.0.1:1")), "{load}");
            assert!(!fine(&format!("ramjet-bench {load}")), "{load} without a target");
        }
        assert!(!fine("ramjet-bench trace --target http://127.0.0.1:1"), "a trace needs a file");
        assert!(!fine("ramjet-bench chat --users 0 --target http://127.0.0.1:1"), "nobody");
        for words in
            ["", " --workload chat", " --workload trace --file t --speed 1", " --policies load,cost --developers 9"]
        {
            assert!(fine(&format!("ramjet-bench compare{words}")), "{words}");
        }
    }
}
