//! What ramjet answers itself: its health, and its errors.

use super::body::{INVALID_CHUNK, linger};
use super::context::Context;
use super::explain;
use super::identity::UNIDENTIFIED;
use super::retry::has_answered;
use crate::api::errors::{Dialect, ErrorKind, METHODS};
use crate::fleet::{Fleet, FleetHealth};
use crate::policy::retry::Failure;
use bytes::Bytes;
use http::Method;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use pingora_error::{Error, ErrorSource, ErrorType, Result};
use pingora_http::ResponseHeader;
use pingora_proxy::{FailToProxy, Session};
use std::fmt::Write;

/// `GET /health`: the fleet in one word and each replica by its ordinal, never by name.
pub(super) async fn health(session: &mut Session, fleet: &Fleet, draining: bool, ctx: &Context) -> Result<()> {
    let word = health_word(fleet.health(), draining);
    let status = if matches!(word, "ok" | "degraded") { 200 } else { 503 };
    let mut head = ResponseHeader::build(status, Some(4))?;
    head.insert_header(CACHE_CONTROL, "no-store")?;
    ctx.permission.apply(&mut head)?;
    answer(session, head, health_body(fleet, word)).await
}

/// One model or all of them.
pub(super) async fn models(session: &mut Session, body: String, ctx: &Context) -> Result<()> {
    let mut head = ResponseHeader::build(200, Some(8))?;
    head.insert_header("x-ramjet-request-id", &ctx.id)?;
    ctx.permission.apply(&mut head)?;
    answer(session, head, body).await
}

/// A browser's question whether it may ask.
pub(super) async fn preflight(session: &mut Session, ctx: &Context) -> Result<()> {
    let head = ctx.permission.preflight(session.req_header())?;
    session.write_response_header(Box::new(head), true).await?;
    Ok(())
}

fn health_word(health: FleetHealth, draining: bool) -> &'static str {
    match health {
        _ if draining => "draining",
        FleetHealth::Ok => "ok",
        FleetHealth::Degraded => "degraded",
        FleetHealth::Unhealthy => "unhealthy",
    }
}

fn health_body(fleet: &Fleet, word: &str) -> String {
    let mut out = format!(r#"{{"status":"{word}","replicas":["#);
    for (n, replica) in fleet.replicas().iter().enumerate() {
        let state = replica.state();
        let fence = state.fence().map_or_else(|| "null".to_owned(), |reason| format!("\"{}\"", reason.label()));
        let state = state.label();
        let comma = if n > 0 { "," } else { "" };
        // writing to a String cannot fail
        let _infallible = write!(
            out,
            r#"{comma}{{"replica":{},"state":"{state}","fence":{fence},"inflight":{},"load":{}}}"#,
            replica.id,
            replica.inflight(),
            replica.load()
        );
    }
    out.push(']');
    if let Some(group) = fleet.sharing().group() {
        let word = if group.connected { "connected" } else { "alone" };
        let _infallible = write!(out, r#","cluster":"{word}""#);
    }
    out.push('}');
    out
}

/// `fail_to_proxy`: tells the client, if it is there and nothing was sent yet.
pub(super) async fn failure(session: &mut Session, e: &Error, ctx: &Context) -> FailToProxy {
    let kind = kind_of(e, ctx);
    let status = kind.map_or(0, ErrorKind::status);
    if let Some(kind) = kind
        && !has_answered(session)
        && let Err(unsent) = error(session, kind, ctx).await
    {
        log::debug!("request {}: the error could not be sent: {unsent}", ctx.id);
    }
    if matches!(kind, Some(ErrorKind::BodyTooLarge | ErrorKind::Unauthorized | ErrorKind::Overloaded)) {
        linger(session).await;
    }
    FailToProxy { error_code: status, can_reuse_downstream: false }
}

/// What the client is told; `None` if nothing, as it is not there.
pub(super) fn kind_of(e: &Error, ctx: &Context) -> Option<ErrorKind> {
    if ctx.own_error.is_some() {
        return ctx.own_error;
    }
    match (e.esource(), e.etype()) {
        (
            ErrorSource::Downstream,
            ErrorType::InvalidHTTPHeader | ErrorType::Custom(INVALID_CHUNK) | ErrorType::HTTPStatus(_),
        ) => Some(ErrorKind::BadRequest),
        (ErrorSource::Downstream, ErrorType::ReadTimedout) => Some(ErrorKind::BodyTimeout),
        (ErrorSource::Downstream, _) => None,
        (ErrorSource::Upstream, ErrorType::ReadTimedout | ErrorType::WriteTimedout) => Some(ErrorKind::UpstreamTimeout),
        (ErrorSource::Upstream, ErrorType::InvalidHTTPHeader) => Some(ErrorKind::UpstreamUnreadable),
        (ErrorSource::Upstream, ErrorType::Custom(UNIDENTIFIED)) => Some(ErrorKind::NoReplica),
        (ErrorSource::Upstream, _) if ctx.failure == Some(Failure::NoSocket) => Some(ErrorKind::Overloaded),
        (ErrorSource::Upstream, _) if ctx.failure.is_some_and(|f| f.is_connect()) => Some(ErrorKind::ConnectFailed),
        (ErrorSource::Upstream, _) => Some(ErrorKind::UpstreamLost),
        _ => Some(ErrorKind::Internal),
    }
}

async fn error(session: &mut Session, kind: ErrorKind, ctx: &Context) -> Result<()> {
    let mut head = ResponseHeader::build(kind.status(), Some(8))?;
    head.insert_header("x-ramjet-error", kind.code())?;
    head.insert_header("x-ramjet-request-id", &ctx.id)?;
    if kind == ErrorKind::Unauthorized {
        head.insert_header(WWW_AUTHENTICATE, "Bearer realm=\"ramjet\"")?;
    }
    if kind == ErrorKind::MethodNotAllowed {
        head.insert_header(ALLOW, METHODS)?;
    }
    if kind == ErrorKind::Overloaded {
        head.insert_header(RETRY_AFTER, ctx.retry_after.to_string())?;
    }
    if let Some(told) = explain::header(session, ctx) {
        head.insert_header(explain::TOLD, told)?;
    }
    ctx.permission.apply(&mut head)?;
    session.set_keepalive(None);
    let dialect = Dialect::of(session.req_header().uri.path());
    answer(session, head, kind.body_with(dialect, &ctx.hint)).await
}

async fn answer(session: &mut Session, mut head: ResponseHeader, body: String) -> Result<()> {
    head.insert_header(CONTENT_TYPE, "application/json")?;
    head.insert_header(CONTENT_LENGTH, body.len())?;
    let is_head = session.req_header().method == Method::HEAD;
    session.write_response_header(Box::new(head), is_head).await?;
    if !is_head {
        session.write_response_body(Some(Bytes::from(body)), true).await?;
    }
    Ok(())
}
