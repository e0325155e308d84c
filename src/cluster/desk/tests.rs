//! Routers that share a store which is a few maps: what it may do to them, and what not.

mod losses;
mod orders;
mod voids;

use super::*;
use crate::fleet::claim::ClaimGuard;
use crate::fleet::clock::{Clock, Hand};
use crate::fleet::heard::Lore;
use crate::fleet::members::Wanted;
use crate::fleet::reservation::{Reservation, Share};
use crate::fleet::testing::spec;
use crate::policy::estimate::START;
use crate::policy::health::{FenceReason, Observation, Thresholds};
use crate::policy::testing::params;
use crate::prefix::fingerprint::Ends;
use crate::prefix::residency::Size;
use crate::types::{PolicyKind, ReplicaId};
use futures_util::FutureExt;
use std::collections::BTreeMap;
use std::sync::mpsc::sync_channel;

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
    /// Of the fleet's clock.
    hand: Hand,
    desk: Desk,
}

impl Shop {
    fn round(&mut self, router: &mut Router, now: f64) -> bool {
        router.hand.set(now);
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
            takes_nothing: None,
            entries,
            live: of(&self.live),
            lore: if out.asks_lore { of(&self.lore) } else { Vec::new() },
            orders: out.asks_orders.then(|| self.orders.values().cloned().collect()),
            list: out.asks_list.then(|| self.live.keys().copied().collect()),
        };
        let more = router.desk.incoming(incoming, now, unix);
        router.desk.pass(true, (now, unix));
        more
    }
}

impl Router {
    /// With replicas in this order.
    fn with(me: u64, replicas: &[&str], secret: &str) -> Router {
        let (clock, hand) = Clock::manual();
        let specs = replicas.iter().map(|name| spec(name)).collect();
        let fleet = Arc::new(Fleet::new(specs, params(PolicyKind::Cost), 1 << 20).on(clock));
        let keys = Keys::new(secret.as_bytes(), "g", 2048);
        fleet.name_sessions_by(keys.fingerprints());
        let (out, told) = sync_channel(64);
        let lost = Arc::new(AtomicU64::new(0));
        assert!(fleet.sharing().to(out, lost.clone()));
        let mut desk = Desk::new((fleet.clone(), keys, me), (told, lost), 1 << 20);
        desk.connected((0, 0), false);
        Router { me, fleet, hand, desk }
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
fn what_is_learned_after_quiet_is_seen_before_the_next_round_and_told_in_order() {
    let mut shop = Shop::default();
    let (mut a, mut b) = (Router::with(1, &["x"], "s"), Router::with(2, &["x"], "s"));
    shop.round(&mut a, 0.0);
    assert!(!a.desk.has_news(10.0));
    a.read(&[11], 0);
    let open = a.claim(&[12], 0);
    assert!(a.desk.has_news(15.0) && a.desk.has_news(16.0));
    shop.round(&mut a, 17.0);
    assert!(!a.desk.has_news(19.0));
    assert_eq!(a.desk.take_counts().lags_ms, [7.0], "since it was quiet last");
    shop.round(&mut b, 20.0);
    assert!(b.holders(11) == ["x"] && !b.fleet.is_reading(&[11], ReplicaId(0)));
    assert!(b.fleet.is_reading(&[12], ReplicaId(0)));
    drop(open);
}

#[test]
fn a_router_that_starts_knows_the_speeds_that_others_have_learned_before_it_serves() {
    let mut shop = Shop::default();
    let (mut a, mut late) = (Router::with(1, &["x", "y"], "s"), Router::with(2, &["y", "x"], "s"));
    let mut fast = START;
    (0..40).for_each(|_| fast.observe_prefill(9000.0, 0.0, 100.0));
    a.fleet.learn_from(Lore { rates: vec![(ReplicaId(0), fast)], ..Lore::default() });
    shop.round(&mut a, 0.0);
    assert!(a.desk.has_caught_up(), "there is nobody else");
    for n in 0..9 {
        assert_eq!(late.desk.has_caught_up(), !late.fleet.lore().rates.is_empty());
        shop.round(&mut late, 1.0 + f64::from(n));
    }
    assert_eq!(late.fleet.lore().rates, [(ReplicaId(1), fast)]);
}

#[test]
fn load_is_everybodys_until_its_router_is_silent_and_open_claims_end_with_it() {
    let mut shop = Shop::default();
    let (mut a, mut b) = (Router::with(1, &["x", "y"], "s"), Router::with(2, &["y", "x"], "s"));
    let share = Share { units: 3, prefill_ms: 900.0, whole_ms: 900.0, decode_ms: 9.0, streams: true, generates: true };
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
    b.desk.wait(12_001.0);
    assert_eq!(b.load(1), 0);
    shop.round(&mut a, 12_002.0);
    shop.round(&mut b, 12_003.0);
    assert_eq!(b.load(1), 3);
    drop((held, open));
    shop.round(&mut a, 12_050.0);
    shop.round(&mut b, 12_051.0);
    assert_eq!(b.load(1), 0);
}

#[test]
fn what_a_router_has_is_told_at_most_every_25_ms_and_in_the_end() {
    let (a, mut seen) = (&mut Router::with(1, &["x"], "s"), Vec::new());
    let share = Share { units: 3, prefill_ms: 900.0, whole_ms: 900.0, decode_ms: 9.0, streams: true, generates: true };
    let mut held = Vec::new();
    for n in 0..100u32 {
        let now = 2.5 * f64::from(n);
        if n < 50 {
            held.push(Reservation::new(a.fleet.replicas()[0].clone(), share, a.fleet.clock()));
        }
        a.hand.set(now);
        seen.extend(a.desk.outgoing(now, 1_000_000 + whole_ms(now)).live.map(|_| now));
    }
    assert!(seen.windows(2).all(|two| two[1] - two[0] >= 25.0), "{seen:?}");
    assert_eq!(a.desk.live.running[0].1.units, 150, "the last one is told");
    assert!((6..=10).contains(&seen.len()), "{seen:?}");
}

#[test]
fn what_is_open_at_the_process_before_is_open_for_the_one_that_follows_while_that_runs() {
    let mut shop = Shop::default();
    let (mut old, mut new) = (Router::with(1, &["x"], "s"), Router::with(2, &["x"], "s"));
    new.desk = new.desk.following(vec![1]);
    let open = old.claim(&[11, 12], 0);
    for n in 0..9 {
        [&mut old, &mut new].into_iter().for_each(|router| _ = shop.round(router, 1000.0 * f64::from(n)));
    }
    assert!(new.fleet.is_reading(&[11], ReplicaId(0)), "it is read for long");
    let group = new.fleet.sharing().group().unwrap();
    assert_eq!((group.peers, new.load(0)), (0, 0), "it is no other router, and its load is told by another way");
    // it ends without a word
    (9..14).for_each(|n| _ = shop.round(&mut new, 1000.0 * f64::from(n)));
    assert!(!new.fleet.is_reading(&[11], ReplicaId(0)));
    drop(open);
}

#[test]
fn what_ran_long_ago_is_no_load_of_a_router_that_starts() {
    let mut shop = Shop::default();
    let (mut a, mut b) = (Router::with(1, &["x"], "s"), Router::with(2, &["x"], "s"));
    let share = Share { units: 3, prefill_ms: 900.0, whole_ms: 900.0, decode_ms: 9.0, streams: true, generates: true };
    let _held = Reservation::new(a.fleet.replicas()[0].clone(), share, a.fleet.clock());
    shop.round(&mut a, 0.0);
    // somebody has kept it, and puts it back
    (0..3).for_each(|n| _ = shop.round(&mut b, 100_000.0 + f64::from(n)));
    assert_eq!(b.load(0), 0);
    assert!(b.desk.take_counts().rejected[Rejected::Repeated as usize] > 0);
}

#[test]
fn what_a_process_still_runs_that_has_stepped_back_is_load_for_all_but_the_one_that_follows_it() {
    let mut shop = Shop::default();
    let (mut old, mut b) = (Router::with(1, &["x", "y"], "s"), Router::with(2, &["x", "y"], "s"));
    let mut new = Router::with(3, &["x", "y"], "s");
    new.desk = new.desk.following(vec![1]);
    let share = Share { units: 3, prefill_ms: 900.0, whole_ms: 900.0, decode_ms: 9.0, streams: true, generates: true };
    let held = Reservation::new(old.fleet.replicas()[0].clone(), share, old.fleet.clock());
    let at_once = Thresholds { failures: 1, successes: 1 };
    shop.round(&mut old, 0.0);
    old.fleet.retire();
    old.fleet.replicas()[1].observe(Observation::Failed(FenceReason::Timeout), at_once, 0.0);
    for n in 1..9 {
        [&mut old, &mut new, &mut b].into_iter().for_each(|router| _ = shop.round(router, 1000.0 * f64::from(n)));
        // whom there is to ask it knows from its second round on
        let loads = (b.load(0), new.load(0));
        assert!(n == 1 || loads == (3, 0), "the one that follows is told by another way: {loads:?}");
    }
    assert!(b.fleet.suspects().now_or_never().is_none(), "what it no longer probes it says nothing of");
    drop(held);
    [&mut old, &mut new, &mut b].into_iter().for_each(|router| _ = shop.round(router, 9000.0));
    assert_eq!(b.load(0), 0);
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
        shop.round(&mut a, 100.0 * f64::from(n));
        shop.round(&mut b, 100.0 * f64::from(n));
        assert_eq!(b.fleet.suspects().now_or_never().is_some(), n == 1);
    }
    assert!(b.fleet.replicas().iter().all(|r| r.is_healthy()));
    a.fleet.replicas()[0].observe(Observation::Ready, at_once, 0.0);
    shop.round(&mut a, 500.0);
    shop.round(&mut b, 600.0);
    a.fleet.replicas()[0].observe(Observation::Failed(FenceReason::Status), at_once, 0.0);
    shop.round(&mut a, 700.0);
    shop.round(&mut b, 800.0);
    assert!(b.fleet.suspects().now_or_never().is_some(), "it is another fence");
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
