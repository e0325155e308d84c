//! Each phase of a request has a time limit of its own, and the whole has none.

use crate::support::client::{Answer, H1, chat_head, h2_connect, h2_request};
use crate::support::engine::{Engine, TOKEN};
use crate::support::ramjet::{Ramjet, Start};
use crate::support::{body_of, chat_body, until};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn started(engine: &Engine, timeouts: &str) -> Ramjet {
    let config = format!("timeouts: {{ {timeouts} }}");
    Ramjet::start_with(Start { upstreams: &[engine.addr], config: &config, ..Start::default() }).await
}

/// Sends a head and half of what it announces, and waits.
async fn half_sent(ramjet: &Ramjet, path: &str, framing: &str, half: &[u8]) -> Answer {
    let mut h1 = H1::connect(ramjet.api).await.unwrap();
    h1.send(chat_head(framing).replacen("/v1/chat/completions", path, 1).as_bytes()).await;
    h1.send(half).await;
    let answer = h1.answer().await.unwrap();
    assert_eq!(h1.stream.read(&mut [0]).await.unwrap_or(0), 0, "the connection is closed");
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_goes_silent_is_given_up_and_said_so_in_the_callers_words() {
    let engine = Engine::start().await;
    let ramjet = started(&engine, "client_body: 200ms").await;
    let body = chat_body(100_000, "");
    let half = &body[..50_000];
    let chunk = [b"c350\r\n", half].concat();
    for path in ["/v1/chat/completions", "/v1/messages", "/v1/files"] {
        for (framing, half) in [("content-length: 100000\r\n", half), ("transfer-encoding: chunked\r\n", &chunk)] {
            let answer = half_sent(&ramjet, path, framing, half).await;
            assert_eq!(
                (answer.status, answer.header("x-ramjet-error")),
                (408, Some("body_timeout")),
                "{path} {framing}"
            );
            let member = if path == "/v1/messages" { "type" } else { "code" };
            assert!(answer.json()["error"][member].is_string(), "{path} {framing}");
        }
    }
    let mut sender = h2_connect(ramjet.api).await;
    let (response, mut stream) = sender.send_request(h2_request("", Some(body.len())), false).unwrap();
    stream.send_data(half.to_vec().into(), false).unwrap();
    assert_eq!(response.await.unwrap().status(), 408);
    ramjet.settled().await;
    let understood = engine.seen().into_iter().filter(|s| !s.head.starts_with("POST /v1/files"));
    assert_eq!(understood.count(), 0, "no engine hears of half a prompt");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_may_take_longer_than_any_of_its_pauses() {
    let engine = Engine::start().await;
    let limit = Duration::from_millis(1000);
    let ramjet = started(&engine, "client_body: 1s").await;
    for path in ["/v1/chat/completions", "/v1/files"] {
        let body = body_of(30_000);
        let (mut h1, began) = (H1::connect(ramjet.api).await.unwrap(), Instant::now());
        let head = chat_head("content-length: 30000\r\n").replacen("/v1/chat/completions", path, 1);
        h1.send(head.as_bytes()).await;
        let mut pieces = body.chunks(30_000 / 100);
        while began.elapsed() < limit * 3 / 2 {
            h1.send(pieces.next().unwrap()).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        h1.send(&pieces.flatten().copied().collect::<Vec<_>>()).await;
        assert_eq!(h1.answer().await.unwrap().status, 200, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_of_a_byte_now_and_then_does_not_hold_its_connection_for_ever() {
    let engine = Engine::start().await;
    let ramjet = started(&engine, "client_body: 500ms").await;
    for framing in ["content-length: 30000\r\n", "transfer-encoding: chunked\r\n"] {
        let mut h1 = H1::connect(ramjet.api).await.unwrap();
        h1.send(chat_head(framing).as_bytes()).await;
        let piece: &[u8] = if framing.starts_with("content") { b"a" } else { b"1\r\na\r\n" };
        let mut trickle = tokio::time::interval(Duration::from_millis(50));
        let (mut read, mut write) = h1.stream.into_split();
        let mut start = [0; 12];
        let answered = read.read_exact(&mut start);
        tokio::pin!(answered);
        let told = loop {
            tokio::select! {
                told = &mut answered => break told,
                _ = trickle.tick() => drop(write.write_all(piece).await),
            }
        };
        told.unwrap();
        assert_eq!(&start, b"HTTP/1.1 408", "{framing}");
    }
    ramjet.settled().await;
    assert!(engine.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_goes_on_for_as_long_as_its_engine_speaks_and_no_longer() {
    let engine = Engine::start().await;
    let limit = Duration::from_millis(1000);
    let ramjet = started(&engine, "first_byte: 1s, idle_read: 1s, client_body: 1s, client_write: 1s").await;
    let body = chat_body(1000, "\"stream\":true,");
    let ask = |play: &str| {
        let head = chat_head(&format!("x-play: {play}\r\ncontent-length: {}\r\n", body.len()));
        [head.as_bytes(), &body].concat()
    };
    let (mut h1, began) = (H1::connect(ramjet.api).await.unwrap(), Instant::now());
    h1.send(&ask("decode")).await;
    assert!(h1.head().await.unwrap().starts_with("HTTP/1.1 200 "));
    let mut buffer = vec![0; TOKEN.len()];
    while began.elapsed() < 2 * limit {
        h1.stream.read_exact(&mut buffer).await.unwrap();
    }
    drop(h1);
    ramjet.settled().await;
    // a head and then nothing: the client is not left waiting, and not told that all is well
    let mut h1 = H1::connect(ramjet.api).await.unwrap();
    h1.send(&ask("frozen")).await;
    assert!(h1.head().await.unwrap().starts_with("HTTP/1.1 200 "));
    let mut rest = Vec::new();
    let _reset = h1.stream.read_to_end(&mut rest).await;
    assert!(!rest.ends_with(b"0\r\n\r\n"), "{rest:?}");
    until("its engine is let go", || async { engine.seen()[1].closed.is_some() }).await;
    ramjet.settled().await;
    assert!(ramjet.metric("ramjet_upstream_errors_total").await >= 1.0);
}
