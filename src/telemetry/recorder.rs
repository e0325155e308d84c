//! Once a second: what is counted goes into the history, and what must always hold is checked.
//!
//! A self-check fails when it has not held for `TRIES` looks in a row: the two sides of it are read one after the other
//! while requests come and go, so that a single look proves nothing.

use super::checks::Check;
use super::history::History;
use super::metrics::Metrics;
use super::trunks::Trunks;
use crate::fleet::Fleet;
use async_trait::async_trait;
use pingora_core::server::ShutdownWatch;
use pingora_core::services::background::BackgroundService;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

const EVERY: Duration = Duration::from_secs(1);
/// Looks in a row that a check must fail.
const TRIES: u32 = 30;
/// Seconds after which trunks age.
const AGES: u64 = 1800;

/// The service.
pub struct Recorder {
    fleet: Arc<Fleet>,
    metrics: Arc<Metrics>,
    seen: Seen,
}

/// What is remembered of requests besides the metrics.
#[derive(Clone)]
pub struct Seen {
    /// The last day.
    pub history: Arc<History>,
    /// The beginnings that prompts share.
    pub trunks: Arc<Trunks>,
}

impl Default for Seen {
    /// Nothing yet.
    fn default() -> Self {
        Seen { history: Arc::new(History::new(Metrics::ttft_bounds())), trunks: Arc::default() }
    }
}

/// How often in a row each check has failed.
#[derive(Debug, Default)]
struct Failing([u32; Check::ALL.len()]);

impl Failing {
    /// Whether a check has failed for so long that it counts, which it does once.
    fn look(&mut self, check: Check, holds: bool) -> bool {
        let run = &mut self.0[check as usize];
        *run = if holds { 0 } else { *run + 1 };
        *run == TRIES
    }
}

impl Recorder {
    /// A recorder of what these say.
    pub fn new(fleet: Arc<Fleet>, metrics: Arc<Metrics>, seen: Seen) -> Self {
        Recorder { fleet, metrics, seen }
    }

    /// Takes a sample now.
    pub fn sample(&self) {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs_f64();
        self.seen.history.sample(now, self.metrics.sample(&self.fleet));
        self.metrics.history(self.seen.history.bytes());
    }

    fn check(&self, failing: &mut Failing) {
        for (check, holds) in self.metrics.checks(&self.fleet) {
            if failing.look(check, holds) {
                self.metrics.check_failed(check);
                log::error!("a self-check fails: {}", check.label());
            }
        }
    }
}

#[async_trait]
impl BackgroundService for Recorder {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let (mut failing, mut looks) = (Failing::default(), 0);
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                changed = shutdown.changed() => if changed.is_err() || *shutdown.borrow() { return },
            }
            self.sample();
            self.check(&mut failing);
            looks += 1;
            if looks % AGES == 0 {
                self.seen.trunks.age();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_counts_once_when_it_has_failed_for_long() {
        let mut failing = Failing::default();
        let looks =
            |failing: &mut Failing, holds, n| (0..n).filter(|_| failing.look(Check::Reservations, holds)).count();
        assert_eq!(looks(&mut failing, false, TRIES - 1), 0);
        assert_eq!(looks(&mut failing, true, 1), 0);
        assert_eq!(looks(&mut failing, false, 10 * TRIES), 1);
        assert_eq!(looks(&mut failing, true, 1) + looks(&mut failing, false, TRIES), 1);
        assert!(!failing.look(Check::IndexBytes, false));
    }
}
