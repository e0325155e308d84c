//! The engine over real sockets: what other tests rely on when they use it as a stand-in for a real one.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

/// Slow enough that a large prompt is still being read when a test looks.
async fn fleet() -> Fleet {
    let params = Params { prefill_rate: 2000.0, ..Params::shipped() };
    Fleet::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 1, "sim", &params).await.unwrap()
}

fn chat(words: usize, rest: &str) -> String {
    let text = "abc ".repeat(words);
    format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}]{rest}}}"#)
}

async fn open(fleet: &Fleet, method: &str, path: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(fleet.engines[0].address).await.unwrap();
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body.as_bytes()).await.unwrap();
    stream
}

async fn ask(fleet: &Fleet, method: &str, path: &str, body: &str) -> std::io::Result<String> {
    let mut text = String::new();
    open(fleet, method, path, body).await.read_to_string(&mut text).await?;
    Ok(text)
}

async fn until(fleet: &Fleet, what: &str, reached: impl Fn(&schedule::Stats) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !reached(&fleet.engines[0].shared.snapshot.lock().engine) {
        assert!(Instant::now() < deadline, "never reached: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

const CHAT: &str = "/v1/chat/completions";
const STREAM: &str = r#","stream":true,"max_tokens":40"#;

#[tokio::test]
async fn stream_has_vllms_shape_and_the_second_time_hits() {
    let fleet = fleet().await;
    let asked = chat(300, r#","stream":true,"stream_options":{"include_usage":true},"max_tokens":3"#);
    let first = ask(&fleet, "POST", CHAT, &asked).await.unwrap();
    for part in [r#"delta":{"role":"assistant","#, r#"finish_reason":"length"#, r#"cached_tokens":0"#, "data: [DONE]"] {
        assert!(first.contains(part), "{part} in {first}");
    }
    let second = ask(&fleet, "POST", CHAT, &asked).await.unwrap();
    assert!(second.contains(r#"cached_tokens":304"#), "{second}");
    let plain = ask(&fleet, "POST", CHAT, &chat(300, STREAM)).await.unwrap();
    assert!(!plain.contains("usage"), "usage only when asked for");
}

#[tokio::test]
async fn headers_come_before_prefill() {
    let fleet = fleet().await;
    let mut stream = open(&fleet, "POST", CHAT, &chat(20_000, STREAM)).await;
    let mut head = [0u8; 15];
    let read = tokio::time::timeout(Duration::from_secs(2), stream.read_exact(&mut head)).await;
    assert!(read.is_ok(), "prefill takes ten seconds, the status line must not");
    assert_eq!(&head, b"HTTP/1.1 200 OK");
}

#[tokio::test]
async fn client_that_leaves_frees_queue_prefill_and_decode() {
    let fleet = fleet().await;
    let reading = open(&fleet, "POST", CHAT, &chat(20_000, STREAM)).await;
    until(&fleet, "first one runs", |now| now.running == 1).await;
    let queued = open(&fleet, "POST", CHAT, &chat(10, "")).await;
    until(&fleet, "second one waits", |now| now.waiting == 1).await;
    drop(queued);
    until(&fleet, "left the queue", |now| now.waiting == 0 && now.aborted == 1).await;
    drop(reading);
    until(&fleet, "left prefill", |now| now.running == 0 && now.aborted == 2).await;
    let decoding = open(&fleet, "POST", CHAT, &chat(10, r#","stream":true,"max_tokens":5000"#)).await;
    until(&fleet, "decodes", |now| now.generated_tokens > 2).await;
    drop(decoding);
    until(&fleet, "left decode", |now| now.running == 0 && now.aborted == 3 && now.kv_held == 0).await;
}

#[tokio::test]
async fn refuses_and_comes_back_on_the_same_port() {
    let fleet = fleet().await;
    let order = r#"{"kind":"refuse","for_ms":300}"#;
    assert!(ask(&fleet, "POST", "/fault", order).await.unwrap().contains("200 OK"), "the order itself is answered");
    let deadline = Instant::now() + Duration::from_secs(5);
    let address = fleet.engines[0].address;
    while TcpStream::connect(address).await.is_ok() {
        assert!(Instant::now() < deadline, "still accepts");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    while TcpStream::connect(address).await.is_err() {
        assert!(Instant::now() < deadline, "never came back");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(ask(&fleet, "GET", "/health", "").await.unwrap().contains("200 OK"));
}

#[tokio::test]
async fn reset_tears_a_running_stream() {
    let fleet = fleet().await;
    fleet.set_faults(&["reset:2".to_owned()]).unwrap();
    let torn = ask(&fleet, "POST", CHAT, &chat(10, STREAM)).await;
    assert_eq!(torn.map_err(|error| error.kind()), Err(std::io::ErrorKind::ConnectionReset));
}

#[tokio::test]
async fn frozen_answers_everything_but_generates_nothing() {
    let fleet = fleet().await;
    fleet.set_faults(&["sim-0=freeze".to_owned()]).unwrap();
    for path in ["/health", "/v1/models", "/metrics", "/stats"] {
        assert!(ask(&fleet, "GET", path, "").await.unwrap().contains("200 OK"), "{path}");
    }
    let mut stream = open(&fleet, "POST", CHAT, &chat(10, STREAM)).await;
    let mut text = String::new();
    let ended = tokio::time::timeout(Duration::from_millis(200), stream.read_to_string(&mut text)).await;
    assert!(ended.is_err(), "silence, not an end");
    assert_eq!(fleet.engines[0].shared.snapshot.lock().engine.generated_tokens, 0);
    fleet.set_faults(&["none".to_owned()]).unwrap();
    until(&fleet, "goes on", |now| now.finished == 1).await;
}

#[tokio::test]
async fn unavailable_and_full_queue_are_503() {
    let params = Params { max_queue: Some(0), prefill_rate: 2000.0, ..Params::shipped() };
    let fleet = Fleet::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 1, "sim", &params).await.unwrap();
    let _running = open(&fleet, "POST", CHAT, &chat(20_000, STREAM)).await;
    until(&fleet, "runs", |now| now.running == 1).await;
    let full = ask(&fleet, "POST", CHAT, &chat(10, "")).await.unwrap();
    assert!(full.contains("503") && full.contains("retry-after: 1"), "{full}");
    fleet.set_faults(&["503:7".to_owned()]).unwrap();
    let refused = ask(&fleet, "POST", CHAT, &chat(10, "")).await.unwrap();
    assert!(refused.contains("retry-after: 7") && refused.contains(r#""error":{"#), "{refused}");
}
