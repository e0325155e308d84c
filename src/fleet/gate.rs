//! Limits on what is in flight, for the whole router and for each replica, and who waits for room.
//!
//! A [`Permit`] is one request's room; it is given back on drop and handed at once to whoever is next: under the same lock,
//! so that no room is ever free that somebody in the queue could use, and whoever comes new overtakes nobody. One that
//! is handed room does not have to use that replica: it is placed anew, and may exchange its permit for another replica
//! that has room. A gate of turns limits nothing but how soon one follows another at a replica.
//!
//! **Invariant: who waits holds no room**, so whatever waits for whatever, running requests end and the queue moves on.

use super::clock::Clock;
use crate::policy::queue::{Drain, FairQueue, Line, Ticket, retry_after};
use crate::types::ReplicaId;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot::{self, Receiver, Sender};

/// Replicas that would do, the best first.
pub type Wanted = SmallVec<[ReplicaId; 8]>;

/// What the operator allows. [`Gate::new`] makes a gate of it if that is less than everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Requests in flight at all replicas together.
    pub inflight: Option<u32>,
    /// Requests in flight at one replica.
    pub per_replica: Option<u32>,
    /// Requests that wait.
    pub queue: usize,
}

/// The limits and what they leave.
#[derive(Debug)]
pub struct Gate {
    /// Held for a few comparisons; for a look at everybody who waits where nothing suits them.
    state: Mutex<State>,
    clock: Clock,
}

#[derive(Debug)]
struct State {
    room: Room,
    queue: FairQueue<Waiter>,
    drain: Drain,
}

/// What is in flight.
#[derive(Debug)]
struct Room {
    inflight: u32,
    /// By slot; those that are missing have nothing.
    at: Vec<u32>,
    most: u32,
    most_at: u32,
    /// By slot: until when nobody is let in, on the gate's clock; those that are missing do not rest.
    rests: Vec<f64>,
}

#[derive(Debug)]
struct Waiter {
    wanted: Wanted,
    tell: Sender<ReplicaId>,
}

/// Room for one request at one replica. Given back on drop.
#[derive(Debug)]
pub struct Permit {
    gate: Arc<Gate>,
    replica: ReplicaId,
}

/// A place in the queue. Left on drop; room that was handed to it meanwhile goes to the next.
#[derive(Debug)]
pub struct Waiting {
    gate: Arc<Gate>,
    line: Line,
    ticket: Ticket,
    told: Receiver<ReplicaId>,
    /// Its room has become a permit.
    is_over: bool,
}

/// How a request stands at the gate.
#[derive(Debug)]
pub enum Standing {
    /// It has just come.
    New,
    /// It was let in before and needs room once more: it waits before the others of its session.
    Returning,
    /// It has room.
    Inside(Permit),
    /// It waits.
    Waiting(Waiting),
}

/// What the gate says.
#[derive(Debug)]
pub enum Entry {
    /// There is room at the wanted replica of this place in the list.
    In(usize, Permit),
    /// There is none; the request waits.
    Wait(Waiting),
    /// There is none, not even in the queue.
    Full,
}

impl Gate {
    /// A gate with nothing in flight; `None` when nothing is limited.
    pub fn new(limits: Limits, clock: Clock) -> Option<Arc<Self>> {
        if limits.inflight.is_none() && limits.per_replica.is_none() {
            return None;
        }
        Some(Self::of(limits, clock))
    }

    /// One that lets one after the other go to each replica; whoever it lets in says when the next one may. Nobody is turned
    /// away.
    pub fn of_turns(clock: Clock) -> Arc<Self> {
        Self::of(Limits { inflight: None, per_replica: Some(1), queue: usize::MAX }, clock)
    }

    fn of(limits: Limits, clock: Clock) -> Arc<Self> {
        let (most, most_at) = most(limits);
        let room = Room { inflight: 0, at: Vec::new(), most, most_at, rests: Vec::new() };
        let state = State { room, queue: FairQueue::new(limits.queue), drain: Drain::default() };
        Arc::new(Gate { state: Mutex::new(state), clock })
    }

    /// Lets nobody go to `replica` for so many milliseconds from now on; who waits hears of it when somebody looks again.
    pub fn rest(&self, replica: ReplicaId, ms: f64) {
        let until = self.clock.now() + ms;
        let rests = &mut self.state.lock().room.rests;
        if rests.len() <= replica.index() {
            rests.resize(replica.index() + 1, 0.0);
        }
        rests[replica.index()] = until;
    }

    /// Asks for room at one of `wanted`, the best first; who has none waits in `line`.
    pub fn enter(self: &Arc<Self>, wanted: Wanted, line: Line, standing: Standing) -> Entry {
        match standing {
            Standing::New => self.come(wanted, line, false),
            Standing::Returning => self.come(wanted, line, true),
            Standing::Inside(permit) => self.come_inside(wanted, line, permit),
            Standing::Waiting(waiting) => self.look_again(wanted, waiting),
        }
    }

    fn come(self: &Arc<Self>, wanted: Wanted, line: Line, is_known: bool) -> Entry {
        let now = self.clock.now();
        let state = &mut *self.state.lock();
        if let Some(place) = state.room.find(&wanted, now) {
            let replica = wanted[place];
            state.room.take(replica);
            return Entry::In(place, Permit { gate: self.clone(), replica });
        }
        let (tell, told) = oneshot::channel();
        let waiter = Waiter { wanted, tell };
        let ticket = match is_known {
            true => Some(state.queue.push_again(line, waiter)),
            false => state.queue.push(line, waiter),
        };
        state.notice(now);
        match ticket {
            Some(ticket) => Entry::Wait(Waiting { gate: self.clone(), line, ticket, told, is_over: false }),
            None => Entry::Full,
        }
    }

    /// Keeps the room that a request has, or changes it for room at a better replica, or gives it up.
    fn come_inside(self: &Arc<Self>, wanted: Wanted, line: Line, mut permit: Permit) -> Entry {
        match self.exchange(&wanted, &mut permit) {
            Some(place) => Entry::In(place, permit),
            None => {
                // what it has suits it no longer; it may suit somebody who waits
                drop(permit);
                self.come(wanted, line, true)
            }
        }
    }

    /// The place in the list where the permit is for now.
    fn exchange(&self, wanted: &Wanted, permit: &mut Permit) -> Option<usize> {
        let now = self.clock.now();
        let state = &mut *self.state.lock();
        let place = wanted.iter().position(|id| *id == permit.replica || state.room.fits(*id, now))?;
        if wanted[place] != permit.replica {
            state.room.give_back(permit.replica);
            permit.replica = wanted[place];
            state.room.take(permit.replica);
            state.hand_out(now);
        }
        Some(place)
    }

    /// A request that waits has had another look at the fleet.
    fn look_again(self: &Arc<Self>, wanted: Wanted, mut waiting: Waiting) -> Entry {
        {
            let now = self.clock.now();
            let state = &mut *self.state.lock();
            if let Some(waiter) = state.queue.get_mut(waiting.line, waiting.ticket) {
                waiter.wanted.clone_from(&wanted);
                state.hand_out(now);
                state.notice(now);
            }
        }
        match waiting.try_take() {
            Some(permit) => self.come_inside(wanted, waiting.line, permit),
            None => Entry::Wait(waiting),
        }
    }

    /// Changes the limits. Who is in stays in; room that there is now is handed out at once.
    pub fn change(&self, limits: Limits) {
        let now = self.clock.now();
        let state = &mut *self.state.lock();
        (state.room.most, state.room.most_at) = most(limits);
        state.queue.resize(limits.queue);
        state.hand_out(now);
        state.notice(now);
    }

    /// Requests that wait.
    pub fn waiting(&self) -> usize {
        self.state.lock().queue.len()
    }

    /// Seconds after which a client that is turned away may come again.
    pub fn retry_after(&self) -> u32 {
        let now = self.clock.now();
        let state = self.state.lock();
        retry_after(state.queue.len(), state.drain.per_second(now))
    }
}

/// The most in all and at one replica.
fn most(limits: Limits) -> (u32, u32) {
    (limits.inflight.unwrap_or(u32::MAX), limits.per_replica.unwrap_or(u32::MAX))
}

impl State {
    /// Hands all room that somebody waits for to whoever is next.
    fn hand_out(&mut self, now: f64) {
        let State { room, queue, .. } = self;
        // a full router suits nobody: not worth a look at everybody
        while room.inflight < room.most {
            let Some(waiter) = queue.take(|waiter| room.find(&waiter.wanted, now).is_some()) else { return };
            let Some(place) = room.find(&waiter.wanted, now) else { return };
            let replica = waiter.wanted[place];
            // who has left is not in the queue any longer
            if waiter.tell.send(replica).is_ok() {
                room.take(replica);
            }
        }
    }

    fn give_back(&mut self, replica: ReplicaId, now: f64) {
        self.room.give_back(replica);
        self.hand_out(now);
    }

    /// Whether somebody waits, for the pace at which the queue goes.
    fn notice(&mut self, now: f64) {
        self.drain.waits(now, !self.queue.is_empty());
    }
}

impl Room {
    fn fits(&self, replica: ReplicaId, now: f64) -> bool {
        let slot = replica.index();
        self.at.get(slot).is_none_or(|n| *n < self.most_at) && self.rests.get(slot).is_none_or(|until| *until <= now)
    }

    fn find(&self, wanted: &Wanted, now: f64) -> Option<usize> {
        if self.inflight >= self.most {
            return None;
        }
        wanted.iter().position(|id| self.fits(*id, now))
    }

    fn take(&mut self, replica: ReplicaId) {
        let slot = replica.index();
        if slot >= self.at.len() {
            self.at.resize(slot + 1, 0);
        }
        self.inflight += 1;
        self.at[slot] += 1;
    }

    fn give_back(&mut self, replica: ReplicaId) {
        self.inflight -= 1;
        self.at[replica.index()] -= 1;
    }
}

impl Permit {
    /// Where the room is.
    pub fn replica(&self) -> ReplicaId {
        self.replica
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let now = self.gate.clock.now();
        let mut state = self.gate.state.lock();
        state.drain.ended(now);
        state.give_back(self.replica, now);
        state.notice(now);
    }
}

impl Waiting {
    /// Waits for room, for at most so long; `None` when that time is over, and the place is kept.
    pub async fn room(&mut self, at_most: Duration) -> Option<Permit> {
        // room that comes at the last moment counts: the channel is asked first
        match tokio::time::timeout(at_most, &mut self.told).await {
            Ok(Ok(replica)) => Some(self.permit(replica)),
            Ok(Err(_)) | Err(_) => None,
        }
    }

    /// The room that was handed to it, if any was.
    pub fn try_take(&mut self) -> Option<Permit> {
        self.told.try_recv().ok().map(|replica| self.permit(replica))
    }

    fn permit(&mut self, replica: ReplicaId) -> Permit {
        self.is_over = true;
        Permit { gate: self.gate.clone(), replica }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let now = self.gate.clock.now();
        let mut state = self.gate.state.lock();
        let left = state.queue.remove(self.line, self.ticket);
        if left.is_none()
            && let Ok(replica) = self.told.try_recv()
        {
            state.give_back(replica, now);
        }
        state.notice(now);
    }
}

#[cfg(test)]
mod tests;
