//! The readiness probe as a health check of pingora-load-balancing: one GET on a fresh connection.
//!
//! Thresholds and the reason of a fence are `policy::health`'s business; the crate is told the outcome of that, so its
//! own view and ours cannot differ. A fresh connection each time tests that the engine still accepts.

use super::capacity::{METRICS, capacity};
use super::discovery::relocate;
use super::exchange::{Question, exchange};
use crate::api::catalogue::Catalogue;
use crate::fleet::Fleet;
use crate::fleet::replica::Replica;
use crate::fleet::selection::replica_of;
use crate::fleet::transport::connector;
use crate::policy::health::{FenceReason, Observation, Thresholds, Transition};
use async_trait::async_trait;
use http::Method;
use pingora_core::connectors::http::Connector;
use pingora_error::{Error, ErrorType, Result};
use pingora_load_balancing::Backend;
use pingora_load_balancing::health_check::HealthCheck;
use std::sync::Arc;
use std::time::Duration;

/// Where engines list their models.
const MODELS: &str = "/v1/models";

/// When and how readiness is probed.
#[derive(Clone, Debug)]
pub struct ReadinessSpec {
    /// The path, without a replica's own prefix.
    pub path: String,
    /// The usual time between two probes of a replica, in milliseconds.
    pub every_ms: f64,
    /// From the first byte of the connection to the last of the answer.
    pub timeout: Duration,
    /// How many in a row turn the state.
    pub thresholds: Thresholds,
    /// A late answer does not count for so long after a request was completed.
    pub suppress_after_success: Duration,
}

/// Probes each replica.
pub struct ReadinessProbe {
    fleet: Arc<Fleet>,
    spec: ReadinessSpec,
    connector: Connector,
}

impl ReadinessProbe {
    /// A probe of the replicas of `fleet`.
    pub fn new(fleet: Arc<Fleet>, spec: ReadinessSpec) -> Self {
        ReadinessProbe { fleet, spec, connector: connector() }
    }

    /// Where nobody answers, the replica is looked for elsewhere and asked there.
    async fn observe(&self, replica: &Replica) -> Observation {
        let seen = self.ask(replica).await;
        let is_late = seen == Observation::Failed(FenceReason::Timeout);
        match seen {
            Observation::Failed(FenceReason::Connect | FenceReason::Timeout) if relocate(replica, is_late).await => {
                self.ask(replica).await
            }
            seen => seen,
        }
    }

    async fn ask(&self, replica: &Replica) -> Observation {
        match tokio::time::timeout(self.spec.timeout, self.get(&self.spec.path, replica)).await {
            Ok(Ok((200..=299, body))) => {
                if self.spec.path == MODELS {
                    self.learn(replica, &body);
                }
                Observation::Ready
            }
            Ok(Ok(_)) => Observation::Failed(FenceReason::Status),
            Ok(Err(_)) => Observation::Failed(FenceReason::Connect),
            Err(_) => Observation::Failed(FenceReason::Timeout),
        }
    }

    /// Asks for the models of a replica apart from its readiness; without an answer it keeps those that it had.
    pub(super) async fn ask_for_models(&self, replica: &Replica) {
        let asked = tokio::time::timeout(self.spec.timeout, self.get(MODELS, replica)).await;
        if let Ok(Ok((200..=299, body))) = asked {
            self.learn(replica, &body);
        }
    }

    /// Asks an engine that was not asked yet how much its cache holds.
    async fn ask_for_capacity(&self, replica: &Replica) {
        if !replica.takes_capacity_question() {
            return;
        }
        let asked = tokio::time::timeout(self.spec.timeout, self.get(METRICS, replica)).await;
        if let Ok(Ok((200..=299, body))) = asked
            && let Some(tokens) = capacity(&String::from_utf8_lossy(&body), replica.spec.role.rank)
        {
            log::info!("replica {}: its KV cache holds {tokens} tokens", replica.name());
            self.fleet.learn_capacity(replica.id, tokens);
        }
    }

    fn learn(&self, replica: &Replica, body: &[u8]) {
        match Catalogue::read(body) {
            Ok(listed) => self.fleet.learn_catalogue(replica.id, listed),
            Err(_) => log::debug!("replica {}: its list of models cannot be read", replica.name()),
        }
    }

    /// The status and the body of a GET whose answer arrived in full.
    async fn get(&self, path: &str, replica: &Replica) -> Result<(u16, Vec<u8>)> {
        exchange(&self.connector, replica, Question { method: Method::GET, path, body: String::new() }).await
    }

    /// Whether an answer that is late is no news: requests were completed there lately.
    fn is_excused(&self, seen: Observation, replica: &Replica) -> bool {
        let lately =
            self.fleet.clock().now() - replica.completed() < self.spec.suppress_after_success.as_secs_f64() * 1000.0;
        seen == Observation::Failed(FenceReason::Timeout) && lately
    }
}

#[async_trait]
impl HealthCheck for ReadinessProbe {
    async fn check(&self, target: &Backend) -> Result<()> {
        let Some(replica) = self.fleet.replica(replica_of(target)) else {
            return Error::e_explain(ErrorType::InternalError, "a backend without a replica");
        };
        if self.fleet.is_retired() || !replica.probes.begins_readiness(self.fleet.clock().now(), self.spec.every_ms) {
            return standing(replica);
        }
        let seen = self.observe(replica).await;
        if self.is_excused(seen, replica) {
            replica.suppress();
        } else {
            let change = replica.observe(seen, self.spec.thresholds, self.fleet.clock().now());
            if matches!(change, Some(Transition::Lifted { was_gone: true, .. })) {
                // nobody listened there: the engine has restarted, with an empty cache
                self.fleet.forget(replica.id);
            }
        }
        if replica.takes_move() {
            // another address is another engine
            self.fleet.forget(replica.id);
        }
        if seen == Observation::Ready && self.spec.path != MODELS {
            self.ask_for_models(replica).await;
        }
        if seen == Observation::Ready {
            self.ask_for_capacity(replica).await;
        }
        standing(replica)
    }

    /// One: hysteresis is applied before the crate sees an outcome.
    fn health_threshold(&self, _success: bool) -> usize {
        1
    }
}

/// What the crate is told of a replica.
fn standing(replica: &Replica) -> Result<()> {
    if replica.is_healthy() { Ok(()) } else { Error::e_explain(ErrorType::ConnectError, "not ready") }
}
