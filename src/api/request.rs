//! What routing needs to know of a request of any API, read in one pass over the top level of its body.
//!
//! One reading serves all of them: an API's own members are absent, or without meaning, in the others.

use super::json::{Cursor, Kind, Malformed, Str};
use std::ops::Range;

/// The parts of a request body that matter to routing, borrowed from it.
#[derive(Debug, Default)]
pub struct Request<'a> {
    /// `model`.
    pub model: Option<Str<'a>>,
    /// `stream`, false when absent.
    pub stream: bool,
    /// Whether `stream_options` is there.
    pub has_stream_options: bool,
    /// `store` is false: the engine is told to keep nothing.
    pub is_stateless: bool,
    /// Whether several answers are asked for: `n` or `best_of` above one, or a list of prompts.
    pub is_many: bool,
    /// Every member whose key is `max_tokens` or `max_completion_tokens`, for edits.
    pub limits: Vec<Member>,
    /// Every member whose key is `reasoning_effort`, for edits.
    pub efforts: Vec<Member>,
    /// `messages`, if it is a list of objects.
    pub messages: Option<Vec<Message<'a>>>,
    /// `prompt`, as text.
    pub prompt: Option<&'a [u8]>,
    /// The other members that hold a prompt, or a part of it.
    pub own: Own<'a>,
    /// `previous_response_id`.
    pub previous_response_id: Option<Str<'a>>,
    /// `input_file_id` (batches).
    pub input_file_id: Option<Str<'a>>,
    /// `prompt_cache_key`.
    pub prompt_cache_key: Option<Str<'a>>,
    /// The members that separate caches, in the order of [`SEPARATING`]; null counts as absent.
    pub separating: [Option<&'a [u8]>; SEPARATING.len()],
    /// The other members that a chat template renders, in the order of [`RENDERED`]; null counts as absent.
    pub rendered: [Option<&'a [u8]>; RENDERED.len()],
}

/// Members that belong to one API or the other, as text; null counts as absent.
#[derive(Debug, Default)]
pub struct Own<'a> {
    /// `input` (Responses): the conversation, a string or a list of items.
    pub input: Option<&'a [u8]>,
    /// `instructions` (Responses): the first system message.
    pub instructions: Option<&'a [u8]>,
    /// `conversation` (Responses): the id of one that the engine keeps.
    pub conversation: Option<&'a [u8]>,
    /// `system` (Messages): a string or a list of parts.
    pub system: Option<&'a [u8]>,
    /// `thinking` (Messages and some chat templates).
    pub thinking: Option<&'a [u8]>,
    /// `text` (Generate): one prompt or several.
    pub text: Option<&'a [u8]>,
    /// `input_ids` (Generate): token ids of one prompt or several.
    pub input_ids: Option<&'a [u8]>,
    /// `image_data` (Generate): one picture or several.
    pub image_data: Option<&'a [u8]>,
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
    /// Where the value begins.
    pub value_at: usize,
    /// The value, if it is a whole number that is not negative.
    pub value: Option<u64>,
}

/// Members that separate caches altogether: adapters and the salt.
pub const SEPARATING: [&str; 3] = ["lora_path", "lora", "cache_salt"];

/// The other members besides the messages that decide what the engine reads, in the order in which they enter the
/// canonical prompt.
pub const RENDERED: [&str; 9] = [
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

/// The place of `reasoning_effort` in [`RENDERED`].
pub const EFFORT: usize = 2;

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
    let name = key.bytes();
    let name = &*name;
    match name {
        b"messages" => {
            // a list of something else is an engine's business to refuse: it is stepped over
            let mut ahead = value.clone();
            request.messages = messages(&mut ahead).ok();
            match request.messages {
                Some(_) => *value = ahead,
                None => drop(value.skip()?),
            }
            return Ok(());
        }
        b"model" => request.model = value.clone().string().ok(),
        b"previous_response_id" => request.previous_response_id = value.clone().string().ok(),
        b"input_file_id" => request.input_file_id = value.clone().string().ok(),
        b"prompt_cache_key" => request.prompt_cache_key = value.clone().string().ok(),
        _ => {}
    }
    let text = value.skip()?;
    match name {
        b"stream" => request.stream = text == b"true",
        b"stream_options" => request.has_stream_options = true,
        b"store" => request.is_stateless = text == b"false",
        b"n" | b"best_of" => request.is_many |= count(text).is_some_and(|n| n > 1),
        b"sampling_params" => request.is_many |= asks_for_many(text),
        b"max_tokens" | b"max_completion_tokens" => {
            request.limits.push(placed(key, text, value));
        }
        b"prompt" => {
            request.prompt = Some(text);
            request.is_many |= is_list_of_prompts(text);
        }
        _ => {
            if matches!(name, b"text" | b"input_ids") {
                request.is_many |= is_list_of_prompts(text);
            }
            if name == RENDERED[EFFORT].as_bytes() {
                request.efforts.push(placed(key, text, value));
            }
            if let Some(slot) = slot(request, name) {
                *slot = Some(text).filter(|t| *t != b"null");
            }
        }
    }
    Ok(())
}

/// A member that was just read.
fn placed(key: Str<'_>, text: &[u8], value: &Cursor<'_>) -> Member {
    let end = value.offset_after();
    Member { span: key.at..end, value_at: end - text.len(), value: count(text) }
}

/// Where the text of a member is kept.
fn slot<'r, 'a>(request: &'r mut Request<'a>, name: &[u8]) -> Option<&'r mut Option<&'a [u8]>> {
    let own = &mut request.own;
    match name {
        b"input" => Some(&mut own.input),
        b"instructions" => Some(&mut own.instructions),
        b"conversation" => Some(&mut own.conversation),
        b"system" => Some(&mut own.system),
        b"thinking" => Some(&mut own.thinking),
        b"text" => Some(&mut own.text),
        b"input_ids" => Some(&mut own.input_ids),
        b"image_data" => Some(&mut own.image_data),
        _ => {
            let place = |words: &[&str]| words.iter().position(|word| word.as_bytes() == name);
            match (place(&RENDERED), place(&SEPARATING)) {
                (Some(slot), _) => Some(&mut request.rendered[slot]),
                (_, Some(slot)) => Some(&mut request.separating[slot]),
                _ => None,
            }
        }
    }
}

fn is_list_of_prompts(text: &[u8]) -> bool {
    let inner = text.strip_prefix(b"[").map(<[u8]>::trim_ascii_start);
    inner.is_some_and(|i| i.starts_with(b"[") || i.starts_with(b"\""))
}

/// Whether sampling parameters ask for several answers, or come as a list, one for each prompt.
fn asks_for_many(text: &[u8]) -> bool {
    let mut is_many = text.starts_with(b"[");
    // what cannot be read asks for nothing
    let _unreadable = Cursor::new(text).object(|key, value| {
        let value = value.skip()?;
        is_many |= key.is("n") && count(value).is_some_and(|n| n > 1);
        Ok(())
    });
    is_many
}

/// A token count as engines read it: whole, or a float that is; beyond all bounds, the largest.
fn count(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let float = || text.parse::<f64>().ok().filter(|f| *f >= 0.0 && f.fract() == 0.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates, which is meant")]
    text.parse().ok().or_else(|| float().map(|f| f as u64))
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
            } else if let Some(slot) = key.position(&MESSAGE_MEMBERS) {
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
        assert_eq!(r.limits[0].value, Some(7));
        assert_eq!(&body[r.limits[0].span.clone()], b"\"max_tokens\": 7");
        let messages = r.messages.unwrap();
        assert_eq!(messages.len(), 1);
        assert!(messages[0].role.unwrap().is("user") && messages[0].content.is_none());
        assert_eq!(r.separating[2], Some(&br#""s""#[..]));
        assert_eq!(r.rendered[5], None);
    }

    #[test]
    fn the_last_of_duplicate_keys_counts_as_in_most_engines() {
        assert_eq!(read(br#"{"model":"a","model":"b"}"#).unwrap().model.unwrap().raw, b"b");
    }

    #[test]
    fn a_key_is_the_same_however_it_is_escaped() {
        let body = br#"{"model":"a","mod\u0065l":"b","max_tok\u0065ns":5}"#;
        let r = read(body).unwrap();
        assert_eq!((r.model.unwrap().raw, r.limits[0].value), (&b"b"[..], Some(5)));
    }

    #[test]
    fn several_answers_are_recognised() {
        for (body, is_many) in [
            (r#"{"n":1,"prompt":"x"}"#, false),
            (r#"{"n":8}"#, true),
            (r#"{"best_of":2}"#, true),
            (r#"{"prompt":[1,2]}"#, false),
            (r#"{"prompt":[ "a","b"]}"#, true),
            (r#"{"prompt":[[1],[2]]}"#, true),
            (r#"{"text":["a","b"]}"#, true),
            (r#"{"text":{"format":{"type":"text"}}}"#, false),
            (r#"{"input_ids":[1,2],"sampling_params":{"n":1}}"#, false),
            (r#"{"input_ids":[1,2],"sampling_params":{"n":2}}"#, true),
        ] {
            assert_eq!(read(body.as_bytes()).unwrap().is_many, is_many, "{body}");
        }
    }

    #[test]
    fn what_other_apis_say_is_read_too() {
        let body = br#"{"input":[],"instructions":null,"system":"s","store":false,"previous_response_id":"resp_1",
            "prompt_cache_key":"k\u0031","conversation":null}"#;
        let r = read(body).unwrap();
        assert_eq!((r.own.input, r.own.instructions, r.own.system), (Some(&b"[]"[..]), None, Some(&br#""s""#[..])));
        assert!(r.is_stateless && r.own.conversation.is_none());
        assert_eq!(r.previous_response_id.unwrap().raw, b"resp_1");
        assert_eq!(r.prompt_cache_key.unwrap().text(), "k1");
        let r = read(br#"{"store":true,"previous_response_id":null,"prompt_cache_key":7}"#).unwrap();
        assert!(!r.is_stateless && r.previous_response_id.is_none() && r.prompt_cache_key.is_none());
    }

    #[test]
    fn a_body_that_is_no_object_is_malformed() {
        for body in [&b"[]"[..], b"", b"hello", b"{\"a\":1"] {
            assert!(read(body).is_err());
        }
    }
}
