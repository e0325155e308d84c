//! Canonical prompt: the stable byte form of what the engine will read, in the order in which it reads it.
//!
//! Order: model, then what separates caches (adapter, salt), then the leading system and developer messages, tools
//! and the other members that a chat template renders, then the remaining messages. Key order, spacing, escapes,
//! sampling members, and whether a text stands alone or as a single text part make no difference. Nothing is
//! assembled: pieces go straight into a [`Chain`].
//!
//! Images and audio enter as a digest of their whole data with the weight of what an engine reads for them, so that
//! a picture is neither worth megabytes of credit nor confused with another one.

use super::json::{Cursor, Kind, Malformed, Str};
use super::request::{MESSAGE_MEMBERS, Message, RENDERED, Request, SEPARATING};
use crate::prefix::fingerprint::{Chain, Fingerprints};
use smallvec::SmallVec;

/// Separates members and messages. Text can contain it too: who puts it there spoils no credit but their own.
const FIELD: &[u8] = b"\x1e";
/// Separates the parts of a message.
const PART: &[u8] = b"\x1f";
/// Canonical bytes for one picture: about a thousand tokens at four bytes each, the middle of what vision models use.
const IMAGE_WEIGHT: usize = 4096;
/// Base64 bytes of audio per canonical byte: 24 kHz 16-bit speech at about 25 tokens a second, four bytes each.
const AUDIO_BYTES_PER_UNIT: usize = 640;
/// Values nested deeper than this are hashed as they stand: a bound on the stack, and on how often a byte is passed.
const MAX_DEPTH: usize = 16;
/// The fingerprints of a chat completion request.
///
/// # Errors
/// [`Malformed`] when `messages` is not a list of objects; the caller then routes by load.
pub fn chat(request: &Request<'_>, mut chain: Chain) -> Result<Fingerprints, Malformed> {
    let Some(messages) = &request.messages else { return Err(Malformed { at: 0 }) };
    let leading = messages.iter().take_while(|m| is_instruction(m)).count();
    head(request, &mut chain)?;
    messages[..leading].iter().try_for_each(|m| message(m, &mut chain))?;
    rendered(request, &mut chain)?;
    for m in &messages[leading..] {
        if chain.is_full() {
            break;
        }
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

/// Model, adapter and salt: what separates caches altogether.
fn head(request: &Request<'_>, chain: &mut Chain) -> Result<(), Malformed> {
    if let Some(model) = request.model {
        text(model, chain);
    }
    chain.push(FIELD);
    write_members(SEPARATING.iter().zip(request.separating), chain)
}

fn rendered(request: &Request<'_>, chain: &mut Chain) -> Result<(), Malformed> {
    write_members(RENDERED.iter().zip(request.rendered), chain)
}

fn write_members<'a>(
    members: impl Iterator<Item = (&'a &'a str, Option<&'a [u8]>)>,
    chain: &mut Chain,
) -> Result<(), Malformed> {
    for (name, member) in members {
        if let Some(member) = member {
            chain.push(name.as_bytes());
            value(&mut Cursor::new(member), chain, 0)?;
            chain.push(FIELD);
        }
    }
    Ok(())
}

fn text(s: Str<'_>, chain: &mut Chain) {
    s.decode(|piece| chain.push(piece));
}

/// The string that comes next, in one pass.
fn string(cursor: &mut Cursor<'_>, chain: &mut Chain) -> Result<(), Malformed> {
    cursor.string_decoded(|piece| chain.push(piece))
}

// === messages ===

fn is_instruction(message: &Message<'_>) -> bool {
    message.role.is_some_and(|r| r.is("system") || r.is("developer"))
}

fn message(message: &Message<'_>, chain: &mut Chain) -> Result<(), Malformed> {
    if let Some(role) = message.role {
        text(role, chain);
    }
    chain.push(PART);
    if let Some(content) = message.content {
        self::content(&mut Cursor::new(content), chain)?;
    }
    for (name, member) in MESSAGE_MEMBERS.iter().zip(message.others) {
        if let Some(member) = member {
            chain.push(PART);
            chain.push(name.as_bytes());
            value(&mut Cursor::new(member), chain, 0)?;
        }
    }
    chain.push(FIELD);
    Ok(())
}

/// A string, or a list of parts; one text part is the same as the string.
fn content(cursor: &mut Cursor<'_>, chain: &mut Chain) -> Result<(), Malformed> {
    match cursor.kind()? {
        Kind::String => string(cursor, chain)?,
        Kind::Array => {
            let mut first = true;
            cursor.array(|item| {
                if !std::mem::take(&mut first) {
                    chain.push(PART);
                }
                part(item, chain)
            })?;
        }
        _ => value(cursor, chain, 0)?,
    }
    Ok(())
}

fn part(cursor: &mut Cursor<'_>, chain: &mut Chain) -> Result<(), Malformed> {
    if cursor.kind()? != Kind::Object {
        return value(cursor, chain, 1);
    }
    let (mut media, mut rest) = (Members::new(), Members::new());
    cursor.object(|key, member| {
        match key.raw {
            b"text" if member.kind()? == Kind::String => string(member, chain)?,
            b"image_url" | b"image" | b"video_url" | b"input_audio" | b"audio_url" => {
                media.push((key, member.skip()?));
            }
            b"type" | b"cache_control" | b"uuid" => drop(member.skip()?),
            _ => rest.push((key, member.skip()?)),
        }
        Ok(())
    })?;
    for (key, data) in media.into_iter().filter(|(_, data)| *data != b"null") {
        self::media(data, key.raw.windows(5).any(|w| w == b"audio"), chain)?;
    }
    rest.retain(|(_, value)| *value != b"null");
    members(rest, chain, 1)
}

/// A picture, a film or a recording: a string, or an object whose `url` or `data` is one.
fn media(data: &[u8], is_audio: bool, chain: &mut Chain) -> Result<(), Malformed> {
    let weight = |raw: &[u8]| if is_audio { raw.len() / AUDIO_BYTES_PER_UNIT + 4 } else { IMAGE_WEIGHT };
    let mut cursor = Cursor::new(data);
    if cursor.kind()? != Kind::Object {
        chain.push_digest(data, weight(data));
        return Ok(());
    }
    let mut rest = Members::new();
    cursor.object(|key, member| {
        match key.raw {
            b"url" | b"data" if member.kind()? == Kind::String => {
                let content = member.string()?.raw;
                chain.push_digest(content, weight(content));
            }
            _ => rest.push((key, member.skip()?)),
        }
        Ok(())
    })?;
    members(rest, chain, 1)
}

// === any value ===

/// Members of an object: keys and the text of their values.
type Members<'a> = SmallVec<[(Str<'a>, &'a [u8]); 4]>;

/// Writes a value so that key order and spacing do not show.
fn value(cursor: &mut Cursor<'_>, chain: &mut Chain, depth: usize) -> Result<(), Malformed> {
    match cursor.kind()? {
        _ if chain.is_full() => drop(cursor.skip()?),
        Kind::String => {
            chain.push(b"\"");
            string(cursor, chain)?;
            chain.push(b"\"");
        }
        Kind::Array if depth < MAX_DEPTH => {
            chain.push(b"[");
            cursor.array(|item| {
                value(item, chain, depth + 1)?;
                chain.push(b",");
                Ok(())
            })?;
            chain.push(b"]");
        }
        Kind::Object if depth < MAX_DEPTH => {
            let mut list = SmallVec::new();
            cursor.object(|key, member| {
                list.push((key, member.skip()?));
                Ok(())
            })?;
            chain.push(b"{");
            members(list, chain, depth)?;
            chain.push(b"}");
        }
        _ => chain.push(cursor.skip()?),
    }
    Ok(())
}

fn members(mut list: Members<'_>, chain: &mut Chain, depth: usize) -> Result<(), Malformed> {
    list.sort_by(|a, b| a.0.raw.cmp(b.0.raw));
    for (key, member) in list {
        text(key, chain);
        chain.push(b":");
        value(&mut Cursor::new(member), chain, depth + 1)?;
        chain.push(b",");
    }
    Ok(())
}

/// Text as it is, token ids as four bytes each, lists item by item.
fn prompt(cursor: &mut Cursor<'_>, chain: &mut Chain, depth: usize) -> Result<(), Malformed> {
    match cursor.kind()? {
        Kind::String => string(cursor, chain)?,
        // two levels have a meaning: a list of prompts, each a list of tokens
        Kind::Array if depth < 2 => cursor.array(|item| match item.kind()? {
            Kind::Atom => {
                let token = item.skip()?;
                match std::str::from_utf8(token).ok().and_then(|t| t.parse::<u32>().ok()) {
                    Some(id) => chain.push(&id.to_le_bytes()),
                    None => chain.push(token),
                }
                Ok(())
            }
            _ => {
                prompt(item, chain, depth + 1)?;
                chain.push(FIELD);
                Ok(())
            }
        })?,
        _ => chain.push(cursor.skip()?),
    }
    Ok(())
}

#[cfg(test)]
mod tests;
