//! What must and what must not change a canonical prompt.

mod anchors;
mod apis;
mod pictures;

use super::super::endpoint::Endpoint;
use super::super::request::read;
use super::*;
use crate::prefix::fingerprint::Ends;
use proptest::prelude::*;
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64;

type Kind = fn(&Request<'_>, Chain) -> Result<Fingerprints, Malformed>;

fn prints_of(text: &str, kind: Kind) -> Fingerprints {
    // a block of one byte makes every difference visible
    kind(&read(text.as_bytes()).unwrap(), Chain::new(1, 1, 1 << 20)).unwrap()
}

fn prints(body: &Value) -> Fingerprints {
    prints_of(&body.to_string(), chat)
}

fn shared(a: &Fingerprints, b: &Fingerprints) -> usize {
    a.prints.iter().zip(&b.prints).take_while(|(x, y)| x == y).count()
}

fn base() -> Value {
    json!({"model": "m", "messages": [
        {"role": "system", "content": "You are terse."},
        {"role": "user", "content": "Grüße \u{1F600}\n\"quoted\""},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "ok"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]})
}

#[test]
fn the_form_changes_only_with_its_number() {
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    let parts = json!([{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]);
    let messages = json!([{"role": "system", "content": "s"}, {"role": "user", "content": parts}, {"role": "assistant", "content": "a"}]);
    let bodies: [(Value, Kind); 5] = [
        (json!({"model": "m", "cache_salt": "x", "tools": tools, "messages": messages}), chat),
        (json!({"model": "m", "prompt": "text"}), completion),
        (json!({"model": "m", "instructions": "i", "input": "text"}), responses),
        (json!({"model": "m", "system": "s", "messages": [{"role": "user", "content": "text"}]}), anthropic),
        (json!({"text": "\"text\"\n"}), generate),
    ];
    let last = bodies.map(|(body, kind)| prints_of(&body.to_string(), kind).prints.pop().unwrap());
    let all: Vec<u8> = last.iter().flat_map(|print| print.to_le_bytes()).collect();
    assert_eq!((FORM, xxh3_64(&all)), (2, 11_447_957_239_283_589_201), "if the form has changed, so must its number");
}

#[test]
fn spacing_key_order_escapes_and_sampling_do_not_show() {
    let body = base();
    let odd = r#"{ "temperature":0.25,"tools":[{"function":{"parameters":{"properties":{},"type":"object"},"name":"f"},"type":"function"}],
        "stream":true, "messages" : [ {"content":"You are terse.","role":"system"},
        {"content":[{"type":"text","text":"Gr\u00fc\u00dfe \ud83d\ude00\u000a\u0022quoted\""}],"role":"user"},
        {"tool_calls":[{"function":{"arguments":"{}","name":"f"},"id":"c1","type":"function"}],"role":"assistant"},
        {"role":"tool","content":[{"text":"ok","type":"text","cache_control":{"type":"ephemeral"}}],"tool_call_id":"c1"}],
        "model":"\u006d","user":"u-7","seed":3}"#;
    assert_eq!(prints(&body), prints_of(odd, chat));
}

#[test]
fn keys_beyond_ascii_stand_in_the_same_order_however_they_are_escaped() {
    let plain = r#"{"messages":[{"role":"user","content":"x"}],"tools":[{"zoll":1,"größe":2,"élan":{"é":1,"z":2}}]}"#;
    let escaped = plain.replace('ö', r"\u00f6").replace('ß', r"\u00df").replace('é', r"\u00e9");
    assert_eq!(prints_of(plain, chat), prints_of(&escaped, chat));
}

#[test]
fn a_longer_conversation_shares_all_of_the_shorter_one() {
    let short = base();
    let mut long = base();
    long["messages"].as_array_mut().unwrap().push(json!({"role": "user", "content": "next"}));
    let (a, b) = (prints(&short), prints(&long));
    assert_eq!(shared(&a, &b), a.prints.len());
    assert!(b.prints.len() > a.prints.len());
}

/// The place where a turn's prompt ends is found again in the next turn, whatever the block.
#[test]
fn a_turn_knows_where_the_one_before_ended() {
    let ends = |body: &Value, block| {
        chat(&read(body.to_string().as_bytes()).unwrap(), Chain::new(1, block, 1 << 20)).unwrap().ends
    };
    let mut body = base();
    body["messages"].as_array_mut().unwrap().truncate(2);
    for block in [1, 16, 4096] {
        let mut turns = vec![ends(&body, block)];
        let mut next = body.clone();
        for n in 0..3 {
            let messages = next["messages"].as_array_mut().unwrap();
            messages.push(json!({"role": "assistant", "content": format!("answer {n}")}));
            messages.push(json!({"role": "tool", "tool_call_id": "c1", "content": "ok"}));
            messages.push(json!({"role": "user", "content": "go on"}));
            turns.push(ends(&next, block));
        }
        assert_eq!(turns[0].previous, None);
        assert!(
            turns.windows(2).all(|w| w[0].own.is_some() && w[1].previous == w[0].own && w[1].own != w[0].own),
            "{turns:?}"
        );
    }
    assert_eq!(chat(&read(body.to_string().as_bytes()).unwrap(), Chain::new(1, 8, 8)).unwrap().ends, Ends::default());
}

#[test]
fn what_the_engine_reads_first_or_apart_changes_everything_after_it() {
    let a = prints(&base());
    for (key, other) in
        [("tools", json!([{"type": "function"}])), ("chat_template_kwargs", json!({"enable_thinking": false}))]
    {
        let mut body = base();
        body[key] = other;
        assert!(shared(&a, &prints(&body)) < 40, "{key}");
    }
}

#[test]
fn another_model_adapter_or_salt_shares_nothing() {
    let mut body = base();
    body["messages"][0]["content"] = json!("You are terse. ".repeat(1000));
    let a = prints(&body);
    for (key, other) in [("model", "n"), ("cache_salt", "tenant"), ("lora_path", "adapter"), ("lora", "x")] {
        let mut apart = body.clone();
        apart[key] = json!(other);
        assert!(shared(&a, &prints(&apart)) <= 2, "{key}");
    }
}

#[test]
fn tools_come_after_the_instructions_and_before_the_conversation() {
    let a = prints(&base());
    let mut body = base();
    body["messages"][1]["content"] = json!("another question");
    let with_tools = shared(&a, &prints(&body));
    assert!(with_tools > "m You are terse. tools properties".len() + 60, "{with_tools}");
}

#[test]
fn completions_read_text_and_token_ids() {
    let text = prints_of(r#"{"model":"m","prompt":"abc"}"#, completion);
    assert_eq!(text.bytes, 2 + 3);
    let ids = prints_of(r#"{"model":"m","prompt":[1, 2,30000]}"#, completion);
    let more = prints_of(r#"{"model":"m","prompt":[1,2,30000,4]}"#, completion);
    assert_eq!((ids.bytes, shared(&ids, &more)), (2 + 12, 14));
    let lists = prints_of(r#"{"model":"m","prompt":[[1],[2]]}"#, completion);
    assert_ne!(lists, prints_of(r#"{"model":"m","prompt":[1,2]}"#, completion));
}

#[test]
fn broken_messages_are_malformed_not_a_panic() {
    for body in [r#"{"messages":"x"}"#, r#"{"messages":[1]}"#, r#"{"messages":{"a":1}}"#] {
        assert!(chat(&read(body.as_bytes()).unwrap(), Chain::new(1, 64, 1024)).is_err(), "{body}");
    }
}

#[test]
fn deep_nesting_costs_neither_the_stack_nor_the_request() {
    let deep = "[".repeat(200_000) + &"]".repeat(200_000);
    let objects = "{\"a\":".repeat(200_000) + "1" + &"}".repeat(200_000);
    for nest in [deep, objects] {
        for body in [
            format!(r#"{{"messages":[],"tools":{nest}}}"#),
            format!(r#"{{"messages":[{{"role":"user","content":{nest}}}]}}"#),
            format!(r#"{{"messages":[{{"role":"user","content":[{nest}]}}]}}"#),
            format!(r#"{{"messages":[{{"role":"user","content":[{{"image_url":{nest}}}]}}]}}"#),
            format!(r#"{{"messages":[{{"role":"user","content":[{{"content":{nest},"source":{nest}}}]}}]}}"#),
            format!(r#"{{"messages":[],"prompt":{nest}}}"#),
            format!(r#"{{"messages":[],"input":[{{"role":"user","content":{nest}}},{{"output":{nest},"x":{nest}}}]}}"#),
            format!(r#"{{"messages":[],"system":{nest},"thinking":{nest},"image_data":{nest},"text":{nest}}}"#),
        ] {
            let request = read(body.as_bytes()).unwrap();
            assert!(chat(&request, Chain::new(1, 64, 1 << 20)).is_ok());
            for kind in [completion, anthropic, generate, responses] {
                assert!(kind(&request, Chain::new(1, 64, 1 << 20)).is_ok());
            }
        }
    }
}

#[test]
fn nulls_and_spacing_in_parts_do_not_show() {
    let content = |text: &str| prints_of(&format!(r#"{{"messages":[{{"role":"user","content":{text}}}]}}"#), chat);
    let plain = content(r#""hi""#);
    assert_eq!(plain, content(r#"[{"type":"text","text":"hi","image_url":null,"refusal":null}]"#));
    let picture = content(r#"[{"type":"image_url","image_url":{"url":"data:x","detail":"low"}}]"#);
    assert_eq!(picture, content(r#"[{"image_url":{ "detail" : "low", "url" : "data:x" },"type":"image_url"}]"#));
    assert_ne!(picture, content(r#"[{"type":"image_url","image_url":{"url":"data:y","detail":"low"}}]"#));
    assert_ne!(picture, content(r#"[{"type":"image_url","image_url":{"url":"data:x"}}]"#));
}

proptest! {
    #[test]
    fn arbitrary_text_never_panics(text in "[\\[\\]{}:,\"\\\\a-z0-9 ]{0,80}") {
        let body = format!(r#"{{"messages":[{{"role":"assistant","content":{text}}},{text}],"tools":{text},"input":[{text},{{"type":"a_call","output":{text}}}],"system":{text}}}"#);
        if let Ok(request) = read(body.as_bytes()) {
            for kind in [chat, anthropic, completion, generate, responses] {
                let _unused = kind(&request, Chain::new(1, 16, 4096));
            }
            for endpoint in Endpoint::ALL {
                let _unused = anchor(endpoint, &request, 1);
            }
        }
    }

    #[test]
    fn different_contents_differ(a in ".{1,40}", b in ".{1,40}") {
        let body = |s: &str| prints(&json!({"messages": [{"role": "user", "content": s}]}));
        prop_assert_eq!(a == b, body(&a) == body(&b));
    }
}
