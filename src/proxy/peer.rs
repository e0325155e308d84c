//! `upstream_peer`: the next replica of the ranking is reserved.

use super::context::{Attempt, Context, Route};
use super::headers::wants_websocket;
use super::presence::{leaves, still_there};
use super::queue::Stay;
use super::request::refuse;
use super::{Phases, Proxy, upgrade};
use crate::api::errors::ErrorKind;
use crate::fleet::claim::ClaimGuard;
use crate::fleet::gate::Standing;
use crate::fleet::landing::Landing;
use crate::fleet::replica::Replica;
use crate::fleet::reservation::Reservation;
use crate::fleet::router::{Asking, Next, Placed, Unplaced};
use crate::policy::flight::Flight;
use crate::policy::queue::{Line, Shed};
use crate::policy::retry::{Verdict, next_place};
use crate::policy::select::{Decision, Ranked};
use crate::telemetry::metrics::InflightGuard;
use pingora_core::protocols::TcpKeepalive;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_error::Result;
use pingora_proxy::Session;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Groups of connections that are used once.
static FRESH: AtomicU64 = AtomicU64::new(1);

/// A replica's share, a claim on what it reads, and the count of those who have one: of none who still wait for it.
type Choice = (Reservation, ClaimGuard, InflightGuard);

impl Proxy {
    /// `upstream_peer`: whom Pingora connects to.
    pub(super) async fn choose_peer(&self, session: &mut Session, ctx: &mut Context) -> Result<Box<HttpPeer>> {
        let goal = self.choose(session, ctx).await?;
        let mut peer = goal.peer(&ctx.terms.settings.phases);
        if wants_websocket(session.req_header()) {
            upgrade::offer(&mut peer.options);
            peer.group_key = FRESH.fetch_add(1, Relaxed);
        }
        Ok(Box::new(peer))
    }

    /// Chooses and reserves the replica of the next attempt.
    pub(super) async fn choose(&self, session: &mut Session, ctx: &mut Context) -> Result<Goal> {
        // what streams through comes again from its beginning
        ctx.streamed = 0;
        let (reservation, claim, placed) = if ctx.route.is_some() {
            still_there(session).await?;
            self.next_choice(session, ctx).await?
        } else {
            self.first_choice(session, ctx).await?
        };
        let fresh = ctx.route.as_ref().is_some_and(|r| r.verdict == Verdict::Again);
        let replica = reservation.replica().clone();
        ctx.rank_field.write(&mut ctx.body, replica.spec.role.rank);
        ctx.choice.belief = claim.belief().tokens();
        ctx.trace_attempt(replica.id.index());
        ctx.attempt = Some(Attempt { reservation, claim, began: Instant::now(), _placed: placed });
        match replica.address() {
            Some(address) => Ok(Goal { replica, address, fresh }),
            None => refuse(ctx, ErrorKind::NoReplica),
        }
    }

    /// Places a request; one that follows another may be kept back, and is placed anew when that fails.
    async fn first_choice(&self, session: &mut Session, ctx: &mut Context) -> Result<Choice> {
        let chain = ctx.chain();
        let mut patience = Patience::new(self.router.fleet().params().flight.max_hold_ms);
        let mut standing = Standing::New;
        loop {
            let placed = self.place(session, ctx, &chain, &patience, standing).await?;
            let (reservation, counted) = (placed.reservation, self.metrics.placing());
            ctx.route = Some(Route {
                decision: placed.decision,
                position: 0,
                attempts: 1,
                renewed: false,
                verdict: Verdict::Next,
            });
            self.keep_decision(session.req_header(), ctx);
            let (leader, at_most) = match placed.next {
                Next::Go(claim) => return Ok((reservation, claim, counted)),
                Next::Wait(leader, at_most) => (leader, at_most),
            };
            patience.begin();
            let began = Instant::now();
            let ended = self.keep_back(session, leader.landed(at_most)).await?;
            ctx.trace_wait("hold", began);
            if ended != Some(Landing::Failed) && reservation.replica().is_healthy() {
                let claim = self.router.claim(reservation.replica().id, ctx.prompt.to_place(&chain));
                return Ok((reservation, claim, counted));
            }
            standing = reservation.into_permit().map_or(Standing::New, Standing::Inside);
        }
    }

    /// Places a request, after a while in the queue if there is no room.
    async fn place(
        &self,
        session: &mut Session,
        ctx: &mut Context,
        chain: &Arc<[u64]>,
        patience: &Patience,
        mut standing: Standing,
    ) -> Result<Placed> {
        let mut turn = Some(Standing::New);
        let line = self.router.gate().map(|_| Self::line(session, ctx));
        let (mut stay, mut guest) = (Self::stay(ctx), Stay::without_end());
        loop {
            let started = Instant::now();
            let line = line.unwrap_or(Line { priority: ctx.priority, session: 0 });
            let asking = Asking { line, standing, turn };
            let placed = self.router.place_as(ctx.prompt.to_place(chain), patience.left_ms(), asking);
            match placed {
                Ok(placed) => {
                    self.metrics.decided(&placed.decision, !chain.is_empty(), started.elapsed());
                    ctx.trace_choice(started, &placed.decision);
                    return Ok(placed);
                }
                Err(Unplaced::Nowhere) => return refuse(ctx, ErrorKind::NoReplica),
                Err(Unplaced::QueueFull) => return self.turn_away(ctx, Shed::QueueFull),
                Err(Unplaced::Waits(waiting)) => {
                    standing = self.wait_for_room(session, ctx, waiting, &mut stay).await?;
                    turn = None;
                }
                Err(Unplaced::Guest(waiting)) => {
                    turn = Some(self.wait_for_room(session, ctx, waiting, &mut guest).await?);
                    standing = Standing::Returning;
                }
            }
        }
    }

    /// Waits for a leader's end while the client stays; `None` when that took too long.
    async fn keep_back(
        &self,
        session: &mut Session,
        landed: impl Future<Output = Option<Landing>>,
    ) -> Result<Option<Landing>> {
        self.metrics.flight(Flight::Held);
        let ended = tokio::select! {
            ended = landed => Ok(ended),
            left = leaves(session) => Err(left),
        };
        self.metrics.flight(match ended {
            Ok(Some(Landing::Read)) => Flight::Released,
            Ok(Some(Landing::Failed)) => Flight::LeaderFailed,
            Ok(None) => Flight::TimedOut,
            Err(_) => Flight::ClientLeft,
        });
        ended
    }

    /// Walks the ranking that was made for the first attempt.
    async fn next_choice(&self, session: &mut Session, ctx: &mut Context) -> Result<Choice> {
        self.ask_again(session, ctx).await?;
        let failed = ctx.route.as_mut().and_then(|route| {
            let failed = route.decision.ranked.at(route.position)?.id;
            match route.verdict {
                Verdict::Again => route.renewed = true,
                _ => {
                    route.position += 1;
                    self.pass_barred(&mut route.decision, route.position);
                    self.prefer_other_nodes(&mut route.decision, route.position);
                    route.attempts += 1;
                }
            }
            Some(failed)
        });
        let permit = match ctx.asking.kept_room() {
            Some(permit) => Some(permit),
            None => self.room_again(session, ctx).await?,
        };
        let chain = ctx.chain();
        let next = ctx.route.as_ref().and_then(|route| route.decision.ranked.at(route.position));
        let next = next.and_then(|next| self.router.take(*next, ctx.prompt.to_place(&chain)));
        let Some((reservation, claim)) = next else {
            return refuse(ctx, ErrorKind::NoReplica);
        };
        let (reservation, counted) = (reservation.within(permit), self.metrics.placing());
        let failed = failed.and_then(|failed| self.router.fleet().replica(failed));
        let left = failed.filter(|from| from.id != reservation.replica().id);
        if let (Some(from), Some(failure)) = (left, ctx.failure) {
            self.metrics.failed_over(from.name(), reservation.replica().name(), failure);
        }
        Ok((reservation, claim, counted))
    }

    /// Takes out of the ranking, from `position` on, whom nothing may bypass: drained or gone since it was made, or not what
    /// it must be.
    fn pass_barred(&self, decision: &mut Decision, position: usize) {
        let replicas = self.router.fleet().replicas();
        let is_barred = |id| replicas.at(id).is_none_or(|r| r.is_barred());
        let mut place = 0;
        decision.ranked.retain(|ranked| {
            place += 1;
            place <= position || !is_barred(ranked.id)
        });
    }

    /// Brings the replica that is to be tried next to `position` of the ranking, the others keeping their order.
    fn prefer_other_nodes(&self, decision: &mut Decision, position: usize) {
        // the ranking may be old: those that are fenced by now go last, before them who has all that a trial allows
        let replicas = self.router.fleet().replicas();
        let tier = |r: &Ranked| replicas.at(r.id).map_or(2, |r| r.tier());
        let (end, group) = (decision.ranked.len(), decision.preferred.max(position));
        for places in [position..group.min(end), position..end] {
            if decision.ranked.get(position).is_some_and(|r| tier(r) > 0) {
                decision.ranked[places].sort_by_key(tier);
            }
        }
        let next = next_place(&replicas.nodes(decision), position, decision.preferred);
        if let Some(next) = next {
            decision.ranked[position..=next].rotate_right(1);
        }
    }
}

/// How long a request may still be kept back, all its waits together.
struct Patience {
    whole_ms: f64,
    since: Option<Instant>,
}

impl Patience {
    fn new(whole_ms: f64) -> Self {
        Patience { whole_ms, since: None }
    }

    fn begin(&mut self) {
        self.since.get_or_insert_with(Instant::now);
    }

    fn left_ms(&self) -> f64 {
        self.whole_ms - self.since.map_or(0.0, |since| since.elapsed().as_secs_f64() * 1000.0)
    }
}

/// Where an attempt goes.
pub(super) struct Goal {
    pub(super) replica: Arc<Replica>,
    pub(super) address: SocketAddr,
    /// Whether it needs a connection that was not used before.
    pub(super) fresh: bool,
}

impl Goal {
    /// As Pingora has it.
    pub(super) fn peer(&self, phases: &Phases) -> HttpPeer {
        let mut peer = self.replica.peer(self.address);
        // connections of another group are not taken from the pool; nobody will ask for this one again
        peer.group_key = if self.fresh { FRESH.fetch_add(1, Relaxed) } else { self.replica.group() };
        let options = &mut peer.options;
        options.connection_timeout = Some(phases.connect);
        options.total_connection_timeout = Some(phases.connect);
        options.read_timeout = Some(phases.silence);
        // while a body is being written nothing is read: an engine that takes no more of it must not keep it for ever
        options.write_timeout = Some(phases.first_byte);
        options.idle_timeout = Some(phases.pool_idle);
        options.tcp_keepalive = Some(keepalive(phases.tcp_keepalive));
        peer
    }
}

/// Probes after `idle`, three of them, ten seconds apart.
pub fn keepalive(idle: Duration) -> TcpKeepalive {
    TcpKeepalive {
        idle,
        interval: Duration::from_secs(10),
        count: 3,
        #[cfg(target_os = "linux")]
        user_timeout: Duration::ZERO,
    }
}
