//! `ramjet-bench stream`: what a router adds to each event of many streams that are open at one time.
//!
//! The engine says in each event when it wrote it, and the client looks at the same clock when it reads it. Both are the
//! same for a stream that comes directly, so the difference between the quantiles is the router's. Targets take turns in
//! every round and have a processor of their own, as in `overhead`.

mod listen;
mod table;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::Value;

use crate::overhead::body::{Asked, request};
use crate::overhead::targets::{Other, Target, Targets, Wanted};
use crate::overhead::usage::Memory;
use crate::overhead::{settings, told};
use listen::{Course, listen};

/// Descriptors besides those of the streams.
const SPARE: u64 = 256;
/// Streams that speak of something else.
const CONVERSATIONS: usize = 64;
/// How long a target may need to let go of its streams before the next one is measured.
const REST: Duration = Duration::from_millis(1500);

/// Many streams at one time.
#[derive(Args, Debug)]
pub(crate) struct StreamArgs {
    /// the router's binary (default: beside this one)
    #[arg(long)]
    ramjet: Option<PathBuf>,
    /// further settings of ramjet, as JSON
    #[arg(long, value_name = "JSON", default_value = "{}", value_parser = settings)]
    settings: Value,
    /// streams at one time
    #[arg(long, value_delimiter = ',', default_value = "100,1000,5000")]
    streams: Vec<usize>,
    /// events a second of all streams together: what the machine can do without being busy all the time
    #[arg(long, default_value_t = 5000.0)]
    events_per_s: f64,
    /// bytes of the body of a request, at most 262144
    #[arg(long, default_value_t = 1024)]
    body: usize,
    /// seconds for which events are counted, once all streams are open
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// streams that are opened in a second
    #[arg(long, default_value_t = 1500.0)]
    opened_per_s: f64,
    /// how often everything is measured
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// how many engines are started
    #[arg(long, default_value_t = 2)]
    engines: usize,
    /// an engine that runs already (with its own --gap); may be repeated
    #[arg(long)]
    engine: Vec<String>,
    /// another router; may be repeated
    #[arg(long, value_name = "NAME=URL[@PID]")]
    other: Vec<Other>,
    /// measure no bare Pingora proxy
    #[arg(long)]
    no_bare: bool,
    /// print JSON instead of the table
    #[arg(long)]
    json: bool,
    /// write JSON to a file, too
    #[arg(long)]
    save: Option<PathBuf>,
}

/// What was seen of one target in one round.
#[derive(Debug, Default, Clone)]
pub(crate) struct Heard {
    pub(crate) events: u64,
    /// streams that did not come, or ended early
    pub(crate) lost: usize,
    pub(crate) seconds: f64,
    /// microseconds from an engine's write to the client's read: p50, p99, p99.9
    pub(crate) latency: [f64; 3],
    /// processor time of the target in seconds
    pub(crate) cpu: f64,
    /// memory before the streams, and with all of them open
    pub(crate) memory: [Memory; 2],
}

/// One target with so many streams: the figures of each round.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) streams: usize,
    pub(crate) target: String,
    pub(crate) rounds: Vec<Heard>,
}

/// Measures and prints.
pub(crate) async fn run(args: StreamArgs) -> Result<(), String> {
    let most = args.streams.iter().max().copied().unwrap_or(0) as u64;
    allow(2 * most + SPARE)?;
    let mut rows = Vec::new();
    for &streams in &args.streams {
        // the pace is the engines', so there are new ones for each number of streams
        let gap = streams as f64 * 1e3 / args.events_per_s;
        let targets = Targets::start(&wanted(&args, gap)).await?;
        let first = rows.len();
        rows.extend(targets.all.iter().map(|t| Row { streams, target: t.name.clone(), rounds: Vec::new() }));
        for round in 0..args.rounds {
            for turn in 0..targets.all.len() {
                let which = (turn + crate::num::to_size(round)) % targets.all.len();
                rows[first + which].rounds.push(listen(course(&args, streams, gap, &targets.all[which])).await?);
                tokio::time::sleep(REST).await;
            }
            eprintln!("{streams} streams, round {} of {}", round + 1, args.rounds);
        }
    }
    told(&table::json(&rows), &table::markdown(&rows), args.json, args.save.as_ref())
}

fn wanted(args: &StreamArgs, gap: f64) -> Wanted {
    Wanted {
        ramjet: args.ramjet.clone(),
        settings: args.settings.clone(),
        engines: args.engine.clone(),
        count: args.engines.max(1),
        gap,
        bare: !args.no_bare,
        others: args.other.clone(),
    }
}

fn course(args: &StreamArgs, streams: usize, gap: f64, target: &Target) -> Course {
    let opening = Duration::from_secs_f64(streams as f64 / args.opened_per_s);
    // a stream speaks a gap after it was opened at the latest
    let settled = opening + Duration::from_secs_f64(gap / 1e3) + Duration::from_millis(500);
    let lasts = Duration::from_secs_f64(args.seconds);
    // more than it can say in that time: streams end when the client has heard enough
    let events = crate::num::size(((settled + lasts).as_secs_f64() * 1e3 / gap.max(0.01)) * 4.0) + 1000;
    let asked = |conversation| Asked { bytes: args.body, conversation, max_tokens: events, stream: true };
    let requests: Arc<[Vec<u8>]> = (0..CONVERSATIONS).map(|n| request(asked(n))).collect();
    Course { address: target.address, tree: target.tree, requests, streams, opening, settled, lasts }
}

/// Lets this process, and whom it starts, have so many descriptors.
fn allow(descriptors: u64) -> Result<(), String> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(|error| error.to_string())?;
    if hard < descriptors {
        return Err(format!("{descriptors} descriptors are needed, and no more than {hard} allowed (ulimit -Hn)"));
    }
    setrlimit(Resource::RLIMIT_NOFILE, soft.max(descriptors), hard).map_err(|error| error.to_string())
}
