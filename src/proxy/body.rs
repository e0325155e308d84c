//! The whole request body, read before a replica is chosen. It is held until its answer begins, and goes to the engine from
//! there, as often as it takes (`exchange.rs`). What Pingora has read it with is let go of as early as can be.

use super::course::read_at_most;
use super::memory::Room;
use bytes::{BufMut, Bytes, BytesMut};
use http::Version;
use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, TRANSFER_ENCODING};
use pingora_core::apps::HttpPersistentSettings;
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::v1::server::HttpSession as SessionV1;
use pingora_error::{Error, ErrorType, Result};
use pingora_http::RequestHeader;
use pingora_proxy::Session;
use std::time::Duration;
use tokio::time::Instant;

/// What one read of a body gives. Pingora's buffer of 64 KiB keeps as much memory as was ever read at one time, and
/// who gets that memory after it keeps it as well: mostly the buffer that an answer is read with, for as long as that takes,
/// though the events of a stream need little of it.
const PIECE: usize = 16 << 10;
/// What one read gives of a body so long that more of them would be felt: all that Pingora's buffer takes.
const LARGE_PIECE: usize = 64 << 10;
const LARGE: usize = 256 << 10;
/// A body with which it keeps so much that a fresh session is worth its while, where the answer is a stream.
const LONG: usize = 4 << 10;
/// What is reserved ahead for a body whose length is only claimed.
const RESERVE_AT_MOST: usize = 1 << 20;
/// What is reserved besides, so that a member can be added without a copy.
const ROOM: usize = 64;

/// Pingora's name for the error of a chunked body that is none.
pub(super) const INVALID_CHUNK: &str = "InvalidChunk";
/// The bytes a second that a client must reach, on average, once its time is over. Apache's usual figure
/// (mod_reqtimeout, `body=…,MinRate=500`); a client that keeps a connection busy with a byte now and then is below.
const SLOWEST: f64 = 500.0;
/// How long a refused client may go on sending.
pub(super) const LINGER: Duration = Duration::from_secs(2);

/// A request's body on its way to the engine.
#[derive(Default)]
pub(super) enum Body {
    /// There is none, or it streams through unread.
    #[default]
    Untouched,
    /// Read in full and held until it can no longer be replayed.
    Held(Bytes),
    /// Given up: the answer has begun.
    Released,
}

/// Why a body could not be read.
#[derive(Debug)]
pub(super) enum BodyFailure {
    /// Larger than the limit.
    TooLarge,
    /// The bodies that are held take all the memory that they may.
    NoRoom,
    /// The client went silent, or sends too slowly.
    Timeout,
    /// The client left, or sent something that is no body.
    Broken(Box<Error>),
}

impl From<Box<Error>> for BodyFailure {
    fn from(e: Box<Error>) -> Self {
        BodyFailure::Broken(e.into_down())
    }
}

/// Limits on reading.
#[derive(Clone, Copy)]
pub(super) struct ReadLimits {
    pub(super) bytes: usize,
    /// The longest silence, and how long a client may take that sends more slowly than [`SLOWEST`].
    pub(super) patience: Duration,
}

impl Body {
    /// The body, if it was read.
    pub(super) fn held(&self) -> Option<&Bytes> {
        match self {
            Body::Held(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Changes the body, if it was read.
    pub(super) fn edit(&mut self, change: impl FnOnce(Bytes) -> Bytes) {
        if let Body::Held(bytes) = self {
            *bytes = change(std::mem::take(bytes));
        }
    }

    /// Lets go of the memory: the answer has begun, so there will be no other attempt.
    pub(super) fn release(&mut self) {
        if let Body::Held(_) = self {
            *self = Body::Released;
        }
    }
}

/// Reads the whole body. An empty body stays [`Body::Untouched`].
pub(super) async fn read(
    session: &mut Session,
    limits: ReadLimits,
    room: &mut Room,
) -> std::result::Result<Body, BodyFailure> {
    if session.downstream_session.is_body_empty() {
        return Ok(Body::Untouched);
    }
    let length = content_length(session.req_header());
    if length.is_some_and(|n| n > limits.bytes) {
        return Err(BodyFailure::TooLarge);
    }
    let is_h2 = session.downstream_session.is_http2();
    if !is_h2 && expects_continue(session.req_header()) {
        // an answer before the end of the body switches keep-alive off, even an informational one
        let keep = session.get_keepalive();
        session.downstream_session.write_continue_response().await?;
        session.set_keepalive(keep);
    }
    let body = read_all(session, length, limits, room).await;
    read_at_most(usize::MAX);
    let body = body?;
    if is_h2 && body.is_empty() {
        // there may be trailers
        return Ok(Body::Untouched);
    }
    Ok(Body::Held(body))
}

async fn read_all(
    session: &mut Session,
    length: Option<usize>,
    limits: ReadLimits,
    room: &mut Room,
) -> std::result::Result<Bytes, BodyFailure> {
    let piece = if length.is_some_and(|n| n >= LARGE) { LARGE_PIECE } else { PIECE };
    let began = Instant::now();
    let mut body = BytesMut::with_capacity(length.unwrap_or(0).min(RESERVE_AT_MOST) + ROOM);
    loop {
        read_at_most(piece);
        let latest = began + limits.patience + Duration::from_secs_f64(body.len() as f64 / SLOWEST);
        let deadline = latest.min(Instant::now() + limits.patience);
        let next = tokio::time::timeout_at(deadline, session.read_request_body());
        let Some(piece) = next.await.map_err(|_| BodyFailure::Timeout)?? else {
            return Ok(body.freeze());
        };
        body.extend_from_slice(&piece);
        if body.len() > limits.bytes {
            return Err(BodyFailure::TooLarge);
        }
        if !room.grow(body.len()) {
            return Err(BodyFailure::NoRoom);
        }
    }
}

/// Lets go of what Pingora has read a long body with, where the answer will take its time.
pub(super) async fn unburden(session: &mut Session, body: &Body) -> Result<()> {
    let is_long = body.held().is_some_and(|bytes| bytes.len() > LONG);
    if is_long && session.req_header().version == Version::HTTP_11 {
        reseat(session).await?;
    }
    Ok(())
}

/// Seats an HTTP/1.1 connection whose body was read in a fresh session, with the same head but without a
/// body. Keep-alive survives, and so do bytes of a next request that were read along.
async fn reseat(session: &mut Session) -> Result<()> {
    let keep = HttpPersistentSettings::for_session(&session.downstream_session);
    let limits = (session.downstream_session.get_read_timeout(), session.downstream_session.get_write_timeout());
    let mut head = bodyless_head(session.req_header())?;
    // a session that is not to be kept would close its connection here: what its client asks for stands in the fresh head
    session.req_header_mut().remove_header(&CONNECTION);
    session.set_keepalive(Some(0));
    session.set_keepalive_reuses_remaining(None);
    let empty = Box::new(ServerSession::new_custom(Box::new(())));
    let reusable = match *std::mem::replace(&mut session.downstream_session, empty) {
        ServerSession::H1(mut old) => {
            old.set_pipelining_enabled(true);
            old.reuse().await?
        }
        _ => None,
    };
    let Some(reusable) = reusable else {
        return Error::e_explain(ErrorType::InternalError, "the connection cannot be seated anew");
    };
    let (stream, read_along) = reusable.into_parts();
    head.extend_from_slice(&read_along.unwrap_or_default());
    let mut fresh = SessionV1::new(stream);
    fresh.set_pipelined_prefix(head);
    *session.downstream_session = ServerSession::H1(fresh);
    session.downstream_session.read_request().await?;
    keep.apply_to_session(&mut session.downstream_session);
    session.downstream_session.set_read_timeout(limits.0);
    session.downstream_session.set_write_timeout(limits.1);
    Ok(())
}

fn bodyless_head(request: &RequestHeader) -> Result<BytesMut> {
    let mut request = request.clone();
    request.remove_header(&TRANSFER_ENCODING);
    request.remove_header(&EXPECT);
    request.remove_header(&CONTENT_LENGTH);
    let mut head = BytesMut::with_capacity(1024);
    head.put_slice(request.method.as_str().as_bytes());
    head.put_u8(b' ');
    head.put_slice(request.raw_path());
    head.put_slice(if request.version == Version::HTTP_10 { b" HTTP/1.0\r\n" } else { b" HTTP/1.1\r\n" });
    request.header_to_h1_wire(&mut head);
    head.put_slice(b"\r\n");
    Ok(head)
}

/// Reads and discards what a client is still sending after its request was refused, for a short while: a connection that
/// is closed with unread bytes is reset, and the client might not see the answer.
pub(super) async fn linger(session: &mut Session) {
    let drained = session.downstream_session.drain_request_body();
    // whatever comes of it, the connection is closed next
    let _given_up = tokio::time::timeout(LINGER, drained).await;
}

/// The announced length. With `Transfer-Encoding` present Pingora has taken `Content-Length` out already.
pub(super) fn content_length(request: &RequestHeader) -> Option<usize> {
    request.headers.get(CONTENT_LENGTH)?.to_str().ok()?.trim().parse().ok()
}

fn expects_continue(request: &RequestHeader) -> bool {
    request.version >= Version::HTTP_11
        && request.headers.get(EXPECT).is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}
