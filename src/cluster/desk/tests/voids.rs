//! What is void: what engines have lost, and whose slots are others' now.

use super::*;

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
}
