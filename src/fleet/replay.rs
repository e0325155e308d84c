//! Choices made again from the steps that were written down, under the same rules or others.
//!
//! A fleet of its own lives through the same steps on a clock that is set by hand: what is held, promised and learned is
//! built up anew, and every choice is made by the code that made it then. Under the same rules it comes out the same, each
//! time. Under other rules a request may go elsewhere: then it is held, reserved and read *there*, for as long as it took
//! where it was, and what its engine said of its cache counts for nobody. So a replay tells where requests would have gone
//! and what they would have found, not how long they would have taken.

use super::Fleet;
use super::Rules;
use super::candidates::{Seen, ease};
use super::claim::ClaimGuard;
use super::clock::{Clock, Hand};
use super::pins::put_first;
use super::presumed::suppose;
use super::replica::{Replica, ReplicaSpec, Role};
use super::reservation::Reservation;
use super::router::{Prompt, wanted};
use super::selection::RouteKey;
use super::steps::{Change, Choice, Hold, Seat, Share, Stage, Told};
use crate::policy::flight::FlightParams;
use crate::policy::hint::rendezvous;
use crate::policy::queue::pass_over;
use crate::policy::score::{AffinityParams, LoadParams};
use crate::policy::select::{Decision, Params, RouteRequest};
use crate::types::{Basis, FlightMode, PolicyKind, ReplicaId};
use http::HeaderValue;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Other parameters in place of those that were in force.
pub type Other = Box<dyn Fn(Params) -> Params>;

/// Requests that hold nothing and whose next attempt is waited for.
const REMEMBERED: usize = 1 << 16;

/// Nothing is chosen by these.
const START: Params = Params {
    policy: PolicyKind::Load,
    affinity: AffinityParams { basis: Basis::Relative, cap_blocks: 0, alpha: 0.0 },
    load: LoadParams { unit_bytes: 1, max_units: 1, block_bytes: 1 },
    flight: FlightParams { mode: FlightMode::Off, min_blocks: 0, max_hold_ms: 0.0 },
};

/// A fleet that lives through steps again.
pub struct Replay {
    fleet: Arc<Fleet>,
    hand: Hand,
    /// Requests that have not ended.
    live: HashMap<u64, Live>,
    /// Those of them that hold nothing, oldest first: another attempt may follow.
    over: VecDeque<u64>,
    other: Other,
}

/// A request that has not ended.
struct Live {
    choice: Box<Choice>,
    decision: Decision,
    reservation: Option<Reservation>,
    claim: Option<ClaimGuard>,
    /// Where it is.
    at: ReplicaId,
    /// Whether that is not where it was then.
    moved: bool,
}

/// Where a request went, and what was expected of it there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Went {
    /// The replica.
    pub to: ReplicaId,
    /// Tokens of its prompt that are held there.
    pub held: f64,
    /// The time to its first token, in milliseconds.
    pub ttft_ms: f64,
}

/// One choice, then and again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Again {
    /// The request.
    pub request: u64,
    /// Tokens of its prompt.
    pub prompt: f64,
    /// What was chosen.
    pub then: Went,
    /// What is chosen now; `None` if nobody can be.
    pub now: Option<Went>,
    /// Whether overlaps and loads of all candidates are those that were seen then.
    pub saw_the_same: bool,
}

impl Default for Replay {
    /// The parameters that were in force.
    fn default() -> Self {
        Self::under(Box::new(|params| params))
    }
}

impl Replay {
    /// A fleet without members, under other parameters.
    pub fn under(other: Other) -> Self {
        let (clock, hand) = Clock::manual();
        // what was in force comes before any choice
        let fleet = Fleet::new(Vec::new(), other(START), 0);
        Replay { fleet: Arc::new(fleet.on(clock)), hand, live: HashMap::new(), over: VecDeque::new(), other }
    }

    /// The parameters in place of these.
    pub fn other(&self, params: Params) -> Params {
        (self.other)(params)
    }

    /// What it has come to.
    pub fn fleet(&self) -> &Arc<Fleet> {
        &self.fleet
    }

    /// Requests that hold something.
    pub fn open(&self) -> usize {
        self.live.values().filter(|live| live.reservation.is_some() || live.claim.is_some()).count()
    }

    /// Lives through a step; what becomes of its choices goes to `told`.
    pub fn step(&mut self, stage: Stage, mut told: impl FnMut(Again)) {
        self.hand.set(stage.at);
        for change in stage.changes {
            if let Some(again) = self.change(change) {
                told(again);
            }
        }
    }

    fn change(&mut self, change: Change) -> Option<Again> {
        let fleet = &self.fleet;
        match change {
            Change::Placed(choice) => return Some(self.place(choice)),
            Change::Ruled(ruled) => {
                let rules = Rules { lane: ruled.lane, ..Rules::default() };
                fleet.tune((self.other)(ruled.params), rules);
            }
            Change::Allowed(bytes) => drop(fleet.allow_index(usize::try_from(bytes).unwrap_or(usize::MAX))),
            Change::Seated(id, seat) => fleet.seat(id, Some(spec(seat))),
            Change::Reseated(id, seat) => fleet.reseat(id, spec(seat)),
            Change::Vacated(id) => fleet.seat(id, None),
            Change::Capacity(id, tokens) => fleet.learn_capacity(id, tokens),
            Change::Forgot(id) => fleet.empty(id),
            Change::Restarted(id) => {
                if let Some(replica) = fleet.replica(id) {
                    replica.restarted();
                }
            }
            // what that was is not written down
            Change::Inherited | Change::Heard => {}
            Change::Model(model, bytes, prompt, output) => fleet.learn_model(model.as_deref(), bytes, prompt, output),
            Change::Rates(id, seen) => {
                if let Some(replica) = fleet.replica(id) {
                    seen.teach(&mut replica.work.lock().rates);
                }
            }
            Change::Taken(request, id) => self.take(request, id),
            Change::Claimed(request, _) => {
                if let Some(live) = self.live.get_mut(&request) {
                    live.claim = Some(fleet.claim(live.at, live.choice.prompt()));
                }
            }
            Change::Reserved(request, what) => self.reserved(request, what),
            Change::Claim(request, what) => self.claimed(request, what),
            // it may outlive its word for it by what it holds
            Change::Ended(..) => {}
        }
        None
    }

    /// Chooses for a request again.
    fn place(&mut self, choice: Box<Choice>) -> Again {
        let then = Went { to: choice.first, held: choice.held.0, ttft_ms: choice.ttft_ms };
        let again =
            |now, saw_the_same| Again { request: choice.request, prompt: choice.held.1, then, now, saw_the_same };
        let Some((decision, request)) = self.choose(&choice) else { return again(None, false) };
        let Some(first) = decision.ranked.first().copied() else { return again(None, false) };
        let now = Went { to: first.id, held: first.held, ttft_ms: first.price.queue + first.price.prefill };
        let again = again(Some(now), saw_the_same(&choice, &decision));
        let reservation = self.fleet.reserve(first, choice.prompt(), request.tokens);
        let claim = (!choice.waits).then(|| self.fleet.claim_first(first.id, choice.prompt(), request.tokens));
        let moved = first.id != choice.first;
        let number = choice.request;
        self.live.insert(number, Live { choice, decision, reservation, claim, at: first.id, moved });
        again
    }

    fn choose(&self, choice: &Choice) -> Option<(Decision, RouteRequest)> {
        let (fleet, prompt) = (&self.fleet, choice.prompt());
        let bytes = if prompt.chain.is_empty() { prompt.body_bytes } else { prompt.prompt_bytes };
        let previous = prompt.ends.previous;
        let request = RouteRequest {
            body_bytes: prompt.body_bytes,
            prompt_bytes: prompt.prompt_bytes,
            blocks: u32::try_from(prompt.chain.len()).unwrap_or(u32::MAX),
            tokens: fleet.tokens_after(previous, bytes, prompt.model),
            salt: choice.salt,
        };
        let key = RouteKey { request, model: prompt.model, previous, session: prompt.session };
        let members = fleet.members();
        let pool = choice.pool.iter().filter_map(|told| {
            let Told { healthy, share, stores, .. } = *told;
            Some(Seen { replica: members.at(told.id)?, healthy, share, stores })
        });
        let (mut candidates, back) = fleet.look(pool, &key, prompt.chain, fleet.clock().now());
        ease(&mut candidates, back);
        let presumed = choice.pool.iter().find(|told| told.presumed).map(|told| told.id);
        if let Some(presumed) = presumed {
            suppose(&mut candidates, presumed, previous);
        }
        // whom a new session's name picks is told: names are not written down
        let picked = choice.spared.picked.or(choice.full.first().copied()).unwrap_or(choice.first);
        let weight = |key: u64, id: ReplicaId| match choice.is_new_session && id == picked {
            true => u64::MAX,
            false => rendezvous(key, id.0.into()),
        };
        let mut decision = fleet.rank(&key, &candidates, presumed, weight)?;
        match prompt.pinned {
            Some(replica) => put_first(&mut decision, replica),
            None => choice.spared.pass(&mut decision),
        }
        let has_room = |id: &ReplicaId| !choice.full.contains(id);
        let place = wanted(&decision, prompt.pinned).iter().position(has_room);
        pass_over(&mut decision, place.unwrap_or(0));
        Some((decision, request))
    }

    /// An attempt failed then, and the next one went to `id`: so it does now.
    fn take(&mut self, request: u64, id: ReplicaId) {
        let Some(live) = self.live.get_mut(&request) else { return };
        let Some(ranked) = live.decision.ranked.of(id).copied() else { return };
        // given back before what is new is taken
        (live.reservation, live.claim) = (None, None);
        let prompt = live.choice.prompt();
        let tokens = self.fleet.tokens_after(prompt.ends.previous, prompt.prompt_bytes, prompt.model);
        live.reservation = self.fleet.reserve(ranked, prompt, tokens);
        live.claim = Some(self.fleet.claim_of(id, prompt, tokens));
        (live.at, live.moved) = (id, false);
    }

    fn reserved(&mut self, request: u64, what: Share) {
        let Some(live) = self.live.get_mut(&request) else { return };
        if what == Share::Freed {
            live.reservation = None;
            return self.let_go(request);
        }
        match (&mut live.reservation, what) {
            (Some(held), Share::Read) => held.first_token(),
            (Some(held), Share::Done) => held.is_done(),
            (Some(held), Share::Silent) => held.shows_no_token(),
            (Some(held), Share::Shrunk) => held.shrink(),
            _ => {}
        }
    }

    fn claimed(&mut self, request: u64, what: Hold) {
        let Some(live) = self.live.get_mut(&request) else { return };
        if what == Hold::Left {
            live.claim = None;
            return self.let_go(request);
        }
        match (&mut live.claim, what) {
            (Some(claim), Hold::Held) => claim.confirm(),
            (Some(claim), Hold::Answered(prompt, output)) => claim.answered(prompt, output),
            (Some(claim), Hold::Served(served)) if !live.moved => claim.served(served),
            _ => {}
        }
    }

    /// Who holds nothing any more will not be heard of again, unless another attempt follows.
    fn let_go(&mut self, request: u64) {
        // the next attempt, if there is one, reserves by the ranking of the first
        let is_over = self.live.get(&request).is_some_and(|live| live.reservation.is_none() && live.claim.is_none());
        if is_over {
            self.over.push_back(request);
        }
        while self.over.len() > REMEMBERED {
            let oldest = self.over.pop_front();
            let is_over = |live: &Live| live.reservation.is_none() && live.claim.is_none();
            if let Some(request) = oldest.filter(|request| self.live.get(request).is_some_and(is_over)) {
                self.live.remove(&request);
            }
        }
    }
}

/// Whether the candidates look as they did then.
fn saw_the_same(choice: &Choice, decision: &Decision) -> bool {
    let there = decision.ranked.unordered().iter().filter(|r| r.overlap > 0 || r.load > 0);
    let mut there: Vec<_> = there.map(|r| (r.id, r.overlap, r.load)).collect();
    there.sort_unstable();
    let mut then = choice.seen.clone();
    then.sort_unstable();
    there == then
}

impl Choice {
    fn prompt(&self) -> Prompt<'_> {
        Prompt {
            request: self.request,
            chain: &self.chain,
            ends: self.ends,
            body_bytes: self.body_bytes,
            prompt_bytes: self.prompt_bytes,
            model: self.model.as_deref(),
            streams: self.streams,
            session: self.session,
            pinned: self.pinned,
        }
    }
}

/// A replica that nobody can reach.
fn spec(seat: Seat) -> ReplicaSpec {
    ReplicaSpec {
        name: String::new(),
        host: String::new(),
        port: 0,
        prefix: String::new(),
        authority: HeaderValue::from_static(""),
        models: Vec::new(),
        authorization: None,
        tls: None,
        role: Role { in_lane: seat.in_lane, ..Role::default() },
    }
}

impl Fleet {
    /// Puts a replica into a slot in place of who was there, or nobody.
    fn seat(&self, id: ReplicaId, spec: Option<ReplicaSpec>) {
        let is_left = spec.is_none();
        self.sit(id, spec.map(|spec| Arc::new(Replica::new(id, spec).numbered(self.number()))));
        if is_left {
            self.residency.write().vacate(id);
            self.hints.forget(id);
        }
    }

    /// Who is there is configured otherwise.
    fn reseat(&self, id: ReplicaId, spec: ReplicaSpec) {
        if let Some(known) = self.replica(id) {
            let successor = known.successor(spec, None, self.clock.now()).numbered(self.number());
            self.sit(id, Some(Arc::new(successor)));
        }
    }
}

#[cfg(test)]
mod tests;
