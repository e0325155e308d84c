//! What the engines of a fleet say that they store: told by events, asked for by choices.

use super::replica::Replica;
use crate::prefix::fingerprint::Place;
use crate::prefix::residency::Served;
use crate::prefix::stored::{Answer, Held, Lost, Stored};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

/// What an engine stores by its own account.
#[derive(Debug, Default)]
pub struct Account {
    /// Whether anything was told: without events nobody takes the lock.
    is_told: AtomicBool,
    /// Held for a look-up, or for one batch of events. What is dropped is freed after that.
    stored: Mutex<Stored>,
    /// Batches so far.
    batches: AtomicU64,
    /// The connection by which it is told.
    teller: Mutex<Weak<()>>,
    heard: [AtomicU64; Heard::ALL.len()],
    losses: [AtomicU64; Loss::ALL.len()],
}

/// What events are about. The words are metric labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Blocks that were stored.
    Stored,
    /// Blocks that were evicted.
    Removed,
    /// A cache that was emptied.
    Cleared,
    /// Something else.
    Other,
}

/// Why what an engine told is not relied on any more. The words are metric labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Batches are missing, and the engine does not replay them.
    Gap,
    /// A batch could not be read.
    Unreadable,
    /// It cannot be true of one cache, or is more than is followed.
    Contradiction,
    /// The engine has begun anew.
    Anew,
    /// The connection has ended.
    Ended,
}

impl Heard {
    /// All of them, in the order of the metrics' label values.
    pub const ALL: [Heard; 4] = [Heard::Stored, Heard::Removed, Heard::Cleared, Heard::Other];

    /// The label value.
    pub fn label(self) -> &'static str {
        match self {
            Heard::Stored => "stored",
            Heard::Removed => "removed",
            Heard::Cleared => "cleared",
            Heard::Other => "other",
        }
    }
}

impl Loss {
    /// All of them, in the order of the metrics' label values.
    pub const ALL: [Loss; 5] = [Loss::Gap, Loss::Unreadable, Loss::Contradiction, Loss::Anew, Loss::Ended];

    /// The label value.
    pub fn label(self) -> &'static str {
        match self {
            Loss::Gap => "gap",
            Loss::Unreadable => "unreadable",
            Loss::Contradiction => "contradiction",
            Loss::Anew => "anew",
            Loss::Ended => "ended",
        }
    }
}

impl Replica {
    /// What its engine stores of a prompt that ended there and of the answer to it, if it tells.
    pub fn stores(&self, print: Option<u64>) -> Option<Held> {
        // relaxed: a choice may be one event late anyway
        if !self.account.is_told.load(Relaxed) {
            return None;
        }
        self.account.stored.lock().held(print?)
    }

    /// It is told by this connection from now on. What another one told was of another engine, or is not whole.
    pub fn is_told_by(&self, teller: &Arc<()>) {
        let mut now = self.account.teller.lock();
        if now.as_ptr() != Arc::as_ptr(teller) {
            *now = Arc::downgrade(teller);
            drop(now);
            if self.account.is_told.load(Relaxed) {
                self.tells_no_longer(Loss::Anew);
            }
        }
    }

    /// This connection tells nothing more of it.
    pub fn hangs_up(&self, teller: &Arc<()>) {
        let is_its = self.account.teller.lock().as_ptr() == Arc::as_ptr(teller);
        if is_its {
            self.tells_no_longer(Loss::Ended);
        }
    }

    /// A batch of events, all at once.
    ///
    /// # Errors
    /// It contradicts what was told before, or tells of more than is followed: nothing is known any more.
    pub fn tell(&self, events: impl FnOnce(&mut Stored) -> Result<(), Lost>) -> Result<(), Lost> {
        let mut stored = self.account.stored.lock();
        stored.begin_batch();
        let told = events(&mut stored);
        stored.end_batch();
        self.account.batches.store(stored.batches(), Relaxed);
        self.account.is_told.store(true, Relaxed);
        let past = stored.past();
        drop(stored);
        // large tables: nobody waits while they are freed
        drop(past);
        told
    }

    /// What its engine told is not to be relied on any more.
    pub fn tells_no_longer(&self, why: Loss) {
        self.account.losses[why as usize].fetch_add(1, Relaxed);
        // what contradicts itself has been dropped, and what is too large is not followed before the engine begins anew
        self.account.is_told.store(false, Relaxed);
        if why != Loss::Contradiction {
            let mut stored = self.account.stored.lock();
            stored.clear();
            self.account.batches.store(stored.batches(), Relaxed);
            let past = stored.past();
            drop(stored);
            drop(past);
        }
    }

    /// It told of so many blocks, or events.
    pub fn was_told(&self, what: Heard, many: usize) {
        self.account.heard[what as usize].fetch_add(many as u64, Relaxed);
    }

    /// What it told of so far, and how often that was lost.
    pub fn told(&self) -> (impl Iterator<Item = (Heard, u64)>, impl Iterator<Item = (Loss, u64)>) {
        let count = |count: &AtomicU64| count.load(Relaxed);
        (
            Heard::ALL.into_iter().zip(self.account.heard.iter().map(count)),
            Loss::ALL.into_iter().zip(self.account.losses.iter().map(count)),
        )
    }

    /// Blocks that its engine is known to store, and prompts that are known there.
    pub fn account(&self) -> (usize, usize) {
        if !self.account.is_told.load(Relaxed) {
            return (0, 0);
        }
        let stored = self.account.stored.lock();
        (stored.blocks(), stored.prompts())
    }

    /// Batches of events until now.
    pub(super) fn batches(&self) -> u64 {
        // relaxed: of batches that are told at the same moment nobody knows which was first
        self.account.batches.load(Relaxed)
    }

    /// An answer, which the next turn has as it was or not, tells of its prompt, which was sent after so many batches.
    pub(super) fn relate(
        &self,
        (previous, own): (Option<Place>, Option<Place>),
        (served, is_repeated): (Served, bool),
        since: u64,
    ) {
        let Some(own) = own.filter(|_| self.account.is_told.load(Relaxed)) else { return };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "tokens, clamped")]
        let tokens = |of: f64| of as u32;
        let tokens = (tokens(served.prompt), tokens(served.cached), tokens(served.output));
        let previous = previous.map(|place| place.print);
        let answer = Answer { print: own.print, previous, tokens, is_repeated, since };
        self.account.stored.lock().answered(answer);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{fleet, spec};
    use super::*;

    #[test]
    fn what_an_engine_told_is_not_mixed_with_what_another_one_tells_at_its_place() {
        let fleet = fleet([spec("a")]);
        let replica = &fleet.replicas()[0];
        let tells = |teller: &Arc<()>, blocks: &[u64]| {
            replica.is_told_by(teller);
            replica.tell(|stored| stored.store(blocks, None, 16)).unwrap();
            replica.account().0
        };
        let [old, new] = [Arc::new(()), Arc::new(())];
        assert_eq!((tells(&old, &[1, 2]), tells(&old, &[5])), (2, 3));
        assert_eq!(tells(&new, &[7]), 1);
        replica.hangs_up(&old);
        assert_eq!(replica.account().0, 1, "it is not its connection any more");
        replica.hangs_up(&new);
        assert_eq!(replica.account().0, 0);
        // one that stores too much is followed again once it connects anew
        let many: Vec<u64> = (0..=1 << 18).collect();
        replica.is_told_by(&old);
        assert!(replica.tell(|stored| stored.store(&many, None, 16)).is_err());
        replica.tells_no_longer(Loss::Contradiction);
        assert_eq!(tells(&old, &[7]), 0);
        replica.tells_no_longer(Loss::Contradiction);
        replica.hangs_up(&old);
        assert_eq!(tells(&new, &[7]), 1);
    }
}
