//! Long prompts have a lane of their own, and a replica that has come back gets little at first.

use crate::support::chat_body;
use crate::support::client::{self, H1, get};
use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start, lease};
use crate::support::until;

/// A replica of the lane (0) and another one (1).
fn fleet(lane: std::net::SocketAddr, other: std::net::SocketAddr) -> [String; 2] {
    [format!("{{ url: \"http://{lane}\", lane: long }}"), format!("{{ url: \"http://{other}\" }}")]
}

async fn start(replicas: &[String], policy: &str, short: &str) -> Ramjet {
    let config = format!("routing: {{ policy: {policy}, long_prompt: {{ over: 100KiB, short: {short} }} }}");
    Ramjet::start_with(Start { replicas, config: &config, ..Start::default() }).await
}

/// A body of `kib` KiB that shares nothing with others but those of the same salt.
fn body(kib: usize, salt: u32) -> Vec<u8> {
    chat_body(kib << 10, &format!("\"cache_salt\":\"{salt}\","))
}

async fn ordinal(ramjet: &Ramjet, body: &[u8]) -> String {
    let answer = client::chat(ramjet.api, "", body).await.unwrap();
    assert_eq!(answer.status, 200);
    answer.header("x-ramjet-upstream").unwrap().to_owned()
}

async fn gate(ramjet: &Ramjet, gate: &str) -> f64 {
    let all = ramjet.series("ramjet_route_lane_total").await;
    all.iter().find(|(labels, _)| labels.contains(gate)).unwrap().1
}

async fn says(ramjet: &Ramjet, word: &str) {
    until(word, || async { get(ramjet.api, "/health").await.unwrap().json()["status"] == word }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn long_prompts_go_to_the_lane_and_short_ones_elsewhere() {
    let (lane, other) = (Engine::start().await, Engine::start().await);
    let ramjet = start(&fleet(lane.addr, other.addr), "affinity", "exclusive").await;
    for n in 0..4 {
        assert_eq!(ordinal(&ramjet, &body(101, n)).await, "0");
        // held by the lane, and yet
        assert_eq!(ordinal(&ramjet, &body(99, n)).await, "1");
    }
    assert_eq!((gate(&ramjet, "long").await, gate(&ramjet, "kept_out").await), (4.0, 4.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_lane_long_prompts_go_anywhere_and_without_the_others_short_ones_go_to_the_lane() {
    let (lane, other) = (Engine::start().await, Engine::start().await);
    let (lane_at, other_at) = (lane.addr, other.addr);
    let ramjet = start(&fleet(lane_at, other_at), "affinity", "exclusive").await;
    drop(lane);
    says(&ramjet, "degraded").await;
    assert_eq!(ordinal(&ramjet, &body(200, 1)).await, "1");
    assert_eq!(gate(&ramjet, "no_lane").await, 1.0);
    let _lane = Engine::start_at(lane_at).await;
    says(&ramjet, "ok").await;
    drop(other);
    says(&ramjet, "degraded").await;
    assert_eq!(ordinal(&ramjet, &body(10, 2)).await, "0");
    assert_eq!(gate(&ramjet, "let_in").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_that_died_unnoticed_is_left_for_another_replica() {
    let (lane, other) = (Engine::start().await, Engine::start().await);
    let replicas = fleet(lane.addr, other.addr);
    let config = "routing: { long_prompt: { over: 100KiB } }";
    let start = Start { replicas: &replicas, config, probe_every: "1h", ..Start::default() };
    let ramjet = Ramjet::start_with(start).await;
    until("the first probes", || async { lane.probes() > 0 && other.probes() > 0 }).await;
    lane.stop().await;
    assert_eq!(ordinal(&ramjet, &body(200, 1)).await, "1");
    assert_eq!(ramjet.metric("ramjet_upstream_failovers_total").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn avoid_leaves_a_cached_session_where_it_is() {
    for policy in ["affinity", "cost"] {
        let (lane, other) = (Engine::start().await, Engine::start().await);
        let ramjet = start(&fleet(lane.addr, other.addr), policy, "avoid").await;
        assert_eq!(ordinal(&ramjet, &body(120, 1)).await, "0", "{policy}");
        // the beginning of what the lane holds, and something new
        assert_eq!(ordinal(&ramjet, &body(90, 1)).await, "0", "{policy}");
        for salt in 2..5 {
            assert_eq!(ordinal(&ramjet, &body(90, salt)).await, "1", "{policy}");
        }
        let gates = (gate(&ramjet, "long").await, gate(&ramjet, "let_in").await, gate(&ramjet, "kept_out").await);
        assert_eq!(gates, (1.0, 1.0, 3.0), "{policy}");
    }
}

/// One prompt that an engine reads for ever.
async fn hang(ramjet: &Ramjet, engines: &[&Engine], salt: u32) -> H1 {
    let seen = || engines.iter().map(|e| e.seen().len()).sum::<usize>();
    let before = seen();
    let open = client::begin_chat(ramjet.api, "prefill", &body(100, salt)).await.unwrap();
    until("it has arrived", || async { seen() > before }).await;
    open
}

/// How many of six cold prompts go to a replica that has just come back beside one with six.
async fn after_a_comeback(policy: &str, window: &str) -> usize {
    let (back_at, other) = (lease(), Engine::start().await);
    let config = format!("  slow_start: {{ window: {window} }}\nrouting: {{ policy: {policy} }}");
    let start = Start { upstreams: &[back_at, other.addr], config: &config, ..Start::default() };
    let ramjet = Ramjet::start_with(start).await;
    says(&ramjet, "degraded").await;
    let mut open = Vec::new();
    for salt in 0..6 {
        open.push(hang(&ramjet, &[&other], salt).await);
    }
    let back = Engine::start_at(back_at).await;
    says(&ramjet, "ok").await;
    for salt in 6..12 {
        open.push(hang(&ramjet, &[&other, &back], salt).await);
    }
    back.seen().len()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_has_come_back_gets_its_share_at_once_and_no_flood() {
    for policy in ["load", "affinity", "cost"] {
        assert_eq!(after_a_comeback(policy, "0ms").await, 6, "{policy}: it is idle, the other is not");
        assert_eq!(after_a_comeback(policy, "1h").await, 1, "{policy}");
    }
}
