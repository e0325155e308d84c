//! One replica as it is handed to the next process, and when it was probed last, which goes along so that a switch brings
//! no second probe.

use super::Replica;
use crate::api::catalogue::Catalogue;
use crate::fleet::clock::{never, time_bits, time_of};
use crate::pack::record;
use crate::policy::admission::Seen;
use crate::policy::backlog::Backlog;
use crate::policy::estimate::Rates;
use crate::policy::flow::Flow;
use crate::policy::standing::Standing;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Of the usual time between two probes, the part after which another one may come.
const EARLIEST: f64 = 0.5;

/// When a replica was probed last, in milliseconds on the fleet's clock, as bits.
#[derive(Debug)]
pub struct ProbeTimes {
    readiness: AtomicU64,
    generation: AtomicU64,
    /// When a readiness probe found nobody there last.
    gone: AtomicU64,
}

impl Default for ProbeTimes {
    fn default() -> Self {
        ProbeTimes { readiness: never(), generation: never(), gone: never() }
    }
}

impl ProbeTimes {
    /// Whether a readiness probe may come at `now`, `every` milliseconds being the usual time between two; it does then.
    pub fn begins_readiness(&self, now: f64, every: f64) -> bool {
        let is_due = now - time_of(self.readiness.load(Relaxed)) >= EARLIEST * every;
        if is_due {
            self.readiness.store(time_bits(now), Relaxed);
        }
        is_due
    }

    /// A readiness probe found nobody there at `at`.
    pub(in crate::fleet) fn found_nobody(&self, at: f64) {
        self.gone.store(time_bits(at), Relaxed);
    }

    /// When one did last; minus infinity if none did.
    pub(in crate::fleet) fn nobody(&self) -> f64 {
        time_of(self.gone.load(Relaxed))
    }

    /// A readiness probe may come at once.
    pub(in crate::fleet) fn ask_again(&self) {
        self.readiness.store(0, Relaxed);
    }

    /// Whether a readiness probe was not made yet, or is to be made at once.
    pub fn is_wanted_at_once(&self) -> bool {
        self.readiness.load(Relaxed) == 0
    }

    /// A generation probe begins at `now`.
    pub fn begin_generation(&self, now: f64) {
        self.generation.store(time_bits(now), Relaxed);
    }

    /// Milliseconds since the last generation probe; infinite if there was none.
    pub fn since_generation(&self, now: f64) -> f64 {
        now - time_of(self.generation.load(Relaxed))
    }
}

/// What is handed over of one replica. Times are milliseconds on the fleet's clock, which goes on.
#[derive(Clone, Debug)]
pub struct ReplicaState {
    /// Its name.
    pub name: String,
    /// Which engine is behind that name, as far as the configuration says.
    place: String,
    /// Where it was found.
    address: Option<String>,
    standing: Standing,
    /// What its engine has said to be, where it must be something and was let in.
    identity: Option<String>,
    back_since: u64,
    heard: u64,
    completed: u64,
    probed: (u64, u64),
    asks_capacity: bool,
    rates: Rates,
    flow: Flow,
    catalogue: Option<Catalogue>,
}
record!(ReplicaState {
    name,
    place,
    address,
    standing,
    identity,
    back_since,
    heard,
    completed,
    probed,
    asks_capacity,
    rates,
    flow,
    catalogue
});

impl Replica {
    /// What is handed over of it.
    pub fn copy(&self) -> ReplicaState {
        let (rates, flow) = {
            let work = self.work.lock();
            (work.rates, work.backlog.flow())
        };
        ReplicaState {
            name: self.name().to_owned(),
            place: self.place(),
            address: self.address().map(|address| address.to_string()),
            standing: self.standing.lock().clone(),
            identity: self.told_identity().filter(|_| !self.is_unidentified() && self.refusal().is_none()),
            back_since: self.back_since.load(Relaxed),
            heard: self.heard.load(Relaxed),
            completed: self.completed.load(Relaxed),
            probed: (self.probes.readiness.load(Relaxed), self.probes.generation.load(Relaxed)),
            asks_capacity: self.asks_capacity.load(Relaxed),
            rates,
            flow,
            catalogue: self.catalogue().map(|known| (*known).clone()),
        }
    }

    /// Takes in what another process knew of the replica of this name; whether its engine is the same one. Of another
    /// one, only what the operator said of the name counts.
    pub fn inherit(&self, state: ReplicaState) -> bool {
        let is_same = state.place == self.place();
        let is_drained = state.standing.draining;
        let known = if is_same { state.standing } else { Standing::said(is_drained) };
        {
            let mut standing = self.standing.lock();
            *standing = std::mem::take(&mut *standing).following(known);
            // the process before this one has watched it until now, and this one asks at once
            if is_same && state.identity.is_some() && state.identity == self.told_identity() {
                let question = standing.admission.ask();
                standing.admission.on(question, Seen::Said(Ok(())), 1);
            }
            self.state.store(standing.state().place(), Relaxed);
        }
        if !is_same {
            return false;
        }
        if let Some(address) = state.address.and_then(|address| address.parse().ok()) {
            // no move: this is where the engine was all the while
            *self.address.write() = Some(address);
        }
        self.back_since.store(state.back_since, Relaxed);
        self.heard.store(state.heard, Relaxed);
        self.completed.store(state.completed, Relaxed);
        self.probes.readiness.store(state.probed.0, Relaxed);
        self.probes.generation.store(state.probed.1, Relaxed);
        self.asks_capacity.store(state.asks_capacity && self.spec.role.kv_capacity.is_none(), Relaxed);
        let mut work = self.work.lock();
        (work.backlog, work.rates) = (Backlog::following(state.flow), state.rates);
        drop(work);
        if let Some(listed) = state.catalogue {
            self.set_catalogue(listed);
        }
        true
    }

    /// What its engine must be, as a text.
    fn told_identity(&self) -> Option<String> {
        self.identity().map(|identity| format!("{identity:?}"))
    }

    /// Which engine it is, as far as the configuration says.
    fn place(&self) -> String {
        let spec = &self.spec;
        format!("{}:{}{} {:?}", spec.host, spec.port, spec.prefix, spec.role.rank)
    }
}
