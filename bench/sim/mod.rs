//! `ramjet-bench sim`: routing rules against modelled engines in virtual time, without sockets.
//!
//! Engines are the scheduler and cache of `ramjet-bench engine`; the rules include the library's own policy, index and
//! reservations. So this command, unlike the others, links the router: it judges decisions, not bytes. Hours of a fleet of
//! a hundred take seconds, and the same seed gives the same table.

pub(crate) mod content;
mod measure;
mod rule;
mod table;
mod verdict;
mod workload;
mod world;

use std::io::Write;

use clap::Args;

use crate::clients;
use measure::Row;
use table::Table;
use verdict::Verdict;
use workload::Workload;
use world::World;

/// Simulated routing.
#[derive(Args, Debug)]
pub(crate) struct SimArgs {
    /// workloads by name, comma-separated (default: all)
    #[arg(long, value_delimiter = ',')]
    workload: Vec<String>,
    /// rules by name, comma-separated (default: all); the oracles are always added
    #[arg(long, value_delimiter = ',')]
    rule: Vec<String>,
    /// a trace in Mooncake's format, for the workload `trace`
    #[arg(long, value_name = "FILE")]
    trace: Option<String>,
    /// the first seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// how many seeds; the figures are means
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// shorter runs, for continuous integration
    #[arg(long)]
    quick: bool,
    /// JSON lines instead of tables
    #[arg(long)]
    json: bool,
    /// fail where `cost` breaks its promise: within 3 % of `oracle_ttft`'s turns and 10 % of its TTFT p95, and not worse
    /// than the best other rule beyond noise, which takes five seeds to tell
    #[arg(long)]
    check: bool,
}

/// Runs the rules on the workloads and prints a table for each.
pub(crate) fn run(args: &SimArgs) -> Result<(), String> {
    let rules = chosen("rule", &args.rule, &rule::ALL)?;
    let rules = rule::ALL.into_iter().filter(|name| rules.contains(name) || rule::is_oracle(name));
    let rules: Vec<&'static str> = rules.collect();
    let mut out = std::io::stdout();
    let mut verdicts = Vec::new();
    for workload in workloads(args)? {
        let runs: Vec<Vec<Row>> = rules.iter().map(|rule| runs(&workload, rule, args)).collect::<Result<_, _>>()?;
        let rows = rules.iter().zip(&runs).map(|(rule, runs)| (*rule, Row::mean(runs))).collect();
        let table = Table { rows, runs, workload: &workload };
        let text = if args.json { table.json() } else { table.text() };
        writeln!(out, "{}", text.trim_end_matches(if args.json { "\n" } else { "" })).map_err(|e| e.to_string())?;
        verdicts.extend(Verdict::of(&table));
    }
    let text = if args.json { verdicts.iter().map(Verdict::json).collect() } else { verdict::text(&verdicts) };
    write!(out, "{text}").map_err(|e| e.to_string())?;
    match verdicts.iter().filter(|verdict| !verdict.broken().is_empty()).count() {
        broken if broken > 0 && args.check => Err(format!("cost breaks its promise on {broken} workloads")),
        _ => Ok(()),
    }
}

fn workloads(args: &SimArgs) -> Result<Vec<Workload>, String> {
    let known: Vec<&'static str> = workload::ALL.into_iter().chain([workload::TRACE]).collect();
    let mut all = Vec::new();
    for name in chosen("workload", &args.workload, &known)? {
        all.extend(match (Workload::named(name, args.quick), &args.trace) {
            (Some(workload), _) => Some(workload),
            (None, Some(path)) => Some(Workload::trace(path, args.quick)?),
            (None, None) if args.workload.is_empty() => None,
            (None, None) => return Err(format!("workload {name} needs --trace FILE")),
        });
    }
    Ok(all)
}

fn runs(workload: &Workload, rule: &str, args: &SimArgs) -> Result<Vec<Row>, String> {
    let seeds = args.seed..args.seed + args.seeds.max(1);
    seeds.map(|seed| once(workload, rule, seed)).collect()
}

fn once(workload: &Workload, rule: &str, seed: u64) -> Result<Row, String> {
    let rule = rule::build(rule, &workload.caches()).ok_or_else(|| format!("{rule}: no such rule"))?;
    Ok(World::new(workload, rule, workload.clients(seed)).run().row(workload.watch))
}

/// The asked names, checked; all when none is asked.
fn chosen(kind: &str, asked: &[String], all: &[&'static str]) -> Result<Vec<&'static str>, String> {
    if asked.is_empty() {
        return Ok(all.to_vec());
    }
    let find = |name: &String| all.iter().find(|known| **known == name).copied();
    asked
        .iter()
        .map(|name| find(name).ok_or_else(|| format!("no {kind} {name}; there are {}", all.join(", "))))
        .collect()
}
