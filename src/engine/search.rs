//! Asks engines for their models when a client asks for one that nobody is known to serve: adapters are loaded while an
//! engine runs, and clients ask for them before the next probe. Likewise when an engine does not know a model that it was
//! sent for: it may be the engine of others. And when a client asks which models there are before all engines have said:
//! a list without some of them, or one that a single engine gave, would be wrong.

use super::probe::{Prober, ReadinessSpec};
use crate::fleet::replica::Replica;
use crate::fleet::{Fleet, FleetHealth};
use futures_util::future::join_all;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// How long a client waits for it at most.
const PATIENCE: Duration = Duration::from_secs(1);
/// The least time between two searches: any client can cause one.
const PAUSE: Duration = Duration::from_secs(1);

/// A search through the fleet.
pub struct ModelSearch {
    fleet: Arc<Fleet>,
    probe: Prober,
    /// When the last one ended. Held while one runs, so that others wait for its outcome.
    last: Mutex<Option<Instant>>,
    /// The same for looks at those who have not told yet.
    last_of_silent: Mutex<Option<Instant>>,
}

impl ModelSearch {
    /// A search through `fleet` that asks as the readiness probe does.
    pub fn new(fleet: Arc<Fleet>, spec: ReadinessSpec) -> Self {
        let spec = ReadinessSpec { timeout: spec.timeout.min(PATIENCE), ..spec };
        let (last, last_of_silent) = Default::default();
        ModelSearch { probe: Prober::new(fleet.clone(), spec), fleet, last, last_of_silent }
    }

    /// Begins to do so beside a request, unless it was done a moment ago or is under way.
    pub fn begin(self: &Arc<Self>) {
        let is_due = self.last.try_lock().is_ok_and(|last| last.is_none_or(|at| at.elapsed() >= PAUSE));
        if is_due {
            let search = self.clone();
            tokio::spawn(async move { search.run().await });
        }
    }

    /// Asks every healthy replica, unless that was done a moment ago.
    pub async fn run(&self) {
        let healthy = |replica: &Replica| replica.is_healthy();
        self.ask(&self.last, healthy).await;
    }

    /// Asks those who have not told yet what they serve, of all if none is healthy, unless that was done a moment ago.
    pub async fn hear_silent(&self) {
        let is_any_healthy = self.fleet.health() != FleetHealth::Unhealthy;
        let is_silent = |r: &Replica| r.catalogue().is_none() && (r.is_healthy() || !is_any_healthy);
        if self.fleet.members().iter().any(|replica| is_silent(replica)) {
            self.ask(&self.last_of_silent, is_silent).await;
        }
    }

    async fn ask(&self, last: &Mutex<Option<Instant>>, is_asked: impl Fn(&Replica) -> bool) {
        let mut last = last.lock().await;
        if last.is_some_and(|at| at.elapsed() < PAUSE) {
            return;
        }
        let replicas = self.fleet.members();
        let asked = replicas.iter().filter(|replica| is_asked(replica));
        join_all(asked.map(|replica| self.probe.look_for_models(replica))).await;
        *last = Some(Instant::now());
    }
}
