//! Canonical prompt: the stable byte form of what the engine will read, in the order in which it reads it.
//!
//! Order: model, then what separates caches (adapter, salt), then the leading system and developer messages, tools
//! and the other members that a chat template renders, then the remaining messages. Key order, spacing, escapes,
//! sampling members, cache markers, and whether a text stands alone or as a single text part make no difference.
//! Nothing is assembled: pieces go straight into a [`Chain`]. Text goes as JSON has it where everybody writes it alike, so a
//! line end is the two letters of its escape.
//!
//! Every API is written in the same words: what Anthropic calls `system` and Responses calls `instructions` is the first
//! system message, and their messages are messages, as engines see it that turn them into chats themselves.
//!
//! | part | place |
//! |---|---|
//! | where canonical bytes go | `canonical/sink.rs` |
//! | any value | `canonical/value.rs` |
//! | the content of messages | `canonical/content.rs` |
//! | pictures, films, recordings, files | `canonical/media.rs` |
//! | the items of Responses | `canonical/responses.rs` |
//! | what names a conversation whose head changes | `canonical/anchor.rs` |

mod anchor;
mod content;
mod media;
mod responses;
mod sink;
mod value;

pub use anchor::anchor;
pub(super) use content::is_unread;
pub use responses::{is_hidden, responses};

use super::json::{Cursor, Kind, Malformed, Str};
use super::request::{MESSAGE_MEMBERS, Message, RENDERED, Request, SEPARATING};
use crate::prefix::fingerprint::{Chain, Fingerprints};
use content::content;
use sink::{FIELD, PART, Sink};
use value::{string, text, value};

/// The number of this form. It grows whenever the same request becomes other bytes: routers of two forms in one group understand
/// nothing of each other's prompts, and are to keep them apart.
pub const FORM: u32 = 2;
/// The role that instructions outside the list of messages have.
const SYSTEM: Str<'_> = Str { raw: b"system", at: 0 };
/// Reasoning among a message's members: clients and templates drop that of earlier turns.
const REASONING: [&str; 2] = ["reasoning_content", "reasoning"];

/// The fingerprints of a chat completion request.
///
/// # Errors
/// [`Malformed`] when `messages` is not a list of objects; the caller then routes by load.
pub fn chat(request: &Request<'_>, chain: Chain) -> Result<Fingerprints, Malformed> {
    conversation(request, None, chain)
}

/// The fingerprints of a request to Anthropic's Messages API.
///
/// # Errors
/// As [`chat`].
pub fn anthropic(request: &Request<'_>, chain: Chain) -> Result<Fingerprints, Malformed> {
    conversation(request, request.own.system, chain)
}

fn conversation(request: &Request<'_>, system: Option<&[u8]>, mut chain: Chain) -> Result<Fingerprints, Malformed> {
    let Some(messages) = &request.messages else { return Err(Malformed { at: 0 }) };
    let leading = messages.iter().take_while(|m| m.role.is_some_and(is_instruction)).count();
    head(request, &mut chain)?;
    if system.is_some() {
        message(&instructions(system), &mut chain)?;
    }
    messages[..leading].iter().try_for_each(|m| message(m, &mut chain))?;
    rendered(request, &mut chain)?;
    let mut was_generated = false;
    for m in &messages[leading..] {
        if chain.is_full() {
            break;
        }
        let is_generated = m.role.is_some_and(|r| r.is("assistant"));
        if is_generated && !was_generated {
            chain.begin_answer();
        }
        was_generated = is_generated;
        message(m, &mut chain)?;
    }
    Ok(chain.finish())
}

/// The fingerprints of a completion request: text, token ids, or a list of either.
///
/// # Errors
/// [`Malformed`] when `prompt` is broken text.
pub fn completion(request: &Request<'_>, mut chain: Chain) -> Result<Fingerprints, Malformed> {
    head(request, &mut chain)?;
    rendered(request, &mut chain)?;
    if let Some(prompt) = request.prompt {
        self::prompt(&mut Cursor::new(prompt), &mut chain, 0)?;
    }
    Ok(chain.finish())
}

/// The fingerprints of a request to SGLang's `/generate`: like a completion, its pictures before the text, since where
/// in the text they stand is the engine's business.
///
/// # Errors
/// [`Malformed`] when the prompt is broken text.
pub fn generate(request: &Request<'_>, mut chain: Chain) -> Result<Fingerprints, Malformed> {
    head(request, &mut chain)?;
    rendered(request, &mut chain)?;
    if let Some(pictures) = request.own.image_data {
        media::media(pictures, media::Media::Picture, &mut chain, 0)?;
        chain.push(FIELD);
    }
    for prompt in [request.own.text, request.own.input_ids].into_iter().flatten() {
        self::prompt(&mut Cursor::new(prompt), &mut chain, 0)?;
    }
    Ok(chain.finish())
}

/// Model, adapter and salt: what separates caches altogether.
fn head<S: Sink>(request: &Request<'_>, sink: &mut S) -> Result<(), Malformed> {
    if let Some(model) = request.model {
        text(model, sink);
    }
    sink.push(FIELD);
    members(SEPARATING.iter().zip(request.separating), sink)
}

fn rendered<S: Sink>(request: &Request<'_>, sink: &mut S) -> Result<(), Malformed> {
    members(RENDERED.iter().zip(request.rendered), sink)?;
    // whether to think is rendered; how long is not, and clients change it from turn to turn
    let mut kind = None;
    if let Some(thinking) = request.own.thinking {
        // anything but an object says nothing that a template would read
        let _unreadable = Cursor::new(thinking).object(|key, member| {
            let text = member.skip()?;
            kind = if key.is("type") { Some(text) } else { kind };
            Ok(())
        });
    }
    members([(&"thinking", kind)].into_iter(), sink)
}

fn members<'a, S: Sink>(
    members: impl Iterator<Item = (&'a &'a str, Option<&'a [u8]>)>,
    sink: &mut S,
) -> Result<(), Malformed> {
    for (name, member) in members {
        if let Some(member) = member {
            sink.push(name.as_bytes());
            value(&mut Cursor::new(member), sink, 0)?;
            sink.push(FIELD);
        }
    }
    Ok(())
}

// === messages ===

fn is_instruction(role: Str<'_>) -> bool {
    role.is("system") || role.is("developer")
}

/// The system message that stands outside the list of messages.
fn instructions(content: Option<&[u8]>) -> Message<'_> {
    Message { role: Some(SYSTEM), content, ..Message::default() }
}

fn message<S: Sink>(message: &Message<'_>, sink: &mut S) -> Result<(), Malformed> {
    if let Some(role) = message.role {
        text(role, sink);
    }
    sink.push(PART);
    match message.content.map(|content| (Str::of(content), content)) {
        // most of a long prompt, whose end need not be searched again
        Some((Some(content), _)) => text(content, sink),
        Some((None, content)) => self::content(&mut Cursor::new(content), sink, 0)?,
        None => {}
    }
    for (name, member) in MESSAGE_MEMBERS.iter().zip(message.others) {
        if let Some(member) = member.filter(|_| S::KEEPS_REASONING || !REASONING.contains(name)) {
            sink.push(PART);
            sink.push(name.as_bytes());
            value(&mut Cursor::new(member), sink, 0)?;
        }
    }
    sink.push(FIELD);
    Ok(())
}

/// Text as it is, token ids as four bytes each, lists item by item.
fn prompt<S: Sink>(cursor: &mut Cursor<'_>, sink: &mut S, depth: usize) -> Result<(), Malformed> {
    match cursor.kind()? {
        Kind::String => string(cursor, sink)?,
        // two levels have a meaning: a list of prompts, each a list of tokens
        Kind::Array if depth < 2 => cursor.array(|item| match item.kind()? {
            Kind::Atom => {
                let token = item.skip()?;
                match std::str::from_utf8(token).ok().and_then(|t| t.parse::<u32>().ok()) {
                    Some(id) => sink.push(&id.to_le_bytes()),
                    None => sink.push(token),
                }
                Ok(())
            }
            _ => {
                prompt(item, sink, depth + 1)?;
                sink.push(FIELD);
                Ok(())
            }
        })?,
        _ => sink.push(cursor.skip()?),
    }
    Ok(())
}

#[cfg(test)]
mod tests;
