//! A replica, or the router, is emptied: what runs finishes, the rest moves, and it is seen when nothing is left.

use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start};
use crate::support::{chat_body, client, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_replica_loses_its_sessions_and_is_seen_to_be_empty() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let start = Start { upstreams: &[a.addr, b.addr], ..Start::default() };
    let ramjet = Ramjet::start_with(start).await;
    let body = chat_body(40_000, "\"stream\":true,");
    let stream = client::begin_chat(ramjet.api, "decode", &body).await.unwrap();
    until("somebody has it", || async { a.seen().len() + b.seen().len() == 1 }).await;
    let (home, other) = if a.seen().is_empty() { (&b, &a) } else { (&a, &b) };
    let name = home.addr.to_string();
    // the session is warm there
    until("its prompt is read", || async { ramjet.metric("ramjet_prefix_index_blocks").await > 0.0 }).await;
    assert_eq!(client::chat(ramjet.api, "", &body).await.unwrap().status, 200);
    assert_eq!((home.seen().len(), ramjet.of_replica(&name, "draining_for_s").await.unwrap().is_null()), (2, true));
    assert_eq!(ramjet.order(&format!("/api/replicas/{name}/drain")).await.status, 200);
    assert_eq!(ramjet.of_replica(&name, "state").await.unwrap(), "draining");
    assert!(ramjet.of_replica(&name, "draining_for_s").await.unwrap().is_number());
    assert!(ramjet.of_replica(&name, "empty_for_s").await.unwrap().is_null(), "a stream is still there");
    assert_eq!(client::chat(ramjet.api, "", &body).await.unwrap().status, 200);
    assert_eq!((home.seen().len(), other.seen().len()), (2, 1), "the session has moved");
    // a reload is no reason to send anything there
    ramjet.rewrite(&start);
    assert_eq!(ramjet.reload().await.status, 200);
    assert_eq!(ramjet.of_replica(&name, "state").await.unwrap(), "draining");
    drop(stream);
    let empty = || async { ramjet.of_replica(&name, "empty_for_s").await.unwrap().is_number() };
    until("it is empty", empty).await;
    assert_eq!(ramjet.of_replica(&name, "in_flight").await.unwrap(), 0);
    assert_eq!(ramjet.order(&format!("/api/replicas/{name}/undrain")).await.status, 200);
    assert!(ramjet.of_replica(&name, "empty_for_s").await.unwrap().is_null());
}

/// The prompt of a session of about so many bytes, after so many turns.
fn turn(session: usize, size: usize, turns: usize) -> Vec<u8> {
    let text = |of: usize, size: usize| -> String {
        (0..size / 6).map(|n| format!("{:05} ", (n * n + of * 7919) % 99_991)).collect()
    };
    let mut messages = format!("{{\"role\":\"user\",\"content\":\"{}\"}}", text(session, size));
    for n in 0..turns {
        let more = format!(",{{\"role\":\"assistant\",\"content\":\"ok\"}},{{\"role\":\"user\",\"content\":\"{n}\"}}");
        messages.push_str(&more);
    }
    format!("{{\"model\":\"m\",\"messages\":[{messages}]}}").into_bytes()
}

#[tokio::test(flavor = "multi_thread")]
async fn drained_within_a_time_a_replica_keeps_its_dearest_sessions_longest_and_is_empty_before_its_end() {
    // from the dearest to the cheapest
    const SIZES: [usize; 5] = [400_000, 200_000, 100_000, 50_000, 25_000];
    let (a, b) = (Engine::start().await, Engine::start().await);
    let ramjet = Ramjet::start_with(Start { upstreams: &[a.addr, b.addr], ..Start::default() }).await;
    let [home, other] = [&a, &b].map(|engine| engine.addr.to_string());
    let order = async |replica: &str, verb: &str| {
        let answer = ramjet.order(&format!("/api/replicas/{replica}/{verb}")).await;
        assert_eq!(answer.status, 200, "{verb}");
        answer.json()
    };
    let ask = async |session: usize, turns: usize| {
        let answer = client::chat(ramjet.api, "", &turn(session, SIZES[session], turns)).await.unwrap();
        assert_eq!(answer.status, 200);
        answer.header("x-ramjet-upstream").unwrap() == "0"
    };
    // all of them begin at the first one
    order(&other, "drain").await;
    for session in 0..SIZES.len() {
        assert!(ask(session, 0).await && ask(session, 1).await);
    }
    order(&other, "undrain").await;
    assert_eq!(ramjet.order(&format!("/api/replicas/{home}/drain?within=soon")).await.status, 400);
    let told = order(&home, "drain?within=4s").await;
    assert_eq!((&told["state"], &told["sessions"]), (&"draining".into(), &5.into()));
    assert!(ramjet.of_replica(&home, "leaves_within_s").await.unwrap().as_f64().unwrap() <= 4.0);
    let new = client::chat(ramjet.api, "", &chat_body(40_000, "")).await.unwrap();
    assert_eq!(new.header("x-ramjet-upstream"), Some("1"), "a new session");
    let seen = a.seen().len();
    let mut left = [None; SIZES.len()];
    for round in 2.. {
        for (session, left) in left.iter_mut().enumerate() {
            if ask(session, round).await {
                assert_eq!(*left, None, "who has gone stays away");
            } else {
                *left = left.or(Some(round));
            }
        }
        // asked after a dearer one, the cheaper ones have gone if that has
        assert!(left.windows(2).all(|pair| pair[0].is_none() || pair[1].is_some()), "{left:?}");
        if left.iter().all(Option::is_some) {
            break;
        }
        assert!(ramjet.of_replica(&home, "empty_for_s").await.unwrap().is_null(), "sessions are still there: {left:?}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    println!("rounds in which they left, the dearest first: {left:?}");
    assert!(a.seen().len() > seen && left[0] > left[SIZES.len() - 1], "{left:?}");
    until("it is empty", || async { ramjet.of_replica(&home, "empty_for_s").await.unwrap().is_number() }).await;
    assert_eq!(ramjet.of_replica(&home, "sessions").await.unwrap(), 0);
    let seen = a.seen().len();
    for session in 0..SIZES.len() {
        assert!(!ask(session, 1).await);
    }
    assert_eq!(a.seen().len(), seen);
}

#[tokio::test(flavor = "multi_thread")]
async fn on_sigterm_fifty_streams_of_twenty_seconds_all_finish_and_the_exit_code_is_0() {
    const STREAMS: usize = 50;
    // one a second
    const TOKENS: usize = 20;
    let engine = Engine::start().await;
    let start = Start { upstreams: &[engine.addr], config: "server: { grace: 100ms }", ..Start::default() };
    let mut ramjet = Ramjet::start_with(start).await;
    let play = format!("lasting={TOKENS}");
    let mut streams = tokio::task::JoinSet::new();
    for n in 0..STREAMS {
        let (api, play) = (ramjet.api, play.clone());
        streams.spawn(async move { client::chat(api, &play, &chat_body(500 + n, "\"stream\":true,")).await.unwrap() });
    }
    until("all are there", || async { engine.seen().len() == STREAMS }).await;
    let began = std::time::Instant::now();
    ramjet.signal("TERM");
    let api = ramjet.api;
    until("new connections are refused", || async { client::get(api, "/health").await.is_err() }).await;
    assert!(ramjet.ended().is_none() && streams.try_join_next().is_none(), "all of them still run");
    let mut finished = 0;
    while let Some(answer) = streams.join_next().await {
        let answer = answer.unwrap();
        let tokens = String::from_utf8(answer.body).unwrap().matches("data: ").count();
        assert_eq!((answer.status, tokens), (200, TOKENS));
        finished += 1;
    }
    assert_eq!(finished, STREAMS);
    assert!(began.elapsed().as_secs() >= TOKENS as u64 / 2, "they ended early");
    until("the process ends", || std::future::ready(ramjet.ended().is_some())).await;
    assert_eq!(ramjet.ended(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_was_promised_to_stay_brings_one_more_request_when_its_stream_has_ended() {
    let engine = Engine::start().await;
    let start = Start { upstreams: &[engine.addr], config: "server: { grace: 0ms }", ..Start::default() };
    let mut ramjet = Ramjet::start_with(start).await;
    let body = chat_body(500, "\"stream\":true,");
    let head = |play: &str| client::chat_head(&format!("x-play: {play}\r\ncontent-length: {}\r\n", body.len()));
    let mut kept = client::H1::connect(ramjet.api).await.unwrap();
    kept.send(&[head("paced=30").as_bytes(), &body].concat()).await;
    until("it streams", || async { ramjet.metric("ramjet_ttft_seconds_count").await > 0.0 }).await;
    ramjet.signal("TERM");
    let api = ramjet.api;
    until("new connections are refused", || async { client::get(api, "/health").await.is_err() }).await;
    let stream = kept.answer().await.unwrap();
    assert_eq!(stream.status, 200);
    assert_ne!(stream.header("connection"), Some("close"), "the connection is to stay");
    kept.send(&[head("").as_bytes(), &body].concat()).await;
    let next = kept.answer().await.unwrap();
    assert_eq!((next.status, next.header("connection")), (200, Some("close")));
    until("the process ends", || std::future::ready(ramjet.ended() == Some(0))).await;
}
