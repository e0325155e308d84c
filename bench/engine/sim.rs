//! The clock of one engine: a task that owns the scheduler, feeds it what arrives and hands out what it makes.
//!
//! Real time enters here and nowhere else. Tokens of one stream that come faster than the event rate share an event;
//! first and last tokens never wait. How late the task is against virtual time is measured, because at high time scales
//! a busy machine would otherwise bend the results unseen.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};

use super::fault::Fault;
use super::params::Params;
use super::schedule::{Engine, Job, Stats, Times, Token};
use crate::num::{as_millis, millis};

/// Tokens for one stream since the last event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Delta {
    pub(crate) tokens: usize,
    pub(crate) cached: Option<usize>,
    pub(crate) done: Option<Times>,
}

/// What the HTTP side asks of the task.
#[derive(Debug)]
pub(crate) enum Command {
    /// the reply says whether it was taken; false when the queue is full
    Submit(Job, mpsc::UnboundedSender<Delta>, oneshot::Sender<bool>),
    Cancel(u64),
    Restart,
}

/// Figures of the whole engine; `late` is the mean delay of a step behind its virtual time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Snapshot {
    pub(crate) engine: Stats,
    pub(crate) steps: u64,
    pub(crate) late_ms: f64,
    pub(crate) virtual_ms: f64,
}

/// What the HTTP side and the task share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) name: String,
    pub(crate) params: Params,
    pub(crate) commands: mpsc::UnboundedSender<Command>,
    pub(crate) fault: watch::Sender<Fault>,
    /// inference requests seen, refused ones included
    pub(crate) received: AtomicU64,
    /// guards one small copy
    pub(crate) snapshot: Mutex<Snapshot>,
}

impl Shared {
    /// One more inference request; its number is its id.
    pub(crate) fn next_id(&self) -> u64 {
        // ordering: a counter that guards nothing
        self.received.fetch_add(1, Ordering::Relaxed)
    }

    /// Requests seen so far.
    pub(crate) fn seen(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}

/// Cancels its request when dropped; a request that has ended does not mind.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) id: u64,
    pub(crate) shared: Arc<Shared>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // the task is gone only when the whole process ends
        let _ = self.shared.commands.send(Command::Cancel(self.id));
    }
}

struct Stream {
    tx: mpsc::UnboundedSender<Delta>,
    pending: usize,
    flushed: Instant,
}

struct Task {
    shared: Arc<Shared>,
    engine: Engine,
    streams: HashMap<u64, Stream>,
    started: Instant,
    gap: Duration,
    tokens: Vec<Token>,
    late_sum: f64,
    steps: u64,
}

/// Runs until the process ends or every sender is gone.
pub(crate) async fn run(
    shared: Arc<Shared>,
    mut commands: mpsc::UnboundedReceiver<Command>,
    mut fault: watch::Receiver<Fault>,
) {
    let params = shared.params.clone();
    let gap = millis(1000.0 / params.events_per_s);
    let engine = Engine::new(params);
    let started = Instant::now();
    let streams = HashMap::new();
    let mut task = Task { shared, engine, streams, started, gap, tokens: Vec::new(), late_sum: 0.0, steps: 0 };
    let first = *fault.borrow_and_update();
    task.apply(first);
    loop {
        let wait = task.until_next();
        tokio::select! {
            command = commands.recv() => {
                let Some(command) = command else { return };
                task.advance();
                task.take(command);
                while let Ok(command) = commands.try_recv() {
                    task.take(command);
                }
            }
            changed = fault.changed() => {
                if changed.is_err() { return }
                task.advance();
                let now = *fault.borrow_and_update();
                task.apply(now);
            }
            () = tokio::time::sleep(wait) => task.advance(),
        }
        task.publish();
    }
}

impl Task {
    fn now(&self) -> f64 {
        as_millis(self.started.elapsed()) * self.shared.params.time_scale
    }

    fn until_next(&self) -> Duration {
        match self.engine.next_at() {
            Some(at) => millis((at - self.now()).max(0.0) / self.shared.params.time_scale),
            None => Duration::from_secs(3600),
        }
    }

    fn take(&mut self, command: Command) {
        let now = self.now();
        match command {
            Command::Submit(job, tx, taken) => {
                let full = self.full();
                // whoever asked has left if the reply cannot be sent; its cancel follows
                let _ = taken.send(!full);
                if full {
                    return;
                }
                self.streams.insert(job.id, Stream { tx, pending: 0, flushed: Instant::now() });
                self.engine.submit(now, job);
            }
            Command::Cancel(id) => {
                self.streams.remove(&id);
                self.engine.cancel(now, id);
            }
            Command::Restart => {
                for id in self.engine.restart() {
                    self.streams.remove(&id);
                }
            }
        }
    }

    fn full(&self) -> bool {
        let now = self.engine.stats();
        now.running > 0 && self.shared.params.max_queue.is_some_and(|most| now.waiting >= most)
    }

    fn apply(&mut self, fault: Fault) {
        let now = self.now();
        self.engine.set_frozen(now, fault == Fault::Freeze);
        self.engine.set_slowdown(if let Fault::Slow { factor } = fault { factor } else { 1.0 });
    }

    fn advance(&mut self) {
        let now = self.now();
        let mut tokens = std::mem::take(&mut self.tokens);
        self.engine.advance(now, &mut tokens);
        let real = Instant::now();
        let mut last = f64::NAN;
        for token in tokens.drain(..) {
            if token.at.to_bits() != last.to_bits() {
                last = token.at;
                self.steps += 1;
                self.late_sum += now - token.at;
            }
            self.deliver(token, real);
        }
        self.tokens = tokens;
    }

    fn deliver(&mut self, token: Token, real: Instant) {
        let Some(stream) = self.streams.get_mut(&token.id) else { return };
        stream.pending += 1;
        let urgent = token.cached.is_some() || token.done.is_some();
        if urgent || real.duration_since(stream.flushed) >= self.gap {
            let delta = Delta { tokens: std::mem::take(&mut stream.pending), cached: token.cached, done: token.done };
            stream.flushed = real;
            // a reader that left also sends a cancel
            let _ = stream.tx.send(delta);
        }
        if token.done.is_some() {
            self.streams.remove(&token.id);
        }
    }

    fn publish(&self) {
        *self.shared.snapshot.lock() = Snapshot {
            engine: self.engine.stats(),
            steps: self.steps,
            late_ms: crate::num::share(self.late_sum, self.steps as f64),
            virtual_ms: self.now(),
        };
    }
}
