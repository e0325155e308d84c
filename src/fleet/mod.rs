//! Shared memory of the fleet, no sockets: replicas, what is reserved and held there, and the choice over it.
//!
//! Locks, in the order in which one may be taken under another, none held across an await:
//! 1. *Booking* (`router`) makes a choice, its reservation and its claim one step, so that two requests never choose on the
//!    same view. Under it: a walk and a claim of one chain, and a look at each candidate.
//! 2. *Residency*, a read-write lock around the prefix index and the pending claims, for one pass over one chain; a
//!    replica's *work* (backlog and rates), for a pass over what waits there; the learned *models*, the sessions' *hints*
//!    and the claims' *landings*, for a look-up.
//! 3. A replica's *health* and *address*, for a few words.
//!
//! Counters are atomics: they only ever add up what guards hold, and every guard gives back in `Drop`.

pub mod claim;
pub mod clock;
pub mod hints;
pub mod landing;
pub mod models;
pub mod replica;
pub mod reservation;
pub mod router;
pub mod selection;

use crate::policy::cost::{Prospect, Tokens};
use crate::policy::select::{Candidate, Params};
use crate::prefix::residency::{Belief, Residency, Served};
use crate::types::ReplicaId;
use clock::Clock;
use hints::Hints;
use landing::Landings;
use models::Models;
use parking_lot::RwLock;
use replica::{Replica, ReplicaSpec};
use selection::RouteKey;
use std::sync::Arc;

/// The replicas of this process and what is believed of them.
#[derive(Debug)]
pub struct Fleet {
    replicas: Vec<Arc<Replica>>,
    residency: RwLock<Residency>,
    models: Models,
    hints: Hints,
    landings: Landings,
    clock: Clock,
    params: Params,
}

/// The state of the fleet in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FleetHealth {
    /// All replicas are healthy.
    Ok,
    /// Some are.
    Degraded,
    /// None is.
    Unhealthy,
}

impl Fleet {
    /// A fleet whose prefix index uses at most `index_bytes`.
    pub fn new(specs: Vec<ReplicaSpec>, params: Params, index_bytes: usize) -> Self {
        let replicas = (0u16..).zip(specs).map(|(slot, spec)| Arc::new(Replica::new(ReplicaId(slot), spec))).collect();
        Fleet {
            replicas,
            residency: RwLock::new(Residency::new(index_bytes)),
            models: Models::default(),
            hints: Hints::default(),
            landings: Landings::default(),
            clock: Clock::default(),
            params,
        }
    }

    /// All replicas, in the order of their slots.
    pub fn replicas(&self) -> &[Arc<Replica>] {
        &self.replicas
    }

    /// One replica.
    pub fn replica(&self, id: ReplicaId) -> Option<&Arc<Replica>> {
        self.replicas.get(id.index())
    }

    /// The rule and its parameters.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The clock that work is measured on.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// What is learned of models.
    pub fn models(&self) -> &Models {
        &self.models
    }

    /// A prompt in tokens: `bytes` canonical bytes of `model`.
    pub fn tokens(&self, bytes: u64, model: Option<&str>) -> Tokens {
        let rates = self.models.rates(model);
        #[expect(clippy::cast_precision_loss, reason = "a body's size fits a float")]
        let in_tokens = |bytes: u64| bytes as f64 * rates.tokens_per_byte;
        let block = in_tokens(self.params.load.block_bytes);
        Tokens { prompt: in_tokens(bytes), block, output: rates.output }
    }

    /// The fleet in one word.
    pub fn health(&self) -> FleetHealth {
        match self.replicas.iter().filter(|r| r.is_healthy()).count() {
            0 => FleetHealth::Unhealthy,
            n if n == self.replicas.len() => FleetHealth::Ok,
            _ => FleetHealth::Degraded,
        }
    }

    /// Whether requests of some kind find no healthy replica, so that all are tried.
    pub fn fails_open(&self) -> bool {
        let healthy: Vec<_> = self.replicas.iter().filter(|r| r.is_healthy()).collect();
        let covered = |model: Option<&str>| healthy.iter().any(|r| r.serves(model));
        self.replicas.iter().any(|r| match &r.spec.models[..] {
            [] => !covered(None),
            models => models.iter().any(|m| !covered(Some(m))),
        })
    }

    /// A replica has restarted: what it held is gone.
    pub fn forget(&self, id: ReplicaId) {
        self.residency.write().forget(id);
    }

    /// An answer told how many tokens came from the cache; see [`Residency::report`].
    pub fn report(&self, chain: &[u64], id: ReplicaId, belief: &Belief, served: Served) {
        if self.residency.write().report(chain, id, belief, served) {
            let name = self.replica(id).map_or("", |r| r.name());
            log::warn!("replica {name} has lost its prefix cache: what it held is forgotten");
        }
    }

    /// Whether any replica, healthy or not, serves `model`.
    pub fn serves(&self, model: &str) -> bool {
        self.replicas.iter().any(|r| r.serves(Some(model)))
    }

    /// Heap bytes and blocks of the prefix index.
    pub fn index_size(&self) -> (usize, usize) {
        let residency = self.residency.read();
        (residency.bytes(), residency.blocks())
    }

    /// The candidates among `pool` for a prompt.
    fn candidates<'a>(
        &self,
        pool: impl Iterator<Item = &'a Arc<Replica>>,
        chain: &[u64],
        key: &RouteKey<'_>,
    ) -> smallvec::SmallVec<[Candidate; 8]> {
        let mut overlaps: smallvec::SmallVec<[u32; 64]> = smallvec::smallvec![0; self.replicas.len()];
        let residency = self.residency.read();
        if !chain.is_empty() {
            residency.walk(chain, key.request.tokens.block, &mut overlaps);
        }
        let mut confirmed = overlaps.clone();
        residency.confirmed(chain, &mut confirmed);
        let now = self.clock.now();
        pool.filter(|r| r.serves(key.model))
            .map(|r| Candidate {
                id: r.id,
                healthy: r.is_healthy(),
                overlap: overlaps[r.id.index()],
                confirmed: confirmed[r.id.index()],
                tail: residency.tail(chain, overlaps[r.id.index()], r.id),
                load: r.load(),
                prospect: Prospect { returning: residency.returning(r.id), ..r.prospect(now) },
            })
            .collect()
    }
}
