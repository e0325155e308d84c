//! Responses and Messages get the care that chats get: their conversations stay, their usage counts, what an engine keeps
//! is asked for where it is kept, and nothing with a side effect happens twice.

use crate::support::client;
use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start};
use serde_json::{Value, json};

/// The body of one turn of a conversation, in the words of the API at `path`.
fn turn(path: &str, speaker: usize, turns: usize) -> String {
    let said = |n: usize| format!("speaker {speaker} says thing {n}; ").repeat(200);
    let messages: Vec<Value> = (0..=2 * turns)
        .map(|n| match (n % 2, path) {
            (0, "/v1/responses") => json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": said(n)}]}),
            (0, _) => json!({"role": "user", "content": [{"type": "text", "text": said(n), "cache_control": {"type": "ephemeral"}}]}),
            (_, "/v1/responses") => json!({"type": "function_call", "call_id": n, "name": "f", "arguments": said(n)}),
            _ => json!({"role": "assistant", "content": said(n)}),
        })
        .collect();
    match path {
        "/v1/responses" => json!({"model": "m", "instructions": "Be brief.", "store": false, "input": messages}),
        _ => json!({"model": "m", "max_tokens": 9, "system": "Be brief.", "messages": messages}),
    }
    .to_string()
}

async fn ordinal(ramjet: &Ramjet, path: &str, play: &str, body: &str) -> String {
    let answer = client::post(ramjet.api, path, play, body).await.unwrap();
    assert_eq!(answer.status, 200, "{path}");
    answer.header("x-ramjet-upstream").unwrap().to_owned()
}

/// Four conversations in turn: each stays on its replica, and each of two replicas has two.
async fn conversations_stay(path: &str) {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let ramjet = Ramjet::start(&[a.addr, b.addr]).await;
    let mut homes: Vec<String> = Vec::new();
    for turns in 0..5 {
        for speaker in 0..4 {
            let at = ordinal(&ramjet, path, "", &turn(path, speaker, turns)).await;
            match homes.get(speaker) {
                None => homes.push(at),
                Some(home) => assert_eq!(&at, home, "speaker {speaker}, turn {turns}"),
            }
        }
    }
    assert_eq!(homes.iter().filter(|h| *h == "0").count(), 2, "{homes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_conversations_stay_on_their_replica() {
    conversations_stay("/v1/responses").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_conversations_stay_on_their_replica() {
    conversations_stay("/v1/messages").await;
}

const RESPONSES_STREAM: &str = concat!(
    "event: response.created\\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_s\",\"usage\":null}}\\n\\n|",
    "event: response.output_text.delta\\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"x\"}\\n\\n|",
    "event: response.completed\\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"resp_s\",\"usage\":{",
    "\"input_tokens\":100,\"input_tokens_details\":{\"cached_tokens\":64},\"output_tokens\":7}}}\\n\\n"
);
const MESSAGES_STREAM: &str = concat!(
    "event: message_start\\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"usage\":{\"input_tokens\":10,",
    "\"cache_creation_input_tokens\":26,\"cache_read_input_tokens\":64,\"output_tokens\":1}}}\\n\\n|",
    "event: content_block_delta\\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"x\"}}\\n\\n|",
    "event: message_delta\\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":7}}\\n\\n|",
    "event: message_stop\\ndata: {\"type\":\"message_stop\"}\\n\\n"
);
const RESPONSES_WHOLE: &str = r#"{"id":"resp_w","output":[],"usage":{"input_tokens":100,"input_tokens_details":{"cached_tokens":64},"output_tokens":7}}"#;
const MESSAGES_WHOLE: &str = r#"{"id":"msg_w","usage":{"input_tokens":10,"cache_creation_input_tokens":26,"cache_read_input_tokens":64,"output_tokens":7}}"#;

async fn usage_counts(path: &str, label: &str, stream: &str, whole: &str) {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let answer = client::post(ramjet.api, path, &format!("sse={stream}"), &turn(path, 0, 0)).await.unwrap();
    assert_eq!(String::from_utf8(answer.body).unwrap(), stream.replace('|', "").replace("\\n", "\n"));
    let answer = client::post(ramjet.api, path, &format!("json={whole}"), &turn(path, 0, 0)).await.unwrap();
    assert_eq!(String::from_utf8(answer.body).unwrap(), whole);
    ramjet.settled().await;
    for (name, value) in [
        ("ramjet_prompt_tokens_total", 200.0),
        ("ramjet_cached_prompt_tokens_total", 128.0),
        ("ramjet_completion_tokens_total", 14.0),
        ("ramjet_cached_tokens_unreported_total", 0.0),
        ("ramjet_ttft_seconds_count", 1.0),
        // the protocol's own last event is an end
        ("ramjet_upstream_errors_total", 0.0),
    ] {
        assert_eq!(ramjet.metric(name).await, value, "{path}: {name}");
    }
    let requests = ramjet.series("ramjet_requests_total").await;
    let labelled = requests.iter().filter(|(labels, _)| labels.contains(&format!("endpoint=\"{label}\"")));
    assert_eq!(labelled.map(|(_, count)| count).sum::<f64>(), 2.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_of_responses_is_counted() {
    usage_counts("/v1/responses", "responses", RESPONSES_STREAM, RESPONSES_WHOLE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_of_messages_is_counted_cached_tokens_included() {
    usage_counts("/v1/messages", "messages", MESSAGES_STREAM, MESSAGES_WHOLE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_continues_or_names_a_kept_response_goes_where_it_is_kept() {
    let engines = [Engine::start().await, Engine::start().await, Engine::start().await, Engine::start().await];
    let ramjet = Ramjet::start(&engines.each_ref().map(|e| e.addr)).await;
    for (id, play) in [("resp_w", format!("json={RESPONSES_WHOLE}")), ("resp_s", format!("sse={RESPONSES_STREAM}"))] {
        let home = ordinal(&ramjet, "/v1/responses", &play, r#"{"model":"m","input":"hi"}"#).await;
        for n in 0..6 {
            let body = json!({"model": "m", "input": format!("more {n}"), "previous_response_id": id}).to_string();
            assert_eq!(ordinal(&ramjet, "/v1/responses", "", &body).await, home, "{id}, {n}");
            let kept = client::get(ramjet.api, &format!("/v1/responses/{id}?include=x")).await.unwrap();
            assert_eq!(kept.header("x-ramjet-upstream"), Some(home.as_str()), "{id}, {n}");
        }
        let cancel = format!("/v1/responses/{id}/cancel");
        assert_eq!(ordinal(&ramjet, &cancel, "", "").await, home);
    }
    assert_eq!(ramjet.metric("ramjet_route_pinned_total").await, 26.0);
    // nobody is asked to keep this one, and nobody ever had that one
    let play = r#"json={"id":"resp_n"}"#;
    ordinal(&ramjet, "/v1/responses", play, r#"{"model":"m","input":"hi","store":false}"#).await;
    for id in ["resp_n", "resp_unheard_of"] {
        assert_eq!(client::get(ramjet.api, &format!("/v1/responses/{id}")).await.unwrap().status, 200);
    }
    assert_eq!(ramjet.metric("ramjet_route_pinned_total").await, 26.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_response_whose_replica_is_gone_is_asked_for_elsewhere() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let start = Start { upstreams: &[a.addr, b.addr], probe_every: "60s", ..Start::default() };
    let ramjet = Ramjet::start_with(start).await;
    let play = format!("json={RESPONSES_WHOLE}");
    let home = ordinal(&ramjet, "/v1/responses", &play, r#"{"model":"m","input":"hi"}"#).await;
    // an engine that is there and refuses is taken at its word
    let owner = if home == "0" { &a } else { &b };
    owner.script(&["status=503"]);
    assert_eq!(client::get(ramjet.api, "/v1/responses/resp_w").await.unwrap().status, 503);
    let (gone, left) = if home == "0" { (a, b) } else { (b, a) };
    gone.stop().await;
    let kept = client::get(ramjet.api, "/v1/responses/resp_w").await.unwrap();
    assert_eq!(kept.status, 200);
    assert_ne!(kept.header("x-ramjet-upstream"), Some(home.as_str()));
    assert_eq!(left.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_request_is_sent_again_only_if_no_engine_was_to_keep_its_answer() {
    for (path, body, attempts) in [
        ("/v1/responses", r#"{"model":"m","input":"x","store":false}"#, 2),
        ("/v1/responses", r#"{"model":"m","input":"x"}"#, 1),
        ("/v1/responses", r#"{"model":"m","input":"x","store":true}"#, 1),
        ("/v1/messages", r#"{"model":"m","messages":[]}"#, 2),
        ("/v1/embeddings", r#"{"model":"m","input":"x"}"#, 2),
    ] {
        // nobody has a connection that could turn out stale
        let (a, b) = (Engine::start().await, Engine::start().await);
        let ramjet = Ramjet::start(&[a.addr, b.addr]).await;
        let answer = client::post(ramjet.api, path, "drop", body).await.unwrap();
        assert_eq!((answer.status, answer.header("x-ramjet-error")), (502, Some("upstream_lost")), "{path} {body}");
        assert_eq!(a.seen().len() + b.seen().len(), attempts, "{path} {body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn models_are_found_in_every_body_and_errors_are_in_the_callers_words() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let fleet = [
        format!("{{ url: \"http://{}\", models: [m] }}", a.addr),
        format!("{{ url: \"http://{}\", models: [n] }}", b.addr),
    ];
    let ramjet = Ramjet::start_with(Start { replicas: &fleet, ..Start::default() }).await;
    for path in [
        "/v1/responses",
        "/v1/messages",
        "/v1/embeddings",
        "/v1/rerank",
        "/v1/score",
        "/tokenize",
        "/v1/messages/count_tokens",
    ] {
        for (model, home) in [("m", "0"), ("n", "1"), ("m", "0")] {
            assert_eq!(
                ordinal(&ramjet, path, "", &format!(r#"{{"input":"x","model":"{model}"}}"#)).await,
                home,
                "{path}"
            );
        }
        let unknown = client::post(ramjet.api, path, "", r#"{"model":"x"}"#).await.unwrap();
        assert_eq!((unknown.status, unknown.header("x-ramjet-error")), (404, Some("model_not_found")), "{path}");
        let anthropic = path.starts_with("/v1/messages");
        let kind = if anthropic { "not_found_error" } else { "invalid_request_error" };
        assert_eq!(unknown.json()["error"]["type"], kind, "{path}");
        assert_eq!(unknown.json()["type"] == "error", anthropic, "{path}");
    }
}
