//! Consistent hashing with bounded loads: the first replica on the ring from the request's key on that has not more
//! than its share of the requests in flight, and a quarter.
//!
//! The key is the session, or the first blocks of the prompt where none is named.

use super::{Decision, End, Knowledge, Request, Rule};
use crate::num::{Rng, mix, size};

const POINTS: usize = 160;
const BOUND: f64 = 1.25;
/// Blocks that are a request's identity when it names no session: about what system prompts share, and a bit.
const KEY_BLOCKS: usize = 8;

/// See the module header.
#[derive(Debug)]
pub(super) struct BoundedHash {
    ring: Vec<(u64, usize)>,
    counts: Vec<u32>,
}

impl BoundedHash {
    pub(super) fn new(replicas: usize) -> Self {
        let mut ring: Vec<(u64, usize)> = (0..replicas)
            .flat_map(|r| {
                let mut rng = Rng::of(&[0x51, r as u64]);
                (0..POINTS).map(move |_| (rng.next(), r))
            })
            .collect();
        ring.sort_unstable();
        Self { ring, counts: vec![0; replicas] }
    }

    fn key(request: &Request) -> u64 {
        let blocks = &request.chain[..KEY_BLOCKS.min(request.chain.len())];
        mix(request.session.or(blocks.last().copied()).unwrap_or(request.id))
    }
}

impl Rule for BoundedHash {
    fn place(&mut self, request: &Request, know: &Knowledge, _: f64) -> Decision {
        let open = know.healthy.iter().filter(|&&h| h).count().max(1);
        let inflight: u32 = self.counts.iter().sum();
        let most = size((f64::from(inflight + 1) / open as f64 * BOUND).ceil());
        let start = self.ring.partition_point(|&(point, _)| point < Self::key(request));
        let walk = self.ring[start..].iter().chain(&self.ring[..start]).map(|&(_, r)| r);
        let mut healthy = walk.filter(|&r| know.healthy[r]).peekable();
        let first = healthy.peek().copied().unwrap_or(0);
        let replica = healthy.find(|&r| (self.counts[r] as usize) < most).unwrap_or(first);
        self.counts[replica] += 1;
        Decision::blind(replica)
    }

    fn end(&mut self, _: &Request, seen: &End, _: f64) {
        self.counts[seen.replica] -= 1;
    }

    fn failed(&mut self, _: &Request, replica: usize, _: f64) {
        self.counts[replica] -= 1;
    }

    fn booked(&self) -> u64 {
        self.counts.iter().map(|&n| u64::from(n)).sum()
    }
}
