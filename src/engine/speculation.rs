//! The guard of speculative decoding: reads engines' own counters again and again, and keeps new requests away from a
//! replica whose drafts are never accepted. What the counters mean is `policy::speculation`'s business.
//!
//! | engine | proposed | accepted |
//! |---|---|---|
//! | vLLM | `vllm:spec_decode_num_draft_tokens_total` | `vllm:spec_decode_num_accepted_tokens_total` |
//! | SGLang | `sglang:spec_verify_calls_total` | `sglang:spec_accept_length`: 1 means none, 0 not measured |
//!
//! Counters of several engines in one process are added up, unless the replica is one data-parallel rank of it. An
//! instance is told by `process_start_time_seconds`, which vLLM shows unless it runs several API servers; else by
//! counters that fell.
//!
//! **Quarantine** is sticky: it is written down (`records`) before it is published, so that no restart of ramjet forgets
//! it, and it ends when the engine instance has changed, or when an operator says so. An instance that counts no drafts
//! any more, as one that was started without them, is another one. Where the file cannot be believed, every guarded
//! replica is kept away until an operator lets it in again, those too that come later. Replicas of engines without such
//! counters are never kept away for them. **One process writes at a time**: where one follows another, it reads what that
//! one wrote last when it takes over, and only then begins.

use super::capacity::METRICS;
use super::exchange::{Question, exchange};
use super::records::{ALL, Quarantined, Records, UNKNOWN, free, is_held};
use super::samples::{is_of_rank, samples};
use crate::fleet::Fleet;
use crate::fleet::replica::Replica;
use crate::fleet::transport::connector;
use crate::policy::health::FenceReason;
use crate::policy::speculation::{Accepted, Finding, Guard, Limits, Reading};
use crate::types::{GuardMode, ReplicaId};
use async_trait::async_trait;
use http::Method;
use parking_lot::Mutex;
use pingora_core::connectors::http::Connector;
use pingora_core::server::ShutdownWatch;
use pingora_core::services::background::BackgroundService;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How often it looks whose turn it is.
const LOOK: Duration = Duration::from_millis(200);

/// How it guards.
#[derive(Clone, Debug)]
pub struct SpeculationSpec {
    /// What follows.
    pub mode: GuardMode,
    /// Between two readings of a replica. llama.cpp stops noticing clients that leave when it is read more than once a
    /// second.
    pub interval: Duration,
    /// How long one may take.
    pub timeout: Duration,
    /// When there is a verdict.
    pub limits: Limits,
    /// Where quarantines are written down.
    pub state_file: PathBuf,
    /// The user that this process becomes, if it becomes another one.
    pub user: Option<u32>,
}

/// The guard. Its copies are one.
#[derive(Clone)]
pub struct SpeculationGuard(Arc<Shared>);

struct Shared {
    fleet: Arc<Fleet>,
    spec: SpeculationSpec,
    connector: Connector,
    records: Records,
    /// Guards what is written down; held while the file is written.
    ledger: Mutex<Ledger>,
    watched: Mutex<HashMap<ReplicaId, Watched>>,
    /// Whether this process is the one that serves.
    serves: watch::Sender<bool>,
}

#[derive(Default)]
struct Ledger {
    held: Quarantined,
    /// Why the file cannot be believed.
    broken: Option<String>,
    /// Whether another process writes it.
    is_anothers: bool,
}

/// One replica between two readings.
#[derive(Clone, Copy, Debug)]
struct Watched {
    guard: Guard,
    /// When it is read next, in milliseconds on the fleet's clock.
    due: f64,
    /// Whether it is being read: an older page after a newer one would look like another instance.
    is_read: bool,
}

impl SpeculationGuard {
    /// A guard over the replicas of `fleet`. What was written down counts at once, also for replicas that come later.
    pub fn new(fleet: Arc<Fleet>, spec: SpeculationSpec) -> Self {
        let records = Records::at(spec.state_file.clone(), spec.user);
        let ledger = Mutex::new(if spec.mode == GuardMode::Quarantine { read(&records) } else { Ledger::default() });
        let (connector, watched) = (connector(), Mutex::default());
        let serves = watch::Sender::new(false);
        let guard = SpeculationGuard(Arc::new(Shared { fleet, spec, connector, records, ledger, watched, serves }));
        // weakly: the fleet is held by the guard
        let own = Arc::downgrade(&guard.0);
        guard.0.fleet.welcome(move |replica| {
            if let Some(guard) = own.upgrade() {
                guard.watched.lock().remove(&replica.id);
                guard.arm(replica);
            }
        });
        guard
    }

    /// This process serves from now on; if it `follows` another one, that may have written something meanwhile.
    pub fn begin(&self, follows: bool) {
        let shared = &self.0;
        if follows && shared.spec.mode == GuardMode::Quarantine {
            *shared.ledger.lock() = read(&shared.records);
            for replica in shared.fleet.members().iter() {
                let reason = shared.written_of(replica);
                if reason != replica.quarantined() {
                    replica.quarantine(reason, shared.fleet.clock().now());
                }
            }
        }
        shared.serves.send_replace(true);
    }

    /// Another process serves from now on. When this returns, nothing is written any more.
    pub fn end(&self) {
        self.0.ledger.lock().is_anothers = true;
    }

    /// An operator lets new requests in again; whether they were kept away.
    ///
    /// # Errors
    /// It cannot be written down, and stays as it was.
    pub fn release(&self, replica: &Replica) -> std::io::Result<bool> {
        if replica.quarantined().is_none() {
            return Ok(false);
        }
        self.0.write(|held| free(held, replica.name()))?;
        self.0.watched.lock().remove(&replica.id);
        log::warn!("replica {}: an operator ended its quarantine", replica.name());
        replica.quarantine(None, self.0.fleet.clock().now());
        Ok(true)
    }
}

impl Shared {
    /// Why a replica is kept away, by what is written down.
    fn written_of(&self, replica: &Replica) -> Option<FenceReason> {
        let ledger = self.ledger.lock();
        let is_held = is_held(&ledger.held, replica.name());
        let broken = ledger.broken.is_some().then_some(FenceReason::SpeculationRecord);
        is_held.then_some(FenceReason::Speculation).or(broken)
    }

    /// What is written down of a replica counts.
    fn arm(&self, replica: &Replica) {
        let reason = self.written_of(replica);
        if reason.is_some() {
            replica.quarantine(reason, self.fleet.clock().now());
        }
    }

    /// Changes what is written down: first on the disk. A file that could not be believed is kept aside, and as nobody
    /// knows whom it named, all are held from now on but those that an operator releases.
    fn write(&self, change: impl FnOnce(&mut Quarantined)) -> std::io::Result<()> {
        let mut ledger = self.ledger.lock();
        if ledger.is_anothers {
            return Err(std::io::Error::other("another process serves now"));
        }
        let mut held = ledger.held.clone();
        if ledger.broken.is_some() {
            held.insert(ALL.to_owned(), UNKNOWN);
            self.records.set_aside()?;
        }
        change(&mut held);
        self.records.store(&held)?;
        *ledger = Ledger { held, ..Ledger::default() };
        Ok(())
    }

    /// Replicas whose turn it is, with the next one set.
    fn due(&self) -> Vec<Arc<Replica>> {
        let now = self.fleet.clock().now();
        let pause = self.spec.interval.as_secs_f64() * 1000.0;
        let mut watched = self.watched.lock();
        let mut turn = |replica: &Replica| {
            let entry = watched.entry(replica.id).or_insert_with(|| {
                self.arm(replica);
                Watched { guard: Guard::default(), due: now, is_read: false }
            });
            let is_due = entry.due <= now && !entry.is_read;
            if is_due {
                (entry.due, entry.is_read) = (now + pause, true);
            }
            is_due
        };
        self.fleet.replicas().iter().filter(|replica| turn(replica)).cloned().collect()
    }

    async fn read(self: Arc<Self>, replica: Arc<Replica>) {
        let question = Question { method: Method::GET, path: METRICS, body: String::new() };
        let asked = exchange(&self.connector, &replica, question);
        if let Ok(Ok((200..=299, page))) = tokio::time::timeout(self.spec.timeout, asked).await {
            let (shared, replica) = (self.clone(), replica.clone());
            // the file is written with a sync, which takes its time
            let _ended = tokio::task::spawn_blocking(move || shared.look_at(&replica, &page)).await;
        }
        if let Some(entry) = self.watched.lock().get_mut(&replica.id) {
            entry.is_read = false;
        }
    }

    fn look_at(&self, replica: &Replica, page: &[u8]) {
        let (page, rank) = (String::from_utf8_lossy(page), replica.spec.role.rank);
        let is_held = replica.quarantined() == Some(FenceReason::Speculation);
        let seen = reading(&page, rank);
        if let Some(reading) = if is_held { seen.or_else(|| of_none(&page)) } else { seen } {
            self.take_in(replica, reading);
        }
    }

    fn take_in(&self, replica: &Replica, reading: Reading) {
        if self.ledger.lock().is_anothers {
            return;
        }
        if replica.quarantined() == Some(FenceReason::Speculation) {
            return self.look_for_another(replica, reading);
        }
        let finding = {
            let mut watched = self.watched.lock();
            let Some(entry) = watched.get_mut(&replica.id) else { return };
            entry.guard.on(reading, self.spec.limits)
        };
        match finding {
            Finding::Nothing => {}
            Finding::Barren(n) => log::info!("replica {}: no draft was accepted, {n} windows in a row", replica.name()),
            Finding::Cleared => log::info!("replica {}: drafts are accepted again", replica.name()),
            Finding::Renewed => log::info!("replica {}: another engine instance counts from now on", replica.name()),
            Finding::Verdict(n) => {
                log::warn!("replica {}: {n} windows of drafts, and none was ever accepted", replica.name());
                if self.spec.mode == GuardMode::Quarantine {
                    self.hold(replica, reading);
                }
            }
        }
    }

    fn hold(&self, replica: &Replica, reading: Reading) {
        // an operator decides what becomes of a file that cannot be believed
        let is_broken = self.ledger.lock().broken.is_some();
        let written = match is_broken {
            true => Ok(()),
            false => self.write(|held| _ = held.insert(replica.name().to_owned(), reading)),
        };
        if is_broken {
            // for when he has
            self.ledger.lock().held.insert(replica.name().to_owned(), reading);
        }
        if let Err(e) = written {
            // kept away all the same; the next start of ramjet will not know
            log::error!("{}: {e}: the quarantine is not written down", self.records.path().display());
            self.ledger.lock().held.insert(replica.name().to_owned(), reading);
        }
        replica.quarantine(Some(FenceReason::Speculation), self.fleet.clock().now());
    }

    /// Ends a quarantine if another engine instance is there.
    fn look_for_another(&self, replica: &Replica, reading: Reading) {
        let then = self.ledger.lock().held.get(replica.name()).copied();
        if !then.is_some_and(|then| reading.is_of_another(&then)) {
            return;
        }
        if let Err(e) = self.write(|held| free(held, replica.name())) {
            // the next start of ramjet will find that out again
            log::error!("{}: {e}", self.records.path().display());
            free(&mut self.ledger.lock().held, replica.name());
        }
        if let Some(entry) = self.watched.lock().get_mut(&replica.id) {
            entry.guard = Guard::default();
            // where this instance begins to be judged
            entry.guard.on(reading, self.spec.limits);
        }
        log::info!("replica {}: another engine instance is there, its quarantine ends", replica.name());
        replica.quarantine(None, self.fleet.clock().now());
    }
}

#[async_trait]
impl BackgroundService for SpeculationGuard {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        if self.0.spec.mode == GuardMode::Off {
            return;
        }
        let mut serves = self.0.serves.subscribe();
        tokio::select! {
            // it cannot fail: the guard has the sender
            _ = serves.wait_for(|serves| *serves) => {}
            _ = shutdown.changed() => return,
        }
        loop {
            for replica in self.0.due() {
                tokio::spawn(self.0.clone().read(replica));
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                () = self.0.fleet.until_retired() => return,
                _ = shutdown.changed() => return,
            }
        }
    }
}

/// What is written down.
fn read(records: &Records) -> Ledger {
    match records.load() {
        Ok(held) => Ledger { held, ..Ledger::default() },
        Err(why) => {
            log::error!(
                "{}: {why}; all replicas are kept away until an operator releases them",
                records.path().display()
            );
            Ledger { broken: Some(why), ..Ledger::default() }
        }
    }
}

/// What an engine, or one data-parallel rank of it, counted, from its metrics; `None` where it does not tell.
fn reading(page: &str, rank: Option<u32>) -> Option<Reading> {
    let has_rank = rank.is_some_and(|rank| samples(page).any(|s| is_of_rank(s.labels, rank)));
    let of = |name: &'static str| {
        let own = move |labels: &str| !has_rank || rank.is_some_and(|rank| is_of_rank(labels, rank));
        samples(page).filter(move |s| s.name == name && own(s.labels)).map(|s| s.value)
    };
    let total = |name: &'static str| of(name).reduce(|a, b| a + b);
    let highest = |name: &'static str| of(name).reduce(f64::max);
    let started = samples(page).filter(|s| s.name == "process_start_time_seconds").map(|s| s.value).reduce(f64::max);
    if let Some(drafted) = total("vllm:spec_decode_num_draft_tokens_total") {
        let accepted = Accepted::Total(total("vllm:spec_decode_num_accepted_tokens_total").unwrap_or(0.0));
        return Some(Reading { started, drafted, accepted });
    }
    let drafted = total("sglang:spec_verify_calls_total")?;
    let length = highest("sglang:spec_accept_length").filter(|length| *length > 0.0)?;
    Some(Reading { started, drafted, accepted: Accepted::Lately(length > 1.0) })
}

/// The same of an engine that counts no drafts, or has not measured what came of them, if the page is an engine's: such
/// counters never go away while a process lives.
fn of_none(page: &str) -> Option<Reading> {
    let is_engines =
        |name: &str| ["vllm:", "sglang:", "process_start_time_seconds"].iter().any(|p| name.starts_with(p));
    if !samples(page).any(|s| is_engines(s.name)) {
        return None;
    }
    let of = |name: &'static str| samples(page).filter(move |s| s.name == name).map(|s| s.value);
    let drafted = of("vllm:spec_decode_num_draft_tokens_total").chain(of("sglang:spec_verify_calls_total")).sum();
    let started = of("process_start_time_seconds").reduce(f64::max);
    Some(Reading { started, drafted, accepted: Accepted::Lately(false) })
}

#[cfg(test)]
mod tests;
