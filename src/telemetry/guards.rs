//! What is counted for as long as it is held: whatever the way out, the guard's drop counts it out.

use prometheus::{Histogram, IntGauge};
use std::time::Instant;

/// A request in a gauge, for as long as it is held.
pub struct InflightGuard(IntGauge);

impl InflightGuard {
    /// Counts it in.
    pub(super) fn new(gauge: &IntGauge) -> Self {
        gauge.inc();
        InflightGuard(gauge.clone())
    }
}

impl Drop for InflightGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// A request in the queue, in the gauge; how long it waited is told when the guard goes.
pub struct QueueGuard {
    length: IntGauge,
    wait: Histogram,
    since: Instant,
}

impl QueueGuard {
    /// It begins to wait.
    pub(super) fn new(length: IntGauge, wait: Histogram) -> Self {
        length.inc();
        QueueGuard { length, wait, since: Instant::now() }
    }
}

impl Drop for QueueGuard {
    fn drop(&mut self) {
        self.length.dec();
        self.wait.observe(self.since.elapsed().as_secs_f64());
    }
}
