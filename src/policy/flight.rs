//! Single flight: requests that share a prefix which nobody has read yet, and which one of them (the *leader*) is
//! reading. Pure.
//!
//! A *follower* that goes elsewhere has the prefix read twice. It waits less for itself only if the other replica reads
//! all of it sooner than the leader's reads the rest; and the second reading is work that whoever comes next waits
//! for. So a follower joins its leader unless that costs more, half of what would be read twice included.
//!
//! What is refused: meeting at any price (a burst would queue up at one replica while others idle), and comparing
//! prices alone (on an idle fleet the whole of a burst that came at once would be scattered by a few milliseconds).

use super::select::{Candidate, Decision, Params, Ranked, Reason, RouteRequest, select};
use crate::types::{FlightMode, PolicyKind, ReplicaId};
use smallvec::SmallVec;

/// The share of the time to read a prefix twice that counts against reading it twice.
const TWICE: f64 = 0.5;

/// What is done about prefixes that are being read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlightParams {
    /// The rule.
    pub mode: FlightMode,
    /// The fewest new blocks that are worth meeting for.
    pub min_blocks: u32,
    /// The longest that a follower is kept back, in milliseconds.
    pub max_hold_ms: f64,
}

/// What single flight has to say of a request. The names are metric labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flight {
    /// It reads a new prefix.
    Leader,
    /// It goes to the replica that reads its prefix for another request.
    Follower,
    /// Another request's replica reads its prefix, but waiting there costs more.
    Apart,
    /// It would have gone to the replica that reads its prefix.
    WouldMove,
    /// It went there anyway.
    WouldStay,
    /// A follower is kept back.
    Held,
    /// It goes on: the prefix is read.
    Released,
    /// It goes on: it was kept back long enough.
    TimedOut,
    /// It is placed anew: its leader failed.
    LeaderFailed,
    /// Its client left meanwhile.
    ClientLeft,
}

impl Flight {
    /// Every outcome, in the order of the metric's label values.
    pub const ALL: [Flight; 10] = [
        Flight::Leader,
        Flight::Follower,
        Flight::Apart,
        Flight::WouldMove,
        Flight::WouldStay,
        Flight::Held,
        Flight::Released,
        Flight::TimedOut,
        Flight::LeaderFailed,
        Flight::ClientLeft,
    ];

    /// The label value.
    pub fn label(self) -> &'static str {
        match self {
            Flight::Leader => "leader",
            Flight::Follower => "follower",
            Flight::Apart => "apart",
            Flight::WouldMove => "would_move",
            Flight::WouldStay => "would_stay",
            Flight::Held => "held",
            Flight::Released => "released",
            Flight::TimedOut => "timed_out",
            Flight::LeaderFailed => "leader_failed",
            Flight::ClientLeft => "client_left",
        }
    }
}

impl Default for FlightParams {
    /// As shipped.
    fn default() -> Self {
        FlightParams { mode: FlightMode::Colocate, min_blocks: 8, max_hold_ms: 2000.0 }
    }
}

/// [`select`] with regard to what is being read; `None` when there are no candidates.
pub fn choose(request: RouteRequest, candidates: &[Candidate], params: &Params) -> Option<Decision> {
    let flight = params.flight;
    let leader = leader(candidates, flight.min_blocks).filter(|_| looks_at_prefixes(params.policy));
    match flight.mode {
        FlightMode::Off => select(request, &as_counted(candidates, flight.mode), params),
        FlightMode::Shadow => {
            let mut decision = select(request, &as_counted(candidates, flight.mode), params)?;
            if let Some(leader) = leader {
                let together = joined(select(request, candidates, params)?, leader, request.tokens.prompt);
                let moves = together.ranked.first().map(|r| r.id) != decision.ranked.first().map(|r| r.id);
                decision.flight = Some(if moves { Flight::WouldMove } else { Flight::WouldStay });
            }
            Some(decision)
        }
        FlightMode::Colocate | FlightMode::Hold => {
            let mut decision = select(request, candidates, params)?;
            match leader {
                Some(leader) => decision = joined(decision, leader, request.tokens.prompt),
                None => decision.flight = leads(request, candidates, params).then_some(Flight::Leader),
            }
            Some(decision)
        }
    }
}

/// How long, in milliseconds, a follower is kept back that has been for some time and has `left_ms` of its patience
/// left. A leader whose answer is not streamed does not tell when its prompt was read: it is taken for read when it
/// should be.
pub fn hold_ms(decision: &Decision, leader_streams: bool, mode: FlightMode, left_ms: f64) -> Option<f64> {
    let first = decision.ranked.first()?;
    let wait = if leader_streams { left_ms } else { left_ms.min(first.price.queue) };
    (mode == FlightMode::Hold && decision.flight == Some(Flight::Follower) && wait > 0.0).then_some(wait)
}

/// The replica that reads at least `least` blocks which no candidate has read.
fn leader(candidates: &[Candidate], least: u32) -> Option<ReplicaId> {
    let healthy = candidates.iter().filter(|c| c.healthy);
    let (read, deepest) = healthy.fold((0, None), |(read, deepest): (u32, Option<&Candidate>), c| {
        let is_deeper = deepest.is_none_or(|d| (c.overlap, d.id) > (d.overlap, c.id));
        (read.max(c.confirmed), if is_deeper { Some(c) } else { deepest })
    });
    deepest.filter(|deepest| deepest.overlap >= read.saturating_add(least)).map(|deepest| deepest.id)
}

/// Whether so much of the prompt is new that others might follow.
fn leads(request: RouteRequest, candidates: &[Candidate], params: &Params) -> bool {
    let held = candidates.iter().filter(|c| c.healthy).map(|c| c.overlap).max();
    let new = request.blocks.saturating_sub(held.unwrap_or(0));
    looks_at_prefixes(params.policy) && new >= params.flight.min_blocks
}

fn looks_at_prefixes(policy: PolicyKind) -> bool {
    matches!(policy, PolicyKind::Cost | PolicyKind::Affinity)
}

/// The decision with the leader's replica in front, unless that costs more; `prompt`: tokens of the request's.
fn joined(mut decision: Decision, leader: ReplicaId, prompt: f64) -> Decision {
    let Some(there) = decision.ranked.of(leader).copied() else { return decision };
    // the more of a prompt others have in common, the more likely is it asked along with theirs, once: what its session's
    // later turns would cost counts as far as it is its own
    let own = (1.0 - there.held / prompt.max(1.0)).clamp(0.0, 1.0);
    let pays = |other: &Ranked| pays(&there, other, own);
    let is_first = decision.ranked.first().is_some_and(|r| r.id == leader);
    if decision.ranked.unordered().iter().all(|r| r.id == leader || pays(r)) {
        decision.ranked.put_first(leader);
        decision.flight = Some(Flight::Follower);
        if !is_first {
            decision.reason = Reason::Affinity;
        }
    } else if !is_first {
        decision.flight = Some(Flight::Apart);
    }
    decision
}

/// Whether waiting at `there` costs less than going to `other`, later turns counting for `own`.
fn pays(there: &Ranked, other: &Ranked, own: f64) -> bool {
    let twice = (other.price.prefill - there.price.prefill).max(0.0);
    let total = |r: &Ranked| r.price.total() - (1.0 - own) * r.price.later;
    total(there) <= total(other) + TWICE * twice
}

/// A candidate with what counts as held by it.
pub fn counted(c: &Candidate, mode: FlightMode) -> Candidate {
    match mode {
        FlightMode::Off | FlightMode::Shadow if c.confirmed < c.overlap => {
            Candidate { overlap: c.confirmed, tail: 0.0, ..*c }
        }
        _ => *c,
    }
}

fn as_counted(candidates: &[Candidate], mode: FlightMode) -> SmallVec<[Candidate; 8]> {
    candidates.iter().map(|c| counted(c, mode)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::cost::Tokens;
    use crate::policy::testing;
    use proptest::prelude::*;

    const NEW: RouteRequest = RouteRequest {
        body_bytes: 200_000,
        prompt_bytes: 200_000,
        blocks: 97,
        tokens: Tokens { prompt: 50_000.0, block: 512.0, output: 200.0, turns: 0.0 },
        salt: 0,
    };

    fn params(policy: PolicyKind, mode: FlightMode) -> Params {
        Params { flight: FlightParams { mode, ..FlightParams::default() }, ..testing::params(policy) }
    }

    fn candidate(id: u16, overlap: u32, confirmed: u32, load: u32) -> Candidate {
        let queue_ms = f64::from(overlap - confirmed) * 65.0;
        let work = (queue_ms, f64::from(load.min(1)));
        Candidate { confirmed, ..testing::candidate(id, overlap, load, work) }
    }

    /// Replica 1 reads 96 blocks for another request.
    fn burst() -> [Candidate; 3] {
        [candidate(0, 0, 0, 0), candidate(1, 96, 0, 8), candidate(2, 0, 0, 0)]
    }

    #[test]
    fn followers_meet_at_the_leader_unless_waiting_costs_more() {
        for policy in [PolicyKind::Cost, PolicyKind::Affinity] {
            let p = params(policy, FlightMode::Colocate);
            let d = choose(NEW, &burst(), &p).unwrap();
            assert_eq!((d.ranked[0].id.0, d.flight), (1, Some(Flight::Follower)), "{policy:?}");
            let mut late = burst();
            late[1].prospect.queue_ms += 6000.0;
            late[1].load = 20;
            let d = choose(NEW, &late, &p).unwrap();
            assert_eq!((d.ranked[0].id.0 == 1, d.flight), (false, Some(Flight::Apart)), "{policy:?}");
        }
    }

    #[test]
    fn off_and_shadow_count_on_nothing_unread() {
        for policy in [PolicyKind::Cost, PolicyKind::Affinity] {
            for (mode, flight) in [(FlightMode::Off, None), (FlightMode::Shadow, Some(Flight::WouldMove))] {
                let d = choose(NEW, &burst(), &params(policy, mode)).unwrap();
                assert_eq!((d.ranked[0].id.0 == 1, d.flight), (false, flight), "{policy:?}");
                assert!(d.ranked.iter().all(|r| r.overlap == 0));
            }
        }
    }

    #[test]
    fn what_is_short_or_read_elsewhere_makes_no_flight() {
        let p = params(PolicyKind::Affinity, FlightMode::Colocate);
        let with = |overlap, confirmed| {
            let fleet = [candidate(0, confirmed, confirmed, 0), candidate(1, overlap, 0, 0)];
            choose(NEW, &fleet, &p).unwrap().flight
        };
        assert_eq!(with(7, 0), Some(Flight::Leader));
        assert_eq!(with(8, 0), Some(Flight::Follower));
        assert_eq!(with(96, 96), None, "another replica has read it");
        for policy in [PolicyKind::Load, PolicyKind::RoundRobin] {
            assert_eq!(choose(NEW, &burst(), &params(policy, FlightMode::Hold)).unwrap().flight, None);
        }
    }

    #[test]
    fn only_followers_are_kept_back_and_only_while_they_have_patience() {
        let p = params(PolicyKind::Cost, FlightMode::Hold);
        let follower = choose(NEW, &burst(), &p).unwrap();
        let hold = |streams, mode, left| hold_ms(&follower, streams, mode, left);
        assert_eq!(hold(true, FlightMode::Hold, 1500.0), Some(1500.0));
        assert_eq!((hold(true, FlightMode::Hold, 0.0), hold(true, FlightMode::Colocate, 1500.0)), (None, None));
        assert_eq!(hold(false, FlightMode::Hold, 9000.0), Some(follower.ranked[0].price.queue));
        let leader = choose(NEW, &[candidate(0, 0, 0, 0), candidate(1, 0, 0, 0)], &p).unwrap();
        assert_eq!(leader.flight, Some(Flight::Leader));
        assert_eq!(hold_ms(&leader, true, FlightMode::Hold, 1500.0), None);
    }

    #[test]
    fn labels_are_distinct() {
        let labels: std::collections::BTreeSet<_> = Flight::ALL.iter().map(|f| f.label()).collect();
        assert_eq!(labels.len(), Flight::ALL.len());
    }

    fn fleets() -> impl Strategy<Value = Vec<Candidate>> {
        prop::collection::vec((any::<bool>(), 0u32..97, 0u32..97, 0u32..40), 1..10).prop_map(|list| {
            let of = |(id, (healthy, a, b, load)): (u16, (bool, u32, u32, u32))| Candidate {
                healthy,
                ..candidate(id, a.max(b), a.min(b), load)
            };
            (0u16..).zip(list).map(of).collect()
        })
    }

    proptest! {
        #[test]
        fn the_order_of_the_candidates_does_not_matter(
            fleet in fleets(), policy in prop::sample::select(&PolicyKind::ALL), mode in prop::sample::select(&FlightMode::ALL), turn in 0usize..10,
        ) {
            let mut other = fleet.clone();
            other.rotate_left(turn % fleet.len());
            other.reverse();
            let p = params(policy, mode);
            prop_assert_eq!(choose(NEW, &fleet, &p), choose(NEW, &other, &p));
        }

        #[test]
        fn everybody_keeps_a_place_and_nobody_joins_where_it_costs_more(
            fleet in fleets(), policy in prop::sample::select(&PolicyKind::ALL), mode in prop::sample::select(&FlightMode::ALL), salt: u64,
        ) {
            let p = params(policy, mode);
            let request = RouteRequest { salt, ..NEW };
            let d = choose(request, &fleet, &p).unwrap();
            let plain = select(request, &fleet, &p).unwrap();
            let ids = |d: &Decision| { let mut ids: Vec<_> = d.ranked.iter().map(|r| r.id).collect(); ids.sort(); ids };
            prop_assert_eq!(ids(&d), ids(&plain));
            prop_assert_eq!(&d, &choose(request, &fleet, &p).unwrap());
            let first = d.ranked[0];
            if d.flight == Some(Flight::Follower) {
                prop_assert!(d.ranked.iter().all(|r| pays(&first, r, 1.0)));
            }
            if mode == FlightMode::Off {
                prop_assert_eq!(d.flight, None);
            }
        }
    }
}
