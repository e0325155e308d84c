//! An operator keeps new requests away from a replica: running ones finish, nothing overrides it, and only who may says so.

use crate::support::chat_body;
use crate::support::client::{self, Answer, H1, get};
use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start};
use crate::support::until;
use std::net::SocketAddr;

async fn order(admin: SocketAddr, path: &str, headers: &str) -> Answer {
    order_of(admin, &admin.to_string(), path, headers).await
}

/// The same under a name of the listener.
async fn order_of(admin: SocketAddr, host: &str, path: &str, headers: &str) -> Answer {
    let mut h1 = H1::connect(admin).await.unwrap();
    h1.send(format!("POST {path} HTTP/1.1\r\nhost: {host}\r\n{headers}content-length: 0\r\n\r\n").as_bytes()).await;
    h1.answer().await.unwrap()
}

async fn state(ramjet: &Ramjet, replica: usize) -> String {
    let json = get(ramjet.api, "/health").await.unwrap().json();
    json["replicas"][replica]["state"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_replica_finishes_what_it_has_and_gets_nothing_until_undrained() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let config = "routing: { policy: round_robin }";
    let ramjet = Ramjet::start_with(Start { upstreams: &[a.addr, b.addr], config, ..Start::default() }).await;
    let name = format!("/api/replicas/{}", a.addr);
    a.script(&["on-call"]);
    let mut open = client::begin_chat(ramjet.api, "", &chat_body(500, "\"stream\":true,")).await.unwrap();
    until("there", || async { a.seen().len() == 1 }).await;
    let answer = order(ramjet.admin, &format!("{name}/drain"), "").await;
    assert_eq!((answer.status, answer.json()["state"].as_str()), (200, Some("draining")));
    assert_eq!(state(&ramjet, 0).await, "draining");
    a.call();
    assert!(open.head().await.unwrap().contains("200"), "its running stream goes on");
    for n in 0..6 {
        let answer = client::chat(ramjet.api, "", &chat_body(500 + n, "")).await.unwrap();
        assert_eq!(answer.header("x-ramjet-upstream"), Some("1"));
    }
    // nobody else is left: still nothing
    b.stop().await;
    until("unhealthy", || async { get(ramjet.api, "/health").await.unwrap().status == 503 }).await;
    assert_eq!(client::chat(ramjet.api, "", &chat_body(500, "")).await.unwrap().status, 502);
    assert_eq!(a.seen().len(), 1);
    let listed = get(ramjet.admin, "/api/fleet").await.unwrap().json();
    assert_eq!(
        (&listed["replicas"][0]["state"], &listed["replicas"][1]["state"]),
        (&"draining".into(), &"fenced".into())
    );
    assert_eq!(order(ramjet.admin, &format!("{name}/undrain"), "").await.status, 200);
    assert_eq!(client::chat(ramjet.api, "", &chat_body(500, "")).await.unwrap().status, 200);
    assert_eq!(a.seen().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_second_attempt_does_not_go_to_a_replica_drained_meanwhile() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let config = "routing: { policy: round_robin }\nlimits: { inflight_per_replica: 1 }";
    let ramjet = Ramjet::start_with(Start { upstreams: &[a.addr, b.addr], config, ..Start::default() }).await;
    let mut running = client::begin_chat(ramjet.api, "on-call-ok", &chat_body(500, "")).await.unwrap();
    until("one runs", || async { a.seen().len() + b.seen().len() == 1 }).await;
    let (busy, free) = if a.seen().is_empty() { (&b, &a) } else { (&a, &b) };
    free.script(&["status=502"]);
    let mut waits = client::begin_chat(ramjet.api, "", &chat_body(600, "")).await.unwrap();
    until("its second attempt waits", || async { ramjet.metric("ramjet_queue_length").await == 1.0 }).await;
    assert_eq!(free.seen().len(), 1);
    assert_eq!(order(ramjet.admin, &format!("/api/replicas/{}/drain", busy.addr), "").await.status, 200);
    busy.call();
    assert_eq!(running.answer().await.unwrap().status, 200);
    let answer = waits.answer().await.unwrap();
    assert_eq!((answer.status, answer.header("x-ramjet-error")), (503, Some("no_replica")));
    assert_eq!(busy.seen().len(), 1, "it is drained");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_drained_is_no_replica() {
    let engine = Engine::start().await;
    let replicas = &[format!("{{ name: e, url: \"http://{}\", dp_ranks: 2 }}", engine.addr)];
    let ramjet = Ramjet::start_with(Start { replicas, ..Start::default() }).await;
    for rank in 0..2 {
        assert_eq!(order(ramjet.admin, &format!("/api/replicas/e%23dp{rank}/drain"), "").await.status, 200);
    }
    let answer = client::chat(ramjet.api, "", &chat_body(500, "")).await.unwrap();
    assert_eq!((answer.status, answer.header("x-ramjet-error")), (503, Some("no_replica")));
    assert!(engine.seen().is_empty());
    assert_eq!(ramjet.metric("ramjet_route_fail_open").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_need_a_post_a_name_and_no_page_of_another_origin() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let path = format!("/api/replicas/{}/drain", engine.addr);
    assert_eq!(get(ramjet.admin, &path).await.unwrap().status, 405);
    assert_eq!(order(ramjet.admin, "/api/replicas/nobody/drain", "").await.status, 404);
    assert_eq!(order(ramjet.admin, &path, "origin: http://evil.test\r\n").await.status, 403);
    assert_eq!(order_of(ramjet.admin, "evil.test", &path, "origin: http://evil.test\r\n").await.status, 403);
    assert_eq!(order_of(ramjet.admin, "evil.test", &path, "").await.status, 403);
    assert_eq!(state(&ramjet, 0).await, "healthy");
    assert_eq!(order(ramjet.admin, &path, "").await.status, 200);
    assert_eq!(order_of(ramjet.admin, "localhost", &path, "origin: http://localhost\r\n").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_order_is_answered_in_json_and_changes_nothing() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let own = format!("/api/replicas/{}", engine.addr);
    for (path, status) in [
        ("/api/replicas/nobody/drain".to_owned(), 404),
        (format!("{own}/stop"), 404),
        (format!("{own}/drain?within=soon"), 400),
        // as it was meant, nobody has to leave at once
        (format!("{own}/drain?witin=10m"), 400),
        (format!("{own}/undrain?within=10m"), 400),
    ] {
        let answer = order(ramjet.admin, &path, "").await;
        assert_eq!((answer.status, answer.header("content-type")), (status, Some("application/json")), "{path}");
        assert!(answer.json()["error"]["message"].is_string(), "{path}");
    }
    assert_eq!(state(&ramjet, 0).await, "healthy");
    let answer = order(ramjet.admin, &format!("{own}/drain?within=10m"), "").await.json();
    assert_eq!((&answer["name"], &answer["in_flight"]), (&engine.addr.to_string().into(), &0.into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_is_asked_by_a_wrong_method_says_which_it_takes() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    for path in [format!("/api/replicas/{}/undrain", engine.addr), "/api/reload".to_owned()] {
        let answer = get(ramjet.admin, &path).await.unwrap();
        assert_eq!((answer.status, answer.header("allow")), (405, Some("POST")), "{path}");
        assert!(answer.json()["error"]["message"].is_string(), "{path}");
    }
    for path in ["/", "/metrics", "/livez", "/readyz", "/api/fleet", "/api/explain/0123456789abcdef", "/api/config"] {
        let answer = order(ramjet.admin, path, "").await;
        assert_eq!((answer.status, answer.header("allow")), (405, Some("GET, HEAD")), "{path}");
    }
}
