//! Other protocols: WebSockets pass both ways and count until they end, offers of HTTP/2 in clear text are declined.

use crate::support::client::{H1, chat_head};
use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start};
use crate::support::{chat_body, until};
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use xxhash_rust::xxh3::xxh3_64;

/// The head of an offer, with more headers.
fn offer(path: &str, headers: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: keep-alive, Upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n{headers}\r\n"
    )
}

/// A connection on which `sent` was sent and taken for an offer.
async fn opened(ramjet: &Ramjet, sent: &[u8]) -> H1 {
    let mut h1 = H1::connect(ramjet.api).await.unwrap();
    h1.send(sent).await;
    let head = h1.head().await.unwrap();
    assert!(head.starts_with("HTTP/1.1 101") && head.to_ascii_lowercase().contains("upgrade: websocket"), "{head}");
    h1
}

async fn websocket(ramjet: &Ramjet, path: &str, play: &str) -> H1 {
    opened(ramjet, offer(path, &format!("x-play: {play}\r\n")).as_bytes()).await
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
        let sent = async { writer.write_all(&frame).await };
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
        assert_eq!(h1.take(5).await.unwrap(), b"frame");
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

/// An engine that switches at the first bytes of an offer, and sends back what follows its head.
async fn hasty_engine() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(switch_hastily(stream));
        }
    });
    addr
}

async fn switch_hastily(mut stream: TcpStream) -> Option<()> {
    let mut head = vec![0; 16];
    stream.read_exact(&mut head).await.ok()?;
    if head != *b"GET /v1/realtime" {
        let list = b"HTTP/1.1 200 X\r\ncontent-length: 25\r\n\r\n{\"object\":\"list\",\"data\":[]}";
        return stream.write_all(list).await.ok();
    }
    let switch = b"HTTP/1.1 101 X\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n";
    stream.write_all(switch).await.ok()?;
    let end = loop {
        match memchr::memmem::find(&head, b"\r\n\r\n") {
            Some(end) => break end + 4,
            None => stream.read_buf(&mut head).await.ok().filter(|n| *n > 0)?,
        };
    };
    stream.write_all(&head[end..]).await.ok()?;
    let (mut reader, mut writer) = stream.split();
    tokio::io::copy(&mut reader, &mut writer).await.ok().map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_stays_open_though_its_engine_switched_before_the_request_had_ended() {
    let ramjet = Ramjet::start(&[hasty_engine().await]).await;
    // more than the sockets in between hold: the 101 is there before the last of the head is written
    let long = offer("/v1/realtime", &format!("x-long: {}\r\n", "x".repeat(900_000)));
    for n in 0..16 {
        let mut h1 = opened(&ramjet, long.as_bytes()).await;
        h1.send(b"one").await;
        let back = h1.take(3).await;
        assert!(back.is_ok_and(|back| back == b"one"), "the {n}th one was closed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_says_right_behind_its_offer_reaches_the_engine() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    for early in [1, 5000, 70_000] {
        let frame: Vec<u8> = (0..early).map(|n| u8::try_from(n % 251).unwrap()).collect();
        let sent = [offer("/v1/realtime", "x-play: echo\r\n").as_bytes(), &frame].concat();
        let mut h1 = opened(&ramjet, &sent).await;
        h1.send(b"later").await;
        let back = h1.take(early + 5).await.unwrap();
        assert!(back == [&frame[..], b"later"].concat(), "{early}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_engine_says_with_its_switch_reaches_the_client() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    for _ in 0..4 {
        let switch = r"raw=HTTP/1.1 101 X\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\nhello";
        let mut h1 = websocket(&ramjet, "/v1/realtime", switch).await;
        assert_eq!(h1.take(5).await.unwrap(), b"hello");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_offer_is_refused_goes_on_with_its_connection() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let mut h1 = H1::connect(ramjet.api).await.unwrap();
    for n in 0..8 {
        h1.send(offer("/v1/realtime", "x-play: status=404\r\n").as_bytes()).await;
        assert_eq!(h1.answer().await.unwrap().status, 404);
        h1.send(&[chat_head("content-length: 100\r\n").as_bytes(), &chat_body(100, "")].concat()).await;
        assert_eq!((h1.answer().await.unwrap().status, engine.seen().len()), (200, 2 * n + 2));
    }
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
