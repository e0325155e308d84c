//! Shared memory of the fleet, no sockets: replicas, what is reserved and held there, and the choice over it.
//!
//! Locks, in the order in which one may be taken under another, none held across an await:
//! 1. *Booking* (`router`) makes a choice, its reservation and its claim one step, so that two requests never choose on the
//!    same view. Under it: a walk and a claim of one chain, and a look at each candidate.
//! 2. *Residency*, a read-write lock around the prefix index and the pending claims, for one pass over one chain; a
//!    replica's *work* (backlog and rates), for a pass over what waits there; the learned *models*, the *pins*, the
//!    sessions' *hints* and the claims' *landings*, for a look-up.
//! 3. *Fencing*, so that passive signals never fence the last two replicas of a model at once; under it and alone: a
//!    replica's *standing*. Its *address*. The *gate*, where there are limits: what is in flight and who waits. For a few
//!    words each.
//!
//! Counters are atomics: they only ever add up what guards hold, and every guard gives back in `Drop`.

pub mod claim;
pub mod clock;
pub mod fencing;
pub mod gate;
pub mod hints;
pub mod landing;
pub mod models;
pub mod pins;
pub mod replica;
pub mod reservation;
pub mod router;
pub mod selection;
pub mod state;
pub mod transport;

use crate::api::catalogue::Catalogue;
use crate::policy::cost::{Prospect, Tokens};
use crate::policy::estimate::Prior;
use crate::policy::flight;
use crate::policy::hint::{self, Hint};
use crate::policy::lane::{self, Lane};
use crate::policy::select::{Candidate, Decision, Params};
use crate::policy::slow_start;
use crate::prefix::fingerprint::Place;
use crate::prefix::residency::{Belief, Residency, Served};
use crate::types::ReplicaId;
use clock::Clock;
use fencing::ErrorRule;
use hints::{Hints, Last};
use landing::Landings;
use models::Models;
use parking_lot::{Mutex, RwLock};
use pins::Pins;
use replica::{Fit, Replica, ReplicaSpec};
use selection::RouteKey;
use smallvec::SmallVec;
use std::cell::LazyCell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// The replicas of this process and what is believed of them.
#[derive(Debug)]
pub struct Fleet {
    replicas: Vec<Arc<Replica>>,
    has_ranks: bool,
    residency: RwLock<Residency>,
    models: Models,
    hints: Hints,
    landings: Landings,
    /// Whether replicas serve different models.
    differs: AtomicBool,
    pins: Pins,
    clock: Clock,
    params: Params,
    rules: Rules,
    /// Held while a passive signal decides whether to fence.
    fencing: Mutex<()>,
    /// Whether another process has taken over.
    retired: AtomicBool,
}

/// What shapes a choice besides the policy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// The lane for long prompts, unless it is off.
    pub lane: Option<Lane>,
    /// For how long a replica that has come back counts as busier than it is.
    pub slow_start: Duration,
    /// When failed requests fence; never, without.
    pub errors: Option<ErrorRule>,
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
        let mut residency = Residency::new(index_bytes);
        for (id, tokens) in replicas.iter().filter_map(|r| Some((r.id, r.spec.role.kv_capacity?))) {
            residency.set_capacity(id, f64::from(tokens));
        }
        Fleet {
            has_ranks: replicas.iter().any(|r| r.spec.role.rank.is_some()),
            residency: RwLock::new(residency),
            differs: AtomicBool::new(differ(&replicas)),
            models: Models::default(),
            hints: Hints::default(),
            landings: Landings::default(),
            pins: Pins::default(),
            clock: Clock::default(),
            params,
            rules: Rules::default(),
            fencing: Mutex::new(()),
            retired: AtomicBool::new(false),
            replicas,
        }
    }

    /// The same fleet under `rules`; without, there is no lane and no slow start.
    #[must_use]
    pub fn under(self, rules: Rules) -> Self {
        Fleet { rules, ..self }
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

    /// Which replica holds what it gave an id to.
    pub fn pins(&self) -> &Pins {
        &self.pins
    }

    /// The last request of a session.
    pub fn last_of(&self, session: Hint) -> Option<Last> {
        self.hints.last(session.key)
    }

    /// A prompt in tokens: `bytes` canonical bytes of `model`.
    pub fn tokens(&self, bytes: u64, model: Option<&str>) -> Tokens {
        let rates = self.models.rates(model);
        #[expect(clippy::cast_precision_loss, reason = "a body's size fits a float")]
        let in_tokens = |bytes: u64| bytes as f64 * rates.tokens_per_byte;
        let block = in_tokens(self.params.load.block_bytes);
        Tokens { prompt: in_tokens(bytes), block, output: rates.output }
    }

    /// The same of a prompt that follows the turn that ended at `previous`, as dense as that was.
    fn tokens_after(&self, previous: Option<Place>, bytes: u64, model: Option<&str>) -> Tokens {
        let tokens = self.tokens(bytes, model);
        let block = self.residency.read().turn(previous).map_or(tokens.block, |turn| turn.block);
        Tokens { prompt: tokens.prompt * block / tokens.block, block, ..tokens }
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
        // what an operator drains is not tried
        let there = || self.replicas.iter().filter(|r| !r.is_draining());
        let covered = |model: Option<&str>| there().any(|r| r.is_healthy() && r.serves(model));
        let names: BTreeSet<_> = there().flat_map(|r| r.model_names()).collect();
        there().next().is_some() && (!covered(None) || names.iter().any(|model| !covered(Some(model))))
    }

    /// An engine has told how many tokens its cache holds.
    pub fn learn_capacity(&self, id: ReplicaId, tokens: u32) {
        self.residency.write().set_capacity(id, f64::from(tokens));
    }

    /// A replica has restarted: what it held is gone.
    pub fn forget(&self, id: ReplicaId) {
        self.residency.write().forget(id);
        self.hints.forget(id);
        if let Some(replica) = self.replica(id) {
            replica.restarted();
        }
    }

    /// Tokens that the cache of a replica is believed to hold, if anything tells.
    pub fn keeps(&self, id: ReplicaId) -> Option<f64> {
        self.residency.read().keeps(id)
    }

    /// An answer told how many tokens came from the cache; see [`Residency::report`].
    pub fn report(&self, id: ReplicaId, belief: &Belief, served: Served) {
        if !self.residency.write().report(id, belief, served) {
            return;
        }
        self.hints.forget(id);
        if let Some(replica) = self.replica(id) {
            log::warn!("replica {} has lost its prefix cache: what it held is forgotten", replica.name());
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

    /// Whether any replica is one of several data-parallel ranks.
    pub fn has_ranks(&self) -> bool {
        self.has_ranks
    }

    /// The node of each place of a ranking.
    pub fn nodes(&self, decision: &Decision) -> SmallVec<[&str; 8]> {
        decision.ranked.iter().map(|r| self.replica(r.id).map_or("", |r| &r.spec.role.node)).collect()
    }

    /// Chooses among `pool` under the policy and the rules.
    fn choose<'a>(
        &self,
        pool: impl Iterator<Item = &'a Arc<Replica>>,
        key: &RouteKey<'_>,
        chain: &[u64],
    ) -> Option<Decision> {
        let (request, candidates) = (key.request, self.candidates(pool, key, chain));
        let in_lane = |id| self.replica(id).is_some_and(|r| r.spec.role.in_lane);
        let lane = self.rules.lane.as_ref().map(|lane| (lane, &in_lane as _));
        let session = key.session.map(|session| (session, self.hints.home(session.key)));
        let named = |id| self.replica(id).map_or(0, |r| r.name_hash);
        lane::choose(request, &candidates, &self.params, lane, |group| {
            let decision = flight::choose(request, group, &self.params)?;
            Some(match session {
                Some(hint) => hint::weigh(decision, hint, (request, group), &self.params, named),
                None => decision,
            })
        })
    }

    /// The candidates among `pool` for a prompt.
    fn candidates<'a>(
        &self,
        pool: impl Iterator<Item = &'a Arc<Replica>>,
        key: &RouteKey<'_>,
        chain: &[u64],
    ) -> SmallVec<[Candidate; 8]> {
        let (model, block) = (key.model, key.request.tokens.block);
        let mut overlaps: SmallVec<[u32; 64]> = smallvec::smallvec![0; self.replicas.len()];
        let residency = self.residency.read();
        if !chain.is_empty() {
            residency.walk(chain, block, &mut overlaps);
        }
        let mut confirmed = overlaps.clone();
        residency.confirmed(chain, &mut confirmed);
        let now = self.clock.now();
        let window = self.rules.slow_start.as_secs_f64() * 1000.0;
        let turn = residency.turn(key.previous);
        // what was evicted of the prompt took its end along
        let ends = |overlap: u32| key.previous.is_some_and(|place| overlap >= place.blocks);
        let tail = |id, overlap: u32| match turn {
            Some(turn) if turn.replica == id && ends(overlap) => turn.after(overlap as usize, block),
            _ => 0.0,
        };
        let candidate = |r: &Replica| Candidate {
            id: r.id,
            healthy: r.takes_requests(),
            overlap: overlaps[r.id.index()],
            tail: tail(r.id, overlaps[r.id.index()]),
            confirmed: confirmed[r.id.index()],
            load: r.load(),
            prospect: Prospect { returning: residency.returning(r.id), ..r.prospect(now) },
        };
        // who lists the model is asked first; an engine that takes any name, only for one that nobody lists
        let unlisted = LazyCell::new(|| model.is_some_and(|m| self.replicas.iter().all(|r| r.fit(m) != Fit::Listed)));
        let fits = |r: &Replica| match model.map(|m| r.fit(m)) {
            None | Some(Fit::Listed | Fit::Unknown) => true,
            Some(Fit::Easygoing) => *unlisted,
            Some(Fit::No) => false,
        };
        let (mut candidates, shares): (SmallVec<[Candidate; 8]>, SmallVec<[f64; 8]>) = pool
            .filter(|r| fits(r) && !r.is_draining())
            .map(|r| (candidate(r), slow_start::share(r.age(now), window)))
            .unzip();
        let prior = Prior::of(candidates.iter().map(|c| c.prospect.rates));
        candidates.iter_mut().for_each(|c| c.prospect.rates = c.prospect.rates.with(prior));
        slow_start::ease(&mut candidates, &shares);
        candidates
    }
}

/// Whether replicas that have said what they serve do not all say the same.
fn differ(replicas: &[Arc<Replica>]) -> bool {
    let mut known = replicas.iter().map(|r| r.model_names()).filter(|names| !names.is_empty());
    let first = known.next();
    known.any(|names| Some(names) != first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::cost::Tokens;
    use crate::policy::flight::FlightParams;
    use crate::policy::score::{AffinityParams, LoadParams};
    use crate::policy::select::RouteRequest;
    use crate::types::{Basis, PolicyKind};

    const REQUEST: RouteRequest = RouteRequest {
        body_bytes: 0,
        prompt_bytes: 0,
        blocks: 0,
        tokens: Tokens { prompt: 0.0, block: 512.0, output: 1.0 },
        salt: 0,
    };

    fn fleet() -> Fleet {
        let spec = || ReplicaSpec {
            name: String::new(),
            host: String::new(),
            port: 1,
            prefix: String::new(),
            authority: http::HeaderValue::from_static("h"),
            models: vec![],
            authorization: None,
            tls: None,
            role: replica::Role::default(),
        };
        let params = Params {
            policy: PolicyKind::Load,
            affinity: AffinityParams { basis: Basis::Relative, cap_blocks: 32, alpha: 4.0 },
            load: LoadParams { unit_bytes: 32 << 10, max_units: 8, block_bytes: 2048 },
            flight: FlightParams::default(),
        };
        let rules = Rules { slow_start: Duration::from_secs(3600), ..Rules::default() };
        Fleet::new(vec![spec(), spec()], params, 1 << 20).under(rules)
    }

    #[test]
    fn a_replica_that_came_back_starts_slowly() {
        let fleet = fleet();
        let loads = |load: u32| {
            fleet.replicas().iter().for_each(|r| r.load.store(load, Relaxed));
            let seen = fleet.candidates(
                fleet.replicas().iter(),
                &RouteKey { request: REQUEST, model: None, previous: None, session: None },
                &[],
            );
            (seen[0].load, seen[1].load)
        };
        assert_eq!(loads(3), (3, 3));
        fleet.replicas()[0].begin_anew(fleet.clock().now());
        assert_eq!(loads(0), (0, 0));
        let (emptied, other) = loads(3);
        assert_eq!(other, 3);
        assert!(emptied > 30, "{emptied}");
    }
}
