//! Replicas that fail everything at once, or turn everything away, look idle and draw traffic: who was failed there does not
//! come back, and everybody else finds out soon.

use crate::support::client::{self, Answer, get};
use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start};
use crate::support::{chat_body, until};

const NO_PROBES: &str = "  generation: { mode: off }\n  errors: { mode: off }\n";

async fn pair(config: &str) -> ([Engine; 2], Ramjet) {
    let engines = [Engine::start().await, Engine::start().await];
    let upstreams = engines.each_ref().map(|e| e.addr);
    let ramjet = Ramjet::start_with(Start { upstreams: &upstreams, config, ..Start::default() }).await;
    (engines, ramjet)
}

fn place(answer: &Answer) -> usize {
    answer.header("x-ramjet-upstream").unwrap().parse().unwrap()
}

/// A conversation: after each question of a letter comes an answer.
fn talk(about: char, turns: usize) -> Vec<u8> {
    let said = |n: usize| format!(r#"{{"role":"user","content":"{n} {}"}}"#, about.to_string().repeat(20_000));
    let messages: Vec<_> = (0..turns).map(said).collect();
    let messages = messages.join(r#",{"role":"assistant","content":"I have thought about that."},"#);
    format!(r#"{{"model":"m","messages":[{messages}]}}"#).into_bytes()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_loses_one_request_to_a_replica_that_fails_everything() {
    let (engines, ramjet) = pair(NO_PROBES).await;
    let at = place(&client::chat(ramjet.api, "", &talk('a', 1)).await.unwrap());
    let other = 1 - at;
    engines[at].script(&["status=500"; 9]);
    let failed = client::chat(ramjet.api, "", &talk('a', 2)).await.unwrap();
    assert_eq!((failed.status, place(&failed)), (500, at));
    // the same turn once more, and the next one, though all of the session is warm there and nothing fences it
    for turns in [2, 3] {
        let answer = client::chat(ramjet.api, "", &talk('a', turns)).await.unwrap();
        assert_eq!((answer.status, place(&answer)), (200, other), "{turns}");
    }
    assert_eq!(engines[at].seen().len(), 2);
    let reasons = ramjet.series("ramjet_route_decisions_total").await;
    assert!(reasons.iter().any(|(l, n)| l.contains("setback") && *n >= 1.0), "{reasons:?}");
    assert!(get(ramjet.api, "/health").await.unwrap().json()["status"] == "ok");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_every_engine_fails_visits_two_and_moves_nobody_else() {
    let engines = [Engine::start().await, Engine::start().await, Engine::start().await];
    let upstreams = engines.each_ref().map(|e| e.addr);
    let ramjet = Ramjet::start_with(Start { upstreams: &upstreams, config: NO_PROBES, ..Start::default() }).await;
    // warm at one of them, so that nothing but setbacks moves it
    client::chat(ramjet.api, "", &talk('a', 1)).await.unwrap();
    let mut visited = std::collections::BTreeSet::new();
    for _ in 0..9 {
        let answer = client::chat(ramjet.api, "status=500", &talk('a', 2)).await.unwrap();
        assert_eq!(answer.status, 500);
        visited.insert(place(&answer));
    }
    assert_eq!(visited.len(), 2);
    let first = place(&client::chat(ramjet.api, "", &talk('b', 1)).await.unwrap());
    for turns in 2..6 {
        assert_eq!(place(&client::chat(ramjet.api, "", &talk('b', turns)).await.unwrap()), first);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_fails_everything_is_fenced_after_one_request_and_two_probes() {
    let config = "  generation: { interval: 1h }\n  errors: { mode: off }\nrouting: { policy: round_robin }";
    let (engines, ramjet) = pair(config).await;
    until("the first probes", || async { engines.iter().all(|e| e.generations().len() == 1) }).await;
    let fence = || async {
        get(ramjet.api, "/health").await.unwrap().json()["replicas"][0]["fence"].as_str().map(str::to_owned)
    };
    // one request may fail by itself: the engine is asked, and generates
    engines[0].script(&["status=500"]);
    for n in 0..2 {
        client::chat(ramjet.api, "", &chat_body(500 + n, "")).await.unwrap();
    }
    until("asked at once", || async { engines[0].generations().len() >= 2 }).await;
    assert_eq!(fence().await, None);
    engines[0].generates("status=500");
    engines[0].script(&["status=500"]);
    for n in 0..2 {
        client::chat(ramjet.api, "", &chat_body(600 + n, "")).await.unwrap();
    }
    until("fenced", || async { fence().await.as_deref() == Some("generation") }).await;
    assert!(engines[0].generations().len() >= 4 && engines[1].generations().len() == 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_turns_everything_away_is_no_magnet_and_not_fenced() {
    for refusal in ["status=429", "busy", "status=503"] {
        let config = format!("{NO_PROBES}routing: {{ policy: load }}\nretry: {{ attempts: 1 }}");
        let (engines, ramjet) = pair(&config).await;
        // it refuses everything and has nothing to do; the other one is busy
        engines[0].script(&[refusal; 99]);
        let mut open = Vec::new();
        while engines[1].seen().len() < 2 {
            open.push(client::begin_chat(ramjet.api, "decode", &chat_body(500, "\"stream\":true,")).await.unwrap());
            let seen = || engines.iter().map(|e| e.seen().len()).sum::<usize>();
            until("it is somewhere", || async { seen() >= open.len() }).await;
        }
        let mut refused = 0;
        for n in 0..40 {
            let answer = client::chat(ramjet.api, "", &chat_body(600 + n, "")).await.unwrap();
            refused += usize::from(answer.status != 200);
        }
        assert!(refused <= 8, "{refusal}: {refused} of 40");
        assert_eq!(get(ramjet.api, "/health").await.unwrap().json()["status"], "ok");
        drop(open);
    }
}

/// How much of a prompt is believed to be held where it goes.
async fn overlap(ramjet: &Ramjet, body: &[u8]) -> String {
    let mut h1 = client::H1::connect(ramjet.api).await.unwrap();
    let head = client::chat_head(&format!("x-ramjet-explain: 1\r\ncontent-length: {}\r\n", body.len()));
    h1.send(&[head.as_bytes(), body].concat()).await;
    let answer = h1.answer().await.unwrap();
    let decision = answer.header("x-ramjet-decision").unwrap();
    decision.split("; ").find(|part| part.starts_with("overlap=")).unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_restarts_between_two_probes_counts_as_empty() {
    for (running, held) in [(2, "overlap=9/9"), (4, "overlap=0/9")] {
        let engine = Engine::start().await;
        let addr = engine.addr;
        let start = Start { upstreams: &[addr], probe_every: "1h", config: NO_PROBES, ..Start::default() };
        let ramjet = Ramjet::start_with(start).await;
        client::chat(ramjet.api, "", &talk('a', 1)).await.unwrap();
        let mut open = Vec::new();
        for about in ['b', 'c', 'd', 'e'].into_iter().take(running) {
            open.push(client::begin_chat(ramjet.api, "prefill", &talk(about, 1)).await.unwrap());
        }
        until("all are there", || async { engine.seen().len() == 1 + running }).await;
        engine.stop().await;
        for mut one in open {
            assert_ne!(one.answer().await.map_or(0, |answer| answer.status), 200);
        }
        let _back = Engine::start_at(addr).await;
        // one or two may break off for reasons of their own
        assert_eq!(overlap(&ramjet, &talk('a', 1)).await, held, "{running}");
    }
}
