//! `ramjet-bench cluster`: several routers before the same engines, each request of each agent at another one of them.
//!
//! What it shows: how much of what a single router finds in the engines' caches several of them find, taking turns, alone,
//! and as a group with a store; and, with `--drill`, what the death of a router or of the store costs. Rounds are interleaved
//! and each has its own seed. A router that is killed is left by its clients at once, as by a balancer that looks; what it
//! was answering breaks off, and nothing else may.

mod drill;
mod latency;
mod store;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use crate::engine::Fleet;
use crate::engine::params::Params;
use crate::load::report::Report;
use crate::load::target::{Spread, Target};
use crate::load::{Course, Pace, check, measure};
use crate::router::{Router, program};
use crate::swarm::script::Shape;
use crate::swarm::{self, ramp};
use drill::Drill;
use store::Store;

/// Several routers, alone and together.
#[derive(Args, Debug)]
// slow enough that a round of the store is short beside a turn
#[command(mut_arg("time_scale", |arg| arg.default_value("5")))]
// eight replicas with some load on each
#[command(mut_arg("developers", |arg| arg.default_value("96")))]
#[command(mut_arg("events_per_s", |arg| arg.default_value("5")))]
#[command(mut_arg("warmup", |arg| arg.default_value("40")))]
#[command(mut_arg("duration", |arg| arg.default_value("40")))]
pub(crate) struct ClusterArgs {
    /// the router to test; without it, the binary beside this one
    #[arg(long)]
    ramjet: Option<PathBuf>,
    /// the program of a Valkey or Redis server (tests/store/install finds one)
    #[arg(long)]
    store: PathBuf,
    /// what is compared
    #[arg(long, value_enum, value_delimiter = ',', default_value = "single,rotate,apart,together")]
    ways: Vec<Way>,
    /// instead: what is killed under load
    #[arg(long, value_enum)]
    drill: Option<Drill>,
    /// instead: what belonging to a group adds to a request, in so many pairs
    #[arg(long)]
    pairs: Option<u64>,
    /// how many routers there are
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    routers: u16,
    /// engines behind them
    #[arg(long, default_value_t = 8)]
    replicas: u16,
    /// how often all ways are run
    #[arg(long, default_value_t = 1)]
    rounds: u64,
    #[command(flatten)]
    params: Params,
    #[command(flatten)]
    pace: Pace,
    #[command(flatten)]
    shape: Shape,
}

/// How the routers are set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Way {
    /// one router
    Single,
    /// several, whose replicas take turns
    Rotate,
    /// several that know nothing of each other
    Apart,
    /// several that share a store
    Together,
}

/// Engines, routers and their store.
struct Stage {
    engines: Fleet,
    routers: Vec<Router>,
    store: Option<Store>,
    program: PathBuf,
    settings: Value,
}

impl Stage {
    async fn set(args: &ClusterArgs, way: Way) -> Result<Self, String> {
        let engines =
            Fleet::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), args.replicas, "sim", &args.params).await?;
        let store = if way == Way::Together { Some(Store::start(&args.store).await?) } else { None };
        let settings = match (way, &store) {
            (Way::Rotate, _) => json!({"routing": {"policy": "round_robin"}}),
            (_, Some(store)) => json!({"cluster": {"url": store.url(), "secret_file": secret()?}}),
            _ => json!({}),
        };
        let program = program(args.ramjet.clone())?;
        let mut stage = Self { engines, routers: Vec::new(), store, program, settings };
        for _ in 0..if way == Way::Single { 1 } else { args.routers } {
            let router = stage.router().await?;
            stage.routers.push(router);
        }
        Ok(stage)
    }

    async fn router(&self) -> Result<Router, String> {
        Router::start_with(&self.program, &self.urls(), self.settings.clone(), &[]).await
    }

    fn urls(&self) -> Vec<String> {
        self.engines.engines.iter().map(|engine| engine.url()).collect()
    }

    fn course(&self, args: &ClusterArgs) -> Result<Course, String> {
        let urls: Vec<String> = self.routers.iter().map(Router::url).collect();
        let target = Target::of(&urls, Spread::Rotate)?;
        Ok(Course { target, model: args.params.model.clone(), time_scale: args.params.time_scale })
    }
}

/// The file that holds the secret of the group, which is none here.
fn secret() -> Result<PathBuf, String> {
    let file = std::env::temp_dir().join("ramjet-bench-group");
    std::fs::write(&file, "of-a-bench").map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(file)
}

/// The command.
pub(crate) async fn run(args: ClusterArgs) -> Result<(), String> {
    swarm::check(&args.shape)?;
    check(&args.pace, args.params.time_scale)?;
    args.params.check()?;
    if let Some(drill) = args.drill {
        return drill::run(&args, drill).await;
    }
    if let Some(pairs) = args.pairs {
        return latency::run(&args, pairs).await;
    }
    println!(
        "{} agents, {} replicas, {} routers, time x{}; shares are of prompt tokens",
        args.shape.developers, args.replicas, args.routers, args.params.time_scale
    );
    println!(
        "{:<10}{:>8}{:>10}{:>10}{:>8}{:>22}{:>9}{:>9}",
        "way", "cached", "vs first", "turns/min", "same", "TTFT s p50/p95/p99", "failed", "not sim."
    );
    let mut all: Vec<Vec<Report>> = vec![Vec::new(); args.ways.len()];
    for round in 0..args.rounds {
        for (at, way) in args.ways.iter().enumerate() {
            let report = one(&args, *way, round).await?;
            println!("{}", line(*way, &report, all[0].last().or(Some(&report))));
            all[at].push(report);
        }
    }
    if args.rounds > 1 {
        println!("mean of {} rounds", args.rounds);
        for (way, reports) in args.ways.iter().zip(&all) {
            let mean = |reports: &[Report]| reports.iter().map(|r| r.cached_share).sum::<f64>() / reports.len() as f64;
            println!(
                "{:<10}{:>7.1}%{:>+10.1}",
                name(*way),
                mean(reports) * 100.0,
                (mean(reports) - mean(&all[0])) * 100.0
            );
        }
    }
    Ok(())
}

async fn one(args: &ClusterArgs, way: Way, round: u64) -> Result<Report, String> {
    let stage = Stage::set(args, way).await?;
    let course = stage.course(args)?;
    let shape = Shape { seed: args.shape.seed + round, ..args.shape.clone() };
    let (report, board) = measure(swarm::start(&shape, &course, ramp(&args.pace)), &args.pace, &stage.urls()).await;
    for (kind, count) in board.failures() {
        eprintln!("{}: failed {count} times: {kind}", name(way));
    }
    report.warnings().iter().for_each(|warning| eprintln!("{}: {warning}", name(way)));
    Ok(report)
}

fn name(way: Way) -> String {
    format!("{way:?}").to_lowercase()
}

fn line(way: Way, report: &Report, base: Option<&Report>) -> String {
    let [p50, p95, p99] = report.ttft.map(|ms| ms / 1e3);
    let points = base.map_or(0.0, |base| (report.cached_share - base.cached_share) * 100.0);
    format!(
        "{:<10}{:>7.1}%{points:>+10.1}{:>10.0}{:>7.1}%{:>22}{:>9}{:>8.1}%",
        name(way),
        report.cached_share * 100.0,
        report.turns_per_min,
        report.same_replica * 100.0,
        format!("{p50:.2}/{p95:.2}/{p99:.2}"),
        report.failures,
        report.overhead * 100.0
    )
}
