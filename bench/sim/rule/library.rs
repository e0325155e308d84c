//! The router itself, in virtual time: the fleet, the booking and the guards of `ramjet::fleet` on a clock that is set by
//! hand, driven as the proxy drives them for streams that report usage. Nothing of the rule is written again here, so
//! what is simulated is what runs: reservations, claims, hints, single flight, slow start.
//!
//! A replica here is its name: it has no address that anybody connects to, and probes say of it what the simulator knows.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use http::HeaderValue;
use pingora_load_balancing::discovery::Static;
use pingora_load_balancing::{Backends, LoadBalancer};
use ramjet::fleet::claim::ClaimGuard;
use ramjet::fleet::clock::{Clock, Hand};
use ramjet::fleet::gate::{Standing, Waiting as Queued};
use ramjet::fleet::landing::{Landing, Leader};
use ramjet::fleet::replica::{ReplicaSpec, Role};
use ramjet::fleet::reservation::{Reported, Reservation};
use ramjet::fleet::router::{Asking, Next, Placed, Prompt, Router, Unplaced};
use ramjet::fleet::selection::backend;
use ramjet::fleet::{Fleet, Rules};
use ramjet::policy::flight::FlightParams;
use ramjet::policy::health::{FenceReason, Observation, Thresholds};
use ramjet::policy::score::{AffinityParams, LoadParams};
use ramjet::policy::select::Params;
use ramjet::prefix::residency::Served;
use ramjet::types::{Basis, FlightMode, PolicyKind, ReplicaId};

use super::{Decision, End, First, Knowledge, Request, Rule};
use crate::num::{as_millis, size, to_float};

/// The shipped size of the index.
const INDEX_BYTES: usize = 256 << 20;
/// The simulator's probes are never wrong.
const AT_ONCE: Thresholds = Thresholds { failures: 1, successes: 1 };
/// How often somebody who is kept back looks whether his prefix is read, in ms.
const LOOK: f64 = 10.0;
/// How often somebody who waits for a turn looks at the fleet again, in ms.
const LOOK_AGAIN: f64 = 2000.0;

/// A request at its replica.
struct Booked {
    reservation: Reservation,
    claim: ClaimGuard,
}

/// A request that is placed and has not gone yet.
struct Waiting {
    placed: Decision,
    reservation: Reservation,
    next: Next,
    until: f64,
}

/// A router and its clock.
pub(super) struct Library {
    router: Router,
    hand: Hand,
    booked: HashMap<u64, Booked>,
    waiting: HashMap<u64, Waiting>,
    queued: HashMap<u64, (Queued, f64)>,
    has_hints: bool,
}

impl Library {
    /// With the shipped settings but for these.
    pub(super) fn new(replicas: usize, policy: PolicyKind, basis: Basis, mode: FlightMode) -> Self {
        let params = Params {
            policy,
            affinity: AffinityParams { basis, cap_blocks: 32, alpha: 4.0 },
            load: LoadParams { unit_bytes: 32 << 10, max_units: 8, block_bytes: 2048 },
            flight: FlightParams { mode, ..FlightParams::default() },
        };
        let rules = Rules { slow_start: Duration::from_secs(30), ..Rules::default() };
        let (clock, hand) = Clock::manual();
        let fleet = Fleet::new((0..replicas).map(spec).collect(), params, INDEX_BYTES).under(rules).on(clock);
        let fleet = Arc::new(fleet);
        let members = fleet.replicas().iter().map(|r| backend(r, ([127, 0, 0, 1], 1).into())).collect();
        let balancer =
            LoadBalancer::from_backends_with_config(Backends::new(Static::new(members)), Some(fleet.clone()));
        // a list that does not change is read at once
        let updated = balancer.update().now_or_never();
        debug_assert!(matches!(updated, Some(Ok(()))), "a static list");
        Self {
            router: Router::new(fleet, Arc::new(balancer)),
            hand,
            booked: HashMap::new(),
            waiting: HashMap::new(),
            queued: HashMap::new(),
            has_hints: true,
        }
    }

    /// The same for a fleet whose engines tell what their caches hold, as vLLM and `SGLang` do.
    pub(super) fn told(self, caches: &[usize]) -> Self {
        for (replica, tokens) in self.router.fleet().replicas().iter().zip(caches) {
            self.router.fleet().learn_capacity(replica.id, u32::try_from(*tokens).unwrap_or(u32::MAX));
        }
        self
    }

    /// The same for sessions that nothing names: neither their client nor their text.
    pub(super) fn without_hints(self) -> Self {
        Self { has_hints: false, ..self }
    }

    /// Its fleet.
    pub(super) fn fleet(&self) -> &Arc<Fleet> {
        self.router.fleet()
    }

    /// It is this late.
    pub(super) fn set(&self, now: f64) {
        self.hand.set(now);
    }

    fn see(&self, know: &Knowledge, now: f64) {
        self.hand.set(now);
        for (replica, healthy) in self.router.fleet().replicas().iter().zip(know.healthy) {
            if replica.is_healthy() != *healthy {
                let seen = if *healthy { Observation::Ready } else { Observation::Failed(FenceReason::Connect) };
                replica.observe(seen, AT_ONCE, now);
            }
        }
    }

    /// Chooses and reserves; `None` if there is nobody.
    fn choose(&mut self, request: &Request, now: f64) -> Option<Waiting> {
        let turn = match self.queued.remove(&request.id) {
            None => Standing::New,
            Some((mut queued, looked)) => match queued.try_take() {
                Some(permit) => Standing::Inside(permit),
                None if now - looked >= LOOK_AGAIN => Standing::Waiting(queued),
                None => {
                    self.queued.insert(request.id, (queued, looked));
                    return None;
                }
            },
        };
        let flight = self.router.fleet().params().flight;
        let asking = Asking { turn: Some(turn), ..Asking::default() };
        let placed = self.router.place_as(self.prompt(request), flight.max_hold_ms, asking);
        let Placed { decision, reservation, next } = match placed {
            Ok(placed) => placed,
            Err(Unplaced::Guest(queued)) => {
                self.queued.insert(request.id, (queued, now));
                return None;
            }
            Err(_) => return None,
        };
        let first = decision.ranked.first()?;
        let expects = self.router.fleet().params().policy == PolicyKind::Cost;
        let ttft_ms = expects.then_some(first.price.queue + first.price.prefill);
        let placed = Decision { ttft_ms, ..Decision::counting_on(first.id.index(), size(first.held)) };
        let until = now + if let Next::Wait(_, at_most) = &next { as_millis(*at_most) } else { 0.0 };
        Some(Waiting { placed, reservation, next, until })
    }

    fn prompt<'a>(&self, request: &'a Request) -> Prompt<'a> {
        Prompt {
            request: request.id,
            chain: &request.chain,
            ends: request.ends,
            body_bytes: request.bytes,
            prompt_bytes: request.bytes,
            model: None,
            streams: true,
            session: request.hint.filter(|_| self.has_hints),
            pinned: None,
        }
    }

    /// Whether a request that is kept back for this leader may go on, and if so, whether with what it has.
    fn is_over(leader: &Leader, until: f64, now: f64) -> Option<bool> {
        match leader.has_landed() {
            Some(Landing::Failed) => Some(false),
            Some(Landing::Read) => Some(true),
            None => (now >= until).then_some(true),
        }
    }
}

impl Rule for Library {
    fn hold_ms(&mut self, request: &Request, know: &Knowledge, now: f64) -> f64 {
        self.see(know, now);
        loop {
            let Some(waiting) = self.waiting.remove(&request.id).or_else(|| self.choose(request, now)) else {
                return if self.queued.contains_key(&request.id) { LOOK } else { 0.0 };
            };
            let over = match &waiting.next {
                Next::Go(_) => Some(true),
                Next::Wait(leader, _) => Self::is_over(leader, waiting.until, now),
            };
            // one whose leader failed is placed anew
            if over != Some(false) {
                self.waiting.insert(request.id, waiting);
                return if over.is_some() { 0.0 } else { LOOK };
            }
        }
    }

    fn place(&mut self, request: &Request, _: &Knowledge, _: f64) -> Decision {
        let Some(waiting) = self.waiting.remove(&request.id) else { return Decision::blind(0) };
        let Waiting { placed, reservation, next, .. } = waiting;
        let claim = match next {
            Next::Go(claim) => claim,
            Next::Wait(..) => self.router.claim(reservation.replica().id, self.prompt(request)),
        };
        self.booked.insert(request.id, Booked { reservation, claim });
        placed
    }

    fn first_token(&mut self, request: &Request, _: &First, now: f64) {
        self.hand.set(now);
        if let Some(booked) = self.booked.get_mut(&request.id) {
            booked.claim.confirm();
            booked.reservation.first_token();
            booked.reservation.shrink();
        }
    }

    fn end(&mut self, request: &Request, seen: &End, now: f64) {
        self.hand.set(now);
        let Some(Booked { mut reservation, mut claim }) = self.booked.remove(&request.id) else { return };
        let [prompt, cached, output] = [seen.prompt_tokens, seen.cached_tokens, seen.output_tokens].map(|n| n as u64);
        let fleet = self.router.fleet();
        fleet.models().learn(None, request.bytes, prompt, Some(output));
        claim.answered(to_float(prompt), to_float(output));
        reservation.learn(Reported { prompt, cached: Some(cached), output: Some(output) });
        let [prompt, cached, output] = [prompt, cached, output].map(to_float);
        claim.served(Served { prompt, cached, output });
    }

    fn failed(&mut self, request: &Request, _: usize, now: f64) {
        self.hand.set(now);
        let Some(booked) = self.booked.remove(&request.id) else { return };
        let (fleet, reservation) = (self.router.fleet(), &booked.reservation);
        fleet.set_back(request.ends, reservation.replica().id, reservation.is_read());
        fleet.cut_off(reservation.replica().id, true, reservation.began());
    }

    fn restarted(&mut self, replica: usize, now: f64) {
        self.hand.set(now);
        self.router.fleet().forget(ReplicaId(u16::try_from(replica).unwrap_or(u16::MAX)));
    }

    fn booked(&self) -> u64 {
        self.router.fleet().replicas().iter().map(|r| u64::from(r.load() + r.inflight())).sum()
    }
}

fn spec(n: usize) -> ReplicaSpec {
    ReplicaSpec {
        name: format!("r{n}"),
        host: "simulated".into(),
        port: 1,
        prefix: String::new(),
        authority: HeaderValue::from_static("simulated"),
        models: vec![],
        authorization: None,
        tls: None,
        role: Role::default(),
    }
}
