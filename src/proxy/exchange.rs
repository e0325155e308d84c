//! A request whose body was read, and its answer: attempt after attempt at the replicas of the ranking.
//!
//! Such a request is whole before an engine is chosen, so nothing has to go both ways at a time: it is written, and then
//! the answer is read, in one task. pingora-proxy's own way to an engine is for bodies that are still on their way: two
//! halves and two queues between them, which cost as much as all the rest of a short request. Those bodies, and
//! WebSockets, go that way. The hooks are the same ones, in the same order.
//!
//! **Architecture invariant:** what may be said to whom at which moment is not decided here, but in the hooks.

use super::context::Context;
use super::presence::leaves;
use super::{Proxy, framing, headers, identity, relay, retry};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::FutureExt;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{Method, StatusCode, Version};
use pingora_core::connectors::TransportConnector;
use pingora_core::protocols::Stream;
use pingora_core::protocols::http::HttpTask;
use pingora_core::protocols::http::v1::client::{HttpSession as Engine, http_req_header_to_wire};
use pingora_core::upstreams::peer::{HttpPeer, Peer};
use pingora_error::{Error, ErrorType, Result};
use pingora_http::ResponseHeader;
use pingora_proxy::Session;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

/// A body that goes with its head in one piece. A longer one fills segments by itself.
const SHORT: usize = 32 << 10;
/// What is sent to a client in one go, if it is there in one go.
const TOGETHER: usize = 4;

impl Proxy {
    /// `proxy_upstream_filter`: the request goes to an engine, and its answer to the client. Whether it was one that goes
    /// this way.
    pub(super) async fn exchange(&self, session: &mut Session, ctx: &mut Context) -> Result<bool> {
        if ctx.body.held().is_none() || headers::wants_websocket(session.req_header()) {
            return Ok(false);
        }
        loop {
            match self.attempt(session, ctx).await {
                Ok(()) => return Ok(true),
                Err(e) if e.retry() => {}
                Err(e) => return Err(e),
            }
        }
    }

    async fn attempt(&self, session: &mut Session, ctx: &mut Context) -> Result<()> {
        let peer = self.choose_peer(session, ctx).await?;
        let (stream, reused) = match self.engines.get_stream(&*peer).await {
            Ok(connected) => connected,
            Err(mut e) => {
                e.as_up();
                return Err(self.on_connect_failed(session, ctx, e).into_up());
            }
        };
        ctx.body_sent = Some(0);
        let answered = self.ask((stream, reused), &peer, session, ctx).await;
        answered.map_err(|e| self.on_attempt_failed(session, ctx, e, reused))
    }

    fn keep(&self, stream: Stream, peer: &HttpPeer) {
        self.engines.release_stream(stream, peer.reuse_hash(), peer.options.idle_timeout);
    }

    /// One attempt on a connection.
    async fn ask(
        &self,
        (mut stream, reused): (Stream, bool),
        peer: &HttpPeer,
        session: &mut Session,
        ctx: &mut Context,
    ) -> Result<()> {
        identity::leads_to_its_engine(reused, ctx)?;
        let mut request = self.request_of(session, ctx)?;
        let patience = peer.options.write_timeout.unwrap_or(Duration::MAX);
        let sent = tokio::select! {
            biased;
            sent = timeout(patience, request.send(&mut stream)) => sent,
            left = leaves(session) => return Err(left),
        };
        ctx.body_sent = Some(request.sent());
        let unsent = match sent {
            Ok(Ok(())) => None,
            Ok(Err(e)) => Some(Error::because(ErrorType::WriteError, "while writing a request", e).into_up()),
            Err(_) => Some(Error::new(ErrorType::WriteTimedout).into_up()),
        };
        if request.sent() == 0 && let Some(unsent) = unsent {
            return Err(unsent);
        }
        let is_whole = unsent.is_none();
        let mut engine = Engine::new(stream);
        engine.read_timeout = peer.options.read_timeout;
        let answered = self.answer(&mut engine, unsent, session, ctx).await;
        if answered.is_ok() && is_whole {
            engine.respect_keepalive();
            if let Some(stream) = engine.reuse().await {
                self.keep(stream, peer);
            }
        }
        answered
    }

    /// What the engine of this attempt is sent.
    fn request_of(&self, session: &Session, ctx: &Context) -> Result<Outgoing> {
        let mut head = session.req_header().clone();
        head.set_version(Version::HTTP_11);
        headers::drop_hop_by_hop_of_request(&mut head).map_err(Error::into_down)?;
        self.address_request(&mut head, ctx)?;
        let Some(wire) = http_req_header_to_wire(&head) else {
            return Error::e_explain(ErrorType::InvalidHTTPHeader, "a target that cannot be sent").map_err(Error::into_down);
        };
        let body = ctx.body.held().cloned().unwrap_or_default();
        // of what must not be sent twice it is to be known whether the head alone failed
        let is_together = retry::is_repeatable(session.req_header(), ctx);
        Ok(Outgoing::new(wire, body, is_together))
    }

    /// Passes the answer on. `unsent`: why not all of the request could be written; then the engine may have answered
    /// before it had read everything.
    async fn answer(
        &self,
        engine: &mut Engine,
        mut unsent: Option<Box<Error>>,
        session: &mut Session,
        ctx: &mut Context,
    ) -> Result<()> {
        loop {
            let first = tokio::select! {
                biased;
                task = engine.read_response_task() => task,
                left = leaves(session) => return Err(left),
            };
            let first = first.unwrap_or_else(|e| HttpTask::Failed(unsent.take().unwrap_or(e).into_up()));
            let mut tasks = Vec::with_capacity(TOGETHER);
            let mut next = Some(first);
            while let Some(task) = next {
                let is_last = task.is_end() || matches!(task, HttpTask::Failed(_));
                tasks.push(self.pass(task, session, ctx)?);
                if is_last || tasks.len() == TOGETHER {
                    break;
                }
                next = at_hand(engine).await;
            }
            if session.write_response_tasks(tasks).await? {
                break;
            }
        }
        session.as_mut().finish_body().await?;
        Ok(())
    }

    /// What the client gets of what the engine says.
    fn pass(&self, task: HttpTask, session: &mut Session, ctx: &mut Context) -> Result<HttpTask> {
        match task {
            HttpTask::Header(mut head, end) => {
                framing::settle(&mut head)?;
                self.on_upstream_head(session, &head, ctx)?;
                if head.status == StatusCode::SWITCHING_PROTOCOLS {
                    let why = "it switches to another protocol, and was not asked to";
                    return Err(Error::explain(ErrorType::InvalidHTTPHeader, why).into_up());
                }
                frame(session, &mut head, end)?;
                relay::on_head(session, &mut head, ctx)?;
                Ok(HttpTask::Header(head, end))
            }
            HttpTask::Body(mut piece, end) => {
                self.on_piece(piece.as_ref(), end, ctx)?;
                self.hide(&mut piece, end, ctx);
                Ok(HttpTask::Body(piece, end))
            }
            other => Ok(other),
        }
    }
}

/// A request on its way to an engine.
struct Outgoing {
    head: BytesMut,
    body: Bytes,
    whole: usize,
    is_together: bool,
}

impl Outgoing {
    fn new(mut head: BytesMut, mut body: Bytes, is_together: bool) -> Self {
        let whole = body.len();
        if is_together && whole <= SHORT {
            head.put(std::mem::take(&mut body));
        }
        Outgoing { head, body, whole, is_together }
    }

    /// Writes it; what was written is not there any more.
    async fn send(&mut self, stream: &mut Stream) -> std::io::Result<()> {
        if self.is_together {
            stream.write_all_buf(&mut (&mut self.head).chain(&mut self.body)).await?;
        } else {
            stream.write_all_buf(&mut self.head).await?;
            stream.flush().await?;
            stream.write_all_buf(&mut self.body).await?;
        }
        stream.flush().await
    }

    /// How much of the body was written.
    fn sent(&self) -> usize {
        let left = self.body.len() + self.head.len();
        self.whole.saturating_sub(left)
    }
}

/// What the engine says next, if that has come.
async fn at_hand(engine: &mut Engine) -> Option<HttpTask> {
    let next = tokio::task::unconstrained(engine.read_response_task());
    next.now_or_never().map(|task| task.unwrap_or_else(|e| HttpTask::Failed(e.into_up())))
}

/// An answer that ends with its connection goes on in chunks, so that the client's connection need not end with it.
fn frame(session: &Session, head: &mut ResponseHeader, end: bool) -> Result<()> {
    let no_body = session.req_header().method == Method::HEAD || matches!(head.status.as_u16(), 204 | 304);
    let is_framed = head.headers.contains_key(TRANSFER_ENCODING) || head.headers.contains_key(CONTENT_LENGTH);
    if no_body || end || is_framed || head.status.is_informational() {
        return Ok(());
    }
    head.set_version(Version::HTTP_11);
    head.insert_header(TRANSFER_ENCODING, "chunked")
}

pub(super) type Engines = TransportConnector;
