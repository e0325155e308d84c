//! The generation probe: a completion of one token, for engines that answer everything else and generate nothing.
//!
//! Each replica is probed on a clock of its own, spread by chance, so that a slow answer delays nobody and an idle fleet is
//! not asked all at once. A probe is not a request of a client: it is not routed, reserves nothing, teaches no rates, and
//! its prompt is too short to take a place in a prefix cache. Where a request fails by the engine's fault it comes at once:
//! an engine that fails everything is known after two of them, whoever comes back to it.
//!
//! What an answer means: a choice is a token; 429 and 503 say busy, not broken; a success without any choice, or with an
//! error, is a failure; another 4xx, 501 or a success that is no completion at all says that the engine does not offer
//! the endpoint, whereupon the other one is tried, and says nothing of its health, except that a fence is lifted:
//! nothing else could. A time-out does not count after a request was lately completed there, nor while the requests that
//! are there explain it: long prompts, or an engine that serves one request at a time and is at it.

use super::exchange::{Question, exchange};
use super::tend::tend;
use crate::api::answer::{Made, made};
use crate::fleet::Fleet;
use crate::fleet::replica::Replica;
use crate::fleet::transport::connector;
use crate::policy::health::{FenceReason, Observation, Thresholds};
use crate::policy::progress::Limits;
use crate::types::ProbeMode;
use async_trait::async_trait;
use http::Method;
use pingora_core::connectors::http::Connector;
use pingora_core::server::ShutdownWatch;
use pingora_core::services::background::BackgroundService;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The first probe comes early: an engine may be frozen when ramjet starts.
const FIRST_WITHIN: Duration = Duration::from_secs(1);
/// A replica that is fenced for generating nothing is asked so many times as often.
const EAGER: u32 = 4;
/// Where requests fail, or the last probe has, the next one comes so soon.
const ALERT: Duration = Duration::from_secs(1);

/// The endpoints that are tried, in this order.
const ENDPOINTS: [(&str, &str); 2] =
    [("/v1/completions", r#""prompt":"1""#), ("/v1/chat/completions", r#""messages":[{"role":"user","content":"1"}]"#)];

/// When and how it is probed.
#[derive(Clone, Copy, Debug)]
pub struct GenerationSpec {
    /// Which replicas.
    pub mode: ProbeMode,
    /// Between two probes of a replica.
    pub interval: Duration,
    /// From the first byte of the connection to the last of the answer.
    pub timeout: Duration,
    /// A time-out does not count for so long after a request was completed.
    pub suppress_after_success: Duration,
    /// How many in a row turn the state.
    pub thresholds: Thresholds,
    /// How long a silence the prompts at a replica explain.
    pub limits: Limits,
}

/// What a probe brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// A completion.
    Generated,
    /// It is busy.
    Busy,
    /// The engine does not understand the question.
    NotOffered,
    /// An answer with an error of the engine's own.
    Failed,
    /// No connection, or it broke.
    Unreached,
    /// Nothing in time.
    TimedOut,
}

/// Asks replicas for one token.
pub(super) struct Asker(Connector);

impl Asker {
    pub(super) fn new() -> Self {
        Asker(connector())
    }

    /// Asks within `timeout`, all endpoints together.
    pub(super) async fn ask(&self, replica: &Replica, timeout: Duration) -> Outcome {
        tokio::time::timeout(timeout, self.try_endpoints(replica)).await.unwrap_or(Outcome::TimedOut)
    }

    async fn try_endpoints(&self, replica: &Replica) -> Outcome {
        for (path, prompt) in ENDPOINTS {
            let question = Question { method: Method::POST, path, body: body(replica, prompt) };
            let outcome = match exchange(&self.0, replica, question).await {
                Ok((200..=299, body)) => generated(&body),
                Ok((status, _)) => outcome(status),
                Err(_) => Outcome::Unreached,
            };
            if outcome != Outcome::NotOffered {
                return outcome;
            }
        }
        Outcome::NotOffered
    }
}

/// What an answer under a success status says.
fn generated(body: &[u8]) -> Outcome {
    match made(body) {
        Made::Something => Outcome::Generated,
        Made::Nothing => Outcome::Failed,
        Made::Untold => Outcome::NotOffered,
    }
}

fn outcome(status: u16) -> Outcome {
    match status {
        429 | 503 => Outcome::Busy,
        500 | 502 | 504..=599 => Outcome::Failed,
        _ => Outcome::NotOffered,
    }
}

/// A completion of one token by the replica's own model, on its own rank.
fn body(replica: &Replica, prompt: &str) -> String {
    let listed = replica.catalogue();
    let model = replica.spec.models.first().map(String::as_str);
    let model = model.or_else(|| listed.as_ref().and_then(|known| known.names().next()));
    // engines that serve one model take a request without its name
    let model = model.map(|name| format!(r#""model":{},"#, quoted(name))).unwrap_or_default();
    let rank = replica.spec.role.rank.map(|rank| format!(r#","routed_dp_rank":{rank}"#)).unwrap_or_default();
    format!(r#"{{{model}{prompt},"max_tokens":1,"temperature":0,"stream":false{rank}}}"#)
}

/// A text as a JSON string.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Probes the replicas of a fleet, each on its own clock.
pub struct GenerationProbe {
    fleet: Arc<Fleet>,
    spec: GenerationSpec,
    asker: Asker,
    chance: RandomState,
}

impl GenerationProbe {
    /// A probe of the replicas of `fleet`.
    pub fn new(fleet: Arc<Fleet>, spec: GenerationSpec) -> Self {
        GenerationProbe { fleet, spec, asker: Asker::new(), chance: RandomState::new() }
    }

    /// Probes one replica for ever.
    async fn watch(&self, replica: &Replica) {
        let mut pause = self.first_pause(replica);
        for turn in 1.. {
            self.until_due(replica, pause).await;
            let mut has_failed = false;
            if (replica.is_barren() || self.covers(replica)) && !self.fleet.is_retired() {
                replica.probes.begin_generation(self.fleet.clock().now());
                let outcome = self.asker.ask(replica, self.spec.timeout).await;
                has_failed = outcome == Outcome::Failed;
                self.take_in(replica, outcome);
            }
            let is_barren = replica.is_barren();
            let interval = if is_barren { self.spec.interval / EAGER } else { self.spec.interval };
            pause = match has_failed && !is_barren {
                true => ALERT.min(interval),
                false => interval.mul_f64(0.9 + 0.2 * self.draw(replica, turn)),
            };
        }
    }

    /// Waits for `pause`, or less where requests fail meanwhile.
    async fn until_due(&self, replica: &Replica, pause: Duration) {
        let began = Instant::now();
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = replica.fails() => tokio::time::sleep(ALERT.min(pause).saturating_sub(began.elapsed())).await,
        }
    }

    /// Until the first probe: early, unless the process before this one has asked.
    fn first_pause(&self, replica: &Replica) -> Duration {
        let since = replica.probes.since_generation(self.fleet.clock().now());
        let early = self.spec.interval.min(FIRST_WITHIN).mul_f64(self.draw(replica, 0));
        let rest = self.spec.interval.as_secs_f64() - since / 1000.0;
        early.max(Duration::try_from_secs_f64(rest).unwrap_or_default())
    }

    fn covers(&self, replica: &Replica) -> bool {
        match self.spec.mode {
            ProbeMode::All => true,
            ProbeMode::Ranks => replica.spec.role.rank.is_some(),
            ProbeMode::Off => false,
        }
    }

    /// From 0 to 1.
    fn draw(&self, replica: &Replica, turn: u64) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "chance needs no more than 53 bits")]
        let drawn = self.chance.hash_one((replica.name_hash, turn)) as f64;
        drawn / 2f64.powi(64)
    }

    fn take_in(&self, replica: &Replica, outcome: Outcome) {
        let now = self.fleet.clock().now();
        let failed = Observation::Failed(FenceReason::Generation);
        let seen = match outcome {
            Outcome::Generated => Observation::Ready,
            Outcome::NotOffered if replica.is_barren() => Observation::Ready,
            // that it cannot be reached is what readiness probes are for
            Outcome::Busy | Outcome::NotOffered | Outcome::Unreached => return,
            Outcome::TimedOut if self.is_explained(replica, now) => return replica.suppress(),
            Outcome::TimedOut | Outcome::Failed => failed,
        };
        let mut thresholds = self.spec.thresholds;
        if outcome == Outcome::Failed {
            // an error comes at once, so one more can be waited for
            thresholds.failures = thresholds.failures.max(2);
        }
        replica.observe_generation(seen, thresholds, now);
    }

    /// Whether a time-out tells nothing.
    fn is_explained(&self, replica: &Replica, now: f64) -> bool {
        if replica.is_barren() {
            return false;
        }
        let [lately, waited] =
            [self.spec.suppress_after_success, self.spec.timeout].map(|span| span.as_secs_f64() * 1000.0);
        let is_explained = || replica.signs(now).is_some_and(|signs| signs.explain(waited, self.spec.limits));
        now - replica.completed() < lately || is_explained()
    }
}

#[async_trait]
impl BackgroundService for GenerationProbe {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        tokio::select! {
            () = tend(&self.fleet, |replica| async move { self.watch(&replica).await }) => {}
            _ = shutdown.changed() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_is_not_broken_and_a_refusal_is_no_news() {
        for (status, wanted) in [
            (429, Outcome::Busy),
            (503, Outcome::Busy),
            (500, Outcome::Failed),
            (502, Outcome::Failed),
            (400, Outcome::NotOffered),
            (401, Outcome::NotOffered),
            (404, Outcome::NotOffered),
            (405, Outcome::NotOffered),
            (422, Outcome::NotOffered),
            // what a server says that does not know the method or has no such function (RFC 9110, section 15.6.2)
            (501, Outcome::NotOffered),
            (301, Outcome::NotOffered),
        ] {
            assert_eq!(outcome(status), wanted, "{status}");
        }
    }

    #[test]
    fn a_models_name_is_a_string_of_json() {
        let name = "a\"b\\c\nd/größe";
        assert_eq!(serde_json::from_str::<String>(&quoted(name)).unwrap(), name);
    }
}
