//! One replica: where it is, what it serves, how it is, and what is promised to it.

use crate::api::catalogue::Catalogue;
use crate::policy::backlog::Backlog;
use crate::policy::cost::Prospect;
use crate::policy::estimate::{self, Rates};
use crate::policy::health::{FenceReason, Health, Observation, Thresholds, Transition};
use crate::types::ReplicaId;
use arc_swap::ArcSwapOption;
use http::HeaderValue;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use xxhash_rust::xxh3::xxh3_64;

/// Whether a replica is one for a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// It serves it by its own account.
    Listed,
    /// It has not said what it serves.
    Unknown,
    /// It lists others, but its engine takes any name.
    Easygoing,
    /// It serves others.
    No,
}

/// What the configuration says of a replica.
#[derive(Debug)]
pub struct ReplicaSpec {
    /// Its name: stable, used in metrics and logs.
    pub name: String,
    /// Host name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Put before every path; empty or `/…` without a slash at the end.
    pub prefix: String,
    /// The value of `Host`.
    pub authority: HeaderValue,
    /// Models it serves; empty for those that its engine lists.
    pub models: Vec<String>,
    /// The value of `Authorization`, if the engine has a key of its own; marked sensitive.
    pub authorization: Option<HeaderValue>,
    /// What it is in the fleet.
    pub role: Role,
}

/// What a replica is in the fleet besides an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Role {
    /// Its data-parallel rank, if its engine has several.
    pub rank: Option<u32>,
    /// Whether it belongs to the lane for long prompts.
    pub in_lane: bool,
    /// What it shares with the replicas that fail together with it.
    pub node: String,
    /// Tokens that its KV cache holds, where that is configured.
    pub kv_capacity: Option<u32>,
}

/// One replica of the fleet.
#[derive(Debug)]
pub struct Replica {
    /// Its slot.
    pub id: ReplicaId,
    /// What the configuration says.
    pub spec: ReplicaSpec,
    /// The hash of its name: the same in every process.
    pub name_hash: u64,
    /// Written by discovery, read once per attempt.
    address: RwLock<Option<SocketAddr>>,
    /// Guards the probe state; held for a few comparisons.
    health: Mutex<Health>,
    /// `health` in one word, for the hot path. Relaxed: a choice may be one probe late anyway.
    healthy: AtomicBool,
    /// When it came back last, in milliseconds on the fleet's clock, as bits. Relaxed, as `healthy`.
    back_since: AtomicU64,
    /// Whether its engine is still to be asked how much its cache holds.
    asks_capacity: AtomicBool,
    pub(super) load: AtomicU32,
    pub(super) inflight: AtomicU32,
    /// Guards the promised work and the learned rates; held for a few additions.
    pub(super) work: Mutex<Work>,
    probe_failures: [AtomicU64; FenceReason::ALL.len()],
    /// What its engine listed last.
    catalogue: ArcSwapOption<Catalogue>,
    /// Whether somebody is looking for its address.
    searching: AtomicBool,
}

/// What is promised to a replica, and how fast it is believed to be.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) backlog: Backlog,
    pub(super) rates: Rates,
}

impl Replica {
    /// A replica without an address, believed healthy until the first probe says otherwise.
    pub fn new(id: ReplicaId, spec: ReplicaSpec) -> Self {
        let asks_capacity = spec.role.kv_capacity.is_none();
        Replica {
            id,
            name_hash: xxh3_64(spec.name.as_bytes()),
            spec,
            address: RwLock::new(None),
            health: Mutex::default(),
            healthy: AtomicBool::new(true),
            back_since: AtomicU64::new(f64::NEG_INFINITY.to_bits()),
            asks_capacity: AtomicBool::new(asks_capacity),
            load: AtomicU32::new(0),
            inflight: AtomicU32::new(0),
            work: Mutex::new(Work { backlog: Backlog::default(), rates: estimate::START }),
            probe_failures: Default::default(),
            catalogue: ArcSwapOption::empty(),
            searching: AtomicBool::new(false),
        }
    }

    /// Whether its engine is to be asked now how much its cache holds: once, and again after it was gone.
    pub fn takes_capacity_question(&self) -> bool {
        self.asks_capacity.swap(false, Relaxed)
    }

    /// Its engine has restarted, perhaps with another cache.
    pub(super) fn ask_capacity_again(&self) {
        self.asks_capacity.store(self.spec.role.kv_capacity.is_none(), Relaxed);
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Its address, once discovery found one.
    pub fn address(&self) -> Option<SocketAddr> {
        *self.address.read()
    }

    /// Sets the address that new connections use.
    pub fn set_address(&self, address: SocketAddr) {
        *self.address.write() = Some(address);
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
        if !self.spec.models.is_empty() {
            return if self.spec.models.iter().any(|own| own == model) { Fit::Listed } else { Fit::No };
        }
        match &*self.catalogue.load() {
            Some(known) if known.lists(model) => Fit::Listed,
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

    /// Whether new requests may come.
    pub fn is_healthy(&self) -> bool {
        self.healthy.load(Relaxed)
    }

    /// Why they may not.
    pub fn fence(&self) -> Option<FenceReason> {
        self.health.lock().fence()
    }

    /// Takes in what a probe saw at `now`, milliseconds on the fleet's clock; returns the change that it brought.
    pub fn observe(&self, seen: Observation, thresholds: Thresholds, now: f64) -> Option<Transition> {
        if let Observation::Failed(reason) = seen {
            self.probe_failures[reason as usize].fetch_add(1, Relaxed);
        }
        let mut health = self.health.lock();
        let change = health.on(seen, thresholds);
        if let Some(Transition::Lifted { .. }) = change {
            self.begin_anew(now);
        }
        self.healthy.store(health.is_healthy(), Relaxed);
        change
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
        let work = self.work.lock();
        work.backlog.prospect(work.rates, now)
    }

    /// Requests here.
    pub fn inflight(&self) -> u32 {
        self.inflight.load(Relaxed)
    }
}
