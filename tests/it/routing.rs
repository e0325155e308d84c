//! Conversations stay where their prefix is, new ones spread, and models find the replicas that serve them.

use crate::support::client;
use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start};
use crate::support::until;

/// The body of one turn of a conversation whose text is `words` repeated.
fn turn(speaker: usize, turns: usize) -> Vec<u8> {
    let messages: Vec<String> = (0..=turns)
        .map(|n| {
            let text = format!("speaker {speaker} says thing {n}; ").repeat(200);
            format!(r#"{{"role":"user","content":"{text}"}}"#)
        })
        .collect();
    format!(r#"{{"model":"m","messages":[{}]}}"#, messages.join(",")).into_bytes()
}

async fn ordinal(ramjet: &Ramjet, body: &[u8]) -> String {
    let answer = client::chat(ramjet.api, "", body).await.unwrap();
    assert_eq!(answer.status, 200);
    answer.header("x-ramjet-upstream").unwrap().to_owned()
}

/// Four conversations in turn: each stays on its replica, and each of two replicas has two.
async fn four_conversations_stay_and_spread(ramjet: &Ramjet, turns: std::ops::Range<usize>) {
    let mut homes: Vec<String> = Vec::new();
    for turns in turns {
        for speaker in 0..4 {
            let at = ordinal(ramjet, &turn(speaker, turns)).await;
            match homes.get(speaker) {
                None => homes.push(at),
                Some(home) => assert_eq!(&at, home, "speaker {speaker}, turn {turns}"),
            }
        }
    }
    assert_eq!(homes.iter().filter(|h| *h == "0").count(), 2, "{homes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn interleaved_conversations_each_stay_on_their_replica() {
    for config in ["", "routing: { policy: affinity }"] {
        let (a, b) = (Engine::start().await, Engine::start().await);
        let ramjet = Ramjet::start_with(Start { upstreams: &[a.addr, b.addr], config, ..Start::default() }).await;
        four_conversations_stay_and_spread(&ramjet, 0..6).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_prompt_is_not_believed_to_be_held() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let ramjet = Ramjet::start(&[a.addr, b.addr]).await;
    let body = turn(1, 3);
    let refused = client::chat(ramjet.api, "status=400", &body).await.unwrap();
    assert_eq!(refused.status, 400);
    ramjet.settled().await;
    assert_eq!(ramjet.metric("ramjet_prefix_index_blocks").await, 0.0);
    ordinal(&ramjet, &body).await;
    ramjet.settled().await;
    assert!(ramjet.metric("ramjet_prefix_index_blocks").await > 5.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_goes_to_the_replicas_that_serve_it_and_an_unknown_one_is_a_clean_404() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    // one replica by file, the lists by hand
    let fleet = [
        format!("{{ url: \"http://{}\", models: [m] }}", a.addr),
        format!("{{ url: \"http://{}\", models: [n] }}", b.addr),
    ];
    let ramjet = Ramjet::start_with(Start { replicas: &fleet, ..Start::default() }).await;
    for _ in 0..4 {
        assert_eq!(ordinal(&ramjet, br#"{"model":"m","messages":[]}"#).await, "0");
        assert_eq!(ordinal(&ramjet, br#"{"model":"n","messages":[]}"#).await, "1");
    }
    let unknown = client::chat(ramjet.api, "", br#"{"model":"x","messages":[]}"#).await.unwrap();
    assert_eq!((unknown.status, unknown.header("x-ramjet-error")), (404, Some("model_not_found")));
    assert_eq!(unknown.json()["error"]["param"], "model");
    assert_eq!(a.seen().len() + b.seen().len(), 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_load_policy_does_not_follow_the_prefix() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let config = "routing: { policy: load }";
    let ramjet = Ramjet::start_with(Start { upstreams: &[a.addr, b.addr], config, ..Start::default() }).await;
    for turns in 0..6 {
        ordinal(&ramjet, &turn(0, turns)).await;
    }
    assert_eq!((a.seen().len(), b.seen().len()), (3, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_prompts_that_arrive_together_meet_on_one_replica() {
    let engines = [Engine::start().await, Engine::start().await, Engine::start().await];
    let ramjet = Ramjet::start(&engines.each_ref().map(|e| e.addr)).await;
    let body = std::sync::Arc::new(turn(7, 30));
    let api = ramjet.api;
    let together: Vec<_> = (0..3)
        .map(|_| {
            let body = body.clone();
            tokio::spawn(async move { client::chat(api, "on-call-ok", &body).await.unwrap() })
        })
        .collect();
    // all have been placed before one is answered
    until("all there", || async { engines.iter().map(|e| e.seen().len()).sum::<usize>() == 3 }).await;
    engines.iter().for_each(Engine::call);
    let mut homes = std::collections::HashSet::new();
    for one in together {
        homes.insert(one.await.unwrap().header("x-ramjet-upstream").unwrap().to_owned());
    }
    assert_eq!(homes.len(), 1, "{homes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_denies_what_it_should_hold_gets_no_credit_for_it() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let ramjet = Ramjet::start(&[a.addr, b.addr]).await;
    let usage = |cached| {
        format!(
            "json={{\"usage\":{{\"prompt_tokens\":9000,\"completion_tokens\":1,\
             \"prompt_tokens_details\":{{\"cached_tokens\":{cached}}}}}}}"
        )
    };
    let cold = || async {
        let reasons = ramjet.series("ramjet_route_decisions_total").await;
        reasons.iter().find(|(l, _)| l.contains("cold")).unwrap().1
    };
    // two conversations, one on each replica, served from the cache as predicted
    for turns in 3..6 {
        for speaker in [1, 2] {
            client::chat(ramjet.api, &usage(8000), &turn(speaker, turns)).await.unwrap();
        }
    }
    assert_eq!(cold().await, 2.0);
    // one replica's cache is emptied: it denies three times what it should hold
    for turns in 6..9 {
        client::chat(ramjet.api, &usage(0), &turn(1, turns)).await.unwrap();
    }
    ramjet.settled().await;
    // the conversation itself is held again, and the other replica is still believed
    client::chat(ramjet.api, &usage(8000), &turn(1, 9)).await.unwrap();
    client::chat(ramjet.api, &usage(8000), &turn(2, 9)).await.unwrap();
    assert_eq!(cold().await, 2.0);
    assert!(ramjet.metric("ramjet_predicted_cached_prompt_tokens_total").await > 8000.0);
}

/// Two conversations in turn at one engine; returns how many cached tokens were predicted in all.
async fn predicted_of_a_conversation_that_was_crowded_out(metrics: &str) -> f64 {
    let engine = Engine::start().await;
    // it is still loading
    engine.shows("/metrics", 503, "");
    let start = Start { upstreams: &[engine.addr], probe_every: "100ms", ..Start::default() };
    let ramjet = Ramjet::start_with(start).await;
    until("the capacity to be asked for", || async { engine.metrics_asked() > 0 }).await;
    engine.measures(metrics);
    let asked = engine.metrics_asked();
    until("it to be asked for again", || async { engine.metrics_asked() > asked }).await;
    until("the capacity to be asked for", || async { engine.metrics_asked() > 0 }).await;
    // the next probe follows when the answer is taken in
    let probes = engine.probes();
    until("another probe", || async { engine.probes() > probes }).await;
    let usage = "json={\"usage\":{\"prompt_tokens\":5800,\"completion_tokens\":1,\"prompt_tokens_details\":{\"cached_tokens\":0}}}";
    for speaker in [1, 2, 1] {
        client::chat(ramjet.api, usage, &turn(speaker, 3)).await.unwrap();
    }
    ramjet.settled().await;
    ramjet.metric("ramjet_predicted_cached_prompt_tokens_total").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cache_of_known_size_gets_no_credit_for_what_it_cannot_hold() {
    let told = "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"375\"} 1.0\n";
    let unknown = predicted_of_a_conversation_that_was_crowded_out("").await;
    let known = predicted_of_a_conversation_that_was_crowded_out(told).await;
    assert!(unknown > 4000.0 && known < 2000.0, "{unknown} {known}");
}
