//! `request_filter`: ramjet's own endpoints, then the body, then what it says.

use super::body::{BodyFailure, ReadLimits, read};
use super::context::{Context, PromptFacts};
use super::prepare::prepare;
use super::{Proxy, body, respond};
use crate::api::endpoint::Endpoint;
use crate::api::errors::ErrorKind;
use pingora_error::{Error, ErrorType, Result};
use pingora_proxy::Session;

/// Seconds that an idle client connection is kept; Pingora's default is for ever.
const CLIENT_KEEPALIVE: u64 = 75;

impl Proxy {
    /// Whether the request was answered here.
    pub(super) async fn on_request(&self, session: &mut Session, ctx: &mut Context) -> Result<bool> {
        if session.get_keepalive().is_some() {
            session.set_keepalive(Some(CLIENT_KEEPALIVE));
        }
        let head = session.req_header();
        ctx.endpoint = Endpoint::of(head.method.as_str(), head.uri.path());
        if ctx.endpoint == Endpoint::Health {
            respond::health(session, self.router.fleet()).await?;
            return Ok(true);
        }
        if ctx.endpoint.is_inference() {
            self.read_prompt(session, ctx).await?;
        }
        Ok(false)
    }

    async fn read_prompt(&self, session: &mut Session, ctx: &mut Context) -> Result<()> {
        let limits = ReadLimits { bytes: self.settings.max_body, silence: self.settings.phases.client_body };
        ctx.body = match read(session, limits).await {
            Ok(body) => body,
            Err(BodyFailure::Broken(e)) => return Err(e),
            Err(failure) => {
                let kind = match failure {
                    BodyFailure::TooLarge => ErrorKind::BodyTooLarge,
                    _ => ErrorKind::BodyTimeout,
                };
                // what is left of the body is not worth reading
                session.set_keepalive(None);
                return refuse(ctx, kind);
            }
        };
        self.understand(ctx)
    }

    fn understand(&self, ctx: &mut Context) -> Result<()> {
        let Some(bytes) = ctx.body.held() else { return Ok(()) };
        let prepared = prepare(ctx.endpoint, bytes, &self.settings.shape, self.settings.strip_max_tokens_over);
        ctx.prompt = PromptFacts { chain: prepared.chain, model: prepared.model, body_bytes: bytes.len() as u64 };
        if let Some(edited) = prepared.edited {
            ctx.body = body::Body::Held(edited);
        }
        match &ctx.prompt.model {
            Some(model) if !self.router.fleet().serves(model) => refuse(ctx, ErrorKind::ModelNotFound),
            _ => Ok(()),
        }
    }
}

/// Ends the request with an error of ramjet's own.
pub(super) fn refuse<T>(ctx: &mut Context, kind: ErrorKind) -> Result<T> {
    ctx.own_error = Some(kind);
    Error::e_explain(ErrorType::HTTPStatus(kind.status()), kind.code())
}
