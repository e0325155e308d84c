//! When a replica is empty, and who may stay at one that is left slowly.

use super::super::Fleet;
use super::super::clock::Clock;
use super::super::replica::Replica;
use super::super::reservation::{Reservation, Share};
use super::super::selection::RouteKey;
use super::super::testing::spec;
use crate::pack;
use crate::policy::cost::Tokens;
use crate::policy::hint::{Hint, Source};
use crate::policy::select::RouteRequest;
use crate::policy::testing::{TURN, params};
use crate::prefix::fingerprint::{Ends, Place};
use crate::prefix::residency::Size;
use crate::types::{PolicyKind, ReplicaId};
use std::sync::Arc;
use std::time::Duration;

const SHARE: Share = Share { units: 1, prefill_ms: 1.0, whole_ms: 1.0, decode_ms: 1.0, streams: true, generates: true };
const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn it_is_empty_when_its_last_request_has_gone() {
    let (replica, clock) = (Arc::new(Replica::new(ReplicaId(0), spec("r"))), Clock::default());
    let held = Reservation::new(replica.clone(), SHARE, clock.clone());
    let began = clock.now();
    replica.drain(true, began);
    assert_eq!((replica.drained_since(), replica.empty_since(began)), (Some(began), None));
    drop(held);
    let empty = replica.empty_since(clock.now()).unwrap();
    assert!(empty >= began);
    replica.drain(true, empty + 1.0);
    assert_eq!((replica.drained_since(), replica.empty_since(empty)), (Some(began), Some(empty)));
    replica.drain(false, empty + 2.0);
    assert_eq!((replica.drained_since(), replica.empty_since(empty)), (None, None));
}

/// Blocks of a session.
fn chain(session: u64, blocks: u64) -> Arc<[u64]> {
    (0..blocks).map(|n| session * 1_000_000 + n).collect()
}

/// Two replicas, and at the first of them sessions of so many blocks of 500 tokens each.
fn fleet(sessions: &[u64]) -> (Fleet, super::super::clock::Hand) {
    let (clock, hand) = Clock::manual();
    hand.set(1.0);
    let fleet = Fleet::new(vec![spec("a"), spec("b")], params(PolicyKind::Cost), 1 << 22).on(clock);
    for (session, blocks) in (1..).zip(sessions) {
        let own = Some(Place { print: session * 77, blocks: u32::try_from(*blocks).unwrap() });
        let tokens = 500.0 * f64::from(u32::try_from(*blocks).unwrap());
        let size = Size { prompt: tokens, block: 500.0, ends: Ends { previous: None, own } };
        let mut residency = fleet.residency.write();
        let (claim, _) = residency.claim(&chain(session, *blocks), size, ReplicaId(0));
        residency.confirm(claim);
        residency.ended(claim, own, 10.0);
    }
    (fleet, hand)
}

/// Who would be asked for the next turn of a session of so many blocks, of which the last `new` are new.
fn asked(fleet: &Fleet, session: u64, blocks: u64, new: u64) -> Vec<u16> {
    let prompt = 500.0 * f64::from(u32::try_from(blocks + new).unwrap());
    let tokens = Tokens { prompt, block: 500.0, output: 100.0, turns: 0.0 };
    let request = RouteRequest { blocks: u32::try_from(blocks + new).unwrap(), tokens, ..TURN };
    let hint = Some(Hint { key: session, source: Source::Named });
    let key = RouteKey { request, model: None, previous: None, session: hint };
    let replicas = fleet.members();
    let seen = fleet.candidates(replicas.iter(), &key, &chain(session, blocks + new));
    seen.iter().filter(|c| c.healthy).map(|c| c.id.0).collect()
}

/// Which of the sessions may still be served at the first replica.
fn staying(fleet: &Fleet, sessions: &[u64]) -> Vec<u64> {
    (1..).zip(sessions).filter(|(n, blocks)| asked(fleet, *n, **blocks, 1).contains(&0)).map(|(_, b)| *b).collect()
}

#[test]
fn within_a_time_the_dearest_sessions_move_last_and_all_have_moved_at_its_end() {
    let sessions = [100, 10, 40, 200];
    let (fleet, hand) = fleet(&sessions);
    assert_eq!(staying(&fleet, &sessions).len(), 4);
    let a = fleet.replicas()[0].clone();
    fleet.drain(&a, Some(HOUR));
    assert_eq!(asked(&fleet, 9, 100, 1), [1], "a new session");
    assert_eq!(asked(&fleet, 4, 200, 900), [1], "most of it is new");
    let mut before = staying(&fleet, &sessions);
    assert!(before.len() > 2, "{before:?}");
    for minute in 1..=60u32 {
        hand.set(1.0 + 60_000.0 * f64::from(minute));
        let now = staying(&fleet, &sessions);
        assert!(now.iter().all(|b| before.contains(b)), "who has gone stays away");
        let dearest = sessions.iter().filter(|b| !now.contains(b)).max().copied().unwrap_or(0);
        assert!(now.iter().all(|b| *b > dearest), "{now:?}: {dearest} has gone");
        // the others make up three sevenths of what has to be read again
        assert!(minute > 25 || now.contains(&200), "{now:?} at {minute}");
        before = now;
    }
    assert!(before.is_empty(), "{before:?}");
    assert!(a.empty_since(fleet.clock().now()).is_some());
}

#[test]
fn nothing_else_lets_anybody_in() {
    let sessions = [100, 100];
    let (fleet, _hand) = fleet(&sessions);
    let a = fleet.replicas()[0].clone();
    let now = fleet.clock().now();
    fleet.drain(&a, Some(HOUR));
    assert!(!staying(&fleet, &sessions).is_empty() && a.empty_since(now).is_none());
    // it fails its probes
    let once = crate::policy::health::Thresholds { failures: 1, successes: 1 };
    let failed = crate::policy::health::Observation::Failed(crate::policy::health::FenceReason::Connect);
    a.observe(failed, once, now);
    assert!(staying(&fleet, &sessions).is_empty());
    a.observe(crate::policy::health::Observation::Ready, once, now);
    assert!(!staying(&fleet, &sessions).is_empty());
    // drained at once after all, and no more
    fleet.drain(&a, None);
    assert!(staying(&fleet, &sessions).is_empty() && a.empty_since(now).is_some());
    a.drain(false, now);
    assert_eq!(staying(&fleet, &sessions).len(), 2);
}

#[test]
fn it_is_empty_before_its_time_when_all_have_moved_and_the_next_process_goes_on_with_it() {
    let sessions = [100, 50];
    let (fleet, _hand) = fleet(&sessions);
    let a = fleet.replicas()[0].clone();
    fleet.drain(&a, Some(HOUR));
    fleet.tidy();
    assert_eq!((fleet.residents(&a).0, a.leaves_by(fleet.clock().now()).is_some()), (2, true));
    let next = Fleet::new(vec![spec("b"), spec("a")], params(PolicyKind::Cost), 1 << 22).on(fleet.clock());
    next.inherit(pack::open(&pack::seal(&fleet.state())).unwrap());
    let b = next.replicas()[1].clone();
    assert_eq!(b.drained_since(), a.drained_since());
    assert_eq!((b.leaves_by(1.0), next.residents(&b).0), (a.leaves_by(1.0), 2));
    // an order that comes after the snapshot
    fleet.replicas()[0].drain(false, fleet.clock().now());
    next.obey(fleet.orders());
    assert_eq!(b.drained_since(), None);
    fleet.drain(&a, Some(HOUR));
    fleet.forget(a.id);
    fleet.tidy();
    assert!(a.empty_since(fleet.clock().now()).is_some());
}
