//! Usage that the client did not ask for: the question in a request, and the answer to it that the client does not see.
//!
//! A stream of chat or completions says how many tokens it took only if `stream_options.include_usage` asks for it, in one
//! more event before the end. The question is one span in the body and can be taken back, byte for byte. It is not asked
//! where the client has said anything of its own: `include_usage` itself, even false, or `continuous_usage_stats`, with
//! which it would change other events. Pure.

mod hidden;

pub use hidden::Hider;

use super::endpoint::Endpoint;
use super::json::Cursor;
use super::request::Request;
use bytes::{BufMut, Bytes, BytesMut};

/// Where the body is one that already says something of its stream.
const OPTIONS: &str = "stream_options";
/// Room that is left in the body, so that a member can be added without a copy.
const ROOM: usize = 64;

/// The question: a text in the body, and what stood in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    at: usize,
    /// How far that is behind the beginning of the client's own options, where there are any: these move when members before
    /// them go.
    within: Option<usize>,
    text: &'static str,
    /// Empty, or `null`.
    before: &'static str,
}

impl Question {
    /// How to ask for usage in `body`, which `request` was read from, or is edited from the one that it was read from.
    /// `None` where it is not to be asked for.
    pub fn find(endpoint: Endpoint, request: &Request<'_>, body: &[u8]) -> Option<Self> {
        if !matches!(endpoint, Endpoint::Chat | Endpoint::Completions) || !request.stream {
            return None;
        }
        if !request.has_stream_options {
            let at = body.iter().position(|c| *c == b'{')? + 1;
            let text = r#""stream_options":{"include_usage":true},"#;
            return Some(Question { at, within: None, text, before: "" });
        }
        let (at, options) = options_in(body)?;
        if options == b"null" {
            return Some(Question { at, within: Some(0), text: r#"{"include_usage":true}"#, before: "null" });
        }
        Self::within(at, options)
    }

    /// The same in options that are there.
    fn within(at: usize, options: &[u8]) -> Option<Self> {
        let (mut is_empty, mut is_said, mut null) = (true, false, None);
        let mut cursor = Cursor::new(options);
        cursor
            .object(|key, value| {
                is_empty = false;
                let text = value.skip()?;
                let is_null = text == b"null";
                if key.is("include_usage") {
                    is_said |= !is_null || null.is_some();
                    null = Some(value.offset_after() - text.len());
                }
                is_said |= key.is("continuous_usage_stats") && !is_null && text != b"false";
                Ok(())
            })
            .ok()?;
        if is_said {
            return None;
        }
        let (within, text, before) = match (null, is_empty) {
            (Some(within), _) => (within, "true", "null"),
            (None, true) => (1, r#""include_usage":true"#, ""),
            (None, false) => (1, r#""include_usage":true,"#, ""),
        };
        Some(Question { at: at + within, within: Some(within), text, before })
    }

    /// The body with the question.
    #[must_use]
    pub fn ask(&self, body: &[u8]) -> Bytes {
        exchange(body, self.at, self.before, self.text)
    }

    /// The body without it again, whatever other members came and went meanwhile. `None` if it is not there.
    #[must_use]
    pub fn take_back(&self, body: &[u8]) -> Option<Bytes> {
        let at = match self.within {
            // nothing can go from before the first member
            None => self.at,
            Some(within) => options_in(body)?.0 + within,
        };
        let is_there = body.get(at..)?.starts_with(self.text.as_bytes());
        is_there.then(|| exchange(body, at, self.text, self.before))
    }
}

/// The client's options and where they begin; `None` where there are none, or several: nobody knows which of two counts.
fn options_in(body: &[u8]) -> Option<(usize, &[u8])> {
    let mut found = Vec::new();
    Cursor::new(body)
        .object(|key, value| {
            let text = value.skip()?;
            if key.is(OPTIONS) {
                found.push((value.offset_after() - text.len(), text));
            }
            Ok(())
        })
        .ok()?;
    let [only] = *found else { return None };
    Some(only)
}

fn exchange(body: &[u8], at: usize, old: &str, new: &str) -> Bytes {
    let end = at + old.len();
    debug_assert_eq!(body.get(at..end), Some(old.as_bytes()), "another body");
    let mut out = BytesMut::with_capacity(body.len() + new.len() + ROOM);
    out.put_slice(body.get(..at).unwrap_or_default());
    out.put_slice(new.as_bytes());
    out.put_slice(body.get(end..).unwrap_or_default());
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::super::edit::LastMember;
    use super::super::request::read;
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn asked(endpoint: Endpoint, body: &str) -> Option<String> {
        let question = Question::find(endpoint, &read(body.as_bytes()).unwrap(), body.as_bytes())?;
        let asked = question.ask(body.as_bytes());
        assert_eq!(question.take_back(&asked).unwrap(), body, "taken back");
        Some(String::from_utf8(asked.to_vec()).unwrap())
    }

    #[test]
    fn the_question_is_one_span_and_never_against_the_clients_own_word() {
        let cases = [
            (r#"{"stream":true}"#, Some(r#"{"stream_options":{"include_usage":true},"stream":true}"#)),
            (
                " {\n \"n\":1.50,\"stream\":true} ",
                Some(" {\"stream_options\":{\"include_usage\":true},\n \"n\":1.50,\"stream\":true} "),
            ),
            (
                r#"{"stream":true,"stream_options": null ,"n":1e2}"#,
                Some(r#"{"stream":true,"stream_options": {"include_usage":true} ,"n":1e2}"#),
            ),
            (
                r#"{"stream":true,"stream_options":{ }}"#,
                Some(r#"{"stream":true,"stream_options":{"include_usage":true }}"#),
            ),
            (
                r#"{"stream_options":{"x":{"include_usage":false}},"stream":true}"#,
                Some(r#"{"stream_options":{"include_usage":true,"x":{"include_usage":false}},"stream":true}"#),
            ),
            (
                r#"{"stream_options":{"include_usage":null},"stream":true}"#,
                Some(r#"{"stream_options":{"include_usage":true},"stream":true}"#),
            ),
            (
                r#"{"stream_options":{"continuous_usage_stats":false},"stream":true}"#,
                Some(r#"{"stream_options":{"include_usage":true,"continuous_usage_stats":false},"stream":true}"#),
            ),
            (r#"{"stream":true,"stream_options":{"include_usage":false}}"#, None),
            (r#"{"stream":true,"stream_options":{"include_usage":true}}"#, None),
            (r#"{"stream":true,"stream_options":{"include\u005fusage":false}}"#, None),
            (r#"{"stream":true,"stream\u005foptions":{"include_usage":false}}"#, None),
            (r#"{"stream":true,"stream_options":{"include_usage":0}}"#, None),
            (r#"{"stream":true,"stream_options":{"include_usage":null,"include_usage":null}}"#, None),
            (r#"{"stream":true,"stream_options":{"continuous_usage_stats":true}}"#, None),
            (r#"{"stream":true,"stream_options":{},"stream_options":{}}"#, None),
            (r#"{"stream":true,"stream_options":"x"}"#, None),
            (r#"{"stream":false}"#, None),
            (r#"{"stream":"true"}"#, None),
            (r#"{"n":1}"#, None),
        ];
        for (body, want) in cases {
            assert_eq!(asked(Endpoint::Chat, body).as_deref(), want, "{body}");
        }
        for endpoint in Endpoint::ALL {
            let is_asked = asked(endpoint, r#"{"stream":true}"#).is_some();
            assert_eq!(is_asked, matches!(endpoint, Endpoint::Chat | Endpoint::Completions), "{endpoint:?}");
        }
    }

    #[test]
    fn the_place_is_that_of_the_edited_body() {
        let (old, new) =
            (r#"{"max_tokens":900,"stream_options":{},"stream":true}"#, r#"{"stream_options":{},"stream":true}"#);
        let question = Question::find(Endpoint::Chat, &read(old.as_bytes()).unwrap(), new.as_bytes()).unwrap();
        assert_eq!(question.ask(new.as_bytes()), r#"{"stream_options":{"include_usage":true},"stream":true}"#);
    }

    #[test]
    fn it_is_found_again_where_a_member_before_it_has_gone_and_not_where_it_is_not() {
        for (own, left) in [
            (r#"{"rank":9,"stream_options":{},"stream":true}"#, r#"{"stream_options":{},"stream":true}"#),
            (r#"{"rank":[9] ,"stream_options":{"x":1},"stream":true}"#, r#"{"stream_options":{"x":1},"stream":true}"#),
            (
                r#"{"x":{"include_usage":true},"rank":9,"stream_options":null,"stream":true}"#,
                r#"{"x":{"include_usage":true},"stream_options":null,"stream":true}"#,
            ),
            (r#"{"rank":9,"stream":true}"#, r#"{"stream":true}"#),
        ] {
            let question = Question::find(Endpoint::Chat, &read(own.as_bytes()).unwrap(), own.as_bytes()).unwrap();
            let mut asked = question.ask(own.as_bytes());
            let mut last = LastMember::find(&mut asked, "rank").unwrap();
            assert_eq!(question.take_back(&asked).unwrap(), left);
            asked = last.write(asked, r#""rank":1"#);
            let ranked = format!(r#"{},"rank":1}}"#, left.strip_suffix('}').unwrap());
            assert_eq!(question.take_back(&asked).unwrap(), ranked, "{own}");
            assert_eq!((question.take_back(left.as_bytes()), question.take_back(b"")), (None, None), "{own}");
        }
    }

    proptest! {
        #[test]
        fn it_adds_what_it_says_and_nothing_else(
            members in prop::collection::btree_map("[a-c]", prop_oneof![Just(json!(1)), Just(json!({"stream_options": 1})), Just(json!("{"))], 0..4),
            options in prop::option::of(prop_oneof![Just(json!(null)), Just(json!({})), Just(json!({"x": [1]})), Just(json!({"include_usage": false}))]),
        ) {
            let mut meant: serde_json::Map<String, Value> = members.into_iter().collect();
            meant.insert("stream".to_owned(), json!(true));
            meant.extend(options.map(|options| (OPTIONS.to_owned(), options)));
            let body = serde_json::to_string(&meant).unwrap();
            let is_refused = meant.get(OPTIONS).is_some_and(|o| o.get("include_usage").is_some());
            let asked = asked(Endpoint::Completions, &body);
            prop_assert_eq!(asked.is_none(), is_refused);
            if let Some(asked) = asked {
                let options = meant.entry(OPTIONS).or_insert(json!({}));
                if options.is_null() {
                    *options = json!({});
                }
                options["include_usage"] = json!(true);
                prop_assert_eq!(serde_json::from_str::<Value>(&asked).unwrap(), Value::Object(meant));
            }
        }
    }
}
