//! Routers that share a store which is a few maps: what it may do to them, and what not.

use super::*;
use crate::fleet::claim::ClaimGuard;
use crate::fleet::members::Wanted;
use crate::fleet::reservation::{Reservation, Share};
use crate::fleet::testing::spec;
use crate::policy::health::{FenceReason, Observation, Thresholds};
use crate::policy::testing::params;
use crate::prefix::fingerprint::Ends;
use crate::prefix::residency::Size;
use crate::types::{PolicyKind, ReplicaId};
use futures_util::FutureExt;
use std::collections::BTreeMap;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

/// A store in memory.
#[derive(Default)]
struct Shop {
    stream: Vec<(Place, Vec<u8>)>,
    live: BTreeMap<u64, Vec<u8>>,
    lore: BTreeMap<u64, Vec<u8>>,
    orders: BTreeMap<u64, Vec<u8>>,
    next: u64,
    is_full: bool,
}

struct Router {
    me: u64,
    fleet: Arc<Fleet>,
    desk: Desk,
}

impl Shop {
    fn round(&mut self, router: &mut Router, now: f64) -> bool {
        let unix = 1_000_000 + whole_ms(now);
        let out = router.desk.outgoing(now, unix);
        let refused = if self.is_full { out.batches.len() } else { 0 };
        for batch in out.batches.into_iter().skip(refused) {
            self.next += 1;
            self.stream.push(((self.next, 0), batch));
        }
        self.live.extend(out.live.map(|live| (router.me, live)));
        self.lore.extend(out.lore.map(|lore| (router.me, lore)));
        self.orders.extend(out.orders);
        let entries = self.stream.iter().filter(|(place, _)| *place > out.after).take(ENTRIES).cloned().collect();
        let of = |all: &BTreeMap<u64, Vec<u8>>| out.peers.iter().filter_map(|peer| all.get(peer).cloned()).collect();
        let incoming = Incoming {
            refused,
            entries,
            live: of(&self.live),
            lore: if out.asks_lore { of(&self.lore) } else { Vec::new() },
            orders: out.asks_orders.then(|| self.orders.values().cloned().collect()),
            list: out.asks_list.then(|| self.live.keys().copied().collect()),
        };
        let more = router.desk.incoming(incoming, now, unix);
        router.desk.pass(true, now);
        more
    }
}

impl Router {
    /// With replicas in this order.
    fn with(me: u64, replicas: &[&str], secret: &str) -> Router {
        let fleet =
            Arc::new(Fleet::new(replicas.iter().map(|name| spec(name)).collect(), params(PolicyKind::Cost), 1 << 20));
        let keys = Keys::new(secret.as_bytes(), "g", 2048);
        fleet.name_sessions_by(keys.fingerprints());
        let (out, told) = sync_channel(64);
        let lost = Arc::new(AtomicU64::new(0));
        assert!(fleet.sharing().to(out, lost.clone()));
        let mut desk = Desk::new((fleet.clone(), keys, me), (told, lost), 1 << 20);
        desk.connected((0, 0), false);
        Router { me, fleet, desk }
    }

    fn claim(&self, chain: &[u64], replica: u16) -> ClaimGuard {
        let size = Size { prompt: 512.0 * chain.len() as f64, block: 512.0, ends: Ends::default() };
        ClaimGuard::new(&self.fleet, &chain.into(), size, ReplicaId(replica))
    }

    fn read(&self, chain: &[u64], replica: u16) {
        self.claim(chain, replica).confirm();
    }

    /// The last block of a chain that ends with it, and who holds it.
    fn holders(&self, print: u64) -> Vec<String> {
        let holders = self.fleet.holders(print);
        holders.into_iter().map(|id| self.fleet.replica(id).unwrap().name().to_owned()).collect()
    }

    fn load(&self, at: usize) -> u32 {
        self.fleet.replicas()[at].load()
    }
}

#[test]
fn what_one_reads_all_know_by_name_and_a_late_one_knows_it_too() {
    let mut shop = Shop::default();
    let (mut a, mut b) = (Router::with(1, &["x", "y"], "s"), Router::with(2, &["y", "x"], "s"));
    a.read(&[11, 12, 13], 1);
    shop.round(&mut a, 0.0);
    shop.round(&mut b, 1.0);
    assert_eq!((b.holders(13), b.desk.take_counts().received), (vec!["y".to_owned()], 3));
    for n in 0..200 {
        b.read(&[100 + n], 1);
        shop.round(&mut b, 2.0);
    }
    let mut late = Router::with(3, &["x"], "s");
    assert!(shop.round(&mut late, 3.0) && !late.desk.has_caught_up());
    while shop.round(&mut late, 3.0) {}
    assert!(late.desk.has_caught_up());
    assert_eq!((late.holders(250), late.holders(13)), (vec!["x".to_owned()], vec![]), "one that it does not have");
    // one that knows already reads what comes from now on
    let mut next = Router::with(4, &["x"], "s");
    next.desk.connected((shop.next, 0), true);
    b.read(&[900], 1);
    shop.round(&mut b, 4.0);
    shop.round(&mut next, 5.0);
    assert_eq!((next.holders(250), next.holders(900)), (vec![], vec!["x".to_owned()]));
    let lag = &b.desk.take_counts().lags_ms;
    assert_eq!((lag.len(), lag.last()), (201, Some(&2.0)), "since the round before");
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
    assert_eq!((all(&a), all(&b)), ([0, 1, 1], [1, 1, 1]), "who is there sees for itself");
    let mut late = Router::with(3, &["x", "y"], "s");
    while shop.round(&mut late, 2.0) {}
    assert_eq!(all(&late), [0, 1, 1]);
    // one that has left and is forgotten begins cold when it is back
    a.fleet.change(vec![Wanted { spec: spec("x"), address: None }]);
    a.fleet.tidy();
    shop.round(&mut a, 3.0);
    let mut late = Router::with(4, &["x", "y"], "s");
    while shop.round(&mut late, 4.0) {}
    assert_eq!(all(&late), [0, 0, 1]);
}

#[test]
fn load_is_everybodys_until_its_router_is_silent_and_open_claims_end_with_it() {
    let mut shop = Shop::default();
    let (mut a, mut b) = (Router::with(1, &["x", "y"], "s"), Router::with(2, &["y", "x"], "s"));
    let share = Share { units: 3, prefill_ms: 900.0, decode_ms: 9.0, streams: true, generates: true };
    let held = Reservation::new(a.fleet.replicas()[0].clone(), share, a.fleet.clock());
    let open = a.claim(&[11, 12], 0);
    (0..2).for_each(|n| _ = (shop.round(&mut a, n.into()), shop.round(&mut b, n.into())));
    assert_eq!((b.load(1), b.load(0), a.load(0), a.load(1)), (3, 0, 3, 0));
    assert_eq!(b.fleet.sharing().group().map(|group| (group.connected, group.peers)), Some((true, 1)));
    // it says that it is there, also while nothing changes
    (0..5).for_each(|n| _ = (shop.round(&mut a, 1000.0 * f64::from(n)), shop.round(&mut b, 1000.0 * f64::from(n))));
    assert_eq!(b.load(1), 3);
    // what stays in the store is no sign of life
    (5..9).for_each(|n| _ = shop.round(&mut b, 1000.0 * f64::from(n)));
    assert_eq!((b.load(1), b.fleet.sharing().group().map(|group| group.peers)), (0, Some(0)));
    assert_eq!(b.holders(12), ["x"], "what was claimed counts as held");
    shop.round(&mut a, 9000.0);
    shop.round(&mut b, 9001.0);
    assert_eq!(b.load(1), 3);
    // also while the store takes its time
    b.desk.fade(12_001.0);
    assert_eq!(b.load(1), 0);
    shop.round(&mut a, 12_002.0);
    shop.round(&mut b, 12_003.0);
    assert_eq!(b.load(1), 3);
    drop((held, open));
    shop.round(&mut a, 12_004.0);
    shop.round(&mut b, 12_005.0);
    assert_eq!(b.load(1), 0);
}

#[test]
fn a_fence_has_the_others_probe_once_and_fences_nobody_there() {
    let mut shop = Shop::default();
    let (mut a, mut b) = (Router::with(1, &["x", "y"], "s"), Router::with(2, &["y", "x"], "s"));
    let at_once = Thresholds { failures: 1, successes: 1 };
    shop.round(&mut a, 0.0);
    shop.round(&mut b, 0.0);
    a.fleet.replicas()[0].observe(Observation::Failed(FenceReason::Timeout), at_once, 0.0);
    for n in 1..4 {
        shop.round(&mut a, n.into());
        shop.round(&mut b, n.into());
        assert_eq!(b.fleet.suspects().now_or_never().is_some(), n == 1);
    }
    assert!(b.fleet.replicas().iter().all(|r| r.is_healthy()));
    a.fleet.replicas()[0].observe(Observation::Ready, at_once, 0.0);
    shop.round(&mut a, 5.0);
    shop.round(&mut b, 6.0);
    a.fleet.replicas()[0].observe(Observation::Failed(FenceReason::Status), at_once, 0.0);
    shop.round(&mut a, 7.0);
    shop.round(&mut b, 8.0);
    assert!(b.fleet.suspects().now_or_never().is_some(), "it is another fence");
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

/// Which replicas an operator keeps requests away from.
fn drained(router: &Router) -> Vec<String> {
    router.fleet.replicas().iter().filter(|r| r.is_barred()).map(|r| r.name().to_owned()).collect()
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
fn what_a_group_did_not_write_changes_nothing_and_is_counted() {
    let mut shop = Shop::default();
    let (mut a, mut b) = (Router::with(1, &["x"], "s"), Router::with(2, &["x"], "s"));
    let mut stranger = Router::with(1, &["x"], "another secret");
    stranger.read(&[11, 12], 0);
    stranger.fleet.replicas()[0].drain(true, 0.0);
    (0..3).for_each(|n| _ = shop.round(&mut stranger, 600.0 * f64::from(n)));
    shop.stream.push(((7, 7), b"garbage".to_vec()));
    shop.stream.push(((7, 8), Vec::new()));
    shop.next = 8;
    a.read(&[21], 0);
    shop.round(&mut a, 1.0);
    // somebody repeats what was true
    let (_, again) = shop.stream.last().unwrap().clone();
    shop.stream.push(((9, 0), again));
    // and puts one thing in the place of another
    let live = shop.live[&1].clone();
    shop.orders.insert(5, live);
    (0..3).for_each(|n| _ = shop.round(&mut b, 600.0 * f64::from(n)));
    assert_eq!((b.holders(12), b.holders(21)), (vec![], vec!["x".to_owned()]));
    assert!(b.fleet.replicas()[0].is_healthy());
    let counts = b.desk.take_counts();
    let rejected = |why: Rejected| counts.rejected[why as usize];
    assert_eq!((rejected(Rejected::Malformed), rejected(Rejected::Repeated)), (2, 1));
    assert!(rejected(Rejected::Unproved) >= 3, "{counts:?}");
}

#[test]
fn who_reads_the_store_sees_no_hash_of_a_prompt_or_a_name() {
    let mut shop = Shop::default();
    let mut a = Router::with(1, &["x"], "s");
    let keys = Keys::new(b"s", "g", 2048);
    let chain = [0x1122_3344_5566_7788, 0x99aa_bbcc_ddee_ff00];
    let _open = a.claim(&chain, 0);
    a.fleet.replicas()[0].drain(true, 0.0);
    (0..3).for_each(|n| _ = shop.round(&mut a, 600.0 * f64::from(n)));
    let frames = shop.stream.iter().map(|(_, frame)| frame);
    let frames: Vec<_> =
        frames.chain(shop.live.values()).chain(shop.lore.values()).chain(shop.orders.values()).collect();
    assert!(shop.stream.len() == 1 && shop.orders.len() == 1 && frames.len() == 4);
    for secret in chain.into_iter().chain([keys.name("x")]) {
        let bytes = secret.to_le_bytes();
        assert!(!frames.iter().any(|frame| frame.windows(4).any(|part| part == &bytes[..4] || part == &bytes[4..])));
    }
}

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
