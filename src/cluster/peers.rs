//! The other routers of the group: what each has told, what it has running, and whether it is there.
//!
//! Each numbers what it writes. A number that is missing means that something is lost: what was open then counts as held
//! and over. A number that was read before is not believed again, and what a router has at the moment not when it is of long
//! ago, so that nobody who can write into the store can repeat what was there once. What can be repeated is what a router that
//! starts reads of the past anyway: claims, which cost hit rate; speeds; and the last words of operators. **Invariant:** who is
//! not heard of for [`GONE_MS`] has nothing here: no load and no open claim.
//!
//! Of what is read at a time, that caches were emptied is taken in first: a router that was cut off from the store for a while
//! has many claims to read, and what they were emptied of stands behind them.

use super::keys::Rejected;
use super::names::Names;
use super::wire::{Batch, Live, Name};
use crate::fleet::Fleet;
use crate::fleet::elsewhere::{Running, RunningElsewhere};
use crate::fleet::heard::Heard;
use crate::fleet::sharing::Learned;
use crate::policy::health::FenceReason;
use std::collections::BTreeMap;
use std::sync::Arc;

/// After so long a silence a router is not there any more.
pub const GONE_MS: f64 = 3000.0;
/// What was said longer ago, or is to be said in so long a time, in milliseconds, is not so at the moment: clocks agree to that.
const OLD_MS: u64 = 60_000;
/// Bytes of what is read before it is taken in.
const MOST_READ: usize = 16 << 20;
/// Routers that are listened to at a time.
pub const MOST: usize = 64;

/// The other routers by what they call themselves.
#[derive(Debug)]
pub struct Peers {
    fleet: Arc<Fleet>,
    all: BTreeMap<u64, Peer>,
    /// What was read and is not taken in yet, and about how many bytes of it.
    read: Vec<Read>,
    bytes: usize,
}

/// What one router has told in one batch.
#[derive(Debug)]
struct Read {
    writer: u64,
    /// Whether something is missing before it.
    has_gap: bool,
    learned: Vec<Learned>,
}

#[derive(Debug)]
struct Peer {
    /// The numbers that were read last.
    batch: Option<u64>,
    live: Option<u64>,
    heard: Heard,
    running: RunningElsewhere,
    fenced: BTreeMap<Name, FenceReason>,
    /// When it was there last, and when it told something last; in milliseconds.
    seen: f64,
    told: f64,
}

impl Peers {
    /// Nobody so far.
    pub fn new(fleet: Arc<Fleet>) -> Self {
        Peers { fleet, all: BTreeMap::new(), read: Vec::new(), bytes: 0 }
    }

    /// Who has told something, or was there, lately.
    pub fn known(&self) -> impl Iterator<Item = u64> {
        self.all.keys().copied()
    }

    /// How many are there at `now`, besides those.
    pub fn present(&self, now: f64, besides: &[u64]) -> usize {
        self.all.iter().filter(|(name, peer)| now - peer.seen < GONE_MS && !besides.contains(name)).count()
    }

    /// The one of this name; `None` where there is no room for another.
    fn at(&mut self, name: u64, now: f64) -> Option<&mut Peer> {
        if self.all.len() >= MOST && !self.all.contains_key(&name) {
            // whoever was silent longest, if anybody is
            let lately = |peer: &Peer| peer.seen.max(peer.told);
            let silent = self.all.iter().filter(|(_, peer)| now - peer.seen >= GONE_MS);
            let silent = silent.min_by(|(_, a), (_, b)| lately(a).total_cmp(&lately(b))).map(|(name, _)| *name)?;
            self.all.remove(&silent);
        }
        Some(self.all.entry(name).or_insert_with(|| Peer {
            batch: None,
            live: None,
            heard: Heard::new(self.fleet.clone()),
            running: RunningElsewhere::new(self.fleet.clone()),
            fenced: BTreeMap::new(),
            seen: f64::NEG_INFINITY,
            told: now,
        }))
    }

    /// A router has told something; how much of it concerned this one. Whether it `is_old`, told before this router was here:
    /// then all is as it was told, one after the other. Later than that this router knows of when what it has learned is, and
    /// takes it in with [`Self::take_in`], or as soon as much of it waits for that.
    /// Times are told on a clock that shows so much more (`ahead`) than the fleet's.
    ///
    /// # Errors
    /// It was read before, or cannot be read.
    pub fn hear(
        &mut self,
        writer: u64,
        (batch, is_old): (&Batch, bool),
        names: &Names,
        (now, ahead): (f64, f64),
    ) -> Result<usize, Rejected> {
        let Some(peer) = self.at(writer, now) else { return Ok(0) };
        let has_gap = match peer.batch {
            Some(last) if batch.number <= last => return Err(Rejected::Repeated),
            Some(last) => batch.number > last + 1,
            None => false,
        };
        let learned = batch.read(|name| names.id(name)).ok_or(Rejected::Malformed)?;
        (peer.batch, peer.told) = (Some(batch.number), now);
        let count = learned.len();
        if is_old {
            if has_gap {
                peer.heard.settle();
            }
            learned.into_iter().for_each(|learned| peer.heard.take_in_past(learned));
            return Ok(count);
        }
        let shifted = learned.into_iter().map(|learned| learned.shifted(-ahead));
        let (emptied, learned) = shifted.partition(|learned| matches!(learned, Learned::Forgot(..)));
        Vec::into_iter(emptied).for_each(|emptied| peer.heard.take_in(emptied));
        self.read.push(Read { writer, has_gap, learned });
        self.bytes += batch.bytes();
        if self.bytes > MOST_READ {
            self.take_in();
        }
        Ok(count)
    }

    /// Takes in what was read, in that order.
    pub fn take_in(&mut self) {
        self.bytes = 0;
        for Read { writer, has_gap, learned } in self.read.drain(..) {
            let Some(peer) = self.all.get_mut(&writer) else { continue };
            if has_gap {
                peer.heard.settle();
            }
            learned.into_iter().for_each(|learned| peer.heard.take_in(learned));
        }
    }

    /// A router is there, and has this. What it keeps requests away from is asked about here. `unix` is the time in
    /// milliseconds since 1970.
    ///
    /// # Errors
    /// It is of long ago.
    pub fn see(&mut self, writer: u64, live: Live, names: &Names, (now, unix): (f64, u64)) -> Result<(), Rejected> {
        let fleet = self.fleet.clone();
        let Some(peer) = self.at(writer, now) else { return Ok(()) };
        // what is there already is no news, and no sign of life
        if peer.live.is_some_and(|last| live.number <= last) {
            return Ok(());
        }
        if live.at.abs_diff(unix) > OLD_MS {
            return Err(Rejected::Repeated);
        }
        (peer.live, peer.seen) = (Some(live.number), now);
        let known = |name: Name| names.id(name).and_then(|id| fleet.replica(id));
        let running = live.work().into_iter();
        let running = running.filter_map(|(name, work)| Some(Running::at(known(name)?.name().to_owned(), work)));
        peer.running.replace(running.collect());
        for (name, reason) in live.fenced.iter().filter(|(name, _)| !peer.fenced.contains_key(name)) {
            if let Some(replica) = known(*name).filter(|replica| replica.is_healthy()) {
                log::info!("another router has fenced {}: {}; it is probed here", replica.name(), reason.label());
                fleet.suspect(&replica);
            }
        }
        peer.fenced = live.fenced.into_iter().collect();
        Ok(())
    }

    /// Who was not heard of for long is gone, and with it what it had here.
    pub fn fade(&mut self, now: f64) {
        self.all.retain(|_, peer| {
            if now - peer.seen >= GONE_MS {
                peer.running.replace(Vec::new());
                peer.fenced.clear();
            }
            let is_silent = now - peer.seen.max(peer.told) >= GONE_MS;
            if is_silent && peer.heard.open() > 0 {
                peer.heard.settle();
            }
            // its numbers are remembered for as long as there is room
            true
        });
    }
}
