//! What the engines of a fleet say that they store: told by events, asked for by choices.

use super::replica::Replica;
use super::tellers::{Tellers, Word};
use crate::prefix::fingerprint::Place;
use crate::prefix::residency::Served;
use crate::prefix::stored::{Answer, Held, Lost, Stored};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// What an engine stores by its own account.
#[derive(Debug, Default)]
pub struct Account {
    /// Whether anything was told: without events nobody takes the lock.
    is_told: AtomicBool,
    /// Held for a look-up, or for one batch of events. What is dropped is freed after that.
    book: Mutex<Book>,
    /// Batches so far.
    batches: AtomicU64,
    heard: [AtomicU64; Heard::ALL.len()],
    losses: [AtomicU64; Loss::ALL.len()],
}

/// What was told, and by whom: under one lock, so that nothing which a connection tells is put to what another one has told.
#[derive(Debug, Default)]
struct Book {
    stored: Stored,
    tellers: Tellers,
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
    /// Several engines tell of it at once.
    Contested,
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
    pub const ALL: [Loss; 6] =
        [Loss::Gap, Loss::Unreadable, Loss::Contradiction, Loss::Anew, Loss::Ended, Loss::Contested];

    /// The label value.
    pub fn label(self) -> &'static str {
        match self {
            Loss::Gap => "gap",
            Loss::Unreadable => "unreadable",
            Loss::Contradiction => "contradiction",
            Loss::Anew => "anew",
            Loss::Ended => "ended",
            Loss::Contested => "contested",
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
        self.account.book.lock().stored.held(print?)
    }

    /// This connection is about to tell something of it, at `now` on the fleet's clock; whether it is believed. What another
    /// one told is of another engine, or is not whole.
    pub fn is_told_by(&self, teller: &Arc<()>, now: f64) -> bool {
        let mut book = self.account.book.lock();
        let word = book.tellers.hear(teller, now);
        match word {
            Word::Begins if self.account.is_told.load(Relaxed) => self.lose(book, Loss::Anew),
            Word::Contests => self.lose(book, Loss::Contested),
            Word::Disputes => {
                drop(book);
                log::warn!(
                    "replica {}: several engines tell of its cache, by the same topic, or by its port without one: none of \
                     them is believed until all but one are gone, or kv_events.topic says which is meant",
                    self.name()
                );
            }
            Word::Begins | Word::GoesOn | Word::Ignored => {}
        }
        matches!(word, Word::Begins | Word::GoesOn)
    }

    /// Whether this connection is believed.
    pub fn believes(&self, teller: &Arc<()>) -> bool {
        self.account.book.lock().tellers.believes(teller)
    }

    /// This connection tells nothing more of it.
    pub fn hangs_up(&self, teller: &Arc<()>) {
        let mut book = self.account.book.lock();
        if book.tellers.leaves(teller) {
            self.lose(book, Loss::Ended);
        }
    }

    /// A batch of events, all at once, by this connection; nothing, if that is not believed.
    ///
    /// # Errors
    /// It contradicts what was told before, or tells of more than is followed: nothing is known any more.
    pub fn tell(&self, teller: &Arc<()>, events: impl FnOnce(&mut Stored) -> Result<(), Lost>) -> Result<(), Lost> {
        let mut book = self.account.book.lock();
        if !book.tellers.believes(teller) {
            return Ok(());
        }
        book.stored.begin_batch();
        let told = events(&mut book.stored);
        book.stored.end_batch();
        self.account.is_told.store(true, Relaxed);
        self.let_go(book);
        told
    }

    /// What this connection told is not to be relied on any more, if it was believed.
    pub fn tells_no_longer(&self, teller: &Arc<()>, why: Loss) {
        let book = self.account.book.lock();
        if book.tellers.believes(teller) {
            self.lose(book, why);
        }
    }

    fn lose(&self, mut book: MutexGuard<'_, Book>, why: Loss) {
        self.account.losses[why as usize].fetch_add(1, Relaxed);
        self.account.is_told.store(false, Relaxed);
        match why {
            // what contradicts itself has been dropped
            Loss::Contradiction => {}
            // what is too large is not followed before the engine begins anew, or empties its cache
            Loss::Gap | Loss::Unreadable => book.stored.lose_track(),
            Loss::Anew | Loss::Ended | Loss::Contested => book.stored.clear(),
        }
        self.let_go(book);
    }

    /// Large tables: nobody waits while they are freed.
    fn let_go(&self, mut book: MutexGuard<'_, Book>) {
        self.account.batches.store(book.stored.batches(), Relaxed);
        let past = book.stored.past();
        drop(book);
        drop(past);
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
        let book = self.account.book.lock();
        (book.stored.blocks(), book.stored.prompts())
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
        self.account.book.lock().stored.answered(answer);
    }
}

#[cfg(test)]
impl Replica {
    /// One batch of events, by a connection of its own.
    pub(crate) fn hears(&self, events: impl FnOnce(&mut Stored) -> Result<(), Lost>) {
        let teller = Arc::new(());
        assert!(self.is_told_by(&teller, 0.0));
        assert_eq!(self.tell(&teller, events), Ok(()));
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
            replica.is_told_by(teller, 0.0);
            replica.tell(teller, |stored| stored.store(blocks, None, 16)).unwrap();
            replica.account().0
        };
        let [old, new] = [Arc::new(()), Arc::new(())];
        assert_eq!((tells(&old, &[1, 2]), tells(&old, &[5])), (2, 3));
        assert_eq!(tells(&new, &[7]), 1);
        // what the old one was still being told when the new one began
        replica.tell(&old, |stored| stored.store(&[8, 9], None, 16)).unwrap();
        replica.tells_no_longer(&old, Loss::Gap);
        replica.hangs_up(&old);
        assert_eq!(replica.account().0, 1, "it is not its connection any more");
        replica.hangs_up(&new);
        assert_eq!(replica.account().0, 0);
    }

    #[test]
    fn of_two_that_tell_at_once_neither_is_believed_and_one_that_is_left_is() {
        let fleet = fleet([spec("a")]);
        let replica = &fleet.replicas()[0];
        let [a, b] = [Arc::new(()), Arc::new(())];
        let tells = |teller: &Arc<()>, block: u64| {
            replica.is_told_by(teller, 0.0) && replica.tell(teller, |stored| stored.store(&[block], None, 16)).is_ok()
        };
        let told = [(&a, 1), (&b, 2), (&a, 3), (&b, 4), (&a, 5)].map(|(teller, block)| tells(teller, block));
        assert_eq!((told, replica.account().0), ([true, true, false, false, false], 0));
        let losses = |why: Loss| replica.told().1.into_iter().find(|(loss, _)| *loss == why).map(|(_, count)| count);
        assert_eq!((losses(Loss::Anew), losses(Loss::Contested)), (Some(1), Some(1)), "and not in turns");
        replica.hangs_up(&a);
        assert!(tells(&b, 6) && tells(&b, 7) && replica.account().0 == 2);
        assert_eq!(losses(Loss::Ended), Some(0));
    }

    #[test]
    fn who_stores_too_much_is_followed_again_once_it_begins_anew_and_not_after_a_gap() {
        let fleet = fleet([spec("a")]);
        let replica = &fleet.replicas()[0];
        let tells = |teller: &Arc<()>, blocks: &[u64]| {
            replica.is_told_by(teller, 0.0);
            let told = replica.tell(teller, |stored| stored.store(blocks, None, 16));
            if told.is_err() {
                replica.tells_no_longer(teller, Loss::Contradiction);
            }
            replica.account().0
        };
        let many: Vec<u64> = (0..=1 << 18).collect();
        let [old, new] = [Arc::new(()), Arc::new(())];
        assert_eq!((tells(&old, &many), tells(&old, &[7])), (0, 0));
        for why in [Loss::Gap, Loss::Unreadable] {
            replica.tells_no_longer(&old, why);
            assert_eq!(tells(&old, &[7]), 0, "it is as large as it was");
        }
        replica.tells_no_longer(&old, Loss::Anew);
        assert_eq!(tells(&old, &[7]), 1);
        assert_eq!(tells(&old, &many), 0);
        replica.hangs_up(&old);
        assert_eq!((tells(&new, &[7]), tells(&new, &many)), (1, 0));
        // it says itself that it stores nothing now
        replica
            .tell(&new, |stored| {
                stored.clear();
                Ok(())
            })
            .unwrap();
        assert_eq!(tells(&new, &[7]), 1);
    }
}
