//! The library's own rules, used exactly as the router uses them: walk the index, select, reserve and claim in one
//! step; confirm and shrink at the first token; withdraw on failure; forget a replica that restarted.

use std::collections::HashMap;

use ramjet::policy::score::{AffinityParams, LoadParams};
use ramjet::policy::select::{Candidate, Params, RouteRequest, select};
use ramjet::prefix::residency::{Claim, Residency};
use ramjet::types::{Basis, PolicyKind, ReplicaId};

use super::{Decision, End, First, Knowledge, Request, Rule};
use crate::num::to_size;
use crate::sim::content::ROUTER_BLOCK;

/// The shipped size of the index.
const INDEX_BYTES: usize = 256 << 20;

#[derive(Debug)]
struct Booked {
    replica: usize,
    units: u32,
    claim: Option<Claim>,
}

/// `policy::select` over `prefix::residency` with reserved units.
pub(super) struct Affinity {
    params: Params,
    residency: Residency,
    loads: Vec<u32>,
    booked: HashMap<u64, Booked>,
    turns: u64,
}

impl Affinity {
    /// With the shipped settings.
    pub(super) fn new(replicas: usize, policy: PolicyKind, basis: Basis) -> Self {
        let affinity = AffinityParams { basis, cap_blocks: 32, alpha: 4.0 };
        let load = LoadParams { unit_bytes: 32 << 10, max_units: 8, block_bytes: 2048 };
        Self {
            params: Params { policy, affinity, load },
            residency: Residency::new(INDEX_BYTES),
            loads: vec![0; replicas],
            booked: HashMap::new(),
            turns: 0,
        }
    }

    fn release(&mut self, id: u64) -> Option<Claim> {
        let booked = self.booked.remove(&id)?;
        self.loads[booked.replica] -= booked.units;
        booked.claim
    }
}

impl Rule for Affinity {
    fn place(&mut self, request: &Request, know: &Knowledge, _: f64) -> Decision {
        let mut overlaps = vec![0; self.loads.len()];
        self.residency.walk(&request.chain, &mut overlaps);
        let candidates: Vec<Candidate> = (0u16..)
            .zip(overlaps.iter().zip(&self.loads).zip(know.healthy))
            .map(|(slot, ((&overlap, &load), &healthy))| Candidate { id: ReplicaId(slot), healthy, overlap, load })
            .collect();
        let route = RouteRequest {
            body_bytes: request.bytes,
            prompt_bytes: request.bytes,
            blocks: u32::try_from(request.chain.len()).unwrap_or(u32::MAX),
            salt: self.turns,
        };
        self.turns += 1;
        let first = select(route, &candidates, &self.params).and_then(|d| d.ranked.first().copied());
        let Some(first) = first else { return Decision::blind(0) };
        let replica = first.id.index();
        self.loads[replica] += first.units;
        let claim = (!request.chain.is_empty()).then(|| self.residency.claim(&request.chain, first.id));
        self.booked.insert(request.id, Booked { replica, units: first.units, claim });
        Decision::counting_on(replica, to_size(u64::from(first.overlap)) * ROUTER_BLOCK)
    }

    fn first_token(&mut self, request: &Request, _: &First, _: f64) {
        let Some(booked) = self.booked.get_mut(&request.id) else { return };
        self.loads[booked.replica] -= booked.units - 1;
        booked.units = 1;
        if let Some(claim) = booked.claim.take() {
            self.residency.confirm(claim);
        }
    }

    fn end(&mut self, request: &Request, _: &End, _: f64) {
        if let Some(claim) = self.release(request.id) {
            self.residency.confirm(claim);
        }
    }

    fn failed(&mut self, request: &Request, _: usize, _: f64) {
        if let Some(claim) = self.release(request.id) {
            self.residency.withdraw(claim);
        }
    }

    fn restarted(&mut self, replica: usize, _: f64) {
        self.residency.forget(ReplicaId(u16::try_from(replica).unwrap_or(u16::MAX)));
    }

    fn booked(&self) -> u64 {
        self.loads.iter().map(|&units| u64::from(units)).sum::<u64>() + self.booked.len() as u64
    }
}
