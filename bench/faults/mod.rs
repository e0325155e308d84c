//! `ramjet-bench faults`: what each kind of fault of one replica costs, on sockets, with the real router.
//!
//! A judge of its own: it sees what clients see, and the router's `/health`. The settings are the router's defaults.
//! With `--long`, nothing is wrong and nobody may be fenced.

mod front;
mod load;
mod long;
mod scene;
mod stage;

use std::path::PathBuf;

use clap::Args;
use tokio::task::JoinSet;

use crate::engine::params::Params;
use crate::router::program;
use long::Long;
use scene::{INTERVAL, Kind, Outcome};

/// What each kind of fault costs.
#[derive(Args, Debug)]
pub(crate) struct FaultsArgs {
    /// the router; without it, the binary beside this one
    #[arg(long)]
    ramjet: Option<PathBuf>,
    /// only these kinds
    #[arg(long, value_enum, value_delimiter = ',')]
    kinds: Vec<Kind>,
    /// how many kinds are run side by side
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    jobs: u16,
    /// instead: honest work that looks like trouble, in which nobody may be fenced
    #[arg(long, value_enum)]
    long: Option<Long>,
    /// virtual minutes of that
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    #[command(flatten)]
    params: Params,
}

/// The command.
pub(crate) async fn run(args: FaultsArgs) -> Result<(), String> {
    let program = program(args.ramjet.clone())?;
    args.params.check()?;
    if let Some(long) = args.long {
        return run_long(long, &args, &program).await;
    }
    let kinds = if args.kinds.is_empty() { Kind::ALL.to_vec() } else { args.kinds.clone() };
    println!("two replicas, 12 agents, the router's default settings, time x{}", args.params.time_scale);
    println!(
        "{}",
        row([
            "fault",
            "fenced as",
            "after",
            "lost",
            "most of one",
            "after the fence",
            "back after",
            "intervals",
            "verdict"
        ])
    );
    let (mut left, mut running, mut bad) = (kinds.into_iter(), JoinSet::new(), Vec::new());
    loop {
        while running.len() < usize::from(args.jobs)
            && let Some(kind) = left.next()
        {
            let (program, params) = (program.clone(), args.params.clone());
            running.spawn(async move { (kind, scene::run(kind, &program, &params).await) });
        }
        let Some(ended) = running.join_next().await else { break };
        let (kind, outcome) = ended.map_err(|error| error.to_string())?;
        let outcome = outcome.map_err(|error| format!("{}: {error}", kind.name()))?;
        println!("{}", line(kind, &outcome));
        if !outcome.why.is_empty() {
            bad.push(kind.name());
        }
    }
    println!(
        "times in seconds; lost: not answered, or not before the fault ended; most of one: by one session; after the \
         fence: of those lost, begun when the router had said that the replica is fenced; intervals: the time until it is \
         back in intervals of {INTERVAL} s between two readiness probes, two of which are promised"
    );
    if bad.is_empty() { Ok(()) } else { Err(format!("not as promised: {}", bad.join(", "))) }
}

async fn run_long(long: Long, args: &FaultsArgs, program: &std::path::Path) -> Result<(), String> {
    let held = long::run(long, args.minutes, program, &args.params).await?;
    let [median, high, longest] = held.ttft;
    println!(
        "{}: {} virtual minutes at time x{}, {} answered, {} failed, TTFT {median:.2}/{high:.2}/{longest:.2} s \
         (p50/p95/longest), {} fences",
        long.name(),
        held.virtual_minutes,
        args.params.time_scale,
        held.answered,
        held.failed,
        held.fences.len()
    );
    held.fences.iter().for_each(|fence| println!("  {fence}"));
    match held {
        held if !held.fences.is_empty() => Err("a working replica was fenced".to_owned()),
        held if held.answered == 0 || held.failed > 0 => Err("not every request was answered".to_owned()),
        _ => Ok(()),
    }
}

fn line(kind: Kind, outcome: &Outcome) -> String {
    let seconds = |time: Option<f64>| time.map_or("-".to_owned(), |s| format!("{s:.1}"));
    let lost = match outcome.turned_away {
        0 => outcome.lost.to_string(),
        n => format!("{} ({n} told to wait)", outcome.lost),
    };
    row([
        kind.name(),
        outcome.fence.as_deref().unwrap_or("kept"),
        &seconds(outcome.noticed),
        &format!("{lost} of {}", outcome.requests.1),
        &outcome.most.to_string(),
        &outcome.lost_after.to_string(),
        &seconds(outcome.back),
        &outcome.back.map_or("-".to_owned(), |s| format!("{:.1}", s / INTERVAL)),
        &if outcome.why.is_empty() { "as promised".to_owned() } else { outcome.why.join("; ") },
    ])
}

fn row(cells: [&str; 9]) -> String {
    let widths = [16, 12, 6, 22, 12, 16, 11, 10, 0];
    let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
    format!("| {} |", padded.collect::<Vec<_>>().join(" | "))
}
