//! SGLang's cache-aware router with its defaults: balance when loads are far apart, else the longest match if it is
//! long enough, else the replica with the smallest tree.
//!
//! Its approximate trees are one index with all replicas here. A tree's size is what was ever added to it, halved when it
//! outgrows its bound, as the original evicts.

use ramjet::prefix::index::PrefixIndex;
use ramjet::types::ReplicaId;

use super::{Decision, End, Knowledge, Request, Rule, simple::Inflight};
use crate::num::to_size;
use crate::sim::content::ROUTER_BLOCK;

const MATCH: f64 = 0.3;
const BALANCE_ABS: u32 = 64;
const BALANCE_REL: f64 = 1.5;
/// Blocks of a tree at its default bound of 2^26 characters.
const TREE_BLOCKS: u64 = (1 << 26) / 2048;

/// See the module header.
#[derive(Debug)]
pub(super) struct Sglang {
    inflight: Inflight,
    trees: PrefixIndex,
    sizes: Vec<u64>,
}

impl Sglang {
    pub(super) fn new(replicas: usize) -> Self {
        Self { inflight: Inflight::new(replicas), trees: PrefixIndex::new(256 << 20), sizes: vec![0; replicas] }
    }

    fn choose(&mut self, request: &Request, know: &Knowledge, overlaps: &[u32]) -> usize {
        let counts = self.inflight.counts.clone();
        let open = || (0..counts.len()).filter(|&r| know.healthy[r]);
        let (most, least) = (open().map(|r| counts[r]).max(), open().map(|r| counts[r]).min());
        let (most, least) = (most.unwrap_or(0), least.unwrap_or(0));
        if most - least > BALANCE_ABS && f64::from(most) > BALANCE_REL * f64::from(least) {
            return self.inflight.least(know, |r| f64::from(counts[r]));
        }
        let best = self.inflight.least(know, |r| -f64::from(overlaps[r]));
        if f64::from(overlaps[best]) > MATCH * request.chain.len() as f64 {
            return best;
        }
        let sizes = self.sizes.clone();
        self.inflight.least(know, |r| sizes[r] as f64)
    }
}

impl Rule for Sglang {
    fn place(&mut self, request: &Request, know: &Knowledge, _: f64) -> Decision {
        let mut overlaps = vec![0; self.sizes.len()];
        self.trees.walk(&request.chain, &mut overlaps);
        let replica = self.choose(request, know, &overlaps);
        self.trees.hold(&request.chain, ReplicaId(u16::try_from(replica).unwrap_or(u16::MAX)), 0);
        self.sizes[replica] += request.chain.len() as u64 - u64::from(overlaps[replica]);
        if self.sizes[replica] > TREE_BLOCKS {
            self.sizes[replica] /= 2;
        }
        self.inflight.counts[replica] += 1;
        Decision::counting_on(replica, to_size(u64::from(overlaps[replica])) * ROUTER_BLOCK)
    }

    fn end(&mut self, _: &Request, seen: &End, _: f64) {
        self.inflight.counts[seen.replica] -= 1;
    }

    fn failed(&mut self, _: &Request, replica: usize, _: f64) {
        self.inflight.counts[replica] -= 1;
    }

    fn restarted(&mut self, replica: usize, _: f64) {
        self.trees.forget(ReplicaId(u16::try_from(replica).unwrap_or(u16::MAX)));
        self.sizes[replica] = 0;
    }

    fn booked(&self) -> u64 {
        self.inflight.total()
    }
}
