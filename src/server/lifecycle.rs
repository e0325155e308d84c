//! What the process does when it is told something: stop, or read its configuration again.

use super::tls::Certificates;
use crate::telemetry::metrics::Metrics;
use async_trait::async_trait;
use parking_lot::Mutex;
use pingora_core::server::{ExecutionPhase, ShutdownSignal, ShutdownSignalWatch, ShutdownWatch};
use pingora_core::services::background::BackgroundService;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::broadcast::{self, error::RecvError};

/// How often a process that is shutting down looks whether it is idle.
const DRAIN_POLL: Duration = Duration::from_millis(50);
/// How long it stays idle before it ends: the tail of an answer may still be on its way, and a request may just have
/// been accepted.
const IDLE_BEFORE_EXIT: Duration = Duration::from_secs(1);

/// The signals that end the process: SIGTERM in steps, SIGINT at once, SIGQUIT by handing over.
pub(super) struct Signals {
    pub(super) grace: Duration,
    pub(super) draining: Arc<AtomicBool>,
}

#[async_trait]
impl ShutdownSignalWatch for Signals {
    /// Returns when the listeners are to close. After SIGTERM that is later, when balancers have had time to see that
    /// health says draining.
    async fn recv(&self) -> ShutdownSignal {
        let caught = (signal(SignalKind::quit()), signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
        let (Ok(mut quit), Ok(mut terminate), Ok(mut interrupt)) = caught else {
            log::error!("signals cannot be caught");
            return ShutdownSignal::FastShutdown;
        };
        tokio::select! {
            _ = quit.recv() => return ShutdownSignal::GracefulUpgrade,
            _ = interrupt.recv() => return ShutdownSignal::FastShutdown,
            _ = terminate.recv() => self.draining.store(true, Relaxed),
        }
        log::info!("draining: the listeners close in {:?}", self.grace);
        let mut again = async move || {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            log::warn!("told to stop again, exiting at once");
        };
        tokio::select! {
            () = again() => return ShutdownSignal::FastShutdown,
            () = tokio::time::sleep(self.grace) => {}
        }
        // from here on Pingora is deaf
        tokio::spawn(async move {
            again().await;
            std::process::exit(0);
        });
        ShutdownSignal::GracefulTerminate
    }
}

/// Lets a process that was told to stop, or whose successor is taking over, end well: its clients are told to connect
/// anew after their answer, and it exits soon after its last request. Pingora alone would sleep out the whole drain
/// limit.
pub(super) struct Drain {
    pub(super) metrics: Arc<Metrics>,
    pub(super) draining: Arc<AtomicBool>,
    pub(super) open_http2: Arc<AtomicUsize>,
    /// Taken, and first polled, in the service: a daemon forks before that.
    pub(super) phases: Mutex<Option<broadcast::Receiver<ExecutionPhase>>>,
}

#[async_trait]
impl BackgroundService for Drain {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let Some(mut phases) = self.phases.lock().take() else { return };
        loop {
            tokio::select! {
                phase = phases.recv() => match phase {
                    Ok(phase) if goes_away(&phase) => self.draining.store(true, Relaxed),
                    // the server that told of its phases is gone
                    Err(RecvError::Closed) => break,
                    Ok(_) | Err(RecvError::Lagged(_)) => {}
                },
                _ = shutdown.changed() => break,
            }
        }
        self.draining.store(true, Relaxed);
        let mut idle_since = None;
        while idle_since.is_none_or(|since: Instant| since.elapsed() < IDLE_BEFORE_EXIT) {
            tokio::time::sleep(DRAIN_POLL).await;
            let busy = self.metrics.inflight() > 0 || self.open_http2.load(Relaxed) > 0;
            idle_since = if busy { None } else { idle_since.or_else(|| Some(Instant::now())) };
        }
        log::info!("no request is left, exiting");
        std::process::exit(0);
    }
}

/// Whether the phase is one of a process on its way out.
fn goes_away(phase: &ExecutionPhase) -> bool {
    use ExecutionPhase::{Bootstrap, BootstrapComplete, Running, Setup};
    !matches!(phase, Setup | Bootstrap | BootstrapComplete | Running)
}

/// Survives SIGHUP, which would end the process and every stream with it.
pub(super) struct Hangup {
    pub(super) certificates: Option<Arc<Certificates>>,
}

#[async_trait]
impl BackgroundService for Hangup {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let Ok(mut hangup) = signal(SignalKind::hangup()) else {
            return log::warn!("SIGHUP cannot be caught: it will end the process");
        };
        loop {
            tokio::select! {
                _ = hangup.recv() => {
                    log::warn!("SIGHUP is ignored, but for certificates: restart to apply a new configuration");
                    if let Some(certificates) = &self.certificates {
                        certificates.reload_certificates();
                    }
                }
                changed = shutdown.changed() => if changed.is_err() || *shutdown.borrow() { return },
            }
        }
    }
}
