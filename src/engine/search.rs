//! Asks engines for their models when a client asks for one that nobody is known to serve: adapters are loaded while an
//! engine runs, and clients ask for them before the next probe.

use super::probe::{Prober, ReadinessSpec};
use crate::fleet::Fleet;
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
}

impl ModelSearch {
    /// A search through `fleet` that asks as the readiness probe does.
    pub fn new(fleet: Arc<Fleet>, spec: ReadinessSpec) -> Self {
        let spec = ReadinessSpec { timeout: spec.timeout.min(PATIENCE), ..spec };
        ModelSearch { probe: Prober::new(fleet.clone(), spec), fleet, last: Mutex::new(None) }
    }

    /// Asks every healthy replica, unless that was done a moment ago.
    pub async fn run(&self) {
        let mut last = self.last.lock().await;
        if last.is_some_and(|at| at.elapsed() < PAUSE) {
            return;
        }
        let replicas = self.fleet.members();
        let healthy = replicas.iter().filter(|replica| replica.is_healthy());
        join_all(healthy.map(|replica| self.probe.ask_for_models(replica))).await;
        *last = Some(Instant::now());
    }
}
