//! Adapters that only some replicas have: they are asked of those alone, under every name that they go by.

use crate::support::client::{Answer, H1, chat_head, get, post};
use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start};
use crate::support::until;

const BASE: &str = r#"{"id":"m1","owned_by":"vllm"}"#;
const BOTH: &str = r#"{"id":"m1","owned_by":"vllm"},{"id":"adapter","parent":"m1","owned_by":"vllm"}"#;

async fn ask(ramjet: &Ramjet, path: &str, model: &str) -> Answer {
    let content = "the same for all ".repeat(600);
    let body = format!(r#"{{"model":"{model}","messages":[{{"role":"user","content":"{content}"}}]}}"#);
    post(ramjet.api, path, "", &body).await.unwrap()
}

fn upstream(answer: &Answer) -> (u16, Option<&str>) {
    (answer.status, answer.header("x-ramjet-upstream"))
}

async fn lists(ramjet: &Ramjet, names: &[&str]) {
    until("the engines have told", || async {
        let json = get(ramjet.api, "/v1/models").await.unwrap().json();
        let listed: Vec<&str> = json["data"].as_array().unwrap().iter().map(|e| e["id"].as_str().unwrap()).collect();
        listed == names
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_replicas_that_list_an_adapter_are_asked_for_it_by_its_name_or_an_alias() {
    let (a, b, c) = (Engine::start().await, Engine::start().await, Engine::start().await);
    a.lists(BASE);
    b.lists(BOTH);
    c.lists(BASE);
    let config = "compat: { model_aliases: { tuned: adapter } }";
    let ramjet = Ramjet::start_with(Start { upstreams: &[a.addr, b.addr, c.addr], config, ..Start::default() }).await;
    lists(&ramjet, &["m1", "adapter", "tuned"]).await;
    for path in ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/embeddings"] {
        for model in ["adapter", "tuned", "adapter"] {
            assert_eq!(upstream(&ask(&ramjet, path, model).await), (200, Some("1")), "{path} {model}");
        }
    }
    let asked = b.seen().len();
    assert_eq!(asked, 12);
    // whoever asks for the base model may go anywhere
    for _ in 0..6 {
        assert_eq!(ask(&ramjet, "/v1/embeddings", "m1").await.status, 200);
    }
    assert!(!a.seen().is_empty() && !c.seen().is_empty());
    // when the one that has it is gone, nobody answers in its place
    let others = a.seen().len() + c.seen().len();
    b.stop().await;
    until("it is fenced", || async { get(ramjet.api, "/health").await.unwrap().json()["status"] == "degraded" }).await;
    for model in ["adapter", "tuned"] {
        let answer = ask(&ramjet, "/v1/chat/completions", model).await;
        assert_eq!((answer.status, answer.header("x-ramjet-error")), (502, Some("connect_failed")), "{model}");
    }
    assert_eq!(a.seen().len() + c.seen().len(), others);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_prompts_of_an_adapter_share_nothing_with_those_of_its_model() {
    let engine = Engine::start().await;
    engine.lists(BOTH);
    let ramjet = Ramjet::start(&[engine.addr]).await;
    lists(&ramjet, &["m1", "adapter"]).await;
    let text = "the same for all ".repeat(600);
    let mut overlaps = Vec::new();
    for model in ["m1", "m1", "adapter", "adapter", "m1"] {
        let body = format!(r#"{{"model":"{model}","prompt":"{text}"}}"#);
        let mut h1 = H1::connect(ramjet.api).await.unwrap();
        let head = chat_head(&format!("x-ramjet-explain: 1\r\ncontent-length: {}\r\n", body.len()));
        h1.send(format!("{}{body}", head.replacen("chat/completions", "completions", 1)).as_bytes()).await;
        let answer = h1.answer().await.unwrap();
        let told = answer.header("x-ramjet-decision").unwrap();
        overlaps.push(told.split("overlap=").nth(1).unwrap().split('/').next().unwrap().to_owned());
    }
    let whole = &overlaps[1];
    assert_ne!(whole, "0");
    assert_eq!(overlaps, ["0", whole, "0", whole, whole]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_adapter_that_is_named_in_the_configuration_is_asked_for_before_its_engine_lists_it() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    a.lists(BASE);
    b.lists(BASE);
    let replicas =
        [format!("{{ url: \"http://{}\" }}", a.addr), format!("{{ url: \"http://{}\", models: [m1, lazy] }}", b.addr)];
    let ramjet = Ramjet::start_with(Start { replicas: &replicas, ..Start::default() }).await;
    lists(&ramjet, &["m1", "lazy"]).await;
    for _ in 0..3 {
        assert_eq!(upstream(&ask(&ramjet, "/v1/chat/completions", "lazy").await), (200, Some("1")));
    }
    // without that it is unknown, whatever its engine would do
    assert_eq!(ask(&ramjet, "/v1/chat/completions", "lazier").await.status, 404);
}
