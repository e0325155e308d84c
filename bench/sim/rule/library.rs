//! The library's own rules, used as the router uses them for streams that report usage: walk the index, select, reserve and claim in one
//! step; confirm, shrink and go on in the backlog at the first token; withdraw on failure; learn rates and hear the
//! truth about the cache at the end; forget a replica that restarted.

use std::collections::HashMap;

use ramjet::policy::backlog::{Backlog, Read, Ticket};
use ramjet::policy::cost::{Prospect, Tokens};
use ramjet::policy::estimate::{MODEL_START, ModelRates, Prior, Rates, START};
use ramjet::policy::flight::{FlightParams, choose};
use ramjet::policy::score::{AffinityParams, LoadParams};
use ramjet::policy::select::{Candidate, Params, RouteRequest};
use ramjet::prefix::residency::{Belief, Claim, Residency, Served, Size};
use ramjet::prefix::turns::Turn;
use ramjet::types::{Basis, PolicyKind, ReplicaId};

use super::{Decision, End, First, Knowledge, Request, Rule};
use crate::num::{size, to_float};

/// The shipped size of the index.
const INDEX_BYTES: usize = 256 << 20;

#[derive(Debug)]
struct Booked {
    replica: usize,
    units: u32,
    claim: Option<Claim>,
    stay: Option<Claim>,
    ticket: Ticket,
    belief: Belief,
    read: Option<PromptRead>,
}

/// The moment of a first token.
#[derive(Debug, Clone, Copy)]
struct PromptRead {
    took_ms: f64,
    at: f64,
    prefilled_ms: f64,
    decoding: usize,
}

/// `policy::select` over `prefix::residency`, with reserved units, backlogs and learned rates.
pub(super) struct Library {
    params: Params,
    residency: Residency,
    loads: Vec<u32>,
    backlogs: Vec<Backlog>,
    rates: Vec<Rates>,
    model: ModelRates,
    booked: HashMap<u64, Booked>,
    turns: u64,
}

impl Library {
    /// With the shipped settings.
    pub(super) fn new(replicas: usize, policy: PolicyKind, basis: Basis) -> Self {
        let affinity = AffinityParams { basis, cap_blocks: 32, alpha: 4.0 };
        let load = LoadParams { unit_bytes: 32 << 10, max_units: 8, block_bytes: 2048 };
        Self {
            params: Params { policy, affinity, load, flight: FlightParams::default() },
            residency: Residency::new(INDEX_BYTES),
            loads: vec![0; replicas],
            backlogs: vec![Backlog::default(); replicas],
            rates: vec![START; replicas],
            model: MODEL_START,
            booked: HashMap::new(),
            turns: 0,
        }
    }

    fn release(&mut self, id: u64, now: f64) -> Option<Booked> {
        let booked = self.booked.remove(&id)?;
        self.loads[booked.replica] -= booked.units;
        self.backlogs[booked.replica].end(booked.ticket, now);
        Some(booked)
    }

    fn learn(&mut self, request: &Request, booked: &Booked, seen: &End, now: f64) {
        let [prompt, cached, output] =
            [seen.prompt_tokens, seen.cached_tokens, seen.output_tokens].map(|n| to_float(n as u64));
        self.model.observe_prompt(to_float(request.bytes), prompt);
        self.model.observe_output(output);
        let replica = id_of(booked.replica);
        if let Some(end) = request.ends.own {
            self.residency.answered(
                end,
                Turn {
                    replica,
                    tokens: prompt + output,
                    block: to_float(self.params.load.block_bytes) * prompt / to_float(request.bytes),
                },
            );
        }
        self.residency.report(replica, &booked.belief, Served { prompt, cached, output });
        let (Some(read), rates) = (booked.read, &mut self.rates[booked.replica]) else { return };
        rates.observe_prefill(prompt - cached, cached, read.took_ms);
        if seen.output_tokens >= 8 {
            let backlog = &self.backlogs[booked.replica];
            let stalled = backlog.prefilled_ms() - read.prefilled_ms;
            let (took, between) = (now - read.at, (read.decoding + backlog.decoding()).div_ceil(2));
            if stalled <= took / 2.0 {
                rates.observe_step(to_float(between.max(1) as u64), (took - stalled) / (output - 1.0));
            }
        }
    }
}

impl Rule for Library {
    fn place(&mut self, request: &Request, know: &Knowledge, now: f64) -> Decision {
        let mut overlaps = vec![0; self.loads.len()];
        let in_tokens = |bytes: u64| to_float(bytes) * self.model.tokens_per_byte;
        let tokens = Tokens {
            prompt: in_tokens(request.bytes),
            block: in_tokens(self.params.load.block_bytes),
            output: self.model.output,
        };
        self.residency.walk(&request.chain, tokens.block, request.ends.previous, &mut overlaps);
        let (turn, previous) = (self.residency.turn(request.ends.previous), request.ends.previous);
        let tail = |slot: usize| match (turn, previous) {
            (Some(turn), Some(end)) if turn.replica == id_of(slot) && overlaps[slot] >= end.blocks => {
                turn.after(overlaps[slot] as usize, tokens.block)
            }
            _ => 0.0,
        };
        let mut confirmed = overlaps.clone();
        self.residency.confirmed(&request.chain, &mut confirmed);
        let prior = Prior::of(self.rates.iter().copied());
        let room = |slot: usize| {
            let known = f64::from(overlaps[slot]) * tokens.block;
            self.residency.room(id_of(slot), request.ends.previous, (tokens.prompt, known))
        };
        let candidate = |slot: usize| Candidate {
            id: id_of(slot),
            healthy: know.healthy[slot],
            overlap: overlaps[slot],
            tail: tail(slot),
            confirmed: confirmed[slot],
            load: self.loads[slot],
            prospect: Prospect { room: room(slot), ..self.backlogs[slot].prospect(self.rates[slot].with(prior), now) },
        };
        let candidates: Vec<Candidate> = (0..self.loads.len()).map(candidate).collect();
        let route = RouteRequest {
            body_bytes: request.bytes,
            prompt_bytes: request.bytes,
            blocks: u32::try_from(request.chain.len()).unwrap_or(u32::MAX),
            tokens,
            salt: self.turns,
        };
        self.turns += 1;
        let first = choose(route, &candidates, &self.params).and_then(|d| d.ranked.first().copied());
        let Some(first) = first else { return Decision::blind(0) };
        let replica = first.id.index();
        self.loads[replica] += first.units;
        let weight = Size { prompt: tokens.prompt, block: tokens.block, ends: request.ends };
        let claimed = (!request.chain.is_empty()).then(|| self.residency.claim(&request.chain, weight, first.id));
        let (claim, belief) = claimed.unzip();
        let ticket = self.backlogs[replica].begin(now, first.price.prefill, true);
        let booked = Booked {
            replica,
            units: first.units,
            stay: claim,
            claim,
            ticket,
            belief: belief.unwrap_or_default(),
            read: None,
        };
        self.booked.insert(request.id, booked);
        let cached = size(first.held);
        let ttft_ms = (self.params.policy == PolicyKind::Cost).then_some(first.price.queue + first.price.prefill);
        Decision { ttft_ms, ..Decision::counting_on(replica, cached) }
    }

    fn first_token(&mut self, request: &Request, _: &First, now: f64) {
        let Some(booked) = self.booked.get_mut(&request.id) else { return };
        self.loads[booked.replica] -= booked.units - 1;
        booked.units = 1;
        let backlog = &mut self.backlogs[booked.replica];
        booked.read = backlog.first_token(booked.ticket, now).map(|Read { took_ms }| PromptRead {
            took_ms,
            at: now,
            prefilled_ms: backlog.prefilled_ms(),
            decoding: backlog.decoding(),
        });
        if let Some(claim) = booked.claim.take() {
            self.residency.confirm(claim);
        }
    }

    fn end(&mut self, request: &Request, seen: &End, now: f64) {
        let Some(booked) = self.release(request.id, now) else { return };
        if let Some(claim) = booked.claim {
            self.residency.confirm(claim);
        }
        if let Some(stay) = booked.stay {
            self.residency.ended(stay, request.ends.own, to_float(seen.output_tokens as u64));
        }
        self.learn(request, &booked, seen, now);
    }

    fn failed(&mut self, request: &Request, _: usize, now: f64) {
        if let Some(claim) = self.release(request.id, now).and_then(|booked| booked.claim) {
            self.residency.withdraw(claim);
        }
    }

    fn restarted(&mut self, replica: usize, _: f64) {
        self.residency.forget(id_of(replica));
    }

    fn booked(&self) -> u64 {
        self.loads.iter().map(|&units| u64::from(units)).sum::<u64>() + self.booked.len() as u64
    }
}

fn id_of(slot: usize) -> ReplicaId {
    ReplicaId(u16::try_from(slot).unwrap_or(u16::MAX))
}
