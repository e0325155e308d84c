//! Work that is done for each replica, for as long as it belongs to the fleet.

use crate::fleet::Fleet;
use crate::fleet::replica::Replica;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::collections::HashSet;
use std::sync::Arc;

/// Runs `work` for every member, from when it comes until it goes, or has another configuration: then it begins anew.
/// Never ends.
pub(super) async fn tend<F: Future<Output = ()>>(fleet: &Fleet, work: impl Fn(Arc<Replica>) -> F) {
    let mut changes = fleet.changes();
    let mut tended: HashSet<u32> = HashSet::new();
    let mut running = FuturesUnordered::new();
    loop {
        changes.mark_unchanged();
        for replica in fleet.members().iter().filter(|r| !tended.contains(&r.number)).cloned().collect::<Vec<_>>() {
            tended.insert(replica.number);
            running.push(until_gone(fleet, replica.clone(), work(replica)));
        }
        loop {
            tokio::select! {
                Some(gone) = running.next() => {
                    tended.remove(&gone);
                }
                _ = changes.changed() => break,
            }
        }
    }
}

/// Does `work`, but not longer than the replica belongs to the fleet as it is configured. Returns its number.
pub(super) async fn until_gone(fleet: &Fleet, replica: Arc<Replica>, work: impl Future<Output = ()>) -> u32 {
    let mut changes = fleet.changes();
    tokio::select! {
        () = work => {}
        _ = changes.wait_for(|_| !fleet.replicas().has(&replica)) => {}
    }
    replica.number
}
