//! Shared memory of the fleet, no sockets: replicas, what is reserved and held there, and the choice over it.
//!
//! Locks, in the order in which one may be taken under another, none held across an await:
//! 1. *Booking* (`router`) makes a choice, its reservation and its claim one step, so that two requests never choose on the
//!    same view. Under it: a walk and a claim of one chain, and a look at each candidate.
//! 2. *Residency*, a read-write lock around the prefix index and the pending claims, for one pass over one chain; a
//!    replica's *work* (backlog and rates), for a pass over what waits there: a choice reads a row of numbers beside it
//!    instead; the learned *models*, the *pins*, the sessions' *hints*, the *past* of caches and the claims' *landings*,
//!    for a look-up; the *setbacks*, and under them a replica's *collapse*.
//! 3. *Fencing*, so that passive signals never fence the last two replicas of a model at once; under it and alone: a
//!    replica's *standing*. Its *address*. The *gate*, where there are limits: what is in flight and who waits. For a few
//!    words each.
//!
//! Before all of them the order of *steps*, where somebody writes them down. Before that, and apart from requests:
//! *changing*, held while the members change.
//!
//! Counters are atomics: they only ever add up what guards hold, and every guard gives back in `Drop`.

mod booking;
pub mod candidates;
pub mod claim;
pub mod clock;
mod collapse;
pub mod elsewhere;
pub mod emptied;
pub mod emptying;
pub mod fencing;
pub mod fits;
pub mod gate;
pub mod guards;
pub mod heard;
pub mod hints;
pub mod landing;
mod look;
pub mod members;
pub mod models;
pub mod pins;
mod presumed;
mod progress;
pub mod replay;
pub mod replica;
pub mod reservation;
pub mod router;
pub mod selection;
mod served;
pub mod setbacks;
pub mod sharing;
pub mod sources;
pub mod spec;
pub mod state;
pub mod steps;
pub mod stored;
mod tellers;
#[cfg(test)]
pub(crate) mod testing;
mod tiers;
pub mod transport;
mod welcome;
mod work;

use crate::policy::cost::Tokens;
use crate::policy::hint::Hint;
use crate::policy::lane::Lane;
use crate::policy::select::Params;
use crate::prefix::fingerprint::Place;
use crate::prefix::residency::{Belief, Residency, Served};
use crate::types::ReplicaId;
use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use clock::Clock;
use emptied::Past;
use fencing::ErrorRule;
use fits::Fits;
use hints::{Hints, Last};
use landing::Landings;
use members::{Members, Wanted};
use models::Models;
use parking_lot::{Mutex, RwLock};
use pins::Pins;
use presumed::Presuming;
use replica::{Replica, ReplicaSpec};
use setbacks::Setbacks;
use sharing::Sharing;
use sources::Sources;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::SyncSender;
use std::time::Duration;
use steps::{Change, Ruled, Stage, Steps, note};
use tokio::sync::{Notify, watch};
use welcome::Welcome;

/// The replicas of this process and what is believed of them.
#[derive(Debug)]
pub struct Fleet {
    members: ArcSwap<Members>,
    /// Held while the members change: whether a change is still to be told.
    changing: Mutex<bool>,
    /// How often they have changed.
    changes: watch::Sender<u64>,
    /// Replicas so far, each once for every configuration that it had.
    numbers: AtomicU32,
    /// What is done with each replica before it gets its first request.
    welcome: Welcome,
    residency: RwLock<Residency>,
    /// When caches were emptied, and what was known when; held for a look-up.
    past: Mutex<Past>,
    models: Models,
    hints: Hints,
    /// Whether sessions are elsewhere than this router knows.
    presuming: Presuming,
    landings: Landings,
    /// Who serves what.
    fits: ArcSwap<Fits>,
    /// Who served what before the members changed, until choices are made among the new ones.
    former_fits: ArcSwapOption<Fits>,
    pins: Pins,
    sources: Sources,
    /// Prompts that failed lately.
    setbacks: Setbacks,
    clock: Clock,
    tuning: ArcSwap<Tuning>,
    steps: Steps,
    sharing: Sharing,
    /// Tells that a replica is to be probed before its time.
    suspected: Notify,
    /// Held while a passive signal decides whether to fence.
    fencing: Mutex<()>,
    /// Whether another process has taken over.
    retired: watch::Sender<bool>,
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

/// What choices go by.
#[derive(Debug)]
struct Tuning {
    params: Params,
    rules: Rules,
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
        let fleet = Fleet {
            members: ArcSwap::default(),
            changing: Mutex::new(false),
            changes: watch::Sender::new(0),
            numbers: AtomicU32::new(0),
            welcome: Welcome::default(),
            residency: RwLock::new(Residency::new(index_bytes)),
            past: Mutex::default(),
            fits: ArcSwap::default(),
            former_fits: ArcSwapOption::empty(),
            models: Models::default(),
            hints: Hints::default(),
            presuming: Presuming::default(),
            landings: Landings::default(),
            pins: Pins::default(),
            sources: Sources::default(),
            setbacks: Setbacks::default(),
            clock: Clock::default(),
            tuning: ArcSwap::from_pointee(Tuning { params, rules: Rules::default() }),
            steps: Steps::default(),
            sharing: Sharing::default(),
            suspected: Notify::new(),
            fencing: Mutex::new(()),
            retired: watch::Sender::new(false),
        };
        fleet.change(specs.into_iter().map(|spec| Wanted { spec, address: None }).collect());
        fleet
    }

    /// The same fleet under `rules`; without, there is no lane and no slow start.
    #[must_use]
    pub fn under(self, rules: Rules) -> Self {
        self.tune(self.params(), rules);
        self
    }

    /// The same fleet on `clock`, before anything happens in it.
    #[must_use]
    pub fn on(self, clock: Clock) -> Self {
        Fleet { clock, ..self }
    }

    /// Chooses by `params` and `rules` from now on.
    pub fn tune(&self, params: Params, rules: Rules) {
        let _step = self.step();
        self.tuning.store(Arc::new(Tuning { params, rules }));
        self.note_rules();
        self.forgive();
    }

    fn note_rules(&self) {
        let tuning = self.tuning.load();
        note(|| Change::Ruled(Box::new(Ruled { params: tuning.params, lane: tuning.rules.lane })));
    }

    /// Tells `out` of every step from now on, before anybody is a member; steps that do not fit are counted in `lost`.
    /// The prefix index may use `index_bytes`.
    pub fn tell(&self, out: SyncSender<Stage>, lost: Arc<AtomicU64>, index_bytes: usize) {
        if self.steps.tell(out, lost) {
            let _step = self.step();
            self.note_rules();
            note(|| Change::Allowed(index_bytes as u64));
        }
    }

    /// All replicas, in the order of their slots, as they are at the moment; not to be held across an await.
    pub fn replicas(&self) -> Guard<Arc<Members>> {
        self.members.load()
    }

    /// The same, to be kept.
    pub fn members(&self) -> Arc<Members> {
        self.members.load_full()
    }

    /// One replica; also one that has left, as long as somebody may refer to it.
    pub fn replica(&self, id: ReplicaId) -> Option<Arc<Replica>> {
        self.replicas().at(id).cloned()
    }

    /// A number that no replica had.
    fn number(&self) -> u32 {
        self.numbers.fetch_add(1, Relaxed)
    }

    /// The rule and its parameters.
    pub fn params(&self) -> Params {
        self.tuning.load().params
    }

    /// The clock that work is measured on.
    pub fn clock(&self) -> Clock {
        self.clock.clone()
    }

    /// What is learned of models.
    pub fn models(&self) -> &Models {
        &self.models
    }

    /// Which replica holds what it gave an id to.
    pub fn pins(&self) -> &Pins {
        &self.pins
    }

    /// How the sources of replicas do.
    pub fn sources(&self) -> &Sources {
        &self.sources
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
        let block = in_tokens(self.tuning.load().params.load.block_bytes);
        Tokens { prompt: in_tokens(bytes), block, output: rates.output, turns: 0.0 }
    }

    /// The same of a prompt that follows the turn that ended at `previous`, as dense as that was.
    fn tokens_after(&self, previous: Option<Place>, bytes: u64, model: Option<&str>) -> Tokens {
        let tokens = self.tokens(bytes, model);
        let block = self.residency.read().turn(previous).map_or(tokens.block, |turn| turn.block);
        Tokens { prompt: tokens.prompt * block / tokens.block, block, ..tokens }
    }

    /// The fleet in one word.
    pub fn health(&self) -> FleetHealth {
        let replicas = self.replicas();
        match replicas.iter().filter(|r| r.is_healthy()).count() {
            0 => FleetHealth::Unhealthy,
            n if n == replicas.len() => FleetHealth::Ok,
            _ => FleetHealth::Degraded,
        }
    }

    /// Whether requests of some kind find no healthy replica, so that all are tried.
    pub fn fails_open(&self) -> bool {
        // what an operator drains, or is not what it must be, is not tried
        let replicas = self.replicas();
        let there = || replicas.iter().filter(|r| !r.is_barred());
        let fits = self.fits.load();
        let covered = |model: Option<&str>| there().any(|r| r.is_healthy() && fits.of_model(model).has(r.id));
        let names: BTreeSet<_> = there().flat_map(|r| r.model_names()).collect();
        there().next().is_some() && (!covered(None) || names.iter().any(|model| !covered(Some(model))))
    }

    /// Lets the prefix index use `bytes`; whether it may: it does not shrink.
    pub fn allow_index(&self, bytes: usize) -> bool {
        let _step = self.step();
        note(|| Change::Allowed(bytes as u64));
        self.residency.write().allow(bytes)
    }

    /// An engine has told how many tokens its cache holds.
    pub fn learn_capacity(&self, id: ReplicaId, tokens: u32) {
        let _step = self.step();
        note(|| Change::Capacity(id, tokens));
        self.residency.write().set_capacity(id, f64::from(tokens));
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
        self.lost_all(id);
        if let Some(replica) = self.replica(id) {
            log::warn!("replica {} has lost its prefix cache: what it held is forgotten", replica.name());
        }
    }

    /// Heap bytes and blocks of the prefix index.
    pub fn index_size(&self) -> (usize, usize) {
        let residency = self.residency.read();
        (residency.bytes(), residency.blocks())
    }

    /// Whether any replica is one of several data-parallel ranks.
    pub fn has_ranks(&self) -> bool {
        self.replicas().has_ranks()
    }
}
