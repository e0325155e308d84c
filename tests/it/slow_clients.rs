//! Clients that take their time: a head that drips in, an answer that nobody reads, and old clients that wait for one
//! answer only.

use crate::support::client::{self, H1, h2_connect, h2_request};
use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start};
use crate::support::{chat_body, until};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const MIB: u64 = 1 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_told_that_it_is_late_has_not_left() {
    let engine = Engine::start().await;
    let config = "timeouts: { client_body: 200ms }";
    let ramjet = Ramjet::start_with(Start { upstreams: &[engine.addr], config, ..Start::default() }).await;
    for path in ["/v1/files", "/v1/chat/completions"] {
        let mut h1 = H1::connect(ramjet.api).await.unwrap();
        h1.send(format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nten bytes.").as_bytes()).await;
        let answer = h1.answer().await.unwrap();
        assert_eq!((answer.status, answer.header("x-ramjet-error")), (408, Some("body_timeout")), "{path}");
    }
    ramjet.settled().await;
    assert_eq!(ramjet.metric("ramjet_client_disconnects_total").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_drips_in_is_given_up() {
    let engine = Engine::start().await;
    let config = "timeouts: { client_header: 300ms }";
    let ramjet = Ramjet::start_with(Start { upstreams: &[engine.addr], config, ..Start::default() }).await;
    let mut h1 = H1::connect(ramjet.api).await.unwrap();
    h1.send(b"GET /drip HTTP/1.1\r\nx-drip: ").await;
    let (reader, mut writer) =
        std::mem::replace(&mut h1.stream, H1::connect(ramjet.api).await.unwrap().stream).into_split();
    let drip = tokio::spawn(async move {
        while writer.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    let mut whole = Vec::new();
    let mut reader = reader;
    let _reset = reader.read_to_end(&mut whole).await;
    let text = String::from_utf8(whole).unwrap();
    assert!(text.starts_with("HTTP/1.1 408 ") && text.contains("x-ramjet-error: head_timeout"), "{text}");
    let body = text.split_once("\r\n\r\n").unwrap().1;
    assert_eq!(serde_json::from_str::<serde_json::Value>(body).unwrap()["error"]["code"], "head_timeout");
    drip.await.unwrap();
    // one that says nothing at all is told nothing
    assert_eq!(h1.stream.read(&mut [0]).await.unwrap(), 0);
    assert!(engine.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_in_pieces_and_kept_connections_are_served() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let mut h1 = H1::connect(ramjet.api).await.unwrap();
    for piece in ["\r\n\r\nGET /a HTTP/1.1\r\nho", "st: x\r\n", "\r\nGET /b HTTP/1.1\r\nhost: x\r\n\r", "\nGET /c"] {
        h1.send(piece.as_bytes()).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(h1.answer().await.unwrap().status, 200);
    assert_eq!(h1.answer().await.unwrap().status, 200);
    h1.send(b" HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert_eq!(h1.answer().await.unwrap().status, 200);
    let paths: Vec<_> = engine.seen().into_iter().map(|s| s.head.chars().take(6).collect::<String>()).collect();
    assert_eq!(paths, ["GET /a", "GET /b", "GET /c"]);
    // a long one
    let long = format!("GET /long HTTP/1.1\r\nhost: x\r\nx-long: {}\r\n\r\n", "y".repeat(100_000));
    h1.send(long.as_bytes()).await;
    assert_eq!(h1.answer().await.unwrap().status, 200);
    let mut h1 = H1::connect(ramjet.api).await.unwrap();
    h1.send(long.as_bytes()).await;
    assert_eq!(h1.answer().await.unwrap().status, 200);
    assert!(engine.seen().pop().unwrap().header("x-long").is_some_and(|v| v.len() == 100_000));
}

/// Waits until a flood is dammed.
async fn dammed(engine: &Engine) {
    let (last, still) = (AtomicU64::new(0), AtomicU64::new(0));
    let (last, still) = (&last, &still);
    until("the flood is dammed", || async move {
        let now = engine.flooded();
        let moved = last.swap(now, Relaxed) != now || now == 0;
        still.store(if moved { 0 } else { still.load(Relaxed) + 1 }, Relaxed);
        still.load(Relaxed) > 100
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_does_not_read_is_not_kept_here() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    client::chat(ramjet.api, "", &chat_body(1000, "")).await.unwrap();
    let before = ramjet.memory();
    let size = 64 * MIB;
    let mut h1 = client::begin_chat(ramjet.api, &format!("flood={size}"), &chat_body(1000, "")).await.unwrap();
    dammed(&engine).await;
    let (taken, grown) = (engine.flooded(), ramjet.memory().saturating_sub(before));
    assert!(taken < size && grown < 16 * MIB, "{taken} taken, {grown} more in use");
    let answer = h1.answer().await.unwrap();
    assert!(answer.body.len() as u64 == size && answer.body.iter().all(|b| *b == b'x'));
    let grown = ramjet.memory().saturating_sub(before);
    assert!(grown < 16 * MIB, "{grown} more in use");
    ramjet.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_never_reads_does_not_hold_an_engine() {
    let engine = Engine::start().await;
    let config = "timeouts: { client_write: 300ms }";
    let ramjet = Ramjet::start_with(Start { upstreams: &[engine.addr], config, ..Start::default() }).await;
    let play = format!("flood={}", 256 * MIB);
    let h1 = client::begin_chat(ramjet.api, &play, &chat_body(1000, "")).await.unwrap();
    until("the engine is let go", || async { engine.seen().first().is_some_and(|s| s.closed.is_some()) }).await;
    ramjet.settled().await;
    drop(h1);
    // a chunked body of more than 64 KiB has the same limits
    let mut h1 = H1::connect(ramjet.api).await.unwrap();
    h1.send(client::chat_head(&format!("x-play: {play}\r\ntransfer-encoding: chunked\r\n")).as_bytes()).await;
    h1.send(&[&b"30d40\r\n"[..], &chat_body(200_000, ""), b"\r\n0\r\n\r\n"].concat()).await;
    until("the engine is let go", || async { engine.seen().get(1).is_some_and(|s| s.closed.is_some()) }).await;
    ramjet.settled().await;
    // the same on HTTP/2, whose window is never opened
    let mut sender = h2_connect(ramjet.api).await;
    let body = chat_body(1000, "");
    let (response, mut stream) = sender.send_request(h2_request(&play, Some(body.len())), false).unwrap();
    stream.send_data(body.into(), true).unwrap();
    let unread = response.await.unwrap();
    until("the engine is let go", || async { engine.seen().get(2).is_some_and(|s| s.closed.is_some()) }).await;
    ramjet.settled().await;
    drop(unread);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interim_answer_is_for_clients_that_know_such() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let play = "raw=HTTP/1.1 103 Early\\r\\nlink: x\\r\\n\\r\\nHTTP/1.1 200 X\\r\\ncontent-length: 2\\r\\n\\r\\n{}";
    for (version, first) in [("1.0", "200"), ("1.1", "103")] {
        let mut h1 = H1::connect(ramjet.api).await.unwrap();
        h1.send(format!("GET /x HTTP/{version}\r\nhost: x\r\nx-play: {play}\r\n\r\n").as_bytes()).await;
        let head = h1.head().await.unwrap();
        assert_eq!(head.split(' ').nth(1), Some(first), "{head}");
    }
}
