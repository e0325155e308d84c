//! Each data-parallel rank of an engine is a replica: a request names its rank, whatever its caller says.

use crate::support::chat_body;
use crate::support::client::{self, H1, chat_head};
use crate::support::engine::{Engine, Seen};
use crate::support::ramjet::{Ramjet, Start};
use crate::support::until;
use std::collections::BTreeSet;
use xxhash_rust::xxh3::xxh3_64;

const TURNS: &str = "routing: { policy: round_robin }";

async fn start(replicas: &[String]) -> Ramjet {
    Ramjet::start_with(Start { replicas, config: TURNS, ..Start::default() }).await
}

fn ranked(engine: &Engine, ranks: u32) -> String {
    format!("{{ name: e, url: \"http://{}\", dp_ranks: {ranks} }}", engine.addr)
}

/// The rank that a request named in its head, once.
fn rank(seen: &Seen) -> Option<u32> {
    let lines = seen.head.lines().filter(|l| l.to_ascii_lowercase().starts_with("x-data-parallel-rank:"));
    let all: Vec<_> = lines.map(|l| l.split_once(':').unwrap().1.trim().parse().unwrap()).collect();
    assert!(all.len() <= 1, "{}", seen.head);
    all.first().copied()
}

/// A body with the member that names `rank` before its last brace.
fn with_rank(body: &[u8], rank: u32) -> Vec<u8> {
    let (last, rest) = body.split_last().unwrap();
    let comma = if rest == b"{" { "" } else { "," };
    [rest, format!("{comma}\"routed_dp_rank\":{rank}").as_bytes(), &[*last]].concat()
}

/// A caller's own rank.
const RANK: &str = "x-DATA-parallel-RANK: 7\r\n";
/// The same, declared to end at the next hop: what ramjet says must not end with it.
const RANK_OF_A_HOP: &str = "x-data-parallel-rank: 7\r\nconnection: x-data-parallel-rank\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn each_rank_is_named_last_in_the_body_and_in_the_head() {
    let engine = Engine::start().await;
    let ramjet = start(&[ranked(&engine, 3)]).await;
    for body in [b"{}".to_vec(), chat_body(500, "\"n\":1.50,"), chat_body(200 << 10, ""), chat_body(3 << 20, "")] {
        let mut ranks = BTreeSet::new();
        for _ in 0..3 {
            let answer = client::chat(ramjet.api, "", &body).await.unwrap();
            let seen = engine.seen().pop().unwrap();
            let named = rank(&seen).unwrap();
            assert_eq!((seen.hash, seen.length), {
                let wanted = with_rank(&body, named);
                (xxh3_64(&wanted), wanted.len())
            });
            assert_eq!(answer.header("x-ramjet-upstream"), Some(&*named.to_string()));
            ranks.insert(named);
        }
        assert_eq!(ranks, BTreeSet::from([0, 1, 2]));
    }
    let shown = ramjet.series("ramjet_upstream_up").await;
    let names: Vec<_> = shown.iter().map(|(labels, _)| labels.as_str()).collect();
    assert_eq!(names, ["{upstream=\"e#dp0\"}", "{upstream=\"e#dp1\"}", "{upstream=\"e#dp2\"}"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_caller_chooses_its_rank() {
    let engine = Engine::start().await;
    let ramjet = start(&[ranked(&engine, 2)]).await;
    let plain = chat_body(100 << 10, "\"n\":1.50,");
    for (before, after) in [("\"routed_dp_rank\":7,", ""), ("", ",\"routed_dp_r\\u0061nk\" : 7")] {
        let tail = [after.as_bytes(), b"}"].concat();
        let inner = &plain[1..plain.len() - 1];
        let body = [b"{", before.as_bytes(), inner, &tail].concat();
        let chunked = [format!("{:x}\r\n", body.len()).as_bytes(), &body, b"\r\n0\r\n\r\n"].concat();
        let length = format!("content-length: {}\r\n", body.len());
        for (head, bytes) in [
            (format!("{RANK}{length}"), &body),
            (format!("{RANK_OF_A_HOP}{length}"), &body),
            (format!("{RANK}transfer-encoding: chunked\r\n"), &chunked),
        ] {
            let mut h1 = H1::connect(ramjet.api).await.unwrap();
            h1.send(&[chat_head(&head).as_bytes(), bytes].concat()).await;
            assert_eq!(h1.answer().await.unwrap().status, 200);
            let seen = engine.seen().pop().unwrap();
            let named = rank(&seen).unwrap();
            assert!(named < 2, "{named}");
            assert_eq!(seen.hash, xxh3_64(&with_rank(&plain, named)));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_json_object_names_its_rank_in_the_head_only() {
    let engine = Engine::start().await;
    let ramjet = start(&[ranked(&engine, 2)]).await;
    let body = b"--x\r\ncontent-disposition: form-data; name=\"file\"\r\n\r\n{}\r\n--x--\r\n";
    let length = body.len();
    for line in
        ["POST /v1/audio/transcriptions HTTP/1.1", "POST /v1/chat/completions HTTP/1.1", "GET /v1/files HTTP/1.1"]
    {
        let body = if line.starts_with("GET") { &b""[..] } else { body };
        let framing = if body.is_empty() { String::new() } else { format!("content-length: {length}\r\n") };
        let mut h1 = H1::connect(ramjet.api).await.unwrap();
        h1.send(format!("{line}\r\nhost: ramjet.test\r\n{RANK}{framing}\r\n").as_bytes()).await;
        h1.send(body).await;
        assert_eq!(h1.answer().await.unwrap().status, 200);
        let seen = engine.seen().pop().unwrap();
        assert!(rank(&seen).unwrap() < 2);
        assert_eq!(seen.hash, xxh3_64(body), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_attempt_names_another_rank_or_none() {
    let (engine, plain) = (Engine::start().await, Engine::start().await);
    let fleet = [ranked(&engine, 2), format!("{{ url: \"http://{}\" }}", plain.addr)];
    let ramjet = start(&fleet).await;
    let body = chat_body(200 << 10, "\"routed_dp_rank\":9,");
    let own = chat_body((200 << 10) - "\"routed_dp_rank\":9,".len(), "");
    assert_eq!(own.len() + "\"routed_dp_rank\":9,".len(), body.len());
    let (mut moved, mut seen_before) = (BTreeSet::new(), 0);
    for _ in 0..3 {
        engine.script(&["status=503"]);
        let head = chat_head(&format!("{RANK}content-length: {}\r\n", body.len()));
        let mut h1 = H1::connect(ramjet.api).await.unwrap();
        h1.send(&[head.as_bytes(), &body].concat()).await;
        h1.answer().await.unwrap();
        for seen in &engine.seen()[seen_before..] {
            let named = rank(seen).unwrap();
            assert_eq!(seen.hash, xxh3_64(&with_rank(&own, named)));
            moved.insert(named);
        }
        seen_before = engine.seen().len();
    }
    assert_eq!(moved, BTreeSet::from([0, 1]));
    // one that went there first has everything as it came, one that had named a rank before has no trace of it
    let left = plain.seen();
    assert!(left.iter().all(|seen| rank(seen).is_none()));
    assert!(!left.is_empty() && left.iter().all(|s| [xxh3_64(&body), xxh3_64(&own)].contains(&s.hash)));
    ramjet.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_died_is_left_with_all_its_ranks() {
    let (dead, engine) = (Engine::start().await, Engine::start().await);
    let fleet = [ranked(&dead, 3), format!("{{ url: \"http://{}\", node: elsewhere }}", engine.addr)];
    let start = Start { replicas: &fleet, config: TURNS, probe_every: "1h", ..Start::default() };
    let ramjet = Ramjet::start_with(start).await;
    until("the first probes", || async { dead.probes() >= 3 && engine.probes() > 0 }).await;
    dead.stop().await;
    // two attempts are made at most: the second one must not go to another rank of the same process
    for _ in 0..8 {
        let answer = client::chat(ramjet.api, "", &chat_body(500, "")).await.unwrap();
        assert_eq!((answer.status, answer.header("x-ramjet-upstream")), (200, Some("3")));
    }
    assert_eq!(ramjet.metric("ramjet_upstream_failovers_total").await, 6.0);
}
