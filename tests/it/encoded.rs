//! Bodies that come compressed go on as they came, and are routed by what is in them.

use crate::support::client::{Answer, H1, chat_head};
use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start};
use crate::support::{chat_body, until};
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use std::io::Write;
use std::net::SocketAddr;
use xxhash_rust::xxh3::xxh3_64;

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn encodings(text: &[u8]) -> [(&'static str, Vec<u8>); 4] {
    let mut zlib = ZlibEncoder::new(Vec::new(), Compression::fast());
    zlib.write_all(text).unwrap();
    let mut brotli = Vec::new();
    brotli::CompressorWriter::new(&mut brotli, 4096, 2, 20).write_all(text).unwrap();
    [
        ("gzip", gzip(text)),
        ("deflate", zlib.finish().unwrap()),
        ("zstd", zstd::encode_all(text, 1).unwrap()),
        ("br", brotli),
    ]
}

async fn send(api: SocketAddr, coding: &str, body: &[u8]) -> Answer {
    let mut h1 = H1::connect(api).await.unwrap();
    let head = chat_head(&format!("content-encoding: {coding}\r\ncontent-length: {}\r\n", body.len()));
    h1.send(&[head.as_bytes(), body].concat()).await;
    h1.answer().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compressed_prompt_follows_the_same_prompt_sent_plain() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let ramjet = Ramjet::start(&[a.addr, b.addr]).await;
    for about in 0..6 {
        let text = String::from_utf8(chat_body(30_000, "\"max_tokens\":999999,")).unwrap();
        let text = text.replacen("content\":\"", &format!("content\":\"{about} "), 1);
        let home = send(ramjet.api, "identity", text.as_bytes()).await;
        for (coding, body) in encodings(text.as_bytes()) {
            let answer = send(ramjet.api, coding, &body).await;
            assert_eq!(answer.header("x-ramjet-upstream"), home.header("x-ramjet-upstream"), "{about} {coding}");
            let engine = if answer.header("x-ramjet-upstream") == Some("0") { &a } else { &b };
            let seen = engine.seen().pop().unwrap();
            assert_eq!((seen.length, seen.hash), (body.len(), xxh3_64(&body)), "{coding}");
            assert_eq!(seen.header("content-encoding"), Some(coding));
        }
    }
    assert!(!a.seen().is_empty() && !b.seen().is_empty(), "they take turns");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_goes_on_as_it_came() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let body = gzip(&chat_body(30_000, ""));
    let dense = gzip(&vec![b' '; 8 << 20]);
    for (coding, body) in [
        ("gzip", &body[..body.len() / 2]),
        ("compress", &body),
        ("gzip, gzip", &body),
        ("br", &body),
        ("gzip", b"{}"),
        ("gzip", &dense),
    ] {
        assert_eq!(send(ramjet.api, coding, body).await.status, 200, "{coding}");
        let seen = engine.seen().pop().unwrap();
        assert_eq!((seen.hash, seen.header("content-encoding")), (xxh3_64(body), Some(coding)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limit_is_on_what_is_in_it() {
    let engine = Engine::start().await;
    let start = Start { upstreams: &[engine.addr], config: "limits: { body: 1MiB }", ..Start::default() };
    let ramjet = Ramjet::start_with(start).await;
    for (coding, body) in encodings(&vec![b' '; 64 << 20]) {
        let answer = send(ramjet.api, coding, &body).await;
        assert_eq!((answer.status, answer.header("x-ramjet-error")), (413, Some("body_too_large")), "{coding}");
    }
    assert!(engine.seen().is_empty());
    assert_eq!(send(ramjet.api, "gzip", &gzip(&chat_body(1 << 20, ""))).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn text_that_is_held_in_the_place_of_a_compressed_body_takes_its_memory() {
    let engine = Engine::start().await;
    let config = "compat: { model_aliases: { fast: m } }\nlimits: { body_memory: 1MiB }";
    let ramjet = Ramjet::start_with(Start { upstreams: &[engine.addr], config, ..Start::default() }).await;
    let text = format!(r#"{{"model":"fast","messages":[{{"role":"user","content":"{}"}}]}}"#, "a".repeat(900 << 10));
    let body = gzip(text.as_bytes());
    assert!(body.len() < 64 << 10);
    let ask = async |play: &str| {
        let mut h1 = H1::connect(ramjet.api).await.unwrap();
        let fields = format!("x-play: {play}\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n", body.len());
        h1.send(&[chat_head(&fields).as_bytes(), &body].concat()).await;
        h1
    };
    let first = ask("prefill").await;
    until("the engine has it", || async { engine.seen().len() == 1 }).await;
    let refused = ask("").await.answer().await.unwrap();
    assert_eq!((refused.status, refused.header("x-ramjet-error")), (503, Some("overloaded")));
    drop(first);
    ramjet.settled().await;
    assert_eq!(ask("").await.answer().await.unwrap().status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alias_is_replaced_in_plain_text() {
    let engine = Engine::start().await;
    let config = "compat: { model_aliases: { fast: m } }";
    let ramjet = Ramjet::start_with(Start { upstreams: &[engine.addr], config, ..Start::default() }).await;
    let want = chat_body(5000, "");
    let text = String::from_utf8(want.clone()).unwrap().replacen("\"m\"", "\"fast\"", 1);
    for (coding, body) in encodings(text.as_bytes()) {
        assert_eq!(send(ramjet.api, coding, &body).await.status, 200);
        let seen = engine.seen().pop().unwrap();
        assert_eq!((seen.length, seen.hash, seen.header("content-encoding")), (want.len(), xxh3_64(&want), None));
        assert_eq!(seen.header("content-length"), Some(&*want.len().to_string()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_body_with_an_alias_expands_to_counts_as_held() {
    let engine = Engine::start().await;
    let config = "compat: { model_aliases: { fast: m } }\nlimits: { body_memory: 1MiB }";
    let ramjet = Ramjet::start_with(Start { upstreams: &[engine.addr], config, ..Start::default() }).await;
    let text = String::from_utf8(chat_body(900 << 10, "")).unwrap().replacen("\"m\"", "\"fast\"", 1);
    let body = gzip(text.as_bytes());
    assert!(body.len() < 100 << 10);
    let mut held = H1::connect(ramjet.api).await.unwrap();
    let head = chat_head(&format!("x-play: prefill\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n", body.len()));
    held.send(&[head.as_bytes(), &body].concat()).await;
    until("an engine has it", || async { engine.seen().len() == 1 }).await;
    let answer = send(ramjet.api, "gzip", &body).await;
    assert_eq!((answer.status, answer.header("x-ramjet-error")), (503, Some("overloaded")));
    drop(held);
    ramjet.settled().await;
    assert_eq!(send(ramjet.api, "gzip", &body).await.status, 200);
}
