//! An engine that answers everything and generates nothing loses its traffic; one that is busy or slow keeps it.

use crate::support::client::{self, H1, get};
use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start};
use crate::support::{chat_body, until};

/// Quick watching, and probes that come seldom.
const WATCH: &str = "  progress: { silence: 200ms, timeout: 200ms }\n  generation: { mode: off, interval: 400ms }\n\
                     routing: { policy: round_robin }";
/// Quick probes, and nobody watching.
const PROBE: &str = "  progress: { mode: off }\n  generation: { interval: 100ms, timeout: 200ms, successes: 1 }\n\
                     routing: { policy: round_robin }";

/// What an engine that generates answers to a probe.
const GENERATES: &str = "json={\"choices\":[{\"text\":\"x\"}]}";

async fn pair(config: &str) -> (Engine, Engine, Ramjet) {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let ramjet = Ramjet::start_with(Start { upstreams: &[a.addr, b.addr], config, ..Start::default() }).await;
    (a, b, ramjet)
}

async fn fence(ramjet: &Ramjet, replica: usize) -> Option<String> {
    let json = get(ramjet.api, "/health").await.unwrap().json();
    json["replicas"][replica]["fence"].as_str().map(str::to_owned)
}

/// Streams that are not read: two, so that each engine has one.
async fn streams(ramjet: &Ramjet) -> Vec<H1> {
    let body = chat_body(500, "\"stream\":true,");
    let mut open = Vec::new();
    for _ in 0..2 {
        open.push(client::begin_chat(ramjet.api, "", &body).await.unwrap());
    }
    open
}

async fn all_go_to(ramjet: &Ramjet, replica: &str) {
    for n in 0..6 {
        let answer = client::chat(ramjet.api, "", &chat_body(500 + n, "")).await.unwrap();
        assert_eq!((answer.status, answer.header("x-ramjet-upstream")), (200, Some(replica)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_engine_loses_its_traffic_while_its_peer_answers_and_gets_it_back() {
    for play in ["frozen", "comments"] {
        let (a, b, ramjet) = pair(WATCH).await;
        a.generates("frozen");
        a.script(&[play]);
        b.script(&["decode"]);
        let open = streams(&ramjet).await;
        until("fenced", || async { fence(&ramjet, 0).await.as_deref() == Some("progress") }).await;
        assert_eq!(fence(&ramjet, 1).await, None, "{play}");
        all_go_to(&ramjet, "1").await;
        let moves = ramjet.series("ramjet_upstream_transitions_total").await;
        assert!(moves.iter().any(|(l, n)| l.contains("\"progress\"") && *n == 1.0), "{moves:?}");
        a.generates(GENERATES);
        until("back", || async { fence(&ramjet, 0).await.is_none() }).await;
        drop(open);
        ramjet.settled().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_answers_the_question_keeps_its_traffic_however_silent_its_streams_are() {
    let (a, b, ramjet) = pair(WATCH).await;
    a.script(&["frozen"]);
    b.script(&["decode"]);
    let open = streams(&ramjet).await;
    until("asked again and again", || async { a.generations().len() >= 3 }).await;
    assert_eq!(fence(&ramjet, 0).await, None);
    drop(open);
    ramjet.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_with_a_full_queue_keeps_its_traffic() {
    for busy in ["busy", "status=503", "status=429"] {
        let (a, b, ramjet) = pair(WATCH).await;
        a.generates(busy);
        a.script(&["frozen"]);
        b.script(&["decode"]);
        let open = streams(&ramjet).await;
        until("asked", || async { a.generations().len() >= 3 }).await;
        assert_eq!(fence(&ramjet, 0).await, None, "{busy}");
        drop(open);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_refuses_to_be_asked_keeps_its_traffic_however_silent_its_streams_are() {
    for refusal in ["status=401", "status=404"] {
        let (a, b, ramjet) = pair(WATCH).await;
        a.generates(refusal);
        a.script(&["frozen"]);
        b.script(&["decode"]);
        let open = streams(&ramjet).await;
        // two endpoints each time, and ever more seldom: the last time after several seconds
        until("asked five times", || async { a.generations().len() >= 10 }).await;
        let moves = ramjet.series("ramjet_upstream_transitions_total").await;
        assert!(moves.iter().all(|(l, n)| !l.contains("\"progress\"") || *n == 0.0), "{refusal} {moves:?}");
        drop(open);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_healthy_replica_stays_although_it_is_silent() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start_with(Start { upstreams: &[engine.addr], config: WATCH, ..Start::default() }).await;
    engine.generates("frozen");
    engine.script(&["frozen", "frozen"]);
    let open = streams(&ramjet).await;
    until("asked in vain", || async { engine.generations().len() >= 3 }).await;
    assert_eq!(fence(&ramjet, 0).await, None);
    assert_eq!(client::chat(ramjet.api, "", &chat_body(500, "")).await.unwrap().status, 200);
    drop(open);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_probe_finds_an_idle_engine_that_generates_nothing_and_lets_it_back() {
    let (a, _b, ramjet) = pair(PROBE).await;
    for play in ["prefill", "status=500", "json={\"choices\":[]}", "json={\"error\":{\"message\":\"died\"}}"] {
        a.generates(play);
        until("fenced", || async { fence(&ramjet, 0).await.as_deref() == Some("generation") }).await;
        all_go_to(&ramjet, "1").await;
        a.generates(GENERATES);
        until("back", || async { fence(&ramjet, 0).await.is_none() }).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_busy_or_does_not_know_completions_is_not_fenced_by_probes() {
    for play in ["busy", "status=429", "status=404", "status=400", "status=501", "drop"] {
        let (a, _b, ramjet) = pair(PROBE).await;
        a.generates(play);
        until("probed", || async { a.generations().len() >= 6 }).await;
        assert_eq!(fence(&ramjet, 0).await, None, "{play}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_probe_does_not_count_after_a_completion_and_does_after_an_abandoned_stream() {
    let (a, _b, ramjet) = pair(PROBE).await;
    client::chat(ramjet.api, "", &chat_body(500, "")).await.unwrap();
    client::chat(ramjet.api, "", &chat_body(500, "")).await.unwrap();
    a.generates("prefill");
    until("suppressed", || async { ramjet.metric("ramjet_upstream_probe_suppressed_total").await >= 2.0 }).await;
    assert_eq!(fence(&ramjet, 0).await, None);

    for (play, members) in [("cut", "\"stream\":true,"), ("json={\"choices\":[]}", ""), ("json={\"error\":{}}", "")] {
        let (a, _b, ramjet) = pair(PROBE).await;
        a.script(&[play]);
        // whatever the client makes of it
        let _answer = client::chat(ramjet.api, "", &chat_body(500, members)).await;
        assert_eq!(a.seen().len(), 1);
        a.generates("prefill");
        until("fenced", || async { fence(&ramjet, 0).await.as_deref() == Some("generation") }).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_reads_a_long_prompt_and_nothing_else_meanwhile_keeps_its_traffic() {
    let config = "  progress: { silence: 100ms, timeout: 100ms }\n  generation: { interval: 100ms, timeout: 200ms }\n\
                  routing: { policy: round_robin }";
    let (a, _b, ramjet) = pair(config).await;
    a.script(&["on-call"]);
    let body = chat_body(2 << 20, "\"stream\":true,");
    let mut open = client::begin_chat(ramjet.api, "", &body).await.unwrap();
    until("it reads", || async { a.seen().len() == 1 }).await;
    a.generates("prefill");
    let before = ramjet.metric("ramjet_upstream_probe_suppressed_total").await;
    until("asked in vain", || async { ramjet.metric("ramjet_upstream_probe_suppressed_total").await >= before + 5.0 })
        .await;
    assert_eq!(fence(&ramjet, 0).await, None);
    a.call();
    assert!(open.head().await.unwrap().contains("200"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_readiness_probe_that_is_late_counts_only_where_nothing_was_completed() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let config = "  generation: { mode: off }\nrouting: { policy: round_robin }";
    let start = Start { upstreams: &[a.addr, b.addr], config, probe_path: "/slow", ..Start::default() };
    let ramjet = Ramjet::start_with(start).await;
    client::chat(ramjet.api, "", &chat_body(500, "")).await.unwrap();
    until("the other is fenced", || async { fence(&ramjet, 1).await.as_deref() == Some("timeout") }).await;
    assert_eq!(fence(&ramjet, 0).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_takes_no_more_connections_is_fenced_when_it_completes_nothing_more() {
    let engine = Engine::start().await;
    let config = "  generation: { mode: off }\n  progress: { mode: off }";
    let start = Start { upstreams: &[engine.addr], config, probe_every: "500ms", ..Start::default() };
    let ramjet = Ramjet::start_with(start).await;
    let chat = || async { client::chat(ramjet.api, "", &chat_body(500, "")).await.unwrap().status };
    assert_eq!(chat().await, 200);
    engine.deafen();
    until("refused again and again", || async {
        // on the connection that it has, once the request before has given it back
        ramjet.settled().await;
        assert_eq!(chat().await, 200);
        ramjet.metric("ramjet_upstream_probe_suppressed_total").await >= 3.0
    })
    .await;
    assert_eq!(fence(&ramjet, 0).await, None);
    until("fenced", || async { fence(&ramjet, 0).await.as_deref() == Some("connect") }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_probe_is_one_token_of_the_replicas_own_model_on_its_rank_with_its_key() {
    let engine = Engine::start().await;
    engine.lists(r#"{"id":"org/m\"1"}"#);
    let replicas = &[format!("{{ name: e, url: \"http://{}/v1\", dp_ranks: 2, api_key_env: KEY }}", engine.addr)];
    let config = "  generation: { mode: ranks, interval: 100ms }";
    let env = &[("KEY", "sk-own")];
    let ramjet = Ramjet::start_with(Start { replicas, config, env, ..Start::default() }).await;
    for rank in 0..2 {
        let wanted = format!(
            r#"{{"model":"org/m\"1","prompt":"1","max_tokens":1,"temperature":0,"stream":false,"routed_dp_rank":{rank}}}"#
        );
        let is_it = |(head, body): &(String, String)| {
            head.starts_with("POST /v1/completions ")
                && head.to_ascii_lowercase().contains(&format!("x-data-parallel-rank: {rank}\r\n"))
                && head.contains("Bearer sk-own")
                && *body == wanted
        };
        until("probed", || async { engine.generations().iter().any(is_it) }).await;
    }
    assert_eq!(ramjet.metric("ramjet_route_decisions_total").await, 0.0);
}
