//! Anchor: what names a conversation although its head changes from turn to turn.
//!
//! Some clients put a clock, a nonce or a billing line into the system prompt or the first message, anew for every turn.
//! The chain of fingerprints then breaks in its first block and says nothing. The anchor is a keyed hash of what such
//! clients leave alone: the *first exchange*, that is the first message that the model wrote and the beginning of what
//! it was answered with, under the same model, adapter and salt.
//!
//! Why not the head, made robust (a min-hash over its lines, say)? Because that cannot be had: any first message turns
//! into any other in steps of one short change each, so whatever stays the same under every such change is the same for
//! all of them. A sketch that usually survives a change is a sketch that sometimes does not, and short messages have few
//! features to choose from. The first exchange never depends on the head, is drawn by a sampler (or is a call with an id
//! drawn for it), and is settled once the second turn begins.
//!
//! What that costs: the first turn has no anchor, and conversations that begin with the same made-up exchange (examples
//! in a prompt) share one, so whoever follows anchors must let load break them. Reasoning is left out, since clients drop
//! that of earlier turns; so is what comes after a few KiB, which bounds the work.

use super::super::endpoint::Endpoint;
use super::super::json::{Cursor, Malformed};
use super::super::request::Request;
use super::responses::Item;
use super::sink::{Sink, Sketch};
use super::{head, message};

/// Canonical bytes of model, adapter and salt.
const HEAD: usize = 1024;
/// Canonical bytes of the model's first message.
const FIRST: usize = 2048;
/// Canonical bytes of the answer to it: it tells conversations apart whose first call is the same.
const ANSWER: usize = 512;
/// An exchange shorter than this names nothing.
const LEAST: usize = 16;

/// The anchor of a conversation; `None` before its second turn, and where the API has no turns.
pub fn anchor(endpoint: Endpoint, request: &Request<'_>, secret: u64) -> Option<u64> {
    let exchange = match endpoint {
        Endpoint::Chat | Endpoint::Messages => of_messages,
        Endpoint::Responses => of_items,
        _ => return None,
    };
    let mut sketch = Sketch::new(secret);
    let is_whole = exchange(request, &mut sketch).ok()?;
    let length = sketch.len();
    if !is_whole || length < LEAST {
        return None;
    }
    sketch.admit(HEAD);
    sketch.push(&length.to_le_bytes());
    head(request, &mut sketch).ok()?;
    Some(sketch.finish())
}

/// Whether there was an exchange.
fn of_messages(request: &Request<'_>, sketch: &mut Sketch) -> Result<bool, Malformed> {
    let messages = request.messages.as_deref().unwrap_or_default();
    let first = messages.iter().position(|m| m.role.is_some_and(|r| r.is("assistant")));
    let Some([first, answer, ..]) = first.map(|at| &messages[at..]) else { return Ok(false) };
    sketch.admit(FIRST);
    message(first, sketch)?;
    sketch.admit(ANSWER);
    message(answer, sketch)?;
    Ok(true)
}

/// The same for the items of Responses; reading stops where the exchange ends.
fn of_items(request: &Request<'_>, sketch: &mut Sketch) -> Result<bool, Malformed> {
    const STOP: Malformed = Malformed { at: usize::MAX };
    let mut written = 0;
    let walked = Cursor::new(request.own.input.unwrap_or(b"[]")).array(|cursor| {
        let item = Item::read(cursor)?;
        if item.is("reasoning") || written == 0 && !item.is_generated() {
            return Ok(());
        }
        sketch.admit(if written == 0 { FIRST } else { ANSWER });
        item.write(sketch)?;
        written += 1;
        if written == 2 { Err(STOP) } else { Ok(()) }
    });
    match walked {
        Err(STOP) => Ok(true),
        other => other.map(|()| false),
    }
}
