//! A session stays at its home up to the break point, and begins where all routers agree.

use super::*;
use crate::policy::cost::{Prospect, Tokens};
use crate::policy::testing::{self, TURN, params};
use proptest::prelude::*;

const NAMED: Hint = Hint { key: 11, source: Source::Named };

fn candidate(id: u16, overlap: u32, load: u32) -> Candidate {
    testing::candidate(id, overlap, load, (f64::from(load) * 800.0, 0.0))
}

fn with(policy: PolicyKind, hint: Hint, home: Option<u16>, fleet: &[Candidate]) -> Decision {
    let p = params(policy);
    let plain = select(TURN, fleet, &p).unwrap();
    weigh(plain, (hint, home.map(at)), (TURN, fleet), &p, |key, id| rendezvous(key, id.0.into()))
}

fn at(id: u16) -> Home {
    Home { replica: ReplicaId(id), worth: 1.0, lost: false }
}

#[test]
fn a_home_that_never_holds_more_than_the_index_says_is_none_to_wait_for() {
    let fleet = [candidate(0, 0, 0), candidate(1, 0, 2)];
    let stays = |worth, policy| {
        let (p, home) = (params(policy), Home { worth, ..at(1) });
        let plain = select(TURN, &fleet, &p).unwrap();
        weigh(plain, (NAMED, Some(home)), (TURN, &fleet), &p, |key, id| rendezvous(key, id.0.into())).ranked[0].id.0
            == 1
    };
    for policy in [PolicyKind::Cost, PolicyKind::Affinity] {
        assert!(stays(1.0, policy) && !stays(0.1, policy), "{policy:?}");
    }
}

#[test]
fn a_home_that_has_lost_all_is_left_where_others_idle_and_not_where_they_would_be_disturbed() {
    let stays = |lost, decoding| {
        let queued = |id, queue_ms, decoding| Candidate {
            prospect: Prospect { queue_ms, decoding, ..Prospect::IDLE },
            ..candidate(id, 0, 0)
        };
        let (p, home, fleet) =
            (params(PolicyKind::Cost), Home { lost, ..at(1) }, [queued(0, 0.0, decoding), queued(1, 9e3, 0.0)]);
        let plain = select(TURN, &fleet, &p).unwrap();
        weigh(plain, (NAMED, Some(home)), (TURN, &fleet), &p, |key, id| rendezvous(key, id.0.into())).ranked[0].id.0
            == 1
    };
    // 25,000 tokens take 3.3 s; of the 9 s that it would wait for, three who generate are 4 s
    assert_eq!(
        [(false, 0.0), (true, 0.0), (false, 3.0), (true, 3.0)].map(|(lost, n)| stays(lost, n)),
        [false, false, false, true]
    );
}

#[test]
fn the_smaller_part_of_a_prompt_that_is_being_read_elsewhere_takes_no_session_from_its_home() {
    let stays = |reading| {
        let p = params(PolicyKind::Cost);
        let fleet = [Candidate { confirmed: 0, ..candidate(0, reading, 0) }, candidate(1, 0, 0)];
        let together = super::super::flight::choose(TURN, &fleet, &p).unwrap();
        assert_eq!(together.flight, Some(Flight::Follower));
        let d = weigh(together, (NAMED, Some(at(1))), (TURN, &fleet), &p, |_, _| 0);
        (d.ranked[0].id.0 == 1, d.flight)
    };
    assert_eq!([stays(20), stays(40)], [(true, Some(Flight::Apart)), (false, Some(Flight::Follower))]);
}

#[test]
fn a_short_prompt_of_a_named_session_waits_for_one_other() {
    let tokens = Tokens { prompt: 1000.0, ..TURN.tokens };
    let short = RouteRequest { body_bytes: 4000, prompt_bytes: 4000, blocks: 2, tokens, ..TURN };
    let stays = |policy, source, busy: Candidate| {
        let (p, fleet) = (params(policy), [candidate(0, 0, 0), busy]);
        let plain = select(short, &fleet, &p).unwrap();
        let hint = (Hint { source, ..NAMED }, Some(at(1)));
        weigh(plain, hint, (short, &fleet), &p, |key, id| rendezvous(key, id.0.into())).ranked[0].id == ReplicaId(1)
    };
    let queued = |ms| Candidate { prospect: Prospect { queue_ms: ms, ..Prospect::IDLE }, ..candidate(1, 0, 1) };
    for (source, ms, want) in
        [(Source::Named, 300.0, true), (Source::Named, 900.0, false), (Source::Derived, 300.0, false)]
    {
        assert_eq!(stays(PolicyKind::Cost, source, queued(ms)), want, "{source:?} {ms}");
    }
    for (source, load, want) in [(Source::Named, 1, true), (Source::Named, 2, false), (Source::Derived, 1, false)] {
        assert_eq!(stays(PolicyKind::Affinity, source, candidate(1, 0, load)), want, "{source:?} {load}");
    }
}

#[test]
fn a_session_stays_at_its_home_up_to_the_break_point() {
    // 25,000 tokens take 3.3 s to read: a queue of 3.2 s is worth it, one of 4 s is not
    for (load, stays) in [(0, true), (4, true), (5, false)] {
        let d = with(PolicyKind::Cost, NAMED, Some(1), &[candidate(0, 0, 0), candidate(1, 0, load)]);
        assert_eq!(d.ranked[0].id.0 == 1, stays, "{load}");
        let hint = d.hint.unwrap();
        assert_eq!((hint.home, hint.stays), (Some(ReplicaId(1)), stays));
        assert!((3200.0..3500.0).contains(&hint.break_ms));
        assert_eq!(d.reason, if stays { Reason::Hint } else { Reason::Cold });
        assert!(d.ranked.iter().all(|r| r.overlap == 0), "what is predicted to be cached stays honest");
    }
    // 32 blocks of credit against 4 a unit
    for (load, stays) in [(0, true), (7, true), (9, false)] {
        let d = with(PolicyKind::Affinity, NAMED, Some(1), &[candidate(0, 0, 0), candidate(1, 0, load)]);
        assert_eq!(d.ranked[0].id.0 == 1, stays, "{load}");
    }
    // between equals only, or not at all
    let d = |policy, load| with(policy, NAMED, Some(1), &[candidate(0, 0, 0), candidate(1, 0, load)]).ranked[0].id.0;
    assert_eq!((d(PolicyKind::Load, 0), d(PolicyKind::Load, 1)), (1, 0));
    assert_eq!(d(PolicyKind::RoundRobin, 0), 0);
}

#[test]
fn what_the_index_knows_counts_besides() {
    // the home holds half: what is left to be supposed of it is worth half
    let at = |load| with(PolicyKind::Cost, NAMED, Some(1), &[candidate(0, 0, 0), candidate(1, 24, load)]);
    let hint = at(4).hint.unwrap();
    assert!(hint.stays && (1500.0..1800.0).contains(&hint.break_ms), "{hint:?}");
    assert!(!at(5).hint.unwrap().stays);
    // another one holds all of it, or three quarters
    for policy in [PolicyKind::Cost, PolicyKind::Affinity] {
        let d = with(policy, NAMED, Some(1), &[candidate(0, 48, 0), candidate(1, 0, 0)]);
        assert_eq!((d.ranked[0].id.0, d.reason), (0, Reason::Affinity), "{policy:?}");
    }
    let d = with(PolicyKind::Cost, NAMED, Some(1), &[candidate(0, 36, 0), candidate(1, 36, 1)]);
    assert!(d.ranked[0].id.0 == 1 && d.hint.unwrap().break_ms < 900.0);
}

#[test]
fn a_derived_name_counts_only_where_the_index_knows_little() {
    let derived = Hint { source: Source::Derived, ..NAMED };
    let home = |overlap| with(PolicyKind::Cost, derived, Some(1), &[candidate(0, overlap, 0), candidate(1, 0, 0)]);
    assert_eq!(home(23).ranked[0].id.0, 1);
    assert_eq!((home(24).ranked[0].id.0, home(24).hint), (0, None));
}

#[test]
fn an_unknown_name_decides_between_equals_only() {
    for policy in [PolicyKind::Cost, PolicyKind::Affinity, PolicyKind::Load] {
        let fleet = [candidate(0, 0, 0), candidate(1, 0, 0), candidate(2, 0, 1)];
        let homes: Vec<u16> =
            (0..64).map(|key| with(policy, Hint { key, ..NAMED }, None, &fleet).ranked[0].id.0).collect();
        assert!(homes.contains(&0) && homes.contains(&1) && !homes.contains(&2), "{policy:?} {homes:?}");
        // a home that is gone is like none
        let gone: Vec<u16> =
            (0..64).map(|key| with(policy, Hint { key, ..NAMED }, Some(9), &fleet).ranked[0].id.0).collect();
        assert_eq!(gone, homes);
    }
}

#[test]
fn routers_that_see_the_fleet_a_little_differently_agree_where_a_session_begins() {
    // of a turn that takes 3.3 s to read, each of them is off by up to 160 ms
    let view = |router: u64, key: u64| -> Vec<Candidate> {
        let off = |id: u16| (rendezvous(router ^ key, id.into()) % 160) as f64;
        (0..8).map(|id| testing::candidate(id, 0, 0, (off(id), 0.0))).collect()
    };
    let begins = |router, key| with(PolicyKind::Cost, Hint { key, ..NAMED }, None, &view(router, key)).ranked[0].id;
    let agree = (0..200).filter(|key| begins(1 << 40, *key) == begins(2 << 40, *key)).count();
    assert_eq!(agree, 200);
    let at_first: std::collections::BTreeSet<_> = (0..200).map(|key| begins(1 << 40, key)).collect();
    assert_eq!(at_first.len(), 8);
}

#[test]
fn a_session_of_short_prompts_begins_where_it_is_read_first() {
    let tokens = Tokens { prompt: 700.0, output: 1300.0, ..TURN.tokens };
    let request = RouteRequest { blocks: 1, tokens, ..TURN };
    let (p, queued) = (params(PolicyKind::Cost), |id, ms| testing::candidate(id, 0, 0, (ms, 0.0)));
    let fleet = [queued(0, 100.0), queued(1, 0.0), queued(2, 5.0)];
    let begins = |key| {
        let plain = select(request, &fleet, &p).unwrap();
        let hint = (Hint { key, ..NAMED }, None);
        weigh(plain, hint, (request, &fleet), &p, |key, id| rendezvous(key, id.0.into())).ranked[0].id.0
    };
    let seen: std::collections::BTreeSet<_> = (0..64).map(begins).collect();
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [1, 2]);
}

fn fleets() -> impl Strategy<Value = Vec<Candidate>> {
    prop::collection::vec((any::<bool>(), 0u32..49, 0u32..40), 2..10).prop_map(|list| {
        let of = |(id, (healthy, overlap, load)): (u16, (bool, u32, u32))| Candidate {
            healthy,
            ..candidate(id, overlap, load)
        };
        (0u16..).zip(list).map(of).collect()
    })
}

proptest! {
    #[test]
    fn a_replica_that_goes_moves_only_its_own_names(names in prop::collection::hash_set(any::<u64>(), 2..20), keys in prop::collection::vec(any::<u64>(), 1..60)) {
        let names: Vec<u64> = names.into_iter().collect();
        let home = |key: u64, names: &[u64]| names.iter().copied().max_by_key(|n| rendezvous(key, *n));
        let left = &names[1..];
        for key in keys {
            let before = home(key, &names);
            prop_assert!(before == Some(names[0]) || home(key, left) == before);
        }
    }

    #[test]
    fn a_new_replica_gets_its_share_of_new_names_and_moves_no_other(n in 1u16..10, seed: u64) {
        let home = |replicas: u16, key: u64| {
            let fleet: Vec<_> = (0..replicas).map(|id| candidate(id, 0, 0)).collect();
            with(PolicyKind::Cost, Hint { key, ..NAMED }, None, &fleet).ranked[0].id.0
        };
        let keys = 600u64;
        let moved: Vec<_> = (0..keys).map(|k| seed.wrapping_add(k)).filter(|k| home(n, *k) != home(n + 1, *k)).collect();
        prop_assert!(moved.iter().all(|key| home(n + 1, *key) == n));
        let share = moved.len() as f64 * f64::from(n + 1) / keys as f64;
        prop_assert!((0.5..1.6).contains(&share), "{share} of its share");
    }

    #[test]
    fn the_order_of_the_candidates_does_not_matter(
        fleet in fleets(), policy in prop::sample::select(&PolicyKind::ALL), key: u64, home in prop::option::of(0u16..10), turn in 0usize..10,
    ) {
        let mut other = fleet.clone();
        other.rotate_left(turn % fleet.len());
        other.reverse();
        let hint = Hint { key, ..NAMED };
        prop_assert_eq!(with(policy, hint, home, &fleet), with(policy, hint, home, &other));
    }

    #[test]
    fn a_hint_never_overrides_health_nor_the_break_point(
        fleet in fleets(), policy in prop::sample::select(&PolicyKind::ALL), key: u64, home in prop::option::of(0u16..10), salt: u64,
    ) {
        let (p, request) = (params(policy), RouteRequest { salt, ..TURN });
        let plain = select(request, &fleet, &p).unwrap();
        let hint = Hint { key, source: Source::Named };
        let d = weigh(plain.clone(), (hint, home.map(at)), (request, &fleet), &p, |key, id| rendezvous(key, id.0.into()));
        let ids = |d: &Decision| { let mut ids: Vec<_> = d.ranked.iter().map(|r| r.id).collect(); ids.sort(); ids };
        prop_assert_eq!(ids(&d), ids(&plain));
        let least = d.ranked.iter().map(|r| r.price.total()).fold(f64::INFINITY, f64::min);
        let first = d.ranked[0];
        match policy {
            PolicyKind::Cost => {
                let best = d.ranked.iter().map(|r| r.price.prefill).fold(0.0, f64::max);
                let step = d.ranked.iter().map(|r| r.price.answer).fold(0.0, f64::max) / TURN.tokens.output;
                let worth = if d.hint.is_some_and(|h| h.stays) { first.price.prefill } else { NOISE * best };
                prop_assert!(first.price.total() <= least + worth.max(step) + 1e-6);
            }
            PolicyKind::Load => prop_assert_eq!(first.load, plain.ranked[0].load),
            PolicyKind::Affinity => prop_assert!(f64::from(first.load) * 4.0 <= 32.0 + f64::from(plain.ranked[0].load) * 4.0),
            PolicyKind::RoundRobin => prop_assert_eq!(first.id, plain.ranked[0].id),
        }
    }
}
