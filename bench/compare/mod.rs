//! `ramjet-bench compare`: the same seeded work through several routing settings, in one run on one machine.
//!
//! Each setting gets fresh engines and a fresh router, so nothing is warm that the setting did not warm. Rounds are
//! interleaved and each has its own seed, or its own part of a trace; ratios are taken within a round, so what drifts on
//! the machine between rounds does not look like a difference between settings. Three settings without a router frame the
//! others (`load/target.rs`).

mod table;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;

use crate::clients::open::Trace;
use crate::crowd::{Crowd, Programs, Recording, Users};
use crate::engine::Fleet;
use crate::engine::params::Params;
use crate::load::report::Report;
use crate::load::target::{Spread, Target};
use crate::load::{Course, Load, Pace, check, cores, cpu_seconds, measure};
use crate::num::share;
use crate::router::{Policy, Router, program};
use crate::swarm::script::Shape;
use crate::swarm::{self, ramp};

const WORDS: &str = "load, absolute, marginal, relative, cost, default, sticky, rotate, least";

/// What is put on the routers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Workload {
    /// coding agents
    Swarm,
    /// users of applications that share system prompts
    Chat,
    /// programs that ask ten things at once about something new
    Fanout,
    /// a recorded trace
    Trace,
}

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
// 200 users and 4 programs a replica: what the modelled replica serves with some waiting
#[command(mut_arg("users", |arg| arg.default_value("400")))]
#[command(mut_arg("programs", |arg| arg.default_value("8")))]
// a third: the recorded conversations keep six such replicas busy
#[command(mut_arg("speed", |arg| arg.default_value("0.33")))]
pub(crate) struct CompareArgs {
    /// what is put on the routers
    #[arg(long, value_enum, default_value = "swarm")]
    workload: Workload,
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
    #[command(flatten)]
    users: Users,
    #[command(flatten)]
    programs: Programs,
    #[command(flatten)]
    recording: Recording,
}

/// What one setting did in one round.
#[derive(Debug, Clone, Default)]
struct Run {
    report: Report,
    failures: BTreeMap<String, usize>,
    /// milliseconds of the router's processor time per turn, warm-up included
    router_cpu_ms: f64,
    /// share of the machine's processors that load, engines and router used together, warm-up included
    cpu: f64,
}

/// The command.
pub(crate) async fn run(args: CompareArgs) -> Result<(), String> {
    swarm::check(&args.shape)?;
    check(&args.pace, args.params.time_scale)?;
    args.params.check()?;
    for word in &args.policies {
        if Policy::parse(word).is_none() && Spread::parse(word).is_none() {
            return Err(format!("unknown policy {word:?}: one of {WORDS}"));
        }
    }
    let trace = if args.workload == Workload::Trace { Some(args.recording.read()?) } else { None };
    let seconds = (args.pace.duration + args.pace.warmup) * args.policies.len() as f64 * args.rounds as f64;
    eprintln!("{} settings, {} rounds: about {:.0} minutes", args.policies.len(), args.rounds, (seconds / 60.0).ceil());
    let mut runs: Vec<Vec<Run>> = vec![Vec::new(); args.policies.len()];
    for round in 0..args.rounds {
        for (at, policy) in args.policies.iter().enumerate() {
            let run = one(&args, policy, round, trace.as_ref()).await.map_err(|error| format!("{policy}: {error}"))?;
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
        println!("{}", table::json(&args.policies, &runs));
    } else {
        print!("{}", table::text(&args.policies, &runs));
    }
    Ok(())
}

async fn one(args: &CompareArgs, policy: &str, round: u64, trace: Option<&Trace>) -> Result<Run, String> {
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
    let course = Course { target, model: args.params.model.clone(), time_scale: args.params.time_scale };
    let (began, cpu) = (Instant::now(), cpu_seconds("self"));
    let (report, board) = measure(start(args, &course, round, trace), &args.pace, &engines).await;
    let turns = board.report(0.0, f64::INFINITY).turns;
    let routing = router.as_ref().map_or(0.0, Router::cpu_seconds);
    let cpu = share(cpu_seconds("self") - cpu + routing, began.elapsed().as_secs_f64() * cores());
    Ok(Run { report, failures: board.failures(), router_cpu_ms: share(routing * 1e3, turns as f64), cpu })
}

/// The load of one round.
fn start(args: &CompareArgs, course: &Course, round: u64, trace: Option<&Trace>) -> Load {
    let seed = args.shape.seed + round;
    match (args.workload, trace) {
        (Workload::Chat, _) => Crowd::chat(&args.users, seed).start(course),
        (Workload::Fanout, _) => Crowd::fanout(&args.programs, seed).start(course),
        (_, Some(trace)) => {
            let Recording { speed, skip, requests, .. } = args.recording;
            let window = (args.pace.warmup + args.pace.duration) * 1e3 * course.time_scale * speed;
            let from = skip * 1e3 + offset(trace.length() - skip * 1e3, window, round);
            Crowd::trace(trace.part(from, speed, requests)).start(course)
        }
        (_, None) => swarm::start(&Shape { seed, ..args.shape.clone() }, course, ramp(&args.pace)),
    }
}

/// Rounds go through a trace window by window, and begin again where it ends.
fn offset(length: f64, window: f64, round: u64) -> f64 {
    let windows = share(length, window).floor().max(1.0);
    window * (round as f64 % windows)
}

fn env_pair(pair: &str) -> Result<(String, String), String> {
    let (name, value) = pair.split_once('=').ok_or_else(|| format!("--env {pair:?}: NAME=VALUE is expected"))?;
    Ok((name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_take_one_window_of_a_trace_after_the_other() {
        let offsets: Vec<f64> = (0..4).map(|round| offset(3500.0, 1000.0, round)).collect();
        assert_eq!(offsets, [0.0, 1000.0, 2000.0, 0.0]);
        assert_eq!(offset(500.0, 1000.0, 3).to_bits(), 0);
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
