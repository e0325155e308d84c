//! A replica with an identity gets requests only while its engine says that it has it: never before, never while nobody
//! knows, and never because nobody else is left.

use crate::support::client::{self, get};
use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start};
use crate::support::{chat_body, until};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

const LISTED: &str = r#"{"id":"m","max_model_len":4096,"owned_by":"vllm"}"#;
const VERSION: &str = r#"{"version":"0.32.0"}"#;
const DOCUMENT: &str = "weights of may\n";
/// Of the document.
const DIGEST: &str = "c979ce65c650b5a8d6d0353467cf2aab8c3de8567385b679dbf5b7bab028e174";
const CONFIG: &str = "  generation: { mode: off }\n  errors: { mode: off }\nrouting: { policy: round_robin }";

async fn engine() -> Engine {
    let engine = Engine::start().await;
    engine.lists(LISTED);
    engine.shows("/version", 200, VERSION);
    engine.shows("/identity", 200, DOCUMENT);
    engine
}

fn guarded(engine: &Engine) -> String {
    format!(
        "{{ name: guarded, url: \"http://{}\", models: [m], identity: {{ model: m, context: 4096, engine_version: 0.32.0, document: \
         /identity, document_sha256: {DIGEST} }} }}",
        engine.addr
    )
}

async fn fence(ramjet: &Ramjet) -> Option<String> {
    let json = get(ramjet.api, "/health").await.unwrap().json();
    json["replicas"][0]["fence"].as_str().map(str::to_owned)
}

async fn status(ramjet: &Ramjet) -> u16 {
    client::chat(ramjet.api, "", &chat_body(500, "")).await.unwrap().status
}

#[tokio::test(flavor = "multi_thread")]
async fn each_difference_fences_until_it_is_gone_and_is_named_everywhere() {
    let engine = engine().await;
    let ramjet = Ramjet::start_with(Start { replicas: &[guarded(&engine)], config: CONFIG, ..Start::default() }).await;
    until("let in", || async { fence(&ramjet).await.is_none() }).await;
    let other = |listed: &str| engine.lists(listed);
    let break_it: [(&str, &dyn Fn()); 5] = [
        ("identity_model", &|| other(r#"{"id":"m2","max_model_len":4096}"#)),
        ("identity_context", &|| other(r#"{"id":"m","max_model_len":8192}"#)),
        ("identity_version", &|| engine.shows("/version", 200, r#"{"version":"0.33.0"}"#)),
        ("identity_document", &|| engine.shows("/identity", 200, "weights of june\n")),
        ("identity_document", &|| engine.shows("/identity", 404, DOCUMENT)),
    ];
    for (reason, act) in break_it {
        act();
        until(reason, || async { fence(&ramjet).await.as_deref() == Some(reason) }).await;
        let before = engine.seen().len();
        // nobody else is there, and still: no failing open
        assert_eq!(status(&ramjet).await, 503);
        assert_eq!((engine.seen().len(), ramjet.metric("ramjet_route_fail_open").await), (before, 0.0));
        let shown = get(ramjet.admin, "/api/fleet").await.unwrap().json();
        let replica = &shown["replicas"][0];
        assert_eq!((&replica["state"], &replica["reason"]), (&"fenced".into(), &reason.into()));
        assert!(replica["detail"].as_str().unwrap().contains("is configured, the engine says"), "{shown}");
        let moves = ramjet.series("ramjet_upstream_transitions_total").await;
        assert!(moves.iter().any(|(l, n)| l.contains(&format!("\"{reason}\"")) && *n >= 1.0), "{moves:?}");
        engine.lists(LISTED);
        engine.shows("/version", 200, VERSION);
        engine.shows("/identity", 200, DOCUMENT);
        until("let in again", || async { fence(&ramjet).await.is_none() }).await;
        assert_eq!(status(&ramjet).await, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_let_in_unseen() {
    let engine = engine().await;
    // it answers probes, and not yet this
    engine.shows("/identity", 503, "");
    let ramjet = Ramjet::start_with(Start { replicas: &[guarded(&engine)], config: CONFIG, ..Start::default() }).await;
    until("probed", || async { engine.probes() >= 4 }).await;
    assert_eq!((fence(&ramjet).await.as_deref(), status(&ramjet).await), (Some("identity_unknown"), 503));
    assert!(engine.seen().is_empty());
    engine.shows("/identity", 200, DOCUMENT);
    until("let in", || async { fence(&ramjet).await.is_none() }).await;
    assert_eq!(status(&ramjet).await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_engine_at_the_same_address_gets_nothing_before_it_was_asked() {
    let first = engine().await;
    let replicas = &[guarded(&first)];
    // so seldom that no probe sees anything
    let start = Start { replicas, config: CONFIG, probe_every: "1h", ..Start::default() };
    let ramjet = Ramjet::start_with(start).await;
    until("let in", || async { fence(&ramjet).await.is_none() }).await;
    // leaves a kept connection behind
    assert_eq!(status(&ramjet).await, 200);
    let addr = first.addr;
    first.stop().await;
    let second = Engine::start_at(addr).await;
    second.lists(r#"{"id":"m2","max_model_len":4096,"owned_by":"vllm"}"#);
    second.shows("/version", 200, VERSION);
    second.shows("/identity", 200, DOCUMENT);
    // all the while there are requests
    until("refused", || async {
        assert_ne!(status(&ramjet).await, 200);
        fence(&ramjet).await.as_deref() == Some("identity_model")
    })
    .await;
    assert_eq!((status(&ramjet).await, second.seen().len()), (503, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_only_busy_is_believed_for_as_long_as_it_completes_requests() {
    let engine = engine().await;
    let config = "  generation: { mode: off, suppress_after_success: 2s }\n  errors: { mode: off }";
    let ramjet = Ramjet::start_with(Start { replicas: &[guarded(&engine)], config, ..Start::default() }).await;
    until("let in", || async { fence(&ramjet).await.is_none() }).await;
    assert_eq!(status(&ramjet).await, 200);
    engine.shows("/identity", 503, "");
    until("late again and again", || async {
        assert_eq!((status(&ramjet).await, fence(&ramjet).await), (200, None));
        ramjet.metric("ramjet_upstream_probe_suppressed_total").await >= 5.0
    })
    .await;
    until("no longer", || async { fence(&ramjet).await.as_deref() == Some("identity_unknown") }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_connection_that_is_dead_costs_no_request_where_the_engine_is_the_same() {
    let engine = engine().await;
    let replicas = &[guarded(&engine)];
    let start = Start { replicas, config: CONFIG, probe_every: "1h", ..Start::default() };
    let ramjet = Ramjet::start_with(start).await;
    until("let in", || async { fence(&ramjet).await.is_none() }).await;
    for n in 0..3 {
        engine.script(&["close-next", ""]);
        for _ in 0..2 {
            // the second one finds the connection of the first one closed
            assert_eq!(status(&ramjet).await, 200, "{n}");
        }
    }
}

/// Listens before `engine`, and closes connections on which nothing has been said for a while; how many it has closed.
async fn impatient(engine: SocketAddr) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (addr, closed) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counter = closed.clone();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let counter = counter.clone();
            tokio::spawn(async move {
                if timeout(Duration::from_millis(1200), client.peek(&mut [0])).await.is_err() {
                    counter.fetch_add(1, Relaxed);
                    return;
                }
                let mut engine = TcpStream::connect(engine).await.unwrap();
                let _ended = copy_bidirectional(&mut client, &mut engine).await;
            });
        }
    });
    (addr, closed)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_whose_habit_is_to_close_silent_connections_loses_no_request() {
    let engine = engine().await;
    let (addr, closed) = impatient(engine.addr).await;
    let replicas = &[guarded(&engine).replace(&engine.addr.to_string(), &addr.to_string())];
    let start = Start { replicas, config: CONFIG, probe_every: "1h", ..Start::default() };
    let ramjet = Ramjet::start_with(start).await;
    until("let in", || async { fence(&ramjet).await.is_none() }).await;
    // each answer ends its connection
    let once = "raw=HTTP/1.1 200 OK\\r\\ncontent-length: 2\\r\\nconnection: close\\r\\n\\r\\n{}";
    let asked = || async {
        engine.script(&[once]);
        status(&ramjet).await
    };
    // the first times the engine may have ended
    until("that is its habit", || async { asked().await == 200 && closed.load(Relaxed) >= 3 }).await;
    until("silent connections are closed again and again", || async {
        assert_eq!(asked().await, 200);
        closed.load(Relaxed) >= 6
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_is_gone_is_in_doubt_while_its_peer_answers() {
    let (first, peer) = (engine().await, engine().await);
    let replicas = &[guarded(&first), format!("{{ url: \"http://{}\" }}", peer.addr)];
    let start = Start { replicas, config: CONFIG, probe_every: "1h", ..Start::default() };
    let ramjet = Ramjet::start_with(start).await;
    until("let in", || async { fence(&ramjet).await.is_none() }).await;
    first.stop().await;
    until("in doubt", || async {
        assert_eq!(status(&ramjet).await, 200);
        fence(&ramjet).await.as_deref() == Some("identity_unknown")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_may_have_one_identity_and_replicas_their_own() {
    let (a, b) = (engine().await, engine().await);
    b.shows("/version", 200, r#"{"version":"0.33.0"}"#);
    let replica = |engine: &Engine, own: &str| format!("{{ url: \"http://{}\"{own} }}", engine.addr);
    for (own, wanted) in [("", Some("identity_version")), (", identity: { engine_version: 0.33.0 }", None)] {
        let replicas = &[replica(&b, own), replica(&a, "")];
        let start =
            Start { replicas, config: CONFIG, fleet: "  identity: { engine_version: 0.32.0 }\n", ..Start::default() };
        let ramjet = Ramjet::start_with(start).await;
        until("known", || async {
            let json = get(ramjet.api, "/health").await.unwrap().json();
            json["replicas"][1]["fence"].is_null() && fence(&ramjet).await.as_deref() == wanted
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_of_other_models_than_configured_is_fenced_and_one_that_takes_any_name_is_not() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let replica = |engine: &Engine| format!("{{ url: \"http://{}\", models: [m] }}", engine.addr);
    let replicas = &[replica(&a), replica(&b)];
    let ramjet = Ramjet::start_with(Start { replicas, config: CONFIG, ..Start::default() }).await;
    a.lists(r#"{"id":"m2","owned_by":"vllm"}"#);
    b.lists(r#"{"id":"m2","owned_by":"llamacpp"}"#);
    until("fenced", || async { fence(&ramjet).await.as_deref() == Some("model") }).await;
    for _ in 0..4 {
        assert_eq!(status(&ramjet).await, 200);
    }
    assert!(a.seen().is_empty() && get(ramjet.api, "/health").await.unwrap().json()["replicas"][1]["fence"].is_null());
    a.lists(LISTED);
    until("back", || async { fence(&ramjet).await.is_none() }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_probe_delays_no_other() {
    let (slow, quick) = (Engine::start().await, Engine::start().await);
    let replicas =
        &[format!("{{ url: \"http://{}/slow\" }}", slow.addr), format!("{{ url: \"http://{}\" }}", quick.addr)];
    let ramjet = Ramjet::start_with(Start { replicas, config: CONFIG, ..Start::default() }).await;
    until("late twice", || async { fence(&ramjet).await.as_deref() == Some("timeout") }).await;
    // two time-outs of two seconds, one after another, at ten probes a second
    assert!(quick.probes() >= 12, "{}", quick.probes());
}
