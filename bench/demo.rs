//! `ramjet-bench demo`: what routing does, in a minute, on any machine.
//!
//! Two simulated engines, the router, a small team of agents; a line a second (a table that refreshes on a terminal);
//! then the same work under least-loaded routing, and both results in plain numbers.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use crate::engine::Fleet;
use crate::engine::params::Params;
use crate::load::report::Report;
use crate::load::target::{Spread, Target};
use crate::load::{Course, EngineStats, Pace};
use crate::num::share;
use crate::router::{Policy, Router, program};
use crate::swarm::script::Shape;
use crate::swarm::{self, ramp};

/// Figures on the screen cover this much real time.
const WINDOW_S: f64 = 5.0;
/// The first part of each half warms the caches and is not compared.
const WARM_SHARE: f64 = 0.45;
/// Engines behind the router.
const REPLICAS: u16 = 2;

/// Engines, router and agents in one command.
#[derive(Args, Debug)]
// 20: each half then covers several virtual minutes
#[command(mut_arg("time_scale", |arg| arg.default_value("20")))]
// what two replicas serve with some waiting
#[command(mut_arg("developers", |arg| arg.default_value("40")))]
// the low end for a large model: reading prompts is then what most of the time goes to
#[command(mut_arg("prefill_rate", |arg| arg.default_value("5000")))]
#[command(mut_arg("events_per_s", |arg| arg.default_value("10")))]
// conversations start afresh: long histories would take most of the minute to be read for the first time
#[command(mut_arg("head_start", |arg| arg.default_value("0")))]
pub(crate) struct DemoArgs {
    /// the router; without it, the binary beside this one
    #[arg(long)]
    ramjet: Option<PathBuf>,
    /// real seconds for both halves together
    #[arg(long, default_value_t = 40.0)]
    seconds: f64,
    #[command(flatten)]
    params: Params,
    #[command(flatten)]
    shape: Shape,
}

/// The command.
pub(crate) async fn run(args: DemoArgs) -> Result<(), String> {
    let half = args.seconds / 2.0;
    let pace = Pace { warmup: half * WARM_SHARE, duration: half * (1.0 - WARM_SHARE) };
    swarm::check(&args.shape)?;
    crate::load::check(&pace, args.params.time_scale)?;
    let program = program(args.ramjet.clone())?;
    println!(
        "{REPLICAS} simulated engines, {} coding agents, time x{}; all times below are the engines' own.",
        args.shape.developers, args.params.time_scale
    );
    let ours = half_of(&args, &pace, &program, Policy::Default, "ramjet's default routing").await?;
    let load = half_of(&args, &pace, &program, Policy::Load, "least-loaded routing").await?;
    println!("\n{}", verdict(&ours, &load));
    Ok(())
}

async fn half_of(args: &DemoArgs, pace: &Pace, program: &Path, policy: Policy, title: &str) -> Result<Report, String> {
    let fleet = Fleet::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), REPLICAS, "sim", &args.params).await?;
    let engines: Vec<String> = fleet.engines.iter().map(|engine| engine.url()).collect();
    let router = Router::start(program, policy, &engines, &[]).await?;
    println!("\n{}", headline(title, &router.admin));
    let target = Target::of(&[router.url()], Spread::Sticky)?;
    let scale = args.params.time_scale;
    let course = Course { target, model: args.params.model.clone(), time_scale: scale };
    let load = swarm::start(&args.shape, &course, ramp(pace));
    let mut screen = Screen::default();
    let mut from = 0.0;
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    ticks.tick().await;
    let end = (pace.warmup + pace.duration) * 1e3 * scale;
    while load.board.now() < end {
        ticks.tick().await;
        let now = load.board.now();
        if now < pace.warmup * 1e3 * scale {
            from = now;
        }
        let recent = load.board.report((now - WINDOW_S * 1e3 * scale).max(0.0), now);
        screen.show(&Second { at: now / scale / 1e3, report: recent, engines: EngineStats::all(&engines).await });
    }
    let to = load.board.now();
    let board = load.stop();
    for (kind, n) in board.failures() {
        println!("failed {n} times: {kind}");
    }
    Ok(board.report(from, to))
}

/// What runs, and where it can be watched.
fn headline(title: &str, admin: &str) -> String {
    format!("{title}; dashboard: http://{admin}/")
}

/// What is known in one second.
struct Second {
    at: f64,
    report: Report,
    engines: Vec<EngineStats>,
}

/// Redraws on a terminal, appends elsewhere.
#[derive(Default)]
struct Screen {
    drawn: usize,
}

impl Screen {
    fn show(&mut self, second: &Second) {
        let mut out = std::io::stdout().lock();
        let text = if out.is_terminal() {
            let table = table(second);
            let text = if self.drawn > 0 { format!("\x1b[{}A\x1b[J{table}", self.drawn) } else { table.clone() };
            self.drawn = table.lines().count();
            text
        } else {
            line(second)
        };
        // a closed stdout must not stop the demonstration before it has cleaned up
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

fn line(second: &Second) -> String {
    let r = &second.report;
    let mut text = format!(
        "{:4.0}s {:5.0} turns/min  TTFT p50 {:6.2} s  cached {:5.1} %  same replica {:5.1} %",
        second.at,
        r.turns_per_min,
        r.ttft[0] / 1e3,
        r.cached_share * 100.0,
        r.same_replica * 100.0
    );
    for (at, engine) in second.engines.iter().enumerate() {
        // writing to a string cannot fail
        let _ =
            write!(text, "  e{at} run {:.0} wait {:.0} kv {:.0}%", engine.running, engine.waiting, engine.kv * 100.0);
    }
    text.push('\n');
    text
}

fn table(second: &Second) -> String {
    let r = &second.report;
    let mut text = format!(
        "  second          {:8.0}\n  turns per min   {:8.0}\n  TTFT p50        {:8.2} s\n  cached share    {:8.1} %\n  same replica    {:8.1} %\n  failures        {:8}\n",
        second.at,
        r.turns_per_min,
        r.ttft[0] / 1e3,
        r.cached_share * 100.0,
        r.same_replica * 100.0,
        r.failures
    );
    for (at, engine) in second.engines.iter().enumerate() {
        let (running, waiting, kv) = (engine.running, engine.waiting, engine.kv * 100.0);
        // writing to a string cannot fail
        let _ = writeln!(text, "  engine {at}        running {running:3.0}   waiting {waiting:3.0}   kv {kv:3.0} %");
    }
    text
}

fn verdict(ours: &Report, load: &Report) -> String {
    let row =
        |name: &str, value: &dyn Fn(&Report) -> String| format!("{name:24} {:>14} {:>14}\n", value(ours), value(load));
    let mut text = format!("{:24} {:>14} {:>14}\n", "", "ramjet", "least loaded");
    text += &row("turns per minute", &|r| format!("{:.0}", r.turns_per_min));
    text += &row("TTFT p50", &|r| format!("{:.2} s", r.ttft[0] / 1e3));
    text += &row("TTFT p95", &|r| format!("{:.2} s", r.ttft[1] / 1e3));
    text += &row("prompt tokens cached", &|r| format!("{:.1} %", r.cached_share * 100.0));
    text += &row("same replica as before", &|r| format!("{:.1} %", r.same_replica * 100.0));
    text += &row("failures", &|r| r.failures.to_string());
    let gain = (share(ours.turns_per_min, load.turns_per_min) - 1.0) * 100.0;
    text += &format!(
        "\n{gain:+.0} % turns per minute, TTFT {:.1} times shorter at the median",
        share(load.ttft[0], ours.ttft[0])
    );
    text.extend([ours, load].iter().find_map(|report| report.warnings().first().map(|warning| format!("\n{warning}"))));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dashboard_can_be_opened_from_the_headline() {
        assert_eq!(headline("least-loaded routing", "[::1]:9"), "least-loaded routing; dashboard: http://[::1]:9/");
    }

    #[test]
    fn verdict_names_the_gain() {
        let report = |turns_per_min, ttft| Report { turns_per_min, ttft: [ttft; 3], ..Report::default() };
        let text = verdict(&report(120.0, 500.0), &report(100.0, 1000.0));
        assert!(text.contains("+20 % turns per minute, TTFT 2.0 times shorter"), "{text}");
    }
}
