//! What is void: what engines have lost, and whose slots are others' now.

use super::*;
use crate::policy::hint::{Hint, Source};

#[test]
fn what_an_engine_has_lost_is_believed_by_nobody_from_then_on_however_late_they_hear_of_it() {
    let mut shop = Shop::default();
    let (mut a, mut b) = (Router::with(1, &["x", "y"], "s"), Router::with(2, &["y", "x"], "s"));
    let mut c = Router::with(3, &["x", "y"], "s");
    for n in 0..3 {
        [&mut a, &mut b, &mut c].into_iter().for_each(|router| _ = shop.round(router, f64::from(n) * 100.0));
    }
    a.read(&[11], 0);
    a.read(&[12], 1);
    [&mut a, &mut b, &mut c].into_iter().for_each(|router| _ = shop.round(router, 1000.0));
    let all = |router: &Router| [11, 12, 13, 14].map(|print| router.holders(print).len());
    assert_eq!([&a, &b, &c].map(all), [[1, 1, 0, 0]; 3]);
    // only this one has a connection by which the engine says so
    a.hand.set(5000.0);
    a.fleet.emptied(ReplicaId(0));
    a.read(&[13], 0);
    (0..2).for_each(|n| [&mut a, &mut b].into_iter().for_each(|router| _ = shop.round(router, 5001.0 + f64::from(n))));
    assert_eq!([&a, &b, &c].map(all), [[0, 1, 1, 0], [0, 1, 1, 0], [1, 1, 0, 0]]);
    // this one was away, and has learned something since that was so
    c.hand.set(6000.0);
    c.fleet.mark();
    c.hand.set(20_000.0);
    c.read(&[14], 0);
    (0..2).for_each(|n| [&mut a, &mut b, &mut c].into_iter().for_each(|r| _ = shop.round(r, 30_000.0 + f64::from(n))));
    assert_eq!([&a, &b, &c].map(all), [[0, 1, 1, 1]; 3]);
}

#[test]
fn what_an_engine_has_lost_is_not_believed_by_a_router_that_starts_later() {
    let mut shop = Shop::default();
    let (mut a, mut b) = (Router::with(1, &["x", "y"], "s"), Router::with(2, &["x", "y"], "s"));
    a.read(&[11], 0);
    a.read(&[12], 1);
    shop.round(&mut a, 0.0);
    shop.round(&mut b, 0.0);
    a.fleet.forget(ReplicaId(0));
    a.read(&[13], 0);
    shop.round(&mut a, 1.0);
    shop.round(&mut b, 1.0);
    let all = |router: &Router| [11, 12, 13].map(|print| router.holders(print).len());
    assert_eq!((all(&a), all(&b)), ([0, 1, 1], [1, 1, 1]), "whose engine is another one sees for itself");
    let mut late = Router::with(3, &["x", "y"], "s");
    while shop.round(&mut late, 2.0) {}
    assert_eq!(all(&late), [0, 1, 1]);
    // one that has left and is forgotten begins cold when it is back, and others know what they know
    a.fleet.change(vec![Wanted { spec: spec("x"), address: None }]);
    a.fleet.tidy();
    shop.round(&mut a, 3.0);
    shop.round(&mut b, 4.0);
    let mut late = Router::with(4, &["x", "y"], "s");
    while shop.round(&mut late, 5.0) {}
    assert_eq!((all(&b), all(&late)), ([1, 1, 1], [0, 0, 1]));
}

#[test]
fn what_was_learned_of_one_that_has_left_is_not_told_of_who_has_its_slot_next() {
    let mut shop = Shop::default();
    let (mut a, mut b) = (Router::with(1, &["x", "y"], "s"), Router::with(2, &["x", "y", "z"], "s"));
    shop.round(&mut a, 0.0);
    shop.round(&mut b, 0.0);
    let change = |router: &Router, names: &[&str]| {
        router.fleet.change(names.iter().map(|name| Wanted { spec: spec(name), address: None }).collect());
        router.fleet.tidy();
    };
    let slot = |router: &Router, name: &str| router.fleet.replicas().iter().find(|r| r.name() == name).map(|r| r.id.0);
    a.read(&[11], 1);
    change(&a, &["x"]);
    change(&a, &["x", "z"]);
    a.read(&[12], slot(&a, "z").unwrap());
    shop.round(&mut a, 100.0);
    shop.round(&mut b, 100.0);
    assert_eq!((b.holders(11), b.holders(12)), (vec!["y".to_owned()], vec!["z".to_owned()]));
    // then the slot is free
    change(&a, &["x", "z", "w"]);
    assert_eq!(slot(&a, "w"), Some(1));
    // also while the store is away
    change(&a, &["x", "z"]);
    a.desk.pass(false, (200.0, 1_000_200));
    change(&a, &["x", "z", "v"]);
    assert_eq!(slot(&a, "v"), Some(1));
    // and of one that comes and leaves while the store takes its time
    change(&a, &["x", "z", "v", "y"]);
    a.desk.wait(300.0);
    a.read(&[13], slot(&a, "y").unwrap());
    change(&a, &["x", "z", "v"]);
    a.desk.wait(400.0);
    change(&a, &["x", "z", "v", "w"]);
    assert_eq!((slot(&a, "y"), slot(&a, "w")), (None, Some(4)));
    shop.round(&mut a, 500.0);
    shop.round(&mut b, 500.0);
    assert_eq!(b.holders(13), ["y"]);
}

/// Which of these prompts somebody holds, by the belief of each of them.
fn held(routers: &[&Router], prints: &[u64]) -> Vec<Vec<u64>> {
    let is_held = |router: &Router, print: u64| !router.holders(print).is_empty();
    routers.iter().map(|r| prints.iter().copied().filter(|print| is_held(r, *print)).collect()).collect()
}

#[test]
fn who_was_cut_off_believes_nothing_of_what_it_reads_that_was_lost_since() {
    let mut shop = Shop::default();
    let (mut a, mut b) = (Router::with(1, &["x", "y"], "s"), Router::with(2, &["y", "x"], "s"));
    let mut pass = |router: &mut Router, ms: f64| while shop.round(router, ms) {};
    [0.0, 500.0].into_iter().for_each(|ms| [&mut a, &mut b].into_iter().for_each(|router| pass(router, ms)));
    let session = Hint { key: 5, source: Source::Named };
    a.hand.set(1000.0);
    a.claim(&[11], 0).of(1, Some(session)).confirm();
    // more than is read at a time
    for n in 0..u32::try_from(2 * ENTRIES).unwrap() {
        a.hand.set(1000.0 + f64::from(n));
        a.read(&[100 + u64::from(n)], 0);
        pass(&mut a, 1000.0 + f64::from(n));
    }
    a.hand.set(2000.0);
    a.fleet.emptied(ReplicaId(0));
    a.hand.set(3000.0);
    a.read(&[12], 0);
    pass(&mut a, 3001.0);
    // this one goes on alone meanwhile
    for (ms, print) in [(1500.0, 13), (2500.0, 14)] {
        b.hand.set(ms);
        b.desk.pass(false, (ms, 1_000_000 + whole_ms(ms)));
        b.read(&[print], 1);
    }
    b.hand.set(2600.0);
    b.fleet.mark();
    pass(&mut b, 8000.0);
    assert_eq!(held(&[&b], &[11, 12, 13, 14, 110, 220]), [[12, 14]]);
    let home = b.fleet.last_of(session).map(|last| (last.replica, last.tokens <= 0.0));
    assert_eq!(home, Some((ReplicaId(1), true)), "nor is it as good a home as it was");
}

#[test]
fn who_tells_late_is_not_believed_of_what_was_lost_since_whoever_has_noticed() {
    let mut shop = Shop::default();
    let [mut a, mut b, mut c] = [1, 2, 3].map(|me| Router::with(me, &["x", "y"], "s"));
    [&mut a, &mut b, &mut c].into_iter().for_each(|router| _ = shop.round(router, 0.0));
    // the store takes its time with this one
    a.hand.set(1000.0);
    a.read(&[11], 0);
    a.read(&[12], 1);
    b.hand.set(2000.0);
    b.fleet.emptied(ReplicaId(0));
    a.hand.set(2500.0);
    a.read(&[13], 0);
    (0..2).for_each(|n| [&mut b, &mut c].into_iter().for_each(|r| _ = shop.round(r, 2600.0 + f64::from(n))));
    // and what it has noticed itself does not fit into a round with what it had learned before
    let most: Vec<u64> = (0..1 << 15).collect();
    (0..9u64).for_each(|n| a.read(&most.iter().map(|print| print + 1000 + (n << 32)).collect::<Vec<_>>(), 1));
    a.hand.set(3000.0);
    a.fleet.emptied(ReplicaId(1));
    a.hand.set(3500.0);
    a.read(&[14], 1);
    for n in 0..4 {
        [&mut a, &mut b, &mut c].into_iter().for_each(|router| _ = shop.round(router, 4000.0 + f64::from(n) * 500.0));
        assert_eq!(held(&[&b, &c], &[11, 12, 1000]), [[0; 0]; 2], "not for a moment");
    }
    assert_eq!(held(&[&b, &c], &[11, 12, 13, 14, 1000]), [[13, 14]; 2]);
}

#[test]
fn what_was_on_its_way_when_it_was_lost_is_lost() {
    let mut shop = Shop::default();
    let (mut a, mut b) = (Router::with(1, &["x"], "s"), Router::with(2, &["x"], "s"));
    [&mut a, &mut b].into_iter().for_each(|router| _ = shop.round(router, 0.0));
    a.hand.set(1000.0);
    a.read(&[11], 0);
    shop.round(&mut a, 1002.0);
    a.hand.set(1005.0);
    a.fleet.emptied(ReplicaId(0));
    shop.round(&mut b, 1006.0);
    assert_eq!(held(&[&b], &[11]), [[11]]);
    b.hand.set(1040.0);
    b.fleet.mark();
    b.read(&[12], 0);
    shop.round(&mut a, 1050.0);
    shop.round(&mut b, 1060.0);
    assert_eq!(held(&[&b], &[11, 12]), [[12]]);
}

#[test]
fn what_was_lost_at_a_slot_says_nothing_of_who_has_it_next() {
    let a = Router::with(1, &["x", "y"], "s");
    a.hand.set(1000.0);
    a.fleet.emptied(ReplicaId(1));
    assert!(a.fleet.is_void(ReplicaId(1), 999.0) && !a.fleet.is_void(ReplicaId(1), 1000.0));
    let mut a = a;
    for names in [&["x"][..], &["x", "z"]] {
        a.fleet.change(names.iter().map(|name| Wanted { spec: spec(name), address: None }).collect());
        a.fleet.tidy();
        a.desk.pass(false, (1001.0, 1_001_001));
    }
    assert!(!a.fleet.is_void(ReplicaId(1), 999.0));
}
