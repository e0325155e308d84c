//! What goes along: the secret of the fingerprints, what the fleet knows, and what was counted.

use crate::fleet::Fleet;
use crate::fleet::state::FleetState;
use crate::pack;
use crate::telemetry::inherited::Counts;
use crate::telemetry::metrics::Metrics;
use parking_lot::Mutex;
use std::sync::Arc;

/// A snapshot.
#[derive(Clone, Debug)]
pub(in crate::server) struct Snapshot {
    pub(in crate::server) secret: u64,
    pub(in crate::server) fleet: FleetState,
    pub(in crate::server) counts: Counts,
}
pack::record!(Snapshot { secret, fleet, counts });

/// Where it comes from.
#[derive(Clone)]
pub(in crate::server) struct Known {
    pub(in crate::server) fleet: Arc<Fleet>,
    pub(in crate::server) metrics: Arc<Metrics>,
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
        pack::seal(&Snapshot { secret: self.secret, fleet: self.fleet.state(), counts })
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
