//! Responses, Messages and Generate: the same care as for chat.

use super::*;

fn of_responses(body: &Value) -> Fingerprints {
    prints_of(&body.to_string(), responses)
}

fn of_messages(body: &Value) -> Fingerprints {
    prints_of(&body.to_string(), anthropic)
}

fn responses_base() -> Value {
    json!({"model": "m", "instructions": "You are terse.", "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Mind the gap."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Grüße \u{1F600}"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}", "status": "completed"},
        {"type": "function_call_output", "call_id": "c1", "output": "ok"}],
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}]})
}

fn messages_base() -> Value {
    json!({"model": "m", "max_tokens": 5, "system": "You are terse.", "messages": [
        {"role": "user", "content": "Grüße \u{1F600}"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s1"}, {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1, "b": 2}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "ok"}]}],
        "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {}}}]})
}

#[test]
fn what_responses_do_not_render_does_not_show() {
    let odd = r#"{ "temperature":0.25, "store":false, "tools":[{"parameters":{"properties":{},"type":"object"},"name":"f","type":"function"}],
        "input" : [ {"content":"Mind the gap.","role":"developer"},
        {"content":[{"type":"input_text","text":"Gr\u00fc\u00dfe \ud83d\ude00"}],"role":"user","id":"msg_9","status":"completed"},
        {"content":[{"type":"reasoning_text","text":"hm"}],"type":"reasoning","summary":[],"id":"rs_2","encrypted_content":null},
        {"arguments":"{}","name":"f","call_id":"c1","id":"fc_2","type":"function_call"},
        {"output":[{"type":"input_text","text":"ok"}],"call_id":"c1","type":"function_call_output"}],
        "stream":true,"instructions":"You are terse.","model":"m","prompt_cache_key":"k","max_output_tokens":3}"#;
    assert_eq!(of_responses(&responses_base()), prints_of(odd, responses));
}

#[test]
fn what_messages_do_not_render_does_not_show() {
    let odd = r#"{ "messages" : [ {"content":[{"type":"text","text":"Gr\u00fc\u00dfe \ud83d\ude00","cache_control":{"type":"ephemeral"}}],"role":"user"},
        {"role":"assistant","content":[{"thinking":"hm","type":"thinking","signature":"s2"},{"text":"I look.","type":"text","citations":null},
        {"input":{"b":2,"a":1},"name":"f","id":"t1","type":"tool_use","cache_control":{"type":"ephemeral"}}]},
        {"role":"user","content":[{"content":[{"type":"text","text":"ok","cache_control":{"type":"ephemeral","ttl":"1h"}}],"tool_use_id":"t1","type":"tool_result","cache_control":{"type":"ephemeral"}}]}],
        "tools":[{"cache_control":{"type":"ephemeral"},"input_schema":{"properties":{},"type":"object"},"description":"d","name":"f"}],
        "system":[{"type":"text","text":"You are terse.","cache_control":{"type":"ephemeral"}}],"metadata":{"user_id":"u"},
        "stream":true,"model":"m","max_tokens":9,"temperature":1.0,"stop_sequences":["x"]}"#;
    assert_eq!(of_messages(&messages_base()), prints_of(odd, anthropic));
}

#[test]
fn the_budget_of_thinking_does_not_show_but_whether_to_think_does() {
    let with = |thinking: Value| {
        let mut body = messages_base();
        body["thinking"] = thinking;
        of_messages(&body)
    };
    let on = with(json!({"type": "enabled", "budget_tokens": 1024}));
    assert_eq!(on, with(json!({"budget_tokens": 32000, "type": "enabled"})));
    assert_ne!(on, of_messages(&messages_base()));
    assert_eq!(with(Value::Null), of_messages(&messages_base()));
}

#[test]
fn longer_conversations_share_all_of_the_shorter_ones() {
    let mut long = responses_base();
    long["input"].as_array_mut().unwrap().push(json!({"type": "message", "role": "assistant", "id": "msg_1",
        "content": [{"type": "output_text", "text": "done", "annotations": [], "logprobs": []}]}));
    let (a, b) = (of_responses(&responses_base()), of_responses(&long));
    assert!(shared(&a, &b) == a.prints.len() && b.prints.len() > a.prints.len());
    let mut long = messages_base();
    long["messages"].as_array_mut().unwrap().push(json!({"role": "assistant", "content": "done"}));
    let (a, b) = (of_messages(&messages_base()), of_messages(&long));
    assert!(shared(&a, &b) == a.prints.len() && b.prints.len() > a.prints.len());
}

#[test]
fn every_item_and_block_counts() {
    let base = of_responses(&responses_base());
    for n in 0..5 {
        let mut body = responses_base();
        body["input"].as_array_mut().unwrap().remove(n);
        assert_ne!(of_responses(&body), base, "item {n}");
    }
    let base = of_messages(&messages_base());
    for n in 0..3 {
        let mut body = messages_base();
        body["messages"][1]["content"].as_array_mut().unwrap().remove(n);
        assert_ne!(of_messages(&body), base, "block {n}");
    }
    for (pointer, other) in [
        ("/system", "Other."),
        ("/messages/1/content/0/thinking", "ha"),
        ("/messages/1/content/2/name", "g"),
        ("/messages/2/content/0/content", "not ok"),
        ("/messages/2/content/0/tool_use_id", "t2"),
        ("/tools/0/description", "e"),
    ] {
        let mut body = messages_base();
        *body.pointer_mut(pointer).unwrap() = json!(other);
        assert_ne!(of_messages(&body), base, "{pointer}");
    }
}

#[test]
fn another_model_or_salt_shares_nothing() {
    for (base, kind) in [(responses_base(), responses as fn(&Request<'_>, Chain) -> _), (messages_base(), anthropic)] {
        let a = prints_of(&base.to_string(), kind);
        for (key, other) in [("model", "n"), ("cache_salt", "tenant")] {
            let mut apart = base.clone();
            apart[key] = json!(other);
            assert!(shared(&a, &prints_of(&apart.to_string(), kind)) <= 2, "{key}");
        }
    }
}

#[test]
fn one_conversation_is_the_same_in_the_words_of_three_apis() {
    let chat_prints = prints(&json!({"model": "m", "messages": [
        {"role": "system", "content": "S"}, {"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}]}));
    assert_eq!(
        chat_prints,
        of_messages(&json!({"model": "m", "system": "S", "messages": [
        {"role": "user", "content": "U"}, {"role": "assistant", "content": [{"type": "text", "text": "A"}]}]}))
    );
    assert_eq!(
        chat_prints,
        of_responses(&json!({"model": "m", "instructions": "S", "input": [
        {"role": "user", "content": "U"}, {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A"}]}]}))
    );
    let one = json!({"model": "m", "input": [{"role": "user", "content": [{"type": "input_text", "text": "U"}]}]});
    assert_eq!(of_responses(&one), of_responses(&json!({"model": "m", "input": "U"})));
}

#[test]
fn what_continues_a_kept_response_is_hidden() {
    for (body, hidden) in [
        (r#"{"input":"x"}"#, false),
        (r#"{"input":"x","previous_response_id":null,"conversation":null,"prompt":null}"#, false),
        (r#"{"input":"x","previous_response_id":"resp_1"}"#, true),
        (r#"{"input":"x","conversation":{"id":"conv_1"}}"#, true),
        (r#"{"input":"x","prompt":{"id":"pmpt_1","variables":{}}}"#, true),
    ] {
        assert_eq!(is_hidden(&read(body.as_bytes()).unwrap()), hidden, "{body}");
    }
    let reference = |id: &str| of_responses(&json!({"input": [{"type": "item_reference", "id": id}]}));
    assert_ne!(reference("msg_1"), reference("msg_2"));
}

#[test]
fn generate_reads_text_or_token_ids() {
    let of = |body: &str| prints_of(body, generate);
    let text = of(r#"{"text":"abc","sampling_params":{"temperature":0}}"#);
    assert_eq!(text, of(r#"{"sampling_params":{"max_new_tokens":7},"text":"\u0061bc","stream":true}"#));
    assert_eq!(text.bytes, 1 + 3);
    let (ids, more) = (of(r#"{"input_ids":[1,2]}"#), of(r#"{"input_ids":[1,2,3]}"#));
    assert_eq!(shared(&ids, &more), ids.prints.len());
}

#[test]
fn broken_input_is_malformed_not_a_panic() {
    for body in [r#"{"input":7}"#, r#"{"input":[1]}"#, r#"{"input":{"a":1}}"#] {
        assert!(responses(&read(body.as_bytes()).unwrap(), Chain::new(1, 64, 1024)).is_err(), "{body}");
    }
}
