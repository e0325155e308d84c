//! What keeps prompts from being found in caches is told by client, field and byte, and no text of them is.

use crate::support::client::{self, H1, chat_head};
use crate::support::engine::Engine;
use crate::support::ramjet::Ramjet;
use crate::support::until;
use serde_json::Value;

/// An answer that was read from the first token to the last.
const READ: &str =
    r#"json={"usage":{"prompt_tokens":2500,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":0}}}"#;
/// As many requests as it may take.
const MANY: usize = 12;

fn rules() -> String {
    (0..100).map(|n| format!("SECRETRULE {n}: be kind to {} and all of theirs. ", n * 7919 % 1000)).collect()
}

fn tools(order: [usize; 4], is_turned: bool) -> String {
    let tool = |n: usize| {
        let about: String = (0..120).map(|k| format!("It does SECRETTHING {} well. ", n * 310 + k)).collect();
        let parameters = match is_turned {
            true => r#""SECRETKEY":{"a":1},"type":"object""#,
            false => r#""type":"object","SECRETKEY":{"a":1}"#,
        };
        format!(
            r#"{{"type":"function","function":{{"name":"t{n}","description":"{about}","parameters":{{{parameters}}}}}}}"#
        )
    };
    order.map(tool).join(",")
}

fn chat(system: &str, tools: &str, user: &str) -> String {
    format!(
        r#"{{"model":"m","tools":[{tools}],"messages":[{{"role":"system","content":"{system}"}},{{"role":"user","content":"{user}"}}]}}"#
    )
}

/// A conversation of some turns, the first of which is `first`.
fn turns(first: usize, turn: impl Fn(usize) -> String) -> String {
    let turn = |n: usize| format!(r#"{{"role":"{}","content":{}}}"#, ["user", "assistant"][n % 2], turn(n));
    let all: Vec<String> = (first..first + 5).map(turn).collect();
    format!(r#"{{"model":"m","messages":[{{"role":"system","content":"Be brief."}},{}]}}"#, all.join(","))
}

/// Request number `n` of a client that breaks its prefixes in one of several ways.
fn body(way: &str, n: usize) -> String {
    let plain = tools([0, 1, 2, 3], false);
    match way {
        "clock" => {
            chat(&format!("You are SECRETAGENT. It is 2026-11-30 06:{:02}:00. {}", 10 + n, rules()), &plain, "hi")
        }
        "nonce" => chat("Be brief.", "", &format!("Request: {:08x}-{:04x} {}", n * 0x0123_4567 + 0x1234, n, rules())),
        "order" => chat("Be brief.", &tools([[0, 1, 2, 3], [2, 0, 3, 1], [3, 1, 0, 2]][n % 3], false), "hi"),
        "keys" => chat("Be brief.", &tools([0, 1, 2, 3], n % 2 == 1), "hi"),
        "space" => chat(&format!("You are{}SECRETAGENT. {}", " ".repeat(1 + n), rules()), &plain, "hi"),
        "later" => turns(0, |turn| match turn {
            2 => format!(r#""SECRET {} now: 2026-11-30T06:{:02}:00Z {}""#, turn, 10 + n, rules()),
            _ => format!(r#""{turn} {}""#, rules()),
        }),
        "media" => turns(0, |turn| match turn {
            0 => {
                let data = format!("SECRET{n:06}").repeat(3000);
                let url = format!(r#"{{"url":"data:image/png;base64,{data}"}}"#);
                format!(r#"[{{"type":"image_url","image_url":{url}}}]"#)
            }
            _ => format!(r#""{turn} {}""#, rules()),
        }),
        _ => turns(n, |turn| format!(r#""Turn {turn}. {}""#, rules().replace("kind", &format!("kind {turn}")))),
    }
}

async fn finding(ramjet: &Ramjet, client: &str) -> Option<Value> {
    let page = client::get(ramjet.admin, "/api/prompts").await.unwrap().json();
    page["linter"]["findings"].as_array().unwrap().iter().find(|found| found["client"] == client).cloned()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_way_is_told_by_its_field() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let ramjet = Ramjet::start(&[a.addr, b.addr]).await;
    for (way, change, agent, family, field, offset) in [
        ("clock", "clock", "AsyncOpenAI/Python 1.99.1", "openai-python", "messages[0].content", Some(42)),
        ("nonce", "nonce", "curl/8.5.0", "curl", "messages[1].content", None),
        ("order", "order", "langchain-openai/0.3", "langchain", "tools", None),
        ("keys", "keys", "Go-http-client/1.1", "go", "tools[0].function.parameters", None),
        ("space", "space", "okhttp/4.12", "java", "messages[0].content", None),
        ("later", "clock", "ai/5.0 ai-sdk/openai", "vercel-ai", "messages[3].content", Some(29)),
        ("media", "media", "Mozilla/5.0", "browser", "messages[1].content[0].image_url.url", None),
        ("dropped", "dropped", "litellm/1.70", "litellm", "messages[1]", None),
    ] {
        let mut sent = 0;
        while finding(&ramjet, family).await.is_none() {
            assert!(sent < MANY * 10, "{way} was not found");
            let body = body(way, sent % MANY);
            let mut h1 = H1::connect(ramjet.api).await.unwrap();
            let fields = format!("x-play: {READ}\r\nuser-agent: {agent}\r\ncontent-length: {}\r\n", body.len());
            h1.send(chat_head(&fields).as_bytes()).await;
            h1.send(body.as_bytes()).await;
            h1.answer().await.unwrap();
            sent += 1;
            ramjet.settled().await;
        }
        let found = finding(&ramjet, family).await.unwrap();
        assert_eq!((&found["field"], &found["change"]), (&field.into(), &change.into()), "{found}");
        assert_eq!(found["endpoint"], "chat_completions");
        if let Some(offset) = offset {
            // the minute, whichever digit of it
            let at = found["offset"].as_u64().unwrap();
            assert!((offset - 1..=offset + 2).contains(&at), "{found}");
        }
        assert!(found["tokens"].as_f64().unwrap() > 100.0 && found["requests"].as_u64().unwrap() >= 1, "{found}");
        let labels = format!(r#"client="{family}""#);
        until("it is counted", || async {
            let series = ramjet.series("ramjet_prompt_breaks_total").await;
            series
                .iter()
                .any(|(of, n)| of.contains(&labels) && of.contains(&format!(r#"change="{change}""#)) && *n >= 1.0)
        })
        .await;
    }
    for path in ["/api/prompts", "/metrics", "/api/decisions"] {
        let page = client::get(ramjet.admin, path).await.unwrap();
        assert!(!String::from_utf8(page.body).unwrap().contains("SECRET"), "{path}");
    }
}
