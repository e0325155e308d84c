//! The four ways in which clients break their own prefixes are told by field and byte, and other prompts are left alone.

use super::super::request::read;
use super::*;
use proptest::prelude::*;

const KEY: u64 = 77;

fn rules() -> String {
    (0..120).map(|n| format!("Rule {n}: be kind to {}. ", n * 7919 % 1000)).collect()
}

fn tool(n: usize) -> String {
    let about: String = (0..20).map(|k| format!("It does thing {} well. ", n * 31 + k)).collect();
    format!(
        r#"{{"type":"function","function":{{"name":"t{n}","description":"{about}","parameters":{{"type":"object","secretkey":{{"a":1}}}}}}}}"#
    )
}

fn chat(system: &str, tools: &[String], user: &str) -> String {
    let tools = tools.join(",");
    format!(
        r#"{{"tools":[{tools}],"messages":[{{"role":"system","content":"{system}"}},{{"role":"user","content":"{user}"}}],"model":"m"}}"#
    )
}

fn outline(body: &str) -> Outline {
    Outline::of(Endpoint::Chat, &read(body.as_bytes()).unwrap(), KEY).unwrap()
}

/// Where the second body parts from the first one, and what changes there.
fn told(old: &str, new: &str) -> Option<(String, Change, Option<usize>)> {
    let found = compare(&outline(old), &outline(new))?;
    let change = Outline::change(&read(new.as_bytes()).unwrap(), &found);
    Some((found.path.to_string(), change, found.offset))
}

fn tools() -> Vec<String> {
    (0..4).map(tool).collect()
}

#[test]
fn a_clock_at_the_head_of_the_system_prompt_is_found_to_the_byte() {
    let at = |time: &str| {
        chat(&format!("You are an agent. Today it is 2026-11-30 {time} where you work. {}", rules()), &tools(), "hi")
    };
    let found = told(&at("06:45:12"), &at("06:47:03"));
    assert_eq!(found, Some(("messages[0].content".to_owned(), Change::Clock, Some(45))));
    let grown = |n: u64| chat(&format!("now={n} {}", rules()), &tools(), "hi");
    assert_eq!(told(&grown(1_764_483_921), &grown(1_764_483_987)).unwrap().1, Change::Clock);
}

#[test]
fn a_nonce_line_is_found_in_whatever_message_it_stands() {
    let document = rules();
    let at = |nonce: &str| chat("Be brief.", &tools(), &format!("Request-Id: {nonce}\\n{document}"));
    let found = told(&at("7f3a99c0-11d2"), &at("7f3b00c1-42d7"));
    assert_eq!(found, Some(("messages[1].content".to_owned(), Change::Nonce, Some(15))));
}

#[test]
fn shuffled_tools_are_told_as_such() {
    let mut shuffled = tools();
    shuffled.swap(0, 2);
    let found = told(&chat("Be brief.", &tools(), "hi"), &chat("Be brief.", &shuffled, "hi"));
    assert_eq!(found, Some(("tools".to_owned(), Change::Order, None)));
    // another tool is another matter
    let mut other = tools();
    other[1] = other[1].replace("\"t1\"", "\"tx\"");
    let found = told(&chat("Be brief.", &tools(), "hi"), &chat("Be brief.", &other, "hi")).unwrap();
    assert_eq!((found.0.as_str(), found.1, found.2), ("tools[1].function.name", Change::Value, Some(1)));
}

#[test]
fn reordered_keys_are_told_where_they_are_and_no_unknown_key_is_shown() {
    let mut other = tools();
    other[1] = other[1].replace(r#""type":"object","secretkey":{"a":1}"#, r#""secretkey":{"a":1},"type":"object""#);
    let found = told(&chat("Be brief.", &tools(), "hi"), &chat("Be brief.", &other, "hi"));
    assert_eq!(found, Some(("tools[1].function.parameters".to_owned(), Change::Keys, None)));
    other[1] = tools()[1].replace(r#"{"a":1}"#, r#"{"a":2}"#);
    let found = told(&chat("Be brief.", &tools(), "hi"), &chat("Be brief.", &other, "hi")).unwrap();
    assert_eq!(found.0, "tools[1].function.parameters.….…");
}

/// A conversation of so many turns, whose turn `n` is `turn(n)`.
fn conversation(turns: impl Iterator<Item = usize>, turn: impl Fn(usize) -> String) -> String {
    let turns: Vec<String> =
        turns.map(|n| format!(r#"{{"role":"{}","content":{}}}"#, ["user", "assistant"][n % 2], turn(n))).collect();
    format!(r#"{{"messages":[{{"role":"system","content":"Be brief."}},{}]}}"#, turns.join(","))
}

fn turn(n: usize) -> String {
    format!(r#""Turn {n}. {}""#, rules().replace("be kind", &format!("be {n}")))
}

#[test]
fn a_clock_in_a_later_message_is_found_there() {
    let at = |time: &str| {
        conversation(0..6, |n| if n == 3 { format!(r#""Now: 2026-11-30T{time}Z. {}""#, rules()) } else { turn(n) })
    };
    let found = told(&at("06:45:12"), &at("06:47:03"));
    assert_eq!(found, Some(("messages[4].content".to_owned(), Change::Clock, Some(20))));
}

#[test]
fn white_space_alone_is_told_as_such() {
    let other = rules().replacen("Rule 1:", "Rule  1:\\n", 1);
    let found = told(&chat(&rules(), &tools(), "hi"), &chat(&other, &tools(), "hi")).unwrap();
    assert_eq!((found.0.as_str(), found.1), ("messages[0].content", Change::Space));
    // between the tokens of JSON it means nothing
    let spaced = chat(&rules(), &tools(), "hi").replace("\":", "\" : ").replace(",\"", " , \"");
    assert_eq!(told(&chat(&rules(), &tools(), "hi"), &spaced), None);
}

#[test]
fn a_picture_that_is_encoded_anew_is_found_though_it_is_larger_than_the_text() {
    let picture = |first: &str| {
        let data = first.repeat(20_000);
        let url = format!(r#"{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{data}"}}}}"#);
        conversation(0..4, |n| if n == 0 { format!("[{url}]") } else { turn(n) })
    };
    let found = told(&picture("iVBORw0"), &picture("iVBORx1"));
    assert_eq!(found, Some(("messages[1].content[0].image_url.url".to_owned(), Change::Media, None)));
    assert_eq!(told(&picture("iVBORw0"), &picture("iVBORw0")), None);
}

#[test]
fn turns_that_are_dropped_or_come_between_are_told_as_such() {
    let whole = conversation(0..9, turn);
    let trimmed = conversation([0].into_iter().chain(3..11), turn);
    assert_eq!(told(&whole, &trimmed), Some(("messages[2]".to_owned(), Change::Dropped, None)));
    assert_eq!(told(&trimmed, &whole), Some(("messages[2]".to_owned(), Change::Inserted, None)));
    // the first one too, and where the roles change with it
    for first in [1, 2] {
        let found = told(&whole, &conversation(first..9, turn));
        assert_eq!(found, Some(("messages[1]".to_owned(), Change::Dropped, None)), "{first}");
    }
    let mut fewer = tools();
    fewer.remove(1);
    let found = told(&chat("Be brief.", &tools(), "hi"), &chat("Be brief.", &fewer, "hi"));
    assert_eq!(found, Some(("tools[1]".to_owned(), Change::Dropped, None)));
}

#[test]
fn thoughts_that_are_taken_out_of_old_turns_are_told() {
    let with =
        |thought: &str| conversation(0..6, turn).replacen("\"assistant\",", &format!("\"assistant\",{thought}"), 1);
    let found = told(&with(r#""reasoning_content":"hm","#), &with(""));
    assert_eq!(found, Some(("messages[2].reasoning_content".to_owned(), Change::Dropped, None)));
}

#[test]
fn what_no_engine_reads_breaks_nothing() {
    let with = |members: &str, marked: usize| {
        let part = |n: usize| {
            let mark = if n == marked { r#","cache_control":{"type":"ephemeral"}"# } else { "" };
            format!(r#"[{{"type":"text","text":{}{mark}}}]"#, turn(n))
        };
        conversation(0..5, part).replacen('{', &format!("{{{members}"), 1)
    };
    let plain = with("", 9);
    for members in
        [r#""temperature":0.7,"seed":17,"user":"u-4711","#, r#""metadata":{"trace":"7f3a99c0"},"max_tokens":900,"#]
    {
        assert_eq!(told(&plain, &with(members, 9)), None, "{members}");
    }
    assert_eq!((told(&with("", 1), &with("", 3)), told(&plain, &with("", 3))), (None, None));
}

#[test]
fn a_conversation_that_goes_on_and_other_conversations_break_nothing() {
    let base = chat(&rules(), &tools(), "first question");
    let next = base
        .replace(r#"}],"model""#, r#"},{"role":"assistant","content":"so"},{"role":"user","content":"and?"}],"model""#);
    assert_eq!((told(&base, &base), told(&base, &next), told(&next, &base)), (None, None, None));
    assert_eq!(told(&base, &chat(&rules(), &tools(), "another question")), None);
    let stranger: String = (0..200).map(|n| format!("Nothing {} alike. ", n * 104_729)).collect();
    assert_eq!(told(&base, &chat(&stranger, &[], "first question")), None);
}

#[test]
fn every_api_is_outlined_in_its_own_words() {
    let part = |endpoint, body: &str| {
        let outline = Outline::of(endpoint, &read(body.as_bytes()).unwrap(), KEY).unwrap();
        outline.fields.iter().map(|f| (f.path.to_string(), f.part)).collect::<Vec<_>>()
    };
    let messages = part(
        Endpoint::Messages,
        r#"{"system":[{"type":"text","text":"x"}],"tools":[{"name":"t","input_schema":{}}],"messages":[{"role":"user","content":"y"}]}"#,
    );
    assert!(messages.contains(&("system[0].text".to_owned(), Part::System)), "{messages:?}");
    assert!(messages.contains(&("tools[0].input_schema".to_owned(), Part::Tools)), "{messages:?}");
    let responses = part(Endpoint::Responses, r#"{"instructions":"x","input":[{"role":"user","content":"y"}]}"#);
    assert!(responses.contains(&("input[0].content".to_owned(), Part::Messages)), "{responses:?}");
    assert_eq!(part(Endpoint::Completions, r#"{"prompt":"x"}"#), [("prompt".to_owned(), Part::Messages)]);
    let none = read(b"{}").unwrap();
    assert!(
        Outline::of(Endpoint::Embeddings, &none, KEY).is_none() && Outline::of(Endpoint::Chat, &none, KEY).is_none()
    );
}

#[test]
fn an_outline_is_bounded() {
    let many: String = (0..20_000).map(|n| format!(r#"{{"role":"user","content":"{n}"}},"#)).collect();
    let body = format!(r#"{{"messages":[{many}{{"role":"user","content":"{}"}}]}}"#, "x y ".repeat(300_000));
    let outline = outline(&body);
    let marks: usize = outline.fields.iter().map(|f| f.marks.len()).sum();
    assert!(outline.fields.len() <= MOST.0 && outline.pieces.len() <= MOST.1, "{}", outline.fields.len());
    assert!(marks <= MOST.2, "{marks}");
    let long: String = (0..600).map(|_| format!(r#"{{"role":"user","content":"{}"}},"#, "x y ".repeat(250))).collect();
    let body = format!(r#"{{"messages":[{long}{{"role":"user","content":"z"}}]}}"#);
    let marks: usize = self::outline(&body).fields.iter().map(|f| f.marks.len()).sum();
    assert_eq!(marks, MOST.2);
}

proptest! {
    #[test]
    fn the_first_byte_that_differs_is_the_one_that_is_told(at in 0usize..3000, letter in "[a-z]") {
        let text = rules();
        let (at, mut other) = (at % text.len(), text.clone());
        other.replace_range(at..=at, &letter);
        prop_assume!(other != text);
        let found = compare(&outline(&chat(&text, &[], "hi")), &outline(&chat(&other, &[], "hi")));
        // near the end nothing is left that could be alike
        if let Some(found) = found {
            let offset = found.offset.unwrap();
            // one in 256 is a byte, or a step, late
            let late = if at < FINE { 3 } else { 3 * STEP };
            prop_assert!(offset + STEP > at && offset <= at + late, "{offset} {at}");
        } else {
            prop_assert!(at > text.len() - 1600, "{at} of {}", text.len());
        }
    }

    #[test]
    fn no_two_bodies_make_it_stumble(a in "\\PC{0,300}", b in "\\PC{0,300}") {
        for body in [&a, &b] {
            if let Ok(request) = read(body.as_bytes()) {
                let _any = Outline::of(Endpoint::Chat, &request, KEY);
            }
        }
        let [a, b] = [a, b].map(|t| chat(&t.replace(['"', '\\'], ""), &[], "x"));
        let _any = told(&a, &b);
    }
}
