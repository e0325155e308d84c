//! The event loop: one virtual clock for clients, rule and engines.
//!
//! Events are ordered by time, then kind, then number, so a run is a function of workload, rule and seed. Engines come
//! before clients at the same instant: a client that asks then sees what the engine has just done. Between router and
//! engines no time passes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::clients::{Ask, Clients};
use super::content::{BYTES_PER_TOKEN, ENGINE_BLOCK};
use super::measure::{Memory, Tally};
use super::rule::{Decision, End, First, Knowledge, Request, Rule};
use super::workload::{Fault, Workload};
use crate::engine::schedule::{Engine, Job, Token};
use crate::num::mix;
use ramjet::policy::hint::{Hint, Source};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Engine(usize),
    /// the fault of this number
    Fault(usize),
    /// the replica answers probes again
    Back(usize),
    /// the warm-up is over
    Watch,
    /// the request in this slot has been kept back long enough
    Held(usize),
    Client(usize),
}

/// When, ordered: times are never negative, so their bits order as they do.
type Due = Reverse<(u64, Event)>;

#[derive(Debug)]
struct Flight {
    client: usize,
    session: u64,
    request: Request,
    job: Job,
    decision: Decision,
    /// the client's first attempt, and this one
    asked: f64,
    sent: f64,
    reusable: usize,
    first: Option<First>,
}

/// A run in progress.
pub(crate) struct World<'a> {
    workload: &'a Workload,
    rule: Box<dyn Rule>,
    clients: Box<dyn Clients>,
    events: BinaryHeap<Due>,
    now: f64,
    engines: Vec<Engine>,
    healthy: Vec<bool>,
    /// when each engine's step ends; what its event in the queue says
    busy_until: Vec<f64>,
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
    /// per client: requests open, and whether one was lost
    open: Vec<(usize, bool)>,
    memory: Memory,
    tally: Tally,
    busy_before: Vec<f64>,
    started: u64,
    ended: u64,
}

impl<'a> World<'a> {
    pub(crate) fn new(workload: &'a Workload, rule: Box<dyn Rule>, clients: Box<dyn Clients>) -> Self {
        let n = workload.slowdown.len();
        let engine = |(replica, &slowdown): (usize, &f64)| {
            let mut engine = Engine::new(workload.engine(replica));
            engine.set_slowdown(slowdown);
            engine
        };
        let mut world = Self {
            workload,
            rule,
            clients,
            events: BinaryHeap::new(),
            now: 0.0,
            engines: workload.slowdown.iter().enumerate().map(engine).collect(),
            healthy: vec![true; n],
            busy_until: vec![0.0; n],
            flights: Vec::new(),
            free: Vec::new(),
            open: Vec::new(),
            memory: Memory::default(),
            tally: Tally::new(n),
            busy_before: vec![0.0; n],
            started: 0,
            ended: 0,
        };
        for (at, client) in world.clients.start() {
            world.at(at, Event::Client(client));
        }
        for (number, (at, ..)) in workload.faults.iter().enumerate() {
            world.at(workload.warm_up + at, Event::Fault(number));
        }
        world.at(workload.warm_up, Event::Watch);
        world
    }

    /// Runs to the end of the watch and returns what was seen.
    pub(crate) fn run(&mut self) -> Tally {
        let end = self.workload.warm_up + self.workload.watch;
        self.run_until(end);
        let busy = |engine: &Engine| engine.stats().busy_ms;
        self.tally.busy_ms = self.engines.iter().zip(&self.busy_before).map(|(e, before)| busy(e) - before).collect();
        let waiting = self.flights.iter().flatten().filter(|flight| flight.first.is_none());
        self.tally.still_ms = waiting.map(|flight| end - flight.asked).collect();
        let flying = self.flights.iter().flatten().count() as u64;
        debug_assert_eq!(self.started, self.ended + flying, "a request ends exactly once");
        debug_assert!(flying > 0 || self.rule.booked() == 0, "nothing runs, nothing is booked");
        self.tally.clone()
    }

    fn run_until(&mut self, end: f64) {
        let mut tokens = Vec::new();
        while let Some(&Reverse((bits, event))) = self.events.peek() {
            let at = f64::from_bits(bits);
            if at > end {
                break;
            }
            self.events.pop();
            self.now = at;
            match event {
                // an event that was overtaken by a later plan finds nothing due
                Event::Engine(r) => self.advance(r, &mut tokens),
                Event::Client(client) => self.wake(client),
                Event::Fault(number) => self.fault(number),
                Event::Back(replica) => {
                    self.healthy[replica] = true;
                    self.rule.restarted(replica, self.now);
                }
                Event::Held(slot) => {
                    if let Some(flight) = self.flights[slot].take() {
                        self.dispatch(slot, flight);
                    }
                }
                Event::Watch => {
                    self.tally = Tally::new(self.engines.len());
                    self.busy_before = self.engines.iter().map(|engine| engine.stats().busy_ms).collect();
                }
            }
        }
    }

    fn at(&mut self, when: f64, event: Event) {
        self.events.push(Reverse((when.max(0.0).to_bits(), event)));
    }

    /// Puts an engine's next step on the clock.
    fn plan(&mut self, r: usize) {
        if let Some(next) = self.engines[r].next_at()
            && next.to_bits() != self.busy_until[r].to_bits()
        {
            self.busy_until[r] = next;
            self.at(next, Event::Engine(r));
        }
    }

    fn advance(&mut self, r: usize, tokens: &mut Vec<Token>) {
        tokens.clear();
        self.engines[r].advance(self.now, tokens);
        self.plan(r);
        for token in tokens.iter() {
            self.token(r, token);
        }
    }

    fn wake(&mut self, client: usize) {
        let mut asks = Vec::new();
        self.clients.wake(client, &mut asks);
        for ask in asks {
            self.ask(client, ask);
        }
    }

    fn ask(&mut self, client: usize, ask: Ask) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.flights.push(None);
            self.flights.len() - 1
        });
        let Ask { session, named, mut prompt, answer } = ask;
        let ends = prompt.ends();
        let source = if named { Some(Source::Named) } else { ends.previous.map(|_| Source::Derived) };
        let request = Request {
            id: slot as u64,
            session: named.then_some(session),
            // the key as a router has it is a hash
            hint: source.map(|source| Hint { key: mix(session), source }),
            chain: prompt.fingerprints(),
            ends,
            bytes: (prompt.tokens() * BYTES_PER_TOKEN) as u64,
        };
        let prompt_tokens = prompt.tokens();
        prompt.push(answer.0, answer.1);
        let chain = prompt.into_chain();
        let job = Job { id: slot as u64, chain, prompt_tokens, output_tokens: answer.1.max(1) };
        let usable = &job.chain[..prompt_tokens.saturating_sub(1) / ENGINE_BLOCK];
        let reusable = self.memory.known(usable) * ENGINE_BLOCK;
        self.memory.learn(usable);
        if self.open.len() <= client {
            self.open.resize(client + 1, (0, false));
        }
        self.open[client].0 += 1;
        self.started += 1;
        let flight = Flight {
            client,
            session,
            request,
            job,
            decision: Decision { replica: 0, cached: None, ttft_ms: None },
            asked: self.now,
            sent: self.now,
            reusable,
            first: None,
        };
        self.dispatch(slot, flight);
    }

    fn dispatch(&mut self, slot: usize, mut flight: Flight) {
        let know = Knowledge {
            healthy: &self.healthy,
            engines: &self.engines,
            job: &flight.job,
            busy_until: &self.busy_until,
        };
        let hold = self.rule.hold_ms(&flight.request, &know, self.now);
        if hold > 0.0 {
            self.flights[slot] = Some(flight);
            self.at(self.now + hold, Event::Held(slot));
            return;
        }
        flight.decision = self.rule.place(&flight.request, &know, self.now);
        flight.sent = self.now;
        let r = flight.decision.replica;
        if let Some(before) = self.memory.moved(flight.session, r) {
            self.tally.followed += 1;
            self.tally.stayed += u64::from(before == r);
        }
        let job = flight.job.clone();
        self.flights[slot] = Some(flight);
        self.engines[r].submit(self.now, job);
        self.plan(r);
    }

    fn token(&mut self, r: usize, token: &Token) {
        let slot = crate::num::to_size(token.id);
        let Some(flight) = self.flights[slot].as_mut() else { return };
        if let Some(cached_tokens) = token.cached {
            let (ttft_ms, prompt_tokens) = (token.at - flight.sent, flight.job.prompt_tokens);
            let first = First { replica: r, prompt_tokens, cached_tokens };
            flight.first = Some(first);
            self.tally.ttft_ms.push(token.at - flight.asked);
            self.tally.prompt_tokens += prompt_tokens as u64;
            self.tally.cached_tokens += cached_tokens as u64;
            self.tally.reusable_tokens += flight.reusable as u64;
            self.tally.mistaken_tokens += flight.decision.cached.map_or(0, |c| c.abs_diff(cached_tokens)) as u64;
            self.tally.waited_ms += ttft_ms;
            self.tally.mistaken_ms += flight.decision.ttft_ms.map_or(0.0, |expected| (expected - ttft_ms).abs());
            self.rule.first_token(&flight.request, &first, self.now);
        }
        if token.done.is_some() {
            self.end(slot);
        }
    }

    fn end(&mut self, slot: usize) {
        let Some(flight) = self.flights[slot].take() else { return };
        let Some(First { replica, prompt_tokens, cached_tokens, .. }) = flight.first else { return };
        let output_tokens = flight.job.output_tokens;
        let seen = End { replica, prompt_tokens, cached_tokens, output_tokens };
        self.rule.end(&flight.request, &seen, self.now);
        self.tally.spent_ms[replica] += self.now - flight.sent;
        self.memory.learn(&flight.job.chain);
        self.tally.turns += 1;
        self.close(slot, flight.client, true);
    }

    /// A request is over for its client, who goes on when it was the last one open.
    fn close(&mut self, slot: usize, client: usize, complete: bool) {
        self.free.push(slot);
        self.ended += 1;
        let open = &mut self.open[client];
        open.0 -= 1;
        open.1 |= !complete;
        let (left, lost) = *open;
        if left == 0 {
            open.1 = false;
            if let Some(pause) = self.clients.answered(client, !lost) {
                self.at(self.now + pause, Event::Client(client));
            }
        }
    }

    fn fault(&mut self, number: usize) {
        let (_, r, fault) = self.workload.faults[number];
        match fault {
            Fault::Restart(down) => {
                self.healthy[r] = false;
                self.at(self.now + down, Event::Back(r));
            }
            Fault::Flush => (),
            Fault::Emptied => return self.engines[r].empty(),
        }
        let dropped = self.engines[r].restart();
        self.busy_until[r] = self.now;
        for id in dropped {
            self.lose(crate::num::to_size(id));
        }
    }

    /// An attempt breaks off: the router repeats it if nothing was answered yet, else the client has to.
    fn lose(&mut self, slot: usize) {
        let Some(flight) = self.flights[slot].take() else { return };
        self.rule.failed(&flight.request, flight.decision.replica, self.now);
        if flight.first.is_none() {
            self.dispatch(slot, flight);
        } else {
            self.tally.lost += 1;
            self.close(slot, flight.client, false);
        }
    }
}

#[cfg(test)]
#[path = "world_tests.rs"]
mod tests;
