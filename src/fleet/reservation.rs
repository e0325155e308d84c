//! The share of a replica's load that one request holds, from the choice to the end of its attempt.

use super::clock::Clock;
use super::gate::Permit;
use super::replica::Replica;
use super::steps::{self, Change, Seen, Steps, note};
use crate::policy::backlog::Ticket;
use crate::policy::progress::Expected;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A share of a replica: units of load and a place in its backlog. Given back on drop, whatever the way out: success,
/// failure, a client that left, a panic that unwinds.
#[derive(Debug)]
pub struct Reservation {
    replica: Arc<Replica>,
    units: u32,
    ticket: Ticket,
    clock: Clock,
    read: Option<PromptRead>,
    /// Its room, where there are limits. Given back after the load, which the next request looks at.
    permit: Option<Permit>,
    /// When it began.
    began: f64,
    /// Whether it is one of the few that a replica gets on trial.
    is_trial: bool,
    /// Who is told what becomes of it, and whose it is.
    told: Option<(Steps, u64)>,
}

/// What is reserved.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// Units of load.
    pub units: u32,
    /// Expected time to read the prompt.
    pub prefill_ms: f64,
    /// The same, if nothing of it were held.
    pub whole_ms: f64,
    /// Expected time to generate the answer.
    pub decode_ms: f64,
    /// Whether its first token will be seen.
    pub streams: bool,
    /// Whether it generates at all.
    pub generates: bool,
}

/// The moment of the first token.
#[derive(Clone, Copy, Debug)]
struct PromptRead {
    took_ms: f64,
    at: f64,
    prefilled_ms: f64,
    decoding: usize,
}

/// What a finished request reported, in tokens.
#[derive(Clone, Copy, Debug)]
pub struct Reported {
    /// Tokens of the prompt.
    pub prompt: u64,
    /// Those that came from the cache, if that is known.
    pub cached: Option<u64>,
    /// Generated tokens, if known.
    pub output: Option<u64>,
}

impl Reservation {
    /// Reserves a share of `replica`.
    pub fn new(replica: Arc<Replica>, share: Share, clock: Clock) -> Self {
        // relaxed: the counters publish nothing but themselves; the booking lock orders choices
        replica.load.fetch_add(share.units, Relaxed);
        replica.inflight.fetch_add(1, Relaxed);
        let is_trial = replica.is_on_trial();
        if is_trial {
            replica.trials.fetch_add(1, Relaxed);
        }
        let began = clock.now();
        let Share { units, prefill_ms, whole_ms, decode_ms, streams, generates } = share;
        let ticket = {
            let work = &mut *replica.work.lock();
            let ticket = work.backlog.begin_with(began, (prefill_ms, whole_ms), streams);
            if generates {
                work.watch.begin(ticket, began, Expected { prefill_ms, whole_ms, decode_ms, streams });
            }
            ticket
        };
        Reservation { replica, units, ticket, clock, read: None, permit: None, began, is_trial, told: None }
    }

    /// The same, for this request; what becomes of it are steps.
    #[must_use]
    pub(super) fn telling(mut self, steps: &Steps, request: u64) -> Self {
        self.told = Some((steps.clone(), request));
        self
    }

    /// This has become of it.
    fn note(&self, what: steps::Share) {
        if let Some((_, request)) = self.told {
            note(|| Change::Reserved(request, what));
        }
    }

    /// The same, with its room.
    #[must_use]
    pub fn within(mut self, permit: Option<Permit>) -> Self {
        self.permit = permit;
        self
    }

    /// Gives the share back and keeps the room.
    pub fn into_permit(mut self) -> Option<Permit> {
        self.permit.take()
    }

    /// Where it is.
    pub fn replica(&self) -> &Arc<Replica> {
        &self.replica
    }

    /// Whether its prompt is read.
    pub fn is_read(&self) -> bool {
        self.read.is_some()
    }

    /// When it began, in milliseconds on the fleet's clock.
    pub fn began(&self) -> f64 {
        self.began
    }

    /// The prompt is read: the next one's turn begins, and what is left to do here is decoding.
    pub fn first_token(&mut self) {
        let _step = self.told.as_ref().map(|(steps, _)| steps.begin(&self.clock));
        self.note(steps::Share::Read);
        let (now, heard) = (self.clock.now(), self.replica.heard());
        let work = &mut *self.replica.work.lock();
        work.watch.heard_by(heard);
        let backlog = &mut work.backlog;
        if let Some(read) = backlog.first_token(self.ticket, now) {
            work.watch.first_token(self.ticket, now, read.turn_ms);
            let (prefilled_ms, decoding) = (backlog.prefilled_ms(), backlog.decoding());
            self.read = Some(PromptRead { took_ms: read.took_ms, at: now, prefilled_ms, decoding });
        }
    }

    /// The answer turned out to be one whose first token cannot be seen.
    pub fn shows_no_token(&mut self) {
        let _step = self.told.as_ref().map(|(steps, _)| steps.begin(&self.clock));
        self.note(steps::Share::Silent);
        let work = &mut *self.replica.work.lock();
        work.backlog.shows_no_token(self.ticket);
        work.watch.shows_no_token(self.ticket);
    }

    /// All of its answer is generated, though not passed on yet: nobody waits for it any more.
    pub fn is_done(&mut self) {
        let _step = self.told.as_ref().map(|(steps, _)| steps.begin(&self.clock));
        self.note(steps::Share::Done);
        self.replica.work.lock().backlog.end(self.ticket, self.clock.now());
    }

    /// It was answered, with nothing generated.
    pub fn is_answered(&mut self) {
        self.replica.work.lock().watch.is_answered(self.ticket);
    }

    /// Whether its answer, which shows no token, is taken for being generated; see [`Watch::may_generate`].
    ///
    /// [`Watch::may_generate`]: crate::policy::progress::Watch::may_generate
    pub fn may_generate(&self) -> bool {
        self.replica.work.lock().watch.may_generate(self.ticket, self.clock.now())
    }

    /// Only one unit is left to do.
    pub fn shrink(&mut self) {
        let _step = self.told.as_ref().map(|(steps, _)| steps.begin(&self.clock));
        self.note(steps::Share::Shrunk);
        let surplus = self.units.saturating_sub(1);
        self.replica.load.fetch_sub(surplus, Relaxed);
        self.units -= surplus;
    }

    /// The answer has ended well: the replica's rates are learned from it.
    #[expect(clippy::cast_precision_loss, reason = "tokens of a request and sequences of a batch fit a float")]
    pub fn learn(&mut self, reported: Reported) {
        let Some(read) = self.read.take() else { return };
        let _step = self.told.as_ref().map(|(steps, _)| steps.begin(&self.clock));
        let (now, mut seen) = (self.clock.now(), Seen::default());
        let work = &mut *self.replica.work.lock();
        if let Some(cached) = reported.cached {
            seen.prefill = Some((reported.prompt.saturating_sub(cached) as f64, cached as f64, read.took_ms));
        }
        if let Some(tokens) = reported.output.filter(|t| *t >= 8) {
            // what others' prompts took meanwhile did not go into these tokens
            let stalled = work.backlog.prefilled_ms() - read.prefilled_ms;
            let took = now - read.at;
            let between = (read.decoding + work.backlog.decoding()).div_ceil(2);
            // where prompts were being read most of the time, what is left says nothing: they share the engine's steps
            if stalled <= took / 2.0 {
                seen.step = Some((between.max(1) as f64, (took - stalled) / (tokens - 1) as f64));
            }
        }
        seen.teach(&mut work.rates);
        if self.told.is_some() {
            note(|| Change::Rates(self.replica.id, seen));
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let _step = self.told.as_ref().map(|(steps, _)| steps.begin(&self.clock));
        self.note(steps::Share::Freed);
        self.replica.load.fetch_sub(self.units, Relaxed);
        let was_last = self.replica.inflight.fetch_sub(1, Relaxed) == 1;
        if self.is_trial {
            self.replica.trials.fetch_sub(1, Relaxed);
        }
        let (now, heard) = (self.clock.now(), self.replica.heard());
        if was_last {
            self.replica.emptying.is_idle(now);
        }
        let work = &mut *self.replica.work.lock();
        work.backlog.end(self.ticket, now);
        work.watch.heard_by(heard);
        work.watch.end(self.ticket, now);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::spec;
    use super::*;
    use crate::types::ReplicaId;
    use proptest::prelude::*;

    fn replica() -> Arc<Replica> {
        Arc::new(Replica::new(ReplicaId(0), spec("r")))
    }

    fn share(units: u32) -> Share {
        Share { units, prefill_ms: 10.0, whole_ms: 10.0, decode_ms: 10.0, streams: true, generates: true }
    }

    #[test]
    fn a_panic_gives_the_units_back() {
        let r = replica();
        let inner = r.clone();
        let panicked = std::thread::spawn(move || {
            let _held = Reservation::new(inner, share(5), Clock::default());
            panic!("on purpose");
        });
        assert!(panicked.join().is_err());
        assert_eq!((r.load(), r.inflight()), (0, 0));
    }

    proptest! {
        #[test]
        fn any_interleaving_returns_the_counters_to_zero(ops in prop::collection::vec((0u8..3, 1u32..9), 0..60)) {
            let (r, clock) = (replica(), Clock::default());
            let mut held = Vec::new();
            for (op, n) in ops {
                match op {
                    0 => held.push(Reservation::new(r.clone(), share(n), clock.clone())),
                    1 => if let Some(h) = held.last_mut() { h.first_token(); h.shrink() },
                    _ => drop(if held.is_empty() { None } else { Some(held.swap_remove(n as usize % held.len())) }),
                }
                prop_assert_eq!(r.load(), held.iter().map(|h| h.units).sum::<u32>());
                prop_assert_eq!(r.inflight() as usize, held.len());
            }
            held.clear();
            let left = r.prospect(clock.now());
            prop_assert_eq!((r.load(), r.inflight(), left.waiting + left.decoding), (0, 0, 0.0));
            prop_assert!(r.signs(clock.now()).is_none());
        }
    }
}
