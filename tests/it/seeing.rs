//! Why a request went where it went, and what came of it: told afterwards, to whoever may know, and true.

use crate::support::client::{self, Answer, H1, chat_head};
use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start, command, lease};
use crate::support::{chat_body, until};
use serde_json::Value;
use std::net::SocketAddr;

/// A body whose prompt is about 10,000 tokens, at four bytes a token.
const LONG: usize = 40_000;

/// A streamed answer that reports `prompt` tokens, of which `cached` came from the cache.
fn reports(prompt: u64, cached: u64) -> String {
    let token = r#"data: {"choices":[{"delta":{"content":"x"}}]}\n\n"#;
    let usage = format!(
        r#"{{"prompt_tokens":{prompt},"completion_tokens":5,"prompt_tokens_details":{{"cached_tokens":{cached}}}}}"#
    );
    format!(r#"sse={token}|data: {{"choices":[],"usage":{usage}}}\n\n|data: [DONE]\n\n"#)
}

/// A chat request with further header lines.
async fn ask(ramjet: &Ramjet, fields: &str, play: &str, body: &[u8]) -> Answer {
    let mut h1 = H1::connect(ramjet.api).await.unwrap();
    let length = body.len();
    h1.send(chat_head(&format!("x-play: {play}\r\n{fields}content-length: {length}\r\n")).as_bytes()).await;
    h1.send(body).await;
    h1.answer().await.unwrap()
}

fn id_of(answer: &Answer) -> String {
    answer.header("x-ramjet-request-id").unwrap().to_owned()
}

/// The explanation of a request that has ended.
async fn explained(ramjet: &Ramjet, id: &str) -> Value {
    let path = format!("/api/explain/{id}");
    until("the request has ended", || async {
        client::get(ramjet.admin, &path).await.unwrap().json()["state"] == "ended"
    })
    .await;
    client::get(ramjet.admin, &path).await.unwrap().json()
}

/// The same for a reader.
async fn in_words(ramjet: &Ramjet, id: &str) -> String {
    let mut h1 = H1::connect(ramjet.admin).await.unwrap();
    h1.send(format!("GET /api/explain/{id} HTTP/1.1\r\nhost: localhost\r\naccept: text/plain\r\n\r\n").as_bytes())
        .await;
    String::from_utf8(h1.answer().await.unwrap().body).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))
}

fn is_near(a: f64, b: f64) -> bool {
    (a - b).abs() < 0.01
}

#[tokio::test(flavor = "multi_thread")]
async fn an_explanation_names_the_replica_that_answered_and_its_terms_add_up() {
    for policy in ["cost", "affinity"] {
        let engines = [Engine::start().await, Engine::start().await];
        let config = format!("routing: {{ policy: {policy} }}");
        let upstreams = engines.each_ref().map(|e| e.addr);
        let ramjet = Ramjet::start_with(Start { upstreams: &upstreams, config: &config, ..Start::default() }).await;
        let body = chat_body(LONG, "");
        ask(&ramjet, "", &reports(10_000, 0), &body).await;
        let answer = ask(&ramjet, "", &reports(10_000, 9_900), &body).await;
        let told = explained(&ramjet, &id_of(&answer)).await;

        let at: usize = answer.header("x-ramjet-upstream").unwrap().parse().unwrap();
        let name = upstreams[at].to_string();
        assert_eq!((&told["replica"], &told["ended"]["replica"]), (&name.as_str().into(), &name.as_str().into()));
        assert_eq!((told["reason"].as_str(), told["endpoint"].as_str()), (Some("affinity"), Some("chat_completions")));
        assert_eq!((&told["ended"]["status"], &told["ended"]["word"]), (&200.into(), &"ok".into()));
        assert_eq!((&told["ended"]["cached_tokens"], &told["ended"]["attempts"]), (&9_900.into(), &1.into()));
        assert!(number(&told["expected"]["cached_tokens"]) > 8_000.0 && number(&told["ended"]["ttft_ms"]) > 0.0);
        let candidates = told["candidates"].as_array().unwrap();
        assert_eq!((candidates.len(), &candidates[0]["ordinal"]), (2, &at.into()), "{told}");
        for candidate in candidates {
            let price = &candidate["price_ms"];
            let terms: f64 = ["queue", "prefill", "decode", "imposed", "coming", "evicted", "later"]
                .map(|t| number(&price[t]))
                .iter()
                .sum();
            assert!(is_near(terms, number(&price["total"])), "{candidate}");
            let score = number(&candidate["score"]);
            match policy {
                "cost" => assert!(is_near(score, -terms), "{candidate}"),
                _ => {
                    let affinity = &candidate["affinity"];
                    let made = number(&affinity["credit_blocks"]) - number(&affinity["load_blocks"]);
                    assert!(is_near(score, made), "{candidate}");
                }
            }
        }
        assert!(number(&candidates[0]["score"]) > number(&candidates[1]["score"]));
        assert!(number(&candidates[0]["held_tokens"]) > number(&candidates[1]["held_tokens"]));

        let words = in_words(&ramjet, &id_of(&answer)).await;
        let head = match policy {
            "cost" => "held queue prefill decode imposed coming evicted later total",
            _ => "held overlap credit load score",
        };
        let rows: Vec<String> = words.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert!(rows.contains(&format!("replica {head}")), "{words}");
        assert!(rows.iter().any(|row| row.starts_with(&format!("> {name} "))), "{words}");
        assert!(words.contains("it holds as much of the prompt as any candidate"), "{words}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_prints_it_in_words_and_says_what_is_wrong() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let ramjet = Ramjet::start(&[a.addr, b.addr]).await;
    let answer = ask(&ramjet, "", &reports(10_000, 0), &chat_body(LONG, "")).await;
    let id = id_of(&answer);
    let told = explained(&ramjet, &id).await;
    let admin = ramjet.admin.to_string();
    let run = |id: &str, admin: &str| {
        let out = command().args(["explain", id, "--admin", admin]).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (out.status.code().unwrap(), text(out.stdout), text(out.stderr))
    };
    let (code, page, errors) = run(&id, &admin);
    assert_eq!((code, errors.as_str()), (0, ""));
    let marked = format!("> {}", told["replica"].as_str().unwrap());
    for part in [&id, &marked, "nobody holds any of the prompt", "status 200", "10000 prompt, 0 cached", "10000 new"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let nobody = lease().to_string();
    for (id, admin, code, said) in [
        ("0123456789abcdef", &admin, 1, "not among the last decisions"),
        ("../../metrics", &admin, 64, "no request id"),
        (id.as_str(), &nobody, 69, "cannot ask"),
        (id.as_str(), &ramjet.api.to_string(), 69, "does not answer like the admin listener"),
    ] {
        let (found, page, errors) = run(id, admin);
        assert_eq!((found, page.as_str(), errors.trim_end().lines().count()), (code, "", 1), "{errors}");
        assert!(errors.contains(said), "{errors}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answer_tells_only_who_asks_and_the_question_goes_no_further() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let ramjet = Ramjet::start(&[a.addr, b.addr]).await;
    let body = chat_body(LONG, "");
    for fields in ["", "x-ramjet-explain: 0\r\n"] {
        assert_eq!(ask(&ramjet, fields, "", &body).await.header("x-ramjet-decision"), None, "{fields}");
    }
    // an engine's own word for it is not ours
    let other = r"raw=HTTP/1.1 200 X\r\nx-ramjet-decision: engine\r\ncontent-length: 0\r\n\r\n";
    assert_eq!(ask(&ramjet, "", other, &body).await.header("x-ramjet-decision"), None);
    let answer = ask(&ramjet, "X-Ramjet-Explain: 1\r\n", "", &body).await;
    let told = answer.header("x-ramjet-decision").unwrap();
    assert!(told.starts_with("affinity; overlap=19/19; cached_tokens="), "{told}");
    assert!(told.contains("; ttft_ms=") && told.contains("; candidates=2"), "{told}");
    assert!(!told.contains("127.0.0.1"), "{told}");
    let seen = [a.seen(), b.seen()].concat();
    assert!(seen.len() == 4 && seen.iter().all(|s| s.header("x-ramjet-explain").is_none()));
    // an error of ramjet's own tells it too
    let lost = ask(&ramjet, "x-ramjet-explain: 1\r\n", "drop", &body).await;
    assert_eq!(lost.status, 502);
    assert!(lost.header("x-ramjet-decision").unwrap().contains("; attempts=2"), "{}", lost.head);
}

/// The series of the accounts by name, and what was read altogether.
async fn accounts(ramjet: &Ramjet) -> (impl Fn(&str) -> f64, f64) {
    let series = ramjet.series("ramjet_uncached_prompt_tokens_total").await;
    let sum = series.iter().map(|(_, n)| n).sum();
    (move |name: &str| series.iter().find(|(labels, _)| labels.contains(&format!("\"{name}\""))).unwrap().1, sum)
}

async fn ended(ramjet: &Ramjet, requests: f64) {
    until("all have ended", || async { ramjet.metric("ramjet_requests_total").await >= requests }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_had_to_be_read_is_put_to_accounts_that_add_up() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    assert_eq!(accounts(&ramjet).await.1, 0.0, "all series are there from the start");
    let (body, other) = (chat_body(LONG, ""), chat_body(LONG, r#""tools":[{"type":"function"}],"#));
    let session = "x-session-id: s1\r\n";
    ask(&ramjet, session, &reports(10_000, 0), &body).await;
    ask(&ramjet, session, &reports(10_000, 9_900), &body).await;
    ended(&ramjet, 2.0).await;
    let (of, sum) = accounts(&ramjet).await;
    assert_eq!((of("new"), of("evicted"), of("routing"), of("volatile"), sum), (10_100.0, 0.0, 0.0, 0.0, 10_100.0));
    // it has lost it
    ask(&ramjet, session, &reports(10_000, 0), &body).await;
    ended(&ramjet, 3.0).await;
    let (of, sum) = accounts(&ramjet).await;
    assert!(of("evicted") > 8_000.0 && sum == 20_100.0, "{} of {sum}", of("evicted"));
    // the same session, another head
    ask(&ramjet, session, &reports(10_000, 0), &other).await;
    ended(&ramjet, 4.0).await;
    let (of, sum) = accounts(&ramjet).await;
    assert!(of("volatile") > 8_000.0 && sum == 30_100.0, "{} of {sum}", of("volatile"));
    // whoever does not say what was cached is not counted
    ask(&ramjet, session, "", &body).await;
    ended(&ramjet, 5.0).await;
    let (prompt, cached) =
        (ramjet.metric("ramjet_prompt_tokens_total").await, ramjet.metric("ramjet_cached_prompt_tokens_total").await);
    assert_eq!((accounts(&ramjet).await.1, prompt, cached), (30_100.0, 40_000.0, 9_900.0));
    assert_eq!(ramjet.metric("ramjet_saved_prompt_tokens_estimate_total").await, 0.0, "there is but one replica");
}

#[tokio::test(flavor = "multi_thread")]
async fn taking_turns_is_to_blame_for_what_another_replica_held_and_affinity_saves_it() {
    for (policy, routing, saved) in [("round_robin", true, false), ("affinity", false, true)] {
        let (a, b) = (Engine::start().await, Engine::start().await);
        let config = format!("routing: {{ policy: {policy} }}");
        let upstreams = [a.addr, b.addr];
        let ramjet = Ramjet::start_with(Start { upstreams: &upstreams, config: &config, ..Start::default() }).await;
        let body = chat_body(LONG, "");
        ask(&ramjet, "", &reports(10_000, 0), &body).await;
        let cached = if saved { 9_900 } else { 0 };
        ask(&ramjet, "", &reports(10_000, cached), &body).await;
        ended(&ramjet, 2.0).await;
        let (of, sum) = accounts(&ramjet).await;
        assert_eq!((of("routing") > 8_000.0, sum), (routing, 20_000.0 - cached as f64), "{policy}: {}", of("routing"));
        let estimate = ramjet.metric("ramjet_saved_prompt_tokens_estimate_total").await;
        let told = client::get(ramjet.admin, "/api/decisions").await.unwrap().json();
        assert_eq!((4_000.0..6_000.0).contains(&estimate), saved, "{policy}: {estimate} {told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_api_lists_decisions_and_the_fleet() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let ramjet = Ramjet::start(&[a.addr, b.addr]).await;
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(id_of(&ask(&ramjet, "", &reports(10_000, 5_000), &chat_body(LONG, "")).await));
    }
    explained(&ramjet, &ids[3]).await;
    let page = client::get(ramjet.admin, "/api/decisions?limit=3").await.unwrap().json();
    let listed: Vec<&str> = page["decisions"].as_array().unwrap().iter().map(|d| d["id"].as_str().unwrap()).collect();
    ids.reverse();
    assert_eq!(listed, ids[..3]);
    for (path, status) in [
        ("/api/decisions?limit=x", 400),
        ("/api/explain/0123456789abcdef", 404),
        ("/api/explain/7", 404),
        ("/api/explain/", 404),
        ("/api/nothing", 404),
    ] {
        let answer = client::get(ramjet.admin, path).await.unwrap();
        assert_eq!(answer.status, status, "{path}");
        assert!(answer.json()["error"]["message"].is_string(), "{path}");
    }
    let fleet = client::get(ramjet.admin, "/api/fleet").await.unwrap().json();
    let replicas = fleet["replicas"].as_array().unwrap();
    assert_eq!((fleet["health"].as_str(), replicas.len()), (Some("ok"), 2));
    let used = replicas.iter().find(|r| !r["hit_share"].is_null()).unwrap();
    assert!(
        is_near(number(&used["hit_share"]), 0.5) && used["state"] == "healthy" && used["in_flight"] == 0,
        "{fleet}"
    );
    assert!(number(&used["rates"]["prefill_tokens_per_s"]) > 0.0, "{fleet}");
}

#[tokio::test(flavor = "multi_thread")]
async fn elsewhere_than_on_loopback_the_admin_api_needs_the_token() {
    let engine = Engine::start().await;
    for token in [None, Some("t0ken")] {
        let admin = Some(SocketAddr::from(([0, 0, 0, 0], lease().port())));
        let (config, env) = match token {
            Some(token) => ("admin: { token_env: ADMIN_TOKEN }", &[("ADMIN_TOKEN", token)][..]),
            None => ("", &[][..]),
        };
        let ramjet =
            Ramjet::start_with(Start { upstreams: &[engine.addr], config, env, admin, ..Start::default() }).await;
        let id = id_of(&ask(&ramjet, "", "", &chat_body(500, "")).await);
        for path in ["/metrics", "/livez", "/readyz"] {
            assert_eq!(client::get(ramjet.admin, path).await.unwrap().status, 200, "{path}");
        }
        for path in ["/", "/api/fleet", "/api/decisions", &format!("/api/explain/{id}"), "/api/nothing"] {
            for (said, status) in
                [("", 401), ("authorization: Bearer wrong\r\n", 401), ("authorization: Bearer t0ken\r\n", 200)]
            {
                let mut h1 = H1::connect(ramjet.admin).await.unwrap();
                h1.send(format!("GET {path} HTTP/1.1\r\nhost: r\r\n{said}\r\n").as_bytes()).await;
                let answer = h1.answer().await.unwrap();
                let want = match (token, status) {
                    (None, _) => 403,
                    (_, 200) if path.ends_with("nothing") => 404,
                    _ => status,
                };
                assert_eq!(answer.status, want, "{path} {said}");
                let text = String::from_utf8(answer.body).unwrap();
                assert!(want == 200 || !text.contains(&engine.addr.to_string()), "{text}");
            }
        }
        let at = ramjet.admin.to_string();
        let explain = |more: &[&str]| {
            let mut command = command();
            command.args(["explain", &id, "--admin", &at]).args(more).env("T", "t0ken");
            command.output().unwrap().status.code()
        };
        assert_eq!(explain(&[]), Some(77));
        assert_eq!(explain(&["--token-env", "T"]), Some(if token.is_some() { 0 } else { 77 }));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dashboard_is_one_page_that_needs_nobody_else() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let answer = client::get(ramjet.admin, "/").await.unwrap();
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("text/html; charset=utf-8")));
    assert!(answer.header("content-security-policy").unwrap().starts_with("default-src 'none'"));
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    let page = String::from_utf8(answer.body).unwrap();
    assert!(page.starts_with("<!doctype html>"));
    // whatever it loads is its own; what its scripts load: see `watching`
    assert!(["http:", "https:", "innerHTML"].iter().all(|other| !page.contains(other)));
    let loaded = ["src=\"", "href=\""].into_iter().flat_map(|attribute| page.split(attribute).skip(1));
    let own = |target: &str| ["/page/", "#", "data:,"].iter().any(|own| target.starts_with(own));
    assert!(loaded.into_iter().all(own));
}

/// What the contract promises, and what else is counted.
const NAMES: [&str; 34] = [
    "ramjet_requests_total",
    "ramjet_requests_inflight",
    "ramjet_ttft_seconds",
    "ramjet_request_duration_seconds",
    "ramjet_time_per_output_token_seconds",
    "ramjet_prompt_tokens_total",
    "ramjet_cached_prompt_tokens_total",
    "ramjet_completion_tokens_total",
    "ramjet_client_disconnects_total",
    "ramjet_upstream_up",
    "ramjet_upstream_inflight",
    "ramjet_upstream_load_units",
    "ramjet_upstream_errors_total",
    "ramjet_upstream_failovers_total",
    "ramjet_upstream_probe_failures_total",
    "ramjet_route_decisions_total",
    "ramjet_route_overlap_blocks",
    "ramjet_route_fail_open",
    "ramjet_predicted_cached_prompt_tokens_total",
    "ramjet_route_decision_seconds",
    "ramjet_prefix_index_bytes",
    "ramjet_prefix_index_blocks",
    "ramjet_reservations",
    "ramjet_requests_placed",
    "ramjet_uncached_prompt_tokens_total",
    "ramjet_saved_prompt_tokens_estimate_total",
    "ramjet_upstream_prompt_tokens_total",
    "ramjet_upstream_cached_prompt_tokens_total",
    "ramjet_build_info",
    "process_start_time_seconds",
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "process_open_fds",
    "process_max_fds",
];

#[tokio::test(flavor = "multi_thread")]
async fn every_promised_metric_is_there_after_some_traffic() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let ramjet = Ramjet::start(&[a.addr, b.addr]).await;
    ask(&ramjet, "", &reports(10_000, 0), &chat_body(LONG, "")).await;
    // a kept connection first, then a fresh one: the other replica is asked
    for engine in [&a, &b] {
        engine.script(&["drop", "drop"]);
    }
    ask(&ramjet, "", "", &chat_body(LONG, "")).await;
    ended(&ramjet, 2.0).await;
    let page = String::from_utf8(client::get(ramjet.admin, "/metrics").await.unwrap().body).unwrap();
    for name in NAMES {
        assert!(page.contains(&format!("# TYPE {name} ")), "{name} is missing");
    }
    assert_eq!(ramjet.metric("ramjet_build_info").await, 1.0);
    assert!(ramjet.metric("process_resident_memory_bytes").await > 1e6);
    assert!(ramjet.metric("process_start_time_seconds").await > 1e9);
}

#[tokio::test(flavor = "multi_thread")]
async fn reservations_agree_with_the_requests_that_have_a_replica() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let ramjet = Ramjet::start(&[a.addr, b.addr]).await;
    let both = || async { [ramjet.metric("ramjet_reservations").await, ramjet.metric("ramjet_requests_placed").await] };
    let mut open = Vec::new();
    for _ in 0..3 {
        let mut h1 = client::begin_chat(ramjet.api, "decode", &chat_body(500, "")).await.unwrap();
        h1.head().await.unwrap();
        open.push(h1);
    }
    until("three are served", || async { both().await == [3.0, 3.0] }).await;
    let listed = client::get(ramjet.admin, "/api/decisions").await.unwrap().json();
    assert!(listed["decisions"].as_array().unwrap().iter().all(|d| d["state"] == "in_flight"), "{listed}");
    drop(open);
    until("none is", || async { both().await == [0.0, 0.0] }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_room_has_no_replica_and_no_reservation() {
    let engine = Engine::start().await;
    let config = "limits: { inflight_per_replica: 1 }";
    let ramjet = Ramjet::start_with(Start { upstreams: &[engine.addr], config, ..Start::default() }).await;
    let mut open = Vec::new();
    for n in 0..4 {
        open.push(client::begin_chat(ramjet.api, "decode", &chat_body(500 + n, "")).await.unwrap());
    }
    until("three wait", || async { ramjet.metric("ramjet_queue_length").await == 3.0 }).await;
    let pair = [ramjet.metric("ramjet_reservations").await, ramjet.metric("ramjet_requests_placed").await];
    assert_eq!(pair, [1.0, 1.0]);
    drop(open);
    ramjet.settled().await;
}
