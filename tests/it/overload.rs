//! More than may run: the rest waits in a fair order, what is too much is turned away clearly, and nothing that anybody
//! does meanwhile costs another one's place.

use crate::support::client::{self, Answer, H1, chat_head};
use crate::support::engine::{Engine, Seen};
use crate::support::ramjet::{Ramjet, Start, lease};
use crate::support::{chat_body, until};
use std::net::SocketAddr;

/// A request that an engine answers when the test calls, with further header lines.
async fn ask(api: SocketAddr, headers: &str) -> H1 {
    play(api, "on-call-ok", headers).await
}

async fn play(api: SocketAddr, play: &str, headers: &str) -> H1 {
    let body = chat_body(2000, "");
    let mut h1 = H1::connect(api).await.unwrap();
    let head = chat_head(&format!("x-play: {play}\r\n{headers}content-length: {}\r\n", body.len()));
    h1.send(&[head.as_bytes(), &body].concat()).await;
    h1
}

async fn start(engines: &[&Engine], config: &str) -> Ramjet {
    let upstreams: Vec<_> = engines.iter().map(|e| e.addr).collect();
    Ramjet::start_with(Start { upstreams: &upstreams, config, ..Start::default() }).await
}

/// One engine that may run one request, and a request that it runs.
async fn busy(config: &str) -> (Engine, Ramjet, H1) {
    let engine = Engine::start().await;
    let ramjet = start(&[&engine], config).await;
    let running = ask(ramjet.api, "x-session-id: first\r\n").await;
    until("the engine is busy", || async { engine.seen().len() == 1 }).await;
    (engine, ramjet, running)
}

async fn queued(ramjet: &Ramjet, count: usize) {
    until("they wait", || async { ramjet.metric("ramjet_queue_length").await == count as f64 }).await;
}

/// Requests that wait one behind the other, in this order, each with its header lines.
async fn line_up(ramjet: &Ramjet, headers: &[&str]) -> Vec<H1> {
    let mut waiting = Vec::new();
    for lines in headers {
        waiting.push(ask(ramjet.api, lines).await);
        queued(ramjet, waiting.len()).await;
    }
    waiting
}

/// Lets an engine finish one after the other, until it has seen `count`.
async fn work_off(engine: &Engine, count: usize) {
    for seen in engine.seen().len()..count {
        assert_eq!(engine.seen().len(), seen, "one at a time");
        engine.call();
        until("the next one is there", || async { engine.seen().len() > seen }).await;
    }
    engine.call();
}

async fn all_answered(requests: Vec<H1>) {
    for mut request in requests {
        assert_eq!(request.answer().await.unwrap().status, 200);
    }
}

/// A header of what an engine has seen, in order, `-` where there is none.
fn order(seen: &[Seen], header: &str) -> Vec<String> {
    seen.iter().map(|s| s.header(header).unwrap_or("-").to_owned()).collect()
}

async fn shed(ramjet: &Ramjet, reason: &str) -> f64 {
    let series = ramjet.series("ramjet_shed_total").await;
    series.into_iter().find(|(labels, _)| labels.contains(reason)).unwrap().1
}

const ONE: &str = "limits: { inflight_per_replica: 1 }";

#[tokio::test(flavor = "multi_thread")]
async fn bodies_for_which_there_is_no_memory_are_turned_away_and_the_memory_comes_back() {
    let engine = Engine::start().await;
    let config = "limits: { body_memory: 1MiB, inflight_per_replica: 1 }";
    let ramjet = Ramjet::start_with(Start { upstreams: &[engine.addr], config, ..Start::default() }).await;
    // a body that is answered is held no more; the next one waits for room at the replica, and is
    let mut first = client::begin_chat(ramjet.api, "decode", &chat_body(900 << 10, "\"stream\":true,")).await.unwrap();
    first.head().await.unwrap();
    let waits = client::begin_chat(ramjet.api, "decode", &chat_body(900 << 10, "\"stream\":true,")).await.unwrap();
    until("one waits", || async { ramjet.metric("ramjet_queue_length").await == 1.0 }).await;
    is_shed(&client::chat(ramjet.api, "", &chat_body(900 << 10, "")).await.unwrap());
    assert_eq!(shed(&ramjet, "no_memory").await, 1.0);
    drop(waits);
    until("nobody waits", || async { ramjet.metric("ramjet_queue_length").await == 0.0 }).await;
    drop(first);
    ramjet.settled().await;
    assert_eq!(client::chat(ramjet.api, "", &chat_body(900 << 10, "")).await.unwrap().status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_runs_as_many_as_it_may_and_the_rest_is_served_later() {
    for policy in ["cost", "affinity"] {
        let engines = [Engine::start().await, Engine::start().await];
        let config = format!("routing: {{ policy: {policy} }}\nlimits: {{ inflight_per_replica: 2 }}");
        let ramjet = start(&[&engines[0], &engines[1]], &config).await;
        let mut requests = Vec::new();
        for _ in 0..10 {
            requests.push(ask(ramjet.api, "").await);
        }
        let seen = || engines.each_ref().map(|e| e.seen().len());
        until("four run", || async { seen() == [2, 2] }).await;
        queued(&ramjet, 6).await;
        assert_eq!((seen(), ramjet.metric("ramjet_upstream_inflight").await), ([2, 2], 4.0));
        engines[0].call();
        until("two follow", || async { seen() == [4, 2] }).await;
        queued(&ramjet, 4).await;
        engines[1].call();
        until("two follow", || async { seen() == [4, 4] }).await;
        queued(&ramjet, 2).await;
        assert_eq!((seen(), ramjet.metric("ramjet_upstream_inflight").await), ([4, 4], 4.0));
        engines[0].call();
        until("all are there", || async { seen() == [6, 4] }).await;
        engines.iter().for_each(Engine::call);
        all_answered(requests).await;
        ramjet.settled().await;
        assert_eq!(ramjet.metric("ramjet_queue_wait_seconds_count").await, 6.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_take_turns_and_each_is_served_in_its_order() {
    let (engine, ramjet, first) = busy(ONE).await;
    let of = ["a1", "a2", "a3", "a4", "b1", "b2", "c1"]
        .map(|name| format!("x-session-id: {}\r\nx-name: {name}\r\n", &name[..1]));
    let mut requests = line_up(&ramjet, &of.each_ref().map(String::as_str)).await;
    work_off(&engine, 8).await;
    requests.push(first);
    all_answered(requests).await;
    assert_eq!(order(&engine.seen(), "x-name"), ["-", "a1", "b1", "c1", "a2", "b2", "a3", "a4"]);
    ramjet.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn batch_goes_behind_unless_the_operator_knows_no_such_thing() {
    let asked = ["batch", "batch", "interactive", "interactive", "whatever"];
    let lines: Vec<String> =
        (0..).zip(asked).map(|(n, word)| format!("x-session-id: {n}\r\nx-ramjet-priority: {word}\r\n")).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    for (rules, wanted) in [
        ("", ["2", "3", "4", "0", "1"]),
        (", priority: { allow: [batch, interactive] }", ["2", "3", "0", "1", "4"]),
        (", priority: { allow: [interactive] }", ["0", "1", "2", "3", "4"]),
        (", priority: { allow: [batch] }", ["0", "1", "2", "3", "4"]),
        (", priority: { header: x-other }", ["0", "1", "2", "3", "4"]),
    ] {
        let (engine, ramjet, first) = busy(&format!("limits: {{ inflight_per_replica: 1{rules} }}")).await;
        let mut requests = line_up(&ramjet, &lines).await;
        work_off(&engine, 6).await;
        requests.push(first);
        all_answered(requests).await;
        assert_eq!(order(&engine.seen()[1..], "x-session-id"), wanted, "{rules}");
        let forwarded = order(&engine.seen(), "x-ramjet-priority").iter().any(|word| word != "-");
        assert_eq!(forwarded, rules.contains("x-other"), "{rules}");
    }
}

fn is_shed(answer: &Answer) {
    assert_eq!((answer.status, answer.header("x-ramjet-error")), (503, Some("overloaded")));
    let seconds: u32 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&seconds), "{seconds}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_turns_away_in_the_callers_words() {
    let (engine, ramjet, first) = busy("limits: { inflight_per_replica: 1, queue: { size: 1 } }").await;
    let mut requests = line_up(&ramjet, &[""]).await;
    let answer = client::chat(ramjet.api, "", &chat_body(2000, "")).await.unwrap();
    is_shed(&answer);
    assert_eq!(answer.json()["error"]["code"], "overloaded");
    let answer = client::post(ramjet.api, "/v1/messages", "", "{\"model\":\"m\",\"messages\":[]}").await.unwrap();
    is_shed(&answer);
    assert_eq!(
        (&answer.json()["type"], &answer.json()["error"]["type"]),
        (&"error".into(), &"overloaded_error".into())
    );
    assert_eq!((shed(&ramjet, "queue_full").await, shed(&ramjet, "waited_too_long").await), (2.0, 0.0));
    let health = client::get(ramjet.api, "/health").await.unwrap();
    assert_eq!((health.status, &health.json()["status"]), (200, &"ok".into()));
    work_off(&engine, 2).await;
    requests.push(first);
    all_answered(requests).await;
    ramjet.settled().await;
    assert_eq!(engine.seen().len(), 2, "no engine heard of the others");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_longer_than_it_may() {
    let (engine, ramjet, first) = busy("limits: { inflight: 1, queue: { wait: 100ms } }").await;
    is_shed(&client::chat(ramjet.api, "", &chat_body(2000, "")).await.unwrap());
    assert_eq!((shed(&ramjet, "queue_full").await, shed(&ramjet, "waited_too_long").await), (0.0, 1.0));
    assert_eq!(ramjet.metric("ramjet_queue_length").await, 0.0);
    engine.call();
    all_answered(vec![first]).await;
    assert_eq!(client::chat(ramjet.api, "", &chat_body(2000, "")).await.unwrap().status, 200);
    ramjet.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_the_queue_takes_its_place_along() {
    let (engine, ramjet, first) = busy(ONE).await;
    let mut sender = client::h2_connect(ramjet.api).await;
    let (_unanswered, mut stream) = sender.send_request(client::h2_request("", None), false).unwrap();
    client::h2_send_body(&mut stream, chat_body(2000, "").into()).await;
    queued(&ramjet, 1).await;
    stream.send_reset(h2::Reason::CANCEL);
    queued(&ramjet, 0).await;
    let mut requests = line_up(&ramjet, &["x-name: gone\r\n", "x-name: stays\r\n", "x-name: gone\r\n"]).await;
    drop((requests.remove(2), requests.remove(0)));
    queued(&ramjet, 1).await;
    assert_eq!(ramjet.metric("ramjet_client_disconnects_total").await, 3.0);
    work_off(&engine, 2).await;
    requests.push(first);
    all_answered(requests).await;
    ramjet.settled().await;
    assert_eq!(order(&engine.seen(), "x-name"), ["-", "stays"], "no engine heard of those who left");
    assert_eq!(ramjet.metric("ramjet_queue_wait_seconds_count").await, 4.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_the_queue_while_its_body_is_still_to_stream_through_takes_its_place_along() {
    let (engine, ramjet, first) = busy(ONE).await;
    let head = |length: usize| {
        let head = chat_head(&format!("content-length: {length}\r\n"));
        head.replace("/v1/chat/completions", "/v1/audio/transcriptions")
    };
    // all of the body, a part of it, and a reset
    for (length, sent, resets) in [(4, 4, false), (1_000_000, 100_000, false), (1_000_000, 4, true)] {
        let mut h1 = H1::connect(ramjet.api).await.unwrap();
        h1.send(head(length).as_bytes()).await;
        h1.send(&vec![b'x'; sent]).await;
        queued(&ramjet, 1).await;
        if resets {
            h1.stream.set_zero_linger().unwrap();
        }
        drop(h1);
        queued(&ramjet, 0).await;
    }
    let mut sender = client::h2_connect(ramjet.api).await;
    let request = http::Request::post("http://ramjet.test/v1/audio/transcriptions").body(()).unwrap();
    let (_unanswered, mut stream) = sender.send_request(request, false).unwrap();
    stream.send_data("part".into(), false).unwrap();
    queued(&ramjet, 1).await;
    stream.send_reset(h2::Reason::CANCEL);
    queued(&ramjet, 0).await;
    assert_eq!(ramjet.metric("ramjet_client_disconnects_total").await, 4.0);
    // who stays is served with all of its body
    let mut stays = H1::connect(ramjet.api).await.unwrap();
    stays.send(head(100_000).as_bytes()).await;
    stays.send(&vec![b'x'; 50_000]).await;
    queued(&ramjet, 1).await;
    engine.call();
    stays.send(&vec![b'x'; 50_000]).await;
    all_answered(vec![first, stays]).await;
    let seen: Vec<_> = engine.seen().iter().skip(1).map(|seen| seen.length).collect();
    assert_eq!(seen, [100_000], "no engine heard of those who left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_keeps_its_room_to_its_end() {
    let engine = Engine::start().await;
    let ramjet = start(&[&engine], ONE).await;
    let mut streams = play(ramjet.api, "decode", "").await;
    streams.head().await.unwrap();
    let mut next = play(ramjet.api, "", "").await;
    queued(&ramjet, 1).await;
    assert_eq!(engine.seen().len(), 1);
    drop(streams);
    assert_eq!(next.answer().await.unwrap().status, 200);
    ramjet.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_whole_router_has_a_limit_of_its_own() {
    let engines = [Engine::start().await, Engine::start().await];
    let ramjet = start(&[&engines[0], &engines[1]], "limits: { inflight: 3 }").await;
    let mut requests = Vec::new();
    for _ in 0..5 {
        requests.push(ask(ramjet.api, "").await);
    }
    let total = || engines.iter().map(|e| e.seen().len()).sum::<usize>();
    until("three run", || async { total() == 3 }).await;
    queued(&ramjet, 2).await;
    assert_eq!(total(), 3);
    until("all are answered", || async {
        engines.iter().for_each(Engine::call);
        total() == 5 && ramjet.metric("ramjet_requests_inflight").await == 0.0
    })
    .await;
    all_answered(requests).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_attempt_waits_for_room_like_any_other() {
    let engines = [Engine::start().await, Engine::start().await];
    let ramjet = start(&[&engines[0], &engines[1]], ONE).await;
    let first = ask(ramjet.api, "").await;
    until("one is busy", || async { engines.iter().any(|e| !e.seen().is_empty()) }).await;
    let (full, failing) =
        if engines[0].seen().is_empty() { (&engines[1], &engines[0]) } else { (&engines[0], &engines[1]) };
    let mut moves = play(ramjet.api, "drop", "x-name: moves\r\n").await;
    until("it has failed", || async { failing.seen().len() == 1 }).await;
    queued(&ramjet, 1).await;
    // the room that it had there is free again
    assert_eq!(client::chat(ramjet.api, "", &chat_body(2000, "")).await.unwrap().status, 200);
    assert_eq!((full.seen().len(), failing.seen().len()), (1, 2));
    full.script(&[""]);
    full.call();
    assert_eq!(moves.answer().await.unwrap().status, 200);
    all_answered(vec![first]).await;
    assert_eq!(order(&full.seen(), "x-name"), ["-", "moves"]);
    ramjet.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_attempt_that_waited_goes_to_nobody_who_was_drained_meanwhile() {
    let engines = [Engine::start().await, Engine::start().await];
    let ramjet = start(&[&engines[0], &engines[1]], ONE).await;
    let first = ask(ramjet.api, "").await;
    until("one is busy", || async { engines.iter().any(|e| !e.seen().is_empty()) }).await;
    let (full, failing) =
        if engines[0].seen().is_empty() { (&engines[1], &engines[0]) } else { (&engines[0], &engines[1]) };
    let mut moves = play(ramjet.api, "drop", "").await;
    until("it has failed", || async { failing.seen().len() == 1 }).await;
    queued(&ramjet, 1).await;
    assert_eq!(ramjet.order(&format!("/api/replicas/{}/drain", full.addr)).await.status, 200);
    full.call();
    let answer = moves.answer().await.unwrap();
    assert_eq!((answer.status, answer.header("x-ramjet-error")), (503, Some("no_replica")));
    all_answered(vec![first]).await;
    assert_eq!(full.seen().len(), 1);
    ramjet.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_comes_back_takes_those_who_wait() {
    let (engine, away) = (Engine::start().await, lease());
    let upstreams = [engine.addr, away];
    let ramjet = Ramjet::start_with(Start { upstreams: &upstreams, config: ONE, ..Start::default() }).await;
    until("one is fenced", || async { ramjet.metric("ramjet_upstream_up").await == 1.0 }).await;
    let first = ask(ramjet.api, "").await;
    until("the other is busy", || async { engine.seen().len() == 1 }).await;
    let mut next = play(ramjet.api, "", "").await;
    queued(&ramjet, 1).await;
    let back = Engine::start_at(away).await;
    assert_eq!(next.answer().await.unwrap().status, 200);
    assert_eq!((engine.seen().len(), back.seen().len()), (1, 1));
    engine.call();
    all_answered(vec![first]).await;
    ramjet.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_leaving_and_held_requests_never_block_each_other() {
    let engines = [Engine::start().await, Engine::start().await, Engine::start().await];
    let config = "routing: { policy: cost, single_flight: { mode: hold, max_hold: 5m } }\n\
                  limits: { inflight: 5, inflight_per_replica: 2, queue: { wait: 5m } }";
    let ramjet = start(&[&engines[0], &engines[1], &engines[2]], config).await;
    let plays = ["", "drop", "status=503", "prefill", "sse=data: {\"choices\":[]}\\n\\n|data: [DONE]\\n\\n", ""];
    let all: Vec<_> = (0..150)
        .map(|n: usize| {
            let (api, play) = (ramjet.api, plays[n % plays.len()]);
            let body = chat_body(60_000 + n % 3, "\"stream\":true,");
            tokio::spawn(async move {
                let mut h1 = client::begin_chat(api, play, &body).await.unwrap();
                // a silent engine never answers: such a client leaves, in the queue or later
                let patience = std::time::Duration::from_millis(if play == "prefill" { 50 } else { 60_000 });
                let answer = tokio::time::timeout(patience, h1.answer()).await;
                assert!(answer.is_ok() || play == "prefill", "{play}");
            })
        })
        .collect();
    for one in all {
        one.await.unwrap();
    }
    ramjet.settled().await;
    assert!(ramjet.metric("ramjet_queue_wait_seconds_count").await > 0.0);
    assert_eq!(ramjet.metric("ramjet_shed_total").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_streams_through_ends_at_the_limit_too() {
    let engine = Engine::start().await;
    let ramjet = start(&[&engine], "limits: { body: 64KiB, inflight: 1 }").await;
    for (size, status) in [(64 << 10, 200), (70_000, 413), (4 << 20, 413), (64 << 10, 200)] {
        let mut h1 = H1::connect(ramjet.api).await.unwrap();
        let head = chat_head("transfer-encoding: chunked\r\n").replace("/v1/chat/completions", "/other");
        h1.send(head.as_bytes()).await;
        for piece in vec![b'x'; size].chunks(16 << 10) {
            h1.send(&[format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat()).await;
        }
        h1.send(b"0\r\n\r\n").await;
        let answer = h1.answer().await.unwrap();
        assert_eq!(answer.status, status, "{size}");
        assert!(status == 200 || answer.header("x-ramjet-error") == Some("body_too_large"));
        ramjet.settled().await;
    }
    assert_eq!(engine.seen().len(), 2, "an engine never takes a part for the whole");
}
