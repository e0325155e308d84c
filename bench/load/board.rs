//! What the clients of a load write down as they go, and one request from its due time to its place on the board.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use super::Course;
use super::batch::{Batch, Batches};
use super::body::Pieces;
use super::client::{Client, Reply};
use super::report::{Report, Sample};
use crate::num::{as_millis, millis};

/// See the module header.
#[derive(Debug)]
pub(crate) struct Board {
    started: Instant,
    time_scale: f64,
    open: AtomicUsize,
    /// guards growing lists; held for a push or a copy
    notes: Mutex<Notes>,
}

#[derive(Debug, Default)]
struct Notes {
    samples: Vec<Sample>,
    failures: Vec<(f64, String)>,
    resent: usize,
    batches: Vec<Batch>,
    /// samples name replicas by their place here
    replicas: Vec<String>,
    /// the replica of each session's last turn
    last: HashMap<u64, usize>,
}

/// A request that has been sent and not ended.
struct Open<'a>(&'a AtomicUsize);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        // ordering: a count that guards nothing
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request about to be sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    /// requests of one session could meet their cache again
    pub(crate) session: u64,
    /// counts what rotates over several targets
    pub(crate) number: u64,
    /// the virtual ms at which it should leave
    pub(crate) due: f64,
}

impl Board {
    pub(crate) fn new(time_scale: f64) -> Arc<Self> {
        let (started, open, notes) = (Instant::now(), AtomicUsize::new(0), Mutex::default());
        Arc::new(Self { started, time_scale, open, notes })
    }

    /// Virtual ms since the load started.
    pub(crate) fn now(&self) -> f64 {
        as_millis(self.started.elapsed()) * self.time_scale
    }

    /// Returns at this virtual time.
    pub(crate) async fn until(&self, due: f64) {
        let at = self.started + millis(due / self.time_scale);
        tokio::time::sleep_until(at.into()).await;
    }

    /// Requests that have been sent and not ended.
    pub(crate) fn unfinished(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Sends a request and writes down what came of it; `None` when it failed.
    pub(crate) async fn ask(&self, course: &Course, client: &mut Client, turn: Turn, body: &Pieces) -> Option<Reply> {
        let late = self.now() - turn.due;
        let seat = course.target.seat(turn.session, turn.number);
        self.open.fetch_add(1, Ordering::Relaxed);
        let open = Open(&self.open);
        let reply = client.chat(seat.host(), body).await;
        drop((open, seat));
        self.notes.lock().resent += std::mem::take(&mut client.resent);
        match reply {
            Ok(reply) => {
                self.note(turn.session, late, &reply);
                Some(reply)
            }
            Err(error) => {
                self.failed(error);
                None
            }
        }
    }

    /// Notes a failure that happened now.
    pub(crate) fn failed(&self, kind: String) {
        let at = self.now();
        self.notes.lock().failures.push((at, kind));
    }

    /// Notes requests that were asked together and have all been answered.
    pub(crate) fn batch(&self, batch: Batch) {
        self.notes.lock().batches.push(batch);
    }

    fn note(&self, session: u64, late: f64, reply: &Reply) {
        let (ended, scale, usage) = (self.now(), self.time_scale, reply.usage.unwrap_or_default());
        let mut notes = self.notes.lock();
        let replica = reply.replica.as_ref().map(|name| notes.place(name));
        let last = replica.and_then(|replica| notes.last.insert(session, replica));
        notes.samples.push(Sample {
            ended,
            late,
            ttft: reply.ttft_ms * scale,
            total: reply.total_ms * scale,
            prompt: usage.prompt,
            cached: usage.cached,
            simulated: usage.simulated_total,
            same_replica: last.map(|last| Some(last) == replica),
            replica,
        });
    }

    /// Figures of the turns that ended in this virtual time.
    pub(crate) fn report(&self, from: f64, to: f64) -> Report {
        let notes = self.notes.lock();
        let failures = notes.failures.iter().filter(|(at, _)| *at >= from && *at < to).count();
        let mut turns = vec![0; notes.replicas.len()];
        for replica in notes.samples.iter().filter(|s| s.ended >= from && s.ended < to).filter_map(|s| s.replica) {
            turns[replica] += 1;
        }
        let mut replicas: Vec<(String, usize)> = notes.replicas.iter().cloned().zip(turns).collect();
        replicas.sort();
        let batches = Batches::of(&notes.batches, from, to);
        Report { failures, resent: notes.resent, replicas, batches, ..Report::of(&notes.samples, from, to) }
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

impl Notes {
    fn place(&mut self, name: &str) -> usize {
        self.replicas.iter().position(|known| known == name).unwrap_or_else(|| {
            self.replicas.push(name.to_owned());
            self.replicas.len() - 1
        })
    }
}
