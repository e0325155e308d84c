//! Arbitrary bodies, honest and broken: whatever comes, every reader ends, in time that grows with the size alone, and
//! what is written in says what was meant.

use super::*;
use crate::api::edit::LastMember;
use crate::api::model::{Aliases, Form};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::Value;

const SHAPE: PromptShape = PromptShape { secret: 1, block_bytes: 256, max_prefix_bytes: 1 << 20 };
const RULES: Compat = Compat {
    strip_max_tokens_over: Some(100),
    flatten_text_parts: true,
    drop_unknown_reasoning_effort: true,
    ask_usage: false,
};

/// Names that some reader knows.
const NAMES: [&str; 32] = [
    "model",
    "messages",
    "role",
    "content",
    "type",
    "text",
    "input",
    "prompt",
    "system",
    "instructions",
    "tools",
    "image_url",
    "url",
    "source",
    "data",
    "input_ids",
    "image_data",
    "stream",
    "n",
    "max_tokens",
    "reasoning_effort",
    "reasoning",
    "thinking",
    "tool_calls",
    "cache_control",
    "previous_response_id",
    "input_file_id",
    "store",
    "prompt_cache_key",
    "input_audio",
    "sampling_params",
    "cache_salt",
];
const WORDS: [&str; 14] = [
    "user",
    "system",
    "developer",
    "assistant",
    "tool",
    "text",
    "input_text",
    "image_url",
    "message",
    "function_call",
    "thinking",
    "low",
    "data:image/png;base64,AAAA",
    "x",
];

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        // the test's own reader rounds other fractions
        any::<i32>().prop_map(|n| Value::from(f64::from(n) / 8.0)),
        select(&WORDS[..]).prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 64, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            object(inner).prop_map(Value::Object),
        ]
    })
}

fn object(value: impl Strategy<Value = Value>) -> impl Strategy<Value = serde_json::Map<String, Value>> {
    prop::collection::btree_map(select(&NAMES[..]), value, 0..8)
        .prop_map(|map| map.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

/// Every reader of every API.
fn read_all(body: &Bytes) {
    for endpoint in Endpoint::ALL {
        prepare(endpoint, body, &SHAPE, RULES);
    }
    let aliases = Aliases::new([("x".to_owned(), "y".to_owned())]);
    for form in [Form::Json, Form::Multipart("x")] {
        let _resolved = aliases.resolve(form, body);
    }
    let mut edited = body.clone();
    if let Some(mut last) = LastMember::find(&mut edited, "rank") {
        last.write(edited, "\"rank\":1");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_body_stops_a_reader(
        value in object(json()),
        pretty in any::<bool>(),
        hits in prop::collection::vec((any::<prop::sample::Index>(), select(&b"{}[]\",:\\u09- \n\xff\x00"[..])), 0..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let text = if pretty { serde_json::to_vec_pretty(&value) } else { serde_json::to_vec(&value) };
        let mut bytes = text.unwrap();
        for (at, byte) in hits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len() + 1));
        }
        read_all(&Bytes::from(bytes));
    }

    #[test]
    fn no_bytes_stop_a_reader(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        read_all(&Bytes::from(bytes));
    }

    #[test]
    fn an_edited_body_is_read_as_the_one_that_came(value in object(json()), pretty in any::<bool>()) {
        let text = if pretty { serde_json::to_vec_pretty(&value) } else { serde_json::to_vec(&value) };
        let body = Bytes::from(text.unwrap());
        for endpoint in Endpoint::ALL {
            let before = prepare(endpoint, &body, &SHAPE, RULES);
            let Some(edited) = before.edited else { continue };
            prop_assert!(serde_json::from_slice::<Value>(&edited).is_ok());
            let after = prepare(endpoint, &edited, &SHAPE, RULES);
            prop_assert!(after.edited.is_none(), "nothing is left to edit");
            prop_assert_eq!((before.chain, before.anchor, before.model), (after.chain, after.anchor, after.model));
        }
    }

    #[test]
    fn a_last_member_is_the_only_change(value in object(json()), rank in any::<u16>(), pretty in any::<bool>()) {
        let text = if pretty { serde_json::to_vec_pretty(&value) } else { serde_json::to_vec(&value) };
        // a name that is there at times
        for name in ["rank", "n"] {
            let mut body = Bytes::from(text.as_ref().unwrap().clone());
            let mut last = LastMember::find(&mut body, name).unwrap();
            let body = last.write(body, &format!("\"{name}\":{rank}"));
            let mut want = value.clone();
            want.insert(name.to_owned(), Value::from(rank));
            prop_assert_eq!(serde_json::from_slice::<Value>(&body).unwrap(), Value::Object(want));
        }
    }
}

/// A body around a filling.
type Wrap = fn(&str) -> String;

/// Time that this thread has had on a processor: what else runs there does not count.
fn processor_ns() -> u64 {
    let seen = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    seen.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn no_shape_of_body_takes_more_than_its_size() {
    let many = |piece: &str, size: usize| piece.repeat(size / piece.len());
    let shapes: [(&str, Wrap, &str); 9] = [
        ("nested lists", |s| format!(r#"{{"messages":[{{"content":{s}"#), "["),
        ("nested objects", |s| format!(r#"{{"tools":{s}"#), r#"{"a":"#),
        (
            "messages",
            |s| format!(r#"{{"messages":[{s}{{}}]}}"#),
            r#"{"role":"system","content":[{"type":"text","text":"a"}]},"#,
        ),
        ("parts", |s| format!(r#"{{"messages":[{{"content":[{s}{{}}]}}]}}"#), r#"{"type":"text","text":"a"},"#),
        ("escapes", |s| format!(r#"{{"prompt":"{s}","input":"{s}"}}"#), r"\u0041\n"),
        ("backslashes", |s| format!(r#"{{"messages":[{{"content":"{s}"}}]}}"#), r"\\"),
        ("members again", |s| format!(r#"{{{s}"z":1}}"#), r#""messages":[{}],"tools":[],"input":[],"#),
        ("limits", |s| format!(r#"{{{s}"z":1}}"#), r#""max_tokens":999 , "reasoning_effort" : "?"   ,"#),
        ("last limits", |s| format!(r#"{{"z":1{s}}}"#), r#"    ,    "max_tokens":999"#),
    ];
    for (name, wrap, piece) in shapes {
        let [small, large] = [16 << 10, 256 << 10].map(|size| Bytes::from(wrap(&many(piece, size))));
        // the clock is one of milliseconds
        let fastest = |body: &Bytes, times: usize| {
            let once = |_| {
                let started = processor_ns();
                (0..times).for_each(|_| read_all(body));
                processor_ns() - started
            };
            (0..3).map(once).min().unwrap().max(4_000_000)
        };
        // as many bytes: a reader that goes back would take 16 times as long over those that are in one piece
        let (small, large) = (fastest(&small, 16), fastest(&large, 1));
        assert!(large < 6 * small, "{name}: {small} {large}");
    }
}
