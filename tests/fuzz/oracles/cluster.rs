//! What stands in the store of a group: whatever it is, it is read without a panic and within bounds, and what is believed of
//! it says the same when it is told on.
//!
//! Input: a byte for what it is, and what it says.

use ramjet::cluster::keys::{Keys, Purpose};
use ramjet::cluster::orders::{InForce, Orders};
use ramjet::cluster::wire::{Batch, Live, Order, Speeds, bytes, whole};
use ramjet::types::ReplicaId;

/// Replicas that there are.
const MEMBERS: u64 = 1000;
/// More routers than are listened to.
const ROUTERS: u32 = 200;
/// A time, in milliseconds since 1970.
const NOW: u64 = 1 << 41;

pub(crate) fn check(data: &[u8]) {
    let Some((what, content)) = data.split_first() else { return };
    match what % 5 {
        0 => batch(content),
        1 => live(content),
        2 => speeds(content),
        3 => order(content),
        _ => frame(content),
    }
}

fn replica(name: u64) -> Option<ReplicaId> {
    u16::try_from(name).ok().filter(|_| name < MEMBERS).map(ReplicaId)
}

fn batch(words: &[u8]) {
    let framed = bytes(&(7u64, words.to_vec()));
    let batch: Batch = whole(&framed).unwrap();
    let Some(learned) = batch.read(replica) else { return };
    let mut again = Batch::default();
    for learned in &learned {
        again.push(learned, |id| Some(id.0.into()));
    }
    assert_eq!(again.read(replica), Some(learned));
}

fn live(content: &[u8]) {
    let Some(live) = whole::<Live>(content) else { return };
    for work in live.work().into_values() {
        for of_one in [work.units, work.waiting, work.decoding, work.queue_ms] {
            assert!(of_one.checked_mul(ROUTERS).is_some(), "loads of all routers overflow");
        }
    }
    assert!(live.work().len() <= live.running.len());
}

fn speeds(content: &[u8]) {
    let Some(speeds) = whole::<Speeds>(content) else { return };
    let lore = speeds.lore(replica, |name| Some(name.to_string()));
    // what is not sound is left out where it is taken in
    let _sound = lore.rates.iter().filter(|(_, rates)| rates.is_sound()).map(|(_, rates)| rates.prefill_ms(9.0, 9.0));
}

fn order(content: &[u8]) {
    let Some(order) = whole::<Order>(content) else { return };
    let mut orders = Orders::default();
    let settled = orders.said_there(vec![order], NOW);
    assert!(settled.obey.iter().all(|obeyed| *obeyed == order && obeyed.at < 2 * NOW));
    // whatever was believed, an operator can take it back
    let there =
        |drained| InForce { replica: order.replica, drained, leaves_by: 0, since: if drained { NOW } else { 0 } };
    orders.said_here(&[there(order.drained)], NOW);
    let said = orders.said_here(&[there(!order.drained)], NOW).write;
    assert!(
        settled.obey.is_empty() || said.last().is_some_and(|said| said.at > order.at && said.drained != order.drained)
    );
}

fn frame(content: &[u8]) {
    let keys = Keys::new(b"secret", "group", 2048);
    for purpose in [Purpose::Batch, Purpose::Live, Purpose::Lore, Purpose::Order] {
        assert!(keys.open(purpose, &mut content.to_vec()).is_err(), "nobody of the group wrote this");
    }
}
