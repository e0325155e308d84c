//! Words of operators: whose counts, and where.

use super::*;
use std::time::Duration;

/// Which replicas an operator keeps requests away from.
fn drained(router: &Router) -> Vec<String> {
    router.fleet.replicas().iter().filter(|r| r.is_barred()).map(|r| r.name().to_owned()).collect()
}

#[test]
fn a_drain_is_everybodys_and_outlives_the_store() {
    let mut shop = Shop::default();
    let mut all = [Router::with(1, &["x", "y"], "s"), Router::with(2, &["y", "x"], "s"), Router::with(3, &["y"], "s")];
    let mut now = 0.0;
    let mut pass = |shop: &mut Shop, all: &mut [Router; 3]| {
        for _ in 0..4 {
            now += 600.0;
            all.iter_mut().for_each(|router| _ = shop.round(router, now));
        }
    };
    pass(&mut shop, &mut all);
    all[0].fleet.replicas()[0].drain(true, 0.0);
    pass(&mut shop, &mut all);
    assert_eq!(all.each_ref().map(drained), [vec!["x".to_owned()], vec!["x".to_owned()], vec![]]);
    // the store has forgotten everything
    shop = Shop { next: shop.next, ..Shop::default() };
    all.iter_mut().for_each(|router| router.desk.connected((0, 0), false));
    pass(&mut shop, &mut all);
    let mut late = Router::with(4, &["x"], "s");
    shop.round(&mut late, 1e5);
    assert_eq!(drained(&late), ["x"]);
    // another one takes it back
    all[1].fleet.replicas()[1].drain(false, 0.0);
    pass(&mut shop, &mut all);
    assert_eq!(all.each_ref().map(drained), [vec![], Vec::<String>::new(), vec![]]);
}

#[test]
fn a_router_that_learns_of_a_replica_after_its_drain_undrains_nobody() {
    let mut shop = Shop::default();
    let mut all = [Router::with(1, &["x", "y"], "s"), Router::with(2, &["y"], "s")];
    let mut now = 0.0;
    let mut pass = |all: &mut [Router; 2]| {
        for _ in 0..4 {
            now += 600.0;
            all.iter_mut().for_each(|router| _ = shop.round(router, now));
        }
    };
    pass(&mut all);
    all[0].fleet.replicas()[0].drain(true, 0.0);
    pass(&mut all);
    let members = |names: &[&str]| names.iter().map(|name| Wanted { spec: spec(name), address: None }).collect();
    for _ in 0..2 {
        all[1].fleet.change(members(&["y", "x"]));
        all[1].fleet.tidy();
        pass(&mut all);
        assert_eq!(all.each_ref().map(drained), [["x"], ["x"]]);
        // it goes, and will be back
        all[1].fleet.change(members(&["y"]));
        all[1].fleet.tidy();
        pass(&mut all);
    }
    assert_eq!(drained(&all[0]), ["x"]);
}

#[test]
fn whose_sessions_are_to_leave_at_once_after_all_is_left_at_once_everywhere() {
    let mut shop = Shop::default();
    let mut all = [Router::with(1, &["x"], "s"), Router::with(2, &["x"], "s")];
    let mut now = 0.0;
    let mut pass = |all: &mut [Router; 2]| {
        for _ in 0..6 {
            now += 600.0;
            all.iter_mut().for_each(|router| _ = shop.round(router, now));
        }
    };
    let stays = |router: &Router| {
        let replica = router.fleet.replicas()[0].clone();
        (replica.is_barred(), replica.leaves_by(router.fleet.clock().now()).is_some())
    };
    let drain = |router: &Router, within| router.fleet.drain(&router.fleet.replicas()[0], within);
    pass(&mut all);
    drain(&all[0], Some(Duration::from_secs(600)));
    pass(&mut all);
    assert_eq!(all.each_ref().map(stays), [(true, true); 2]);
    drain(&all[0], None);
    pass(&mut all);
    assert_eq!(all.each_ref().map(stays), [(true, false); 2]);
}

#[test]
fn what_is_said_while_the_store_is_away_is_not_undone_by_an_older_word_when_it_is_back() {
    let mut shop = Shop::default();
    let mut all = [Router::with(1, &["x", "y"], "s"), Router::with(2, &["x", "y"], "s")];
    let mut now = 0.0;
    let mut pass = |shop: &mut Shop, all: &mut [Router], away: &mut [Router]| {
        for _ in 0..4 {
            now += 600.0;
            all.iter_mut().for_each(|router| _ = shop.round(router, now));
            for router in &mut *away {
                router.hand.set(now);
                router.desk.pass(false, (now, 1_000_000 + whole_ms(now)));
            }
        }
    };
    pass(&mut shop, &mut all, &mut []);
    all[1].fleet.replicas()[0].drain(true, 0.0);
    pass(&mut shop, &mut all, &mut []);
    assert_eq!(all.each_ref().map(drained), [["x"], ["x"]]);
    // one of them does not reach the store; an operator speaks to the other one, and then to it
    let [a, b] = &mut all;
    let (a, b) = (std::slice::from_mut(a), std::slice::from_mut(b));
    b[0].fleet.replicas()[0].drain(false, 0.0);
    b[0].fleet.replicas()[1].drain(true, 0.0);
    pass(&mut shop, b, a);
    a[0].fleet.replicas()[1].drain(true, 0.0);
    pass(&mut shop, b, a);
    a[0].fleet.replicas()[1].drain(false, 0.0);
    pass(&mut shop, b, a);
    a[0].desk.connected((0, 0), false);
    pass(&mut shop, &mut all, &mut []);
    assert_eq!(all.each_ref().map(drained), [Vec::<String>::new(), vec![]], "the last word about each");
}

#[test]
fn a_drain_that_a_process_was_told_before_it_knew_the_store_has_the_time_when_it_was_said() {
    let mut shop = Shop::default();
    let (mut a, mut b) = (Router::with(1, &["x", "y"], "s"), Router::with(2, &["x", "y"], "s"));
    // x is drained and used again at 1 s; y at 3 s
    for (replica, second) in [(0, 1.0), (1, 3.0)] {
        for (drains, after) in [(true, 0.0), (false, 100.0)] {
            let now = second * 1000.0 + after;
            (0..3).for_each(|n| _ = shop.round(&mut a, now + f64::from(n)));
            a.fleet.replicas()[replica].drain(drains, now);
            shop.round(&mut a, now + 10.0);
        }
    }
    // this one has been told to drain both at 2 s, as the store was away
    b.hand.set(2000.0);
    b.fleet.replicas().iter().for_each(|replica| replica.drain(true, 2000.0));
    b.desk.pass(false, (2000.0, 1_002_000));
    for n in 0..4 {
        let now = 5000.0 + 600.0 * f64::from(n);
        [&mut b, &mut a].into_iter().for_each(|router| _ = shop.round(router, now));
    }
    assert_eq!([&a, &b].map(drained), [["x"], ["x"]], "y was used again after that");
}
