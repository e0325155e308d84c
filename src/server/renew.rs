//! Services that follow the settings of `health`, and of KV events: probes and the watchdog begin anew under other ones.

use crate::config::{Config, Loaded};
use crate::engine::probe::ReadinessProbe;
use crate::fleet::Fleet;
use crate::fleet::selection::CacheAware;
use arc_swap::ArcSwap;
use async_trait::async_trait;
use pingora_core::server::ShutdownWatch;
use pingora_core::services::background::BackgroundService;
use pingora_error::Result;
use pingora_load_balancing::health_check::HealthCheck;
use pingora_load_balancing::{Backend, LoadBalancer};
use std::sync::Arc;
use tokio::sync::watch;

/// The configuration in force.
pub(super) type News = watch::Receiver<Arc<Loaded>>;

/// A service that is made anew when those settings are others.
pub(super) struct Renewed<S> {
    pub(super) news: News,
    pub(super) make: Box<dyn Fn(&Config) -> S + Send + Sync>,
}

#[async_trait]
impl<S: BackgroundService + Send + Sync + 'static> BackgroundService for Renewed<S> {
    async fn start(&self, shutdown: ShutdownWatch) {
        let mut news = self.news.clone();
        loop {
            let watched = |loaded: &Loaded| (loaded.config.health.clone(), loaded.config.fleet.kv_events.clone());
            let before = watched(&news.borrow_and_update());
            let service = (self.make)(&news.borrow().config.clone());
            tokio::select! {
                () = service.start(shutdown.clone()) => return,
                _ = news.wait_for(|loaded| watched(loaded) != before) => {}
            }
        }
    }
}

/// A readiness probe that can be exchanged.
pub(super) struct Exchangeable(pub(super) Arc<ArcSwap<ReadinessProbe>>);

#[async_trait]
impl HealthCheck for Exchangeable {
    async fn check(&self, target: &Backend) -> Result<()> {
        self.0.load_full().check(target).await
    }

    fn health_threshold(&self, success: bool) -> usize {
        self.0.load().health_threshold(success)
    }
}

/// Has the members probed, at the interval that is in force, and at once when they have changed. (The balancer's own
/// loop has a fixed interval, in which it discovers, too: a slow probe would delay that.)
pub(super) struct Checks {
    pub(super) balancer: Arc<LoadBalancer<CacheAware>>,
    pub(super) fleet: Arc<Fleet>,
    pub(super) news: News,
}

#[async_trait]
impl BackgroundService for Checks {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let (mut news, mut changes) = (self.news.clone(), self.fleet.changes());
        loop {
            changes.mark_unchanged();
            let every = news.borrow_and_update().config.health.readiness.interval;
            let began = tokio::time::Instant::now();
            // a pass that has begun ends, however often the fleet changes
            tokio::select! {
                () = self.balancer.backends().run_health_check(true) => {}
                changed = shutdown.changed() => if changed.is_err() || *shutdown.borrow() { return },
            }
            tokio::select! {
                () = tokio::time::sleep_until(began + every) => {}
                Ok(()) = changes.changed() => {}
                Ok(()) = news.changed() => {}
                changed = shutdown.changed() => if changed.is_err() || *shutdown.borrow() { return },
            }
        }
    }
}
