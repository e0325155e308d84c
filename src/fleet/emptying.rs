//! An operator empties a replica: nothing new goes there, its sessions move, and it is seen since when, and since when
//! nothing is left. They move at their next turns, all at once; or within a given time, the dearest last: until its turn
//! to go has come, a session that would have to be read again elsewhere is still served where it is (see
//! `policy::drain`).

use super::Fleet;
use super::candidates::{Back, Pool};
use super::clock::{time_bits, time_of};
use super::replica::Replica;
use super::selection::RouteKey;
use crate::policy::drain::Departures;
use crate::policy::hint::rendezvous;
use crate::policy::select::Candidate;
use arc_swap::ArcSwapOption;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// When it was drained and when its last request went, in milliseconds on the fleet's clock, as bits; 0 for never.
#[derive(Debug, Default)]
pub struct Emptying {
    drained: AtomicU64,
    idle: AtomicU64,
    /// Whether nothing but an operator keeps new requests away.
    well: AtomicBool,
    /// While sessions may stay for some time.
    plan: ArcSwapOption<Plan>,
}

/// Who leaves when. Times are milliseconds on the fleet's clock.
#[derive(Clone, Debug)]
struct Plan {
    begins: f64,
    ends: f64,
    order: Departures,
}

impl Emptying {
    /// The last request has gone.
    pub(super) fn is_idle(&self, now: f64) {
        self.idle.fetch_max(time_bits(now), Relaxed);
    }

    /// Whether nothing but an operator keeps new requests away.
    pub(super) fn is_well(&self, is_well: bool) {
        self.well.store(is_well, Relaxed);
    }
}

impl Plan {
    fn passed(&self, now: f64) -> f64 {
        (now - self.begins) / (self.ends - self.begins).max(1.0)
    }
}

impl Replica {
    /// An operator keeps new requests away, or no longer does.
    pub fn drain(&self, draining: bool, now: f64) {
        let drained = &self.emptying.drained;
        if draining {
            // saying it again begins nothing anew
            let _known = drained.compare_exchange(0, time_bits(now), Relaxed, Relaxed);
        } else {
            drained.store(0, Relaxed);
        }
        self.emptying.plan.store(None);
        self.revise(now, |standing| standing.draining = draining);
    }

    /// Since when an operator keeps new requests away.
    pub fn drained_since(&self) -> Option<f64> {
        Some(self.emptying.drained.load(Relaxed)).filter(|bits| *bits != 0).map(time_of)
    }

    /// Until when some of the sessions of a drained replica may stay.
    pub fn leaves_by(&self, now: f64) -> Option<f64> {
        self.emptying.plan.load().as_ref().map(|plan| plan.ends).filter(|ends| *ends > now)
    }

    /// Since when a drained replica has nothing left to do, and gets nothing more.
    pub fn empty_since(&self, now: f64) -> Option<f64> {
        let is_idle = self.inflight() == 0 && self.elsewhere().requests() == 0 && self.leaves_by(now).is_none();
        let drained = self.drained_since().filter(|_| is_idle)?;
        let ended = self.emptying.plan.load().as_ref().map_or(0.0, |plan| plan.ends);
        Some(drained.max(ended).max(time_of(self.emptying.idle.load(Relaxed))))
    }

    /// Whether some of its sessions may stay, and nothing but the operator is against it.
    pub fn is_left_slowly(&self, now: f64) -> bool {
        self.emptying.well.load(Relaxed) && self.leaves_by(now).is_some()
    }

    /// Whether a session may stay; see [`Departures::stays`].
    fn keeps(&self, (prompt, cost): (f64, f64), lot: f64, now: f64) -> bool {
        let plan = self.emptying.plan.load();
        plan.as_ref().is_some_and(|plan| plan.order.stays((prompt, cost), lot, plan.passed(now)))
    }
}

impl Fleet {
    /// An operator drains a replica: its sessions move at their next turns, or `within` some time.
    pub fn drain(&self, replica: &Replica, within: Option<Duration>) {
        let now = self.clock.now();
        replica.drain(true, now);
        if let Some(within) = within {
            self.leave_by(replica, now + within.as_secs_f64() * 1000.0);
        }
    }

    /// Lets sessions stay at a drained replica until `ends` at the latest.
    pub(super) fn leave_by(&self, replica: &Replica, ends: f64) {
        let costs = self.residency.read().costs(replica.id);
        let order = Departures::of(costs.into_iter());
        replica.emptying.plan.store(Some(Arc::new(Plan { begins: self.clock.now(), ends, order })));
    }

    /// Sessions that are expected to return to a replica, and the tokens that those need there which have returned before.
    pub fn residents(&self, replica: &Replica) -> (u32, f64) {
        let there = self.residency.read().others(replica.id, None);
        (there.sessions, there.tokens)
    }

    /// Nobody is expected any more at a drained replica that nobody has to leave at once: it is empty before its time.
    pub(super) fn finish_emptying(&self) {
        let now = self.clock.now();
        for replica in self.replicas().iter().filter(|r| r.leaves_by(now).is_some() && r.inflight() == 0) {
            if self.residents(replica).0 == 0 {
                log::info!("replica {}: all of its sessions have moved", replica.name());
                replica.emptying.is_idle(now);
                replica.emptying.plan.store(None);
            }
        }
    }

    /// Of the candidates, takes out the drained ones at which the request may not stay; the others take it. `back` names
    /// candidates by their places.
    pub(super) fn let_stay(&self, pool: &mut Pool, back: &mut Back, key: &RouteKey<'_>) {
        let (tokens, now, replicas) = (key.request.tokens, self.clock.now(), self.replicas());
        let held = |c: &Candidate| tokens.split(c.overlap, c.tail).0;
        let leaving = |c: &Candidate| replicas.at(c.id).filter(|r| r.is_barred());
        let elsewhere = pool.iter().filter(|c| c.healthy && leaving(c).is_none()).map(held).fold(0.0, f64::max);
        let stays = |replica: &Replica, c: &Candidate| {
            let lot = key.session.map_or(0.5, |session| lot(session.key, replica.name_hash));
            replica.keeps((tokens.prompt, held(c) - elsewhere), lot, now)
        };
        let mut place = 0;
        while let Some(candidate) = pool.get_mut(place) {
            match leaving(candidate) {
                Some(replica) if !stays(replica, candidate) => {
                    pool.remove(place);
                    back.retain(|(at, _)| *at != place);
                    back.iter_mut().filter(|(at, _)| *at > place).for_each(|(at, _)| *at -= 1);
                    continue;
                }
                Some(_) => candidate.healthy = true,
                None => {}
            }
            place += 1;
        }
    }
}

/// From 0 to 1: what a session draws at a replica, the same at each turn.
fn lot(session: u64, replica: u64) -> f64 {
    let drawn = rendezvous(session, replica) >> 32;
    f64::from(u32::try_from(drawn).unwrap_or(u32::MAX)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests;
