//! `ramjet-bench compare`: the same seeded work through several routing settings, in one run on one machine.
//!
//! Each setting gets fresh engines and a fresh router, so nothing is warm that the setting did not warm. Rounds are
//! interleaved and each has its own seed; ratios are taken within a round, so what drifts on the machine between rounds
//! does not look like a difference between settings. Three settings without a router frame the others
//! (`swarm/target.rs`).

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use crate::engine::Fleet;
use crate::engine::params::Params;
use crate::num::share;
use crate::router::{Policy, Router, program};
use crate::swarm::report::Report;
use crate::swarm::script::Shape;
use crate::swarm::target::{Spread, Target};
use crate::swarm::{Pace, Swarm, check, measure, ramp};

const WORDS: &str = "load, absolute, marginal, relative, cost, default, sticky, rotate, least";

/// Every routing setting on the same work.
///
/// Engine defaults stand for two large GPU boxes under 64 developers: prefill at 8000 tokens/s and 12 ms decode steps
/// make reading and generating both matter; the 4.9 M token cache holds all conversations, so routing, not eviction, decides.
#[derive(Args, Debug)]
// 20: fast enough to reach a steady state in half a minute, slow enough that timers stay exact on two cores
#[command(mut_arg("time_scale", |arg| arg.default_value("20")))]
// 64 developers on two replicas: the load at which the published gain was measured
#[command(mut_arg("developers", |arg| arg.default_value("64")))]
// at 20 times real time a reader cannot tell 10 events a second from 50; the two cores can
#[command(mut_arg("events_per_s", |arg| arg.default_value("10")))]
// 500 virtual seconds: each conversation is read once per engine that gets it
#[command(mut_arg("warmup", |arg| arg.default_value("25")))]
// 800 virtual seconds: some 5000 turns, for which the noise between seeds is about 1 %
#[command(mut_arg("duration", |arg| arg.default_value("40")))]
pub(crate) struct CompareArgs {
    /// the router to test; without it, the binary beside this one
    #[arg(long)]
    ramjet: Option<PathBuf>,
    /// settings, the first is what the others are compared with: load, absolute, marginal, relative, cost,
    /// default (what ramjet does when nothing is said), and without a router sticky, rotate, least
    #[arg(long, value_delimiter = ',', default_value = "load,absolute,marginal,relative,default")]
    policies: Vec<String>,
    /// engines behind the router
    #[arg(long, default_value_t = 2)]
    replicas: u16,
    /// how often all settings are run
    #[arg(long, default_value_t = 2)]
    rounds: u64,
    /// faults of engines, for example sim-1=slow:2
    #[arg(long)]
    fault: Vec<String>,
    /// further environment for every router, NAME=VALUE
    #[arg(long)]
    env: Vec<String>,
    /// print JSON instead of the table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    params: Params,
    #[command(flatten)]
    pace: Pace,
    #[command(flatten)]
    shape: Shape,
}

/// What one setting did in one round.
#[derive(Debug, Clone)]
struct Run {
    report: Report,
    failures: BTreeMap<String, usize>,
    /// milliseconds of the router's processor time per turn, warm-up included
    router_cpu_ms: f64,
}

/// The command.
pub(crate) async fn run(args: CompareArgs) -> Result<(), String> {
    check(&args.shape, &args.pace, args.params.time_scale)?;
    args.params.check()?;
    for word in &args.policies {
        if Policy::parse(word).is_none() && Spread::parse(word).is_none() {
            return Err(format!("unknown policy {word:?}: one of {WORDS}"));
        }
    }
    let seconds = (args.pace.duration + args.pace.warmup) * args.policies.len() as f64 * args.rounds as f64;
    eprintln!("{} settings, {} rounds: about {:.0} minutes", args.policies.len(), args.rounds, (seconds / 60.0).ceil());
    let mut runs: Vec<Vec<Run>> = vec![Vec::new(); args.policies.len()];
    for round in 0..args.rounds {
        for (at, policy) in args.policies.iter().enumerate() {
            let run = one(&args, policy, round).await.map_err(|error| format!("{policy}: {error}"))?;
            eprintln!(
                "round {} {policy}: {:.0} turns/min, {} failures",
                round + 1,
                run.report.turns_per_min,
                run.report.failures
            );
            runs[at].push(run);
        }
    }
    if args.json {
        println!("{}", as_json(&args.policies, &runs));
    } else {
        print!("{}", table(&args.policies, &runs));
    }
    Ok(())
}

async fn one(args: &CompareArgs, policy: &str, round: u64) -> Result<Run, String> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let fleet = Fleet::start(address, args.replicas, "sim", &args.params).await?;
    fleet.set_faults(&args.fault)?;
    let engines: Vec<String> = fleet.engines.iter().map(|engine| engine.url()).collect();
    let extra = args.env.iter().map(|pair| env_pair(pair)).collect::<Result<Vec<_>, _>>()?;
    let router = match Policy::parse(policy) {
        Some(policy) => Some(Router::start(&program(args.ramjet.clone())?, policy, &engines, &extra).await?),
        None => None,
    };
    let target = match &router {
        Some(router) => Target::of(&[router.url()], Spread::Sticky)?,
        None => Target::of(&engines, Spread::parse(policy).unwrap_or(Spread::Sticky))?,
    };
    let shape = Shape { seed: args.shape.seed + round, ..args.shape.clone() };
    let swarm = Swarm::start(&shape, target, &args.params.model, args.params.time_scale, ramp(&args.pace));
    let (report, board) = measure(swarm, &args.pace, &engines).await;
    let turns = board.report(0.0, f64::INFINITY).turns;
    let cpu = router.as_ref().map_or(0.0, Router::cpu_seconds);
    Ok(Run { report, failures: board.failures(), router_cpu_ms: share(cpu * 1e3, turns as f64) })
}

fn env_pair(pair: &str) -> Result<(String, String), String> {
    let (name, value) = pair.split_once('=').ok_or_else(|| format!("--env {pair:?}: NAME=VALUE is expected"))?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Median, least and most.
fn spread(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let median = match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    };
    [median, values.first().copied().unwrap_or(0.0), values.last().copied().unwrap_or(0.0)]
}

fn median(runs: &[Run], value: impl Fn(&Run) -> f64) -> f64 {
    spread(runs.iter().map(value).collect())[0]
}

/// Turns per minute against the first setting, round by round.
fn ratios(runs: &[Run], base: &[Run]) -> [f64; 3] {
    spread(
        runs.iter().zip(base).map(|(run, base)| share(run.report.turns_per_min, base.report.turns_per_min)).collect(),
    )
}

fn table(policies: &[String], runs: &[Vec<Run>]) -> String {
    let base = policies.first().map_or("", String::as_str);
    let heads = [
        format!("{:10}", "policy"),
        format!("{:>20}", "turns/min (min-max)"),
        format!("{:>20}", format!("vs {base} (min-max)")),
        format!("{:>22}", "TTFT s p50/p95/p99"),
        format!("{:>15}", "turn s p50/p95"),
        format!("{:>8}", "cached"),
        format!("{:>8}", "same"),
        format!("{:>7}", "failed"),
        format!("{:>9}", "not sim."),
        format!("{:>14}", "router ms/turn"),
    ];
    let mut text = format!("{}\n", heads.join(" "));
    for (policy, these) in policies.iter().zip(runs) {
        text.push_str(&row(policy, these, runs.first().map_or(&[], Vec::as_slice)));
    }
    for (policy, runs) in policies.iter().zip(runs) {
        for run in runs {
            text.extend(run.report.warning().map(|warning| format!("{policy}: {warning}\n")));
            text.extend(run.failures.iter().map(|(kind, n)| format!("{policy}: failed {n} times: {kind}\n")));
        }
    }
    text
}

fn row(policy: &str, runs: &[Run], base: &[Run]) -> String {
    let [turns, least, most] = spread(runs.iter().map(|run| run.report.turns_per_min).collect());
    let [ratio, low, high] = ratios(runs, base);
    let seconds = |value: fn(&Report) -> f64| median(runs, |run| value(&run.report)) / 1e3;
    let percent = |value: fn(&Report) -> f64| format!("{:.1} %", median(runs, |run| value(&run.report)) * 100.0);
    let ttft = format!("{:.2}/{:.2}/{:.2}", seconds(|r| r.ttft[0]), seconds(|r| r.ttft[1]), seconds(|r| r.ttft[2]));
    let turn = format!("{:.2}/{:.2}", seconds(|r| r.turn[0]), seconds(|r| r.turn[1]));
    let failed: usize = runs.iter().map(|run| run.report.failures).sum();
    let cells = [
        format!("{policy:10}"),
        format!("{:>20}", format!("{turns:.0} ({least:.0}-{most:.0})")),
        format!("{:>20}", format!("{ratio:.3} ({low:.3}-{high:.3})")),
        format!("{ttft:>22}"),
        format!("{turn:>15}"),
        format!("{:>8}", percent(|r| r.cached_share)),
        format!("{:>8}", percent(|r| r.same_replica)),
        format!("{failed:>7}"),
        format!("{:>9}", percent(|r| r.overhead)),
        format!("{:>14.2}", median(runs, |run| run.router_cpu_ms)),
    ];
    format!("{}\n", cells.join(" "))
}

fn as_json(policies: &[String], runs: &[Vec<Run>]) -> Value {
    let base = runs.first().map_or(&[][..], Vec::as_slice);
    let all = policies.iter().zip(runs).map(|(policy, runs)| {
        let reports: Vec<Value> = runs.iter().map(|run| run.report.to_json()).collect();
        let [ratio, low, high] = ratios(runs, base);
        json!({
            "policy": policy, "turns_per_min": median(runs, |run| run.report.turns_per_min),
            "ratio": {"median": ratio, "min": low, "max": high}, "rounds": reports,
            "router_cpu_ms_per_turn": median(runs, |run| run.router_cpu_ms),
        })
    });
    Value::Array(all.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_and_even() {
        assert_eq!(spread(vec![3.0, 1.0, 2.0]), [2.0, 1.0, 3.0]);
        assert_eq!(spread(vec![1.0, 2.0]), [1.5, 1.0, 2.0]);
        assert_eq!(spread(vec![]), [0.0; 3]);
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let run = |turns_per_min| Run {
            report: Report { turns_per_min, ..Report::default() },
            failures: BTreeMap::new(),
            router_cpu_ms: 0.0,
        };
        let (base, fast) = ([run(100.0), run(200.0)], [run(110.0), run(220.0)]);
        assert!(ratios(&fast, &base).iter().all(|ratio| (ratio - 1.1).abs() < 1e-9));
    }

    #[test]
    fn defaults_of_the_comparison_are_its_own() {
        use clap::Parser;
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            args: CompareArgs,
        }
        let args = Line::parse_from(["compare"]).args;
        assert_eq!((args.shape.developers, args.params.time_scale.to_bits()), (64, 20f64.to_bits()));
    }
}
