//! The prompt of OpenAI's Responses API: instructions and a list of items.
//!
//! Clients send back the items that an answer was made of, with ids and states that no engine renders: those are left
//! out. An item that only refers to a kept one is its id.

use super::super::json::{Cursor, Kind, Malformed, Str};
use super::super::request::{Message, Request};
use super::content::content;
use super::sink::{FIELD, PART, Sink};
use super::value::{Members, sort, text, value};
use super::{head, instructions, is_instruction, message, rendered};
use crate::prefix::fingerprint::{Chain, Fingerprints};

/// The role of an `input` that is a string.
const USER: Str<'_> = Str { raw: b"user", at: 0 };

/// One item of `input`.
#[derive(Default)]
pub(super) struct Item<'a> {
    pub(super) kind: Option<Str<'a>>,
    pub(super) role: Option<Str<'a>>,
    id: Option<Str<'a>>,
    content: Option<&'a [u8]>,
    /// Everything else but nulls and what is not rendered.
    rest: Members<'a>,
}

/// Whether the request continues what an engine keeps: then the beginning of its prompt is not in it.
pub fn is_hidden(request: &Request<'_>) -> bool {
    let is_stored_prompt = request.prompt.is_some_and(|p| p.starts_with(b"{"));
    request.previous_response_id.is_some() || request.own.conversation.is_some() || is_stored_prompt
}

/// The fingerprints of a Responses request whose prompt is all in it.
///
/// # Errors
/// [`Malformed`] when `input` is neither a string nor a list of objects; the caller then routes by load.
pub fn responses(request: &Request<'_>, mut chain: Chain) -> Result<Fingerprints, Malformed> {
    let chain_ref = &mut chain;
    let input = request.own.input.unwrap_or(b"[]");
    head(request, chain_ref)?;
    if request.own.instructions.is_some() {
        message(&instructions(request.own.instructions), chain_ref)?;
    }
    if Cursor::new(input).kind()? == Kind::String {
        rendered(request, chain_ref)?;
        message(&Message { role: Some(USER), content: Some(input), ..Message::default() }, chain_ref)?;
        return Ok(chain.finish());
    }
    let (mut is_leading, mut was_generated) = (true, false);
    Cursor::new(input).array(|cursor| {
        if chain_ref.is_full() {
            return cursor.skip().map(drop);
        }
        let item = Item::read(cursor)?;
        if is_leading && !item.role.is_some_and(is_instruction) {
            is_leading = false;
            rendered(request, chain_ref)?;
        }
        let is_generated = item.is_generated() || item.is("reasoning");
        if is_generated && !was_generated {
            chain_ref.begin_answer();
        }
        was_generated = is_generated;
        item.write(chain_ref)
    })?;
    if is_leading {
        rendered(request, chain_ref)?;
    }
    Ok(chain.finish())
}

impl<'a> Item<'a> {
    /// Reads the item that comes next.
    pub(super) fn read(cursor: &mut Cursor<'a>) -> Result<Self, Malformed> {
        let mut item = Item::default();
        cursor.object(|key, member| {
            let slot = match key.raw {
                b"type" => &mut item.kind,
                b"role" => &mut item.role,
                b"id" => &mut item.id,
                _ => {
                    let text = member.skip()?;
                    match key.raw {
                        _ if text == b"null" => {}
                        b"status" => {}
                        b"content" => item.content = Some(text),
                        _ => item.rest.push((key, text)),
                    }
                    return Ok(());
                }
            };
            *slot = member.clone().string().ok();
            member.skip().map(drop)
        })?;
        Ok(item)
    }

    /// Whether it is of this type.
    pub(super) fn is(&self, kind: &str) -> bool {
        self.kind.is_some_and(|k| k.is(kind))
    }

    /// Whether a model has written it: an assistant's message or a call, but not what came back from a call.
    pub(super) fn is_generated(&self) -> bool {
        match self.role {
            Some(role) => role.is("assistant"),
            None => self.kind.is_some_and(|k| k.raw.ends_with(b"_call")),
        }
    }

    /// Writes it: messages as in a chat, other items as their type and members.
    pub(super) fn write<S: Sink>(self, sink: &mut S) -> Result<(), Malformed> {
        if self.role.is_some() {
            return message(&Message { role: self.role, content: self.content, ..Message::default() }, sink);
        }
        if let Some(kind) = self.kind {
            text(kind, sink);
        }
        sink.push(PART);
        if let Some(id) = self.id.filter(|_| self.is("item_reference")) {
            text(id, sink);
        }
        if let Some(inner) = self.content {
            content(&mut Cursor::new(inner), sink, 0)?;
        }
        let mut rest = self.rest;
        sort(&mut rest);
        for (key, member) in rest {
            sink.push(PART);
            text(key, sink);
            let mut cursor = Cursor::new(member);
            match key.raw {
                b"output" | b"summary" => content(&mut cursor, sink, 0)?,
                _ => value(&mut cursor, sink, 0)?,
            }
        }
        sink.push(FIELD);
        Ok(())
    }
}
