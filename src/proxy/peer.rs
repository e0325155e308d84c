//! `upstream_peer` and `upstream_request_filter`: the next replica of the ranking is reserved, and the request is
//! addressed to it.

use super::context::{Attempt, Context, Route};
use super::request::refuse;
use super::{Phases, Proxy, body};
use crate::api::errors::ErrorKind;
use crate::fleet::claim::ClaimGuard;
use crate::fleet::replica::Replica;
use crate::fleet::reservation::Reservation;
use crate::fleet::router::Prompt;
use crate::policy::retry::Verdict;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, EXPECT, HOST, TRANSFER_ENCODING};
use pingora_core::protocols::TcpKeepalive;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_error::{Error, ErrorType, Result};
use pingora_http::RequestHeader;
use pingora_proxy::Session;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

const REQUEST_ID: &str = "x-request-id";

impl Proxy {
    pub(super) async fn choose_peer(&self, session: &mut Session, ctx: &mut Context) -> Result<Box<HttpPeer>> {
        if ctx.body.held().is_some() && !body::is_seated(session) {
            return Error::e_explain(ErrorType::InternalError, "the body was read but would not be sent");
        }
        let reservation = match ctx.route.take() {
            None => self.first_choice(ctx)?,
            Some(route) => {
                still_there(session).await?;
                self.next_choice(ctx, route)?
            }
        };
        let fresh = ctx.route.as_ref().is_some_and(|r| r.verdict == Verdict::Again);
        let replica = reservation.replica().clone();
        let claim = ClaimGuard::new(self.router.fleet(), &ctx.chain(), replica.id);
        ctx.attempt = Some(Attempt { reservation, claim, began: Instant::now() });
        match replica.address() {
            Some(address) => Ok(Box::new(peer(address, &self.settings.phases, fresh))),
            None => refuse(ctx, ErrorKind::NoReplica),
        }
    }

    fn first_choice(&self, ctx: &mut Context) -> Result<Reservation> {
        let started = Instant::now();
        let chain = ctx.chain();
        let prompt = Prompt { chain: &chain, body_bytes: ctx.prompt.body_bytes, model: ctx.prompt.model.as_deref() };
        let Some((decision, reservation)) = self.router.choose(prompt) else {
            return refuse(ctx, ErrorKind::NoReplica);
        };
        self.metrics.decided(&decision, started.elapsed());
        ctx.route = Some(Route { decision, position: 0, attempts: 1, verdict: Verdict::Next });
        Ok(reservation)
    }

    /// Walks the ranking that was made for the first attempt.
    fn next_choice(&self, ctx: &mut Context, mut route: Route) -> Result<Reservation> {
        let failed = route.decision.ranked.get(route.position).map(|r| r.id);
        if route.verdict == Verdict::Next {
            route.position += 1;
        }
        let next = route.decision.ranked.get(route.position).copied();
        let fleet = self.router.fleet();
        let (Some(next), Some(replica)) = (next, next.and_then(|n| fleet.replica(n.id))) else {
            return refuse(ctx, ErrorKind::NoReplica);
        };
        if let (Some(from), Some(failure)) = (failed.and_then(|id| fleet.replica(id)), ctx.failure) {
            self.metrics.failed_over(from.name(), replica.name(), failure);
        }
        route.attempts += 1;
        ctx.route = Some(route);
        Ok(Reservation::new(replica.clone(), next.units))
    }
}

/// Fails when the client has left: nothing polls its connection while an attempt is being made.
async fn still_there(session: &mut Session) -> Result<()> {
    let idle = session.downstream_session.read_body_or_idle(true);
    match tokio::time::timeout(Duration::ZERO, idle).await {
        Ok(Err(e)) => Err(e.into_down()),
        _ => Ok(()),
    }
}

fn peer(address: SocketAddr, phases: &Phases, fresh: bool) -> HttpPeer {
    let mut peer = HttpPeer::new(address, false, String::new());
    // connections of another group are not taken from the pool
    peer.group_key = fresh.into();
    let options = &mut peer.options;
    options.connection_timeout = Some(phases.connect);
    options.total_connection_timeout = Some(phases.connect);
    options.read_timeout = Some(phases.silence);
    options.idle_timeout = Some(phases.pool_idle);
    options.tcp_keepalive = Some(TcpKeepalive {
        idle: phases.tcp_keepalive,
        interval: Duration::from_secs(10),
        count: 3,
        #[cfg(target_os = "linux")]
        user_timeout: Duration::ZERO,
    });
    peer
}

/// Host, path prefix, key and framing for the replica of the current attempt.
pub(super) fn address_request(request: &mut RequestHeader, ctx: &Context) -> Result<()> {
    if let Some(bytes) = ctx.body.held() {
        request.remove_header(&TRANSFER_ENCODING);
        request.remove_header(&EXPECT);
        request.insert_header(CONTENT_LENGTH, bytes.len())?;
    }
    if request.headers.get(REQUEST_ID).is_none() {
        request.insert_header(REQUEST_ID, &ctx.id)?;
    }
    match &ctx.attempt {
        Some(attempt) => address_to(request, attempt.reservation.replica()),
        None => Error::e_explain(ErrorType::InternalError, "a request without a replica"),
    }
}

fn address_to(request: &mut RequestHeader, replica: &Arc<Replica>) -> Result<()> {
    let spec = &replica.spec;
    request.insert_header(HOST, &spec.authority)?;
    if !spec.prefix.is_empty() {
        let path = [spec.prefix.as_bytes(), request.raw_path()].concat();
        request.set_raw_path(&path)?;
    }
    if let Some(key) = &spec.authorization {
        request.insert_header(AUTHORIZATION, key)?;
    }
    Ok(())
}
