//! What was learned, batch by batch: out of the channel into the stream, and out of the stream.
//!
//! A number that is left out says that something is missing: now where nobody knows when it was learned, and behind what the
//! channel had where that is older.

use super::super::keys::{Purpose, Rejected};
use super::super::wire::{Batch, bytes};
use super::{BATCHES, Desk, MEASURED, index64};
use crate::fleet::sharing::Learned;

impl Desk {
    /// What goes out of what was learned, at `unix`.
    pub(super) fn batches(&mut self, unix: u64) -> Vec<Vec<u8>> {
        let (mut all, ahead) = (Vec::new(), self.ahead(unix));
        let mut gone = self.names.gone(&self.fleet);
        if !gone.is_empty() {
            // what was read names slots that are about to be somebody else's
            self.peers.take_in();
        }
        for _ in 0..BATCHES {
            let (mut batch, mut things, mut is_full) = (Batch::default(), 0, false);
            while !is_full && let Some(learned) = self.next_told() {
                things += 1;
                if self.is_void(&learned) {
                    continue;
                }
                let name = |id| self.names.name(id, (&self.fleet, &self.keys));
                is_full = !batch.push(&learned.shifted(ahead), name);
            }
            if !is_full {
                self.names.let_go(std::mem::take(&mut gone)).for_each(|name| batch.forgot(name));
            }
            if !batch.is_empty() {
                all.extend(self.tell(batch, things));
            }
            if !is_full {
                if std::mem::take(&mut self.owes_gap) {
                    self.leave_out();
                }
                break;
            }
        }
        if self.is_untold {
            // it shows in what comes next, and there may be nothing
            all.extend(self.tell(Batch::default(), 0));
        }
        all
    }

    /// Whether it has waited until it was no longer so: who hears of it may not have heard why.
    fn is_void(&self, learned: &Learned) -> bool {
        match learned {
            Learned::Claimed(claimed) => self.fleet.is_void(claimed.replica, claimed.at),
            _ => false,
        }
    }

    /// By how much the clock that all routers have shows more than the fleet's.
    fn ahead(&self, unix: u64) -> f64 {
        index64(unix) - self.fleet.clock().now()
    }

    /// A number is missing from now on.
    pub(super) fn leave_out(&mut self) {
        self.number += 1;
        self.is_untold = true;
    }

    fn tell(&mut self, mut batch: Batch, things: u64) -> Option<Vec<u8>> {
        (self.number, self.is_untold) = (self.number + 1, false);
        self.counts.published += things;
        self.out.push_back((self.number, things, self.quiet_until));
        while self.out.len() > MEASURED {
            self.out.pop_front();
        }
        batch.number = self.number;
        self.keys.seal(Purpose::Batch, self.me, &bytes(&batch))
    }

    /// Takes in an entry; how many things in it concern this router.
    pub(super) fn hear(&mut self, frame: &mut [u8], (now, unix): (f64, u64)) -> Result<usize, Rejected> {
        let (writer, batch) = self.open::<Batch>(Purpose::Batch, frame)?;
        if writer != self.me {
            let times = (now, self.ahead(unix));
            return self.peers.hear(writer, (&batch, !self.has_caught_up), &self.names, times);
        }
        while let Some((number, _, since)) = self.out.front().copied().filter(|(number, ..)| *number <= batch.number) {
            self.out.pop_front();
            if number == batch.number {
                self.counts.lags_ms.push(now - since);
            }
        }
        Ok(0)
    }
}
