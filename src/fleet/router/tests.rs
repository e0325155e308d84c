//! Leaders and followers without sockets: whatever they do, all go on and nothing is left.

use super::super::landing::Landing;
use super::super::replica::Replica;
use super::super::selection::backend;
use super::super::testing::spec;
use super::*;
use crate::fleet::clock::Clock;
use crate::policy::flight::FlightParams;
use crate::policy::hint::{Source, rendezvous};
use crate::policy::select::Params;
use crate::policy::testing::params;
use crate::prefix::fingerprint::Place;
use crate::prefix::residency::Served;
use crate::types::{FlightMode, PolicyKind};
use pingora_load_balancing::Backends;
use pingora_load_balancing::discovery::Static;

/// Nobody has to wait for so long: who does has been forgotten.
const FOR_EVER: f64 = 3_600_000.0;
const PATIENCE: Duration = Duration::from_secs(30);

async fn router(policy: PolicyKind, replicas: u16) -> Arc<Router> {
    let flight = FlightParams { mode: FlightMode::Hold, max_hold_ms: FOR_EVER, ..FlightParams::default() };
    let params = Params { flight, ..params(policy) };
    let specs = (0..replicas).map(|n| spec(&format!("r{n}"))).collect();
    over(Fleet::new(specs, params, 1 << 20)).await
}

async fn over(fleet: Fleet) -> Arc<Router> {
    let fleet = Arc::new(fleet);
    let members = fleet.replicas().iter().map(|r| backend(r, ([127, 0, 0, 1], 1).into())).collect();
    let balancer = LoadBalancer::from_backends_with_config(Backends::new(Static::new(members)), Some(fleet.clone()));
    balancer.update().await.unwrap();
    Arc::new(Router::new(fleet, Arc::new(balancer)))
}

/// A prompt of 100 blocks of a text, then one of its own.
fn chain(text: u64, own: u64) -> Arc<[u64]> {
    (0..100).map(|n| text << 32 | n << 8 | 1).chain([text << 32 | own << 40 | 2]).collect()
}

fn prompt(chain: &Arc<[u64]>) -> Prompt<'_> {
    Prompt {
        request: 1,
        ends: Ends::default(),
        chain,
        body_bytes: 206_848,
        prompt_bytes: 206_848,
        model: None,
        streams: true,
        session: None,
        pinned: None,
    }
}

/// What a request does once it is at its replica.
#[derive(Clone, Copy)]
enum Fate {
    Reads,
    Fails,
    /// It fails and is read elsewhere.
    Moves,
}

/// A request as the proxy plays it; how often it was kept back.
async fn play(router: &Router, chain: Arc<[u64]>, fate: Fate) -> usize {
    let mut kept_back = 0;
    loop {
        let placed = router.place(prompt(&chain), FOR_EVER).unwrap();
        let mut claim = match placed.next {
            Next::Go(claim) => claim,
            Next::Wait(leader, at_most) => {
                kept_back += 1;
                match leader.landed(at_most).await {
                    Some(Landing::Failed) => continue,
                    _ => router.claim(placed.reservation.replica().id, prompt(&chain)),
                }
            }
        };
        tokio::task::yield_now().await;
        match fate {
            Fate::Reads => claim.confirm(),
            Fate::Fails => {}
            Fate::Moves => {
                drop((claim, placed.reservation));
                let (_reservation, mut claim) = router.take(placed.decision.ranked[1], prompt(&chain)).unwrap();
                tokio::task::yield_now().await;
                claim.confirm();
            }
        }
        return kept_back;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_leaders_do_every_follower_goes_on_and_nothing_is_left() {
    let mut kept_back = 0;
    for round in 0..30 {
        let policy = [PolicyKind::Cost, PolicyKind::Affinity][round % 2];
        let router = router(policy, 3).await;
        let tasks: Vec<_> = (0..40)
            .zip(0usize..)
            .map(|(n, turn)| {
                let (router, text) = (router.clone(), n % 3);
                let fate = [Fate::Fails, Fate::Reads, Fate::Moves, Fate::Fails][(turn * 7 + round) % 4];
                let task = tokio::spawn(async move { play(&router, chain(text, n), fate).await });
                // a few clients leave, at whatever moment
                if (turn + round).is_multiple_of(5) {
                    task.abort();
                }
                task
            })
            .collect();
        for task in tasks {
            match tokio::time::timeout(PATIENCE, task).await.expect("somebody waits for ever") {
                Ok(times) => kept_back += times,
                Err(e) => assert!(e.is_cancelled(), "{e}"),
            }
        }
        let fleet = router.fleet();
        assert!(fleet.landings.is_empty());
        assert!(fleet.replicas().iter().all(|r| (r.load(), r.inflight()) == (0, 0)));
        for text in 0..3 {
            let reads = |r: &Arc<Replica>| fleet.residency.read().reader(&chain(text, 0), r.id).is_some();
            assert!(!fleet.replicas().iter().any(reads));
        }
    }
    assert!(kept_back > 0, "nobody was ever kept back");
}

#[tokio::test]
async fn when_a_leader_fails_one_of_its_followers_leads() {
    let router = router(PolicyKind::Cost, 3).await;
    let place = |own| {
        let chain = chain(1, own);
        router.place(prompt(&chain), FOR_EVER).unwrap()
    };
    let leader = place(0);
    assert!(matches!(leader.next, Next::Go(_)));
    let followers = [place(1), place(2)];
    assert!(followers.iter().all(|f| matches!(f.next, Next::Wait(..))));
    assert!(followers.iter().all(|f| f.reservation.replica().id == leader.reservation.replica().id));
    assert_eq!(leader.reservation.replica().inflight(), 3);
    drop(leader);
    for follower in followers {
        let Next::Wait(leader, at_most) = follower.next else { panic!("it waits") };
        assert_eq!(leader.landed(at_most).await, Some(Landing::Failed));
    }
    let (first, second) = (place(1), place(2));
    assert!(matches!(first.next, Next::Go(_)) && matches!(second.next, Next::Wait(..)));
    // without patience nobody waits
    let chain = chain(1, 3);
    assert!(matches!(router.place(prompt(&chain), 0.0).unwrap().next, Next::Go(_)));
}

/// A turn of a session whose turn before ended at `before`, if there was one.
fn turn(chain: &Arc<[u64]>, before: Option<u64>, own: u64) -> Prompt<'_> {
    let place = |print| Place { print, blocks: 101 };
    Prompt { ends: Ends { previous: before.map(place), own: Some(place(own)) }, ..prompt(chain) }
}

#[tokio::test]
async fn in_a_crowded_fleet_guests_are_read_in_turn_and_nobody_else_waits() {
    let (clock, hand) = Clock::manual();
    let specs = vec![spec("a"), spec("b")];
    let router = over(Fleet::new(specs, params(PolicyKind::Cost), 1 << 20).on(clock)).await;
    router.fleet().replicas().iter().for_each(|r| router.fleet().learn_capacity(r.id, 160_000));
    let chains: Vec<_> = (0..20).map(|n| chain(n, 0)).collect();
    let ask = |n: usize, before: Option<u64>, turn_of: Option<Standing>| {
        let own = 100 * n as u64 + before.unwrap_or(0) + 1;
        router.place_as(turn(&chains[n], before, own), 0.0, Asking { turn: turn_of, ..Asking::default() })
    };
    let read = |placed: Placed| {
        let Next::Go(mut claim) = placed.next else { panic!("it waits") };
        claim.confirm();
        placed.reservation
    };
    // ten sessions of 50,000 tokens come, and come back: six of them fit
    for n in 0..10 {
        drop(read(ask(n, None, Some(Standing::New)).unwrap()));
        drop(read(ask(n, Some(100 * n as u64 + 1), Some(Standing::New)).unwrap()));
    }
    let again = |n: usize, turn_of| ask(n, Some(200 * n as u64 + 2), turn_of);
    // idle replicas read whoever returns
    let busy = [0, 1].map(|n| read(again(n, Some(Standing::New)).unwrap()));
    assert_ne!(busy[0].replica().id, busy[1].replica().id);
    let waits = |placed| match placed {
        Err(Unplaced::Guest(waiting)) => waiting,
        other => panic!("it does not wait: {other:?}"),
    };
    let [first, second] = [2, 3].map(|n| waits(again(n, Some(Standing::New))));
    // who is held, is new, or has had its turn, goes at once
    let others = [again(9, Some(Standing::New)), ask(12, None, Some(Standing::New)), again(4, None)];
    let others = others.map(|placed| read(placed.unwrap()));
    // they go when it is time, one to each replica
    hand.set(60_000.0);
    let gone = [(3, second), (2, first)].map(|(n, guest)| read(again(n, Some(Standing::Waiting(guest))).unwrap()));
    assert_ne!(gone[0].replica().id, gone[1].replica().id);
    let third = waits(again(5, Some(Standing::New)));
    // or when nobody is there
    drop((busy, others, gone));
    assert!(again(5, Some(Standing::Waiting(third))).is_ok());
}

/// A turn of a session whose turn before, of 90 blocks, this router has not seen.
fn strange(key: u64, chain: &Arc<[u64]>) -> Prompt<'_> {
    Prompt {
        session: Some(Hint { key, source: Source::Named }),
        ends: Ends { previous: Some(Place { print: key, blocks: 90 }), own: None },
        ..prompt(chain)
    }
}

#[tokio::test]
async fn a_session_that_other_routers_serve_is_presumed_where_all_of_them_would_have_it() {
    let router = router(PolicyKind::Cost, 4).await;
    let replicas = router.fleet().replicas();
    let all: Vec<(ReplicaId, u64)> = replicas.iter().map(|r| (r.id, r.name_hash)).collect();
    let winner = |key: u64| all.iter().max_by_key(|(_, name)| rendezvous(key, *name)).unwrap().0;
    // where that goes while the winner of its rendezvous reads 20 blocks
    let goes = |key: u64| {
        let (long, short) = (chain(key, 1), chain(key + 1000, 1)[..20].into());
        let other = Prompt { pinned: Some(winner(key)), body_bytes: 40_960, prompt_bytes: 40_960, ..prompt(&short) };
        let busy = router.place(other, 0.0).unwrap();
        let placed = router.place(strange(key, &long), 0.0).unwrap();
        drop(busy);
        placed.decision.ranked.first().unwrap().id
    };
    assert!((0..16).all(|key| goes(key) != winner(key)), "a router that is alone");
    let at_home = |keys: std::ops::Range<u64>| keys.filter(|key| goes(*key) == winner(*key)).count();
    let served = |key: u64, share: f64| {
        let chain = chain(key, 1);
        let Placed { next: Next::Go(mut claim), .. } = router.place(strange(key, &chain), 0.0).unwrap() else {
            panic!()
        };
        claim.confirm();
        claim.served(Served { prompt: 50_000.0, cached: 50_000.0 * share, output: 1.0 });
    };
    served(20, 0.9);
    served(21, 0.9);
    assert_eq!(at_home(0..16), 16, "an engine has found what this router never sent there");
    (30..60).for_each(|key| served(key, 0.0));
    assert_eq!(at_home(0..16), 0, "and finds nothing any more");
}
