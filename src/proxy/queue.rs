//! Requests for which there is no room yet: where they wait, for how long, and how they are turned away.
//!
//! Who waits is told of room by `fleet::gate`, and looks at the fleet again every two seconds besides: replicas come and
//! go, and what would have done a while ago may not any longer. It keeps its place meanwhile.

use super::Proxy;
use super::context::Context;
use super::presence::leaves;
use super::request::refuse;
use crate::api::errors::ErrorKind;
use crate::fleet::gate::{Entry, Permit, Standing, Waiting, Wanted};
use crate::policy::queue::{Line, Shed, class};
use crate::policy::retry::Verdict;
use crate::telemetry::metrics::QueueGuard;
use crate::types::Priority;
use http::HeaderName;
use pingora_error::Result;
use pingora_http::RequestHeader;
use pingora_proxy::Session;
use std::sync::Arc;
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64;

/// How often who waits looks at the fleet again. What becomes healthy is used after this at the latest; a thousand that
/// wait make some hundreds of choices a second.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Which requests go first when not all can.
#[derive(Clone, Debug)]
pub struct PriorityRules {
    /// The header in which a request names its class.
    pub header: Option<HeaderName>,
    /// What clients may name; the first is what a request has that names nothing.
    pub allow: Arc<[Priority]>,
}

impl PriorityRules {
    /// The class of a request, whose word for it goes no further.
    pub(super) fn take(&self, request: &mut RequestHeader) -> Priority {
        let asked = self.header.as_ref().and_then(|name| request.remove_header(name));
        class(asked.as_ref().and_then(|value| value.to_str().ok()), &self.allow)
    }
}

/// One stay in the queue, further looks at the fleet included.
pub(super) struct Stay {
    at_most: Duration,
    began: Option<(Instant, QueueGuard)>,
}

impl Stay {
    /// A guest's, who is let in when it is its turn.
    pub(super) fn without_end() -> Self {
        Stay { at_most: Duration::MAX, began: None }
    }
}

impl Proxy {
    /// A stay that has not begun.
    pub(super) fn stay(ctx: &Context) -> Stay {
        Stay { at_most: ctx.terms.settings.queue_wait, began: None }
    }

    /// Where a request waits: with its session, or else with what its client asks for besides.
    pub(super) fn line(session: &Session, ctx: &Context) -> Line {
        let named = ctx.prompt.session().map(|hint| hint.key);
        let by_key = || ctx.key.as_ref().map(|key| xxh3_64(key.as_bytes()));
        let by_connection = || session.client_addr().map(|addr| xxh3_64(addr.to_string().as_bytes()));
        let session = named.or_else(by_key).or_else(by_connection).unwrap_or_default();
        Line { priority: ctx.priority, session }
    }

    /// Waits until there is room, or time for another look at the fleet.
    pub(super) async fn wait_for_room(
        &self,
        session: &mut Session,
        ctx: &mut Context,
        mut waiting: Waiting,
        stay: &mut Stay,
    ) -> Result<Standing> {
        let (since, _) = stay.began.get_or_insert_with(|| (Instant::now(), self.metrics.queued(ctx.priority)));
        let since = *since;
        let left = stay.at_most.saturating_sub(since.elapsed());
        let room = tokio::select! {
            room = waiting.room(left.min(LOOK_AGAIN)) => room,
            left = leaves(session) => return Err(left),
        };
        ctx.trace_wait("queue", since);
        match room {
            Some(permit) => Ok(Standing::Inside(permit)),
            None if left > LOOK_AGAIN => Ok(Standing::Waiting(waiting)),
            None => {
                drop(waiting);
                self.turn_away(ctx, Shed::WaitedTooLong)
            }
        }
    }

    /// Room for the next attempt, at the best replica that is left of the ranking and has any: that one is brought to
    /// the place where the attempt goes.
    pub(super) async fn room_again(&self, session: &mut Session, ctx: &mut Context) -> Result<Option<Permit>> {
        let Some(gate) = self.router.gate() else { return Ok(None) };
        let (line, mut stay, mut standing) = (Self::line(session, ctx), Self::stay(ctx), Standing::Returning);
        loop {
            let left = self.left_to_try(ctx);
            if left.is_empty() {
                return refuse(ctx, ErrorKind::NoReplica);
            }
            match gate.enter(left.clone(), line, standing) {
                Entry::In(place, permit) => {
                    if let Some(route) = &mut ctx.route {
                        let at = route.decision.ranked.iter().position(|r| r.id == left[place]);
                        if let Some(passed) = at.and_then(|at| route.decision.ranked.get_mut(route.position..=at)) {
                            passed.rotate_right(1);
                        }
                    }
                    return Ok(Some(permit));
                }
                Entry::Wait(waiting) => standing = self.wait_for_room(session, ctx, waiting, &mut stay).await?,
                Entry::Full => return self.turn_away(ctx, Shed::QueueFull),
            }
        }
    }

    /// The healthy ones among what is left of the ranking; if none is, all that nothing bars.
    fn left_to_try(&self, ctx: &Context) -> Wanted {
        let Some(route) = &ctx.route else { return Wanted::new() };
        let left = route.decision.ranked.get(route.position..).unwrap_or_default();
        // a fresh connection is for the replica that was chosen: another one would be one more that sees the request
        let stays = route.verdict == Verdict::Again;
        let left = &left[..if stays { left.len().min(1) } else { left.len() }];
        let replicas = self.router.fleet().replicas();
        let is_healthy = |id| replicas.at(id).is_some_and(|r| r.is_healthy());
        let is_barred = |id| replicas.at(id).is_none_or(|r| r.is_barred());
        let left: Wanted = left.iter().map(|r| r.id).filter(|id| !is_barred(*id)).collect();
        let healthy: Wanted = left.iter().copied().filter(|id| is_healthy(*id)).collect();
        if healthy.is_empty() { left } else { healthy }
    }

    /// Tells the client to come again later.
    pub(super) fn turn_away<T>(&self, ctx: &mut Context, why: Shed) -> Result<T> {
        self.metrics.shed(why);
        ctx.retry_after = self.router.gate().map_or(1, |gate| gate.retry_after());
        refuse(ctx, ErrorKind::Overloaded)
    }
}
