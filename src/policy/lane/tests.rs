//! Who goes before whom, policy by policy, and what holds for every fleet.

use super::*;
use crate::policy::cost::Tokens;
use crate::policy::select::{Reason, select};
use crate::policy::testing::{self, params};
use proptest::prelude::*;

const OVER: u64 = 1_000_000;
const SHORT: RouteRequest = RouteRequest {
    body_bytes: 200_000,
    prompt_bytes: 200_000,
    blocks: 100,
    tokens: Tokens { prompt: 50_000.0, block: 500.0, output: 200.0, turns: 0.0 },
    salt: 0,
};
const LONG: RouteRequest = RouteRequest { body_bytes: OVER + 1, ..SHORT };

fn candidate(id: u16, overlap: u32, load: u32) -> Candidate {
    testing::candidate(id, overlap, load, (f64::from(load) * 2000.0, f64::from(load)))
}

fn ill(id: u16) -> Candidate {
    Candidate { healthy: false, ..candidate(id, 0, 0) }
}

/// The order in which replicas would be tried, and the gate. The even ones are the lane.
fn order(
    request: RouteRequest,
    candidates: &[Candidate],
    policy: PolicyKind,
    short: ShortPrompts,
) -> (Vec<u16>, Gate, usize) {
    let d = decide(request, candidates, policy, short);
    (d.ranked.iter().map(|r| r.id.0).collect(), d.gate, d.preferred)
}

fn decide(request: RouteRequest, candidates: &[Candidate], policy: PolicyKind, short: ShortPrompts) -> Decision {
    let (lane, params) = (Lane { over: OVER, short }, params(policy));
    let members: Members<'_> = (&lane, &|id| id.0.is_multiple_of(2));
    choose(request, candidates, &params, Some(members), |group| select(request, group, &params)).unwrap()
}

#[test]
fn a_long_prompt_goes_to_the_lane_whatever_others_hold_and_to_others_only_without_one() {
    let fleet = [candidate(0, 0, 8), candidate(1, 100, 0), candidate(2, 0, 3), candidate(3, 0, 1)];
    for short in ShortPrompts::ALL {
        let got = order(LONG, &fleet, PolicyKind::Affinity, short);
        assert_eq!(got, (vec![2, 0, 1, 3], Gate::Long, 2));
    }
    let lane_down = [ill(0), candidate(1, 100, 0), ill(2), candidate(3, 0, 1)];
    assert_eq!(order(LONG, &lane_down, PolicyKind::Affinity, ShortPrompts::Exclusive), (vec![1, 3], Gate::NoLane, 2));
    // exactly the limit is not beyond it
    let limit = RouteRequest { body_bytes: OVER, ..LONG };
    assert_eq!(order(limit, &fleet, PolicyKind::Affinity, ShortPrompts::Exclusive).0[0], 1);
}

#[test]
fn exclusive_keeps_short_ones_out_until_nobody_else_is_healthy() {
    let fleet = [candidate(0, 100, 0), candidate(1, 0, 90), candidate(3, 0, 80)];
    let exclusive = ShortPrompts::Exclusive;
    assert_eq!(order(SHORT, &fleet, PolicyKind::Affinity, exclusive), (vec![3, 1, 0], Gate::KeptOut, 2));
    let alone = [candidate(0, 0, 0), ill(1), ill(3)];
    assert_eq!(order(SHORT, &alone, PolicyKind::Affinity, exclusive), (vec![0], Gate::LetIn, 1));
    let nobody = [ill(0), ill(1)];
    let d = decide(SHORT, &nobody, PolicyKind::Affinity, exclusive);
    assert_eq!((d.ranked[0].id.0, d.reason), (1, Reason::FailOpen));
}

#[test]
fn avoid_keeps_a_session_that_is_cached_in_the_lane() {
    let avoid = ShortPrompts::Avoid;
    for policy in [PolicyKind::Affinity, PolicyKind::Cost] {
        let warm = [candidate(0, 98, 0), candidate(1, 40, 0)];
        assert_eq!(order(SHORT, &warm, policy, avoid), (vec![0, 1], Gate::LetIn, 2), "{policy:?}");
        let hardly = [candidate(0, 50, 0), candidate(1, 40, 0)];
        assert_eq!(order(SHORT, &hardly, policy, avoid), (vec![1, 0], Gate::KeptOut, 1), "{policy:?}");
        let cold = [candidate(0, 0, 0), candidate(1, 0, 1)];
        assert_eq!(order(SHORT, &cold, policy, avoid), (vec![1, 0], Gate::KeptOut, 1), "{policy:?}");
    }
    // policies that do not look at overlap do not look at it here either
    let warm = [candidate(0, 98, 0), candidate(1, 40, 0)];
    assert_eq!(order(SHORT, &warm, PolicyKind::Load, avoid).1, Gate::KeptOut);
}

#[test]
fn avoid_opens_the_lane_when_the_others_are_busier_by_more_than_it_costs() {
    let avoid = ShortPrompts::Avoid;
    for policy in [PolicyKind::Affinity, PolicyKind::Cost, PolicyKind::Load] {
        let at = |load| order(SHORT, &[candidate(0, 0, 0), candidate(1, 0, load)], policy, avoid).1;
        assert_eq!((at(1), at(60)), (Gate::KeptOut, Gate::LetIn), "{policy:?}");
    }
}

#[test]
fn without_a_replica_in_the_lane_short_ones_are_ranked_as_ever() {
    let none_there = [candidate(1, 5, 0), candidate(3, 9, 0)];
    let none_healthy = [ill(0), candidate(1, 5, 0), candidate(3, 9, 0)];
    for short in ShortPrompts::ALL {
        for fleet in [&none_there[..], &none_healthy[..]] {
            assert_eq!(order(SHORT, fleet, PolicyKind::Affinity, short), (vec![3, 1], Gate::Open, 2), "{short:?}");
        }
        assert_eq!(order(LONG, &none_there, PolicyKind::Affinity, short), (vec![3, 1], Gate::Open, 2), "{short:?}");
    }
}

fn fleets() -> impl Strategy<Value = Vec<Candidate>> {
    let one = (0u32..120, 0u32..40, any::<bool>());
    prop::collection::vec(one, 1..8).prop_map(|all| {
        (0u16..)
            .zip(all)
            .map(|(id, (overlap, load, healthy))| Candidate { healthy, ..candidate(id, overlap, load) })
            .collect()
    })
}

proptest! {
    #[test]
    fn everybody_who_may_be_asked_is_ranked_once_and_groups_never_mix(
        fleet in fleets(), long in any::<bool>(), short in prop::sample::select(ShortPrompts::ALL.to_vec()),
        policy in prop::sample::select(PolicyKind::ALL.to_vec()), salt in any::<u64>(),
    ) {
        let request = RouteRequest { salt, ..if long { LONG } else { SHORT } };
        let (ranked, gate, preferred) = order(request, &fleet, policy, short);
        let fail_open = fleet.iter().all(|c| !c.healthy);
        let mut wanted: Vec<u16> = fleet.iter().filter(|c| c.healthy || fail_open).map(|c| c.id.0).collect();
        let mut got = ranked.clone();
        got.sort_unstable();
        wanted.sort_unstable();
        prop_assert_eq!(&got, &wanted);
        prop_assert!((1..=ranked.len()).contains(&preferred));
        let in_lane = |id: &u16| id.is_multiple_of(2);
        let has_both = wanted.iter().any(in_lane) && !wanted.iter().all(in_lane);
        if has_both && long {
            prop_assert!(ranked[..preferred].iter().all(in_lane) && !ranked[preferred..].iter().any(in_lane));
            prop_assert_eq!(gate, Gate::Long);
        } else if has_both && short == ShortPrompts::Exclusive {
            prop_assert!(!ranked[..preferred].iter().any(in_lane) && ranked[preferred..].iter().all(in_lane));
        } else if has_both && short == ShortPrompts::Avoid {
            prop_assert!(ranked[preferred..].iter().all(in_lane));
            prop_assert_eq!(gate == Gate::LetIn, in_lane(&ranked[0]));
        }
        let again = order(request, &fleet.iter().rev().copied().collect::<Vec<_>>(), policy, short);
        prop_assert_eq!(again, (ranked, gate, preferred));
    }

    #[test]
    fn what_avoid_lets_in_it_lets_in_when_the_others_are_busier_still(
        fleet in fleets(), more in 0u32..40, policy in prop::sample::select(PolicyKind::ALL.to_vec()),
    ) {
        let fleet: Vec<_> = fleet.iter().map(|c| Candidate { healthy: true, ..*c }).collect();
        let (_, before, _) = order(SHORT, &fleet, policy, ShortPrompts::Avoid);
        let busier: Vec<_> = fleet
            .iter()
            .map(|c| if c.id.0 % 2 == 0 { *c } else { candidate(c.id.0, c.overlap, c.load + more) })
            .collect();
        let (_, after, _) = order(SHORT, &busier, policy, ShortPrompts::Avoid);
        prop_assert!(policy == PolicyKind::RoundRobin || before != Gate::LetIn || after == Gate::LetIn);
    }
}
