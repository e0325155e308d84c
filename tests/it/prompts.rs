//! What became of every prompt token, model by model, and what taking turns would have found.

use crate::support::client::{self, H1, chat_head};
use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start};
use crate::support::{chat_body, until};
use serde_json::Value;

/// A streamed answer that reports 10,000 prompt tokens, of which `cached` came from the cache.
fn reports(cached: u64) -> String {
    let token = r#"data: {"choices":[{"delta":{"content":"x"}}]}\n\n"#;
    let usage = format!(
        r#"{{"prompt_tokens":10000,"completion_tokens":5,"prompt_tokens_details":{{"cached_tokens":{cached}}}}}"#
    );
    format!(r#"sse={token}|data: {{"choices":[],"usage":{usage}}}\n\n|data: [DONE]\n\n"#)
}

async fn ask(ramjet: &Ramjet, play: &str, body: &[u8]) {
    let mut h1 = H1::connect(ramjet.api).await.unwrap();
    h1.send(chat_head(&format!("x-play: {play}\r\ncontent-length: {}\r\n", body.len())).as_bytes()).await;
    h1.send(body).await;
    h1.answer().await.unwrap();
}

/// The page once it tells of so many answers of the only model.
async fn page(ramjet: &Ramjet, requests: u64) -> Value {
    let get = || async { client::get(ramjet.admin, "/api/prompts").await.unwrap().json() };
    until("all are told of", || async { get().await["models"][0]["requests"].as_u64() == Some(requests) }).await;
    get().await
}

fn tokens(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no whole number: {value}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_token_is_in_one_account_of_its_model_and_what_turns_would_have_found_follows_the_formula() {
    let engines = [Engine::start().await, Engine::start().await, Engine::start().await, Engine::start().await];
    let replicas = engines.each_ref().map(|e| format!("{{ url: \"http://{}\", models: [m] }}", e.addr));
    let ramjet = Ramjet::start_with(Start { replicas: &replicas, ..Start::default() }).await;
    assert_eq!(client::get(ramjet.admin, "/api/prompts").await.unwrap().json()["models"], serde_json::json!([]));
    let body = chat_body(40_000, "");
    // never seen; then with one and with two before it, each at any of four
    let mut by_turns = 0.0;
    for (n, cached) in [(1u64, 0u64), (2, 9_900), (3, 9_900)] {
        ask(&ramjet, &reports(cached), &body).await;
        let told = page(&ramjet, n).await;
        let model = &told["models"][0];
        assert_eq!(model["model"], "m");
        let uncached = &model["uncached"];
        let read: u64 =
            ["new", "routing", "evicted", "volatile"].iter().map(|account| tokens(&uncached[account])).sum();
        assert_eq!(read + tokens(&model["cached_tokens"]), 10_000 * n, "{told}");
        assert_eq!(tokens(&model["prompt_tokens"]), 10_000 * n);
        by_turns += 9_900.0 * (1.0 - 0.75f64.powi(i32::try_from(n).unwrap() - 1));
        let estimate = tokens(&model["round_robin_cached_tokens"]) as f64;
        assert!((estimate - by_turns).abs() < 2.0, "{estimate} {by_turns}");
        let saved = tokens(&model["saved_tokens"]) as f64;
        assert!((saved - (tokens(&model["cached_tokens"]) as f64 - estimate)).abs() <= 1.0, "{told}");
    }
    let series = ramjet.series("ramjet_model_prompt_tokens_total").await;
    let (own, others): (Vec<_>, Vec<_>) = series.iter().partition(|(labels, _)| labels.contains(r#"model="m""#));
    assert_eq!((own.len(), own.iter().map(|(_, n)| n).sum::<f64>()), (5, 30_000.0), "{series:?}");
    assert!(others.iter().all(|(labels, n)| labels.contains(r#"model="other""#) && *n == 0.0), "{series:?}");
    // an answer that does not tell is in no account
    ask(&ramjet, "", &body).await;
    ramjet.settled().await;
    assert_eq!(tokens(&page(&ramjet, 3).await["models"][0]["prompt_tokens"]), 30_000);
    let other = client::post(ramjet.admin, "/api/prompts", "", "").await.unwrap();
    assert_eq!(other.status, 405);
}
