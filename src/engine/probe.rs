//! The readiness probe as a health check of pingora-load-balancing: one GET on a fresh connection.
//!
//! Thresholds and the reason of a fence are `policy::health`'s business; the crate is told the state that follows, and
//! no choice asks for its own view. A fresh connection each time tests that the engine still accepts.
//!
//! The crate waits for all checks of a round before it begins the next one. So a check only starts the probe of its
//! replica, unless the last one still runs, and a slow replica delays no other. After the first round, the moment within
//! the first part of an interval is a replica's own, always the same: a large fleet is not asked all at once, and no
//! interval is stretched. Who is new, or configured anew, is asked at once; a probe ends with its replica.

use super::admission::{Admission, AdmissionSpec};
use super::capacity::{METRICS, capacity};
use super::discovery::relocate;
use super::exchange::{Question, TOO_LARGE, exchange};
use super::tend::until_gone;
use crate::api::catalogue::Catalogue;
use crate::fleet::Fleet;
use crate::fleet::replica::Replica;
use crate::fleet::selection::replica_of;
use crate::fleet::transport::connector;
use crate::policy::health::{FenceReason, Observation, Thresholds, Transition};
use crate::types::ReplicaId;
use async_trait::async_trait;
use http::Method;
use parking_lot::Mutex;
use pingora_core::connectors::http::Connector;
use pingora_error::{Error, ErrorType, Result};
use pingora_load_balancing::Backend;
use pingora_load_balancing::health_check::HealthCheck;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Where engines list their models.
const MODELS: &str = "/v1/models";
/// The part of an interval over which the probes of a fleet are spread.
const SPREAD: f64 = 0.2;

/// When and how readiness is probed.
#[derive(Clone, Debug)]
pub struct ReadinessSpec {
    /// The path, without a replica's own prefix.
    pub path: String,
    /// Between two probes of a replica.
    pub interval: Duration,
    /// From the first byte of the connection to the last of the answer.
    pub timeout: Duration,
    /// How many in a row turn the state.
    pub thresholds: Thresholds,
    /// A late answer does not count for so long after a request was completed.
    pub suppress_after_success: Duration,
}

/// Probes each replica.
pub struct ReadinessProbe(Arc<Prober>);

/// What probes are made with.
pub(super) struct Prober {
    fleet: Arc<Fleet>,
    spec: ReadinessSpec,
    connector: Connector,
    admission: Admission,
    /// Who was probed before, by its number, and whether a probe is under way.
    running: Mutex<HashMap<ReplicaId, (u32, bool)>>,
}

/// A probe under way.
struct Turn {
    prober: Arc<Prober>,
    replica: Arc<Replica>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let own = self.replica.number;
        if let Some((_, is_running)) = self.prober.running.lock().get_mut(&self.replica.id).filter(|r| r.0 == own) {
            *is_running = false;
        }
    }
}

impl ReadinessProbe {
    /// A probe of the replicas of `fleet`.
    pub fn new(fleet: Arc<Fleet>, spec: ReadinessSpec) -> Self {
        ReadinessProbe(Arc::new(Prober::new(fleet, spec)))
    }

    fn begin(&self, replica: &Arc<Replica>) {
        let before = self.0.running.lock().get(&replica.id).copied();
        let own = before.filter(|(number, _)| *number == replica.number);
        // who was configured anew is asked at once, whenever it was asked before; so is whom another router has fenced
        let at_once = own.is_none() || replica.probes.is_wanted_at_once();
        let (now, interval) = (self.0.fleet.clock().now(), self.0.spec.interval.as_secs_f64() * 1000.0);
        let is_due = || replica.probes.begins_readiness(now, interval) || before.is_some() && own.is_none();
        if self.0.fleet.is_retired() || own.is_some_and(|(_, is_running)| is_running) || !is_due() {
            return;
        }
        self.0.running.lock().insert(replica.id, (replica.number, true));
        let turn = Turn { prober: self.0.clone(), replica: replica.clone() };
        tokio::spawn(async move {
            let probe = async {
                if !at_once {
                    tokio::time::sleep(turn.prober.offset(&turn.replica)).await;
                }
                turn.prober.probe(&turn.replica).await;
            };
            Box::pin(until_gone(&turn.prober.fleet, turn.replica.clone(), probe)).await;
        });
    }
}

impl Prober {
    pub(super) fn new(fleet: Arc<Fleet>, spec: ReadinessSpec) -> Self {
        let questions = AdmissionSpec {
            timeout: spec.timeout,
            failures: spec.thresholds.failures,
            suppress_after_success: spec.suppress_after_success,
        };
        let admission = Admission::new(fleet.clock(), questions);
        Prober { fleet, spec, connector: connector(), admission, running: Mutex::default() }
    }

    /// When in an interval a replica is probed.
    fn offset(&self, replica: &Replica) -> Duration {
        #[expect(clippy::cast_precision_loss, reason = "a place needs no more than 53 bits")]
        let place = replica.name_hash as f64 / 2f64.powi(64);
        self.spec.interval.mul_f64(SPREAD * place)
    }

    /// One probe and what follows from it.
    async fn probe(&self, replica: &Replica) {
        let Some(seen) = self.observe(replica).await else { return };
        if self.is_excused(seen, replica) {
            replica.suppress();
        } else {
            let change = self.take_in(replica, seen);
            if matches!(change, Some(Transition::Lifted { was_gone: true, .. })) {
                // nobody listened there: the engine has restarted, with an empty cache
                self.fleet.restarted(replica);
            }
        }
        if replica.takes_move() {
            // another address is another engine
            self.fleet.forget(replica.id);
        }
        self.admission.check(replica).await;
        if seen == Observation::Ready {
            self.ask_for_capacity(replica).await;
        }
    }

    /// Where nobody answers, the replica is looked for elsewhere and asked there. `None` if it could not be asked.
    async fn observe(&self, replica: &Replica) -> Option<Observation> {
        let seen = self.ask(replica).await?;
        let is_late = seen == Observation::Failed(FenceReason::Timeout);
        match seen {
            Observation::Failed(FenceReason::Connect | FenceReason::Timeout) if relocate(replica, is_late).await => {
                self.ask(replica).await
            }
            seen => Some(seen),
        }
    }

    async fn ask(&self, replica: &Replica) -> Option<Observation> {
        Some(match tokio::time::timeout(self.spec.timeout, self.get(&self.spec.path, replica)).await {
            Ok(Ok((200..=299, body))) if self.spec.path == MODELS => self.learn(replica, &body),
            Ok(Ok((200..=299, _))) => self.ask_for_models(replica).await,
            Ok(Ok(_)) => Observation::Failed(FenceReason::Status),
            Ok(Err(e)) => observed(&e)?,
            Err(_) => Observation::Failed(FenceReason::Timeout),
        })
    }

    /// Asks a replica that is ready for its models; without an answer it keeps those that it had.
    pub(super) async fn ask_for_models(&self, replica: &Replica) -> Observation {
        let asked = tokio::time::timeout(self.spec.timeout, self.get(MODELS, replica)).await;
        match asked {
            Ok(Ok((200..=299, body))) => self.learn(replica, &body),
            _ => Observation::Ready,
        }
    }

    /// The same apart from a probe: only that a replica serves others than it should counts.
    pub(super) async fn look_for_models(&self, replica: &Replica) {
        if self.ask_for_models(replica).await != Observation::Ready {
            self.take_in(replica, Observation::Failed(FenceReason::Model));
        }
    }

    /// What a replica lists is no matter of chance, so one look is enough.
    fn take_in(&self, replica: &Replica, seen: Observation) -> Option<Transition> {
        let mut thresholds = self.spec.thresholds;
        if seen == Observation::Failed(FenceReason::Model) {
            thresholds.failures = 1;
        }
        replica.observe(seen, thresholds, self.fleet.clock().now())
    }

    /// Asks an engine that has not answered yet how much its cache holds.
    async fn ask_for_capacity(&self, replica: &Replica) {
        if !replica.takes_capacity_question() {
            return;
        }
        match tokio::time::timeout(self.spec.timeout, self.get(METRICS, replica)).await {
            Ok(Ok((200..=299, body))) => {
                if let Some(tokens) = capacity(&String::from_utf8_lossy(&body), replica.spec.role.rank) {
                    log::info!("replica {}: its KV cache holds {tokens} tokens", replica.name());
                    self.fleet.learn_capacity(replica.id, tokens);
                }
            }
            // it has no such page (501 is what llama.cpp says)
            Ok(Ok((300..=428 | 430..=499 | 501, _))) => {}
            // not now
            _ => replica.owes_capacity(),
        }
    }

    /// Takes in what a replica lists; whether that is what it is configured for.
    fn learn(&self, replica: &Replica, body: &[u8]) -> Observation {
        let Ok(listed) = Catalogue::read(body) else {
            log::debug!("replica {}: its list of models cannot be read", replica.name());
            return Observation::Ready;
        };
        let is_another = listed.lacks_all(&replica.spec.models);
        self.fleet.learn_catalogue(replica.id, listed);
        if is_another { Observation::Failed(FenceReason::Model) } else { Observation::Ready }
    }

    /// The status and the body of a GET whose answer arrived in full.
    async fn get(&self, path: &str, replica: &Replica) -> Result<(u16, Vec<u8>)> {
        exchange(&self.connector, replica, Question { method: Method::GET, path, body: String::new() }).await
    }

    /// Whether what a probe saw is no news: it was late, and requests were completed there lately; or it found nobody, as
    /// the one before, and a request was completed there in between: an engine that takes no more connections for a while
    /// serves those that it has.
    fn is_excused(&self, seen: Observation, replica: &Replica) -> bool {
        let now = self.fleet.clock().now();
        let is_refused = seen == Observation::Failed(FenceReason::Connect);
        let refused = replica.note_refusal(is_refused.then_some(now));
        let lately = self.spec.suppress_after_success.as_secs_f64() * 1000.0;
        let is_late = seen == Observation::Failed(FenceReason::Timeout);
        is_late && now - replica.completed() < lately
            || is_refused && refused > f64::NEG_INFINITY && replica.completed() > refused
    }
}

/// What a question that brought no answer says of a replica; `None` if it was not put, for want of sockets or ports here.
/// Who has taken the connection and says too much, or nothing that is HTTP, is there.
fn observed(e: &Error) -> Option<Observation> {
    match e.etype() {
        ErrorType::InternalError => None,
        ErrorType::Custom(TOO_LARGE) | ErrorType::InvalidHTTPHeader => Some(Observation::Failed(FenceReason::Status)),
        _ => Some(Observation::Failed(FenceReason::Connect)),
    }
}

#[async_trait]
impl HealthCheck for ReadinessProbe {
    async fn check(&self, target: &Backend) -> Result<()> {
        let Some(replica) = self.0.fleet.replica(replica_of(target)) else {
            return Error::e_explain(ErrorType::InternalError, "a backend without a replica");
        };
        self.begin(&replica);
        if replica.is_healthy() { Ok(()) } else { Error::e_explain(ErrorType::ConnectError, "not ready") }
    }

    /// One: hysteresis is applied before the crate sees a state.
    fn health_threshold(&self, _success: bool) -> usize {
        1
    }
}
