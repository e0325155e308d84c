//! Replicas at which requests fail are fenced for a while, then tried with a few; never the last one, and never for what
//! one request does or a client did wrong.

use crate::support::client::{self, get};
use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start};
use crate::support::{chat_body, until};

const QUICK: &str = "  generation: { mode: off }\n  errors: { failures: 3, pause: 300ms, successes: 2 }\n\
                     routing: { policy: round_robin }";
/// The same for a fence that stays.
const LASTING: &str =
    "  generation: { mode: off }\n  errors: { failures: 3, pause: 1h }\nrouting: { policy: round_robin }";
const FAILED: &str = "sse=data: {\"error\":{\"message\":\"engine core died\"}}\\n\\n|data: [DONE]\\n\\n";

async fn fleet(engines: usize, config: &str) -> (Vec<Engine>, Ramjet) {
    let mut all = Vec::new();
    for _ in 0..engines {
        all.push(Engine::start().await);
    }
    let upstreams: Vec<_> = all.iter().map(|e| e.addr).collect();
    let ramjet = Ramjet::start_with(Start { upstreams: &upstreams, config, ..Start::default() }).await;
    (all, ramjet)
}

async fn state(ramjet: &Ramjet, replica: usize) -> (String, Option<String>) {
    let json = get(ramjet.api, "/health").await.unwrap().json();
    let replica = &json["replicas"][replica];
    (replica["state"].as_str().unwrap().to_owned(), replica["fence"].as_str().map(str::to_owned))
}

fn fenced() -> (String, Option<String>) {
    ("fenced".to_owned(), Some("errors".to_owned()))
}

async fn stream(ramjet: &Ramjet, size: usize, play: &str) {
    // whatever comes of it
    let _answer = client::chat(ramjet.api, play, &chat_body(size, "\"stream\":true,")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn error_events_and_broken_streams_and_errors_fence() {
    for play in [FAILED, "cut", "status=500", "sse=data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\\n\\n"] {
        let (engines, ramjet) = fleet(2, LASTING).await;
        engines[0].script(&[play, play, play]);
        for n in 0..6 {
            stream(&ramjet, 500 + n, "sse=data: [DONE]\\n\\n").await;
        }
        until("fenced", || async { state(&ramjet, 0).await == fenced() }).await;
        assert_eq!(state(&ramjet, 1).await.0, "healthy", "{play}");
        let before = engines[0].seen().len();
        for n in 0..6 {
            stream(&ramjet, 600 + n, "").await;
        }
        assert_eq!(engines[0].seen().len(), before, "{play}");
        ramjet.settled().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_pause_a_few_good_answers_bring_it_back() {
    let (engines, ramjet) = fleet(2, QUICK).await;
    engines[0].script(&["cut", "cut", "cut"]);
    for n in 0..6 {
        stream(&ramjet, 500 + n, "sse=data: [DONE]\\n\\n").await;
    }
    until("on trial", || async { state(&ramjet, 0).await.0 == "recovering" }).await;
    // streams without an end take both of its places
    let mut open = Vec::new();
    for n in 0..6 {
        open.push(client::begin_chat(ramjet.api, "decode", &chat_body(700 + n, "\"stream\":true,")).await.unwrap());
    }
    until("all are placed", || async { ramjet.metric("ramjet_upstream_inflight").await == 6.0 }).await;
    let inflight = ramjet.series("ramjet_upstream_inflight").await;
    let here = inflight.iter().find(|(l, _)| l.contains(&engines[0].addr.to_string())).unwrap().1;
    assert_eq!(here, 2.0, "{inflight:?}");
    drop(open);
    ramjet.settled().await;
    until("back", || async {
        client::chat(ramjet.api, "", &chat_body(500, "")).await.unwrap();
        state(&ramjet, 0).await.0 == "healthy"
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_connection_fences_before_the_next_probe() {
    let (dead, engine) = (Engine::start().await, Engine::start().await);
    let upstreams = &[dead.addr, engine.addr];
    let start = Start { upstreams, config: LASTING, probe_every: "1h", ..Start::default() };
    let ramjet = Ramjet::start_with(start).await;
    until("the first probes", || async { dead.probes() > 0 && engine.probes() > 0 }).await;
    dead.stop().await;
    until("fenced", || async {
        // the same request again and again: it cannot be the cause
        assert_eq!(client::chat(ramjet.api, "", &chat_body(500, "")).await.unwrap().status, 200);
        state(&ramjet, 0).await == fenced()
    })
    .await;
}

async fn embed(ramjet: &Ramjet, n: usize) -> u16 {
    let body = format!("{{\"model\":\"m\",\"input\":\"text {n}\"}}");
    client::post(ramjet.api, "/v1/embeddings", "", &body).await.unwrap().status
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_generates_nothing_by_trade_comes_back_from_its_trial() {
    let (gone, engine) = (Engine::start().await, Engine::start().await);
    let addr = gone.addr;
    let start = Start { upstreams: &[addr, engine.addr], config: QUICK, probe_every: "1h", ..Start::default() };
    let ramjet = Ramjet::start_with(start).await;
    until("the first probes", || async { gone.probes() > 0 && engine.probes() > 0 }).await;
    gone.stop().await;
    until("fenced", || async {
        assert_eq!(embed(&ramjet, 0).await, 200);
        state(&ramjet, 0).await == fenced()
    })
    .await;
    let _back = Engine::start_at(addr).await;
    until("healthy", || async {
        assert_eq!(embed(&ramjet, 1).await, 200);
        state(&ramjet, 0).await.0 == "healthy"
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_connections_do_not_fence_who_mostly_computes_well() {
    let (engine, other) = (Engine::start().await, Engine::start().await);
    let addr = engine.addr;
    let start = Start { upstreams: &[addr, other.addr], config: LASTING, probe_every: "1h", ..Start::default() };
    let ramjet = Ramjet::start_with(start).await;
    until("the first probes", || async { engine.probes() > 0 && other.probes() > 0 }).await;
    for n in 0..40 {
        assert_eq!(embed(&ramjet, n).await, 200);
    }
    assert!(engine.seen().len() >= 10);
    engine.stop().await;
    until("refused more often than fences", || async {
        assert_eq!(embed(&ramjet, 0).await, 200);
        ramjet.metric("ramjet_upstream_failovers_total").await >= 5.0
    })
    .await;
    assert_eq!(state(&ramjet, 0).await, ("healthy".to_owned(), None));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_did_wrong_does_not_fence_though_it_comes_as_an_error_event() {
    let (_engines, ramjet) = fleet(2, LASTING).await;
    let refused =
        "sse=data: {\"error\":{\"message\":\"m\",\"type\":\"BadRequestError\",\"code\":400}}\\n\\n|data: [DONE]\\n\\n";
    for n in 0..12 {
        stream(&ramjet, 500 + n, refused).await;
    }
    for replica in 0..2 {
        assert_eq!(state(&ramjet, replica).await, ("healthy".to_owned(), None));
    }
    assert_eq!(ramjet.metric("ramjet_upstream_errors_total").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_healthy_replica_stays() {
    let (engines, ramjet) = fleet(2, LASTING).await;
    for n in 0..20 {
        stream(&ramjet, 500 + n, "cut").await;
    }
    until("one is fenced", || async { state(&ramjet, 0).await == fenced() || state(&ramjet, 1).await == fenced() })
        .await;
    let other = usize::from(state(&ramjet, 0).await == fenced());
    assert_eq!(state(&ramjet, other).await.0, "healthy");
    let before = engines[other].seen().len();
    assert_eq!(client::chat(ramjet.api, "", &chat_body(500, "")).await.unwrap().status, 200);
    assert_eq!(engines[other].seen().len(), before + 1);
    assert_eq!(ramjet.metric("ramjet_route_fail_open").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_one_request_nor_refusals_fence_anybody() {
    let (_engines, ramjet) = fleet(3, LASTING).await;
    for _ in 0..30 {
        stream(&ramjet, 500, "cut").await;
    }
    for play in ["status=400", "status=404", "status=429", "busy", "status=503"] {
        for n in 0..12 {
            stream(&ramjet, 500 + n, play).await;
        }
    }
    for replica in 0..3 {
        assert_eq!(state(&ramjet, replica).await, ("healthy".to_owned(), None));
    }
}
