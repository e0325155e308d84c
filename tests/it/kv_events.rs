//! Engines tell what they store and evict, and what is expected of their caches follows that: to the block, and only while
//! what they tell is whole.

use crate::support::client;
use crate::support::engine::Engine;
use crate::support::publisher::{Log, Publisher, batch_of, cleared, removed, replay, stored, unknown};
use crate::support::ramjet::{Ramjet, Start};
use crate::support::until;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

/// Tokens of a block of the engines here.
const BLOCK: u8 = 16;
/// Tokens of a first prompt, which are whole blocks, and of the answer to it.
const PROMPT: u64 = 2000;
const BLOCKS: u64 = PROMPT / BLOCK as u64;

async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

fn replica(engine: &Engine, kv_events: &str) -> String {
    format!("{{ url: \"http://{}\", kv_events: {{ {kv_events} }} }}", engine.addr)
}

/// The prompt of a session's first or second turn.
fn prompt(session: &str, turn: usize) -> Vec<u8> {
    let first = format!("{session} {}", "words and more words ".repeat(400));
    let mut messages = format!(r#"{{"role":"user","content":"{first}"}}"#);
    if turn > 1 {
        messages += r#",{"role":"assistant","content":"x"},{"role":"user","content":"go on"}"#;
    }
    format!(r#"{{"model":"m","messages":[{messages}]}}"#).into_bytes()
}

/// Asks, and returns how many cached tokens were expected; the engine says that its prompt had so many, so many of them
/// cached.
async fn ask(ramjet: &Ramjet, engine: &Engine, body: &[u8], (prompt, cached): (u64, u64)) -> u64 {
    let details = format!(r#""prompt_tokens_details":{{"cached_tokens":{cached}}}"#);
    let usage = format!(r#"{{"prompt_tokens":{prompt},"completion_tokens":1,{details}}}"#);
    engine.script(&[&format!(r#"json={{"choices":[{{"message":{{"content":"x"}}}}],"usage":{usage}}}"#)]);
    let answer = client::chat(ramjet.api, "\r\nx-ramjet-explain: 1", body).await.unwrap();
    assert_eq!(answer.status, 200);
    let decision = answer.header("x-ramjet-decision").unwrap();
    let tokens = decision.split("; ").find_map(|part| part.strip_prefix("cached_tokens=")).unwrap();
    tokens.parse().unwrap()
}

/// What is expected of the second turn.
async fn expected(ramjet: &Ramjet, engine: &Engine, session: &str) -> u64 {
    ask(ramjet, engine, &prompt(session, 2), (PROMPT + 20, PROMPT)).await
}

async fn losses(ramjet: &Ramjet, reason: &str) -> f64 {
    let all = ramjet.series("ramjet_upstream_kv_losses_total").await;
    all.iter().filter(|(labels, _)| labels.contains(&format!("\"{reason}\""))).map(|(_, n)| n).sum()
}

async fn metric_is(ramjet: &Ramjet, name: &str, wanted: f64) {
    until(name, || async { ramjet.metric(name).await.to_bits() == wanted.to_bits() }).await;
}

/// A session's first turn is answered, and the engine tells what it stored of it: blocks from `first` on.
async fn first_turn(ramjet: &Ramjet, engine: &Engine, publisher: &mut Publisher, (session, first): (&str, u64)) {
    let before = ramjet.metric("ramjet_upstream_kv_prompts").await;
    ask(ramjet, engine, &prompt(session, 1), (PROMPT, 0)).await;
    publisher.publish(&[stored(first..first + BLOCKS, None, BLOCK)]).await;
    metric_is(ramjet, "ramjet_upstream_kv_prompts", before + 1.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_expected_of_a_cache_follows_what_its_engine_evicts() {
    let (engine, listener) = (Engine::start().await, listener().await);
    let port = listener.local_addr().unwrap().port();
    let replicas = &[replica(&engine, &format!("port: {port}"))];
    let ramjet = Ramjet::start_with(Start { replicas, ..Start::default() }).await;
    let mut publisher = Publisher::accept(&listener).await;
    publisher.publish(&[unknown()]).await;
    until("heard", || async { ramjet.metric("ramjet_upstream_kv_events_total").await >= 1.0 }).await;
    first_turn(&ramjet, &engine, &mut publisher, ("a", 1)).await;
    assert_eq!(expected(&ramjet, &engine, "a").await, PROMPT);
    metric_is(&ramjet, "ramjet_upstream_kv_blocks", BLOCKS as f64).await;
    // the end of it is evicted, to the block
    publisher.publish(&[removed((61..=BLOCKS).rev())]).await;
    metric_is(&ramjet, "ramjet_upstream_kv_blocks", 60.0).await;
    assert_eq!(expected(&ramjet, &engine, "a").await, 60 * u64::from(BLOCK));
    publisher.publish(&[cleared()]).await;
    metric_is(&ramjet, "ramjet_upstream_kv_blocks", 0.0).await;
    assert_eq!(expected(&ramjet, &engine, "a").await, 0);
    for reason in ["gap", "unreadable", "contradiction", "anew", "ended"] {
        assert_eq!(losses(&ramjet, reason).await.to_bits(), 0f64.to_bits(), "{reason}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_told_is_dropped_at_a_gap_at_garbage_and_at_an_end_and_learned_anew() {
    let (engine, listener) = (Engine::start().await, listener().await);
    let port = listener.local_addr().unwrap().port();
    let replicas = &[replica(&engine, &format!("port: {port}"))];
    let ramjet = Ramjet::start_with(Start { replicas, ..Start::default() }).await;
    let mut publisher = Publisher::accept(&listener).await;
    publisher.publish(&[unknown()]).await;
    until("heard", || async { ramjet.metric("ramjet_upstream_kv_events_total").await >= 1.0 }).await;
    let mut turns = (0u64..).map(|n| (format!("session {n}"), 1 + n * 1000));
    for reason in ["gap", "unreadable", "contradiction", "anew", "ended"] {
        let (session, first) = turns.next().unwrap();
        first_turn(&ramjet, &engine, &mut publisher, (&session, first)).await;
        match reason {
            "gap" => {
                publisher.loses(&[removed(first..first + BLOCKS)]);
                publisher.publish(&[unknown()]).await;
            }
            "unreadable" => publisher.publish_bytes(b"no batch".to_vec()).await,
            // the second block of a prompt is the first one of another
            "contradiction" => publisher.publish(&[stored(first + 1..first + 2, None, BLOCK)]).await,
            "anew" => {
                publisher = publisher.after(&Log::default());
                publisher.publish(&[unknown()]).await;
            }
            _ => {
                publisher.stream.write_all(&[0xff, 0xff]).await.unwrap();
                publisher = Publisher::accept(&listener).await;
            }
        }
        until(reason, || async { losses(&ramjet, reason).await >= 1.0 }).await;
        metric_is(&ramjet, "ramjet_upstream_kv_prompts", 0.0).await;
        publisher.publish(&[unknown()]).await;
        let (session, first) = turns.next().unwrap();
        first_turn(&ramjet, &engine, &mut publisher, (&session, first)).await;
        assert_eq!(expected(&ramjet, &engine, &session).await, PROMPT);
        publisher.publish(&[cleared()]).await;
        metric_is(&ramjet, "ramjet_upstream_kv_prompts", 0.0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_missed_is_asked_for_where_the_engine_repeats_it() {
    let (engine, listener, repeats) = (Engine::start().await, listener().await, listener().await);
    let [port, again] = [&listener, &repeats].map(|l| l.local_addr().unwrap().port());
    let log = Log::default();
    let serving = tokio::spawn(replay(repeats, log.clone()));
    let replicas = &[replica(&engine, &format!("port: {port}, replay_port: {again}"))];
    // stored before anybody listened
    log.lock().unwrap().push(crate::support::publisher::batch(&[stored(5000..5010, None, BLOCK)]));
    let ramjet = Ramjet::start_with(Start { replicas, ..Start::default() }).await;
    let mut publisher = Publisher::accept(&listener).await.after(&log);
    publisher.publish(&[stored(5010..5020, Some(5009), BLOCK)]).await;
    metric_is(&ramjet, "ramjet_upstream_kv_blocks", 20.0).await;
    first_turn(&ramjet, &engine, &mut publisher, ("a", 1)).await;
    publisher.loses(&[removed(61..=BLOCKS)]);
    publisher.publish(&[unknown()]).await;
    metric_is(&ramjet, "ramjet_upstream_kv_blocks", 20.0 + 60.0).await;
    assert_eq!(expected(&ramjet, &engine, "a").await, 60 * u64::from(BLOCK));
    assert_eq!(losses(&ramjet, "gap").await.to_bits(), 0f64.to_bits());
    serving.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_that_connect_are_told_apart_by_their_topics() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let bind = listener().await.local_addr().unwrap();
    let replicas = &[replica(&a, "topic: kv@a"), replica(&b, "topic: kv@b")];
    let fleet = format!("  kv_events: {{ bind: \"{bind}\" }}\n");
    let ramjet = Ramjet::start_with(Start { replicas, fleet: &fleet, ..Start::default() }).await;
    for (topic, blocks) in [("kv@a", 3), ("kv@b", 5), ("kv@nobody", 7)] {
        let mut publisher = Publisher::connect(bind, topic).await;
        publisher.publish(&[stored(0..blocks, None, BLOCK)]).await;
        if topic != "kv@nobody" {
            let shows = |all: Vec<(String, f64)>| all.iter().any(|(_, n)| n.to_bits() == (blocks as f64).to_bits());
            until(topic, || async { shows(ramjet.series("ramjet_upstream_kv_blocks").await) }).await;
        }
        drop(publisher);
    }
    until("all have left", || async { losses(&ramjet, "ended").await >= 2.0 }).await;
    let blocks: f64 = ramjet.series("ramjet_upstream_kv_blocks").await.iter().map(|(_, n)| n).sum();
    assert_eq!(blocks.to_bits(), 0f64.to_bits());
}

/// Two engines tell by turns, each numbering its own batches, over one connection; a third one is nobody's.
async fn forward(publisher: &mut Publisher) {
    for n in 0..3 {
        for (topic, first) in [("kv@a", 0), ("kv@b", 1000), ("kv@nobody", 2000)] {
            publisher.forwards(topic, n);
            let blocks = if topic == "kv@a" { 3 } else { 5 };
            publisher.publish(&[stored(first + 10 * n..first + 10 * n + blocks, None, BLOCK)]).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_behind_a_forwarder_are_told_apart_by_their_topics() {
    let (a, b, listener) = (Engine::start().await, Engine::start().await, listener().await);
    // it connects, or ramjet does: once for each engine
    let (port, bind) = (listener.local_addr().unwrap().port(), self::listener().await.local_addr().unwrap());
    let connects = [replica(&a, "topic: kv@a"), replica(&b, "topic: kv@b")];
    let listens = [("kv@a", &a), ("kv@b", &b)].map(|(topic, e)| replica(e, &format!("topic: {topic}, port: {port}")));
    let fleet = format!("  kv_events: {{ bind: \"{bind}\" }}\n");
    for (replicas, fleet) in [(connects, fleet.as_str()), (listens, "")] {
        let ramjet = Ramjet::start_with(Start { replicas: &replicas, fleet, ..Start::default() }).await;
        let mut forwarders = if fleet.is_empty() {
            vec![Publisher::accept(&listener).await, Publisher::accept(&listener).await]
        } else {
            vec![Publisher::connect(bind, "").await]
        };
        for forwarder in &mut forwarders {
            forward(forwarder).await;
        }
        until("each is followed", || async {
            let mut blocks: Vec<_> =
                ramjet.series("ramjet_upstream_kv_blocks").await.into_iter().map(|(_, n)| n).collect();
            blocks.sort_by(f64::total_cmp);
            blocks == [9.0, 15.0]
        })
        .await;
        for reason in ["gap", "anew", "ended", "contested"] {
            assert_eq!(losses(&ramjet, reason).await.to_bits(), 0f64.to_bits(), "{reason}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_topics_by_the_port_of_one_engine_none_is_believed() {
    let (engine, listener) = (Engine::start().await, listener().await);
    let port = listener.local_addr().unwrap().port();
    let replicas = &[replica(&engine, &format!("port: {port}"))];
    let ramjet = Ramjet::start_with(Start { replicas, ..Start::default() }).await;
    let mut forwarder = Publisher::accept(&listener).await;
    forward(&mut forwarder).await;
    until("it is noticed", || async { losses(&ramjet, "contested").await >= 1.0 }).await;
    metric_is(&ramjet, "ramjet_upstream_kv_blocks", 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_engine_is_not_mixed_with_one_that_is_gone_and_not_noticed_yet() {
    let engine = Engine::start().await;
    let bind = listener().await.local_addr().unwrap();
    let fleet = format!("  kv_events: {{ bind: \"{bind}\" }}\n");
    let replicas = &[replica(&engine, "topic: kv@a")];
    let ramjet = Ramjet::start_with(Start { replicas, fleet: &fleet, ..Start::default() }).await;
    let mut gone = Publisher::connect(bind, "kv@a").await;
    gone.publish(&[stored(0..3, None, BLOCK)]).await;
    metric_is(&ramjet, "ramjet_upstream_kv_blocks", 3.0).await;
    let mut new = Publisher::connect(bind, "kv@a").await;
    new.publish(&[stored(10..15, None, BLOCK)]).await;
    until("heard", || async { ramjet.metric("ramjet_upstream_kv_events_total").await >= 8.0 }).await;
    metric_is(&ramjet, "ramjet_upstream_kv_blocks", 5.0).await;
    drop(gone);
    new.publish(&[stored(20..21, None, BLOCK)]).await;
    metric_is(&ramjet, "ramjet_upstream_kv_blocks", 6.0).await;
    assert_eq!(losses(&ramjet, "ended").await.to_bits(), 0f64.to_bits());
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_engines_with_one_topic_neither_is_believed_until_one_is_gone() {
    let engine = Engine::start().await;
    let bind = listener().await.local_addr().unwrap();
    let fleet = format!("  kv_events: {{ bind: \"{bind}\" }}\n");
    let replicas = &[replica(&engine, "topic: kv@a")];
    let ramjet = Ramjet::start_with(Start { replicas, fleet: &fleet, ..Start::default() }).await;
    let mut first = Publisher::connect(bind, "kv@a").await;
    first.publish(&[stored(0..3, None, BLOCK)]).await;
    metric_is(&ramjet, "ramjet_upstream_kv_blocks", 3.0).await;
    let mut second = Publisher::connect(bind, "kv@a").await;
    second.publish(&[stored(10..15, None, BLOCK)]).await;
    metric_is(&ramjet, "ramjet_upstream_kv_blocks", 5.0).await;
    let others = || async {
        let all = ramjet.series("ramjet_upstream_kv_events_total").await;
        all.iter().filter(|(labels, _)| labels.contains("\"other\"")).map(|(_, n)| n).sum::<f64>()
    };
    for heard in 0..5 {
        first.publish(&[stored(20 + heard..21 + heard, None, BLOCK)]).await;
        second.publish(&[stored(30 + heard..31 + heard, None, BLOCK)]).await;
        until("both are passed over", || async { others().await >= 2.0 * (heard as f64) + 2.0 }).await;
    }
    metric_is(&ramjet, "ramjet_upstream_kv_blocks", 0.0).await;
    let lost = [losses(&ramjet, "contested").await, losses(&ramjet, "anew").await];
    assert_eq!(lost.map(f64::to_bits), [1f64, 1f64].map(f64::to_bits), "once, and not in turns");
    drop(first);
    for tries in 0.. {
        assert!(tries < 10_000, "who is left is believed");
        second.publish(&[stored(50..52, None, BLOCK)]).await;
        if ramjet.metric("ramjet_upstream_kv_blocks").await >= 2.0 {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_of_its_own_that_names_a_rank_is_heard_and_another_rank_is_counted() {
    let (engine, listener) = (Engine::start().await, listener().await);
    let port = listener.local_addr().unwrap().port();
    let replicas = &[replica(&engine, &format!("port: {port}"))];
    let ramjet = Ramjet::start_with(Start { replicas, ..Start::default() }).await;
    let mut publisher = Publisher::accept(&listener).await;
    publisher.publish_bytes(batch_of(3, &[stored(0..3, None, BLOCK)])).await;
    metric_is(&ramjet, "ramjet_upstream_kv_blocks", 3.0).await;
    publisher.publish_bytes(batch_of(4, &[stored(10..15, None, BLOCK)])).await;
    let others = || async {
        let all = ramjet.series("ramjet_upstream_kv_events_total").await;
        all.iter().filter(|(labels, _)| labels.contains("\"other\"")).map(|(_, n)| n).sum::<f64>()
    };
    until("it is passed over", || async { others().await >= 1.0 }).await;
    publisher.publish_bytes(batch_of(3, &[stored(20..21, None, BLOCK)])).await;
    metric_is(&ramjet, "ramjet_upstream_kv_blocks", 4.0).await;
    // that something is missing may show first by a batch of another rank
    publisher.loses(&[removed(0..3)]);
    publisher.publish_bytes(batch_of(4, &[stored(30..31, None, BLOCK)])).await;
    publisher.publish_bytes(batch_of(3, &[stored(40..42, None, BLOCK)])).await;
    metric_is(&ramjet, "ramjet_upstream_kv_blocks", 2.0).await;
    assert_eq!(losses(&ramjet, "gap").await.to_bits(), 1f64.to_bits());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_events_is_bounded_and_delays_no_request() {
    let (engine, listener) = (Engine::start().await, listener().await);
    let port = listener.local_addr().unwrap().port();
    let replicas = &[replica(&engine, &format!("port: {port}"))];
    let ramjet = Ramjet::start_with(Start { replicas, ..Start::default() }).await;
    let mut publisher = Publisher::accept(&listener).await;
    let flood = tokio::spawn(async move {
        for n in 0..400u64 {
            publisher.publish(&[stored(n * 1000..(n + 1) * 1000, None, BLOCK)]).await;
        }
        publisher
    });
    until("more blocks than are followed", || async {
        ask(&ramjet, &engine, &prompt("a", 1), (PROMPT, 0)).await;
        losses(&ramjet, "contradiction").await >= 1.0
    })
    .await;
    let publisher = flood.await.unwrap();
    until("all are heard", || async { ramjet.metric("ramjet_upstream_kv_events_total").await >= 400_000.0 }).await;
    assert!(ramjet.metric("ramjet_upstream_kv_blocks").await < f64::from(1 << 18));
    drop(publisher);
}
