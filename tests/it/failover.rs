//! A failed attempt goes on to another replica before a byte was answered, and never when it must not.

use crate::support::client::{self, H1, chat_head};
use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start, lease};
use crate::support::{chat_body, until};
use xxhash_rust::xxh3::xxh3_64;

const TURNS: &str = "routing: { policy: round_robin }";

/// Two engines in turns, with what the next requests at either will meet.
async fn pair(plays: &[&str]) -> (Engine, Engine, Ramjet) {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let ramjet = Ramjet::start_with(Start { upstreams: &[a.addr, b.addr], config: TURNS, ..Start::default() }).await;
    a.script(plays);
    b.script(plays);
    (a, b, ramjet)
}

/// An engine that takes turns with one that died after its first probe, which only requests can find out.
async fn beside_a_dead_one() -> (Engine, Ramjet) {
    let (dead, engine) = (Engine::start().await, Engine::start().await);
    let upstreams = &[dead.addr, engine.addr];
    let ramjet = Ramjet::start_with(Start { upstreams, config: TURNS, probe_every: "1h", ..Start::default() }).await;
    until("the first probes", || async { dead.probes() > 0 && engine.probes() > 0 }).await;
    dead.stop().await;
    (engine, ramjet)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_connection_moves_on_with_the_whole_body() {
    let (engine, ramjet) = beside_a_dead_one().await;
    for size in [1000, 200 << 10, 16 << 20] {
        let body = chat_body(size, "");
        for _ in 0..2 {
            assert_eq!(client::chat(ramjet.api, "", &body).await.unwrap().status, 200);
            assert_eq!(engine.seen().pop().unwrap().hash, xxh3_64(&body));
        }
    }
    assert_eq!(ramjet.metric("ramjet_upstream_failovers_total").await, 3.0);
    ramjet.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_502_or_503_from_the_front_moves_on_with_the_whole_body() {
    for play in ["status=502", "status=503"] {
        let (a, b, ramjet) = pair(&[]).await;
        let body = chat_body(300 << 10, "");
        a.script(&[play]);
        let first = client::chat(ramjet.api, "", &body).await.unwrap();
        let second = client::chat(ramjet.api, "", &body).await.unwrap();
        assert_eq!((first.status, second.status), (200, 200), "{play}");
        assert_eq!(a.seen().len() + b.seen().len(), 3, "{play}");
        for seen in a.seen().iter().chain(&b.seen()) {
            assert_eq!(seen.hash, xxh3_64(&body));
        }
        let mut moved = ramjet.series("ramjet_upstream_failovers_total").await;
        moved.retain(|(_, count)| *count > 0.0);
        assert_eq!(moved.len(), 1, "{moved:?}");
        assert!(moved[0].0.contains("bad_gateway") && moved[0].1 == 1.0, "{moved:?}");
        ramjet.settled().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_connection_moves_on_unless_told_otherwise() {
    let body = chat_body(1000, "");
    let (a, b, ramjet) = pair(&[]).await;
    a.script(&["drop"]);
    b.script(&["drop"]);
    // the first one to meet it fails twice at most: attempts are bounded
    let answer = client::chat(ramjet.api, "", &body).await.unwrap();
    assert_eq!((answer.status, answer.header("x-ramjet-error")), (502, Some("upstream_lost")));
    assert_eq!(a.seen().len() + b.seen().len(), 2);
    assert_eq!(client::chat(ramjet.api, "", &body).await.unwrap().status, 200);

    let (a, b) = (Engine::start().await, Engine::start().await);
    let config = "routing: { policy: round_robin }\nretry: { replay_lost: false }";
    let ramjet = Ramjet::start_with(Start { upstreams: &[a.addr, b.addr], config, ..Start::default() }).await;
    assert_eq!(client::chat(ramjet.api, "drop", &body).await.unwrap().status, 502);
    assert_eq!(a.seen().len() + b.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_engines_own_refusals_pass_through_and_are_asked_of_nobody_else() {
    let (a, b, ramjet) = pair(&[]).await;
    let body = chat_body(1000, "");
    for (play, status) in [("busy", 503), ("status=429", 429), ("status=400", 400), ("status=500", 500)] {
        let before = a.seen().len() + b.seen().len();
        let answer = client::chat(ramjet.api, play, &body).await.unwrap();
        assert_eq!(answer.status, status, "{play}");
        assert_eq!(answer.header("x-ramjet-error"), None);
        assert!(String::from_utf8_lossy(&answer.body).contains("error"), "{play}");
        if play == "busy" {
            assert_eq!(answer.header("retry-after"), Some("7"));
        }
        assert_eq!(a.seen().len() + b.seen().len(), before + 1, "{play}");
    }
    ramjet.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_that_an_engine_answers_with_is_counted_and_what_says_busy_or_wrong_is_not() {
    let (_a, _b, ramjet) = pair(&[]).await;
    let body = chat_body(1000, "");
    let reasons = || async {
        let series = ramjet.series("ramjet_upstream_errors_total").await.into_iter().filter(|(_, value)| *value > 0.0);
        series.collect::<Vec<_>>()
    };
    for play in ["busy", "status=429", "status=400", "status=404", "status=422"] {
        client::chat(ramjet.api, play, &body).await.unwrap();
    }
    assert_eq!(reasons().await, []);
    for (n, status) in [500, 504].into_iter().enumerate() {
        assert_eq!(client::chat(ramjet.api, &format!("status={status}"), &body).await.unwrap().status, status);
        let labels = "{endpoint=\"chat_completions\",reason=\"status\"}".to_owned();
        assert_eq!(reasons().await, [(labels, n as f64 + 1.0)]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_503_is_the_engines_own() {
    let (a, b, ramjet) = pair(&["status=503", "status=503"]).await;
    let answer = client::chat(ramjet.api, "", &chat_body(500, "")).await.unwrap();
    assert_eq!((answer.status, answer.header("x-ramjet-error")), (503, None));
    assert_eq!(answer.json()["error"]["message"], "engine");
    assert_eq!((a.seen().len(), b.seen().len()), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_breaks_is_cut_and_not_repeated() {
    let (a, b, ramjet) = pair(&[]).await;
    let body = chat_body(500, "\"stream\":true,");
    let broken = client::chat(ramjet.api, "cut", &body).await;
    assert!(broken.is_err(), "no end is invented for a stream without one");
    assert_eq!(a.seen().len() + b.seen().len(), 1);
    ramjet.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_idle_connection_is_replaced_without_the_client_noticing() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let body = chat_body(300 << 10, "");
    for _ in 0..5 {
        // answered, and the kept connection dies as the next request arrives on it
        assert_eq!(client::chat(ramjet.api, "close-next", &body).await.unwrap().status, 200);
        assert_eq!(client::chat(ramjet.api, "", &body).await.unwrap().status, 200);
    }
    assert!(engine.seen().iter().all(|s| s.hash == xxh3_64(&body)));
    ramjet.settled().await;
}

/// A POST of `size` bytes to a path, with the part that the engine should play.
async fn post(ramjet: &Ramjet, path: &str, play: &str, size: usize) -> u16 {
    let body = String::from_utf8(chat_body(size, "")).unwrap();
    client::post(ramjet.api, path, play, &body).await.unwrap().status
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_idle_connection_did_not_take_in_full_is_sent_again_whatever_it_is() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    for _ in 0..3 {
        // more than any buffer takes: the engine closes without having read it
        assert_eq!(post(&ramjet, "/v1/responses", "close-next", 500).await, 200);
        assert_eq!(post(&ramjet, "/v1/responses", "", 8 << 20).await, 200);
    }
    assert_eq!(engine.seen().len(), 6);
    ramjet.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_engines_front_refuses_goes_to_another_whatever_it_is() {
    for path in ["/v1/responses", "/v1/files", "/v1/audio/transcriptions", "/v1/elsewhere"] {
        for play in ["status=502", "status=503"] {
            let (a, b, ramjet) = pair(&[]).await;
            a.script(&[play]);
            assert_eq!((post(&ramjet, path, "", 500).await, post(&ramjet, path, "", 500).await), (200, 200), "{path}");
            assert_eq!(a.seen().len() + b.seen().len(), 3, "{path}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_sent_again_is_not_weighed_twice() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let config = "routing: { policy: round_robin }\nlimits: { body: 10KiB }";
    let ramjet = Ramjet::start_with(Start { upstreams: &[a.addr, b.addr], config, ..Start::default() }).await;
    a.script(&["status=503"]);
    b.script(&["status=503"]);
    // its length is not announced
    let head = chat_head("transfer-encoding: chunked\r\n").replace("/v1/chat/completions", "/v1/files");
    let body = format!("{:x}\r\n{}\r\n0\r\n\r\n", 8 << 10, "x".repeat(8 << 10));
    let mut h1 = H1::connect(ramjet.api).await.unwrap();
    h1.send(format!("{head}{body}").as_bytes()).await;
    assert_eq!(h1.answer().await.unwrap().status, 503);
    let seen = [a.seen(), b.seen()].concat();
    assert_eq!(seen.iter().map(|s| s.length).collect::<Vec<_>>(), [8 << 10, 8 << 10]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_takes_no_more_of_a_body_does_not_keep_the_request_for_ever() {
    // accepted by the kernel, and read by nobody
    let deaf = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = "timeouts: { first_byte: 300ms, idle_read: 300ms }\n";
    let upstreams = &[deaf.local_addr().unwrap()];
    let start = Start { upstreams, config, probe_every: "1h", ..Start::default() };
    let ramjet = Ramjet::start_with(start).await;
    let answer = client::chat(ramjet.api, "", &chat_body(32 << 20, "")).await.unwrap();
    assert_eq!((answer.status, answer.header("x-ramjet-error")), (504, Some("upstream_timeout")));
    ramjet.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_drops_every_second_request_of_a_connection_fails_none() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let body = chat_body(2000, "");
    for n in 0..8 {
        assert_eq!(client::chat(ramjet.api, "close-next", &body).await.unwrap().status, 200, "request {n}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streamed_body_moves_on_before_any_of_it_was_read() {
    let (engine, ramjet) = beside_a_dead_one().await;
    for size in [60, 60_000, 300_000] {
        let body = vec![b'e'; size];
        for _ in 0..4 {
            let mut h1 = H1::connect(ramjet.api).await.unwrap();
            let head =
                chat_head(&format!("content-length: {size}\r\n")).replace("/v1/chat/completions", "/v1/embeddings");
            h1.send(head.as_bytes()).await;
            h1.send(&body).await;
            assert_eq!(h1.answer().await.unwrap().status, 200, "{size}");
            assert_eq!(engine.seen().pop().unwrap().hash, xxh3_64(&body), "{size}");
        }
    }
    ramjet.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_not_http_is_said_to_be_and_not_asked_for_again() {
    let (a, b, ramjet) = pair(&[]).await;
    let body = chat_body(500, "");
    // once on a fresh connection, once on a kept one
    for _ in 0..4 {
        client::chat(ramjet.api, "", &body).await.unwrap();
        let before = a.seen().len() + b.seen().len();
        let answer = client::chat(ramjet.api, "raw=HELLO\\r\\n\\r\\n", &body).await.unwrap();
        assert_eq!((answer.status, answer.header("x-ramjet-error")), (502, Some("upstream_unreadable")));
        assert_eq!(a.seen().len() + b.seen().len(), before + 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_with_side_effects_is_sent_once() {
    let (a, b, ramjet) = pair(&[]).await;
    let mut h1 = H1::connect(ramjet.api).await.unwrap();
    let head = chat_head("x-play: drop\r\ncontent-length: 4\r\n").replace("/v1/chat/completions", "/v1/files");
    h1.send(head.as_bytes()).await;
    h1.send(b"data").await;
    assert_eq!(h1.answer().await.unwrap().status, 502);
    assert_eq!(a.seen().len() + b.seen().len(), 1);
    ramjet.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_stays_silent_too_long_is_a_504_and_asked_once() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let config = "timeouts: { first_byte: 200ms, idle_read: 200ms }";
    let ramjet = Ramjet::start_with(Start { upstreams: &[a.addr, b.addr], config, ..Start::default() }).await;
    let answer = client::chat(ramjet.api, "prefill", &chat_body(500, "")).await.unwrap();
    assert_eq!((answer.status, answer.header("x-ramjet-error")), (504, Some("upstream_timeout")));
    assert_eq!(a.seen().len() + b.seen().len(), 1);
    ramjet.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_nobody_to_connect_to_the_error_is_clear() {
    let ramjet = Ramjet::start(&[lease()]).await;
    let answer = client::chat(ramjet.api, "", &chat_body(500, "")).await.unwrap();
    assert_eq!((answer.status, answer.header("x-ramjet-error")), (502, Some("connect_failed")));
    assert_eq!(answer.json()["error"]["type"], "server_error");
    assert!(answer.header("x-ramjet-request-id").is_some());
}
