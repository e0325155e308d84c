//! What the process does when it is told something: stop, make room for its successor, or read its files again.

use super::handover::Succession;
use super::reload::Reload;
use super::tls::Certificates;
use crate::telemetry::journal::Journal;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::outlet;
use async_trait::async_trait;
use nix::sys::signal::{SigSet, Signal};
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

/// The signals that end the process: SIGTERM in steps, SIGINT at once.
pub(super) struct Signals {
    pub(super) grace: Duration,
    pub(super) draining: Arc<AtomicBool>,
    /// Which other process serves in this one's place.
    pub(super) succession: Arc<Succession>,
}

#[async_trait]
impl ShutdownSignalWatch for Signals {
    /// Returns when connections are to close. After SIGTERM that is later, when balancers have had time to see that
    /// health says draining; after a hand-over, when clients have had time to come back to their idle connections and be
    /// told.
    async fn recv(&self) -> ShutdownSignal {
        let caught = (signal(SignalKind::quit()), signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
        let (Ok(mut quit), Ok(mut terminate), Ok(mut interrupt)) = caught else {
            log::error!("signals cannot be caught");
            return ShutdownSignal::FastShutdown;
        };
        let mut over = self.succession.over();
        let is_over = loop {
            tokio::select! {
                // Pingora's signal for a hand-over: here the successor itself says when it serves
                _ = quit.recv() => log::warn!("SIGQUIT ends nothing: `ramjet upgrade` starts a successor"),
                _ = interrupt.recv() => return ShutdownSignal::FastShutdown,
                _ = terminate.recv() => break false,
                _ = over.wait_for(|over| *over) => break true,
            }
        };
        self.draining.store(true, Relaxed);
        match is_over {
            true => log::info!("another process serves now: this one finishes what it has"),
            false => log::info!("draining: the listeners close in {:?}", self.grace),
        }
        // whoever stops the unit means the process that serves; this one is going anyway
        let mut spared = is_over;
        let succession = self.succession.clone();
        let mut again = async move || loop {
            tokio::select! {
                _ = terminate.recv() => {
                    let is_last = spared && succession.is_left_alone().await;
                    if !std::mem::take(&mut spared) || is_last {
                        return;
                    }
                }
                _ = interrupt.recv() => return,
            }
        };
        tokio::select! {
            () = again() => {
                log::warn!("told to stop again, exiting at once");
                return ShutdownSignal::FastShutdown;
            }
            () = tokio::time::sleep(self.grace) => {}
        }
        // from here on Pingora is deaf
        tokio::spawn(async move {
            again().await;
            log::warn!("told to stop again, exiting at once");
            outlet::exit(0);
        });
        ShutdownSignal::GracefulTerminate
    }
}

/// What shows whether a process that is going away still has something to do.
pub(super) struct Going {
    pub(super) metrics: Arc<Metrics>,
    pub(super) draining: Arc<AtomicBool>,
    pub(super) open_http2: Arc<AtomicUsize>,
}

/// Lets a process that was told to stop, or in whose place another one serves, end well: its clients are told to connect
/// anew after their answer, and it exits soon after its last request. Pingora alone would sleep out the whole drain
/// limit.
pub(super) struct Drain {
    pub(super) going: Going,
    pub(super) succession: Arc<Succession>,
    /// Taken, and first polled, in the service: a daemon forks before that.
    pub(super) phases: Mutex<Option<broadcast::Receiver<ExecutionPhase>>>,
}

#[async_trait]
impl BackgroundService for Drain {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        outlet::serve();
        let Some(mut phases) = self.phases.lock().take() else { return };
        let Going { metrics, draining, open_http2 } = &self.going;
        loop {
            tokio::select! {
                phase = phases.recv() => match phase {
                    Ok(phase) if goes_away(&phase) => draining.store(true, Relaxed),
                    // the server that told of its phases is gone
                    Err(RecvError::Closed) => break,
                    Ok(_) | Err(RecvError::Lagged(_)) => {}
                },
                _ = shutdown.changed() => break,
            }
        }
        draining.store(true, Relaxed);
        let mut idle_since = None;
        while idle_since.is_none_or(|since: Instant| since.elapsed() < IDLE_BEFORE_EXIT) {
            tokio::time::sleep(DRAIN_POLL).await;
            let busy = metrics.inflight() > 0 || open_http2.load(Relaxed) > 0;
            idle_since = if busy { None } else { idle_since.or_else(|| Some(Instant::now())) };
        }
        log::info!("no request is left, exiting");
        self.succession.farewell();
        outlet::exit(0);
    }
}

/// Whether the phase is one of a process on its way out.
fn goes_away(phase: &ExecutionPhase) -> bool {
    use ExecutionPhase::{Bootstrap, BootstrapComplete, Running, Setup};
    !matches!(phase, Setup | Bootstrap | BootstrapComplete | Running)
}

/// Has hangups wait until they are served: one that came before would end the process. To be called while it has one thread;
/// those that it makes do the same.
pub fn hold_hangups() {
    if let Err(e) = SigSet::from(Signal::SIGHUP).thread_block() {
        log::warn!("SIGHUP cannot be held back while ramjet starts: {e}");
    }
}

/// Reads the configuration and the certificates again on SIGHUP, which would end the process and every stream with it.
pub(super) struct Hangup {
    pub(super) reload: Arc<Reload>,
    pub(super) certificates: Option<Arc<Certificates>>,
    pub(super) journal: Option<Arc<Journal>>,
}

#[async_trait]
impl BackgroundService for Hangup {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let Ok(mut hangup) = signal(SignalKind::hangup()) else {
            return log::warn!("SIGHUP cannot be caught");
        };
        // this thread lives as long as the process; one is enough
        if let Err(e) = SigSet::from(Signal::SIGHUP).thread_unblock() {
            log::warn!("SIGHUP will not be heard: {e}");
        }
        loop {
            tokio::select! {
                _ = hangup.recv() => {
                    if let Some(journal) = &self.journal {
                        journal.reopen();
                    }
                    // a configuration that is bad is no reason to let certificates run out
                    let is_good = self.reload.run().await.is_good();
                    if let Some(certificates) = self.certificates.as_ref().filter(|_| !is_good) {
                        certificates.reload_certificates();
                    }
                }
                changed = shutdown.changed() => if changed.is_err() || *shutdown.borrow() { return },
            }
        }
    }
}
