//! A client that leaves frees its engine at once, in every phase, and takes its reservation along.

use crate::support::client::{self, H1, chat_head, h2_connect, h2_request, h2_send_body};
use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start};
use crate::support::{chat_body, until};
use bytes::Bytes;
use std::time::{Duration, Instant};

/// The engine must notice within this. On a busy machine a single try may be late for reasons of its own, so the best
/// of a few tries counts.
const AT_ONCE: Duration = Duration::from_millis(50);
const TRIES: usize = 5;

#[derive(Clone, Copy, Debug)]
enum Wire {
    H1,
    /// The connection drops.
    H2,
    /// The stream is reset, the connection stays.
    H2Reset,
}

/// Starts a request, waits until the engine plays its part, leaves; how long until the engine noticed.
async fn leave(ramjet: &Ramjet, engine: &Engine, wire: Wire, play: &str) -> Duration {
    let body = chat_body(20_000, "");
    let before = engine.seen().len();
    let left = match wire {
        Wire::H1 => {
            let mut h1 = client::begin_chat(ramjet.api, play, &body).await.unwrap();
            at_work(engine, before).await;
            if play == "decode" {
                h1.head().await.unwrap();
            }
            Instant::now()
        }
        Wire::H2 | Wire::H2Reset => {
            let mut sender = h2_connect(ramjet.api).await;
            let (response, mut stream) = sender.send_request(h2_request(play, None), false).unwrap();
            h2_send_body(&mut stream, Bytes::from(body)).await;
            at_work(engine, before).await;
            let kept = if play == "decode" { Some(response.await.unwrap()) } else { None };
            if let Wire::H2Reset = wire {
                stream.send_reset(h2::Reason::CANCEL);
                let left = Instant::now();
                noticed(engine, before).await;
                drop(kept);
                return engine.seen()[before].closed.unwrap().duration_since(left);
            }
            Instant::now()
        }
    };
    noticed(engine, before).await;
    engine.seen()[before].closed.unwrap().saturating_duration_since(left)
}

async fn at_work(engine: &Engine, before: usize) {
    until("the engine has the request", || async { engine.seen().len() > before }).await;
}

async fn noticed(engine: &Engine, before: usize) {
    until("the engine notices", || async { engine.seen()[before].closed.is_some() }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_prefill_and_in_decode_the_engine_notices_within_50_ms() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    for wire in [Wire::H1, Wire::H2, Wire::H2Reset] {
        for play in ["prefill", "decode"] {
            let mut best = Duration::MAX;
            for _ in 0..TRIES {
                best = best.min(leave(&ramjet, &engine, wire, play).await);
            }
            assert!(best < AT_ONCE, "{wire:?} {play}: {best:?}");
        }
    }
    ramjet.settled().await;
    assert_eq!(ramjet.metric("ramjet_client_disconnects_total").await, (3 * 2 * TRIES) as f64);
    let seen = engine.seen().len();
    assert_eq!(seen, 3 * 2 * TRIES, "no request was repeated for a client that has left");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_came_behind_the_body_does_not_hide_that_the_client_has_left() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let next = b"GET /v1/files HTTP/1.1\r\nhost: x\r\n\r\n";
    for play in ["prefill", "decode"] {
        for (behind, beside) in [(&b"\r\n"[..], &b""[..]), (b"", b"\r\n"), (b"\r\n", b"\r\n"), (b"", next), (next, b"")]
        {
            let mut best = Duration::MAX;
            for _ in 0..TRIES {
                let before = engine.seen().len();
                let head = chat_head(&format!("x-play: {play}\r\ncontent-length: 20000\r\n"));
                let mut h1 = H1::connect(ramjet.api).await.unwrap();
                h1.send(&[head.as_bytes(), &chat_body(20_000, ""), behind].concat()).await;
                at_work(&engine, before).await;
                h1.send(beside).await;
                if play == "decode" {
                    h1.head().await.unwrap();
                }
                let left = Instant::now();
                drop(h1);
                noticed(&engine, before).await;
                best = best.min(engine.seen()[before].closed.unwrap().saturating_duration_since(left));
            }
            assert!(best < AT_ONCE, "{play} {behind:?} {beside:?}: {best:?}");
        }
    }
    ramjet.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_the_middle_of_its_body_nothing_is_reserved_and_no_engine_hears_of_it() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    for head in ["content-length: 1000000\r\n", "transfer-encoding: chunked\r\n"] {
        let mut h1 = H1::connect(ramjet.api).await.unwrap();
        h1.send(chat_head(head).as_bytes()).await;
        h1.send(b"f4240\r\n{\"model\":").await;
        until("the request is there", || async { ramjet.metric("ramjet_requests_inflight").await == 1.0 }).await;
        assert_eq!(ramjet.metric("ramjet_upstream_load_units").await, 0.0);
        drop(h1);
        ramjet.settled().await;
    }
    assert!(engine.seen().is_empty());
    assert_eq!(ramjet.metric("ramjet_client_disconnects_total").await, 2.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_connection_is_being_made_no_further_replica_is_tried() {
    // a listener whose queue is full lets nobody in and refuses nobody
    let blocked = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = blocked.local_addr().unwrap();
    let mut queue = Vec::new();
    while let Ok(waiting) = std::net::TcpStream::connect_timeout(&addr, Duration::from_millis(200)) {
        queue.push(waiting);
    }
    let engine = Engine::start().await;
    let config = "timeouts: { connect: 500ms }\nrouting: { policy: round_robin }";
    let start = Start { upstreams: &[addr, engine.addr], config, ..Start::default() };
    let ramjet = Ramjet::start_with(start).await;
    let h1 = client::begin_chat(ramjet.api, "", &chat_body(20_000, "")).await.unwrap();
    until("it is on its way", || async { ramjet.metric("ramjet_upstream_inflight").await == 1.0 }).await;
    drop(h1);
    ramjet.settled().await;
    assert!(engine.seen().is_empty(), "the client has left: nobody else is asked");
    let tried = ramjet.series("ramjet_upstream_errors_total").await;
    assert!(tried.iter().any(|(l, n)| l.contains("\"connect_timeout\"") && *n == 1.0), "{tried:?}");
    assert_eq!(ramjet.metric("ramjet_client_disconnects_total").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_weighs_the_prompt_until_the_first_token_then_one() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let body = chat_body(300 << 10, "");
    for (play, weight) in [("prefill", 8.0), ("decode", 1.0)] {
        let h1 = client::begin_chat(ramjet.api, play, &body).await.unwrap();
        until(play, || async { ramjet.metric("ramjet_upstream_load_units").await == weight }).await;
        drop(h1);
        ramjet.settled().await;
    }
}
