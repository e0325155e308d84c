//! What the replicas of a fleet serve, as far as they have told.

use super::fits::Fits;
use super::replica::Replica;
use super::{Fleet, FleetHealth};
use crate::api::catalogue::Catalogue;
use crate::types::ReplicaId;
use std::collections::BTreeSet;
use std::sync::Arc;

impl Fleet {
    /// Whether any replica, healthy or not, serves `model`.
    pub fn serves(&self, model: &str) -> bool {
        self.replicas().iter().any(|r| r.serves(Some(model)))
    }

    /// A replica's engine has told what it serves.
    pub fn learn_catalogue(&self, id: ReplicaId, listed: Catalogue) {
        let Some(replica) = self.replica(id) else { return };
        if replica.set_catalogue(listed) {
            self.note_models();
        }
    }

    /// Whether replicas serve different models, so that a request must go where its model is.
    pub fn models_differ(&self) -> bool {
        self.fits.load().differ()
    }

    /// The models of all replicas, as far as they are known.
    pub fn model_names(&self) -> BTreeSet<String> {
        self.replicas().iter().flat_map(|r| r.model_names()).collect()
    }

    /// What the engines of healthy replicas list; of all, if none is healthy.
    pub fn catalogues(&self) -> Vec<Arc<Catalogue>> {
        let of = |replicas: &mut dyn Iterator<Item = &Arc<Replica>>| replicas.filter_map(|r| r.catalogue()).collect();
        let replicas = self.replicas();
        match self.health() {
            FleetHealth::Unhealthy => of(&mut replicas.iter()),
            _ => of(&mut replicas.iter().filter(|r| r.is_healthy())),
        }
    }

    /// Who serves what may have changed.
    pub(super) fn note_models(&self) {
        // anew if somebody else did so meanwhile: the last one has seen everything
        self.fits.rcu(|_| {
            let fits = Fits::of(&self.replicas());
            match &*self.former_fits.load() {
                Some(former) => fits.with(former),
                None => fits,
            }
        });
    }
}
