//! The anchor: the same over the turns of a conversation whose head changes, another one for every conversation.

use super::*;

/// The anchor of a conversation of `turns` exchanges in the words of one API.
fn anchor_of(endpoint: Endpoint, system: &str, user: &str, seed: &str, turns: usize) -> Option<u64> {
    let system_first = endpoint == Endpoint::Chat;
    let mut list = vec![];
    if system_first {
        list.push(json!({"role": "system", "content": system}));
    }
    list.push(json!({"role": "user", "content": user}));
    for n in 0..turns {
        list.push(json!({"role": "assistant", "content": format!("{seed}: I have thought about it, part {n}")}));
        list.push(json!({"role": "user", "content": format!("{seed}: then do part {n}")}));
    }
    let body = match endpoint {
        Endpoint::Responses => json!({"model": "m", "instructions": system, "input": list}),
        _ => json!({"model": "m", "system": system, "messages": list}),
    };
    anchor(endpoint, &read(body.to_string().as_bytes()).unwrap(), 7)
}

const TALKING: [Endpoint; 3] = [Endpoint::Chat, Endpoint::Messages, Endpoint::Responses];

fn of_body(endpoint: Endpoint, body: &Value) -> Option<u64> {
    anchor(endpoint, &read(body.to_string().as_bytes()).unwrap(), 7)
}

#[test]
fn there_is_none_before_the_second_turn_or_without_turns() {
    for endpoint in TALKING {
        assert_eq!(anchor_of(endpoint, "s", "u", "x", 0), None);
        assert!(anchor_of(endpoint, "s", "u", "x", 1).is_some());
    }
    let body = json!({"prompt": "x", "messages": [{"role": "assistant", "content": "a".repeat(50)}, {"role": "user"}]});
    assert_eq!(of_body(Endpoint::Completions, &body), None);
    assert!(of_body(Endpoint::Chat, &body).is_some());
    let curt = json!({"messages": [{"role": "assistant", "content": ""}, {"role": "user", "content": "?"}]});
    assert_eq!(of_body(Endpoint::Chat, &curt), None);
}

#[test]
fn reasoning_that_is_dropped_later_does_not_move_it() {
    let chat = |member: &str| {
        of_body(
            Endpoint::Chat,
            &json!({"messages": [{"role": "user", "content": "u"},
            {"role": "assistant", "content": "Let me look at the files.", member: "long thoughts"}, {"role": "user", "content": "ok"}]}),
        )
    };
    assert_eq!(chat("reasoning_content"), chat("unrelated"));
    let thinking = json!({"type": "thinking", "thinking": "hm", "signature": "s"});
    let text = json!({"type": "text", "text": "Let me look at the files."});
    let blocks = |list: &[&Value]| {
        of_body(
            Endpoint::Messages,
            &json!({"messages": [{"role": "user", "content": "u"},
            {"role": "assistant", "content": list}, {"role": "user", "content": "ok"}]}),
        )
    };
    assert_eq!(blocks(&[&thinking, &text]), blocks(&[&text]));
    let items = |list: &[Value]| of_body(Endpoint::Responses, &json!({"input": list}));
    let call = json!({"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"});
    let output = json!({"type": "function_call_output", "call_id": "c1", "output": "ok"});
    let reasoning = json!({"type": "reasoning", "id": "rs", "summary": []});
    let plain = items(&[call.clone(), output.clone()]);
    assert!(plain.is_some());
    assert_eq!(items(&[reasoning.clone(), call, reasoning, output]), plain);
}

#[test]
fn the_answer_tells_apart_conversations_that_begin_with_the_same_call() {
    let with = |result: &str| {
        of_body(
            Endpoint::Messages,
            &json!({"messages": [{"role": "user", "content": "u"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "bash:0", "name": "bash", "input": {"command": "ls"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "bash:0", "content": result}]}]}),
        )
    };
    assert_ne!(with("src tests"), with("app lib"));
}

#[test]
fn only_the_beginning_of_the_exchange_is_looked_at() {
    let with = |reply: String, answer: String| {
        of_body(
            Endpoint::Chat,
            &json!({"messages": [{"role": "assistant", "content": reply}, {"role": "user", "content": answer}]}),
        )
    };
    let (reply, answer) = ("r\n".repeat(4000), "a\u{1}".repeat(4000));
    let one = with(reply.clone(), answer.clone());
    assert_eq!(one, with(reply.clone() + "more", answer.clone() + "more"));
    assert_ne!(one, with("R".to_owned() + &reply, answer.clone()));
    assert_ne!(one, with(reply, "A".to_owned() + &answer));
}

proptest! {
    #[test]
    fn a_change_in_the_head_and_more_turns_leave_it(
        system in ".{0,200}", user in ".{0,200}", stretch in ".{0,40}", at in 0usize..200, turns in 1usize..5,
    ) {
        for endpoint in TALKING {
            let before = anchor_of(endpoint, &system, &user, "x", 1);
            let spliced = |text: &str| {
                let at = text.char_indices().map(|(at, _)| at).chain([text.len()]).nth(at).unwrap_or(text.len());
                let rest: String = text[at..].chars().skip(stretch.chars().count() / 2).collect();
                text[..at].to_owned() + &stretch + &rest
            };
            prop_assert_eq!(anchor_of(endpoint, &spliced(&system), &user, "x", turns), before);
            prop_assert_eq!(anchor_of(endpoint, &system, &spliced(&user), "x", turns), before);
        }
    }

    #[test]
    fn another_conversation_model_or_salt_has_another_one(a in "[a-z]{1,30}", b in "[a-z]{1,30}") {
        for endpoint in TALKING {
            let same = anchor_of(endpoint, "s", "u", &a, 2) == anchor_of(endpoint, "s", "u", &b, 2);
            prop_assert_eq!(same, a == b);
        }
        let of = |model: &str, salt: &str| of_body(Endpoint::Chat, &json!({"model": model, "cache_salt": salt,
            "messages": [{"role": "assistant", "content": "a".repeat(20)}, {"role": "user", "content": "u"}]}));
        prop_assert_eq!(of(&a, "s") == of(&b, "s"), a == b);
        prop_assert_eq!(of("m", &a) == of("m", &b), a == b);
    }
}
