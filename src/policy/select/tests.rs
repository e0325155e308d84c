//! Properties that every choice keeps, and the published rule worked through by hand.

use super::*;
use crate::policy::testing;
use crate::types::Basis;
use proptest::prelude::*;

const TURN: Tokens = Tokens { prompt: 150_000.0, block: 512.0, output: 200.0, turns: 0.0 };

fn params(policy: PolicyKind, basis: Basis) -> Params {
    let shipped = testing::params(policy);
    Params { affinity: AffinityParams { basis, ..shipped.affinity }, ..shipped }
}

fn candidate(id: u16, overlap: u32, load: u32) -> Candidate {
    let n = f64::from(load);
    testing::candidate(id, overlap, load, (n * 100.0, n))
}

fn winner(candidates: &[Candidate], params: &Params, salt: u64) -> (u16, Reason) {
    let d = select(
        RouteRequest { body_bytes: 100_000, prompt_bytes: 100_000, blocks: 300, tokens: TURN, salt },
        candidates,
        params,
    )
    .unwrap();
    (d.ranked[0].id.0, d.reason)
}

#[test]
fn relative_keeps_a_session_until_load_outweighs_its_lead() {
    let p = params(PolicyKind::Affinity, Basis::Relative);
    // both hold a common harness of 40 blocks, replica 0 the whole session of 200
    let at = |load| winner(&[candidate(0, 200, load), candidate(1, 40, 0)], &p, 0);
    assert_eq!(at(7), (0, Reason::Affinity));
    assert_eq!(at(9), (1, Reason::Spill));
    // absolute cannot tell them apart: both are over the cap
    let p = params(PolicyKind::Affinity, Basis::Absolute);
    assert_eq!(winner(&[candidate(0, 200, 1), candidate(1, 40, 0)], &p, 0), (1, Reason::Spill));
}

#[test]
fn reasons_name_what_decided() {
    let p = params(PolicyKind::Affinity, Basis::Relative);
    assert_eq!(winner(&[candidate(0, 0, 3), candidate(1, 0, 0)], &p, 0), (1, Reason::Cold));
    assert_eq!(winner(&[candidate(4, 9, 3)], &p, 0), (4, Reason::Only));
    let ill = Candidate { healthy: false, ..candidate(0, 0, 0) };
    assert_eq!(winner(&[ill, candidate(1, 0, 9)], &p, 0), (1, Reason::Only));
    assert_eq!(winner(&[ill, Candidate { id: ReplicaId(1), ..ill }], &p, 1), (1, Reason::FailOpen));
    let request = RouteRequest { body_bytes: 1, prompt_bytes: 1, blocks: 300, tokens: TURN, salt: 0 };
    assert_eq!(select(request, &[], &p), None);
    let nothing_to_compare = RouteRequest { blocks: 0, ..request };
    let d = select(nothing_to_compare, &[candidate(0, 0, 3), candidate(1, 0, 0)], &p).unwrap();
    assert_eq!((d.ranked[0].id.0, d.reason), (1, Reason::Load));
}

#[test]
fn equal_candidates_take_turns() {
    for policy in PolicyKind::ALL {
        let p = params(policy, Basis::Relative);
        let all: Vec<_> = (0..5).map(|n| candidate(n, 0, 0)).collect();
        let turns: Vec<_> = (0..10).map(|salt| winner(&all, &p, salt).0).collect();
        assert_eq!(turns, [0, 1, 2, 3, 4, 0, 1, 2, 3, 4], "{policy:?}");
    }
}

#[test]
fn load_does_not_look_at_overlap() {
    let p = params(PolicyKind::Load, Basis::Relative);
    assert_eq!(winner(&[candidate(0, 500, 2), candidate(1, 0, 1)], &p, 0), (1, Reason::Load));
    assert_eq!(winner(&[candidate(0, 0, 1), candidate(1, 500, 1)], &p, 0), (0, Reason::Load));
}

fn fleets() -> impl Strategy<Value = Vec<Candidate>> {
    prop::collection::vec((any::<bool>(), 0u32..600, 0u32..60), 1..12).prop_map(|list| {
        (0u16..)
            .zip(list)
            .map(|(id, (healthy, overlap, load))| Candidate { healthy, ..candidate(id, overlap, load) })
            .collect()
    })
}

fn rules() -> impl Strategy<Value = Params> {
    (prop::sample::select(&PolicyKind::ALL), prop::sample::select(&Basis::ALL)).prop_map(|(p, b)| params(p, b))
}

proptest! {
    #[test]
    fn never_an_unhealthy_replica_while_a_healthy_one_exists(fleet in fleets(), p in rules(), salt: u64) {
        let d = select(RouteRequest { body_bytes: 1, prompt_bytes: 1, blocks: 300, tokens: TURN, salt }, &fleet, &p).unwrap();
        let healthy = fleet.iter().filter(|c| c.healthy).count();
        prop_assert_eq!(d.ranked.len(), if healthy == 0 { fleet.len() } else { healthy });
        prop_assert_eq!(d.reason == Reason::FailOpen, healthy == 0);
        prop_assert!(d.ranked.iter().all(|r| r.score.is_finite() && r.units >= 1));
    }

    #[test]
    fn the_order_of_the_candidates_does_not_matter(fleet in fleets(), p in rules(), salt: u64, turn in 0usize..12) {
        let mut other = fleet.clone();
        other.rotate_left(turn % fleet.len());
        other.reverse();
        let request = RouteRequest { body_bytes: 1, prompt_bytes: 1, blocks: 300, tokens: TURN, salt };
        prop_assert_eq!(select(request, &fleet, &p), select(request, &other, &p));
    }

    /// Equal candidates take turns in the order of their slots, and whoever is better goes before: worked out by rotating
    /// and sorting all of them.
    #[test]
    fn it_is_what_sorting_everything_gives(fleet in fleets(), p in rules(), salt: u64, turns in 0usize..12) {
        let request = RouteRequest { body_bytes: 1, prompt_bytes: 1, blocks: 300, tokens: TURN, salt };
        let decision = select(request, &fleet, &p).unwrap();
        let mut plain: Vec<Ranked> = decision.ranked.to_vec();
        plain.sort_by_key(|r| r.id);
        let turn = usize::try_from(salt % plain.len() as u64).unwrap();
        plain.rotate_left(turn);
        let order = Order { by_overlap: looks_at_overlap(p.policy), turn: ReplicaId(0) };
        plain.sort_by(|a, b| order.merit(a, b));
        prop_assert_eq!(&decision.ranked[..], &plain[..]);
        let mut other = fleet.clone();
        other.rotate_left(turns % fleet.len());
        let other = select(request, &other, &p).unwrap();
        prop_assert_eq!(other.ranked.first(), plain.first());
    }

    /// But under the affinity rule's relative and marginal bases, whose credit is measured against the others.
    #[test]
    fn a_loser_that_goes_does_not_change_the_winner(
        fleet in fleets(), policy in prop::sample::select(&[PolicyKind::Cost, PolicyKind::Affinity, PolicyKind::Load][..]), salt: u64, pick in 0usize..12,
    ) {
        let p = params(policy, Basis::Absolute);
        let request = RouteRequest { body_bytes: 1, prompt_bytes: 1, blocks: 300, tokens: TURN, salt };
        let before = select(request, &fleet, &p).unwrap();
        prop_assert_eq!(&before, &select(request, &fleet, &p).unwrap());
        // between equals the turn decides, and there is one fewer to take turns
        let order = Order { by_overlap: looks_at_overlap(policy), turn: ReplicaId(0) };
        let ties = |r: &Ranked| order.merit(r, &before.ranked[0]).is_eq();
        prop_assume!(before.ranked.len() > 1 && before.ranked.iter().filter(|r| ties(r)).count() == 1);
        let loser = before.ranked[1 + pick % (before.ranked.len() - 1)].id;
        let left: Vec<_> = fleet.into_iter().filter(|c| c.id != loser).collect();
        prop_assert_eq!(select(request, &left, &p).unwrap().ranked[0].id, before.ranked[0].id);
    }

    #[test]
    fn more_load_never_improves_a_place_and_more_overlap_never_worsens_it(
        fleet in fleets(), p in rules(), salt: u64, pick in 0usize..12, more in 1u32..50,
    ) {
        let n = pick % fleet.len();
        let request = RouteRequest { body_bytes: 1, prompt_bytes: 1, blocks: 300, tokens: TURN, salt };
        let place = |fleet: &[Candidate]| {
            select(request, fleet, &p).unwrap().ranked.iter().position(|r| r.id == fleet[n].id)
        };
        prop_assume!(place(&fleet).is_some());
        let mut busier = fleet.clone();
        busier[n] = Candidate { healthy: busier[n].healthy, ..candidate(busier[n].id.0, busier[n].overlap, busier[n].load + more) };
        prop_assert!(place(&busier) >= place(&fleet));
        let mut warmer = fleet.clone();
        warmer[n].overlap += more;
        prop_assert!(place(&warmer) <= place(&fleet), "{:?}", p);
    }
}
