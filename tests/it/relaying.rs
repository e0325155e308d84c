//! Answers pass byte for byte; what they report is read beside.

use crate::support::chat_body;
use crate::support::client::{self, H1, chat_head};
use crate::support::engine::{Engine, TOKEN};
use crate::support::ramjet::{Ramjet, Start};

const ODD: &str = concat!(
    ": hello\\n\\n|data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\\r\\n\\r\\n|",
    "da|ta: {\"choi|ces\":[{\"delta\":{\"content\":\"x\"}}]}\\n|\\n: keep-alive\\n\\n|",
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":100,\"completion_tokens\":7,",
    "\"prompt_tokens_details\":{\"cached_tokens\":64}}}\\n\\n|data: [DONE]\\n\\n"
);

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_passes_byte_for_byte_and_its_usage_is_counted() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let answer = client::chat(ramjet.api, &format!("sse={ODD}"), &chat_body(500, "")).await.unwrap();
    let wanted = ODD.replace('|', "").replace("\\n", "\n").replace("\\r", "\r");
    assert_eq!(String::from_utf8(answer.body).unwrap(), wanted);
    ramjet.settled().await;
    for (name, value) in [
        ("ramjet_prompt_tokens_total", 100.0),
        ("ramjet_cached_prompt_tokens_total", 64.0),
        ("ramjet_completion_tokens_total", 7.0),
        ("ramjet_cached_tokens_unreported_total", 0.0),
        ("ramjet_ttft_seconds_count", 1.0),
    ] {
        assert_eq!(ramjet.metric(name).await, value, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_usage_is_unknown_not_uncached() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let play = format!("sse={}|data: [DONE]\\n\\n", TOKEN.replace('\n', "\\n"));
    assert_eq!(client::chat(ramjet.api, &play, &chat_body(500, "")).await.unwrap().status, 200);
    let whole = "json={\"usage\":{\"prompt_tokens\":50,\"completion_tokens\":1}}";
    assert_eq!(client::chat(ramjet.api, whole, &chat_body(500, "")).await.unwrap().status, 200);
    ramjet.settled().await;
    assert_eq!(ramjet.metric("ramjet_cached_tokens_unreported_total").await, 2.0);
    assert_eq!(ramjet.metric("ramjet_prompt_tokens_total").await, 50.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_event_inside_a_good_stream_is_counted_and_passes() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let play = "sse=data: {\"error\":{\"message\":\"core died\"}}\\n\\n|data: [DONE]\\n\\n";
    let answer = client::chat(ramjet.api, play, &chat_body(500, "")).await.unwrap();
    assert!(String::from_utf8(answer.body).unwrap().contains("core died"));
    let broken = ramjet.series("ramjet_upstream_errors_total").await;
    let count = broken.iter().find(|(l, _)| l.contains("chat") && l.contains("broken_stream")).unwrap().1;
    assert_eq!(count, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_carries_the_ordinal_and_a_distinct_id() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let mut ids = std::collections::HashSet::new();
    for _ in 0..20 {
        let answer = client::chat(ramjet.api, "", &chat_body(500, "")).await.unwrap();
        assert_eq!(answer.header("x-ramjet-upstream"), Some("0"));
        assert!(ids.insert(answer.header("x-ramjet-request-id").unwrap().to_owned()));
    }
    let forwarded: std::collections::HashSet<_> =
        engine.seen().iter().map(|s| s.header("x-request-id").unwrap().to_owned()).collect();
    assert_eq!(forwarded, ids);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_a_client_gave_passes_and_an_empty_one_is_none() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let mut h1 = H1::connect(ramjet.api).await.unwrap();
    for id in ["mine", "", " "] {
        h1.send(chat_head(&format!("x-request-id: {id}\r\ncontent-length: 2\r\n")).as_bytes()).await;
        h1.send(b"{}").await;
        let answer = h1.answer().await.unwrap();
        let own = answer.header("x-ramjet-request-id").unwrap();
        let seen = engine.seen().pop().unwrap();
        assert_eq!(seen.header("x-request-id"), Some(if id == "mine" { id } else { own }));
        assert_eq!(seen.head.to_ascii_lowercase().matches("x-request-id:").count(), 1, "{}", seen.head);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn other_paths_stream_through_with_their_query_and_host_of_the_replica() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let mut h1 = H1::connect(ramjet.api).await.unwrap();
    let head = chat_head("content-length: 4\r\nauthorization: Bearer mine\r\n");
    h1.send(head.replace("/v1/chat/completions", "/tokenize?x=1&y=%20").as_bytes()).await;
    h1.send(b"data").await;
    assert_eq!(h1.answer().await.unwrap().status, 200);
    let seen = engine.seen().pop().unwrap();
    assert!(seen.head.starts_with("POST /tokenize?x=1&y=%20 HTTP/1.1\r\n"), "{}", seen.head);
    assert_eq!(seen.header("host"), Some(engine.addr.to_string().as_str()));
    assert_eq!(seen.header("authorization"), Some("Bearer mine"));
    assert_eq!(seen.length, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replicas_prefix_and_key_are_used() {
    let engine = Engine::start().await;
    let url = format!("http://{}/team/v1", engine.addr);
    let env = [("RJ_UPSTREAM", url.as_str()), ("RJ_UPSTREAM_TOKEN", "engine-key")];
    let start = Start { upstreams: &[engine.addr], env: &env, ..Start::default() };
    let ramjet = Ramjet::start_with(start).await;
    assert_eq!(client::chat(ramjet.api, "", &chat_body(500, "")).await.unwrap().status, 200);
    // probes come as well
    let seen = engine.seen().into_iter().find(|seen| seen.head.starts_with("POST ")).unwrap();
    assert!(seen.head.starts_with("POST /team/v1/chat/completions "), "{}", seen.head);
    assert_eq!(seen.header("authorization"), Some("Bearer engine-key"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_that_would_show_the_key_of_the_engine_reaches_none() {
    let engine = Engine::start().await;
    let env = [("RJ_UPSTREAM_TOKEN", "engine-key")];
    let ramjet = Ramjet::start_with(Start { upstreams: &[engine.addr], env: &env, ..Start::default() }).await;
    for path in ["/", "/v1/chat/completions", "/v1/messages", "/health"] {
        let mut h1 = H1::connect(ramjet.api).await.unwrap();
        h1.send(format!("TRACE {path} HTTP/1.1\r\nhost: r\r\n\r\n").as_bytes()).await;
        let answer = h1.answer().await.unwrap();
        assert_eq!((answer.status, answer.header("x-ramjet-error")), (405, Some("method_not_allowed")), "{path}");
        assert!(answer.header("allow").unwrap().contains("POST") && answer.json()["error"].is_object(), "{path}");
    }
    assert!(engine.seen().iter().all(|seen| !seen.head.starts_with("TRACE")), "{:?}", engine.seen());
}
