//! What routing needs to know of a chat or completion request, read in one pass over the top level of its body.

use super::json::{Cursor, Kind, Malformed, Str};
use std::ops::Range;

/// The parts of a request body that matter to routing, borrowed from it.
#[derive(Debug, Default)]
pub struct Request<'a> {
    /// `model`.
    pub model: Option<Str<'a>>,
    /// `stream`, false when absent.
    pub stream: bool,
    /// The larger of `max_tokens` and `max_completion_tokens`, where they are plain integers.
    pub max_tokens: Option<u64>,
    /// Every member whose key is `max_tokens` or `max_completion_tokens`, for edits.
    pub limits: Vec<Member>,
    /// `messages`, if it is a list of objects.
    pub messages: Option<Vec<Message<'a>>>,
    /// `prompt`, as text.
    pub prompt: Option<&'a [u8]>,
    /// The other members that a chat template renders or that separate caches, in the order of [`RENDERED`].
    pub rendered: [Option<&'a [u8]>; RENDERED.len()],
}

/// The parts of one message that a chat template renders, still as text.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Message<'a> {
    /// `role`.
    pub role: Option<Str<'a>>,
    /// `content`, unless null.
    pub content: Option<&'a [u8]>,
    /// The other members, unless null, in the order of [`MESSAGE_MEMBERS`].
    pub others: [Option<&'a [u8]>; MESSAGE_MEMBERS.len()],
}

/// Members of a message that templates render, besides `role` and `content`, in canonical order.
pub const MESSAGE_MEMBERS: [&str; 6] =
    ["name", "reasoning_content", "reasoning", "tool_calls", "function_call", "tool_call_id"];

/// A member of the top-level object: where it stands and its value, if that is a plain integer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// From the first byte of the key's quote to the end of the value.
    pub span: Range<usize>,
    /// The value, if it is a non-negative integer.
    pub value: Option<u64>,
}

/// Members besides the messages that decide what the engine reads, in the order in which they enter the canonical
/// prompt. The adapter and the salt come first: they separate caches altogether.
pub const RENDERED: [&str; 12] = [
    "lora_path",
    "lora",
    "cache_salt",
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
    "reasoning",
    "functions",
    "tools",
    "documents",
    "suffix",
    "mm_processor_kwargs",
];

/// Reads the top level of a body.
///
/// # Errors
/// [`Malformed`] when the text is not one JSON object; nothing is refused beyond that.
pub fn read(body: &[u8]) -> Result<Request<'_>, Malformed> {
    let mut request = Request::default();
    let mut cursor = Cursor::new(body);
    cursor.object(|key, value| member(&mut request, key, value))?;
    Ok(request)
}

fn member<'a>(request: &mut Request<'a>, key: Str<'a>, value: &mut Cursor<'a>) -> Result<(), Malformed> {
    match key.raw {
        b"model" if value.kind()? == Kind::String => request.model = Some(value.string()?),
        b"stream" => request.stream = value.skip()? == b"true",
        b"messages" => {
            // a list of something else is an engine's business to refuse: it is stepped over
            let mut ahead = value.clone();
            request.messages = messages(&mut ahead).ok();
            match request.messages {
                Some(_) => *value = ahead,
                None => drop(value.skip()?),
            }
        }
        b"prompt" => request.prompt = Some(value.skip()?),
        b"max_tokens" | b"max_completion_tokens" => {
            let text = value.skip()?;
            let number = std::str::from_utf8(text).ok().and_then(|t| t.parse().ok());
            request.limits.push(Member { span: key.at..value.offset_after(), value: number });
            request.max_tokens = request.max_tokens.max(number);
        }
        name => {
            let text = value.skip()?;
            if let Some(slot) = RENDERED.iter().position(|r| r.as_bytes() == name) {
                request.rendered[slot] = Some(text).filter(|t| *t != b"null");
            }
        }
    }
    Ok(())
}

fn messages<'a>(cursor: &mut Cursor<'a>) -> Result<Vec<Message<'a>>, Malformed> {
    let mut out = Vec::new();
    cursor.array(|item| {
        let mut message = Message::default();
        item.object(|key, member| {
            if key.is("role") && member.kind()? == Kind::String {
                message.role = Some(member.string()?);
                return Ok(());
            }
            let text = Some(member.skip()?).filter(|t| *t != b"null");
            if key.is("content") {
                message.content = text;
            } else if let Some(slot) = MESSAGE_MEMBERS.iter().position(|m| key.is(m)) {
                message.others[slot] = text;
            }
            Ok(())
        })?;
        out.push(message);
        Ok(())
    })?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_top_level_and_nothing_deeper() {
        let body = br#" { "model":"m\u0031", "messages":[{"role":"user","model":"no"}], "stream" : true,
            "max_tokens": 7, "tools":null, "cache_salt":"s", "temperature":0.5 } "#;
        let r = read(body).unwrap();
        assert_eq!(r.model.unwrap().text(), "m1");
        assert!(r.stream);
        assert_eq!(r.max_tokens, Some(7));
        assert_eq!(&body[r.limits[0].span.clone()], b"\"max_tokens\": 7");
        let messages = r.messages.unwrap();
        assert_eq!(messages.len(), 1);
        assert!(messages[0].role.unwrap().is("user") && messages[0].content.is_none());
        assert_eq!(r.rendered[2], Some(&br#""s""#[..]));
        assert_eq!(r.rendered[8], None);
    }

    #[test]
    fn the_last_of_duplicate_keys_counts_as_in_most_engines() {
        assert_eq!(read(br#"{"model":"a","model":"b"}"#).unwrap().model.unwrap().raw, b"b");
    }

    #[test]
    fn a_body_that_is_no_object_is_malformed() {
        for body in [&b"[]"[..], b"", b"hello", b"{\"a\":1"] {
            assert!(read(body).is_err());
        }
    }
}
