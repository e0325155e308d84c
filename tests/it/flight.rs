//! Requests that share a new prefix meet where it is read, and wait for that if they are told to; whoever fails or leaves
//! meanwhile takes nobody along.

use crate::support::client::{self, H1};
use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start};
use crate::support::{chat_body, until};
use std::collections::HashSet;

/// A stream whose prompt is read and which then ends.
const SHORT: &str = "sse=data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\\n\\n|data: [DONE]\\n\\n";

/// A streamed question about one long new text.
fn question(number: usize) -> Vec<u8> {
    let text = String::from_utf8(chat_body(200 << 10, "\"stream\":true,")).unwrap();
    text.replace("\"}]}", &format!("\"}},{{\"role\":\"user\",\"content\":\"question {number}\"}}]}}")).into_bytes()
}

async fn fleet(config: &str) -> ([Engine; 3], Ramjet) {
    let engines = [Engine::start().await, Engine::start().await, Engine::start().await];
    let upstreams = engines.each_ref().map(|e| e.addr);
    let ramjet = Ramjet::start_with(Start { upstreams: &upstreams, config, ..Start::default() }).await;
    (engines, ramjet)
}

/// Requests that the engines have seen, engine by engine.
fn seen(engines: &[Engine; 3]) -> [usize; 3] {
    engines.each_ref().map(|e| e.seen().len())
}

fn total(engines: &[Engine; 3]) -> usize {
    seen(engines).iter().sum()
}

/// What became of requests that share a new prefix.
async fn outcome(ramjet: &Ramjet, label: &str) -> f64 {
    let series = ramjet.series("ramjet_single_flight_total").await;
    series.into_iter().find(|(l, _)| l.contains(&format!("\"{label}\""))).unwrap().1
}

/// A leader that plays `play` and is at its engine, then `count` followers.
async fn burst(ramjet: &Ramjet, engines: &[Engine; 3], play: &str, count: usize) -> (H1, Vec<H1>) {
    let leader = client::begin_chat(ramjet.api, play, &question(0)).await.unwrap();
    until("the leader is at its engine", || async { total(engines) == 1 }).await;
    let mut followers = Vec::new();
    for number in 1..=count {
        followers.push(client::begin_chat(ramjet.api, SHORT, &question(number)).await.unwrap());
    }
    (leader, followers)
}

async fn all_answered(followers: &mut [H1]) {
    for follower in followers {
        assert_eq!(follower.answer().await.unwrap().status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_meets_on_one_replica() {
    for policy in ["cost", "affinity"] {
        let (engines, ramjet) = fleet(&format!("routing: {{ policy: {policy} }}")).await;
        let burst: Vec<_> = (0..10)
            .map(|number| {
                let api = ramjet.api;
                tokio::spawn(async move { client::begin_chat(api, "prefill", &question(number)).await.unwrap() })
            })
            .collect();
        until("all ten are there", || async { total(&engines) == 10 }).await;
        assert!(seen(&engines).contains(&10), "{policy}: {:?}", seen(&engines));
        assert_eq!((outcome(&ramjet, "leader").await, outcome(&ramjet, "follower").await), (1.0, 9.0), "{policy}");
        for one in burst {
            drop(one.await.unwrap());
        }
        ramjet.settled().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_it_a_burst_goes_where_there_is_least_to_do() {
    for (mode, moved) in [("off", 0.0), ("shadow", 2.0)] {
        let (engines, ramjet) = fleet(&format!("routing: {{ policy: cost, single_flight: {{ mode: {mode} }} }}")).await;
        let mut held = Vec::new();
        for number in 0..3 {
            held.push(client::begin_chat(ramjet.api, "prefill", &question(number)).await.unwrap());
            until("it is at its engine", || async { total(&engines) == number + 1 }).await;
        }
        assert_eq!(seen(&engines), [1, 1, 1], "{mode}");
        assert_eq!(outcome(&ramjet, "would_move").await, moved, "{mode}");
        assert_eq!(outcome(&ramjet, "follower").await, 0.0, "{mode}");
        drop(held);
        ramjet.settled().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overloaded_leader_is_not_joined() {
    let (engines, ramjet) = fleet("routing: { policy: cost }").await;
    let (leader, followers) = burst(&ramjet, &engines, "prefill", 0).await;
    let home = seen(&engines).iter().position(|n| *n == 1).unwrap();
    // they join one after another, until one finds that it waits less elsewhere
    let mut others = Vec::new();
    for number in 0..200 {
        if total(&engines) - seen(&engines)[home] > 0 {
            break;
        }
        let before = total(&engines);
        others.push(client::begin_chat(ramjet.api, "prefill", &question(number)).await.unwrap());
        until("it is at its engine", || async { total(&engines) == before + 1 }).await;
    }
    let spread = seen(&engines);
    assert!(spread[home] > 5 && spread.iter().sum::<usize>() > spread[home], "{spread:?}");
    assert_eq!(outcome(&ramjet, "apart").await, 1.0);
    drop((leader, followers, others));
    ramjet.settled().await;
}

const HOLD: &str = "routing: { policy: cost, single_flight: { mode: hold, max_hold: 5m } }";

#[tokio::test(flavor = "multi_thread")]
async fn held_followers_reach_the_engine_after_the_first_token() {
    for policy in ["cost", "affinity"] {
        let (engines, ramjet) = fleet(&HOLD.replace("cost", policy)).await;
        let (leader, mut followers) = burst(&ramjet, &engines, "on-call", 9).await;
        until("all are held", || async { outcome(&ramjet, "held").await == 9.0 }).await;
        assert_eq!(total(&engines), 1, "{policy}");
        assert_eq!(ramjet.metric("ramjet_upstream_inflight").await, 10.0, "who waits counts as load");
        let home = engines.iter().find(|e| !e.seen().is_empty()).unwrap();
        home.call();
        all_answered(&mut followers).await;
        assert_eq!(home.seen().len(), 10, "{policy}: {:?}", seen(&engines));
        assert_eq!((outcome(&ramjet, "released").await, outcome(&ramjet, "timed_out").await), (9.0, 0.0));
        drop(leader);
        ramjet.settled().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_engine_holds_nobody_longer_than_max_hold() {
    let (engines, ramjet) = fleet(&HOLD.replace("5m", "300ms")).await;
    let (leader, mut followers) = burst(&ramjet, &engines, "prefill", 3).await;
    all_answered(&mut followers).await;
    assert_eq!(outcome(&ramjet, "timed_out").await, 3.0);
    assert_eq!(outcome(&ramjet, "released").await, 0.0);
    let home = engines.iter().find(|e| e.seen().len() == 4);
    assert!(home.is_some(), "{:?}", seen(&engines));
    drop(leader);
    ramjet.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_fails_or_leaves_is_followed_by_another() {
    for leaves in [false, true] {
        let (engines, ramjet) = fleet(HOLD).await;
        let play = if leaves { "prefill" } else { "on-call-fail" };
        let (leader, mut followers) = burst(&ramjet, &engines, play, 6).await;
        until("all are held", || async { outcome(&ramjet, "held").await == 6.0 }).await;
        assert_eq!(total(&engines), 1);
        if leaves {
            drop(leader);
        } else {
            engines.iter().find(|e| !e.seen().is_empty()).unwrap().call();
            let mut leader = leader;
            assert_eq!(leader.answer().await.unwrap().status, 400);
        }
        all_answered(&mut followers).await;
        assert!(outcome(&ramjet, "leader_failed").await >= 6.0);
        assert_eq!(outcome(&ramjet, "timed_out").await, 0.0);
        drop(followers);
        ramjet.settled().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_while_it_is_held_leaves_nothing_behind() {
    let (engines, ramjet) = fleet(HOLD).await;
    let (leader, followers) = burst(&ramjet, &engines, "on-call", 4).await;
    until("all are held", || async { outcome(&ramjet, "held").await == 4.0 }).await;
    drop(followers);
    until("the held ones are gone", || async { ramjet.metric("ramjet_upstream_inflight").await == 1.0 }).await;
    until("and counted", || async { ramjet.metric("ramjet_requests_inflight").await == 1.0 }).await;
    assert_eq!(outcome(&ramjet, "client_left").await, 4.0);
    assert_eq!(ramjet.metric("ramjet_client_disconnects_total").await, 4.0);
    assert_eq!(total(&engines), 1, "no engine heard of them");
    drop(leader);
    ramjet.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waves_of_failing_and_leaving_requests_all_end() {
    let (engines, ramjet) = fleet(HOLD).await;
    let plays = [SHORT, "status=400", SHORT, "drop", SHORT, "prefill"];
    for wave in 0..4 {
        let all: Vec<_> = (0..30)
            .map(|number| {
                let (api, play) = (ramjet.api, plays[(number + wave) % plays.len()]);
                let body = String::from_utf8(question(number)).unwrap().replacen("user", &format!("user{wave}"), 1);
                tokio::spawn(async move {
                    let mut h1 = client::begin_chat(api, play, body.as_bytes()).await.unwrap();
                    // a silent engine never answers: such a client leaves
                    let patience = if play == "prefill" { 50 } else { 30_000 };
                    let answer = tokio::time::timeout(std::time::Duration::from_millis(patience), h1.answer());
                    assert!(answer.await.is_ok() || play == "prefill", "{play}");
                })
            })
            .collect();
        for one in all {
            one.await.unwrap();
        }
        ramjet.settled().await;
    }
    assert!(outcome(&ramjet, "held").await > 0.0);
    let homes: HashSet<bool> = seen(&engines).iter().map(|n| *n > 0).collect();
    assert!(homes.contains(&true));
}
