//! `ramjet-bench swarm`: developers with coding agents, in a closed loop.
//!
//! A closed loop shows what routing is for: an agent takes its next turn when the last one has ended, so better routing
//! appears as more turns, not only as shorter waits. What developers say is scripted by a seed ([`script`]); what they
//! send is pieced together, not serialised ([`talk`]); what came back is measured in virtual time ([`report`]).

pub(crate) mod client;
pub(crate) mod report;
pub(crate) mod script;
mod sse;
mod talk;
pub(crate) mod target;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Args;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::task::JoinSet;

use crate::num::{as_millis, millis, share};
use client::{Client, Reply, authority};
use report::{EngineUse, Report, Sample};
use script::Shape;
use talk::Talk;
use target::{Spread, Target};

/// A failed turn is tried again after this much virtual time.
const AFTER_FAILURE_MS: f64 = 1000.0;

/// How long and how fast; shared by `swarm`, `compare` and `demo`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Pace {
    /// measured real seconds
    #[arg(long, default_value_t = 30.0)]
    pub(crate) duration: f64,
    /// real seconds before that, left out of the figures
    #[arg(long, default_value_t = 15.0)]
    pub(crate) warmup: f64,
}

/// Coding-agent load on one target.
#[derive(Args, Debug)]
pub(crate) struct SwarmArgs {
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
    #[command(flatten)]
    pace: Pace,
    #[command(flatten)]
    shape: Shape,
}

/// What the developers write down as they go.
#[derive(Debug)]
pub(crate) struct Board {
    pub(crate) started: Instant,
    pub(crate) time_scale: f64,
    /// guards two growing lists; held for a push or a copy
    notes: Mutex<Notes>,
}

#[derive(Debug, Default)]
struct Notes {
    samples: Vec<Sample>,
    failures: Vec<(f64, String)>,
    resent: usize,
}

impl Board {
    /// Virtual ms since the load started.
    pub(crate) fn now(&self) -> f64 {
        as_millis(self.started.elapsed()) * self.time_scale
    }

    /// Figures of the turns that ended in this virtual time.
    pub(crate) fn report(&self, from: f64, to: f64) -> Report {
        let notes = self.notes.lock();
        let failures = notes.failures.iter().filter(|(at, _)| *at >= from && *at < to).count();
        Report { failures, resent: notes.resent, ..Report::of(&notes.samples, from, to) }
    }

    /// How often each kind of failure was seen, from start to end.
    pub(crate) fn failures(&self) -> BTreeMap<String, usize> {
        let mut kinds = BTreeMap::new();
        for (_, kind) in &self.notes.lock().failures {
            *kinds.entry(kind.clone()).or_insert(0) += 1;
        }
        kinds
    }
}

/// A load that runs; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Swarm {
    pub(crate) board: Arc<Board>,
    tasks: JoinSet<()>,
}

impl Swarm {
    /// Starts every developer; their first turns are spread over `ramp`.
    pub(crate) fn start(shape: &Shape, target: Target, model: &str, time_scale: f64, ramp: Duration) -> Self {
        let board = Arc::new(Board { started: Instant::now(), time_scale, notes: Mutex::default() });
        let (mut harnesses, mut repositories): (HashMap<usize, Bytes>, HashMap<usize, Bytes>) = Default::default();
        let mut tasks = JoinSet::new();
        for developer in 0..shape.developers {
            let (harness, repository) = (shape.harness_of(developer), shape.repository_of(developer));
            let base = [
                harnesses.entry(harness).or_insert_with(|| shape.harness(harness)).clone(),
                repositories.entry(repository).or_insert_with(|| shape.repository(repository)).clone(),
            ];
            let person = Developer {
                number: developer,
                shape: shape.clone(),
                target: target.clone(),
                model: model.to_owned(),
                board: Arc::clone(&board),
                last: None,
            };
            let delay = ramp.mul_f64(developer as f64 / shape.developers as f64);
            tasks.spawn(async move {
                tokio::time::sleep(delay).await;
                person.work(base).await;
            });
        }
        Self { board, tasks }
    }

    /// Ends the load at once.
    pub(crate) fn stop(mut self) -> Arc<Board> {
        self.tasks.abort_all();
        Arc::clone(&self.board)
    }
}

struct Developer {
    number: usize,
    shape: Shape,
    target: Target,
    model: String,
    board: Arc<Board>,
    /// the replica of the last turn
    last: Option<String>,
}

impl Developer {
    async fn work(mut self, base: [Bytes; 2]) {
        let mut client = Client::default();
        let mut talk = Talk::start(&self.shape, self.number, base);
        for number in 0.. {
            let turn = self.shape.turn(self.number, number);
            talk.make_room(&self.shape, turn.user_bytes);
            talk.user(&self.shape.user_text(self.number, number, turn.user_bytes));
            let body = talk.body(&self.model, turn.max_tokens);
            loop {
                let seat = self.target.seat(self.number, number);
                let reply = client.chat(seat.host(), &body).await;
                drop(seat);
                self.board.notes.lock().resent += std::mem::take(&mut client.resent);
                match reply {
                    Ok(reply) => {
                        talk.assistant(&reply.answer);
                        self.note(reply);
                        break;
                    }
                    Err(error) => {
                        let at = self.board.now();
                        self.board.notes.lock().failures.push((at, error));
                        self.pause(AFTER_FAILURE_MS).await;
                    }
                }
            }
            self.pause(turn.think_ms).await;
        }
    }

    async fn pause(&self, virtual_ms: f64) {
        tokio::time::sleep(millis(virtual_ms / self.board.time_scale)).await;
    }

    fn note(&mut self, reply: Reply) {
        let scale = self.board.time_scale;
        let same_replica = self.last.as_ref().zip(reply.replica.as_ref()).map(|(last, now)| last == now);
        let usage = reply.usage.unwrap_or_default();
        let sample = Sample {
            ended: self.board.now(),
            ttft: reply.ttft_ms * scale,
            total: reply.total_ms * scale,
            prompt: usage.prompt,
            cached: usage.cached,
            simulated: usage.simulated_total,
            same_replica,
        };
        self.last = reply.replica;
        self.board.notes.lock().samples.push(sample);
    }
}

/// Counters of one engine at one moment, from its `/stats`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct EngineStats {
    pub(crate) running: f64,
    pub(crate) waiting: f64,
    pub(crate) kv: f64,
    busy_ms: f64,
    virtual_ms: f64,
    late_ms: f64,
    steps: f64,
}

impl EngineStats {
    /// Asks every engine; one that does not answer counts as idle.
    pub(crate) async fn all(urls: &[String]) -> Vec<Self> {
        let mut all = Vec::new();
        for url in urls {
            let host = authority(url).unwrap_or_default();
            let body = Client::default().get(host, "/stats").await.unwrap_or_default();
            let json: Value = serde_json::from_slice(&body).unwrap_or_default();
            let number = |key: &str| json.get(key).and_then(Value::as_f64).unwrap_or(0.0);
            all.push(Self {
                running: number("running"),
                waiting: number("waiting"),
                kv: share(number("kv_blocks"), number("kv_capacity")),
                busy_ms: number("busy_ms"),
                virtual_ms: number("virtual_ms"),
                late_ms: number("late_ms"),
                steps: number("steps"),
            });
        }
        all
    }

    /// What happened between two moments.
    fn since(&self, before: &Self) -> EngineUse {
        let late = self.late_ms * self.steps - before.late_ms * before.steps;
        EngineUse {
            busy: share(self.busy_ms - before.busy_ms, self.virtual_ms - before.virtual_ms),
            kv: self.kv,
            late_ms: share(late, self.steps - before.steps),
        }
    }
}

/// Warm-up, then the measured time; the load ends with it.
pub(crate) async fn measure(swarm: Swarm, pace: &Pace, engines: &[String]) -> (Report, Arc<Board>) {
    tokio::time::sleep(Duration::from_secs_f64(pace.warmup)).await;
    let (from, before) = (swarm.board.now(), EngineStats::all(engines).await);
    tokio::time::sleep(Duration::from_secs_f64(pace.duration)).await;
    let (to, after) = (swarm.board.now(), EngineStats::all(engines).await);
    let board = swarm.stop();
    let uses = after.iter().zip(&before).map(|(after, before)| after.since(before)).collect();
    (Report { engines: uses, ..board.report(from, to) }, board)
}

/// Half of the warm-up: all agents starting at once would be a herd that no team makes.
pub(crate) fn ramp(pace: &Pace) -> Duration {
    Duration::from_secs_f64(pace.warmup / 2.0)
}

/// Refuses what makes no sense.
pub(crate) fn check(shape: &Shape, pace: &Pace, time_scale: f64) -> Result<(), String> {
    let fine = |x: f64| x.is_finite() && x >= 0.0;
    if shape.developers == 0 {
        return Err("--developers 0: at least one is needed".to_owned());
    }
    if !fine(time_scale) || time_scale == 0.0 {
        return Err(format!("--time-scale {time_scale}: must be above 0"));
    }
    if !fine(pace.duration) || !fine(pace.warmup) || !fine(shape.think) || !fine(shape.head_start) {
        return Err("--duration, --warmup, --think and --head-start must not be negative".to_owned());
    }
    Ok(())
}

/// The command.
pub(crate) async fn run(args: SwarmArgs) -> Result<(), String> {
    check(&args.shape, &args.pace, args.time_scale)?;
    let target = Target::of(&args.target, args.spread)?;
    let swarm = Swarm::start(&args.shape, target, &args.model, args.time_scale, ramp(&args.pace));
    let (report, board) = measure(swarm, &args.pace, &args.engine_stats).await;
    let failures = board.failures();
    if args.json {
        let mut json = report.to_json();
        json["target"] = args.target_name.into();
        json["failure_kinds"] = failures.into_iter().map(|(kind, n)| (kind, Value::from(n))).collect();
        println!("{json}");
    } else {
        print!("{}\n{}", args.target_name, report.to_text());
        for (kind, n) in failures {
            println!("  failed {n} times: {kind}");
        }
    }
    if report.turns == 0 { Err("no turn was completed in the measured time".to_owned()) } else { Ok(()) }
}
