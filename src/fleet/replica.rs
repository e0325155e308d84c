//! One replica: where it is, what it serves, how it is, and what is promised to it.

pub mod state;

use super::clock::never;
use super::emptying::Emptying;
use super::stored::Account;
use super::work::SharedWork;
use crate::api::catalogue::Catalogue;
use crate::policy::collapse::Collapse;
use crate::policy::cost::Prospect;
use crate::policy::errors::TRIALS;
use crate::policy::health::{FenceReason, Observation, Thresholds, Transition};
use crate::policy::refusals::Refusals;
use crate::policy::standing::{Standing, State};
use crate::types::ReplicaId;
use arc_swap::ArcSwapOption;
use parking_lot::{Mutex, RwLock};
use state::ProbeTimes;
use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpStream};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use tokio::sync::Notify;
use xxhash_rust::xxh3::xxh3_64;

pub use super::spec::{Fit, ReplicaSpec, Role};

/// One replica of the fleet as it is configured. Under another configuration it has a successor in the same slot, which
/// shares its vitals: requests that hold the one see a name, an address and a key that belong together.
#[derive(Debug)]
pub struct Replica {
    /// Its slot.
    pub id: ReplicaId,
    /// What the configuration says.
    pub spec: ReplicaSpec,
    /// The hash of its name: the same in every process.
    pub name_hash: u64,
    /// No other replica of this process has, or had, this number, nor has it itself under another configuration.
    pub number: u32,
    /// Written by discovery, read once per attempt.
    address: RwLock<Option<SocketAddr>>,
    /// Whether that has changed lately.
    has_moved: AtomicBool,
    /// Whether somebody is looking for its address.
    searching: AtomicBool,
    pub(super) vitals: Arc<Vitals>,
}

/// How a replica is and what is promised to it, whatever its configuration.
#[derive(Debug)]
pub struct Vitals {
    /// Guards what is known of its health; held for a few comparisons.
    pub(super) standing: Mutex<Standing>,
    /// The index of its state, for the hot path. Relaxed: a choice may be one probe late anyway.
    state: AtomicU8,
    /// Requests that it got on trial.
    pub(super) trials: AtomicU32,
    /// When it came back last, in milliseconds on the fleet's clock, as bits. Relaxed, as `state`.
    back_since: AtomicU64,
    /// Whether its engine is still to be asked how much its cache holds.
    asks_capacity: AtomicBool,
    /// When something was generated there last, likewise.
    pub(super) heard: AtomicU64,
    /// When a request was last completed there with what it generated, likewise.
    pub(super) completed: AtomicU64,
    /// When the latest request began that has ended well there, likewise.
    pub(super) proven: AtomicU64,
    /// Tells that requests fail there.
    pub(super) failing: Notify,
    /// Whether it turns requests away; held for a comparison.
    pub(super) refusals: Mutex<Refusals>,
    /// What broke off there lately; held for a comparison.
    pub(super) collapse: Mutex<Collapse>,
    /// Tells that its engine may be another one.
    pub(super) in_doubt: Notify,
    /// Stands for as long as its engine does, if that is watched; held for a look.
    pub(super) witness: Mutex<Weak<TcpStream>>,
    /// When the last readiness probe found nobody there, likewise; never, if it found somebody.
    pub(super) refused: AtomicU64,
    pub(super) load: AtomicU32,
    pub(super) inflight: AtomicU32,
    /// The promised work and the learned rates.
    pub(super) work: SharedWork,
    probe_failures: [AtomicU64; FenceReason::ALL.len()],
    /// Probes that timed out and did not count.
    suppressed: AtomicU64,
    /// How often it came into each state.
    transitions: [AtomicU64; State::COUNT],
    /// What its engine listed last.
    catalogue: ArcSwapOption<Catalogue>,
    pub(super) emptying: Emptying,
    /// What its engine stores, if it tells.
    pub(super) account: Account,
    /// When it was probed last.
    pub probes: ProbeTimes,
}

impl Deref for Replica {
    type Target = Vitals;

    fn deref(&self) -> &Vitals {
        &self.vitals
    }
}

impl Vitals {
    fn new(spec: &ReplicaSpec) -> Self {
        let standing = Standing::new(spec.role.identity.is_some());
        Vitals {
            state: AtomicU8::new(standing.state().place()),
            standing: Mutex::new(standing),
            trials: AtomicU32::new(0),
            back_since: AtomicU64::new(f64::NEG_INFINITY.to_bits()),
            asks_capacity: AtomicBool::new(spec.role.kv_capacity.is_none()),
            heard: never(),
            completed: never(),
            proven: never(),
            failing: Notify::new(),
            refusals: Mutex::default(),
            collapse: Mutex::default(),
            in_doubt: Notify::new(),
            witness: Mutex::default(),
            refused: never(),
            load: AtomicU32::new(0),
            inflight: AtomicU32::new(0),
            work: SharedWork::default(),
            probe_failures: Default::default(),
            suppressed: AtomicU64::new(0),
            transitions: Default::default(),
            catalogue: ArcSwapOption::empty(),
            emptying: Emptying::default(),
            account: Account::default(),
            probes: ProbeTimes::default(),
        }
    }
}

const HEALTHY: u8 = 0;
const RECOVERING: u8 = 1;
const DRAINING: u8 = 2;
const FINAL: u8 = DRAINING + 1 + FenceReason::IdentityUnknown as u8;

impl Replica {
    /// A replica without an address, believed healthy until the first probe says otherwise.
    pub fn new(id: ReplicaId, spec: ReplicaSpec) -> Self {
        let vitals = Arc::new(Vitals::new(&spec));
        Self::with(id, spec, None, vitals)
    }

    fn with(id: ReplicaId, spec: ReplicaSpec, address: Option<SocketAddr>, vitals: Arc<Vitals>) -> Self {
        Replica {
            id,
            name_hash: xxh3_64(spec.name.as_bytes()),
            number: 0,
            spec,
            address: RwLock::new(address),
            has_moved: AtomicBool::new(false),
            searching: AtomicBool::new(false),
            vitals,
        }
    }

    /// The same replica under another configuration, at `address`. Where another engine is asked for, or one elsewhere, it
    /// gets nothing until that has said who it is.
    pub(super) fn successor(&self, spec: ReplicaSpec, address: Option<SocketAddr>, now: f64) -> Self {
        if self.spec.role.identity != spec.role.identity || address != self.address() {
            self.revise(now, |standing| standing.admission.begin_anew(spec.role.identity.is_some()));
        }
        if self.spec.models != spec.models {
            // it was read for other models
            self.catalogue.store(None);
        }
        Self::with(self.id, spec, address, self.vitals.clone())
    }

    /// The same replica with a number of its own.
    pub(super) fn numbered(self, number: u32) -> Self {
        Replica { number, ..self }
    }

    /// It has left the fleet, or is back: who has left takes no new requests and finishes what it has.
    pub(super) fn leave(&self, has_left: bool, now: f64) {
        self.revise(now, |standing| standing.has_left = has_left);
    }

    /// Whether its engine is to be asked now how much its cache holds: until it has answered, and again after it was gone.
    pub fn takes_capacity_question(&self) -> bool {
        self.asks_capacity.swap(false, Relaxed)
    }

    /// It has not said how much its cache holds, unless that is configured.
    pub fn owes_capacity(&self) {
        self.asks_capacity.store(self.spec.role.kv_capacity.is_none(), Relaxed);
    }

    /// Its engine has restarted, perhaps on another machine or with another cache.
    pub(super) fn restarted(&self) {
        self.work.lock().rates.doubt();
        self.owes_capacity();
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Its address, once discovery found one.
    pub fn address(&self) -> Option<SocketAddr> {
        *self.address.read()
    }

    /// Sets the address that new connections use. Another one is another engine's.
    pub fn set_address(&self, address: SocketAddr) {
        if self.address().is_some_and(|before| before != address) {
            // first, so that no request goes there before; a doubt lets nobody in, whatever the time
            self.doubt_identity(0.0);
            self.has_moved.store(true, Relaxed);
        }
        *self.address.write() = Some(address);
    }

    /// Whether its address has changed since this was asked last.
    pub fn takes_move(&self) -> bool {
        self.has_moved.swap(false, Relaxed)
    }

    /// Whether nobody is looking for its address yet; the caller does now.
    pub fn begin_search(&self) -> bool {
        !self.searching.swap(true, Relaxed)
    }

    /// The search is over.
    pub fn end_search(&self) {
        self.searching.store(false, Relaxed);
    }

    /// Whether it may serve `model`; a request without a model fits everywhere.
    pub fn serves(&self, model: Option<&str>) -> bool {
        model.is_none_or(|m| self.fit(m) != Fit::No)
    }

    /// Whether it is one for `model`: what the configuration says counts, else what its engine lists.
    pub fn fit(&self, model: &str) -> Fit {
        let is_listed = match &*self.catalogue.load() {
            Some(known) if self.spec.models.is_empty() => known.lists(model),
            _ => self.spec.models.iter().any(|own| own == model),
        };
        if is_listed { Fit::Listed } else { self.fit_of_unlisted() }
    }

    /// The same for a model that it does not list.
    pub(super) fn fit_of_unlisted(&self) -> Fit {
        match &*self.catalogue.load() {
            _ if !self.spec.models.is_empty() => Fit::No,
            Some(known) if known.is_easygoing() => Fit::Easygoing,
            Some(known) if !known.is_empty() => Fit::No,
            _ => Fit::Unknown,
        }
    }

    /// What its engine listed last.
    pub fn catalogue(&self) -> Option<Arc<Catalogue>> {
        self.catalogue.load_full()
    }

    /// Takes in what its engine lists; whether that is news.
    pub(super) fn set_catalogue(&self, listed: Catalogue) -> bool {
        let listed = listed.restricted(&self.spec.models);
        let is_new = self.catalogue.load().as_deref() != Some(&listed);
        if is_new {
            self.catalogue.store(Some(Arc::new(listed)));
        }
        is_new
    }

    /// The models that it serves, as far as that is known.
    pub fn model_names(&self) -> BTreeSet<String> {
        match self.catalogue() {
            Some(known) if self.spec.models.is_empty() => known.names().map(str::to_owned).collect(),
            _ => self.spec.models.iter().cloned().collect(),
        }
    }

    /// Its state.
    pub fn state(&self) -> State {
        self.standing.lock().state()
    }

    /// Whether nothing keeps new requests away.
    pub fn is_healthy(&self) -> bool {
        self.state.load(Relaxed) <= RECOVERING
    }

    /// Whether a new request may come now: on trial there are few at a time.
    pub fn takes_requests(&self) -> bool {
        match self.state.load(Relaxed) {
            HEALTHY => true,
            RECOVERING => self.trials.load(Relaxed) < TRIALS,
            _ => false,
        }
    }

    /// Whether it is on trial.
    pub(super) fn is_on_trial(&self) -> bool {
        self.state.load(Relaxed) == RECOVERING
    }

    /// Whether nothing brings new requests there: an operator keeps them away, it has left the fleet, or its engine is not
    /// what it must be.
    pub fn is_barred(&self) -> bool {
        let state = self.state.load(Relaxed);
        state == DRAINING || state >= FINAL
    }

    /// Why new requests may not come.
    pub fn fence(&self) -> Option<FenceReason> {
        self.state().fence()
    }

    /// Whether nothing is generated there as far as probes and requests have shown.
    pub fn is_barren(&self) -> bool {
        self.standing.lock().is_barren()
    }

    /// Takes in what a readiness probe saw at `now`, milliseconds on the fleet's clock; returns the change that it brought
    /// in what such probes say.
    pub fn observe(&self, seen: Observation, thresholds: Thresholds, now: f64) -> Option<Transition> {
        self.count(seen);
        self.revise(now, |standing| standing.on_readiness(seen, thresholds))
    }

    /// The same for a generation probe.
    pub fn observe_generation(&self, seen: Observation, thresholds: Thresholds, now: f64) -> Option<Transition> {
        self.count(seen);
        self.revise(now, |standing| standing.on_generation(seen, thresholds))
    }

    /// A pause after failed requests may be over.
    pub fn tick(&self, now: f64) {
        self.revise(now, |standing| standing.errors.tick(now));
    }

    /// Changes what is known of its health. Coming back begins it anew.
    pub(super) fn revise<T>(&self, now: f64, change: impl FnOnce(&mut Standing) -> T) -> T {
        let mut standing = self.standing.lock();
        let before = standing.state();
        let out = change(&mut standing);
        let after = standing.state();
        self.emptying.is_well(standing.is_only_drained());
        if after == before {
            return out;
        }
        // one that worked on all the while was never gone
        if after.is_healthy() && !before.is_healthy() && self.inflight() == 0 {
            self.begin_anew(now);
        }
        self.state.store(after.place(), Relaxed);
        self.transitions[after.index()].fetch_add(1, Relaxed);
        drop(standing);
        match after {
            State::Fenced(reason) => log::warn!("replica {} fenced: {}", self.name(), reason.label()),
            state => log::info!("replica {} is {}", self.name(), state.label()),
        }
        out
    }

    /// How often it came into each state.
    pub fn transitions(&self) -> impl Iterator<Item = (State, u64)> {
        State::all().zip(&self.transitions).map(|(state, n)| (state, n.load(Relaxed)))
    }

    /// A probe timed out and does not count.
    pub fn suppress(&self) {
        self.suppressed.fetch_add(1, Relaxed);
    }

    /// Probes that timed out and did not count.
    pub fn suppressed(&self) -> u64 {
        self.suppressed.load(Relaxed)
    }

    fn count(&self, seen: Observation) {
        if let Observation::Failed(reason) = seen {
            self.probe_failures[reason as usize].fetch_add(1, Relaxed);
        }
    }

    /// It is as good as new at `now`: come back, or emptied.
    pub fn begin_anew(&self, now: f64) {
        self.back_since.store(now.to_bits(), Relaxed);
    }

    /// Milliseconds since it began anew; infinite if it never did.
    pub fn age(&self, now: f64) -> f64 {
        now - f64::from_bits(self.back_since.load(Relaxed))
    }

    /// Failed probes so far, by reason.
    pub fn probe_failures(&self) -> impl Iterator<Item = (FenceReason, u64)> {
        FenceReason::ALL.into_iter().zip(&self.probe_failures).map(|(reason, n)| (reason, n.load(Relaxed)))
    }

    /// Units reserved here.
    pub fn load(&self) -> u32 {
        self.load.load(Relaxed)
    }

    /// The work and the rates here, `now` being milliseconds on the fleet's clock.
    pub fn prospect(&self, now: f64) -> Prospect {
        self.work.prospect(now)
    }

    /// Requests here.
    pub fn inflight(&self) -> u32 {
        self.inflight.load(Relaxed)
    }
}
