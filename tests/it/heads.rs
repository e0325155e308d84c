//! Heads that cannot be read are answered like any other fault, and half a head holds no connection.

use crate::support::client::{Answer, H1, chat, h2_connect};
use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start};
use crate::support::{chat_body, until};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn refused(h1: &mut H1, head: &str) -> Answer {
    h1.send(head.as_bytes()).await;
    let answer = h1.answer().await.unwrap();
    assert_eq!(answer.header("content-type"), Some("application/json"), "{head}");
    assert_eq!(h1.stream.read(&mut [0]).await.unwrap(), 0, "closed: {head}");
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_cannot_be_read_is_answered_in_json_whether_it_is_the_first_or_not() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let many = "x-many: 1\r\n".repeat(300);
    for (head, status, code) in [
        ("GARBAGE\r\n\r\n", 400, "bad_request"),
        ("GET / HTTP/1.1\r\nhost: x\r\nno colon\r\n\r\n", 400, "bad_request"),
        ("GET / HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n", 400, "bad_request"),
        ("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", 400, "bad_request"),
        ("POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip\r\n\r\n", 400, "bad_request"),
        ("CONNECT x:80 HTTP/1.1\r\nhost: x:80\r\n\r\n", 405, "method_not_allowed"),
        (&format!("GET / HTTP/1.1\r\nhost: x\r\n{many}\r\n"), 400, "bad_request"),
    ] {
        for served_before in [0, 1, 3] {
            let mut h1 = H1::connect(ramjet.api).await.unwrap();
            for _ in 0..served_before {
                h1.send(b"GET /x HTTP/1.1\r\nhost: x\r\n\r\n").await;
                assert_eq!(h1.answer().await.unwrap().status, 200);
            }
            let answer = refused(&mut h1, head).await;
            assert_eq!(answer.header("allow").is_some(), status == 405, "{head}");
            assert_eq!((answer.status, answer.header("x-ramjet-error")), (status, Some(code)), "{head}");
            assert_eq!(answer.json()["error"]["code"], code, "{head}");
            // in the words of who asks there
            let mut h1 = H1::connect(ramjet.api).await.unwrap();
            for _ in 0..served_before {
                h1.send(b"GET /x HTTP/1.1\r\nhost: x\r\n\r\n").await;
                assert_eq!(h1.answer().await.unwrap().status, 200);
            }
            let answer = refused(&mut h1, &head.replacen(" / ", " /v1/messages ", 1)).await;
            assert_eq!(answer.json()["type"].is_string(), head.contains(" / "), "{head}");
        }
    }
    assert!(engine.seen().iter().all(|s| s.head.starts_with("GET /x ")), "nothing of it reached an engine");
    assert_eq!(chat(ramjet.api, "", &chat_body(200, "")).await.unwrap().status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_is_too_large_is_answered_so() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    for served_before in [false, true] {
        let mut h1 = H1::connect(ramjet.api).await.unwrap();
        if served_before {
            h1.send(b"GET /x HTTP/1.1\r\nhost: x\r\n\r\n").await;
            assert_eq!(h1.answer().await.unwrap().status, 200);
        }
        // exactly as much as is taken in before it is refused: the rest would be met by a reset
        let head = "GET / HTTP/1.1\r\nhost: x\r\nx-long: ";
        h1.send(&[head.as_bytes(), &vec![b'y'; (1 << 20) + 1 - head.len()]].concat()).await;
        let answer = h1.answer().await.unwrap();
        assert_eq!((answer.status, answer.header("x-ramjet-error")), (431, Some("head_too_large")), "{served_before}");
        // and so is a target that is too long to be read
        let mut h1 = H1::connect(ramjet.api).await.unwrap();
        if served_before {
            h1.send(b"GET /x HTTP/1.1\r\nhost: x\r\n\r\n").await;
            assert_eq!(h1.answer().await.unwrap().status, 200);
        }
        let answer = refused(&mut h1, &format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "y".repeat(66_000))).await;
        assert_eq!((answer.status, answer.header("x-ramjet-error")), (431, Some("head_too_large")), "{served_before}");
    }
    assert!(engine.seen().len() == 2);
}

/// A connection that has begun to speak HTTP/2.
async fn begin_h2(api: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(api).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    stream
}

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
}

/// `POST /v1/chat/completions` with `play`, in HPACK without compression.
fn head_block(play: &str) -> Vec<u8> {
    let literal = |name: &str, value: &str| {
        let text = |t: &str| [&[u8::try_from(t.len()).unwrap()], t.as_bytes()].concat();
        [&[0][..], &text(name), &text(value)].concat()
    };
    [
        literal(":method", "POST"),
        literal(":scheme", "http"),
        literal(":authority", "ramjet.test"),
        literal(":path", "/v1/chat/completions"),
        literal("x-play", play),
    ]
    .concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn half_a_head_of_http_2_ends_its_connection_though_requests_run_on_it() {
    let engine = Engine::start().await;
    let config = "timeouts: { client_header: 300ms }";
    let ramjet = Ramjet::start_with(Start { upstreams: &[engine.addr], config, ..Start::default() }).await;
    let head = frame(1, 5, 3, &head_block(""));
    let open = frame(1, 1, 3, &head_block(""));
    for (n, (half, drip)) in [
        // a part of a frame's header, a part of its payload, a head whose last frame never comes
        (&head[..5], &b""[..]),
        (&head[..20], b""),
        (&head[..20], b"x"),
        (&open[..], b""),
        (&open[..], &frame(9, 0, 3, b"")),
    ]
    .into_iter()
    .enumerate()
    {
        let mut h2 = begin_h2(ramjet.api).await;
        let request = [frame(1, 4, 1, &head_block("decode")), frame(0, 1, 1, &chat_body(200, "\"stream\":true,"))];
        h2.write_all(&request.concat()).await.unwrap();
        until("the request runs", || async { engine.seen().len() == n + 1 }).await;
        h2.write_all(half).await.unwrap();
        let (mut reader, mut writer) = h2.into_split();
        let drip = drip.to_vec();
        let dripping = tokio::spawn(async move {
            while !drip.is_empty() && writer.write_all(&drip[..1]).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            writer
        });
        let mut buffer = [0; 4096];
        while let Ok(1..) = reader.read(&mut buffer).await {}
        drop(dripping.await.unwrap());
        until("the engine is let go", || async { engine.seen()[n].closed.is_some() }).await;
    }
    ramjet.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn http_2_connections_live_on_whatever_the_pieces_of_their_frames() {
    let engine = Engine::start().await;
    let config = "timeouts: { client_header: 1s }";
    let ramjet = Ramjet::start_with(Start { upstreams: &[engine.addr], config, ..Start::default() }).await;
    let mut h2 = begin_h2(ramjet.api).await;
    // heads in pieces, one after the other for longer than one may take, with a body that comes late in between
    for n in 0..40_u8 {
        let block = head_block("");
        let (first, second) = block.split_at(block.len() / 2);
        let id = 2 * n + 1;
        let frames = [frame(1, 0, id, first), frame(9, 4, id, second), frame(0, 1, id, &chat_body(200, ""))].concat();
        for piece in frames.chunks(frames.len() / 3 + 1) {
            h2.write_all(piece).await.unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    until("all were served", || async { engine.seen().len() == 40 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_and_endless_heads_of_http_2_are_refused_by_size() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    // the library's answer, which has no body
    let mut sender = h2_connect(ramjet.api).await;
    let long = "y".repeat(80 << 10);
    let request = http::Request::get("http://ramjet.test/x").header("x-long", long).body(()).unwrap();
    let (response, _) = sender.send_request(request, true).unwrap();
    assert_eq!(response.await.unwrap().status(), 431);
    // a head that goes on for ever, by frames that are empty and by frames that are full
    for payload in [&b""[..], &[b'y'; 16 << 10]] {
        let mut h2 = begin_h2(ramjet.api).await;
        h2.write_all(&frame(1, 1, 1, &head_block(""))).await.unwrap();
        let (mut reader, mut writer) = h2.into_split();
        let endless = tokio::spawn({
            let piece = frame(9, 0, 1, payload);
            async move { while writer.write_all(&piece).await.is_ok() {} }
        });
        let mut buffer = [0; 4096];
        while let Ok(1..) = reader.read(&mut buffer).await {}
        endless.await.unwrap();
    }
    assert!(engine.seen().is_empty());
}
