//! Sessions that clients name stay with their replica although their prompts share nothing, while that is neither
//! overloaded nor gone.

use crate::support::client::{self, H1, chat_head};
use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start};
use crate::support::{chat_body, until};
use std::net::SocketAddr;

/// Where a key is given.
#[derive(Clone, Copy, Debug)]
enum By {
    Header(&'static str),
    Body,
}

/// Size of a prompt that takes long to read.
const LONG: usize = 60_000;

/// Begins a request of a session about something that nobody has asked about.
async fn begin(api: SocketAddr, by: By, key: &str, play: &str, (about, size): (usize, usize)) -> H1 {
    let text = String::from_utf8(chat_body(size, "\"stream\":true,")).unwrap();
    let mut body = text.replacen("user\",\"content\":\"", &format!("user\",\"content\":\"{about} "), 1);
    let mut headers = format!("x-play: {play}\r\n");
    match by {
        By::Header(name) => headers.push_str(&format!("{name}: {key}\r\n")),
        By::Body => body = body.replacen('{', &format!("{{\"prompt_cache_key\":\"{key}\","), 1),
    }
    let mut h1 = H1::connect(api).await.unwrap();
    let head = chat_head(&format!("{headers}content-length: {}\r\n", body.len()));
    h1.send(&[head.as_bytes(), body.as_bytes()].concat()).await;
    h1
}

/// The replica that answers one request of a session.
async fn ordinal(ramjet: &Ramjet, by: By, key: &str, about: usize) -> String {
    let answer = begin(ramjet.api, by, key, "", (about, LONG)).await.answer().await.unwrap();
    assert_eq!(answer.status, 200);
    ramjet.settled().await;
    answer.header("x-ramjet-upstream").unwrap().to_owned()
}

async fn hinted(ramjet: &Ramjet) -> f64 {
    let series = ramjet.series("ramjet_route_decisions_total").await;
    series.into_iter().find(|(l, _)| l.contains("\"hint\"")).unwrap().1
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_spread_and_each_stays_although_prompts_share_nothing() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    for policy in ["cost", "affinity", "load"] {
        let config = format!("routing: {{ policy: {policy}, session_headers: [x-session-id, My_Session] }}");
        let start = Start { upstreams: &[a.addr, b.addr], config: &config, ..Start::default() };
        let ramjet = Ramjet::start_with(start).await;
        let mut homes = std::collections::HashSet::new();
        let mut about = 0;
        for key in 0..12 {
            let by = [By::Header("X-Session-Id"), By::Header("my_session"), By::Body][key % 3];
            let key = format!("session {key}");
            let mut of_key = std::collections::HashSet::new();
            for _ in 0..3 {
                about += 1;
                of_key.insert(ordinal(&ramjet, by, &key, about).await);
            }
            assert_eq!(of_key.len(), 1, "{policy} {by:?} {key}");
            homes.extend(of_key);
        }
        // the chance that twelve keys have one home is one in two thousand
        assert_eq!(homes.len(), 2, "{policy}");
        // a price may have been the lowest anyway
        let hinted = hinted(&ramjet).await;
        assert!(hinted == 36.0 || (policy == "cost" && hinted > 0.0), "{policy} {hinted}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_header_that_is_not_configured_names_nothing() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let config = "routing: { policy: cost, session_headers: [] }";
    let ramjet = Ramjet::start_with(Start { upstreams: &[a.addr, b.addr], config, ..Start::default() }).await;
    let mut homes = std::collections::HashSet::new();
    for about in 0..2 {
        homes.insert(ordinal(&ramjet, By::Header("x-session-id"), "s", about).await);
    }
    assert_eq!((homes.len(), hinted(&ramjet).await), (2, 0.0), "they take turns");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_replicas_key_moves_and_stays_moved() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let config = "routing: { policy: cost }";
    let upstreams = [a.addr, b.addr];
    let ramjet = Ramjet::start_with(Start { upstreams: &upstreams, config, ..Start::default() }).await;
    let by = By::Header("x-session-id");
    let home = ordinal(&ramjet, by, "s", 0).await;
    let (dead, other) = if home == "0" { (a, b) } else { (b, a) };
    let addr = dead.addr;
    dead.stop().await;
    let moved = ordinal(&ramjet, by, "s", 1).await;
    assert_ne!(moved, home);
    let back = Engine::start_at(addr).await;
    let up = || async { ramjet.metric("ramjet_upstream_up").await == 2.0 && back.probes() > 2 };
    until("it is back", up).await;
    for about in 2..6 {
        assert_eq!(ordinal(&ramjet, by, "s", about).await, moved);
    }
    assert!(back.seen().is_empty() && other.seen().len() >= 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overloaded_replica_loses_its_sessions() {
    for policy in ["cost", "affinity"] {
        let (a, b) = (Engine::start().await, Engine::start().await);
        let config = format!("routing: {{ policy: {policy} }}");
        let upstreams = [a.addr, b.addr];
        let ramjet = Ramjet::start_with(Start { upstreams: &upstreams, config: &config, ..Start::default() }).await;
        let by = By::Header("x-session-id");
        let home = ordinal(&ramjet, by, "s", 0).await;
        let (home, other) = if home == "0" { (&a, &b) } else { (&b, &a) };
        // its engine is slow: nothing that comes is ever read
        let mut waiting = Vec::new();
        while other.seen().is_empty() {
            assert!(waiting.len() < 100, "{policy}: the hint overrides every load");
            let before = home.seen().len() + other.seen().len();
            let size = if waiting.is_empty() { LONG / 10 } else { LONG };
            waiting.push(begin(ramjet.api, by, "s", "prefill", (1 + waiting.len(), size)).await);
            until("it is at an engine", || async { home.seen().len() + other.seen().len() > before }).await;
        }
        // one stayed although a short one waited there and nothing elsewhere
        assert!(home.seen().len() > 2, "{policy}: {}", home.seen().len());
        drop(waiting);
        ramjet.settled().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_whose_head_changes_is_known_by_its_first_exchange() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    for policy in ["cost", "affinity"] {
        let config = format!("routing: {{ policy: {policy} }}");
        let upstreams = [a.addr, b.addr];
        let ramjet = Ramjet::start_with(Start { upstreams: &upstreams, config: &config, ..Start::default() }).await;
        let turn = |speaker: usize, turn: usize| {
            let head = format!("{turn} o'clock; ").repeat(4000);
            let exchange = format!(
                r#"{{"role":"assistant","content":"what {speaker} was told first"}},{{"role":"user","content":"yes"}}"#
            );
            format!(r#"{{"model":"m","messages":[{{"role":"system","content":"{head}{speaker}"}},{exchange}]}}"#)
        };
        // the speakers take turns and so does the rotation: without a name, each would change its replica
        let mut homes = [const { Vec::new() }; 3];
        for number in 2..8 {
            for (speaker, homes) in homes.iter_mut().enumerate() {
                let body = turn(speaker, number * 10 + speaker);
                let answer = client::chat(ramjet.api, "", body.as_bytes()).await.unwrap();
                homes.push(answer.header("x-ramjet-upstream").unwrap().to_owned());
                ramjet.settled().await;
            }
        }
        for homes in &homes {
            assert!(homes.iter().all(|home| *home == homes[0]), "{policy}: {homes:?}");
        }
        assert!(hinted(&ramjet).await >= 5.0, "{policy}");
    }
}

/// The request of one of several long conversations after so many exchanges.
fn later(name: &str, exchanges: usize) -> Vec<u8> {
    let text = format!("what {name} says, ").repeat(5000);
    let said = |n| format!(r#",{{"role":"assistant","content":"answer {n}"}},{{"role":"user","content":"and {n}?"}}"#);
    let said: String = (0..exchanges).map(said).collect();
    format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}{said}]}}"#).into_bytes()
}

#[tokio::test(flavor = "multi_thread")]
async fn where_a_cache_is_too_small_who_has_lost_much_waits_for_a_turn_and_a_newcomer_does_not() {
    let engine = Engine::start().await;
    let replica = format!("{{ url: \"http://{}\", kv_capacity_tokens: 20000 }}", engine.addr);
    let ramjet = Ramjet::start_with(Start { replicas: &[replica], ..Start::default() }).await;
    for exchanges in 0..2 {
        for name in ["anna", "bert", "cleo"] {
            assert_eq!(client::chat(ramjet.api, "", &later(name, exchanges)).await.unwrap().status, 200);
            ramjet.settled().await;
        }
    }
    let there = engine.seen().len();
    // nobody is there: the first one is read at once
    let mut first = client::begin_chat(ramjet.api, "on-call-ok", &later("anna", 2)).await.unwrap();
    until("the first is there", || async { engine.seen().len() == there + 1 }).await;
    let mut second = client::begin_chat(ramjet.api, "", &later("bert", 2)).await.unwrap();
    until("the second waits", || async { ramjet.metric("ramjet_queue_length").await == 1.0 }).await;
    assert_eq!(client::chat(ramjet.api, "", &later("dora", 0)).await.unwrap().status, 200);
    assert_eq!(engine.seen().len(), there + 2, "the newcomer went, the second waits");
    engine.call();
    assert_eq!(first.answer().await.unwrap().status, 200);
    assert_eq!(second.answer().await.unwrap().status, 200);
    ramjet.settled().await;
    assert_eq!(ramjet.metric("ramjet_queue_length").await, 0.0);
}
