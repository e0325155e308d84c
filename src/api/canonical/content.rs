//! The content of a message: a string, or parts in the words of any API.

use super::super::json::{Cursor, Kind, Malformed};
use super::media;
use super::sink::{PART, Sink};
use super::value::{Members, members, string, value};

/// Contents within contents: the parts of a tool's result, those of a document in it. Deeper ones are plain values.
const MAX_DEPTH: usize = 3;

/// A string, or a list of parts; one text part is the same as the string.
pub(super) fn content<S: Sink>(cursor: &mut Cursor<'_>, sink: &mut S, depth: usize) -> Result<(), Malformed> {
    match cursor.kind()? {
        Kind::String => string(cursor, sink)?,
        Kind::Array if depth < MAX_DEPTH => {
            let mut first = true;
            cursor.array(|item| {
                if !std::mem::take(&mut first) {
                    sink.push(PART);
                }
                part(item, sink, depth)
            })?;
        }
        Kind::Object if depth < MAX_DEPTH => part(cursor, sink, depth)?,
        _ => value(cursor, sink, 0)?,
    }
    Ok(())
}

/// What is known of a part that is not plain text.
#[derive(Default)]
struct Part<'a> {
    kind: &'a [u8],
    media: Members<'a>,
    content: Option<&'a [u8]>,
    rest: Members<'a>,
}

fn part<S: Sink>(cursor: &mut Cursor<'_>, sink: &mut S, depth: usize) -> Result<(), Malformed> {
    if cursor.kind()? != Kind::Object {
        return value(cursor, sink, 1);
    }
    let mut part = Part::default();
    cursor.object(|key, member| {
        match key.raw {
            b"text" if member.kind()? == Kind::String => string(member, sink)?,
            b"type" => part.kind = member.skip()?,
            b"content" => part.content = Some(member.skip()?),
            key if is_unread(key) || (!S::KEEPS_REASONING && key == b"thinking") => drop(member.skip()?),
            _ if media::is_media(key.raw) => part.media.push((key, member.skip()?)),
            _ => part.rest.push((key, member.skip()?)),
        }
        Ok(())
    })?;
    part.media.retain(|(_, data)| *data != b"null");
    part.media.sort_by(|a, b| a.0.raw.cmp(b.0.raw));
    for (key, data) in part.media {
        media::media(data, media::kind(key.raw, part.kind), sink, depth)?;
    }
    part.rest.retain(|(_, value)| *value != b"null");
    members(part.rest, sink, 1)?;
    match part.content.filter(|inner| *inner != b"null") {
        Some(inner) => content(&mut Cursor::new(inner), sink, depth + 1),
        None => Ok(()),
    }
}

/// Members of a part that no template renders: markers, signatures, and what an answer said about its own text.
pub(in crate::api) fn is_unread(key: &[u8]) -> bool {
    matches!(key, b"cache_control" | b"uuid" | b"signature" | b"annotations" | b"logprobs" | b"citations")
}
