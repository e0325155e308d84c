//! The choice, its reservation and its claim as one step.

use super::Fleet;
use super::claim::ClaimGuard;
use super::gate::{Entry, Gate, Limits, Permit, Standing, Waiting, Wanted};
use super::landing::Leader;
use super::pins::put_first;
use super::reservation::Reservation;
use super::selection::{CacheAware, RouteKey, encode, offer_chain, take_decision};
use super::setbacks::Spared;
use super::steps::{Change, Full, note, note_choice};
use crate::policy::flight::hold_ms;
use crate::policy::hint::Hint;
use crate::policy::queue::{Line, pass_over};
use crate::policy::room;
use crate::policy::select::{Decision, Ranked, RouteRequest};
use crate::prefix::fingerprint::Ends;
use crate::types::{Priority, ReplicaId};
use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use pingora_load_balancing::LoadBalancer;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// Kinds of requests that take turns on their own.
const KINDS: usize = 64;

/// Chooses among the members of a load balancer.
pub struct Router {
    fleet: Arc<Fleet>,
    balancer: Arc<LoadBalancer<CacheAware>>,
    /// Held from the first look at loads and overlaps until the choice is reserved and claimed, so that of two equal
    /// prompts the second one sees where the first one goes. Done under it: one walk and one
    /// claim of a chain, and a look at each candidate.
    booking: Mutex<()>,
    /// How many of each kind were placed.
    turns: [AtomicU64; KINDS],
    /// Limits on what is in flight, if there are any.
    gate: ArcSwapOption<Gate>,
    /// Guests, who take turns in being read.
    guests: Arc<Gate>,
}

/// A prompt to place.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'a> {
    /// The request's number: it tells its steps from those of others.
    pub request: u64,
    /// Its fingerprints; empty when there is nothing to go by.
    pub chain: &'a Arc<[u64]>,
    /// Where its turns end.
    pub ends: Ends,
    /// Size of the body in bytes.
    pub body_bytes: u64,
    /// Canonical bytes of the prompt; 0 when it was not read.
    pub prompt_bytes: u64,
    /// The model asked for.
    pub model: Option<&'a str>,
    /// Whether the answer will be streamed.
    pub streams: bool,
    /// The session that it belongs to.
    pub session: Option<Hint>,
    /// The replica that alone holds what the request names.
    pub pinned: Option<ReplicaId>,
}

/// Where a prompt goes first, and what is held for it there.
#[derive(Debug)]
pub struct Placed {
    /// The ranking and the reason.
    pub decision: Decision,
    /// Its share of the first replica.
    pub reservation: Reservation,
    /// Its claim on the prefix index, or what it is kept back for.
    pub next: Next,
}

/// Why a prompt has no place.
#[derive(Debug)]
pub enum Unplaced {
    /// There is no candidate.
    Nowhere,
    /// All candidates are full, and it waits.
    Waits(Waiting),
    /// It is a guest, and others are read before it.
    Guest(Waiting),
    /// All are, and so is the queue.
    QueueFull,
}

/// A request at the gate.
#[derive(Debug)]
pub struct Asking {
    /// Where it waits, if it must.
    pub line: Line,
    /// Whether it has room, or waits, already.
    pub standing: Standing,
    /// The same of its turn as a guest; `None` if it has had that.
    pub turn: Option<Standing>,
}

/// What a placed prompt does next.
#[derive(Debug)]
pub enum Next {
    /// It goes to its replica.
    Go(ClaimGuard),
    /// It waits for its leader, at most so long, and claims then.
    Wait(Leader, Duration),
}

impl Router {
    /// A router over the members of `balancer`, whose `Config` is `fleet`.
    pub fn new(fleet: Arc<Fleet>, balancer: Arc<LoadBalancer<CacheAware>>) -> Self {
        let guests = Gate::of_turns(fleet.clock());
        Router {
            fleet,
            balancer,
            booking: Mutex::new(()),
            turns: [const { AtomicU64::new(0) }; KINDS],
            gate: ArcSwapOption::empty(),
            guests,
        }
    }

    /// The same router under `limits`.
    #[must_use]
    pub fn limited(self, limits: Limits) -> Self {
        self.limit(limits);
        self
    }

    /// Puts it under `limits` from now on. Where there were none, those that are in flight already do not count.
    pub fn limit(&self, limits: Limits) {
        match self.gate() {
            Some(gate) => gate.change(limits),
            None => self.gate.store(Gate::new(limits, self.fleet.clock())),
        }
    }

    /// The gate, where anything is limited.
    pub fn gate(&self) -> Option<Arc<Gate>> {
        self.gate.load_full()
    }

    /// The fleet.
    pub fn fleet(&self) -> &Arc<Fleet> {
        &self.fleet
    }

    /// Ranks the replicas for a prompt (one that alone can answer goes first) and reserves its share of the first one;
    /// claims its prefix there, unless it is to wait for one that reads it, which it may for `patience_ms`.
    ///
    /// # Errors
    /// There is no candidate, or none that has room.
    pub fn place(&self, prompt: Prompt<'_>, patience_ms: f64) -> Result<Placed, Unplaced> {
        self.place_as(prompt, patience_ms, Asking::default())
    }

    /// The same for a request that comes to the gate as `asking` says. Replicas without room are passed over.
    ///
    /// # Errors
    /// There is no candidate, or none that has room.
    pub fn place_as(&self, prompt: Prompt<'_>, patience_ms: f64, asking: Asking) -> Result<Placed, Unplaced> {
        let _step = self.fleet.step();
        let (previous, session) = (prompt.ends.previous, prompt.session);
        // a prompt without fingerprints may not have been read
        let bytes = if prompt.chain.is_empty() { prompt.body_bytes } else { prompt.prompt_bytes };
        let request = RouteRequest {
            body_bytes: prompt.body_bytes,
            prompt_bytes: prompt.prompt_bytes,
            blocks: u32::try_from(prompt.chain.len()).unwrap_or(u32::MAX),
            tokens: self.fleet.tokens_after(previous, bytes, prompt.model),
            salt: self.turn(prompt),
        };
        let key = encode(RouteKey { request, model: prompt.model, previous, session });
        let _booking = self.booking.lock();
        offer_chain(prompt.chain);
        // for the decision alone: of no backend the balancer makes a copy
        let _none = self.balancer.select_with(&key, 0, |_, _| true);
        let mut decision = take_decision().ok_or(Unplaced::Nowhere)?;
        let spared = match prompt.pinned {
            Some(replica) => {
                put_first(&mut decision, replica);
                Spared::default()
            }
            None => self.fleet.spare(&mut decision, prompt.ends),
        };
        let Asking { line, standing, turn } = asking;
        let passed = match turn {
            Some(turn) => self.await_turn(&mut decision, prompt, request, (line.priority, turn))?,
            None => Full::new(),
        };
        let (mut full, permit) = self.admit(&mut decision, prompt.pinned, (line, standing))?;
        let first = *decision.ranked.first().ok_or(Unplaced::Nowhere)?;
        full.extend(passed);
        full.retain(|id| *id != first.id);
        let reservation = self.fleet.reserve(first, prompt, request.tokens).ok_or(Unplaced::Nowhere)?.within(permit);
        let next = match self.leader(&decision, prompt, patience_ms) {
            Some((leader, at_most)) => Next::Wait(leader, at_most),
            None => Next::Go(self.fleet.claim_first(first.id, prompt, request.tokens)),
        };
        let waits = matches!(next, Next::Wait(..));
        note_choice(prompt, &decision, (request.salt, request.tokens.prompt), (spared, &full, waits));
        Ok(Placed { decision, reservation, next })
    }

    /// Lets a guest go on when it is its turn at a replica that would do, which then goes first; see [`room`]. Those before
    /// which it goes.
    fn await_turn(
        &self,
        decision: &mut Decision,
        prompt: Prompt<'_>,
        request: RouteRequest,
        (priority, turn): (Priority, Standing),
    ) -> Result<Full, Unplaced> {
        let Some(first) = decision.ranked.first().filter(|_| decision.crowded) else { return Ok(Full::new()) };
        let absence = self.fleet.residency.read().absence(prompt.ends.previous, first.id);
        let Some((before, strain)) = absence else { return Ok(Full::new()) };
        if !room::is_guest(before.min(request.tokens.prompt) - first.held, strain) {
            return Ok(Full::new());
        }
        let wanted = wanted(decision, prompt.pinned);
        let is_idle = |id: &&ReplicaId| self.fleet.replica(**id).is_some_and(|r| r.inflight() == 0);
        // where nobody is, nobody has to be left in peace
        wanted.iter().filter(is_idle).for_each(|id| self.guests.rest(*id, 0.0));
        let replicas = count(wanted.len());
        // one that nothing names is a session of its own
        let line = Line { priority, session: prompt.session.map_or(request.salt, |session| session.key) };
        match self.guests.enter(wanted, line, turn) {
            Entry::In(place, turn) => {
                let passed = decision.ranked.iter().take(place).map(|r| r.id).collect();
                pass_over(decision, place);
                let price = decision.ranked.of(turn.replica()).map(|r| r.price).unwrap_or_default();
                let waiting = count(self.guests.waiting()) / replicas;
                self.guests.rest(turn.replica(), room::turn_ms(price.queue, price.prefill, waiting));
                Ok(passed)
            }
            Entry::Wait(waiting) => Err(Unplaced::Guest(waiting)),
            // its queue has no end
            Entry::Full => Err(Unplaced::QueueFull),
        }
    }

    /// Room at the best replica that has any, which then goes first.
    fn admit(
        &self,
        decision: &mut Decision,
        pinned: Option<ReplicaId>,
        (line, standing): (Line, Standing),
    ) -> Result<(Full, Option<Permit>), Unplaced> {
        let gate = self.gate.load();
        let Some(gate) = &*gate else { return Ok((Full::new(), None)) };
        match gate.enter(wanted(decision, pinned), line, standing) {
            Entry::In(place, permit) => {
                let full = decision.ranked.iter().take(place).map(|r| r.id).collect();
                pass_over(decision, place);
                Ok((full, Some(permit)))
            }
            Entry::Wait(waiting) => Err(Unplaced::Waits(waiting)),
            Entry::Full => Err(Unplaced::QueueFull),
        }
    }

    /// The turn of a prompt among those of its kind: requests of two kinds that alternate must not take turns with each
    /// other, each kind would find the same replica every time.
    fn turn(&self, prompt: Prompt<'_>) -> u64 {
        let kind = xxh3_64(prompt.model.unwrap_or_default().as_bytes()) ^ u64::from(prompt.chain.is_empty());
        let kind = usize::try_from(kind % KINDS as u64).unwrap_or(0);
        self.turns[kind].fetch_add(1, Relaxed)
    }

    /// Reserves and claims what a place in a ranking says, on its replica.
    pub fn take(&self, ranked: Ranked, prompt: Prompt<'_>) -> Option<(Reservation, ClaimGuard)> {
        let _step = self.fleet.step();
        let tokens = self.fleet.tokens_after(prompt.ends.previous, prompt.prompt_bytes, prompt.model);
        let taken = (self.fleet.reserve(ranked, prompt, tokens)?, self.fleet.claim_of(ranked.id, prompt, tokens));
        note(|| Change::Taken(prompt.request, ranked.id));
        Some(taken)
    }

    /// Claims a prompt's prefix on a replica.
    pub fn claim(&self, replica: ReplicaId, prompt: Prompt<'_>) -> ClaimGuard {
        let _step = self.fleet.step();
        note(|| Change::Claimed(prompt.request, replica));
        self.fleet.claim(replica, prompt)
    }

    /// Whom a prompt waits for, and for how long.
    fn leader(&self, decision: &Decision, prompt: Prompt<'_>, patience_ms: f64) -> Option<(Leader, Duration)> {
        let mode = self.fleet.params().flight.mode;
        // whether it could be worth it at all, before anything is looked up
        hold_ms(decision, true, mode, patience_ms)?;
        let number = self.fleet.residency.read().reader(prompt.chain, decision.ranked.first()?.id)?;
        let leader = self.fleet.landings.leader(number)?;
        let wait = hold_ms(decision, leader.streams, mode, patience_ms)?;
        Some((leader, Duration::try_from_secs_f64(wait / 1000.0).ok()?))
    }
}

/// Where a request may go while others are full: to those that are preferred as a group, but what one replica alone holds
/// is waited for.
pub(super) fn wanted(decision: &Decision, pinned: Option<ReplicaId>) -> Wanted {
    let is_first = |id| decision.ranked.first().is_some_and(|r| r.id == id);
    let group = if pinned.is_some_and(is_first) { 1 } else { decision.preferred.max(1) };
    decision.ranked.iter().take(group).map(|r| r.id).collect()
}

fn count(n: usize) -> f64 {
    f64::from(u32::try_from(n).unwrap_or(u32::MAX))
}

impl Default for Asking {
    /// A request that has just come, of no session.
    fn default() -> Self {
        Asking {
            line: Line { priority: Priority::Interactive, session: 0 },
            standing: Standing::New,
            turn: Some(Standing::New),
        }
    }
}

#[cfg(test)]
mod tests;
