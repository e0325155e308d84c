//! What goes along: the secret of the fingerprints, what the fleet knows, what was counted, and the last day.

use crate::fleet::Fleet;
use crate::fleet::state::FleetState;
use crate::pack;
use crate::telemetry::history::HistoryState;
use crate::telemetry::inherited::Counts;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::recorder::{Recorder, Seen};
use parking_lot::Mutex;
use std::sync::Arc;

/// A snapshot.
#[derive(Clone, Debug)]
pub(in crate::server) struct Snapshot {
    pub(in crate::server) secret: u64,
    pub(in crate::server) fleet: FleetState,
    pub(in crate::server) counts: Counts,
    pub(in crate::server) history: HistoryState,
}
pack::record!(Snapshot { secret, fleet, counts, history });

/// Where it comes from.
#[derive(Clone)]
pub(in crate::server) struct Known {
    pub(in crate::server) fleet: Arc<Fleet>,
    pub(in crate::server) metrics: Arc<Metrics>,
    pub(in crate::server) seen: Seen,
    pub(in crate::server) secret: u64,
}

/// What a process has counted that its successor knows of.
#[derive(Default)]
pub(super) struct Told(Mutex<Option<Counts>>);

impl Known {
    /// A snapshot, sealed; its counts are told from now on.
    pub(super) fn seal(&self, told: &Told) -> Vec<u8> {
        let counts = self.metrics.counts(&self.fleet);
        *told.0.lock() = Some(counts.clone());
        // what was counted since its last sample belongs to the history that goes along: the next process begins after it
        Recorder::new(self.fleet.clone(), self.metrics.clone(), self.seen.clone()).sample();
        let history = self.seen.history.state();
        pack::seal(&Snapshot { secret: self.secret, fleet: self.fleet.state(), counts, history })
    }

    /// What has been counted since the successor was told last, sealed; it is told now.
    pub(super) fn rest(&self, told: &Told) -> Vec<u8> {
        let now = self.metrics.counts(&self.fleet);
        let before = told.0.lock().replace(now.clone()).unwrap_or_default();
        pack::seal(&now.since(&before))
    }

    /// Takes in what a process before this one has still counted.
    pub(super) fn add(&self, rest: &[u8]) {
        if let Some(counts) = pack::open::<Counts>(rest) {
            self.metrics.inherit(&counts);
        }
    }
}
