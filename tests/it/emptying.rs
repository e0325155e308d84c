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

#[tokio::test(flavor = "multi_thread")]
async fn on_sigterm_fifty_streams_that_last_for_seconds_all_finish_and_the_exit_code_is_0() {
    const STREAMS: usize = 50;
    const TOKENS: usize = 60;
    let engine = Engine::start().await;
    let start = Start { upstreams: &[engine.addr], config: "server: { grace: 100ms }", ..Start::default() };
    let mut ramjet = Ramjet::start_with(start).await;
    let play = format!("slowly={TOKENS}");
    let mut streams = tokio::task::JoinSet::new();
    for n in 0..STREAMS {
        let (api, play) = (ramjet.api, play.clone());
        streams.spawn(async move { client::chat(api, &play, &chat_body(500 + n, "\"stream\":true,")).await.unwrap() });
    }
    until("all are there", || async { engine.seen().len() == STREAMS }).await;
    ramjet.signal("TERM");
    let api = ramjet.api;
    until("new connections are refused", || async { client::get(api, "/health").await.is_err() }).await;
    let mut finished = 0;
    while let Some(answer) = streams.join_next().await {
        let answer = answer.unwrap();
        let tokens = String::from_utf8(answer.body).unwrap().matches("data: ").count();
        assert_eq!((answer.status, tokens), (200, TOKENS));
        finished += 1;
    }
    assert_eq!(finished, STREAMS);
    until("the process ends", || std::future::ready(ramjet.ended().is_some())).await;
    assert_eq!(ramjet.ended(), Some(0));
}
