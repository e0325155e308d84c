//! What one request carries from phase to phase. Guards live here and nowhere else.

use super::body::Body;
use super::cors::Permission;
use super::explain::Choice;
use super::memory::Room;
use super::rank::RankField;
use super::relay::Relay;
use super::usage::Asking;
use super::{RequestIds, Terms};
use crate::api::endpoint::Endpoint;
use crate::api::errors::ErrorKind;
use crate::fleet::claim::ClaimGuard;
use crate::fleet::members::Members;
use crate::fleet::reservation::Reservation;
use crate::fleet::router::Prompt;
use crate::policy::hint::{Hint, Source};
use crate::policy::retry::{Failure, Verdict};
use crate::policy::select::Decision;
use crate::prefix::fingerprint::Ends;
use crate::telemetry::metrics::InflightGuard;
use crate::telemetry::traces::Trace;
use crate::types::{Priority, ReplicaId};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The state of one request.
pub struct Context {
    pub(super) id: String,
    pub(super) started: Instant,
    pub(super) endpoint: Endpoint,
    pub(super) body: Body,
    /// The memory that it takes.
    pub(super) room: Option<Room>,
    /// Bytes of a body that streams through unread.
    pub(super) streamed: usize,
    /// How many bytes of a body that was read the engine of the last attempt has taken.
    pub(super) body_sent: Option<usize>,
    pub(super) rank_field: RankField,
    /// Whether usage is asked for in the client's place.
    pub(super) asking: Asking,
    pub(super) prompt: PromptFacts,
    pub(super) route: Option<Route>,
    pub(super) attempt: Option<Attempt>,
    pub(super) choice: Choice,
    pub(super) relay: Relay,
    /// The name of the client's key.
    pub(super) key: Option<Arc<str>>,
    /// Whether it goes before others when not all can.
    pub(super) priority: Priority,
    /// What the answer says to pages of other origins.
    pub(super) permission: Permission,
    /// Why ramjet answers itself, where that was decided before an error was made of it.
    pub(super) own_error: Option<ErrorKind>,
    /// What the error says besides.
    pub(super) hint: String,
    /// After how many seconds a client that is turned away may come again.
    pub(super) retry_after: u32,
    /// How the last attempt failed.
    pub(super) failure: Option<Failure>,
    /// What it tells of itself, if it is traced.
    pub(super) trace: Option<Box<Trace>>,
    /// Counts the request until the context goes.
    _inflight: InflightGuard,
    /// The settings that it began with.
    pub(super) terms: Arc<Terms>,
    /// Who was there when it came: what it knows by slot is theirs until it ends.
    _members: Arc<Members>,
}

/// What was read from the body.
#[derive(Default)]
pub(super) struct PromptFacts {
    /// The number of its request.
    pub(super) request: u64,
    pub(super) chain: Option<Arc<[u64]>>,
    /// Where its turns end.
    pub(super) ends: Ends,
    pub(super) model: Option<String>,
    /// Size of the body as it came.
    pub(super) body_bytes: u64,
    /// Canonical bytes of the prompt.
    pub(super) prompt_bytes: u64,
    /// What the client calls its session, hashed.
    pub(super) hint: Option<u64>,
    /// What names the conversation by its text, hashed.
    pub(super) anchor: Option<u64>,
    /// Whether the answer is to be streamed.
    pub(super) streams: bool,
    /// Whether one answer is asked for.
    pub(super) is_single: bool,
    /// Whether the engine is told to keep nothing.
    pub(super) is_stateless: bool,
    /// The replica that alone holds what the request names.
    pub(super) pinned: Option<ReplicaId>,
}

impl PromptFacts {
    pub(super) fn to_place<'a>(&'a self, chain: &'a Arc<[u64]>) -> Prompt<'a> {
        Prompt {
            request: self.request,
            chain,
            ends: self.ends,
            body_bytes: self.body_bytes,
            prompt_bytes: self.prompt_bytes,
            model: self.model.as_deref(),
            streams: self.streams,
            session: self.session(),
            pinned: self.pinned,
        }
    }

    /// The session of this model, as far as anything names it.
    pub(super) fn session(&self) -> Option<Hint> {
        let named = self.hint.map(|key| (key, Source::Named));
        let (key, source) = named.or(self.anchor.map(|key| (key, Source::Derived)))?;
        let model = xxh3_64_with_seed(self.model.as_deref().unwrap_or_default().as_bytes(), source as u64);
        Some(Hint { key: xxh3_64_with_seed(&key.to_le_bytes(), model), source })
    }
}

/// The ranking that attempts walk.
pub(super) struct Route {
    pub(super) decision: Decision,
    /// Where in the ranking the next attempt goes.
    pub(super) position: usize,
    pub(super) attempts: u32,
    /// Whether an attempt was repeated on a fresh connection.
    pub(super) renewed: bool,
    /// What follows the failure of the last attempt.
    pub(super) verdict: Verdict,
}

/// One attempt at one replica.
pub(super) struct Attempt {
    pub(super) reservation: Reservation,
    pub(super) claim: ClaimGuard,
    pub(super) began: Instant,
    /// Counts the request as one that has a replica.
    pub(super) _placed: InflightGuard,
}

impl Context {
    pub(super) fn new(id: String, inflight: InflightGuard, members: Arc<Members>, terms: Arc<Terms>) -> Self {
        Context {
            prompt: PromptFacts { request: number_of(&id), ..PromptFacts::default() },
            id,
            started: Instant::now(),
            endpoint: Endpoint::Other,
            body: Body::default(),
            room: None,
            streamed: 0,
            body_sent: None,
            rank_field: RankField::default(),
            asking: Asking::default(),
            route: None,
            attempt: None,
            choice: Choice::default(),
            relay: Relay::default(),
            key: None,
            priority: Priority::Interactive,
            permission: Permission::default(),
            own_error: None,
            hint: String::new(),
            retry_after: 1,
            failure: None,
            trace: None,
            _inflight: inflight,
            terms,
            _members: members,
        }
    }

    /// The fingerprints of the prompt; empty when there are none.
    pub(super) fn chain(&self) -> Arc<[u64]> {
        self.prompt.chain.clone().unwrap_or_default()
    }

    /// Whether the body asks for nothing that an engine would keep, so that a repetition costs work and no more.
    pub(super) fn is_repeatable(&self) -> bool {
        self.endpoint.is_repeatable() || (self.endpoint == Endpoint::Responses && self.prompt.is_stateless)
    }

    /// Attempts made.
    pub(super) fn attempts(&self) -> u32 {
        self.route.as_ref().map_or(0, |r| r.attempts)
    }
}

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// The number behind the digits of an id.
fn number_of(id: &str) -> u64 {
    u64::from_str_radix(id, 16).unwrap_or(0)
}

impl RequestIds {
    pub(super) fn next(&self) -> String {
        let n = self.next.fetch_add(1, Relaxed);
        let id = xxh3_64_with_seed(&n.to_le_bytes(), self.seed);
        let mut out = String::with_capacity(16);
        for byte in id.to_be_bytes() {
            for digit in [byte >> 4, byte & 15] {
                out.push(char::from(DIGITS[usize::from(digit)]));
            }
        }
        out
    }
}
