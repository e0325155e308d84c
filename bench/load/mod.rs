//! What every load on sockets has in common: whom it talks to, how a request is sent and written down, how long it is
//! watched.
//!
//! Who asks what is up to `swarm` (coding agents) and `crowd` (the simulator's populations). All of them note the same
//! things on one [`Board`], in virtual time, and are judged by one [`Report`].

pub(crate) mod batch;
pub(crate) mod board;
pub(crate) mod body;
pub(crate) mod client;
mod engines;
mod machine;
pub(crate) mod report;
mod sse;
pub(crate) mod target;

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::Value;
use tokio::task::JoinSet;

use crate::num::share;
use board::Board;
use report::Report;
use target::{Spread, Target};

pub(crate) use engines::EngineStats;
pub(crate) use machine::{cores, cpu_seconds};

/// How long and how fast.
#[derive(Args, Clone, Debug)]
pub(crate) struct Pace {
    /// measured real seconds
    #[arg(long, default_value_t = 30.0)]
    pub(crate) duration: f64,
    /// real seconds before that, left out of the figures
    #[arg(long, default_value_t = 15.0)]
    pub(crate) warmup: f64,
}

/// Whom a load talks to and how the result is told.
#[derive(Args, Debug)]
pub(crate) struct Aim {
    /// URL of the router or engine; several, separated by commas, for --spread
    #[arg(long, required = true, value_delimiter = ',')]
    target: Vec<String>,
    /// what the result is called
    #[arg(long, default_value = "target")]
    target_name: String,
    /// engines whose GET /stats tells how busy they were
    #[arg(long, value_delimiter = ',')]
    engine_stats: Vec<String>,
    /// how turns are spread over several targets
    #[arg(long, value_enum, default_value = "sticky")]
    spread: Spread,
    /// virtual seconds per real second, as given to the engines
    #[arg(long, default_value_t = 1.0)]
    time_scale: f64,
    /// model name to ask for
    #[arg(long, default_value = "sim")]
    model: String,
    /// print JSON
    #[arg(long)]
    json: bool,
}

/// Where a load goes.
#[derive(Debug, Clone)]
pub(crate) struct Course {
    pub(crate) target: Target,
    pub(crate) model: String,
    /// virtual seconds per real second
    pub(crate) time_scale: f64,
}

/// A load that runs; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) board: Arc<Board>,
    pub(crate) tasks: JoinSet<()>,
}

impl Load {
    /// Lets it run for so many real seconds, less if it ends by itself.
    pub(crate) async fn run_for(&mut self, seconds: f64) {
        let ended = async {
            while let Some(client) = self.tasks.join_next().await {
                if client.is_err() {
                    self.board.failed("a client of the load ended too early".to_owned());
                }
            }
        };
        // a load that never ends is the usual case
        let _ = tokio::time::timeout(Duration::from_secs_f64(seconds), ended).await;
    }

    /// Ends the load at once.
    pub(crate) fn stop(mut self) -> Arc<Board> {
        self.tasks.abort_all();
        Arc::clone(&self.board)
    }
}

/// Warm-up, then the measured time; the load ends with it.
pub(crate) async fn measure(mut load: Load, pace: &Pace, engines: &[String]) -> (Report, Arc<Board>) {
    load.run_for(pace.warmup).await;
    let (from, before) = (load.board.now(), EngineStats::all(engines).await);
    let (began, cpu) = (Instant::now(), cpu_seconds("self"));
    load.run_for(pace.duration).await;
    let (to, unfinished) = (load.board.now(), load.board.unfinished());
    let cpu = share(cpu_seconds("self") - cpu, began.elapsed().as_secs_f64() * cores());
    let after = EngineStats::all(engines).await;
    let board = load.stop();
    let engines = after.iter().zip(&before).map(|(after, before)| after.since(before)).collect();
    (Report { engines, unfinished, cpu, ..board.report(from, to) }, board)
}

/// Refuses what makes no sense.
pub(crate) fn check(pace: &Pace, time_scale: f64) -> Result<(), String> {
    let fine = |x: f64| x.is_finite() && x >= 0.0;
    if !fine(time_scale) || time_scale == 0.0 {
        return Err(format!("--time-scale {time_scale}: must be above 0"));
    }
    if !fine(pace.duration) || !fine(pace.warmup) {
        return Err("--duration and --warmup must not be negative".to_owned());
    }
    Ok(())
}

/// Puts a load on the target, measures it and prints what came out.
pub(crate) async fn judge(aim: &Aim, pace: &Pace, start: impl FnOnce(&Course) -> Load) -> Result<(), String> {
    check(pace, aim.time_scale)?;
    let target = Target::of(&aim.target, aim.spread)?;
    let course = Course { target, model: aim.model.clone(), time_scale: aim.time_scale };
    let (report, board) = measure(start(&course), pace, &aim.engine_stats).await;
    let failures = board.failures();
    if aim.json {
        let mut json = report.to_json();
        json["target"] = aim.target_name.as_str().into();
        json["failure_kinds"] = failures.into_iter().map(|(kind, n)| (kind, Value::from(n))).collect();
        println!("{json}");
    } else {
        print!("{}\n{}", aim.target_name, report.to_text());
        for (kind, n) in failures {
            println!("  failed {n} times: {kind}");
        }
    }
    if report.turns == 0 { Err("no turn was completed in the measured time".to_owned()) } else { Ok(()) }
}
