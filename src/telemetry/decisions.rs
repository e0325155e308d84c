//! The last decisions, each with what it was made of and what came of it, in a ring of fixed size.
//!
//! A decision is written after the choice, outside of its lock, into a place of the ring that has a lock of its own: two
//! requests meet at one only when the ring has gone all around meanwhile. Nothing is allocated but the model's name. Of
//! a large fleet the [`BEST`] candidates are kept and the others counted.
//!
//! **Invariant:** no prompt text, no host, no key, and no model but one that its replica lists.

use super::linter::Linter;
use crate::api::answer::Usage;
use crate::api::endpoint::Endpoint;
use crate::policy::accounts::Accounts;
use crate::policy::cost::Tokens;
use crate::policy::flight::Flight;
use crate::policy::hint::HintUse;
use crate::policy::lane::Gate;
use crate::policy::score::AffinityParams;
use crate::policy::select::{Decision, Ranked, Reason};
use crate::prefix::rotation::{Found, Rotation};
use crate::types::{PolicyKind, ReplicaId};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

/// Decisions that are kept: five megabytes of them at most.
pub const KEPT: usize = 4096;
/// Candidates that are kept of each.
pub const BEST: usize = 8;

/// One decision.
#[derive(Clone, Debug)]
pub struct Record {
    /// The request's id, the number behind its hexadecimal digits.
    pub id: u64,
    /// When it was made.
    pub at: SystemTime,
    /// What was placed.
    pub placed: Subject,
    /// The rule that it was made by.
    pub rule: Rule,
    /// The best candidates, best first.
    pub best: SmallVec<[Ranked; BEST]>,
    /// How many more there were.
    pub others: usize,
    /// Why the first is first.
    pub reason: Reason,
    /// How many before it were passed over: they had no room, or turned requests away.
    pub passed: usize,
    /// What single flight had to say.
    pub flight: Option<Flight>,
    /// What the session's hint was worth.
    pub hint: Option<HintUse>,
    /// What the lane for long prompts had to do with it.
    pub gate: Gate,
    /// What came of it; `None` while it is being served.
    pub ended: Option<Ended>,
}

/// The rule that a decision was made by.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The policy.
    pub policy: PolicyKind,
    /// The parameters of the affinity rule.
    pub affinity: AffinityParams,
}

/// What was placed.
#[derive(Clone, Debug)]
pub struct Subject {
    /// What was asked.
    pub endpoint: Endpoint,
    /// The model, if the chosen replica lists it.
    pub model: Option<Box<str>>,
    /// Bytes of the body, where it was read.
    pub body_bytes: u64,
    /// Canonical bytes of the prompt.
    pub prompt_bytes: u64,
    /// Its full blocks.
    pub blocks: usize,
    /// Its size in tokens, as was estimated.
    pub tokens: Tokens,
    /// Whether one replica alone could answer it.
    pub pinned: bool,
}

/// What came of a request.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// The last replica tried.
    pub replica: Option<ReplicaId>,
    /// Attempts made.
    pub attempts: u32,
    /// The status that the client got; 0 when it got none.
    pub status: u16,
    /// How it ended in one word: `ok`, `client_left`, or the code of the error.
    pub word: &'static str,
    /// Tokens, as reported.
    pub usage: Usage,
    /// Time to the first generated token of a stream.
    pub ttft: Option<Duration>,
    /// Time to the end.
    pub duration: Duration,
    /// Why prompt tokens had to be read, if the answer said how many were cached.
    pub accounts: Option<Accounts>,
}

/// The place of a decision that is still being served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

/// A place of the ring, with the number of the decision that is in it.
type Slot = Mutex<Option<(u64, Record)>>;

/// The last decisions.
pub struct Decisions {
    /// Each lock is held for one copy in or out.
    slots: Box<[Slot]>,
    next: AtomicU64,
    /// What taking turns would have found. Held for some look-ups.
    rotation: Mutex<Rotation>,
    /// Looks at prompts that are found nowhere.
    pub linter: Linter,
}

impl Record {
    /// A decision as it is made.
    pub fn new(id: u64, at: SystemTime, placed: Subject, rule: Rule, made: &Decision) -> Self {
        Record {
            id,
            at,
            placed,
            rule,
            best: made.ranked.best(BEST),
            others: made.ranked.len().saturating_sub(BEST),
            reason: made.reason,
            passed: made.passed,
            flight: made.flight,
            hint: made.hint,
            gate: made.gate,
            ended: None,
        }
    }

    /// What was expected of a replica, if it is among those that are kept: cached tokens, and the time to the first one in
    /// milliseconds.
    pub fn expected_of(&self, replica: ReplicaId) -> Option<(f64, f64)> {
        let there = self.best.iter().find(|r| r.id == replica)?;
        Some((there.held, there.price.queue + there.price.prefill))
    }

    /// The tokens that were expected to come from the cache, and the time to the first token in milliseconds.
    pub fn expected(&self) -> (f64, f64) {
        self.best.first().map_or((0.0, 0.0), |first| (first.held, first.price.queue + first.price.prefill))
    }
}

impl Default for Decisions {
    /// None yet.
    fn default() -> Self {
        Decisions {
            slots: (0..KEPT).map(|_| Mutex::new(None)).collect(),
            next: AtomicU64::new(0),
            rotation: Mutex::default(),
            linter: Linter::default(),
        }
    }
}

impl Decisions {
    /// Keeps a decision: in the place of an earlier one for the same request, if it has a ticket.
    pub fn keep(&self, earlier: Option<Ticket>, record: Record) -> Ticket {
        // relaxed: a number of its own is all that is needed
        let Ticket(number) = earlier.unwrap_or_else(|| Ticket(self.next.fetch_add(1, Relaxed)));
        let mut slot = self.slot(number).lock();
        if slot.as_ref().is_none_or(|(other, _)| *other <= number) {
            *slot = Some((number, record));
        }
        Ticket(number)
    }

    /// How many leading blocks of a prompt one of `replicas` would have found that take turns; see [`Rotation`].
    pub fn rotation(&self, chain: &[u64], replicas: usize) -> Found {
        self.rotation.lock().found(chain, replicas)
    }

    /// Says what came of it, if it is still kept.
    pub fn end(&self, Ticket(number): Ticket, ended: Ended) {
        if let Some((other, record)) = &mut *self.slot(number).lock()
            && *other == number
        {
            record.ended = Some(ended);
        }
    }

    /// Bytes that decisions take so far, and the counts of blocks.
    pub fn written(&self) -> (usize, usize) {
        let made = usize::try_from(self.next.load(Relaxed)).unwrap_or(KEPT);
        (made.min(KEPT) * size_of::<Slot>(), self.rotation.lock().written())
    }

    /// The last decision for a request.
    pub fn find(&self, id: u64) -> Option<Record> {
        self.newest_first().find(|record| record.id == id)
    }

    /// The newest ones, newest first.
    pub fn latest(&self, limit: usize) -> Vec<Record> {
        self.newest_first().take(limit).collect()
    }

    fn newest_first(&self) -> impl Iterator<Item = Record> {
        let next = self.next.load(Relaxed);
        let kept = |number| {
            let slot = self.slot(number).lock();
            slot.as_ref().filter(|(other, _)| *other == number).map(|(_, record)| record.clone())
        };
        (next.saturating_sub(KEPT as u64)..next).rev().filter_map(kept)
    }

    fn slot(&self, number: u64) -> &Slot {
        let at = usize::try_from(number % KEPT as u64).unwrap_or(0);
        &self.slots[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::cost::Price;
    use crate::policy::ranking::Ranking;
    use crate::types::Basis;

    fn made(candidates: u16) -> Decision {
        let ranked = |n| Ranked {
            id: ReplicaId(n),
            overlap: 3,
            held: 1500.0,
            credit: 0,
            load: 0,
            score: 0.0,
            price: Price { queue: 5.0, prefill: 7.0, ..Price::default() },
            units: 1,
        };
        let ranked: Ranking = (0..candidates).map(ranked).collect();
        let preferred = ranked.len();
        let (reason, gate) = (Reason::Cold, Gate::Open);
        Decision { ranked, reason, flight: None, hint: None, gate, crowded: false, preferred, passed: 0 }
    }

    fn record(id: u64, candidates: u16) -> Record {
        let placed = Subject {
            endpoint: Endpoint::Chat,
            model: None,
            body_bytes: 1,
            prompt_bytes: 1,
            blocks: 0,
            tokens: Tokens::default(),
            pinned: false,
        };
        let affinity = AffinityParams { basis: Basis::Relative, cap_blocks: 32, alpha: 4.0 };
        let rule = Rule { policy: PolicyKind::Cost, affinity };
        Record::new(id, SystemTime::UNIX_EPOCH, placed, rule, &made(candidates))
    }

    const OK: Ended = Ended {
        replica: Some(ReplicaId(1)),
        attempts: 1,
        status: 200,
        word: "ok",
        usage: Usage { prompt: None, cached: None, completion: None, reasoning: None },
        ttft: None,
        duration: Duration::from_secs(1),
        accounts: None,
    };

    #[test]
    fn the_ring_is_bounded_and_the_newest_are_there() {
        assert!(KEPT * size_of::<Slot>() <= 5 << 20, "{}", size_of::<Record>());
        let decisions = Decisions::default();
        let many = KEPT as u64 + 10;
        let first = decisions.keep(None, record(0, 2));
        for id in 1..many {
            decisions.keep(None, record(id, 2));
        }
        assert_eq!(decisions.latest(usize::MAX).len(), KEPT);
        assert_eq!(decisions.latest(3).iter().map(|r| r.id).collect::<Vec<_>>(), [many - 1, many - 2, many - 3]);
        assert!(decisions.find(9).is_none() && decisions.find(10).is_some());
        // an end that comes too late, or a second choice, changes nobody else's
        decisions.end(first, OK);
        decisions.keep(Some(first), record(0, 2));
        assert!(decisions.find(KEPT as u64).unwrap().ended.is_none() && decisions.find(0).is_none());
    }

    #[test]
    fn a_decision_is_followed_by_its_end_or_by_another_one_for_the_same_request() {
        let decisions = Decisions::default();
        let ticket = decisions.keep(None, record(7, 40));
        decisions.keep(None, record(8, 1));
        let kept = decisions.find(7).unwrap();
        assert_eq!((kept.best.len(), kept.others, kept.best.spilled()), (BEST, 32, false));
        assert_eq!((kept.ended.is_none(), kept.expected()), (true, (1500.0, 12.0)));
        assert_eq!(decisions.keep(Some(ticket), record(7, 3)), ticket);
        decisions.end(ticket, OK);
        let kept = decisions.find(7).unwrap();
        assert_eq!((kept.best.len(), kept.others, kept.ended.map(|e| e.word)), (3, 0, Some("ok")));
        assert_eq!(decisions.latest(10).len(), 2);
    }
}
