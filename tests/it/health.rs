//! Replicas that do not answer lose their traffic and get it back; when none answers, all are tried.

use crate::support::client::{self, get};
use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start, lease};
use crate::support::{chat_body, until};

async fn status(ramjet: &Ramjet) -> (u16, String) {
    let answer = get(ramjet.api, "/health").await.unwrap();
    (answer.status, answer.json()["status"].as_str().unwrap().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn health_is_ok_then_degraded_then_unhealthy_and_names_no_host() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let addresses = [a.addr, b.addr];
    let ramjet = Ramjet::start(&addresses).await;
    assert_eq!(status(&ramjet).await, (200, "ok".into()));
    drop(a);
    until("degraded", || async { status(&ramjet).await == (200, "degraded".into()) }).await;
    let page = get(ramjet.api, "/health").await.unwrap();
    let json = page.json();
    assert_eq!(json["replicas"][0]["state"], "fenced");
    assert_eq!(json["replicas"][0]["fence"], "connect");
    assert_eq!(json["replicas"][1]["state"], "healthy");
    let text = String::from_utf8(page.body).unwrap();
    assert!(addresses.iter().all(|addr| !text.contains(&addr.port().to_string())) && !text.contains("127.0.0.1"));
    for _ in 0..6 {
        let answer = client::chat(ramjet.api, "", &chat_body(500, "")).await.unwrap();
        assert_eq!((answer.status, answer.header("x-ramjet-upstream")), (200, Some("1")));
    }
    assert_eq!(ramjet.metric("ramjet_upstream_failovers_total").await, 0.0);
    drop(b);
    until("unhealthy", || async { status(&ramjet).await == (503, "unhealthy".into()) }).await;
    assert_eq!(ramjet.metric("ramjet_route_fail_open").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn when_probes_have_fenced_everything_requests_are_tried_anyway() {
    let engine = Engine::start().await;
    // the probe asks for something that the engine answers with an error
    let config = "retry: { attempts: 1 }";
    let start = Start { upstreams: &[engine.addr], config, probe_path: "/not-there", ..Start::default() };
    let ramjet = Ramjet::start_with(start).await;
    until("fenced", || async { status(&ramjet).await == (503, "unhealthy".into()) }).await;
    let answer = client::chat(ramjet.api, "", &chat_body(500, "")).await.unwrap();
    assert_eq!(answer.status, 200);
    assert!(
        ramjet.series("ramjet_route_decisions_total").await.iter().any(|(l, n)| l.contains("fail_open") && *n > 0.0)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_comes_back_gets_traffic_again() {
    let addr = lease();
    let other = Engine::start().await;
    let ramjet = Ramjet::start(&[addr, other.addr]).await;
    until("degraded", || async { status(&ramjet).await.1 == "degraded" }).await;
    let back = Engine::start_at(addr).await;
    until("ok", || async { status(&ramjet).await.1 == "ok" }).await;
    until("traffic", || async {
        client::chat(ramjet.api, "", &chat_body(500, "")).await.unwrap();
        !back.seen().is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_without_an_address_is_an_unhealthy_replica_not_a_crash() {
    let engine = Engine::start().await;
    let env = [("RJ_UPSTREAM", &*format!("http://{},http://no-such-host.invalid:8000", engine.addr))];
    let ramjet = Ramjet::start_with(Start { upstreams: &[engine.addr], env: &env, ..Start::default() }).await;
    let json = get(ramjet.api, "/health").await.unwrap().json();
    assert_eq!(json["status"], "degraded");
    assert_eq!(json["replicas"][1]["fence"], "unresolved");
    assert_eq!(client::chat(ramjet.api, "", &chat_body(500, "")).await.unwrap().status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_listener_says_live_and_ready() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    assert_eq!(get(ramjet.admin, "/livez").await.unwrap().status, 200);
    assert_eq!(get(ramjet.admin, "/readyz").await.unwrap().status, 200);
    assert_eq!(get(ramjet.admin, "/elsewhere").await.unwrap().status, 404);
    drop(engine);
    until("not ready", || async { get(ramjet.admin, "/readyz").await.unwrap().status == 503 }).await;
    assert_eq!(get(ramjet.admin, "/livez").await.unwrap().status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_restarted_is_not_believed_to_hold_what_it_held() {
    let first = Engine::start().await;
    let (addr, other) = (first.addr, Engine::start().await);
    let ramjet = Ramjet::start(&[addr, other.addr]).await;
    let body = chat_body(200 << 10, "");
    assert_eq!(client::chat(ramjet.api, "", &body).await.unwrap().header("x-ramjet-upstream"), Some("0"));
    drop(first);
    until("degraded", || async { status(&ramjet).await.1 == "degraded" }).await;
    let _restarted = Engine::start_at(addr).await;
    until("ok", || async { status(&ramjet).await.1 == "ok" }).await;
    client::chat(ramjet.api, "", &body).await.unwrap();
    let reasons = ramjet.series("ramjet_route_decisions_total").await;
    let cold = reasons.iter().find(|(l, _)| l.contains("cold")).unwrap().1;
    assert_eq!(cold, 2.0, "{reasons:?}");
}
