//! A request's body reaches the engine byte for byte, whatever its size and framing, and so does an edited one.

use crate::support::client::{H1, chat_head, h2_connect, h2_request, h2_send_body};
use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start};
use crate::support::{body_of, chat_body};
use bytes::Bytes;
use std::net::SocketAddr;
use xxhash_rust::xxh3::xxh3_64;

const SIZES: [usize; 6] = [10, 63 << 10, 64 << 10, 65 << 10, 1 << 20, 16 << 20];

/// The member that asks for a stream.
const STREAMED: &str = r#""stream":true,"#;

#[derive(Clone, Copy, Debug)]
enum Framing {
    Length,
    Chunked,
    Continue,
    H2,
    H2WithLength,
}

const FRAMINGS: [Framing; 5] =
    [Framing::Length, Framing::Chunked, Framing::Continue, Framing::H2, Framing::H2WithLength];

async fn send(addr: SocketAddr, framing: Framing, body: &[u8]) -> u16 {
    match framing {
        Framing::H2 => send_h2(addr, None, body).await,
        Framing::H2WithLength => send_h2(addr, Some(body.len()), body).await,
        _ => {
            let mut h1 = H1::connect(addr).await.unwrap();
            send_h1(&mut h1, framing, body).await
        }
    }
}

async fn send_h1(h1: &mut H1, framing: Framing, body: &[u8]) -> u16 {
    let length = format!("content-length: {}\r\n", body.len());
    match framing {
        Framing::Chunked => {
            h1.send(chat_head("transfer-encoding: chunked\r\n").as_bytes()).await;
            for piece in body.chunks(50_000) {
                h1.send(format!("{:x}\r\n", piece.len()).as_bytes()).await;
                h1.send(piece).await;
                h1.send(b"\r\n").await;
            }
            h1.send(b"0\r\n\r\n").await;
        }
        Framing::Continue => {
            h1.send(chat_head(&format!("{length}expect: 100-continue\r\n")).as_bytes()).await;
            let interim = h1.head().await.unwrap();
            assert!(interim.starts_with("HTTP/1.1 100"), "{interim}");
            h1.send(body).await;
        }
        _ => {
            h1.send(chat_head(&length).as_bytes()).await;
            h1.send(body).await;
        }
    }
    h1.answer().await.unwrap().status
}

async fn send_h2(addr: SocketAddr, length: Option<usize>, body: &[u8]) -> u16 {
    let mut sender = h2_connect(addr).await;
    let (response, mut stream) = sender.send_request(h2_request("", length), false).unwrap();
    h2_send_body(&mut stream, Bytes::copy_from_slice(body)).await;
    response.await.unwrap().status().as_u16()
}

async fn reaches_the_engine(ramjet: &Ramjet, engine: &Engine, framing: Framing, sent: &[u8], wanted: &[u8]) {
    let case = format!("{framing:?} {}", sent.len());
    assert_eq!(send(ramjet.api, framing, sent).await, 200, "{case}");
    let seen = engine.seen().pop().unwrap();
    assert_eq!((seen.length, seen.hash), (wanted.len(), xxh3_64(wanted)), "{case}");
    assert_eq!(seen.header("content-length"), Some(wanted.len().to_string().as_str()), "{case}");
    assert_eq!(seen.header("expect"), None, "{case}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_size_in_every_framing_arrives_byte_for_byte() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    for framing in FRAMINGS {
        for size in SIZES {
            let body = body_of(size);
            reaches_the_engine(&ramjet, &engine, framing, &body, &body).await;
        }
    }
    ramjet.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edited_body_arrives_without_the_edited_span_and_otherwise_byte_for_byte() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let member = r#""max_tokens" : 99999999,"#;
    for framing in FRAMINGS {
        for size in SIZES.into_iter().filter(|s| *s > 100) {
            let sent = chat_body(size, member);
            assert_eq!(sent.len(), size);
            let wanted = String::from_utf8(sent.clone()).unwrap().replacen(member, "", 1);
            reaches_the_engine(&ramjet, &engine, framing, &sent, wanted.as_bytes()).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_body_goes_in_one_segment_with_its_head() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let mut h1 = H1::connect(ramjet.api).await.unwrap();
    let body = body_of(1000);
    for _ in 0..60 {
        assert_eq!(send_h1(&mut h1, Framing::Length, &body).await, 200);
    }
    // few come in two, where this process had to wait for a processor between them for longer than the kernel waits
    let segments: Vec<u32> = engine.seen().iter().map(|seen| seen.segments).collect();
    assert!((60..80).contains(segments.last().unwrap()), "{segments:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_closes_its_connection_after_the_answer_gets_it_whatever_its_body() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    for stream in ["", STREAMED] {
        for (framing, pad, size) in [
            ("length", 9000, 5000),
            ("length", 0, 20_000),
            ("length", 0, 100_000),
            ("chunked", 0, 20_000),
            ("chunked", 0, 100_000),
        ] {
            let body = chat_body(size, stream);
            let (how, framed) = match framing {
                "length" => (format!("content-length: {}\r\n", body.len()), body.clone()),
                _ => {
                    let pieces = body
                        .chunks(50_000)
                        .flat_map(|piece| [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat());
                    ("transfer-encoding: chunked\r\n".to_owned(), pieces.chain(*b"0\r\n\r\n").collect())
                }
            };
            let head = chat_head(&format!("connection: close\r\nx-pad: {}\r\n{how}", "p".repeat(pad)));
            let mut h1 = H1::connect(ramjet.api).await.unwrap();
            h1.send(&[head.as_bytes(), &framed].concat()).await;
            let answer = h1.answer().await.unwrap_or_else(|e| panic!("{framing} {pad} {size} {stream}: {e}"));
            assert_eq!(answer.status, 200, "{framing} {pad} {size} {stream}");
            let seen = engine.seen().pop().unwrap();
            assert_eq!((seen.length, seen.hash), (body.len(), xxh3_64(&body)), "{framing} {pad} {size} {stream}");
        }
    }
    ramjet.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_of_http2_arrives_once_though_trailers_follow_it() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let ramjet = Ramjet::start(&[a.addr, b.addr]).await;
    let mut sender = h2_connect(ramjet.api).await;
    for size in [0, 1, 100, 17_000, 65_000, 257_000] {
        for (length, hangs_up) in [(None, false), (Some(size), false), (None, true)] {
            let body = Bytes::from(if size == 0 { Vec::new() } else { body_of(size) });
            if hangs_up {
                // one of them, whichever is asked first
                a.script(&["drop"]);
            }
            let (response, mut stream) = sender.send_request(h2_request("", length), false).unwrap();
            let mut left = body.clone();
            while !left.is_empty() {
                stream.reserve_capacity(left.len());
                let room = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await.unwrap().unwrap();
                stream.send_data(left.split_to(room.min(left.len())), false).unwrap();
            }
            let mut trailers = http::HeaderMap::new();
            trailers.insert("x-t", http::HeaderValue::from_static("1"));
            stream.send_trailers(trailers).unwrap();
            assert_eq!(response.await.unwrap().status(), 200, "{size} {length:?} {hangs_up}");
            let arrived = |engine: &Engine| engine.seen().pop().map(|seen| (seen.length, seen.hash));
            let wanted = Some((size, xxh3_64(&body)));
            assert!(arrived(&a) == wanted || arrived(&b) == wanted, "{size} {length:?} {hangs_up}");
        }
    }
    ramjet.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn close_is_heard_in_whatever_field_it_stands() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    for fields in ["connection: x-foo\r\nconnection: close\r\n", "connection: x-foo , Close\r\n"] {
        let mut h1 = H1::connect(ramjet.api).await.unwrap();
        h1.send(chat_head(&format!("{fields}content-length: 100\r\n")).as_bytes()).await;
        h1.send(&body_of(100)).await;
        let answer = h1.answer().await.unwrap();
        assert_eq!((answer.status, answer.header("connection")), (200, Some("close")), "{fields}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_comes_with_its_head_arrives_whatever_their_sizes() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    for pad in [0, 3000, 9000, 70_000] {
        let mut h1 = H1::connect(ramjet.api).await.unwrap();
        for size in [100, 4 << 10, (4 << 10) + 1, 5000, 30_000, 100_000] {
            let body = body_of(size);
            let head = chat_head(&format!("x-pad: {}\r\ncontent-length: {size}\r\n", "p".repeat(pad)));
            h1.send(&[head.as_bytes(), &body].concat()).await;
            assert_eq!(h1.answer().await.unwrap().status, 200, "{pad} {size}");
            let seen = engine.seen().pop().unwrap();
            assert_eq!((seen.length, seen.hash), (size, xxh3_64(&body)), "{pad} {size}");
        }
    }
    ramjet.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_serves_many_bodies_of_any_framing() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let mut h1 = H1::connect(ramjet.api).await.unwrap();
    for framing in [Framing::Chunked, Framing::Length, Framing::Chunked, Framing::Continue, Framing::Chunked] {
        for size in [200, 20 << 10, 200 << 10] {
            for body in [body_of(size), chat_body(size, STREAMED)] {
                assert_eq!(send_h1(&mut h1, framing, &body).await, 200);
                assert_eq!(engine.seen().pop().unwrap().hash, xxh3_64(&body), "{framing:?} {size}");
            }
        }
    }
}

/// What Pingora has read a long body with is let go of where the answer is a stream, and with it nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn requests_that_come_with_the_end_of_a_long_body_are_answered_in_their_turn() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    for size in [300, 17 << 10, 65 << 10, 300 << 10] {
        let mut h1 = H1::connect(ramjet.api).await.unwrap();
        let bodies = [chat_body(size, STREAMED), body_of(100), chat_body(size + 1, STREAMED), chat_body(300, STREAMED)];
        let with_head =
            |body: &Vec<u8>| [chat_head(&format!("content-length: {}\r\n", body.len())).as_bytes(), body].concat();
        h1.send(&bodies.iter().map(with_head).collect::<Vec<_>>().concat()).await;
        for body in &bodies {
            assert_eq!(h1.answer().await.unwrap().status, 200, "{size}");
            let hash = xxh3_64(body);
            assert!(engine.seen().iter().any(|seen| (seen.length, seen.hash) == (body.len(), hash)), "{size}");
        }
    }
    ramjet.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_over_the_limit_is_refused_and_no_engine_sees_it() {
    let engine = Engine::start().await;
    let start = Start { upstreams: &[engine.addr], config: "limits: { body: 64KiB }", ..Start::default() };
    let ramjet = Ramjet::start_with(start).await;
    for framing in [Framing::Length, Framing::Chunked] {
        let mut h1 = H1::connect(ramjet.api).await.unwrap();
        let head = match framing {
            Framing::Length => "content-length: 70000\r\n",
            _ => "transfer-encoding: chunked\r\n",
        };
        h1.send(chat_head(head).as_bytes()).await;
        if let Framing::Chunked = framing {
            h1.send(&[format!("{:x}\r\n", 70_000).as_bytes(), &[b'x'; 70_000]].concat()).await;
        }
        let answer = h1.answer().await.unwrap();
        assert_eq!((answer.status, answer.header("x-ramjet-error")), (413, Some("body_too_large")), "{framing:?}");
        assert_eq!(answer.json()["error"]["code"], "body_too_large");
    }
    assert!(engine.seen().is_empty());
    assert_eq!(send(ramjet.api, Framing::Length, &body_of(64 << 10)).await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_not_understood_is_forwarded_as_it_came() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    for body in
        [&b"not json"[..], b"{\"messages\":[", b"[]", b"\xff\xfe{}", b"{\"messages\":17,\"max_tokens\":\"all\"}"]
    {
        reaches_the_engine(&ramjet, &engine, Framing::Length, body, body).await;
    }
}
