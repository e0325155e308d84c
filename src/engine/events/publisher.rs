//! What comes over one connection: from one engine, or from several by way of a forwarder, told apart by their topics.
//!
//! Each topic is a publisher of its own: it numbers its batches, and what it tells ends by itself.

use super::batch::{self, Batch, Event};
use super::sequence::{Sequence, Step};
use super::{REPLAYING, Ranks, connect, zmtp};
use crate::fleet::Fleet;
use crate::fleet::replica::Replica;
use crate::fleet::stored::{Heard, Loss};
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Weak};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Topics that are followed over one connection.
const TOPICS: usize = 1 << 10;

/// A connection, as far as it was listened to.
#[derive(Default)]
pub(super) struct Publisher {
    /// By topic.
    sources: HashMap<Vec<u8>, Source>,
}

/// An engine.
#[derive(Default)]
struct Source {
    /// What it is known by, as long as it is connected.
    teller: Arc<()>,
    sequence: Sequence,
    /// The first rank that it named.
    rank: Option<u32>,
    /// Whom it told something of, as long as that is a member: a forwarder's connection outlives engines that say no more.
    told: Weak<Replica>,
}

impl Publisher {
    /// Takes in what comes, each batch for the replica that `of` finds for its topic and rank.
    ///
    /// # Errors
    /// The connection has ended, or brings what nobody sends.
    pub(super) async fn listen(
        &mut self,
        fleet: &Fleet,
        stream: &mut TcpStream,
        of: impl Fn(&[u8], Ranks) -> Option<Arc<Replica>>,
    ) -> io::Result<()> {
        loop {
            let parts = zmtp::next(stream).await?;
            let [topic, number, payload] = parts.as_slice() else { continue };
            let Ok(number) = <[u8; 8]>::try_from(number.as_slice()).map(u64::from_be_bytes) else { continue };
            let Some(topical) = of(topic, None) else {
                // nobody has it, or nobody any more
                self.sources.remove(topic);
                continue;
            };
            let source = self.source(topic)?;
            source.take_in(fleet, (number, payload), (topical, |ranks| of(topic, ranks))).await;
        }
    }

    fn source(&mut self, topic: &[u8]) -> io::Result<&mut Source> {
        if !self.sources.contains_key(topic) {
            if self.sources.len() >= TOPICS {
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.sources.insert(topic.to_vec(), Source::default());
        }
        self.sources.get_mut(topic).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// What it told is not to be relied on any more; whether it told anything.
    pub(super) fn has_ended(self) -> bool {
        // all of them hang up, whoever told anything
        let mut told = false;
        self.sources.into_values().for_each(|mut source| told |= source.hangs_up());
        told
    }
}

impl Source {
    /// Takes in a batch of its number for the replica that `of` finds for its rank; without regard to that it is this one's.
    async fn take_in(
        &mut self,
        fleet: &Fleet,
        (number, payload): (u64, &[u8]),
        (topical, of): (Arc<Replica>, impl Fn(Ranks) -> Option<Arc<Replica>>),
    ) {
        let step = self.sequence.step(number);
        let batch = batch::read(payload);
        let Some(replica) = self.meant(&batch, &topical, of) else {
            return self.pass_over(step, &topical);
        };
        if !self.tells(&replica, fleet.clock().now()) {
            return replica.was_told(Heard::Other, 1);
        }
        match step {
            Step::Follows => {}
            Step::Anew => replica.tells_no_longer(&self.teller, Loss::Anew),
            Step::Missing(from) => catch_up((&replica, &self.teller), from, number).await,
        }
        // what is repeated is of long ago; and meanwhile another connection may have begun to tell
        let is_cleared = batch.as_ref().is_ok_and(|batch| batch.events.contains(&Event::Cleared));
        if is_cleared && replica.believes(&self.teller) {
            fleet.emptied(replica.id);
        }
        take((&replica, &self.teller), batch);
    }

    /// A batch is about nobody here: what its number says holds all the same for whom it has told something.
    fn pass_over(&self, step: Step, topical: &Replica) {
        topical.was_told(Heard::Other, 1);
        let Some(told) = self.told.upgrade() else { return };
        match step {
            Step::Follows => {}
            Step::Anew => told.tells_no_longer(&self.teller, Loss::Anew),
            Step::Missing(_) => told.tells_no_longer(&self.teller, Loss::Gap),
        }
    }

    /// Whom a batch is about; one that cannot be read is about whom the last one was.
    fn meant(
        &mut self,
        batch: &Result<Batch, batch::Malformed>,
        topical: &Arc<Replica>,
        of: impl Fn(Ranks) -> Option<Arc<Replica>>,
    ) -> Option<Arc<Replica>> {
        let Ok(batch) = batch else { return Some(self.told.upgrade().unwrap_or_else(|| topical.clone())) };
        of(batch.rank.map(|rank| (rank, *self.rank.get_or_insert(rank))))
    }

    /// It tells of this replica from now on; whether it is believed.
    fn tells(&mut self, replica: &Arc<Replica>, now: f64) -> bool {
        let before = std::mem::replace(&mut self.told, Arc::downgrade(replica)).upgrade();
        if let Some(before) = before.filter(|before| !Arc::ptr_eq(before, replica)) {
            before.hangs_up(&self.teller);
        }
        replica.is_told_by(&self.teller, now)
    }

    fn hangs_up(&mut self) -> bool {
        std::mem::take(&mut self.told).upgrade().inspect(|replica| replica.hangs_up(&self.teller)).is_some()
    }
}

impl Drop for Source {
    /// Also where nobody listens to it any more, as after a reload.
    fn drop(&mut self) {
        self.hangs_up();
    }
}

/// Asks for the batches from number `from` on up to `to`; without one of them, nothing is known.
async fn catch_up((replica, teller): (&Replica, &Arc<()>), from: u64, to: u64) {
    let mut next = from;
    let missing = async {
        let address = replica.address().ok_or(io::ErrorKind::AddrNotAvailable)?;
        let mut stream = connect(replica, address, true).await?;
        tokio::io::AsyncWriteExt::write_all(&mut stream, &zmtp::question(&from.to_be_bytes())).await?;
        while next < to {
            let parts = zmtp::next(&mut stream).await?;
            let [.., number, payload] = parts.as_slice() else { return Err(io::ErrorKind::InvalidData.into()) };
            let number = <[u8; 8]>::try_from(number.as_slice()).map(u64::from_be_bytes);
            match number {
                // the beginning may be too long ago: what follows an unknown block is not known, and no guess
                Ok(number) if number == next || from == 0 && next == 0 && number < to => next = number + 1,
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
            take((replica, teller), batch::read(payload));
        }
        Ok::<_, io::Error>(())
    };
    let caught_up = timeout(REPLAYING, missing).await.is_ok_and(|result| result.is_ok());
    // who joins in the middle, and is repeated nothing, has missed nothing that was known
    if !caught_up && (from > 0 || next > 0) {
        replica.tells_no_longer(teller, Loss::Gap);
    }
}

/// Takes in a batch by this connection, or that it was none.
fn take((replica, teller): (&Replica, &Arc<()>), batch: Result<Batch, batch::Malformed>) {
    let Ok(batch) = batch else { return replica.tells_no_longer(teller, Loss::Unreadable) };
    let told = replica.tell(teller, |stored| {
        batch.events.iter().try_for_each(|event| {
            match event {
                Event::Stored { blocks, after, tokens } => stored.store(blocks, *after, *tokens)?,
                Event::Removed(blocks) => stored.remove(blocks),
                Event::Cleared => stored.clear(),
                Event::Other => {}
            }
            Ok(())
        })
    });
    for event in &batch.events {
        match event {
            Event::Stored { blocks, .. } => replica.was_told(Heard::Stored, blocks.len()),
            Event::Removed(blocks) => replica.was_told(Heard::Removed, blocks.len()),
            Event::Cleared => replica.was_told(Heard::Cleared, 1),
            Event::Other => replica.was_told(Heard::Other, 1),
        }
    }
    if told.is_err() {
        replica.tells_no_longer(teller, Loss::Contradiction);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::testing::{fleet, spec};

    #[test]
    fn a_connection_that_stays_keeps_no_replica_that_has_left() {
        let fleet = fleet([spec("a")]);
        let mut source = Source::default();
        let told = {
            let replica = &fleet.replicas()[0];
            assert!(source.tells(replica, 0.0));
            Arc::downgrade(replica)
        };
        fleet.change(Vec::new());
        fleet.tidy();
        assert!(told.upgrade().is_none());
        assert!(!source.hangs_up());
    }
}
