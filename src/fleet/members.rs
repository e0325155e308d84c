//! Who belongs to the fleet, and how that changes while requests run.
//!
//! The members are one value that is swapped as a whole: who reads it takes one load and no lock, and sees a fleet that
//! was there at one moment. A replica is the same as long as its name is: it keeps its slot, and with it everything that
//! is known by slot (prefix index, pins, hints, learned rates), whatever else its configuration says.
//!
//! A replica that leaves takes no new requests and finishes what it has; then what it held is forgotten. **Invariant: a
//! slot is another's only when nobody refers to it any more.** Requests hold the members that they began with, guards and
//! probes hold their replica, so that is when the table of slots alone holds the replica. One that comes back before is
//! as it was.

use super::Fleet;
use super::replica::{Replica, ReplicaSpec};
use super::steps::{Change as Noted, Seat, note};
use crate::policy::select::Decision;
use crate::types::ReplicaId;
use smallvec::SmallVec;
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use tokio::sync::watch;

/// The replicas of a fleet at one moment, in the order of their slots.
#[derive(Debug, Default)]
pub struct Members {
    replicas: Vec<Arc<Replica>>,
    /// By slot; who has left stays until nobody refers to it.
    slots: Vec<Option<Arc<Replica>>>,
    has_ranks: bool,
}

/// What is to be a member, and where it is, if that is known.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// What is said of it.
    pub spec: ReplicaSpec,
    /// Its address. A member whose host and port stay keeps the one that it has.
    pub address: Option<SocketAddr>,
}

/// What a change of the members did, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Who came, or came back.
    pub added: Vec<String>,
    /// Who left.
    pub removed: Vec<String>,
    /// Who has another configuration now.
    pub changed: Vec<String>,
}

impl Change {
    /// Whether it did nothing.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty()
    }
}

impl Deref for Members {
    type Target = [Arc<Replica>];

    fn deref(&self) -> &[Arc<Replica>] {
        &self.replicas
    }
}

impl Members {
    fn new(replicas: Vec<Arc<Replica>>, mut slots: Vec<Option<Arc<Replica>>>) -> Self {
        while slots.last().is_some_and(Option::is_none) {
            slots.pop();
        }
        let has_ranks = replicas.iter().any(|r| r.spec.role.rank.is_some());
        Members { replicas, slots, has_ranks }
    }

    /// The replica of a slot, also if it has left and somebody may still refer to it.
    pub fn at(&self, id: ReplicaId) -> Option<&Arc<Replica>> {
        self.slots.get(id.index())?.as_ref()
    }

    /// How many slots there are: all that is known by slot fits into a table of this size.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Whether any replica is one of several data-parallel ranks.
    pub fn has_ranks(&self) -> bool {
        self.has_ranks
    }

    /// The members, and those that have left but still have requests.
    pub fn present(&self) -> impl Iterator<Item = &Arc<Replica>> {
        let is_member = |r: &Replica| self.has(r);
        self.slots.iter().flatten().filter(move |r| r.inflight() > 0 || is_member(r))
    }

    /// Whether `replica`, as it is configured, is a member.
    pub fn has(&self, replica: &Replica) -> bool {
        let found = self.replicas.binary_search_by_key(&replica.id, |r| r.id);
        found.is_ok_and(|at| self.replicas[at].number == replica.number)
    }

    /// Whether `replica` has left, and nobody refers to it but who asks.
    pub fn is_gone(&self, replica: &Arc<Replica>) -> bool {
        !self.has(replica) && Arc::strong_count(replica) <= 2 && Arc::strong_count(&replica.vitals) == 1
    }

    /// The node of each place of a ranking.
    pub fn nodes(&self, decision: &Decision) -> SmallVec<[&str; 8]> {
        decision.ranked.iter().map(|r| self.at(r.id).map_or("", |r| &r.spec.role.node)).collect()
    }
}

/// The members under construction.
struct Draft<'a> {
    fleet: &'a Fleet,
    now: f64,
    slots: Vec<Option<Arc<Replica>>>,
    by_name: HashMap<String, ReplicaId>,
    members: Vec<Arc<Replica>>,
    /// Their slots.
    taken: HashSet<ReplicaId>,
    change: Change,
    /// Who is elsewhere now.
    moved: Vec<ReplicaId>,
    /// Whose capacity is news.
    told: Vec<ReplicaId>,
    free_from: usize,
}

impl Fleet {
    /// Makes exactly `wanted` the members; no two of them have one name.
    pub fn change(&self, wanted: Vec<Wanted>) -> Change {
        let mut untold = self.changing.lock();
        self.free_slots();
        let before = self.members.load_full();
        let by_name = before.slots.iter().flatten().map(|r| (r.name().to_owned(), r.id)).collect();
        let mut draft = Draft {
            fleet: self,
            now: self.clock.now(),
            slots: before.slots.clone(),
            by_name,
            members: Vec::with_capacity(wanted.len()),
            taken: HashSet::new(),
            change: Change::default(),
            moved: Vec::new(),
            told: Vec::new(),
            free_from: 0,
        };
        for wanted in wanted {
            draft.take_in(&before, wanted);
        }
        let change = draft.finish(&before);
        *untold |= !change.is_empty();
        change
    }

    /// Sends nothing more to who has left: to be called when choices are made among the new members. Forgets what was known
    /// of those that have finished, and frees slots that nobody refers to.
    pub fn tidy(&self) {
        let mut untold = self.changing.lock();
        let members = self.members.load_full();
        for left in members.slots.iter().flatten().filter(|r| !members.has(r)) {
            left.leave(true, self.clock.now());
        }
        drop(members);
        if self.former_fits.swap(None).is_some() {
            self.note_models();
        }
        self.finish_emptying();
        self.free_slots();
        if std::mem::take(&mut *untold) {
            self.changes.send_modify(|generation| *generation += 1);
        }
    }

    fn free_slots(&self) {
        let free: Vec<ReplicaId> = {
            let members = self.members.load();
            let has_left = members.slots.iter().flatten().filter(|r| !members.has(r));
            has_left.filter(|r| is_unused(r)).map(|r| r.id).collect()
        };
        if free.is_empty() {
            return;
        }
        let before = self.members.load_full();
        let mut slots = before.slots.clone();
        for id in &free {
            slots[id.index()] = None;
        }
        self.members.store(Arc::new(Members::new(before.replicas.clone(), slots)));
        for id in free {
            let _step = self.step();
            note(|| Noted::Vacated(id));
            self.residency.write().vacate(id);
            self.hints.forget(id);
            self.pins.forget(id);
            self.past.lock().vacate(id);
        }
    }

    /// Puts a member into a slot, or empties it.
    pub(super) fn sit(&self, id: ReplicaId, replica: Option<Arc<Replica>>) {
        let mut slots = self.members.load().slots.clone();
        if slots.len() <= id.index() {
            slots.resize(id.index() + 1, None);
        }
        slots[id.index()] = replica;
        self.members.store(Arc::new(Members::new(slots.iter().flatten().cloned().collect(), slots)));
    }

    /// Tells of every change of the members.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

/// What choices know a replica by.
fn seat(replica: &Replica) -> Seat {
    Seat { in_lane: replica.spec.role.in_lane }
}

/// Whether the table of slots alone holds a replica that has left.
fn is_unused(replica: &Arc<Replica>) -> bool {
    Arc::strong_count(replica) == 1 && Arc::strong_count(&replica.vitals) == 1
}

impl Draft<'_> {
    fn take_in(&mut self, before: &Members, Wanted { spec, address }: Wanted) {
        let known = self.by_name.get(&spec.name).and_then(|id| before.at(*id)).cloned();
        let replica = match known {
            Some(known) if !self.taken.insert(known.id) => return,
            Some(known) => self.keep(before, &known, spec, address),
            None => {
                let Some(id) = self.free_slot() else {
                    return log::error!("replica {}: there are too many", spec.name);
                };
                self.change.added.push(spec.name.clone());
                let replica = Replica::new(id, spec).numbered(self.fleet.number());
                if let Some(address) = address {
                    replica.set_address(address);
                }
                self.fleet.greet(&replica);
                self.told.push(id);
                let _step = self.fleet.step();
                note(|| Noted::Seated(id, seat(&replica)));
                Arc::new(replica)
            }
        };
        self.slots[replica.id.index()] = Some(replica.clone());
        self.members.push(replica);
    }

    /// A replica that was there before.
    fn keep(
        &mut self,
        before: &Members,
        known: &Arc<Replica>,
        spec: ReplicaSpec,
        address: Option<SocketAddr>,
    ) -> Arc<Replica> {
        let was_member = before.has(known);
        if !was_member {
            // nobody has watched whose engine it is meanwhile
            known.doubt_identity(self.now);
            known.leave(false, self.now);
            self.change.added.push(spec.name.clone());
        }
        if known.spec == spec {
            return known.clone();
        }
        if was_member {
            self.change.changed.push(spec.name.clone());
        }
        let is_there = (&known.spec.host, known.spec.port) == (&spec.host, spec.port);
        let address = if is_there { known.address() } else { address };
        if address != known.address() {
            self.moved.push(known.id);
        }
        self.told.push(known.id);
        let successor = known.successor(spec, address, self.now).numbered(self.fleet.number());
        let _step = self.fleet.step();
        note(|| Noted::Reseated(known.id, seat(&successor)));
        Arc::new(successor)
    }

    fn free_slot(&mut self) -> Option<ReplicaId> {
        let free = self.slots[self.free_from..].iter().position(Option::is_none);
        let at = free.map_or(self.slots.len(), |at| self.free_from + at);
        if at == self.slots.len() {
            self.slots.push(None);
        }
        self.free_from = at + 1;
        // the last number of all is nobody's
        u16::try_from(at).ok().filter(|at| *at < u16::MAX).map(ReplicaId)
    }

    fn finish(mut self, before: &Members) -> Change {
        self.members.sort_by_key(|r| r.id);
        let members = Members::new(self.members, self.slots);
        let has_left = |r: &&Arc<Replica>| members.at(r.id).is_none_or(|now| !members.has(now));
        self.change.removed = before.iter().filter(has_left).map(|r| r.name().to_owned()).collect();
        let fleet = self.fleet;
        if !self.change.is_empty() {
            // until it is told of, choices are made among those of before
            fleet.former_fits.store(Some(Arc::new(fleet.fits.load().without(&members))));
        }
        fleet.members.store(Arc::new(members));
        self.moved.iter().for_each(|id| fleet.forget(*id));
        for replica in self.told.iter().filter_map(|id| fleet.replica(*id)) {
            if let Some(tokens) = replica.spec.role.kv_capacity {
                fleet.learn_capacity(replica.id, tokens);
            }
        }
        if !self.change.is_empty() {
            fleet.note_models();
        }
        self.change
    }
}

#[cfg(test)]
mod tests;
