//! The rules under test behind one interface, from naive to all-knowing.
//!
//! A rule sees what a router sees: a request's fingerprints and size, and later what its answer told. What an engine
//! really holds and has queued is in [`Knowledge`] too, for the oracle and for rules that get such events from engines;
//! each rule's header says what it looks at.
//!
//! To add a rule backed by the library: a policy of [`library`] or an adapter like it, one line in [`ALL`], one in [`build`].

mod books;
mod dynamo;
mod hashing;
mod library;
mod lmetric;
mod oracle;
mod sglang;
mod simple;

use std::sync::Arc;

use ramjet::policy::hint::Hint;
use ramjet::prefix::fingerprint::Ends;
use ramjet::types::{Basis, FlightMode, PolicyKind};

use crate::engine::schedule::{Engine, Job};

/// A request as a router sees it.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    /// names it in callbacks
    pub(crate) id: u64,
    /// the session it says it belongs to, if it says so
    pub(crate) session: Option<u64>,
    /// what the router makes of that, or else of the text of its first turn
    pub(crate) hint: Option<Hint>,
    /// fingerprints of its prompt, in the router's blocks
    pub(crate) chain: Arc<[u64]>,
    /// where the turns of its prompt end
    pub(crate) ends: Ends,
    /// size of its prompt
    pub(crate) bytes: u64,
}

/// What there is to know at the time of a choice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Knowledge<'a> {
    /// which replicas answer probes; any rule may know
    pub(crate) healthy: &'a [bool],
    /// the engines as they are; not for rules that claim to be routers
    pub(crate) engines: &'a [Engine],
    /// the request as the engine will see it, its answer's length included; likewise
    pub(crate) job: &'a Job,
    /// when each engine's current step ends; likewise
    pub(crate) busy_until: &'a [f64],
}

/// Where a request goes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Decision {
    /// index of a replica
    pub(crate) replica: usize,
    /// tokens the rule believes are cached there, if it has a belief: measured against the truth
    pub(crate) cached: Option<usize>,
    /// time to first token it expects, ms, if it expects one: likewise
    pub(crate) ttft_ms: Option<f64>,
}

impl Decision {
    /// A choice without a belief.
    fn blind(replica: usize) -> Self {
        Self { replica, cached: None, ttft_ms: None }
    }

    /// A choice that counts on so many cached tokens.
    fn counting_on(replica: usize, cached: usize) -> Self {
        Self { cached: Some(cached), ..Self::blind(replica) }
    }
}

/// What a first token tells a router.
#[derive(Debug, Clone, Copy)]
pub(crate) struct First {
    pub(crate) replica: usize,
    /// as usage reports them at the end of a stream; known here because the simulator keeps one event for both
    pub(crate) prompt_tokens: usize,
    pub(crate) cached_tokens: usize,
}

/// What the end of an answer tells a router.
#[derive(Debug, Clone, Copy)]
pub(crate) struct End {
    pub(crate) replica: usize,
    pub(crate) prompt_tokens: usize,
    pub(crate) cached_tokens: usize,
    pub(crate) output_tokens: usize,
}

/// A routing rule. Time is virtual, in ms.
pub(crate) trait Rule {
    /// How long the router keeps a request back before it asks again, ms; 0 places it now.
    fn hold_ms(&mut self, _request: &Request, _know: &Knowledge, _now: f64) -> f64 {
        0.0
    }
    /// Chooses for a request and books it there.
    fn place(&mut self, request: &Request, know: &Knowledge, now: f64) -> Decision;
    /// The first token has come.
    fn first_token(&mut self, _request: &Request, _seen: &First, _now: f64) {}
    /// The answer is complete.
    fn end(&mut self, request: &Request, seen: &End, now: f64);
    /// The attempt is lost, before or after its first token.
    fn failed(&mut self, request: &Request, replica: usize, now: f64);
    /// A probe has found that the replica was started afresh.
    fn restarted(&mut self, _replica: usize, _now: f64) {}
    /// What is still booked; 0 when nothing runs.
    fn booked(&self) -> u64;
}

/// Every rule by name, in the order of the tables.
pub(crate) const ALL: [&str; 18] = [
    "round_robin",
    "least_loaded",
    "load",
    "chwbl",
    "sglang",
    "dynamo",
    "lmetric",
    "absolute",
    "marginal",
    "relative",
    "cost",
    "hintless",
    "untold",
    "hold",
    "sticky",
    "oracle_ttft",
    "oracle_whole",
    "oracle_future",
];

/// The rules whose best one is the reference.
pub(crate) fn is_oracle(name: &str) -> bool {
    name.starts_with("oracle")
}

/// The router's own rule and its variants; the others are published ones.
pub(crate) fn is_own(name: &str) -> bool {
    ["cost", "hintless", "untold", "hold"].contains(&name)
}

/// The rule of this name for engines whose caches hold so many tokens.
pub(crate) fn build(name: &str, caches: &[usize]) -> Option<Box<dyn Rule>> {
    use library::Library;
    use oracle::Aim;
    let replicas = caches.len();
    let library = |kind, basis| Library::new(replicas, kind, basis, FlightMode::Colocate).told(caches);
    let cost = || library(PolicyKind::Cost, Basis::Relative);
    let oracle = |aim| Box::new(oracle::Oracle::new(replicas, aim));
    Some(match name {
        "round_robin" => Box::new(simple::RoundRobin::default()),
        "least_loaded" => Box::new(simple::LeastLoaded::new(replicas)),
        "load" => Box::new(library(PolicyKind::Load, Basis::Relative)),
        "sticky" => Box::new(simple::Sticky::new(replicas)),
        "chwbl" => Box::new(hashing::BoundedHash::new(replicas)),
        "sglang" => Box::new(sglang::Sglang::new(replicas)),
        "dynamo" => Box::new(dynamo::Dynamo::new(replicas)),
        "lmetric" => Box::new(lmetric::LMetric::new(replicas)),
        "absolute" => Box::new(library(PolicyKind::Affinity, Basis::Absolute)),
        "marginal" => Box::new(library(PolicyKind::Affinity, Basis::Marginal)),
        "relative" => Box::new(library(PolicyKind::Affinity, Basis::Relative)),
        "cost" => Box::new(cost()),
        "hintless" => Box::new(cost().without_hints()),
        "untold" => Box::new(Library::new(replicas, PolicyKind::Cost, Basis::Relative, FlightMode::Colocate)),
        "hold" => Box::new(Library::new(replicas, PolicyKind::Cost, Basis::Relative, FlightMode::Hold).told(caches)),
        "oracle_ttft" => oracle(Aim::Ttft),
        "oracle_whole" => oracle(Aim::Whole),
        "oracle_future" => oracle(Aim::Future),
        _ => return None,
    })
}
