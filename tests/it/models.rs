//! Which model is asked of whom: learned from the engines, shown as one list, and asked for under other names.

use crate::support::client::{self, Answer, H1, get};
use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start};
use crate::support::{chat_body, until};
use xxhash_rust::xxh3::xxh3_64;

async fn post(ramjet: &Ramjet, path: &str, kind: &str, body: &str) -> Answer {
    let mut h1 = H1::connect(ramjet.api).await.unwrap();
    let length = body.len();
    let head = format!("POST {path} HTTP/1.1\r\nhost: r\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n");
    h1.send(format!("{head}{body}").as_bytes()).await;
    h1.answer().await.unwrap()
}

async fn ask(ramjet: &Ramjet, path: &str, model: &str) -> Answer {
    let body = format!(r#"{{"model":"{model}","messages":[{{"role":"user","content":"hi"}}]}}"#);
    post(ramjet, path, "application/json", &body).await
}

async fn listed(ramjet: &Ramjet) -> Vec<String> {
    let json = get(ramjet.api, "/v1/models").await.unwrap().json();
    json["data"].as_array().unwrap().iter().map(|entry| entry["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_go_where_their_model_is_and_an_unknown_one_is_answered_with_those_that_exist() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    a.lists(r#"{"id":"m1"}"#);
    b.lists(r#"{"id":"m2"},{"id":"m3","parent":"m2"}"#);
    let ramjet = Ramjet::start(&[a.addr, b.addr]).await;
    until("both have told", || async { listed(&ramjet).await == ["m1", "m2", "m3"] }).await;
    for path in ["/v1/chat/completions", "/v1/embeddings", "/v1/messages", "/v1/somewhere"] {
        for (model, upstream) in [("m1", "0"), ("m2", "1"), ("m3", "1"), ("m1", "0"), ("m2", "1")] {
            let answer = ask(&ramjet, path, model).await;
            assert_eq!((answer.status, answer.header("x-ramjet-upstream")), (200, Some(upstream)), "{path} {model}");
        }
    }
    let form = |model| format!("--b\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\n{model}\r\n--b--\r\n");
    for (model, upstream) in [("m1", "0"), ("m2", "1"), ("m2", "1")] {
        let answer = post(&ramjet, "/v1/audio/speech", "multipart/form-data; boundary=b", &form(model)).await;
        assert_eq!(answer.header("x-ramjet-upstream"), Some(upstream));
    }
    let seen = a.seen().len() + b.seen().len();
    let answer = ask(&ramjet, "/v1/chat/completions", "m\\\"9").await;
    let json = answer.json();
    assert_eq!((answer.status, &json["error"]["code"]), (404, &"model_not_found".into()));
    let message = json["error"]["message"].as_str().unwrap();
    assert!(message.contains("`m\"9`") && message.contains("m1, m2, m3"), "{message}");
    let answer = ask(&ramjet, "/v1/messages", "m9").await;
    assert_eq!((answer.status, answer.json()["error"]["type"].as_str()), (404, Some("not_found_error")));
    assert_eq!(a.seen().len() + b.seen().len(), seen, "no engine was asked");
    // an engine that has changed its mind is believed
    b.lists(r#"{"id":"m9"}"#);
    until("it is known", || async { ask(&ramjet, "/v1/chat/completions", "m9").await.status == 200 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_an_engine_has_loaded_since_the_last_probe_is_found_when_it_is_asked_for() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    for engine in [&a, &b] {
        engine.lists(r#"{"id":"m1"}"#);
    }
    let start = Start { upstreams: &[a.addr, b.addr], probe_every: "1h", ..Start::default() };
    let ramjet = Ramjet::start_with(start).await;
    // to list models would ask whoever has not told yet
    let both = || async { get(ramjet.api, "/health").await.unwrap().json()["status"] == "ok" };
    until("both have told", both).await;
    assert_eq!(a.probes() + b.probes(), 2);
    b.lists(r#"{"id":"m1"},{"id":"adapter","parent":"m1"}"#);
    for _ in 0..4 {
        let answer = ask(&ramjet, "/v1/chat/completions", "adapter").await;
        assert_eq!((answer.status, answer.header("x-ramjet-upstream")), (200, Some("1")));
    }
    assert_eq!(a.probes() + b.probes(), 4);
    // names that nobody knows do not make the engines busy
    for _ in 0..20 {
        assert_eq!(ask(&ramjet, "/v1/chat/completions", "nobody's").await.status, 404);
    }
    assert!(a.probes() + b.probes() < 24, "{}", a.probes() + b.probes());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list_is_that_of_all_healthy_engines_each_model_once_and_every_field_kept() {
    let (a, b, c) = (Engine::start().await, Engine::start().await, Engine::start().await);
    a.lists(r#"{"id":"m1","max_model_len":131072,"own": [1.50]}"#);
    b.lists(r#"{"id":"m1","max_model_len":65536},{"id":"m2"}"#);
    c.lists(r#"{"id":"m4"}"#);
    let config = "compat: { model_aliases: { fast: m1 }, context_margin: 1000 }";
    let start = Start { upstreams: &[a.addr, b.addr, c.addr], config, ..Start::default() };
    let ramjet = Ramjet::start_with(start).await;
    until("all have told", || async { listed(&ramjet).await == ["m1", "m2", "m4", "fast"] }).await;
    c.stop().await;
    until("one is gone", || async { listed(&ramjet).await == ["m1", "m2", "fast"] }).await;
    let json = get(ramjet.api, "/v1/models").await.unwrap().json();
    assert_eq!(json["data"][0]["max_model_len"], 64536);
    assert_eq!(json["data"][2]["max_model_len"], 64536);
    b.stop().await;
    until("another is gone", || async { listed(&ramjet).await == ["m1", "fast"] }).await;
    let one = get(ramjet.api, "/v1/models/fast").await.unwrap();
    let text = String::from_utf8(one.body).unwrap();
    assert_eq!(text, r#"{"id":"fast","max_model_len":130072,"own": [1.50]}"#);
    // nobody is left: what is known is shown all the same
    a.stop().await;
    until("all are gone", || async { get(ramjet.api, "/health").await.unwrap().status == 503 }).await;
    assert!(listed(&ramjet).await.contains(&"m1".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_is_asked_for_before_engines_have_told_is_whole_all_the_same() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    a.lists(r#"{"id":"m1","max_model_len":131072}"#);
    b.lists(r#"{"id":"m2"}"#);
    for engine in [&a, &b] {
        // not ready, so that no probe asks for models; once, so that it is not fenced
        engine.shows("/ready", 500, "");
    }
    let config = "compat: { model_aliases: { fast: m1 }, context_margin: 1000 }";
    let start =
        Start { upstreams: &[a.addr, b.addr], config, probe_path: "/ready", probe_every: "1h", ..Start::default() };
    let ramjet = Ramjet::start_with(start).await;
    let answer = get(ramjet.api, "/v1/models").await.unwrap();
    assert_eq!(answer.header("x-ramjet-upstream"), None, "it is nobody's own list");
    let text = String::from_utf8(answer.body).unwrap();
    let wanted = [r#"{"id":"m1","max_model_len":130072}"#, r#"{"id":"m2"}"#, r#"{"id":"fast","max_model_len":130072}"#];
    assert_eq!(text, format!(r#"{{"object":"list","data":[{}]}}"#, wanted.join(",")));
    // HEAD tells the same and asks nobody
    let mut h1 = H1::connect(ramjet.api).await.unwrap();
    h1.send(b"HEAD /v1/models HTTP/1.1\r\nhost: r\r\n\r\n").await;
    let head = h1.head().await.unwrap().to_ascii_lowercase();
    assert!(head.contains(&format!("content-length: {}\r\n", text.len())), "{head}");
    assert!(a.seen().is_empty() && b.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_takes_any_name_gets_those_that_nobody_lists() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    a.lists(r#"{"id":"m1","owned_by":"llamacpp"}"#);
    b.lists(r#"{"id":"m2","owned_by":"vllm"}"#);
    let ramjet = Ramjet::start(&[a.addr, b.addr]).await;
    until("both have told", || async { listed(&ramjet).await == ["m1", "m2"] }).await;
    for (model, upstream) in [("m1", "0"), ("m2", "1"), ("gpt", "0"), ("m2", "1"), ("gpt", "0")] {
        let answer = ask(&ramjet, "/v1/chat/completions", model).await;
        assert_eq!((answer.status, answer.header("x-ramjet-upstream")), (200, Some(upstream)), "{model}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alias_becomes_the_models_own_name_and_no_other_byte_changes() {
    let engine = Engine::start().await;
    engine.lists(r#"{"id":"org/m1"}"#);
    let config = "compat: { model_aliases: { fast: org/m1, \"two words\": org/m1 } }";
    let ramjet = Ramjet::start_with(Start { upstreams: &[engine.addr], config, ..Start::default() }).await;
    until("it has told", || async { listed(&ramjet).await == ["org/m1", "fast", "two words"] }).await;
    let json = |name| format!("{{ \"n\":1.0, \"model\" : \"{name}\",\"x\":{{\"model\":\"fast\"}}, \"messages\":[] }}");
    let form = |name| format!("--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n{name}\r\n--b--\r\n");
    for (path, kind, body, want) in [
        ("/v1/chat/completions", "application/json", json("fast"), json("org/m1")),
        ("/v1/responses", "application/json; charset=utf-8", json("two words"), json("org/m1")),
        ("/v1/somewhere", "application/json", json("org/m1"), json("org/m1")),
        ("/v1/audio/transcriptions", "multipart/form-data; boundary=b", form("fast"), form("org/m1")),
        ("/v1/completions", "text/plain", json("fast"), json("org/m1")),
        ("/v1/files", "text/plain", json("fast"), json("fast")),
    ] {
        let answer = post(&ramjet, path, kind, &body).await;
        assert_eq!(answer.status, 200, "{path}");
        let seen = engine.seen().pop().unwrap();
        assert_eq!((seen.length, seen.hash), (want.len(), xxh3_64(want.as_bytes())), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_turns_out_to_be_one_of_other_models_loses_its_traffic_with_the_first_request() {
    let (wrong, right) = (Engine::start().await, Engine::start().await);
    for engine in [&wrong, &right] {
        engine.lists(r#"{"id":"m","owned_by":"vllm"}"#);
    }
    let replicas = &[&wrong, &right].map(|e| format!("{{ url: \"http://{}\", models: [m] }}", e.addr));
    let config = "  generation: { mode: off }\nrouting: { policy: round_robin }";
    let start = Start { replicas, config, probe_every: "1h", ..Start::default() };
    let ramjet = Ramjet::start_with(start).await;
    until("probed", || async { wrong.probes() > 0 && right.probes() > 0 }).await;
    wrong.lists(r#"{"id":"m2","owned_by":"vllm"}"#);
    until("fenced", || async {
        client::chat(ramjet.api, "status=404", &chat_body(500, "")).await.unwrap();
        let health = get(ramjet.api, "/health").await.unwrap().json();
        health["replicas"][0]["fence"] == "model" && health["replicas"][1]["fence"].is_null()
    })
    .await;
}
