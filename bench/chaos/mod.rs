//! `ramjet-bench chaos`: mixed traffic on engines that reset, stall, refuse, say 503, are slow, speak garbage and cut their
//! answers, and clients that leave; every byte is checked.
//!
//! What is asked and answered follows from a number (`plan`), so a client knows what it must get, and an engine what it must
//! be sent. Engines keep a ledger of every attempt (`ledger`), which shows what was generated twice and why. At the end
//! every gauge must be at rest and the router's memory flat (`watch`). Sockets are spoken to by hand (`wire`), as a library
//! would mend or hide just what is looked for.

pub(crate) mod client;
mod engine;
mod judge;
mod ledger;
mod plan;
pub(crate) mod warm;
mod watch;
mod wire;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use parking_lot::Mutex;
use serde_json::json;
use tokio::task::JoinSet;

use crate::memory::Memory;
use crate::num::{Rng, millis};
use crate::router::{Router, program};
use client::{Connection, Shared};
use engine::Fleet;
use judge::Tally;
use ledger::Ledger;

/// Every so many clients speak HTTP/2, and so many of those share a connection.
const H2_EVERY: usize = 3;
const H2_SHARE: usize = 4;
/// Violations that are printed; more say nothing more.
const SHOWN: usize = 20;

/// Mixed traffic on engines that go wrong.
#[derive(Args, Debug)]
pub(crate) struct ChaosArgs {
    /// the router; without it, the binary beside this one
    #[arg(long)]
    ramjet: Option<PathBuf>,
    /// real seconds
    #[arg(long, default_value_t = 60.0)]
    duration: f64,
    /// clients that ask one request after the other; 24 leave a machine with two cores room
    #[arg(long, default_value_t = 24)]
    clients: usize,
    /// how many engines
    #[arg(long, default_value_t = 3)]
    engines: usize,
    /// the same seed asks, answers and goes wrong alike
    #[arg(long, default_value_t = 7)]
    seed: u64,
}

/// What all clients share.
struct Round {
    seed: u64,
    host: String,
    until: Instant,
    next: AtomicU64,
    ledger: Ledger,
    tally: Mutex<Tally>,
}

/// The command.
pub(crate) async fn run(args: ChaosArgs) -> Result<(), String> {
    let program = program(args.ramjet.clone())?;
    let ledger = Ledger::default();
    let fleet = Fleet::start(args.engines.max(1), args.seed, &ledger).await?;
    let router = Router::start_with(&program, &fleet.urls, settings(), &[]).await?;
    let host = router.url().trim_start_matches("http://").to_owned();
    if watch::judges(args.duration) {
        println!("{}", warm::up(&host, "chaos").await?);
    }
    let began = Instant::now();
    let round = Arc::new(Round {
        seed: args.seed,
        host,
        until: began + Duration::from_secs_f64(args.duration),
        next: AtomicU64::new(0),
        ledger: ledger.clone(),
        tally: Mutex::default(),
    });
    let mut clients = start(&round, args.clients);
    let mut memory = Memory::default();
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            ended = clients.join_next() => match ended {
                Some(Ok(())) => {}
                Some(Err(error)) => ledger.violation(format!("a client of the bench ended: {error}")),
                None => break,
            },
            _ = seconds.tick() => memory.look(router.process(), began.elapsed().as_secs_f64()),
        }
    }
    let cpu = router.cpu_seconds() / began.elapsed().as_secs_f64();
    let rest = watch::rest(&router.admin).await;
    let page = client::get(&router.admin, "/metrics").await?;
    ledger.judge(|id| plan::ask(args.seed, id).kind);
    summary(&args, &round, &page, cpu);
    let requests = round.tally.lock().requests;
    verdict(&ledger, watch::judge(&memory, requests), rest)
}

fn start(round: &Arc<Round>, count: usize) -> JoinSet<()> {
    let mut clients = JoinSet::new();
    let mut shared: &'static Shared = Box::leak(Box::default());
    for number in 0..count {
        let is_h2 = number.is_multiple_of(H2_EVERY);
        if is_h2 && (number / H2_EVERY).is_multiple_of(H2_SHARE) {
            shared = Box::leak(Box::new(Shared::new(&round.ledger)));
        }
        let connection = if is_h2 { Connection::H2(shared) } else { Connection::H1(None) };
        clients.spawn(client(Arc::clone(round), number, connection));
    }
    clients
}

/// Short time-outs, so that silence is found in a run of seconds, yet thrice what the judge takes for a machine that is
/// busy; and an index that is full within a minute, so that memory that grows is a leak.
fn settings() -> serde_json::Value {
    json!({
        "timeouts": {"connect": "500ms", "first_byte": "3s", "idle_read": "3s"},
        "health": {
            "readiness": {"interval": "500ms", "timeout": "500ms"},
            "generation": {"interval": "1s", "timeout": "1s", "suppress_after_success": "2s"},
            "errors": {"window": "5s", "failures": 20, "pause": "300ms"},
            "slow_start": {"window": "1s"},
        },
        "routing": {"index_memory": "1MiB"},
    })
}

/// Asks until the time is over.
async fn client(round: Arc<Round>, number: usize, mut connection: Connection) {
    let mut rng = Rng::of(&[round.seed, number as u64, 8]);
    while Instant::now() < round.until {
        // ordering: only distinctness matters
        let id = round.next.fetch_add(1, Ordering::Relaxed);
        let ask = plan::ask(round.seed, id);
        let outcome = connection.ask(&round.host, id, &ask).await;
        round.tally.lock().add(round.seed, id, &ask, &outcome, &round.ledger);
        if let (Connection::H1(kept), true) = (&mut connection, rng.chance(0.1)) {
            *kept = None;
        }
        tokio::time::sleep(millis(rng.between(0.0, 300.0))).await;
    }
}

/// Prints what was tried and what came of it.
fn summary(args: &ChaosArgs, round: &Round, page: &str, cpu: f64) {
    let (ledger, tally) = (&round.ledger, round.tally.lock());
    let mib = tally.bytes >> 20;
    println!("{:.0} s, seed {}, {} engines, {} clients", args.duration, args.seed, args.engines, args.clients);
    println!("requests: {}, {mib} MiB of answers checked, router {:.0} % of a core", tally.requests, cpu * 100.0);
    println!("ended: {}", list(&tally.endings));
    println!("attempts by fault: {}", list(&ledger.faults()));
    println!("repeated under the rule: {}", list(&ledger.repeated()));
    match tally.left(watch::total(page, "ramjet_client_disconnects_total", ""), ledger) {
        Ok(text) => println!("{text}"),
        Err(text) => ledger.violation(text),
    }
    if !tally.endings.contains_key("whole") || !tally.endings.contains_key("cut, as by the engine") {
        ledger.violation("nothing was tried".to_owned());
    }
}

fn list<T: std::fmt::Display>(counts: &BTreeMap<T, u64>) -> String {
    counts.iter().map(|(word, n)| format!("{word} {n}")).collect::<Vec<_>>().join(", ")
}

/// Prints how the router was left, and everything that must not be.
fn verdict(ledger: &Ledger, (text, grows): (String, bool), rest: Result<Duration, String>) -> Result<(), String> {
    println!("{text}");
    match rest {
        Ok(after) => println!("at rest after {:.1} s: every gauge is 0", after.as_secs_f64()),
        Err(what) => ledger.violation(what),
    }
    if grows {
        ledger.violation("memory grows".to_owned());
    }
    let violations = ledger.violations();
    violations.iter().take(SHOWN).for_each(|what| println!("  {what}"));
    println!("violations: {}", violations.len());
    if violations.is_empty() { Ok(()) } else { Err(format!("{} violations", violations.len())) }
}
