//! One event of a streamed answer.
//!
//! | API | generated | the end | usage |
//! |---|---|---|---|
//! | chat, completions | `choices[].delta` with more than a role, `choices[].text` | `finish_reason`, `[DONE]` | `usage`, `timings` |
//! | Responses | `response.….delta`, `response.output_item.done` | `response.completed`, `.incomplete` | `response.usage` |
//! | Messages | `content_block_delta`, the start of a `tool_use` block | `message_stop`, a `stop_reason` | `message.usage`, `usage` |
//! | generate | `text`, `output_ids` | `meta_info.finish_reason`, `[DONE]` | `meta_info` |
//!
//! Responses and Messages name their events in a member `type`, which may stand anywhere in the object: so members are
//! gathered first.

use super::super::json::{Cursor, Kind, Malformed};
use super::figures::timings;
use super::{Id, Seen, StreamState, is_id};

/// The members of an event that tell something, as text.
#[derive(Default)]
struct Members<'a> {
    kind: &'a [u8],
    delta: Option<&'a [u8]>,
    response: Option<&'a [u8]>,
    message: Option<&'a [u8]>,
    block: Option<&'a [u8]>,
}

/// The types of errors that are the client's, as JSON: vLLM's, SGLang's and OpenAI's, Anthropic's, llama.cpp's.
const CLIENTS: [&[u8]; 8] = [
    b"\"BadRequestError\"",
    b"\"UnprocessableEntityError\"",
    b"\"NotFoundError\"",
    b"\"invalid_request_error\"",
    b"\"not_found_error\"",
    b"\"request_too_large\"",
    b"\"rate_limit_error\"",
    b"\"exceed_context_size_error\"",
];

/// Takes an event in.
pub(super) fn event(data: &[u8], seen: &mut Seen) -> Result<(), Malformed> {
    let mut members = Members::default();
    Cursor::new(data).object(|key, value| {
        let kind = value.kind()?;
        seen.known |= matches!(key.raw, b"choices" | b"type" | b"meta_info" | b"text" | b"output_ids");
        match key.raw {
            b"choices" if kind == Kind::Array => value.array(|choice| self::choice(choice, &mut seen.state))?,
            b"usage" if kind == Kind::Object => seen.usage.read(value)?,
            b"timings" if kind == Kind::Object => timings(value, &mut seen.timings)?,
            b"meta_info" if kind == Kind::Object => meta_info(value, seen)?,
            b"error" => error(value, &mut seen.state)?,
            b"type" if kind == Kind::String => members.kind = value.string()?.raw,
            b"delta" => members.delta = Some(value.skip()?),
            b"response" if kind == Kind::Object => members.response = Some(value.skip()?),
            b"message" if kind == Kind::Object => members.message = Some(value.skip()?),
            b"content_block" if kind == Kind::Object => members.block = Some(value.skip()?),
            b"text" | b"output_ids" => seen.state.generated |= is_something(value.skip()?),
            _ => drop(value.skip()?),
        }
        Ok(())
    })?;
    typed(&members, seen)
}

/// An error met after the answer had begun. Like a status it says whose fault it is, if it says anything: a code of its own,
/// or one of the names that engines have for what a client did wrong.
fn error(value: &mut Cursor<'_>, state: &mut StreamState) -> Result<(), Malformed> {
    let text = value.skip()?;
    if text == b"null" {
        return Ok(());
    }
    let (mut code, mut is_named) = (None, false);
    in_object(Some(text), &mut |key, text| {
        match key {
            b"code" | b"status" | b"status_code" | b"http_code" => code = code.or(status(text)),
            b"type" => is_named = CLIENTS.contains(&text),
            _ => {}
        }
        false
    })?;
    state.failed = true;
    state.refused = code.map_or(is_named, |code| (400..500).contains(&code));
    Ok(())
}

/// A status, as a number or in quotes.
fn status(text: &[u8]) -> Option<u16> {
    std::str::from_utf8(text).ok()?.trim_matches('"').parse().ok()
}

/// What an event tells whose data was too large to keep, by its name: the end, or content.
pub(super) fn too_large(name: &[u8], state: &mut StreamState) {
    match name {
        b"response.completed" | b"response.incomplete" => state.finished = true,
        b"response.failed" => state.failed = true,
        // these repeat the request
        b"response.created" | b"response.queued" | b"response.in_progress" | b"message_start" => {}
        _ => state.generated = true,
    }
}

/// Events of Responses and Messages.
fn typed(members: &Members<'_>, seen: &mut Seen) -> Result<(), Malformed> {
    let state = &mut seen.state;
    match members.kind {
        b"" => return Ok(()),
        b"error" | b"response.failed" => state.failed = true,
        b"response.completed" | b"response.incomplete" | b"response.cancelled" | b"message_stop" => {
            state.finished = true;
        }
        b"response.output_item.done" => state.generated = true,
        b"content_block_delta" => {
            state.generated |= in_object(members.delta, &mut |key, text| key != b"type" && is_something(text))?;
        }
        b"content_block_start" => {
            state.generated |= in_object(members.block, &mut |key, text| key == b"name" && is_something(text))?;
        }
        b"message_delta" => {
            state.finished |= in_object(members.delta, &mut |key, text| key == b"stop_reason" && is_something(text))?;
        }
        kind if kind.starts_with(b"response.") && kind.ends_with(b".delta") => {
            state.generated |= members.delta.is_some_and(is_something);
        }
        _ => {}
    }
    for nested in [members.response, members.message].into_iter().flatten() {
        self::nested(nested, seen)?;
    }
    Ok(())
}

/// A response or a message within an event: its usage, and the id of a response.
fn nested(object: &[u8], seen: &mut Seen) -> Result<(), Malformed> {
    Cursor::new(object).object(|key, value| {
        match key.raw {
            b"usage" if value.kind()? == Kind::Object => seen.usage.read(value)?,
            b"id" if matches!(seen.id, Id::Wanted) && value.kind()? == Kind::String => {
                let id = value.string()?;
                if is_id(&id.bytes()) {
                    seen.id = Id::Known(id.bytes().into_owned());
                }
            }
            _ => drop(value.skip()?),
        }
        Ok(())
    })
}

fn in_object(object: Option<&[u8]>, tells: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<bool, Malformed> {
    let Some(object) = object.filter(|o| o.starts_with(b"{")) else { return Ok(false) };
    let mut found = false;
    Cursor::new(object).object(|key, value| {
        found |= tells(key.raw, value.skip()?);
        Ok(())
    })?;
    Ok(found)
}

fn choice(choice: &mut Cursor<'_>, state: &mut StreamState) -> Result<(), Malformed> {
    choice.object(|key, value| {
        match key.raw {
            // a role alone, or empty and null members, are no generated token
            b"delta" if value.kind()? == Kind::Object => {
                state.generated |=
                    in_object(Some(value.skip()?), &mut |key, text| key != b"role" && is_something(text))?;
            }
            b"text" => state.generated |= is_something(value.skip()?),
            b"finish_reason" => state.finished |= is_something(value.skip()?),
            _ => drop(value.skip()?),
        }
        Ok(())
    })
}

/// SGLang's facts about an answer to `/generate`.
fn meta_info(object: &mut Cursor<'_>, seen: &mut Seen) -> Result<(), Malformed> {
    let text = object.skip()?;
    seen.state.finished |= in_object(Some(text), &mut |key, text| key == b"finish_reason" && is_something(text))?;
    seen.usage.read(&mut Cursor::new(text))
}

fn is_something(text: &[u8]) -> bool {
    !matches!(text, b"null" | b"\"\"" | b"[]" | b"{}")
}
