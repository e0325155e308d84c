//! The progress watchdog: looks at what requests show at each replica, asks the suspicious ones, and fences the frozen.
//!
//! All that is decided is `policy::progress`'s business. Here are the clock and the question. It also ends the pauses of
//! replicas that were fenced for failed requests, which needs a clock and no more.

use super::generation::{Asker, Outcome};
use super::tend::tend;
use crate::fleet::Fleet;
use crate::fleet::replica::Replica;
use crate::policy::progress::{Asked, Limits, Reply, Signs};
use crate::types::WatchMode;
use async_trait::async_trait;
use pingora_core::server::ShutdownWatch;
use pingora_core::services::background::BackgroundService;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// The longest time between two looks.
const LOOK: Duration = Duration::from_millis(200);
/// A frozen replica that may not be fenced is left alone for so many times the time of a question.
const PAUSE: u32 = 4;
/// A question is open for so many times its time at most.
const LONGEST: u32 = 8;
/// A look that comes so much too late was not prevented by the engines: the machine stood still.
const STOOD_STILL: f64 = 10.0;

/// How it watches.
#[derive(Clone, Copy, Debug)]
pub struct WatchdogSpec {
    /// What follows from a frozen engine.
    pub mode: WatchMode,
    /// When a silence is suspicious, and when it is too long.
    pub limits: Limits,
    /// How long a suspicious replica has to answer.
    pub timeout: Duration,
}

/// Watches the replicas of a fleet.
pub struct Watchdog {
    fleet: Arc<Fleet>,
    spec: WatchdogSpec,
    asker: Asker,
}

/// What is known of one replica between two looks.
#[derive(Default)]
struct Suspicion {
    asked: Asked,
    /// What had been generated there when it was asked first, or its last answer.
    heard: f64,
    /// Whether it was said to be frozen.
    is_told: bool,
}

impl Watchdog {
    /// A watchdog over the replicas of `fleet`.
    pub fn new(fleet: Arc<Fleet>, spec: WatchdogSpec) -> Self {
        Watchdog { fleet, spec, asker: Asker::new() }
    }

    /// Watches one replica for ever.
    async fn watch(&self, replica: &Replica) {
        let every = LOOK.min(Duration::from_secs_f64(self.spec.limits.silence_ms / 4000.0));
        let mut suspicion = Suspicion::default();
        let mut last = self.fleet.clock().now();
        loop {
            tokio::time::sleep(every).await;
            let now = self.fleet.clock().now();
            if now - last > STOOD_STILL * every.as_secs_f64() * 1000.0 {
                // nobody can have been heard meanwhile
                replica.overhear(now);
            }
            replica.tick(now);
            if replica.inflight() > 0
                && replica.is_healthy()
                && !self.fleet.is_retired()
                && self.spec.mode != WatchMode::Off
            {
                self.look(replica, &mut suspicion, now).await;
            }
            last = self.fleet.clock().now();
        }
    }

    async fn look(&self, replica: &Replica, suspicion: &mut Suspicion, now: f64) {
        let heard = replica.heard();
        if heard > suspicion.heard {
            *suspicion = Suspicion { heard, ..Suspicion::default() };
        }
        let Some((signs, others_too)) = self.signs(replica, now) else { return };
        if !suspicion.asked.is_due(signs, self.spec.limits, others_too) {
            return;
        }
        let Some(outcome) = self.ask(replica, signs.left_ms(self.spec.limits, others_too), heard).await else { return };
        let reply = match outcome {
            Outcome::Generated | Outcome::Busy => Reply::Alive,
            Outcome::NotOffered => Reply::Unknown,
            Outcome::Failed | Outcome::Unreached | Outcome::TimedOut => Reply::Silent,
        };
        let now = self.fleet.clock().now();
        if reply == Reply::Alive {
            // an answer to us is no token for a client, but a sign of life
            let is_news = replica.heard() > heard;
            replica.overhear(now);
            suspicion.heard = if is_news { suspicion.heard } else { now };
        }
        if replica.heard() > heard && reply != Reply::Alive {
            return;
        }
        let Some((signs, others_too)) = self.signs(replica, now) else { return };
        if reply == Reply::Unknown && !std::mem::replace(&mut suspicion.is_told, true) {
            log::warn!(
                "replica {}: nothing was generated for {:.0} ms, and it refuses to be asked; it is not fenced",
                replica.name(),
                signs.silence_ms
            );
        }
        if suspicion.asked.on(reply, signs, self.spec.limits, others_too) && !self.fence(replica, signs, suspicion) {
            tokio::time::sleep(self.spec.timeout * PAUSE).await;
        }
    }

    /// Asks, and waits for an answer until there can be a verdict in `left_ms`; `None` if that is not needed any more,
    /// because something was generated since `heard`.
    async fn ask(&self, replica: &Replica, left_ms: f64, heard: f64) -> Option<Outcome> {
        let left =
            Duration::from_secs_f64(left_ms.min(1e9) / 1000.0).clamp(self.spec.timeout, self.spec.timeout * LONGEST);
        let mut answer = pin!(self.asker.ask(replica, left));
        loop {
            tokio::select! {
                outcome = &mut answer => return Some(outcome),
                () = tokio::time::sleep(LOOK) => {}
            }
            if replica.heard() > heard {
                return None;
            }
        }
    }

    fn signs(&self, replica: &Replica, now: f64) -> Option<(Signs, bool)> {
        let signs = replica.signs(now)?;
        Some((signs, self.fleet.others_are_silent(replica, now - signs.silence_ms)))
    }

    /// Whether it is fenced now.
    fn fence(&self, replica: &Replica, signs: Signs, suspicion: &mut Suspicion) -> bool {
        let fenced = self.spec.mode == WatchMode::Fence && self.fleet.fence_frozen(replica);
        if !fenced && !std::mem::replace(&mut suspicion.is_told, true) {
            log::warn!(
                "replica {}: nothing was generated for {:.0} ms; it is not fenced",
                replica.name(),
                signs.silence_ms
            );
        }
        fenced
    }
}

#[async_trait]
impl BackgroundService for Watchdog {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        tokio::select! {
            () = tend(&self.fleet, |replica| async move { self.watch(&replica).await }) => {}
            _ = shutdown.changed() => {}
        }
    }
}
