//! Answers that an engine compresses reach the client as they are, and what they tell is heard all the same.

use crate::support::client::{H1, chat_head};
use crate::support::engine::Engine;
use crate::support::ramjet::Ramjet;
use crate::support::{chat_body, hex, until};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write;
use std::net::SocketAddr;

const TOKEN: &[u8] = b"data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n";
const REST: &[u8] = b"data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n\
    data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9000,\"completion_tokens\":7,\
    \"prompt_tokens_details\":{\"cached_tokens\":5000}}}\n\ndata: [DONE]\n\n";
const WHOLE: &[u8] = b"{\"choices\":[{\"message\":{\"content\":\"x\"},\"finish_reason\":\"stop\"}],\
    \"usage\":{\"prompt_tokens\":9000,\"completion_tokens\":7,\"prompt_tokens_details\":{\"cached_tokens\":5000}}}";

/// The texts in each coding, flushed one by one.
fn encodings(texts: &[&[u8]]) -> [(&'static str, Vec<Vec<u8>>); 3] {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    let mut zstd = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    let mut brotli = brotli::CompressorWriter::new(Vec::new(), 4096, 2, 20);
    let mut parts = [Vec::new(), Vec::new(), Vec::new()];
    for text in texts {
        for encoder in [&mut gzip as &mut dyn Write, &mut zstd, &mut brotli] {
            encoder.write_all(text).unwrap();
            encoder.flush().unwrap();
        }
        parts[0].push(std::mem::take(gzip.get_mut()));
        parts[1].push(std::mem::take(zstd.get_mut()));
        parts[2].push(std::mem::take(brotli.get_mut()));
    }
    let ends = [gzip.finish().unwrap(), zstd.finish().unwrap(), brotli.into_inner()];
    for (parts, end) in parts.iter_mut().zip(ends) {
        parts.last_mut().unwrap().extend(end);
    }
    let [gzip, zstd, brotli] = parts;
    [("gzip", gzip), ("zstd", zstd), ("br", brotli)]
}

/// The play of an engine that sends `parts` as a chunked answer.
fn play(kind: &str, coding: &str, parts: &[Vec<u8>]) -> String {
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-encoding: {coding}\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    let chunk = |part: &Vec<u8>| [format!("{:x}\r\n", part.len()).as_bytes(), part, b"\r\n"].concat();
    let mut chunks: Vec<Vec<u8>> = parts.iter().map(chunk).collect();
    chunks[0].splice(0..0, head.into_bytes());
    chunks.last_mut().unwrap().extend(b"0\r\n\r\n");
    format!("hex={}", hex::encode(&chunks))
}

async fn ask(api: SocketAddr, members: &str) -> H1 {
    let mut h1 = H1::connect(api).await.unwrap();
    let body = chat_body(400_000, members);
    let head = chat_head(&format!("accept-encoding: gzip, zstd, br\r\ncontent-length: {}\r\n", body.len()));
    h1.send(&[head.as_bytes(), &body].concat()).await;
    h1
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_token_and_the_usage_of_a_compressed_stream_are_seen_while_it_passes() {
    for (coding, parts) in encodings(&[TOKEN, REST]) {
        let engine = Engine::start().await;
        let ramjet = Ramjet::start(&[engine.addr]).await;
        engine.script(&[&play("text/event-stream", coding, &parts)]);
        let mut h1 = ask(ramjet.api, "\"stream\":true,").await;
        // what is reserved shrinks to one unit with the first token, long before the end
        until("the first token is seen", || async { ramjet.metric("ramjet_upstream_load_units").await == 1.0 }).await;
        engine.call();
        let answer = h1.answer().await.unwrap();
        assert_eq!((answer.status, answer.header("content-encoding")), (200, Some(coding)));
        assert_eq!(answer.body, parts.concat(), "{coding}: as the engine sent it");
        ramjet.settled().await;
        assert_eq!(engine.seen()[0].header("accept-encoding"), Some("gzip, zstd, br"), "asked for as the client did");
        for (name, value) in [
            ("ramjet_ttft_seconds_count", 1.0),
            ("ramjet_prompt_tokens_total", 9000.0),
            ("ramjet_cached_prompt_tokens_total", 5000.0),
            ("ramjet_completion_tokens_total", 7.0),
            ("ramjet_upstream_errors_total", 0.0),
        ] {
            assert_eq!(ramjet.metric(name).await, value, "{coding}: {name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compressed_answer_that_is_not_streamed_tells_its_usage_and_a_broken_stream_is_known_as_one() {
    for (coding, parts) in encodings(&[WHOLE]) {
        let engine = Engine::start().await;
        let ramjet = Ramjet::start(&[engine.addr]).await;
        engine.script(&[&play("application/json", coding, &parts)]);
        assert_eq!(ask(ramjet.api, "").await.answer().await.unwrap().body, parts.concat());
        ramjet.settled().await;
        assert_eq!(ramjet.metric("ramjet_cached_prompt_tokens_total").await, 5000.0, "{coding}");
        // an end without a finish
        let (_, parts) = encodings(&[TOKEN]).into_iter().find(|(name, _)| *name == coding).unwrap();
        engine.script(&[&play("text/event-stream", coding, &parts)]);
        assert_eq!(ask(ramjet.api, "\"stream\":true,").await.answer().await.unwrap().body, parts.concat());
        ramjet.settled().await;
        let errors = ramjet.series("ramjet_upstream_errors_total").await;
        assert!(errors.iter().any(|(labels, n)| labels.contains("broken_stream") && *n == 1.0), "{coding}: {errors:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_what_its_coding_says_passes_and_tells_nothing() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let [(_, bomb), ..] = encodings(&[&vec![b'x'; 48 << 20]]);
    for (coding, parts) in [
        ("gzip", vec![[TOKEN, REST].concat()]),
        ("compress", vec![b"\x1f\x9d\x90".to_vec()]),
        ("gzip, br", vec![vec![1, 2, 3]]),
        ("gzip", bomb),
    ] {
        let before = ramjet.memory();
        engine.script(&[&play("text/event-stream", coding, &parts)]);
        let answer = ask(ramjet.api, "\"stream\":true,").await.answer().await.unwrap();
        assert_eq!((answer.status, answer.body), (200, parts.concat()), "{coding}");
        ramjet.settled().await;
        let grown = ramjet.memory().saturating_sub(before);
        assert!(grown < 24 << 20, "{coding}: {grown} bytes more in use");
    }
    assert_eq!(ramjet.metric("ramjet_completion_tokens_total").await, 0.0);
    assert_eq!(ramjet.metric("ramjet_upstream_errors_total").await, 0.0);
}
