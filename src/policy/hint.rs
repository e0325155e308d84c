//! Session hints: a name that a client gives its conversation, or that was derived from its text. Pure.
//!
//! The same name goes to the same replica, its *home*, while that is neither overloaded nor gone. What a hint can be
//! worth is known: at most the time to read, at the home, what the index does not say it holds, and at most the time to
//! read at the cheapest other replica what that does not hold, those included who wait for that at the home. Beyond that
//! load going there is cheaper even if the home holds all of the prompt. This is the *break point*; no hint overrides it,
//! and what the index knows counts fully besides. For a short prompt it would lie below one other request at the home; a
//! name that the client gave is worth that much.
//! And a session may prove to be worth less: where its prompts change near their head from turn to turn, most engines find
//! nothing of the turn before, home or not. What they found lately, of what the index did not know, counts.
//!
//! A name that nobody knows begins by *rendezvous*: the replica with the largest hash of (name, replica's name), among
//! those that are as good as the best. Several routers agree on it, and a replica that comes or goes moves no names but
//! those that it gets or had. It decides between equals only: load is never overridden by it.

use super::flight::{Flight, counted};
use super::select::{Candidate, Decision, Params, Ranked, Reason, RouteRequest, select};
use crate::types::{PolicyKind, ReplicaId};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Prices that differ by less than this share of what is to be read are equal: the time that takes is known no better. Two
/// routers that see the same fleet a little differently then begin a session at the same replica. Where little is to be
/// read, little is lost if they do not. Nor do prices differ by less than one step of the batch: a prompt that comes
/// earlier waits for the next one.
const NOISE: f64 = 0.1;

/// What a session that its client names may cost more at its home however short the prompt: one short request before it
/// does not make a home overloaded, as two of a session at once often show.
const PATIENCE_MS: f64 = 500.0;

/// What names a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    /// The hash of its name and model.
    pub key: u64,
    /// Who named it.
    pub source: Source,
}

/// Who named a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The client.
    Named,
    /// Nobody: it is told by its text, which counts only where the index knows little of the prompt.
    Derived,
}

/// Where a session was last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Home {
    /// The replica.
    pub replica: ReplicaId,
    /// Of what the session had read at its home and the index knew nothing of, the share that was held there all the
    /// same, lately. 1 until anything tells.
    pub worth: f64,
}

/// What became of a hint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HintUse {
    /// The session's home; `None` when it has none, or its home takes no requests.
    pub home: Option<ReplicaId>,
    /// By how much the home may cost more than the cheapest other replica, in milliseconds; 0 without a home. The cost
    /// policy's measure; the others have their own.
    pub break_ms: f64,
    /// Whether the session stays at its home.
    pub stays: bool,
}

/// The weight of a replica, known by the hash of its name, for a session; the largest wins.
pub fn rendezvous(key: u64, name: u64) -> u64 {
    xxh3_64_with_seed(&name.to_le_bytes(), key)
}

/// Weighs a hint against a decision, which it may change. `home` is where the session was last, `weight`
/// that of a replica for a session; see [`rendezvous`].
pub fn weigh(
    mut decision: Decision,
    (hint, home): (Hint, Option<Home>),
    (request, candidates): (RouteRequest, &[Candidate]),
    params: &Params,
    weight: impl Fn(u64, ReplicaId) -> u64,
) -> Decision {
    let lead = decision.ranked.unordered().iter().map(|r| r.overlap).max().unwrap_or(0);
    let is_known = hint.source == Source::Derived && u64::from(lead) * 2 >= u64::from(request.blocks);
    let settled = matches!(decision.reason, Reason::Only | Reason::FailOpen | Reason::RoundRobin);
    if is_known || settled || decision.flight == Some(Flight::Follower) {
        return decision;
    }
    let Some(first) = decision.ranked.first().copied() else { return decision };
    let step_ms = first.price.answer / request.tokens.output.max(1.0);
    let is_near = |r: &&Ranked| is_near((&first, step_ms), r, params.policy);
    let there = home.and_then(|home| Some((*decision.ranked.of(home.replica)?, home.worth)));
    let Some((there, worth)) = there else {
        let near = || decision.ranked.unordered().iter().filter(is_near);
        if near().nth(1).is_some() {
            let winner = near().max_by_key(|r| (weight(hint.key, r.id), std::cmp::Reverse(r.id)));
            let winner = winner.map_or(first.id, |r| r.id);
            decision.ranked.put_first(winner);
            decision.reason = Reason::Hint;
        }
        decision.hint = Some(HintUse { home: None, break_ms: 0.0, stays: false });
        return decision;
    };
    let other = decision.ranked.unordered().iter().filter(|r| r.id != there.id);
    let cheaper = |a: &&Ranked, b: &&Ranked| a.price.total().total_cmp(&b.price.total()).then(a.id.cmp(&b.id));
    let Some(other) = other.min_by(cheaper) else { return decision };
    let floor = if hint.source == Source::Named { PATIENCE_MS } else { 0.0 };
    let unread_ms = there.price.prefill.min(other.price.prefill);
    let break_ms = (worth * unread_ms * there.price.reading() / there.price.prefill.max(f64::MIN_POSITIVE)).max(floor);
    let is_held = first.overlap >= request.blocks.max(1);
    let stays = is_near(&&there)
        || match params.policy {
            PolicyKind::Cost => there.price.total() - other.price.total() < break_ms,
            PolicyKind::Affinity => {
                worth > 0.5 && !is_held && wins_with_all(there.id, (request, hint.source), candidates, params)
            }
            PolicyKind::Load | PolicyKind::RoundRobin => false,
        };
    if stays {
        let has_equals = there.id != first.id || decision.ranked.unordered().iter().filter(is_near).nth(1).is_some();
        decision.ranked.put_first(there.id);
        decision.reason = if has_equals { Reason::Hint } else { decision.reason };
    }
    decision.hint = Some(HintUse { home: Some(there.id), break_ms, stays });
    decision
}

/// Whether a candidate is as good as the first of its ranking, where a step takes so long.
fn is_near((first, step_ms): (&Ranked, f64), r: &Ranked, policy: PolicyKind) -> bool {
    match policy {
        PolicyKind::Cost => {
            let noise = step_ms.max(NOISE * first.price.prefill);
            first.score - r.score <= noise && r.overlap >= first.overlap
        }
        PolicyKind::Affinity => r.score.total_cmp(&first.score).is_eq() && r.overlap == first.overlap,
        PolicyKind::Load | PolicyKind::RoundRobin => r.score.total_cmp(&first.score).is_eq(),
    }
}

/// The least overlap whose credit outweighs a unit of load, as far as credit goes.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "capped, and not negative")]
fn unit_in_blocks(params: &Params) -> u32 {
    let cap = params.affinity.cap_blocks;
    (params.affinity.alpha.min(f64::from(cap)) as u32 + 1).min(cap.max(1))
}

/// Whether `home` would be first if it held all of the prompt; for a session that its client names, of one long enough
/// to be worth a unit of load.
fn wins_with_all(
    home: ReplicaId,
    (request, source): (RouteRequest, Source),
    candidates: &[Candidate],
    params: &Params,
) -> bool {
    let floor = if source == Source::Named { unit_in_blocks(params) } else { 1 };
    let whole = request.blocks.max(floor);
    let mode = params.flight.mode;
    let with_all = |c: &Candidate| match c.id == home {
        true => Candidate { overlap: whole, tail: 0.0, ..*c },
        false => counted(c, mode),
    };
    let supposed: smallvec::SmallVec<[Candidate; 8]> = candidates.iter().map(with_all).collect();
    select(request, &supposed, params).and_then(|d| d.ranked.first().map(|r| r.id)) == Some(home)
}

#[cfg(test)]
mod tests {
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
        Home { replica: ReplicaId(id), worth: 1.0 }
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
        let d =
            |policy, load| with(policy, NAMED, Some(1), &[candidate(0, 0, 0), candidate(1, 0, load)]).ranked[0].id.0;
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
}
