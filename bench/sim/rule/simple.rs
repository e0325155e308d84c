//! Rules that know nothing of caches: turns, fewest requests, and a session's first replica for ever.

use std::collections::HashMap;

use super::{Decision, End, Knowledge, Request, Rule};

/// Requests in flight per replica, with turns among equals.
#[derive(Debug)]
pub(super) struct Inflight {
    pub(super) counts: Vec<u32>,
    turn: usize,
}

impl Inflight {
    pub(super) fn new(replicas: usize) -> Self {
        Self { counts: vec![0; replicas], turn: 0 }
    }

    /// The healthy replica with the least of `key`; equal ones take turns.
    pub(super) fn least(&mut self, know: &Knowledge, mut key: impl FnMut(usize) -> f64) -> usize {
        let n = self.counts.len();
        self.turn += 1;
        let order = (0..n).map(|at| (at + self.turn) % n);
        let any = !know.healthy.contains(&true);
        let open = order.filter(|&r| any || know.healthy[r]).map(|r| (r, key(r)));
        open.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(r, _)| r)
    }

    pub(super) fn total(&self) -> u64 {
        self.counts.iter().map(|&n| u64::from(n)).sum()
    }
}

/// Each replica in turn.
#[derive(Debug, Default)]
pub(super) struct RoundRobin {
    turn: usize,
}

impl Rule for RoundRobin {
    fn place(&mut self, _: &Request, know: &Knowledge, _: f64) -> Decision {
        let n = know.healthy.len();
        let start = self.turn;
        let next = (start..start + n).find(|at| know.healthy[at % n]).unwrap_or(start);
        self.turn = next + 1;
        Decision::blind(next % n)
    }

    fn end(&mut self, _: &Request, _: &End, _: f64) {}

    fn failed(&mut self, _: &Request, _: usize, _: f64) {}

    fn booked(&self) -> u64 {
        0
    }
}

/// The replica with the fewest requests.
#[derive(Debug)]
pub(super) struct LeastLoaded(Inflight);

impl LeastLoaded {
    pub(super) fn new(replicas: usize) -> Self {
        Self(Inflight::new(replicas))
    }
}

impl Rule for LeastLoaded {
    fn place(&mut self, _: &Request, know: &Knowledge, _: f64) -> Decision {
        let counts = self.0.counts.clone();
        let replica = self.0.least(know, |r| f64::from(counts[r]));
        self.0.counts[replica] += 1;
        Decision::blind(replica)
    }

    fn end(&mut self, _: &Request, seen: &End, _: f64) {
        self.0.counts[seen.replica] -= 1;
    }

    fn failed(&mut self, _: &Request, replica: usize, _: f64) {
        self.0.counts[replica] -= 1;
    }

    fn booked(&self) -> u64 {
        self.0.total()
    }
}

/// A session stays for ever where its first request went: to the replica with the fewest sessions. Requests without a
/// session go to the least loaded.
#[derive(Debug)]
pub(super) struct Sticky {
    inflight: Inflight,
    sessions: Vec<u32>,
    home: HashMap<u64, usize>,
}

impl Sticky {
    pub(super) fn new(replicas: usize) -> Self {
        Self { inflight: Inflight::new(replicas), sessions: vec![0; replicas], home: HashMap::new() }
    }
}

impl Rule for Sticky {
    fn place(&mut self, request: &Request, know: &Knowledge, _: f64) -> Decision {
        let home = request.session.and_then(|session| self.home.get(&session).copied());
        let replica = home.filter(|&r| know.healthy[r]).unwrap_or_else(|| {
            let (counts, sessions) = (self.inflight.counts.clone(), &self.sessions);
            let by_session = request.session.is_some();
            self.inflight.least(know, |r| f64::from(if by_session { sessions[r] } else { counts[r] }))
        });
        if let Some(session) = request.session
            && let before = self.home.insert(session, replica)
            && before != Some(replica)
        {
            self.sessions[replica] += 1;
            if let Some(left) = before {
                self.sessions[left] -= 1;
            }
        }
        self.inflight.counts[replica] += 1;
        Decision::blind(replica)
    }

    fn end(&mut self, _: &Request, seen: &End, _: f64) {
        self.inflight.counts[seen.replica] -= 1;
    }

    fn failed(&mut self, _: &Request, replica: usize, _: f64) {
        self.inflight.counts[replica] -= 1;
    }

    fn booked(&self) -> u64 {
        self.inflight.total()
    }
}
