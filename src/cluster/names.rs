//! What the replicas of this router are called in the store: keyed hashes of their names, so that routers with the same
//! replicas agree and nobody else learns of any. Routers know a replica by the name that the configuration gives it, not by its
//! address: the same engine may have another one on each machine.

use super::keys::Keys;
use super::wire::Name;
use crate::fleet::Fleet;
use crate::types::ReplicaId;
use std::collections::HashMap;

/// The names of the members, both ways.
#[derive(Debug, Default)]
pub struct Names {
    ids: HashMap<Name, ReplicaId>,
    names: HashMap<ReplicaId, Name>,
}

impl Names {
    /// Of the members as they are.
    pub fn of(fleet: &Fleet, keys: &Keys) -> Self {
        let names: HashMap<_, _> = fleet.replicas().iter().map(|r| (r.id, keys.name(r.name()))).collect();
        Names { ids: names.iter().map(|(id, name)| (*name, *id)).collect(), names }
    }

    /// The same as they are now. What is still to be told may be of one that has left.
    pub fn renew(&mut self, fleet: &Fleet, keys: &Keys) {
        let before = std::mem::replace(self, Self::of(fleet, keys)).names;
        for (id, name) in before {
            self.names.entry(id).or_insert(name);
        }
    }

    /// The replica of this name.
    pub fn id(&self, name: Name) -> Option<ReplicaId> {
        self.ids.get(&name).copied()
    }

    /// The name of a replica.
    pub fn name(&self, id: ReplicaId) -> Option<Name> {
        self.names.get(&id).copied()
    }
}
