//! Shared memory of the fleet, no sockets: replicas, what is reserved and held there, and the choice over it.
//!
//! Locks, in the order in which one may be taken under another, none held across an await:
//! 1. *Booking* (`router`) makes a choice, its reservation and its claim one step, so that two requests never choose on the
//!    same view. Under it: a walk and a claim of one chain, and a look at each candidate.
//! 2. *Residency*, a read-write lock around the prefix index and the pending claims, for one pass over one chain; a
//!    replica's *work* (backlog and rates), for a pass over what waits there; the learned *models*, for a look-up.
//! 3. A replica's *health* and *address*, for a few words.
//!
//! Counters are atomics: they only ever add up what guards hold, and every guard gives back in `Drop`.

pub mod claim;
pub mod clock;
pub mod models;
pub mod replica;
pub mod reservation;
pub mod router;
pub mod selection;

use crate::api::catalogue::Catalogue;
use crate::policy::cost::Tokens;
use crate::policy::select::{Candidate, Params};
use crate::prefix::residency::Residency;
use crate::types::ReplicaId;
use clock::Clock;
use models::Models;
use parking_lot::RwLock;
use replica::{Fit, Replica, ReplicaSpec};
use std::cell::LazyCell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The replicas of this process and what is believed of them.
#[derive(Debug)]
pub struct Fleet {
    replicas: Vec<Arc<Replica>>,
    residency: RwLock<Residency>,
    models: Models,
    /// Whether replicas serve different models.
    differs: AtomicBool,
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
        let replica = |(slot, spec)| Arc::new(Replica::new(ReplicaId(slot), spec));
        let replicas: Vec<_> = (0u16..).zip(specs).map(replica).collect();
        Fleet {
            residency: RwLock::new(Residency::new(index_bytes)),
            differs: AtomicBool::new(differ(&replicas)),
            models: Models::default(),
            clock: Clock::default(),
            params,
            replicas,
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

    /// Blocks of overlap in tokens of `model`.
    pub fn tokens_of_blocks(&self, blocks: u32, model: Option<&str>) -> u64 {
        let tokens = f64::from(blocks) * self.tokens(0, model).block;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive count of tokens")]
        let tokens = tokens as u64;
        tokens
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
        !covered(None) || self.model_names().iter().any(|model| !covered(Some(model)))
    }

    /// A replica has restarted: what it held is gone.
    pub fn forget(&self, id: ReplicaId) {
        self.residency.write().forget(id);
    }

    /// An answer told how many tokens came from the cache; see [`Residency::report`].
    pub fn report(&self, chain: &[u64], id: ReplicaId, predicted: u32, cached: u64) {
        if self.residency.write().report(chain, id, predicted, cached) {
            let name = self.replica(id).map_or("", |r| r.name());
            log::warn!("replica {name} has lost its prefix cache: what it held is forgotten");
        }
    }

    /// Whether any replica, healthy or not, serves `model`.
    pub fn serves(&self, model: &str) -> bool {
        self.replicas.iter().any(|r| r.serves(Some(model)))
    }

    /// A replica's engine has told what it serves.
    pub fn learn_catalogue(&self, id: ReplicaId, listed: Catalogue) {
        let Some(replica) = self.replica(id) else { return };
        if replica.set_catalogue(listed) {
            self.differs.store(differ(&self.replicas), Relaxed);
        }
    }

    /// Whether replicas serve different models, so that a request must go where its model is.
    pub fn models_differ(&self) -> bool {
        self.differs.load(Relaxed)
    }

    /// The models of all replicas, as far as they are known.
    pub fn model_names(&self) -> BTreeSet<String> {
        self.replicas.iter().flat_map(|r| r.model_names()).collect()
    }

    /// What the engines of healthy replicas list; of all, if none is healthy.
    pub fn catalogues(&self) -> Vec<Arc<Catalogue>> {
        let of = |replicas: &mut dyn Iterator<Item = &Arc<Replica>>| replicas.filter_map(|r| r.catalogue()).collect();
        match self.health() {
            FleetHealth::Unhealthy => of(&mut self.replicas.iter()),
            _ => of(&mut self.replicas.iter().filter(|r| r.is_healthy())),
        }
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
        model: Option<&str>,
    ) -> smallvec::SmallVec<[Candidate; 8]> {
        let mut overlaps: smallvec::SmallVec<[u32; 64]> = smallvec::smallvec![0; self.replicas.len()];
        if !chain.is_empty() {
            self.residency.read().walk(chain, &mut overlaps);
        }
        let now = self.clock.now();
        // who lists the model is asked first; an engine that takes any name, only for one that nobody lists
        let unlisted = LazyCell::new(|| model.is_some_and(|m| self.replicas.iter().all(|r| r.fit(m) != Fit::Listed)));
        let fits = |r: &Replica| match model.map(|m| r.fit(m)) {
            None | Some(Fit::Listed | Fit::Unknown) => true,
            Some(Fit::Easygoing) => *unlisted,
            Some(Fit::No) => false,
        };
        pool.filter(|r| fits(r))
            .map(|r| Candidate {
                id: r.id,
                healthy: r.is_healthy(),
                overlap: overlaps[r.id.index()],
                load: r.load(),
                prospect: r.prospect(now),
            })
            .collect()
    }
}

/// Whether replicas that have said what they serve do not all say the same.
fn differ(replicas: &[Arc<Replica>]) -> bool {
    let mut known = replicas.iter().map(|r| r.model_names()).filter(|names| !names.is_empty());
    let first = known.next();
    known.any(|names| Some(names) != first)
}
