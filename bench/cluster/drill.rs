//! Something is killed under load: what breaks, and how soon as much is found in the caches as before.

use std::time::Duration;

use super::{ClusterArgs, Stage, Way};
use crate::load::Load;
use crate::load::client::{Client, authority};
use crate::num::share;
use crate::router::Router;
use crate::swarm::{self, ramp};

/// Real seconds of each line.
const WINDOW: f64 = 2.0;
/// Lines after something has happened.
const LINES: usize = 10;
/// Points by which a share may be lower than before, as parts of one.
const BACK: f64 = 0.02;

/// What is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Drill {
    /// a router, in whose place another one starts ten seconds later
    Router,
    /// the store, which starts again, empty, ten seconds later
    Store,
}

/// Runs it on a group.
pub(super) async fn run(args: &ClusterArgs, drill: Drill) -> Result<(), String> {
    let mut stage = Stage::set(args, Way::Together).await?;
    let course = stage.course(args)?;
    let mut load = swarm::start(&args.shape, &course, ramp(&args.pace));
    load.run_for(args.pace.warmup).await;
    let from = load.board.now();
    load.run_for(args.pace.duration).await;
    let before = load.board.report(from, load.board.now()).cached_share;
    println!("before: {:.1} % of prompt tokens from the caches", before * 100.0);
    match drill {
        Drill::Router => {
            let open = course.target.leave(0);
            drop(stage.routers.remove(0));
            println!("a router is killed, which was answering {open} requests");
        }
        Drill::Store => {
            if let Some(store) = &mut stage.store {
                store.kill();
            }
            println!("the store is killed");
        }
    }
    watch(&mut load, before, LINES / 2).await;
    match drill {
        Drill::Router => {
            let router = stage.router().await?;
            course.target.replace(0, &router.url())?;
            stage.routers.insert(0, router);
            println!("another router starts in its place");
        }
        Drill::Store => {
            if let Some(store) = &mut stage.store {
                store.restart().await?;
            }
            println!("it starts again, empty");
        }
    }
    let begun = tokens(&stage.routers).await?;
    watch(&mut load, before, LINES).await;
    let left = Duration::from_secs(60).saturating_sub(Duration::from_secs_f64(WINDOW * LINES as f64));
    load.run_for(left.as_secs_f64()).await;
    let ended = tokens(&stage.routers).await?;
    for (at, (begun, ended)) in begun.iter().zip(&ended).enumerate() {
        let found = share(ended[1] - begun[1], ended[0] - begun[0]);
        println!("router {at} in the minute since: {:.1} % from the caches", found * 100.0);
    }
    let failures = load.stop().failures();
    println!("failed in all: {}", failures.values().sum::<usize>());
    failures.iter().for_each(|(kind, count)| println!("  {count} times: {kind}"));
    Ok(())
}

async fn watch(load: &mut Load, before: f64, lines: usize) {
    let mut back = None;
    for line in 1..=lines {
        let from = load.board.now();
        load.run_for(WINDOW).await;
        let report = load.board.report(from, load.board.now());
        let after = WINDOW * line as f64;
        println!(
            "  {after:>3.0} s: {:.1} % cached, {} turns, {} failed",
            report.cached_share * 100.0,
            report.turns,
            report.failures
        );
        back = back.or_else(|| (report.cached_share >= before - BACK).then_some(after));
    }
    match back {
        Some(after) => println!("within {:.0} points of before after {after:.0} s", BACK * 100.0),
        None => println!("not within {:.0} points of before", BACK * 100.0),
    }
}

/// Prompt tokens of each router so far, and those that came from the caches.
async fn tokens(routers: &[Router]) -> Result<Vec<[f64; 2]>, String> {
    let mut all = Vec::new();
    for router in routers {
        let page = Client::default().get(authority(&format!("http://{}", router.admin))?, "/metrics").await?;
        let page = String::from_utf8_lossy(&page).into_owned();
        let value = |name: &str| {
            let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|value| value.parse::<f64>().ok()).unwrap_or(0.0)
        };
        all.push(["ramjet_prompt_tokens_total", "ramjet_cached_prompt_tokens_total"].map(value));
    }
    Ok(all)
}
