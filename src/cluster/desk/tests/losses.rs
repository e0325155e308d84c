//! What is lost, on this side and on that: nothing stays open for it.

use super::*;

#[test]
fn a_full_store_and_a_full_channel_lose_things_which_shows_as_a_missing_number() {
    let mut shop = Shop::default();
    let (mut a, mut b) = (Router::with(1, &["x"], "s"), Router::with(2, &["x"], "s"));
    let open = a.claim(&[11], 0);
    shop.round(&mut a, 0.0);
    shop.round(&mut b, 0.0);
    assert!(b.fleet.is_reading(&[11], ReplicaId(0)));
    shop.is_full = true;
    a.read(&[12], 0);
    shop.round(&mut a, 1.0);
    let counts = a.desk.take_counts();
    assert_eq!((counts.published, counts.lost), (1, [0, 3]));
    shop.is_full = false;
    a.read(&[13], 0);
    shop.round(&mut a, 2.0);
    shop.round(&mut b, 2.0);
    assert_eq!((b.holders(11), b.holders(12), b.holders(13)), (vec!["x".to_owned()], vec![], vec!["x".to_owned()]));
    assert!(!b.fleet.is_reading(&[11], ReplicaId(0)), "what was open may have ended meanwhile");
    drop(open);
    // more than the channel takes, at once
    (0..30).for_each(|n| a.read(&[100 + n], 0));
    shop.round(&mut a, 3.0);
    assert_eq!(a.desk.take_counts().lost, [1 + 30 * 3 - 64, 0]);
    a.read(&[500], 0);
    shop.round(&mut a, 4.0);
    shop.round(&mut b, 4.0);
    assert_eq!(b.holders(500), ["x"]);
}

#[test]
fn what_is_lost_behind_a_full_channel_leaves_nothing_open() {
    let mut shop = Shop::default();
    let (mut a, mut b) = (Router::with(1, &["x"], "s"), Router::with(2, &["x"], "s"));
    shop.round(&mut a, 0.0);
    shop.round(&mut b, 0.0);
    // while the store takes its time, the channel is filled; the end of what is in it is lost
    let open = a.claim(&[11], 0);
    (0..21).for_each(|n| a.read(&[100 + n], 0));
    drop(open);
    assert_eq!(a.desk.take_counts().lost, [1, 0]);
    shop.round(&mut a, 1.0);
    shop.round(&mut b, 1.0);
    assert!(!b.fleet.is_reading(&[11], ReplicaId(0)), "although nothing follows");
    // nor does what was lost on its way
    let open = a.claim(&[12], 0);
    shop.round(&mut a, 2.0);
    shop.round(&mut b, 2.0);
    assert!(b.fleet.is_reading(&[12], ReplicaId(0)));
    drop(open);
    shop.is_full = true;
    shop.round(&mut a, 3.0);
    shop.is_full = false;
    shop.round(&mut a, 4.0);
    shop.round(&mut b, 4.0);
    assert!(!b.fleet.is_reading(&[12], ReplicaId(0)));
}

#[test]
fn a_small_store_keeps_few_entries_where_they_are_large() {
    let mut router = Router::with(1, &["x"], "s");
    let entries: Vec<_> = (0..500).map(|n| ((n, 0), vec![0; 100 << 10])).collect();
    router.desk.incoming(Incoming { entries, ..Incoming::default() }, 0.0, 0);
    let keep = router.desk.outgoing(0.0, 0).keep;
    assert!((8..20).contains(&keep), "of a MiB it would take {keep} times 100 KiB");
}

#[test]
fn what_cannot_be_read_at_all_is_left_out_in_the_end() {
    let mut router = Router::with(1, &["x"], "s");
    let mut asks_after = |end| {
        router.desk.connected(end, false);
        router.desk.outgoing(0.0, 0).after
    };
    assert_eq!([(7, 0); 4].map(&mut asks_after), [(0, 0), (0, 0), (7, 0), (7, 0)]);
    assert_eq!(asks_after((9, 0)), (7, 0), "what comes later may be fine");
}

#[test]
fn a_store_that_has_lost_its_stream_is_read_from_its_beginning() {
    let mut shop = Shop { next: 100, ..Shop::default() };
    let (mut a, mut b) = (Router::with(1, &["x"], "s"), Router::with(2, &["x"], "s"));
    a.read(&[11], 0);
    shop.round(&mut a, 0.0);
    shop.round(&mut b, 0.0);
    shop = Shop::default();
    a.desk.connected((0, 0), false);
    b.desk.connected((0, 0), false);
    a.read(&[12], 0);
    shop.round(&mut a, 1.0);
    shop.round(&mut b, 1.0);
    assert_eq!((b.holders(11), b.holders(12)), (vec!["x".to_owned()], vec!["x".to_owned()]));
}
