//! A request whose body was read, and its answer: attempt after attempt at the replicas of the ranking.
//!
//! Such a request is whole before an engine is chosen, so nothing has to go both ways at a time: it is written, and then
//! the answer is read, by one task. pingora-proxy's own way to an engine is for bodies that are still on their way, with
//! two tasks and a queue each way between them (bench/README.md says what that costs). Those bodies, WebSockets and what
//! has no body go there. What is asked on either way is the same, in the same order.
//!
//! **Architecture invariant:** nothing is decided here: whether a failed attempt is repeated, `retry.rs` says, and what
//! the client is told, `respond.rs`.

use super::answer::Answer;
use super::context::Context;
use super::line::{self, Line};
use super::peer::Goal;
use super::pool::{Destination, Pool};
use super::presence::leaves;
use super::{Phases, Proxy, framing, identity, relay, retry};
use crate::fleet::transport::transport;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{Method, StatusCode, Version};
use pingora_core::connectors::TransportConnector;
use pingora_core::protocols::http::HttpTask;
use pingora_error::{Error, ErrorType, Result};
use pingora_http::ResponseHeader;
use pingora_proxy::Session;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

/// A body that is copied behind its head. A longer one goes from where it is, in the same call.
const SHORT: usize = 4 << 10;
/// How many pieces of an answer are sent to a client in one go, if they are there in one go, and how large they are
/// together: Pingora copies several, and one by itself it does not.
const TOGETHER: usize = 4;
const MUCH: usize = 16 << 10;

impl Proxy {
    /// `proxy_upstream_filter`: the request goes to an engine, and its answer to the client. Whether it was one that goes
    /// this way.
    pub(super) async fn exchange(&self, session: &mut Session, ctx: &mut Context) -> Result<bool> {
        if ctx.body.held().is_none() {
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
        let goal = self.choose(session, ctx).await?;
        let request = match self.request_of(session, ctx) {
            Ok(request) => request,
            Err(e) => return Err(self.on_attempt_failed(session, ctx, e, false)),
        };
        let destination = Destination::of(&goal.replica, goal.address);
        let kept = if goal.fresh { None } else { self.engines.pool.take(&destination) };
        let reused = kept.is_some();
        let line = match kept {
            Some(line) => Ok(line),
            None => self.engines.connect(&goal, &ctx.terms.settings.phases).await,
        };
        let line = match line {
            Ok(line) => line,
            Err(mut e) => {
                e.as_up();
                return Err(self.on_connect_failed(session, ctx, e).into_up());
            }
        };
        ctx.body_sent = Some(0);
        match self.ask((line, reused), request, session, ctx).await {
            Ok(line) => {
                if let Some(line) = line {
                    self.engines.pool.keep(destination, line, ctx.terms.settings.phases.pool_idle);
                }
                Ok(())
            }
            Err(e) => Err(self.on_attempt_failed(session, ctx, e, reused)),
        }
    }

    /// One attempt on a connection, which is returned if it can be used again.
    async fn ask(
        &self,
        (mut line, reused): (Line, bool),
        request: Outgoing,
        session: &mut Session,
        ctx: &mut Context,
    ) -> Result<Option<Line>> {
        identity::leads_to_its_engine(reused, ctx)?;
        let unsent = self.send(request, &mut line, session, ctx).await?;
        let is_whole = unsent.is_none();
        let mut answer = Answer::on(line, silence(ctx));
        self.relay(&mut answer, unsent, session, ctx).await?;
        Ok(answer.into_line().filter(|_| is_whole))
    }

    /// Writes the request. Why not all of it could be written, where the engine may have answered nevertheless.
    async fn send(
        &self,
        mut request: Outgoing,
        line: &mut Line,
        session: &mut Session,
        ctx: &mut Context,
    ) -> Result<Option<Box<Error>>> {
        // while it is written nothing is read: an engine that takes no more of it must not keep it for ever
        let patience = ctx.terms.settings.phases.first_byte;
        let sent = tokio::select! {
            biased;
            sent = request.send(line, patience) => sent,
            left = leaves(session) => return Err(left),
        };
        ctx.body_sent = Some(request.sent());
        match sent {
            Ok(()) => Ok(None),
            // it has had its time to answer, too
            Err(e) if request.has_head_left() || *e.etype() == ErrorType::WriteTimedout => Err(e),
            Err(e) => Ok(Some(e)),
        }
    }

    /// What the engine of this attempt is sent.
    fn request_of(&self, session: &Session, ctx: &Context) -> Result<Outgoing> {
        let head = self.head_for(session.req_header(), ctx)?;
        let body = ctx.body.held().cloned().unwrap_or_default();
        // of what must not be sent twice it is to be known whether the head alone failed
        let is_together = retry::is_repeatable(session.req_header(), ctx);
        Ok(Outgoing::new(head, body, is_together))
    }

    /// Passes the answer on. `unsent`: why not all of the request could be written; then the engine may have answered
    /// before it had read everything.
    async fn relay(
        &self,
        answer: &mut Answer<Line>,
        mut unsent: Option<Box<Error>>,
        session: &mut Session,
        ctx: &mut Context,
    ) -> Result<()> {
        let mut before = None;
        loop {
            let first = match before.take() {
                Some(task) => task,
                None => {
                    let said = tokio::select! {
                        biased;
                        said = answer.next() => said,
                        left = leaves(session) => return Err(left),
                    };
                    self.pass(failed(said.map_err(|e| unsent.take().unwrap_or(e))), session, ctx)?
                }
            };
            let mut tasks = Vec::with_capacity(TOGETHER);
            let mut size = size_of(&first);
            tasks.push(first);
            while tasks.len() < TOGETHER && size < MUCH && tasks.last().is_some_and(goes_on) {
                let Some(said) = answer.soon() else { break };
                // what came before an error is sent
                let task = self.pass(failed(said), session, ctx).unwrap_or_else(HttpTask::Failed);
                size += size_of(&task);
                if size > MUCH {
                    before = Some(task);
                    break;
                }
                tasks.push(task);
            }
            if give(session, tasks, ctx.terms.settings.phases.client_write).await? {
                return Ok(());
            }
        }
    }

    /// What the client gets of what the engine says.
    fn pass(&self, task: HttpTask, session: &mut Session, ctx: &mut Context) -> Result<HttpTask> {
        match task {
            HttpTask::Header(mut head, end) => {
                if head.status == StatusCode::SWITCHING_PROTOCOLS {
                    let why = "it switches to another protocol, and was not asked to";
                    return Err(Error::explain(ErrorType::InvalidHTTPHeader, why).into_up());
                }
                framing::settle(&mut head)?;
                self.on_upstream_head(session, &head, ctx)?;
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
    /// How long the body was.
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

    /// Writes it; what was written is not there any more. `patience`: how long the engine may take nothing.
    async fn send(&mut self, line: &mut Line, patience: Duration) -> Result<()> {
        if self.is_together {
            write(line, &mut (&mut self.head).chain(&mut self.body), patience).await
        } else {
            write(line, &mut self.head, patience).await?;
            write(line, &mut self.body, patience).await
        }
    }

    /// How much of the body was written.
    fn sent(&self) -> usize {
        self.whole.saturating_sub(self.left())
    }

    /// Whether not even the head was written to its end.
    fn has_head_left(&self) -> bool {
        self.left() > self.whole
    }

    fn left(&self) -> usize {
        self.head.len() + self.body.len()
    }
}

/// Writes all of `bytes`, with `patience` for each step.
async fn write(line: &mut Line, bytes: &mut impl Buf, patience: Duration) -> Result<()> {
    let failed = |e| Error::because(ErrorType::WriteError, "while writing a request", e).into_up();
    let late = || Error::explain(ErrorType::WriteTimedout, "the engine takes nothing").into_up();
    while bytes.has_remaining() {
        match timeout(patience, line.write_buf(bytes)).await {
            Ok(Ok(0)) => return Err(failed(std::io::ErrorKind::WriteZero.into())),
            Ok(written) => drop(written.map_err(failed)?),
            Err(_) => return Err(late()),
        }
    }
    timeout(patience, line.flush()).await.map_err(|_| late())?.map_err(failed)
}

/// Sends pieces of an answer; whether that was its end. Pingora has a limit of time for pieces of a body alone, which this
/// is longer than.
async fn give(session: &mut Session, mut tasks: Vec<HttpTask>, patience: Duration) -> Result<bool> {
    let cut = match tasks.pop() {
        Some(HttpTask::Failed(e)) => Some(e),
        last => {
            tasks.extend(last);
            None
        }
    };
    let giving = async {
        let is_end = !tasks.is_empty() && session.write_response_tasks(tasks).await?;
        if is_end {
            session.as_mut().finish_body().await?;
        }
        Ok(is_end)
    };
    let given = match timeout(patience.saturating_mul(2), giving).await {
        Ok(given) => given.map_err(|e: Box<Error>| e.into_down()),
        Err(_) => Err(Error::explain(ErrorType::WriteTimedout, "the client does not read").into_down()),
    };
    // an engine that failed has failed whether or not the client is there
    cut.map_or(given, Err)
}

/// The bytes of a piece.
fn size_of(task: &HttpTask) -> usize {
    match task {
        HttpTask::Body(Some(piece), _) => piece.len(),
        _ => 0,
    }
}

/// Whether something comes after it.
fn goes_on(task: &HttpTask) -> bool {
    !task.is_end() && !matches!(task, HttpTask::Failed(_))
}

/// What the engine says, or the end of that.
fn failed(said: Result<HttpTask>) -> HttpTask {
    said.unwrap_or_else(|e| HttpTask::Failed(e.into_up()))
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

/// How long the engine may say nothing. An answer that is not streamed comes at once or not at all.
fn silence(ctx: &Context) -> Duration {
    let phases = &ctx.terms.settings.phases;
    if ctx.endpoint.is_inference() && !ctx.prompt.streams { phases.first_byte } else { phases.silence }
}

/// The ways to engines.
pub(super) struct Engines {
    tls: TransportConnector,
    pool: Pool,
}

impl Default for Engines {
    fn default() -> Self {
        Engines { tls: transport(), pool: Pool::default() }
    }
}

impl Engines {
    /// A new connection. Where there are no files for one, those that nobody uses make room.
    async fn connect(&self, goal: &Goal, phases: &Phases) -> Result<Line> {
        match line::connect(goal, phases, &self.tls).await {
            Err(e) if line::wants_files(&e) && self.pool.clear() => line::connect(goal, phases, &self.tls).await,
            connected => connected,
        }
    }
}
