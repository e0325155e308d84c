//! Models as clients see them: the list over all replicas, the names that stand for others, and what to say of one that
//! is not there.

use super::body::Body;
use super::context::Context;
use super::headers::{model_in_query, renamed};
use super::request::refuse;
use super::{ClientRules, Proxy, respond};
use crate::api::catalogue::{self, merged};
use crate::api::endpoint::Endpoint;
use crate::api::errors::ErrorKind;
use crate::api::model::Form;
use bytes::Bytes;
use http::Method;
use http::header::CONTENT_TYPE;
use pingora_error::Result;
use pingora_http::RequestHeader;
use pingora_proxy::Session;

/// What stands before a model's name in the path that shows one.
const ONE: &str = "/v1/models/";
/// How many names an error lists.
const MOST_NAMES: usize = 20;

impl Proxy {
    /// Answers for models if any engine has listed some; else an engine is asked.
    pub(super) async fn show_models(&self, session: &mut Session, ctx: &Context) -> Result<bool> {
        let head = session.req_header();
        let is_one = head.uri.path().starts_with(ONE) && matches!(head.method, Method::GET | Method::HEAD);
        if ctx.endpoint != Endpoint::Models && !is_one {
            return Ok(false);
        }
        if let Some(search) = &ctx.terms.rules.search {
            search.hear_silent().await;
        }
        let one = session.req_header().uri.path().strip_prefix(ONE);
        let shown = self.models(&ctx.terms.rules);
        let body = match one {
            Some(name) => shown.into_iter().find(|(id, _)| id == name).map(|(_, entry)| entry),
            None => Some(shown).filter(|shown| !shown.is_empty()).map(|shown| catalogue::list(&shown)),
        };
        match body {
            Some(body) => respond::models(session, body, ctx).await.map(|()| true),
            None => Ok(false),
        }
    }

    fn models(&self, rules: &ClientRules) -> Vec<(String, String)> {
        let catalogues = self.router.fleet().catalogues();
        merged(catalogues.iter().map(|c| &**c), &rules.aliases, rules.context_margin)
    }

    /// Whether the body of a request that is not understood otherwise is read for the model that it names.
    pub(super) fn must_know_model(&self, head: &RequestHeader, rules: &ClientRules) -> bool {
        let matters = !rules.aliases.is_empty() || self.router.fleet().models_differ();
        matters && head.method == Method::POST && form_of(head).is_some()
    }

    /// Puts the model in place of its alias.
    pub(super) fn resolve_alias(head: &RequestHeader, ctx: &mut Context) {
        if let Some(resolved) = ctx.body.held().and_then(|body| Self::without_alias(head, body, ctx)) {
            ctx.body = Body::Held(resolved);
        }
    }

    /// The body with the model in place of its alias, if it names one.
    pub(super) fn without_alias(head: &RequestHeader, body: &Bytes, ctx: &Context) -> Option<Bytes> {
        if ctx.terms.rules.aliases.is_empty() {
            return None;
        }
        // an engine takes what it understands for JSON whatever the client calls it
        let form = form_of(head).or(ctx.endpoint.is_read().then_some(Form::Json))?;
        ctx.terms.rules.aliases.resolve(form, body)
    }

    /// The model that a request for another protocol names in its query, put there in place of its alias.
    pub(super) fn model_of_upgrade(head: &mut RequestHeader, rules: &ClientRules) -> Result<Option<String>> {
        let Some(named) = head.uri.query().and_then(model_in_query) else { return Ok(None) };
        let Some((_, model)) = rules.aliases.iter().find(|(alias, _)| *alias == named) else {
            return Ok(Some(named));
        };
        if let Some(target) = renamed(head.raw_path(), model) {
            head.set_raw_path(&target)?;
        }
        Ok(Some(model.to_owned()))
    }

    /// Refuses a request for a model that no replica serves, after another look at the engines.
    pub(super) async fn find_model(&self, ctx: &mut Context) -> Result<()> {
        let fleet = self.router.fleet();
        let Some(model) = ctx.prompt.model.as_deref().filter(|model| !fleet.serves(model)) else { return Ok(()) };
        if let Some(search) = &ctx.terms.rules.search {
            search.run().await;
            if fleet.serves(model) {
                return Ok(());
            }
        }
        ctx.hint = self.instead_of(model, &ctx.terms.rules);
        refuse(ctx, ErrorKind::ModelNotFound)
    }

    /// What to say of a model that no replica serves.
    fn instead_of(&self, model: &str, rules: &ClientRules) -> String {
        let names = self.router.fleet().model_names();
        let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
        names.extend(rules.aliases.iter().map(|(alias, _)| alias));
        let more = names.len().saturating_sub(MOST_NAMES);
        names.truncate(MOST_NAMES);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let model: String = model.chars().take(100).collect();
        format!("There is no `{model}`, but there are: {}{more}.", names.join(", "))
    }
}

/// How the body of a request is written; by default JSON, as engines take it.
pub(super) fn form_of(head: &RequestHeader) -> Option<Form<'_>> {
    match head.headers.get(CONTENT_TYPE) {
        Some(kind) => Form::of(kind.to_str().ok()?),
        None => Some(Form::Json),
    }
}
