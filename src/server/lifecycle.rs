//! What the process does when it is told something: stop, or read its configuration again.

use crate::telemetry::metrics::Metrics;
use async_trait::async_trait;
use pingora_core::server::ShutdownWatch;
use pingora_core::services::background::BackgroundService;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// How often a process that is shutting down looks whether it is idle.
const DRAIN_POLL: Duration = Duration::from_millis(50);

/// Ends a process that was told to stop as soon as its last request has ended; Pingora alone would sleep out the
/// whole drain limit.
pub(super) struct ExitWhenIdle {
    pub(super) metrics: Arc<Metrics>,
}

#[async_trait]
impl BackgroundService for ExitWhenIdle {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        while !*shutdown.borrow() {
            if shutdown.changed().await.is_err() {
                return;
            }
        }
        while self.metrics.inflight() > 0 {
            tokio::time::sleep(DRAIN_POLL).await;
        }
        log::info!("no request is left, exiting");
        std::process::exit(0);
    }
}

/// Survives SIGHUP, which would end the process and every stream with it.
pub(super) struct Hangup;

#[async_trait]
impl BackgroundService for Hangup {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let Ok(mut hangup) = signal(SignalKind::hangup()) else {
            return log::warn!("SIGHUP cannot be caught: it will end the process");
        };
        loop {
            tokio::select! {
                _ = hangup.recv() => log::warn!("SIGHUP is ignored: restart to apply a new configuration"),
                changed = shutdown.changed() => if changed.is_err() || *shutdown.borrow() { return },
            }
        }
    }
}
