//! `ramjet-bench hours`: a working day of coding agents in minutes, and what the router's memory does meanwhile.
//!
//! Simulated engines, the router with a small index, and agents, all on a clock that runs faster. An hour of that clock is a
//! line: turns so far, resident memory on average and at most, and of that the program's own pages, the prefix index and
//! each table of what was used last, as the router counts them: so a reader sees what grew. The second half is judged by its
//! slope: what is kept for each turn shows there, while what goes up and down with the requests in flight does not. Before,
//! these tables may be filled, as in a process that has served for long.
//!
//! The router's own clock is not faster: what it keeps for a time (the last day in numbers, timers) it keeps for that of the
//! wall.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use crate::chaos::{client, warm};
use crate::engine::Fleet;
use crate::engine::params::Params;
use crate::load::Course;
use crate::load::target::{Spread, Target};
use crate::memory::{Growth, Memory};
use crate::num::{share, to_float};
use crate::router::{Router, program};
use crate::swarm;
use crate::swarm::script::Shape;

/// Engines behind the router.
const REPLICAS: u16 = 2;
const HOUR_S: f64 = 3600.0;
/// Fewer turns say nothing.
const LEAST_TURNS: usize = 1000;

/// A working day and the router's memory.
#[derive(Args, Debug)]
#[command(mut_arg("time_scale", |arg| arg.default_value("60")))]
pub(crate) struct HoursArgs {
    /// the router; without it, the binary beside this one
    #[arg(long)]
    ramjet: Option<PathBuf>,
    /// hours on the clock of the engines and agents
    #[arg(long, default_value_t = 10.0)]
    hours: f64,
    /// what the index may use
    #[arg(long, default_value = "4MiB")]
    index: String,
    /// what the second half may add, by its slope, in MiB: as much as what an allocator keeps goes up and down by, 2; from
    /// empty tables, as much again for these, 4
    #[arg(long)]
    bound: Option<f64>,
    /// before that, as many plain requests as fill every table of what was used last that these agents write to
    #[arg(long)]
    filled: bool,
    #[command(flatten)]
    params: Params,
    #[command(flatten)]
    shape: Shape,
}

impl HoursArgs {
    fn bound(&self) -> f64 {
        self.bound.unwrap_or(if self.filled { 2.0 } else { 4.0 })
    }
}

/// The command.
pub(crate) async fn run(args: HoursArgs) -> Result<(), String> {
    swarm::check(&args.shape)?;
    let scale = args.params.time_scale;
    if !(scale.is_finite() && scale > 0.0 && args.hours.is_finite() && args.hours > 0.0) {
        return Err("--time-scale and --hours must be above 0".to_owned());
    }
    let program = program(args.ramjet.clone())?;
    let fleet = Fleet::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), REPLICAS, "sim", &args.params).await?;
    let engines: Vec<String> = fleet.engines.iter().map(|engine| engine.url()).collect();
    let settings = json!({"routing": {"index_memory": args.index}, "log": {"access": "off"}});
    let router = Router::start_with(&program, &engines, settings, &[]).await?;
    let mut memory = Memory::default();
    memory.look(router.process(), 0.0);
    println!("idle: {:.1} MiB", memory.since(0.0).0);
    if args.filled {
        let host = router.url();
        println!("{}", warm::up(host.trim_start_matches("http://"), &args.params.model).await?);
    }
    let target = Target::of(&[router.url()], Spread::Sticky)?;
    let course = Course { target, model: args.params.model.clone(), time_scale: scale };
    let hour = HOUR_S / scale;
    let load = swarm::start(&args.shape, &course, Duration::from_secs_f64(hour / 10.0));
    let (mut memory, mut next) = (Memory::default(), hour);
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    println!("hour     turns  MiB mean  at most  program  what is remembered, in MiB");
    while next <= args.hours * hour + 0.5 {
        seconds.tick().await;
        let now = load.board.now() / scale / 1e3;
        memory.look(router.process(), now);
        if now >= next {
            let ((mean, most), turns) = (memory.since(next - hour), load.board.report(0.0, f64::MAX).turns);
            let held = remembered(&client::get(&router.admin, "/metrics").await?);
            println!("{:4.0} {turns:9} {mean:9.1} {most:8.1} {:8.1}  {held}", next / hour, memory.files());
            next += hour;
        }
    }
    let board = load.stop();
    let failures: usize = board.failures().values().sum();
    println!("{failures} turns failed; the router took {:.0} s of processor time", router.cpu_seconds());
    let (text, is_good) = verdict(memory.growth(), board.report(0.0, f64::MAX).turns, args.bound());
    println!("{text}");
    if is_good { Ok(()) } else { Err("its memory grows, or nothing was shown".to_owned()) }
}

/// What the router says it remembers: blocks of the index, and what each table has ever written, in MiB.
fn remembered(page: &str) -> String {
    let mut all = String::new();
    for line in page.lines() {
        let Some((name, value)) = line.rsplit_once(' ') else { continue };
        let value: f64 = value.parse().unwrap_or(0.0);
        if let Some(table) = name.strip_prefix("ramjet_table_bytes{table=\"").and_then(|rest| rest.strip_suffix("\"}"))
        {
            all += &format!("{table} {:.2}, ", value / 1024.0 / 1024.0);
        } else if name == "ramjet_prefix_index_blocks" {
            all += &format!("index {value:.0} blocks, ");
        }
    }
    all.trim_end_matches(", ").to_owned()
}

/// Half of the turns are taken to be the second half's.
fn verdict(growth: Option<Growth>, turns: usize, bound: f64) -> (String, bool) {
    let Some(growth) = growth.filter(|_| turns >= LEAST_TURNS) else {
        return (format!("too little to judge: {turns} turns"), false);
    };
    let each = |mib: f64| share(mib * 1024.0 * 1024.0, to_float(turns as u64) / 2.0);
    let text = format!(
        "{:.1} MiB at half time, {:.1} MiB at the end; by the slope of the second half {:+.2} MiB, {:+.0} bytes a turn (bound \
         {bound} MiB: more than {:.0} bytes a turn are found)",
        growth.half,
        growth.end,
        growth.by,
        each(growth.by),
        each(bound),
    );
    (text, growth.by <= bound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_told_part_by_part() {
        let page = "# HELP ramjet_table_bytes x\nramjet_prefix_index_blocks 70000\nramjet_table_bytes{table=\"turns\"} 1048576\n\
                    ramjet_table_bytes{table=\"ids\"} 0\nramjet_traces_total{outcome=\"sent\"} 3\n";
        assert_eq!(remembered(page), "index 70000 blocks, turns 1.00, ids 0.00");
    }

    #[test]
    fn growth_beyond_the_bound_fails_and_so_does_a_run_without_turns() {
        let growth = |by| Some(Growth { half: 40.0, end: 41.0, by, until: 600.0 });
        let (text, is_good) = verdict(growth(2.0), 40_000, 3.0);
        assert!(is_good && text.contains("+2.00 MiB, +105 bytes a turn"), "{text}");
        assert!(!verdict(growth(3.1), 40_000, 3.0).1);
        assert!(!verdict(growth(0.0), 10, 3.0).1 && !verdict(None, 40_000, 3.0).1);
    }
}
