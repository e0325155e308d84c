//! What must always hold, and what ramjet counts of itself.

use super::decisions::Decisions;
use super::metrics::Metrics;
use crate::fleet::Fleet;

/// What must always hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Reservations and requests that have a replica are as many.
    Reservations,
    /// The prefix index keeps to its budget.
    IndexBytes,
}

impl Check {
    /// Every check.
    pub const ALL: [Check; 2] = [Check::Reservations, Check::IndexBytes];

    /// As a label.
    pub fn label(self) -> &'static str {
        match self {
            Check::Reservations => "reservations",
            Check::IndexBytes => "index_bytes",
        }
    }
}

/// Where there was no room for what other routers were to be told.
const DROPPED: [&str; 2] = ["queue", "store"];
/// Why something in the store is not believed.
const REJECTED: [&str; 5] = ["malformed", "version", "unproved", "shape", "repeated"];

/// What is remembered of requests besides the prefix index, and the last day.
const TABLES: [&str; 7] = ["turns", "sessions", "session_names", "ids", "decisions", "block_counts", "prompt_outlines"];

/// What became of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceEnd {
    /// The collector took it.
    Sent,
    /// Too many waited.
    Dropped,
    /// The collector did not take it.
    Failed,
}

impl TraceEnd {
    /// Every end.
    pub const ALL: [TraceEnd; 3] = [TraceEnd::Sent, TraceEnd::Dropped, TraceEnd::Failed];

    /// As a label.
    pub fn label(self) -> &'static str {
        match self {
            TraceEnd::Sent => "sent",
            TraceEnd::Dropped => "dropped",
            TraceEnd::Failed => "failed",
        }
    }
}

/// What became of the question how many tokens a stream took, where the client had not asked it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The answer was taken out of the stream.
    Hidden,
    /// The stream held none.
    Unanswered,
    /// The engine took the request only without it.
    Refused,
}

impl Asked {
    /// Every end.
    pub const ALL: [Asked; 3] = [Asked::Hidden, Asked::Unanswered, Asked::Refused];

    /// As a label.
    pub fn label(self) -> &'static str {
        match self {
            Asked::Hidden => "hidden",
            Asked::Unanswered => "unanswered",
            Asked::Refused => "refused",
        }
    }
}

impl Metrics {
    pub(super) fn show_own_from_the_start(&self) {
        for check in Check::ALL {
            self.checks.with_label_values(&[check.label()]);
        }
        for end in TraceEnd::ALL {
            self.traces.with_label_values(&[end.label()]);
        }
        for end in Asked::ALL {
            self.usage_asked.with_label_values(&[end.label()]);
        }
        for table in TABLES {
            self.table_bytes.with_label_values(&[table]);
        }
        self.show_cluster_from_the_start();
    }

    pub(super) fn show_cluster_from_the_start(&self) {
        for reason in DROPPED {
            self.cluster_dropped.with_label_values(&[reason]);
        }
        for reason in REJECTED {
            self.cluster_rejected.with_label_values(&[reason]);
        }
    }

    /// So much was told to other routers and heard from them; so much there was no room for here, and in the store.
    pub fn cluster_moved(&self, published: u64, received: u64, lost: [u64; 2]) {
        self.cluster_published.inc_by(published);
        self.cluster_received.inc_by(received);
        for (reason, count) in DROPPED.iter().zip(lost) {
            self.cluster_dropped.with_label_values(&[reason]).inc_by(count);
        }
    }

    /// So much of what was found in the store is not believed.
    pub fn cluster_rejected(&self, reason: &str, count: u64) {
        self.cluster_rejected.with_label_values(&[reason]).inc_by(count);
    }

    /// What was told was there after so many seconds.
    pub fn cluster_lagged(&self, seconds: f64) {
        self.cluster_lag.observe(seconds);
    }

    pub(super) fn show_cluster(&self, fleet: &Fleet) {
        let group = fleet.sharing().group().unwrap_or_default();
        self.cluster_connected.set(group.connected.into());
        self.cluster_peers.set(i64::try_from(group.peers).unwrap_or(i64::MAX));
    }

    /// Whether what must always hold does at the moment. Reservations and requests are counted one after the other.
    pub fn checks(&self, fleet: &Fleet) -> [(Check, bool); Check::ALL.len()] {
        let reserved: i64 = fleet.members().present().map(|r| i64::from(r.inflight())).sum();
        [(Check::Reservations, reserved == self.placed.get()), (Check::IndexBytes, fleet.index_is_sound())]
    }

    /// What must always hold did not for long.
    pub fn check_failed(&self, check: Check) {
        self.checks.with_label_values(&[check.label()]).inc();
    }

    /// So many traces came to this end.
    pub fn traced(&self, end: TraceEnd, count: usize) {
        self.traces.with_label_values(&[end.label()]).inc_by(count as u64);
    }

    /// A stream was asked what its client had not asked.
    pub fn usage_asked(&self, end: Asked) {
        self.usage_asked.with_label_values(&[end.label()]).inc();
    }

    /// How many came to this end.
    #[cfg(test)]
    pub(crate) fn traces_ended(&self, end: TraceEnd) -> u64 {
        self.traces.with_label_values(&[end.label()]).get()
    }

    /// What is remembered of requests, table by table.
    pub fn remembered(&self, fleet: &Fleet, decisions: &Decisions) {
        let ([turns, sessions, names, ids], (kept, counts)) = (fleet.written(), decisions.written());
        let all = [turns, sessions, names, ids, kept, counts, decisions.linter.bytes()];
        for (table, bytes) in TABLES.iter().zip(all) {
            self.table_bytes.with_label_values(&[table]).set(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
    }

    /// The history takes so many bytes.
    pub fn history(&self, bytes: usize) {
        self.history_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::testing::spec;
    use crate::policy::flight::FlightParams;
    use crate::policy::score::{AffinityParams, LoadParams};
    use crate::policy::select::Params;
    use crate::types::{Basis, PolicyKind};

    #[test]
    fn a_request_without_a_reservation_fails_its_check_and_only_that() {
        let params = Params {
            policy: PolicyKind::Cost,
            affinity: AffinityParams { basis: Basis::Relative, cap_blocks: 32, alpha: 4.0 },
            load: LoadParams { unit_bytes: 32 << 10, max_units: 8, block_bytes: 2048 },
            flight: FlightParams::default(),
        };
        let fleet = Fleet::new(vec![spec("a")], params, 1 << 20);
        let metrics = Metrics::new().unwrap();
        assert_eq!(metrics.checks(&fleet), [(Check::Reservations, true), (Check::IndexBytes, true)]);
        let placed = metrics.placing();
        assert_eq!(metrics.checks(&fleet), [(Check::Reservations, false), (Check::IndexBytes, true)]);
        drop(placed);
        assert!(metrics.checks(&fleet).iter().all(|(_, holds)| *holds));
        // what else is remembered is told besides, and is not the index
        assert!(fleet.index_size().0 <= 1 << 20, "{:?}", fleet.index_size());
    }
}
