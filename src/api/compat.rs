//! What is changed in a chat request because engines stumble over it, as edits of single spans. Pure.
//!
//! - **Token limits** beyond all bounds mean "no limit" to whoever sends them, and engines refuse them.
//! - **Content of one text part** becomes that text: the same to every chat template, and readable for engines and
//!   templates that know strings only. Several parts stay as they are: what stands between them is the engine's business
//!   (vLLM puts a line feed, SGLang a space, a template that reads parts nothing), so any one string would change the
//!   prompt for some engine. So does a part with more than its type and text, which would be lost.
//! - **`reasoning_effort`** outside the words that any engine knows is refused by engines that check it; left out, the
//!   engine's default counts.

use super::edit::{Change, apply, limits_over};
use super::endpoint::Endpoint;
use super::json::{Cursor, Kind, Malformed};
use super::request::{EFFORT, Member, Request};
use bytes::Bytes;
use std::ops::Range;

/// The words for an effort that at least one engine or model understands.
pub const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// Which changes are made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Compat {
    /// Token limits above this are removed.
    pub strip_max_tokens_over: Option<u64>,
    /// Whether content of one text part becomes a string.
    pub flatten_text_parts: bool,
    /// Whether an effort that is none of [`EFFORTS`] is removed.
    pub drop_unknown_reasoning_effort: bool,
    /// Whether usage is asked for where the client did not ask; see [`super::usage`].
    pub ask_usage: bool,
}

/// The body as the engine gets it, if any rule applies; what `request` says of a member that goes is taken out of it as
/// well, so that what is fingerprinted is what the engine reads.
pub fn suit<'a>(endpoint: Endpoint, body: &'a Bytes, request: &mut Request<'a>, rules: Compat) -> Option<Bytes> {
    let mut changes = Vec::new();
    // elsewhere a limit is not optional, or is clamped by engines themselves
    if let (Endpoint::Chat | Endpoint::Completions, Some(over)) = (endpoint, rules.strip_max_tokens_over) {
        changes.extend(limits_over(&request.limits, over));
    }
    if endpoint == Endpoint::Chat && rules.drop_unknown_reasoning_effort {
        drop_efforts(body, request, &mut changes);
    }
    if endpoint == Endpoint::Chat && rules.flatten_text_parts {
        for content in request.messages.iter().flatten().filter_map(|m| m.content) {
            flatten(body, content, &mut changes);
        }
    }
    (!changes.is_empty()).then(|| apply(body, changes))
}

fn drop_efforts<'a>(body: &'a Bytes, request: &mut Request<'a>, changes: &mut Vec<Change>) {
    let is_known = |value: &[u8]| {
        value == b"null" || Cursor::new(value).string().is_ok_and(|word| word.position(&EFFORTS).is_some())
    };
    let value_of = |member: &Member| &body[member.value_at..member.span.end];
    let unknown = request.efforts.iter().filter(|member| !is_known(value_of(member)));
    let dropped: Vec<_> = unknown.map(|member| Change::Remove(member.span.clone())).collect();
    if !dropped.is_empty() {
        let left = request.efforts.iter().map(value_of).rfind(|value| is_known(value));
        request.rendered[EFFORT] = left.filter(|value| *value != b"null");
        changes.extend(dropped);
    }
}

/// Cuts what stands around the text, if there is nothing else in the content.
fn flatten(body: &Bytes, content: &[u8], changes: &mut Vec<Change>) {
    let Some(text) = only_text(content) else { return };
    let start = content.as_ptr() as usize - body.as_ptr() as usize;
    changes.push(Change::Cut(start..start + text.start));
    changes.push(Change::Cut(start + text.end..start + content.len()));
}

/// Where the string of the only part is, quotes included, if the content is a list of one text part and no more.
fn only_text(content: &[u8]) -> Option<Range<usize>> {
    let mut cursor = Cursor::new(content);
    if cursor.kind().ok()? != Kind::Array {
        return None;
    }
    let (mut text_at, mut has_type, mut parts) = (None, false, 0);
    let whole = cursor.array(|item| {
        parts += 1;
        let other = Malformed { at: item.offset() };
        if parts > 1 {
            return Err(other);
        }
        item.object(|key, value| {
            let at = value.offset();
            let text = value.skip()?;
            if key.is("type") && !has_type && Cursor::new(text).string().is_ok_and(|word| word.is("text")) {
                has_type = true;
            } else if key.is("text") && text_at.is_none() && text.starts_with(b"\"") {
                text_at = Some(at..at + text.len());
            } else {
                return Err(other);
            }
            Ok(())
        })
    });
    text_at.filter(|_| whole.is_ok() && has_type)
}

#[cfg(test)]
mod tests {
    use super::super::request::read;
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    const ALL: Compat = Compat {
        strip_max_tokens_over: Some(100),
        flatten_text_parts: true,
        drop_unknown_reasoning_effort: true,
        ask_usage: false,
    };

    fn suited(endpoint: Endpoint, body: &str, rules: Compat) -> Option<String> {
        let body = Bytes::copy_from_slice(body.as_bytes());
        let mut request = read(&body).unwrap();
        suit(endpoint, &body, &mut request, rules).map(|b| String::from_utf8(b.to_vec()).unwrap())
    }

    #[test]
    fn one_text_part_becomes_its_text_and_nothing_else_changes() {
        let cases = [
            (r#"[{"type":"text","text":"a\u00e9\n"}]"#, Some(r#""a\u00e9\n""#)),
            (r#" [ { "text" : "" , "type" : "text" } ] "#, Some(r#" "" "#)),
            (r#"[{"t\u0079pe":"te\u0078t","text":"x"}]"#, Some(r#""x""#)),
            // more than one string could be meant
            (r#"[{"type":"text","text":"a"},{"type":"text","text":"b"}]"#, None),
            (r#"[{"type":"text","text":"a","text":"b"}]"#, None),
            // something would be lost
            (r#"[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]"#, None),
            (r#"[{"type":"image_url","image_url":{"url":"x"}}]"#, None),
            (r#"[{"type":"input_text","text":"a"}]"#, None),
            (r#"[{"type":"text","text":null}]"#, None),
            (r#"[{"text":"a"}]"#, None),
            (r#"[{"type":"text"}]"#, None),
            ("[]", None),
            (r#"["a"]"#, None),
            (r#""a""#, None),
            ("null", None),
        ];
        for (content, want) in cases {
            let body = |content: &str| {
                format!(r#"{{"a":1.50,"messages":[{{"role":"user","content":{content}, "x":1e2}}],"b" : "\/"}}"#)
            };
            assert_eq!(suited(Endpoint::Chat, &body(content), ALL), want.map(body), "{content}");
        }
    }

    #[test]
    fn an_effort_that_nobody_knows_goes() {
        let cases = [
            (r#"{"reasoning_effort":"auto","n":1.0}"#, Some(r#"{"n":1.0}"#)),
            (r#"{"n":1.0 , "reasoning_effort" : 5 }"#, Some(r#"{"n":1.0  }"#)),
            (r#"{"reasoning_effort":"","reasoning_effort":"low"}"#, Some(r#"{"reasoning_effort":"low"}"#)),
            (r#"{"reasoning_effort":null}"#, None),
            (r#"{"reasoning_effort":"m\u0061x"}"#, None),
            (r#"{"x":{"reasoning_effort":"auto"}}"#, None),
        ];
        for (body, want) in cases {
            assert_eq!(suited(Endpoint::Chat, body, ALL).as_deref(), want, "{body}");
        }
        for word in EFFORTS {
            assert_eq!(suited(Endpoint::Chat, &format!(r#"{{"reasoning_effort":"{word}"}}"#), ALL), None);
        }
    }

    #[test]
    fn what_goes_is_not_fingerprinted_either() {
        let rendered = |text: &'static str| {
            let body = Bytes::from_static(text.as_bytes());
            let mut request = read(&body).unwrap();
            suit(Endpoint::Chat, &body, &mut request, ALL);
            request.rendered[EFFORT].map(<[u8]>::to_vec)
        };
        assert_eq!(rendered(r#"{"reasoning_effort":"auto"}"#), None);
        assert_eq!(rendered(r#"{"reasoning_effort":"low","reasoning_effort":"auto"}"#), Some(b"\"low\"".to_vec()));
        assert_eq!(rendered(r#"{"reasoning_effort":"high"}"#), Some(b"\"high\"".to_vec()));
    }

    #[test]
    fn each_rule_can_be_off_and_other_apis_are_left_alone() {
        let body = r#"{"max_tokens":900,"reasoning_effort":"x","messages":[{"content":[{"type":"text","text":"a"}]}]}"#;
        let with = |rules| suited(Endpoint::Chat, body, rules).unwrap_or_else(|| body.to_owned());
        let off = Compat::default();
        assert_eq!(with(off), body);
        assert_eq!(
            with(Compat { flatten_text_parts: true, ..off }),
            body.replace(r#"[{"type":"text","text":"a"}]"#, "\"a\"")
        );
        assert_eq!(
            with(Compat { drop_unknown_reasoning_effort: true, ..off }),
            body.replace(r#""reasoning_effort":"x","#, "")
        );
        assert_eq!(with(ALL), r#"{"messages":[{"content":"a"}]}"#);
        for endpoint in Endpoint::ALL.into_iter().filter(|e| !matches!(e, Endpoint::Chat | Endpoint::Completions)) {
            assert_eq!(suited(endpoint, body, ALL), None, "{endpoint:?}");
        }
        let completion = suited(Endpoint::Completions, body, ALL).unwrap();
        assert_eq!(completion, body.replace(r#""max_tokens":900,"#, ""));
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<u32>().prop_map(Value::from),
            "[a\"\\\\\u{e9}\n]{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 12, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("type|text|role|content|[a-b]", inner, 0..4)
                    .prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        })
    }

    fn content() -> impl Strategy<Value = Value> {
        let part = "[a-c\"\\\\]{0,5}".prop_map(|t| serde_json::json!({"type": "text", "text": t}));
        prop_oneof![prop::collection::vec(part, 0..3).prop_map(Value::from), json()]
    }

    /// What the rules mean, on a tree.
    fn meant(mut value: Value) -> Value {
        let top = value.as_object_mut().unwrap();
        top.retain(|key, v| match &**key {
            "max_tokens" => v.as_u64().is_none_or(|n| n <= 100),
            "reasoning_effort" => v.is_null() || v.as_str().is_some_and(|w| EFFORTS.contains(&w)),
            _ => true,
        });
        let messages = top.get_mut("messages").and_then(Value::as_array_mut);
        for message in messages.into_iter().flatten() {
            let Some(content) = message.get_mut("content") else { continue };
            if let Some([Value::Object(part)]) = content.as_array().map(Vec::as_slice)
                && let (2, Some("text"), Some(Value::String(text))) =
                    (part.len(), part.get("type").and_then(Value::as_str), part.get("text"))
            {
                *content = Value::String(text.clone());
            }
        }
        value
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn an_edited_body_says_what_was_meant_and_no_more(
            contents in prop::collection::vec(content(), 0..4),
            effort in prop::option::of(prop_oneof![Just(Value::from("low")), json()]),
            limit in prop::option::of(0u64..200),
            extra in prop::option::of(json()),
            pretty in any::<bool>(),
        ) {
            let messages: Vec<_> = contents.into_iter().map(|c| serde_json::json!({"role": "user", "content": c})).collect();
            let mut value = serde_json::json!({ "messages": messages });
            let members = [("reasoning_effort", effort), ("max_tokens", limit.map(Value::from)), ("z", extra)];
            for (name, member) in members {
                if let Some(member) = member {
                    value[name] = member;
                }
            }
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
            let after = suited(Endpoint::Chat, &text, ALL);
            let meant = meant(value.clone());
            prop_assert_eq!(after.is_some(), meant != value);
            let after: Value = serde_json::from_str(after.as_deref().unwrap_or(&text)).unwrap();
            prop_assert_eq!(after, meant);
        }
    }
}
