//! What goes along: the secret of the fingerprints, what the fleet knows, what was counted, and the last day; and at the
//! switch what has been counted and ordered since.

use crate::engine::speculation::SpeculationGuard;
use crate::fleet::Fleet;
use crate::fleet::state::{FleetState, Order};
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
    pub(in crate::server) routers: Vec<u64>,
    /// Secrets before that one, by which it still knows ids.
    pub(in crate::server) former: Vec<u64>,
}
pack::record!(Snapshot { secret, fleet, counts, history, routers, former });

/// Where it comes from.
#[derive(Clone)]
pub(in crate::server) struct Known {
    pub(in crate::server) fleet: Arc<Fleet>,
    pub(in crate::server) metrics: Arc<Metrics>,
    pub(in crate::server) seen: Seen,
    pub(in crate::server) secret: u64,
    /// What this process and those before it call themselves in their group.
    pub(in crate::server) routers: Vec<u64>,
    /// What it has written down is in a file, and read from there.
    pub(in crate::server) guard: SpeculationGuard,
}

/// What the successor is told when it takes over, each sealed: what has been counted, and what operators have ordered, which
/// it is to know whatever its version.
struct Last {
    counts: Vec<u8>,
    orders: Vec<u8>,
}
pack::record!(Last { counts, orders });

/// What a process has counted that its successor knows of.
#[derive(Default)]
pub(super) struct Told(Mutex<Option<Counts>>);

impl Known {
    /// A snapshot, sealed; its counts are told from now on.
    pub(super) fn seal(&self, told: &Told) -> Vec<u8> {
        // the next process's history begins with the counts that go along: all before them belongs to this one's
        Recorder::new(self.fleet.clone(), self.metrics.clone(), self.seen.clone()).sample();
        let history = self.seen.history.state();
        let counts = self.metrics.counts(&self.fleet);
        *told.0.lock() = Some(counts.clone());
        let (secret, fleet, routers) = (self.secret, self.fleet.state(), self.routers.clone());
        let former = self.fleet.pins().former().to_vec();
        pack::seal(&Snapshot { secret, fleet, counts, history, routers, former })
    }

    /// What has been counted since the successor was told last, sealed; it is told now.
    pub(super) fn rest(&self, told: &Told) -> Vec<u8> {
        pack::seal(&self.counted(told))
    }

    fn counted(&self, told: &Told) -> Counts {
        let now = self.metrics.counts(&self.fleet);
        let before = told.0.lock().replace(now.clone()).unwrap_or_default();
        now.since(&before)
    }

    /// Another process serves from now on: probes end, and nothing more is written down.
    pub(super) fn step_back(&self) {
        // first of all: a probe more or less matters less than one from both
        self.fleet.retire();
        self.guard.end();
    }

    /// What that one is told: what has been counted and ordered since the snapshot. To be asked for when nobody is shown
    /// counts here any more, or those that are shown next would be smaller.
    pub(super) fn last(&self, told: &Told) -> Vec<u8> {
        let counts = pack::seal(&self.counted(told));
        let orders = pack::seal_as(pack::LASTING, &self.fleet.orders());
        pack::seal_as(pack::LASTING, &Last { counts, orders })
    }

    /// This process serves from now on, in the place of one that has said this, if there was one.
    pub(super) fn step_forward(&self, last: Option<&[u8]>) {
        if let Some(told) = last.and_then(|last| pack::open_as::<Last>(pack::LASTING, last)) {
            self.add(&told.counts);
            self.fleet.obey(pack::open_as::<Vec<Order>>(pack::LASTING, &told.orders).unwrap_or_default());
        }
        self.guard.begin(last.is_some());
    }

    /// Takes in what a process before this one has still counted.
    pub(super) fn add(&self, rest: &[u8]) {
        if let Some(counts) = pack::open::<Counts>(rest) {
            self.metrics.inherit(&counts);
        }
    }
}
