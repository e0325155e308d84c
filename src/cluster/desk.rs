//! What one router writes into the store and takes from there, round by round. No IO and no clock: a round is a value that goes
//! out and one that comes in, so that all of it runs in tests against a store that is a few maps.
//!
//! **Invariant:** everything is bounded by what a round may carry. What does not fit waits in the channel; what does not
//! fit there is lost, which shows as a missing number, behind what was learned before it.

mod live;
mod stream;
mod words;

use super::keys::{Keys, Purpose, Rejected};
use super::names::Names;
use super::orders::Orders;
use super::peers::Peers;
use super::round::{Counts, ENTRIES, Incoming, Outgoing, Place};
use super::wire::{Live, Order, Speeds, bytes, whole};
use crate::fleet::Fleet;
use crate::fleet::sharing::{Group, Learned};
use crate::pack::Pack;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::Receiver;
use tokio::sync::watch;

/// Batches that go out in one round.
const BATCHES: usize = 8;
/// How often a router says that it is there, at least, and how often other things are done, in milliseconds.
const LIVE_EVERY: f64 = 1000.0;
/// How often it says what it has, at most: rounds may be far more often.
const LIVE_LEAST: f64 = 25.0;
const LIST_EVERY: f64 = 1000.0;
const ORDERS_EVERY: f64 = 500.0;
const LORE_EVERY: f64 = 5000.0;
/// What an entry takes in the store besides its content, about.
const ENTRY: f64 = 96.0;
/// Entries that are kept at least, whatever their size: somebody else must get to read them.
const LEAST_ENTRIES: f64 = 8.0;
/// Connections that bring nothing further, after which what stands in the way is left out.
const PATIENCE: u32 = 3;
/// Batches whose way is measured at a time.
const MEASURED: usize = 64;

/// See the module header.
pub struct Desk {
    fleet: Arc<Fleet>,
    changes: watch::Receiver<u64>,
    keys: Keys,
    /// What this router calls itself.
    me: u64,
    /// What the processes before it called themselves: they say by another way what they still run.
    before: Vec<u64>,
    told: Receiver<Learned>,
    /// The first of them, if it was looked for.
    next: Option<Learned>,
    lost: Arc<AtomicU64>,
    lost_before: u64,
    /// Something is missing behind what the channel has.
    owes_gap: bool,
    /// A number may be missing before the next one.
    is_untold: bool,
    names: Names,
    peers: Peers,
    orders: Orders,
    number: u64,
    after: Place,
    /// Where it was when the store answered last, and how often it has not come further since.
    stuck: (Place, u32),
    live: Live,
    /// When what is done now and then is due, in milliseconds.
    due: Due,
    listed: Vec<u64>,
    /// The size of an entry on average, and what the stream may take.
    entry_bytes: f64,
    memory: f64,
    /// Batches that have not come back: number, things in it, and since when the first of them may have waited.
    out: VecDeque<(u64, u64, f64)>,
    /// Since when the first thing that goes out next may have waited.
    quiet_until: f64,
    counts: Counts,
    /// Whether all that was in the stream has been read once.
    has_caught_up: bool,
    /// Whether the speeds that others have learned were asked for, and were told, or there was nobody to ask.
    asked_lore: bool,
    has_lore: bool,
}

#[derive(Debug)]
struct Due {
    /// When it was said last what this router has.
    said_live: f64,
    list: f64,
    orders: f64,
    lore: f64,
    /// Words of operators that are to be written.
    write: Vec<Order>,
    /// Whether the store's words have been read since it answers.
    has_read_orders: bool,
}

impl Default for Due {
    fn default() -> Self {
        let (said_live, write) = (f64::NEG_INFINITY, Vec::new());
        Due { said_live, list: 0.0, orders: 0.0, lore: 0.0, write, has_read_orders: false }
    }
}

impl Desk {
    /// Of a router that calls itself `me`, whose fleet tells `told` of what it learns; the stream may take about `memory` bytes.
    pub fn new(
        (fleet, keys, me): (Arc<Fleet>, Keys, u64),
        (told, lost): (Receiver<Learned>, Arc<AtomicU64>),
        memory: usize,
    ) -> Self {
        Desk {
            changes: fleet.changes(),
            names: Names::of(&fleet, &keys),
            peers: Peers::new(fleet.clone()),
            fleet,
            keys,
            me,
            before: Vec::new(),
            told,
            next: None,
            lost,
            lost_before: 0,
            owes_gap: false,
            is_untold: false,
            orders: Orders::default(),
            number: 0,
            after: (0, 0),
            stuck: ((0, 0), 0),
            live: Live::default(),
            due: Due::default(),
            listed: Vec::new(),
            entry_bytes: 4096.0,
            #[expect(clippy::cast_precision_loss, reason = "a size")]
            memory: memory as f64,
            out: VecDeque::new(),
            quiet_until: 0.0,
            counts: Counts::default(),
            has_caught_up: false,
            asked_lore: false,
            has_lore: false,
        }
    }

    /// The same for one that follows those.
    #[must_use]
    pub fn following(self, before: Vec<u64>) -> Self {
        Desk { before, ..self }
    }

    /// The store answers; its stream ends at `end`. A router that knows what one before it knew need not read what is there.
    pub fn connected(&mut self, end: Place, knows: bool) {
        if knows && !self.has_caught_up {
            (self.after, self.has_caught_up, self.has_lore) = (end, true, true);
        } else if end < self.after {
            // another stream, or the same one after a loss
            self.after = (0, 0);
        }
        let is_stuck = self.stuck.0 == self.after && end > self.after;
        self.stuck = (self.after, if is_stuck { self.stuck.1 + 1 } else { 0 });
        if self.stuck.1 >= PATIENCE {
            // what stands there cannot be read
            self.after = end;
        }
        self.out.clear();
        // what went out last may not have arrived
        self.is_untold |= self.number > 0;
        self.due = Due { write: std::mem::take(&mut self.due.write), ..Due::default() };
    }

    /// Whether all that was in the stream has been read once, and what others have learned of speeds.
    pub fn has_caught_up(&self) -> bool {
        self.has_caught_up && self.has_lore
    }

    /// Whether something was learned by `now` that is to be told.
    pub fn has_news(&mut self, now: f64) -> bool {
        self.next = self.next_told();
        if self.next.is_none() {
            self.quiet_until = now;
        }
        self.next.is_some()
    }

    fn next_told(&mut self) -> Option<Learned> {
        self.next.take().or_else(|| self.told.try_recv().ok())
    }

    /// The store takes its time. Meanwhile members come, and go again, and who was not heard of for long has nothing here any
    /// more.
    pub fn wait(&mut self, now: f64) {
        self.renew();
        self.fleet.mark();
        self.peers.fade(now);
    }

    /// Time goes on, whether or not the store answers.
    pub fn pass(&mut self, is_connected: bool, (now, unix): (f64, u64)) {
        if !is_connected {
            self.peers.take_in();
            self.renew();
            let gone = self.names.gone(&self.fleet);
            // what comes later is worth more than what would fill the channel
            let lost = self.next.take().into_iter().chain(self.told.try_iter()).count() as u64;
            self.names.let_go(gone).for_each(drop);
            self.counts.lost[1] += lost;
            if lost > 0 {
                self.leave_out();
            }
            self.listen_to_operators(unix);
        }
        self.fleet.mark();
        self.peers.fade(now);
        let lag_s = self.fleet.sharing().group().map_or(0.0, |group| group.lag_s);
        let lag_s = self.counts.lags_ms.last().map_or(lag_s, |ms| ms / 1000.0);
        let peers = self.peers.present(now, &self.before);
        self.fleet.sharing().set_group(Group { connected: is_connected, peers, lag_s });
    }

    /// What was counted since this was asked last.
    pub fn take_counts(&mut self) -> Counts {
        let lost = self.lost.load(Relaxed);
        self.counts.lost[0] = lost - self.lost_before;
        if lost > self.lost_before {
            // whoever reads on must know that something is missing: now, as there may be no end to it, and behind what is in
            // the channel, which is older than what it had no room for
            self.leave_out();
            self.owes_gap = true;
        }
        self.lost_before = lost;
        std::mem::take(&mut self.counts)
    }

    /// What goes out now, `unix` being milliseconds since 1970.
    pub fn outgoing(&mut self, now: f64, unix: u64) -> Outgoing {
        self.renew();
        let batches = self.batches(unix);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
        let keep = (self.memory / (self.entry_bytes + ENTRY)).clamp(LEAST_ENTRIES, 1e7) as u64;
        let mut out = Outgoing { batches, keep, after: self.after, ..Outgoing::default() };
        let is_due = |due: &mut f64, every: f64| {
            let is_due = now >= *due;
            if is_due {
                *due = now + every;
            }
            is_due
        };
        (out.asks_list, out.asks_orders) =
            (is_due(&mut self.due.list, LIST_EVERY), is_due(&mut self.due.orders, ORDERS_EVERY));
        out.asks_lore = is_due(&mut self.due.lore, LORE_EVERY);
        // what it still runs, a process that has stepped back says; the rest is for the one that follows it
        out.live = self.say_live(now, unix);
        if !self.fleet.is_retired() {
            if out.asks_lore {
                let speeds = Speeds::of(
                    &self.fleet.lore(),
                    |id| self.names.name(id, (&self.fleet, &self.keys)),
                    |model| self.keys.name(model),
                );
                out.lore = self.keys.seal(Purpose::Lore, self.me, &bytes(&speeds));
            }
            let said = self.listen_to_operators(unix);
            if self.due.has_read_orders {
                self.due.write.extend(said);
            }
            let sealed = |order: Order| Some((order.replica, self.keys.seal(Purpose::Order, self.me, &bytes(&order))?));
            out.orders = std::mem::take(&mut self.due.write).into_iter().filter_map(sealed).collect();
        }
        self.fleet.mark();
        let others = self.listed.iter().copied().chain(self.peers.known());
        out.peers = others.filter(|name| *name != self.me).collect();
        out.peers.sort_unstable();
        out.peers.dedup();
        self.asked_lore = out.asks_lore && !out.peers.is_empty();
        self.quiet_until = now;
        out
    }

    /// Takes in what came back; whether there is more to be read at once.
    pub fn incoming(&mut self, incoming: Incoming, now: f64, unix: u64) -> bool {
        let is_whole = incoming.entries.len() < ENTRIES;
        for (place, mut frame) in incoming.entries {
            self.after = self.after.max(place);
            self.entry_bytes += 0.01 * (index(frame.len()) - self.entry_bytes);
            let heard = self.hear(&mut frame, (now, unix));
            self.note(heard);
        }
        if is_whole {
            self.peers.take_in();
        }
        self.see(incoming.live, now, unix);
        self.learn(incoming.lore);
        if let Some(orders) = incoming.orders {
            self.settle(orders, unix);
        }
        if let Some(list) = incoming.list {
            if list.iter().all(|name| self.is_own(*name)) {
                self.has_lore = true;
            } else if !self.has_lore {
                // it is worth most before the first request
                self.due.lore = 0.0;
            }
            self.listed = list;
        }
        for _ in 0..incoming.refused {
            // the last ones: which they were does not matter, as it shows
            if let Some((_, things, _)) = self.out.pop_back() {
                self.counts.published -= things.min(self.counts.published);
                self.counts.lost[1] += things;
            }
            self.is_untold = true;
        }
        self.has_caught_up |= is_whole;
        !is_whole
    }

    /// Who belongs to the fleet may have changed.
    fn renew(&mut self) {
        if self.changes.has_changed().unwrap_or(false) {
            self.changes.mark_unchanged();
            self.names.renew(&self.fleet, &self.keys);
        }
    }

    /// Whether that is this router, or one before it.
    fn is_own(&self, name: u64) -> bool {
        name == self.me || self.before.contains(&name)
    }

    fn note(&mut self, read: Result<usize, Rejected>) {
        match read {
            Ok(count) => self.counts.received += count as u64,
            Err(why) => self.counts.rejected[why as usize] += 1,
        }
    }

    fn open<T: Pack>(&self, purpose: Purpose, frame: &mut [u8]) -> Result<(u64, T), Rejected> {
        let (writer, content) = self.keys.open(purpose, frame)?;
        Ok((writer, whole(content).ok_or(Rejected::Malformed)?))
    }
}

fn index(n: usize) -> f64 {
    index64(n as u64)
}

#[expect(clippy::cast_precision_loss, reason = "sizes and times fit a float")]
fn index64(n: u64) -> f64 {
    n as f64
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped; the cast saturates")]
fn whole_ms(ms: f64) -> u64 {
    ms.max(0.0) as u64
}

#[cfg(test)]
mod tests;
