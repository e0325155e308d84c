//! What the replicas of this router are called in the store: keyed hashes of their names, so that routers with the same
//! replicas agree and nobody else learns of any. Routers know a replica by the name that the configuration gives it, not by its
//! address: the same engine may have another one on each machine.
//!
//! What was learned says by its slot whom it is about, and waits for a while before it is told. **Invariant:** meanwhile the slot
//! is nobody else's: who has left is held here until all is told that was learned before.

use super::keys::Keys;
use super::wire::Name;
use crate::fleet::Fleet;
use crate::fleet::replica::Replica;
use crate::types::ReplicaId;
use std::collections::HashMap;
use std::sync::Arc;

/// The names of the members, both ways.
#[derive(Debug, Default)]
pub struct Names {
    ids: HashMap<Name, ReplicaId>,
    /// Also of those that have left, and may still be told of.
    names: HashMap<ReplicaId, (Name, Arc<Replica>)>,
}

impl Names {
    /// Of the members as they are.
    pub fn of(fleet: &Fleet, keys: &Keys) -> Self {
        let of = |replica: &Arc<Replica>| (replica.id, (keys.name(replica.name()), replica.clone()));
        let names: HashMap<_, _> = fleet.members().iter().map(of).collect();
        Names { ids: names.iter().map(|(id, (name, _))| (*name, *id)).collect(), names }
    }

    /// The same as they are now. What is still to be told may be of one that has left.
    pub fn renew(&mut self, fleet: &Fleet, keys: &Keys) {
        let before = std::mem::replace(self, Self::of(fleet, keys)).names;
        for (id, named) in before {
            self.names.entry(id).or_insert(named);
        }
    }

    /// Those that have left, and of whom nothing more is learned: nobody else refers to them.
    pub fn gone(&self, fleet: &Fleet) -> Vec<ReplicaId> {
        let members = fleet.replicas();
        let gone = self.names.iter().filter(|(_, (_, replica))| members.is_gone(replica));
        gone.map(|(id, _)| *id).collect()
    }

    /// All is told that was learned while those were gone. What they were called.
    pub fn let_go(&mut self, gone: Vec<ReplicaId>) -> impl Iterator<Item = Name> {
        gone.into_iter().filter_map(|id| self.names.remove(&id)).map(|(name, _)| name)
    }

    /// The replica of this name.
    pub fn id(&self, name: Name) -> Option<ReplicaId> {
        self.ids.get(&name).copied()
    }

    /// The name of a replica; it may be newer here than the names are, or one that has left and still has requests.
    pub fn name(&self, id: ReplicaId, (fleet, keys): (&Fleet, &Keys)) -> Option<Name> {
        let known = self.names.get(&id).map(|(name, _)| *name);
        known.or_else(|| Some(keys.name(fleet.replica(id)?.name())))
    }
}
