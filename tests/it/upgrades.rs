//! Other protocols: WebSockets pass both ways and count until they end, offers of HTTP/2 in clear text are declined.

use crate::support::client::{H1, chat_head};
use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start};
use crate::support::{chat_body, until};
use tokio::io::AsyncReadExt;
use xxhash_rust::xxh3::xxh3_64;

async fn websocket(ramjet: &Ramjet, path: &str, play: &str) -> H1 {
    let mut h1 = H1::connect(ramjet.api).await.unwrap();
    let head = format!(
        "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: keep-alive, Upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\nx-play: {play}\r\n\r\n"
    );
    h1.send(head.as_bytes()).await;
    let head = h1.head().await.unwrap();
    assert!(head.starts_with("HTTP/1.1 101") && head.to_ascii_lowercase().contains("upgrade: websocket"), "{head}");
    h1
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_passes_both_ways_and_counts_until_it_ends() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let mut h1 = websocket(&ramjet, "/v1/realtime?model=m", "echo").await;
    for size in [1, 125, 70_000, 3] {
        let frame: Vec<u8> = (0..size).map(|n| u8::try_from(n % 251).unwrap()).collect();
        let (mut reader, mut writer) = h1.stream.split();
        let mut back = vec![0; size];
        let sent = async { tokio::io::AsyncWriteExt::write_all(&mut writer, &frame).await };
        let (sent, read) = tokio::join!(sent, reader.read_exact(&mut back));
        assert!(sent.is_ok() && read.is_ok() && back == frame, "{size}");
    }
    assert_eq!(ramjet.metric("ramjet_upstream_inflight").await, 1.0);
    assert_eq!(ramjet.metric("ramjet_requests_inflight").await, 1.0);
    let seen = &engine.seen()[0];
    assert_eq!((seen.header("upgrade"), seen.header("sec-websocket-version")), (Some("websocket"), Some("13")));
    drop(h1);
    until("the engine's side is closed", || async { engine.seen()[0].closed.is_some() }).await;
    ramjet.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_outlives_the_limit_of_bodies() {
    let engine = Engine::start().await;
    let config = "limits: { body: 1KiB }";
    let ramjet = Ramjet::start_with(Start { upstreams: &[engine.addr], config, ..Start::default() }).await;
    let mut h1 = websocket(&ramjet, "/v1/realtime", "echo").await;
    for n in 0..40 {
        h1.send(&[n; 100]).await;
        let mut back = [0; 100];
        h1.stream.read_exact(&mut back).await.unwrap();
        assert_eq!(back, [n; 100]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_only_listens_is_kept() {
    let engine = Engine::start().await;
    let config = "timeouts: { client_body: 50ms }";
    let ramjet = Ramjet::start_with(Start { upstreams: &[engine.addr], config, ..Start::default() }).await;
    let mut h1 = websocket(&ramjet, "/v1/realtime", "speak").await;
    // a frame takes five milliseconds
    for _ in 0..60 {
        h1.stream.read_exact(&mut [0; 5]).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_on_which_its_engine_is_silent_ends() {
    let engine = Engine::start().await;
    let config = "timeouts: { first_byte: 200ms, idle_read: 200ms }";
    let ramjet = Ramjet::start_with(Start { upstreams: &[engine.addr], config, ..Start::default() }).await;
    let mut h1 = websocket(&ramjet, "/v1/realtime", "echo").await;
    h1.send(b"x").await;
    let mut whole = Vec::new();
    let _reset = h1.stream.read_to_end(&mut whole).await;
    assert_eq!(whole, b"x");
    ramjet.settled().await;
    assert_eq!(engine.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_goes_where_its_model_is() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let replicas: Vec<String> = [(&a, "m1"), (&b, "org/m 2")]
        .map(|(e, model)| format!("{{ url: \"http://{}\", models: [\"{model}\"] }}", e.addr))
        .into();
    let ramjet = Ramjet::start_with(Start { replicas: &replicas, ..Start::default() }).await;
    for _ in 0..4 {
        drop(websocket(&ramjet, "/v1/realtime?x=1&model=org%2Fm%202", "echo").await);
        ramjet.settled().await;
    }
    assert_eq!((a.seen().len(), b.seen().len()), (0, 4));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_goes_where_the_model_is_that_its_alias_stands_for() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let replicas: Vec<String> = [(&a, "m1"), (&b, "org/m 2")]
        .map(|(e, model)| format!("{{ url: \"http://{}\", models: [\"{model}\"] }}", e.addr))
        .into();
    let config = "compat: { model_aliases: { voice: \"org/m 2\" } }";
    let ramjet = Ramjet::start_with(Start { replicas: &replicas, config, ..Start::default() }).await;
    for _ in 0..4 {
        drop(websocket(&ramjet, "/v1/realtime?x=1&model=voice&y=%2f", "echo").await);
        ramjet.settled().await;
    }
    assert_eq!((a.seen().len(), b.seen().len()), (0, 4));
    let head = &b.seen()[0].head;
    assert!(head.starts_with("GET /v1/realtime?x=1&model=org%2Fm%202&y=%2f HTTP/1.1"), "{head}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_offer_of_http_2_is_declined_and_the_request_answered() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let mut h1 = H1::connect(ramjet.api).await.unwrap();
    for path in ["/v1/chat/completions", "/v1/audio/transcriptions"] {
        for size in [500, 200_000] {
            let body = chat_body(size, "");
            for framing in [format!("content-length: {size}\r\n"), "transfer-encoding: chunked\r\n".to_owned()] {
                let offer = "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAA\r\n";
                let head = chat_head(&format!("{offer}{framing}")).replace("/v1/chat/completions", path);
                h1.send(head.as_bytes()).await;
                match framing.starts_with('t') {
                    true => h1.send(&[format!("{size:x}\r\n").as_bytes(), &body, b"\r\n0\r\n\r\n"].concat()).await,
                    false => h1.send(&body).await,
                }
                assert_eq!(h1.answer().await.unwrap().status, 200);
                let seen = engine.seen().pop().unwrap();
                assert_eq!(
                    (seen.hash, seen.header("upgrade"), seen.header("http2-settings")),
                    (xxh3_64(&body), None, None)
                );
            }
        }
    }
}
