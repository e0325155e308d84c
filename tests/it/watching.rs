//! The dashboard and what feeds it: events as they happen, the last day, shared prefixes, and the settings in force.

use crate::support::client::{self, H1, chat_head};
use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start, lease};
use crate::support::unit::Unit;
use crate::support::{chat_body, until};
use serde_json::Value;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A streamed answer that reports `prompt` tokens, of which `cached` came from the cache.
fn reports(prompt: u64, cached: u64) -> String {
    let token = r#"data: {"choices":[{"delta":{"content":"x"}}]}\n\n"#;
    let usage = format!(
        r#"{{"prompt_tokens":{prompt},"completion_tokens":5,"prompt_tokens_details":{{"cached_tokens":{cached}}}}}"#
    );
    format!(r#"sse={token}|data: {{"choices":[],"usage":{usage}}}\n\n|data: [DONE]\n\n"#)
}

async fn ask(ramjet: SocketAddr, fields: &str, play: &str, body: &[u8]) -> client::Answer {
    let mut h1 = H1::connect(ramjet).await.unwrap();
    let length = body.len();
    h1.send(chat_head(&format!("x-play: {play}\r\n{fields}content-length: {length}\r\n")).as_bytes()).await;
    h1.send(body).await;
    h1.answer().await.unwrap()
}

async fn json(admin: SocketAddr, path: &str) -> Value {
    let answer = client::get(admin, path).await.unwrap();
    assert_eq!(answer.status, 200, "{path}");
    answer.json()
}

/// A stream of events.
struct Events {
    stream: TcpStream,
    text: String,
}

impl Events {
    async fn open(admin: SocketAddr) -> Events {
        let mut stream = TcpStream::connect(admin).await.unwrap();
        let head = format!("GET /api/events HTTP/1.1\r\nhost: {admin}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut events = Events { stream, text: String::new() };
        while !events.text.contains("\r\n\r\n") {
            assert!(events.more().await, "{}", events.text);
        }
        events
    }

    async fn more(&mut self) -> bool {
        let mut bytes = vec![0; 64 << 10];
        let n = self.stream.read(&mut bytes).await.unwrap_or(0);
        self.text.push_str(std::str::from_utf8(&bytes[..n]).unwrap());
        n > 0
    }

    /// The next event of this name that is as wanted.
    async fn next(&mut self, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let head = format!("event: {name}\ndata: ");
        let mut from = 0;
        let find = async {
            loop {
                while let Some(at) = self.text[from..].find(&head).map(|at| from + at + head.len()) {
                    let Some(end) = self.text[at..].find("\n\n") else { break };
                    from = at + end;
                    let value: Value = serde_json::from_str(&self.text[at..from]).unwrap();
                    if wanted(&value) {
                        return value;
                    }
                }
                assert!(self.more().await, "the events have ended");
            }
        };
        tokio::time::timeout(crate::support::PATIENCE, find).await.unwrap_or_else(|_| panic!("no {name} as wanted"))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_tell_what_happens_as_it_happens() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let ramjet = Ramjet::start(&[a.addr, b.addr]).await;
    let mut events = Events::open(ramjet.admin).await;
    assert!(events.text.contains("HTTP/1.1 200") && events.text.contains("text/event-stream"), "{}", events.text);
    let now = events.next("now", |_| true).await;
    assert_eq!((&now["health"], &now["policy"]), (&"ok".into(), &"cost".into()));
    events.next("decisions", |d| d["decisions"].as_array().unwrap().is_empty()).await;
    let answer = ask(ramjet.api, "", &reports(10_000, 5_000), &chat_body(40_000, "")).await;
    let id = answer.header("x-ramjet-request-id").unwrap();
    let is_ended = |d: &Value| d["decisions"][0]["id"] == id && d["decisions"][0]["state"] == "ended";
    events.next("decisions", is_ended).await;
    events.next("now", |n| n["requests_per_s"].as_f64().is_some_and(|n| n > 0.0) && n["cached_share"] == 0.5).await;
    // an engine dies
    let gone = a.addr.to_string();
    a.stop().await;
    let is_gone =
        |f: &Value| f["replicas"].as_array().unwrap().iter().any(|r| r["name"] == *gone && !r["reason"].is_null());
    let told = events.next("fleet", is_gone).await;
    assert_eq!(told["health"], "degraded", "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn not_everybody_may_watch_at_once_and_who_leaves_makes_room() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let mut all = Vec::new();
    for _ in 0..16 {
        all.push(Events::open(ramjet.admin).await);
    }
    assert_eq!(client::get(ramjet.admin, "/api/events").await.unwrap().status, 503);
    assert_eq!(ramjet.order("/api/events").await.status, 405);
    drop(all);
    let again = || async { Events::open(ramjet.admin).await.text.contains("HTTP/1.1 200") };
    until("there is room again", again).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_end_when_the_process_goes() {
    let engine = Engine::start().await;
    let config = "server: { grace: 0ms }";
    let mut ramjet = Ramjet::start_with(Start { upstreams: &[engine.addr], config, ..Start::default() }).await;
    let mut events = Events::open(ramjet.admin).await;
    events.next("now", |_| true).await;
    ramjet.signal("TERM");
    while events.more().await {}
    until("it has ended", || std::future::ready(ramjet.ended().is_some())).await;
}

fn last(series: &Value, name: &str) -> Option<f64> {
    series["values"][name].as_array().unwrap().iter().filter_map(Value::as_f64).next_back()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_day_is_there_as_numbers() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    for _ in 0..3 {
        ask(ramjet.api, "", &reports(1_000, 250), &chat_body(4_000, "")).await;
    }
    let path = format!("/api/series?replica={}", engine.addr);
    let is_there = || async {
        let hour = json(ramjet.admin, "/api/series").await;
        last(&hour, "cached_share") == Some(0.25) && last(&hour, "ttft_p95_ms").is_some()
    };
    until("it was sampled", is_there).await;
    for (path, step) in [("/api/series", 10), ("/api/series?span=hour", 10), ("/api/series?span=day", 120)] {
        let series = json(ramjet.admin, path).await;
        assert_eq!(series["step_s"], step);
        let length = series["at"].as_array().unwrap().len();
        for (name, values) in series["values"].as_object().unwrap() {
            assert_eq!(values.as_array().unwrap().len(), length, "{name}");
        }
        assert_eq!((last(&series, "replicas"), last(&series, "healthy")), (Some(1.0), Some(1.0)), "{series}");
    }
    let own = json(ramjet.admin, &path).await;
    assert_eq!((last(&own, "cached_share"), last(&own, "up_share")), (Some(0.25), Some(1.0)), "{own}");
    for (path, status) in [("/api/series?span=year", 400), ("/api/series?replica=nobody", 404)] {
        assert_eq!(client::get(ramjet.admin, path).await.unwrap().status, status, "{path}");
    }
    assert!(ramjet.metric("ramjet_history_bytes").await > 100.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_process_knows_the_last_day() {
    let engine = Engine::start().await;
    let replica = format!("{{ name: a, url: \"http://{}\" }}", engine.addr);
    let unit = Unit::start(&[replica], "", "").await;
    for _ in 0..5 {
        ask(unit.api, "", &reports(1_000, 250), &chat_body(4_000, "")).await;
    }
    // all of it is a rate over the seconds that were watched
    let requests = || async {
        let hour = json(unit.admin, "/api/series").await;
        let rates = hour["values"]["requests_per_s"].as_array().unwrap().iter();
        rates.filter_map(Value::as_f64).fold(0.0, f64::max)
    };
    until("they were sampled", || async { requests().await > 0.0 }).await;
    let before = json(unit.admin, "/api/series").await;
    let began = before["at"][0].as_f64().unwrap();
    assert!(unit.upgrade(&[]).await.status.success());
    let after = json(unit.admin, "/api/series").await;
    assert_eq!(after["at"][0].as_f64(), Some(began), "{after}");
    assert!(requests().await > 0.0);
    assert_eq!(last(&after, "cached_share"), Some(0.25), "{after}");
    assert!(last(&json(unit.admin, "/api/series?replica=a").await, "cached_share").is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_prefixes_are_known_by_hashed_names_and_by_who_holds_them() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let shared = "the secret recipe of the house ".repeat(1000);
    for session in 0..4 {
        let own = format!("session {session} ").repeat(500);
        let body = format!(
            r#"{{"model":"m","stream":true,"messages":[{{"role":"system","content":"{shared}"}},{{"role":"user","content":"{own}"}}]}}"#
        );
        ask(ramjet.api, &format!("x-session-id: s{session}\r\n"), &reports(8_000, 0), body.as_bytes()).await;
    }
    let known = || async { json(ramjet.admin, "/api/prefixes").await["trunks"].as_array().unwrap().len() == 1 };
    until("the trunk is known", known).await;
    let told = json(ramjet.admin, "/api/prefixes").await;
    let trunk = &told["trunks"][0];
    assert_eq!((&trunk["uses"], &trunk["sessions"]), (&4.into(), &4.into()), "{told}");
    assert_eq!(trunk["holders"], serde_json::json!([engine.addr.to_string()]), "{told}");
    // 31,000 bytes are 15 blocks of 2 KiB, counted to the depth of twelve
    assert_eq!(trunk["blocks"], 12, "{told}");
    assert!(!told.to_string().contains("recipe") && !told.to_string().contains("s0"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_settings_in_force_are_shown_and_secrets_are_not() {
    let engine = Engine::start().await;
    let replicas = [format!("{{ name: a, url: \"http://{}\", api_key_env: ENGINE_KEY }}", engine.addr)];
    let env = [("ENGINE_KEY", "engine-s3cret"), ("ADMIN_TOKEN", "admin-s3cret")];
    let config = "admin: { token_env: ADMIN_TOKEN }\nrouting: { policy: load }";
    let mut start = Start { replicas: &replicas, config, env: &env, ..Start::default() };
    let ramjet = Ramjet::start_with(start).await;
    let told = json(ramjet.admin, "/api/config").await;
    let of = |told: &Value, path: &str| {
        let all = told["settings"].as_array().unwrap();
        all.iter().find(|s| s["path"] == path).map(|s| (s["value"].clone(), s["default"].clone())).unwrap()
    };
    assert_eq!(of(&told, "routing.policy"), ("load".into(), "cost".into()));
    assert_eq!(told["generation"], 1);
    let text = told.to_string();
    assert!(text.contains("api_key: set, not shown") && !text.contains("s3cret"), "{text}");
    start.config = "admin: { token_env: ADMIN_TOKEN }\nrouting: { policy: cost }";
    ramjet.rewrite(&start);
    assert_eq!(ramjet.reload().await.status, 200);
    let told = json(ramjet.admin, "/api/config").await;
    assert_eq!((of(&told, "routing.policy").0, &told["generation"]), ("cost".into(), &2.into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_file_of_the_page_is_there_under_a_policy_that_lets_it_do_nothing_else() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let mut paths = vec!["/".to_owned()];
    let mut at = 0;
    while at < paths.len() {
        let path = paths[at].clone();
        at += 1;
        let answer = client::get(ramjet.admin, &path).await.unwrap();
        let kind = match path.rsplit('.').next() {
            Some("js") => "text/javascript; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            _ => "text/html; charset=utf-8",
        };
        assert_eq!((answer.status, answer.header("content-type")), (200, Some(kind)), "{path}");
        let policy = answer.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"), "{policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        let text = String::from_utf8(answer.body).unwrap();
        assert!(["http:", "https:", "innerHTML"].iter().all(|other| !text.contains(other)), "{path}");
        let loaded = text.split('"').filter(|part| part.starts_with("/page/") || part.starts_with("./"));
        for part in loaded.map(|part| part.replacen("./", "/page/", 1)) {
            if !paths.contains(&part) {
                paths.push(part);
            }
        }
    }
    assert!(paths.len() >= 8, "{paths:?}");
    assert_eq!(ramjet.order("/page/app.js").await.status, 405);
    assert_eq!(client::get(ramjet.admin, "/page/").await.unwrap().status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn elsewhere_than_on_loopback_all_of_it_needs_the_token() {
    let engine = Engine::start().await;
    let admin = Some(SocketAddr::from(([0, 0, 0, 0], lease().port())));
    let (config, env) = ("admin: { token_env: ADMIN_TOKEN }", &[("ADMIN_TOKEN", "t0ken")][..]);
    let ramjet = Ramjet::start_with(Start { upstreams: &[engine.addr], config, env, admin, ..Start::default() }).await;
    for path in ["/page/app.js", "/api/events", "/api/series", "/api/prefixes", "/api/config"] {
        for (said, status) in [("", 401), ("authorization: Bearer t0ken\r\n", 200)] {
            let mut h1 = H1::connect(ramjet.admin).await.unwrap();
            h1.send(format!("GET {path} HTTP/1.1\r\nhost: r\r\n{said}\r\n").as_bytes()).await;
            let head = h1.head().await.unwrap();
            assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{path} {said}: {head}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_no_room_is_named_where_another_one_is_chosen() {
    let engines = [Engine::start().await, Engine::start().await];
    let upstreams = engines.each_ref().map(|engine| engine.addr);
    let config = "limits: { inflight_per_replica: 1 }";
    let ramjet = Ramjet::start_with(Start { upstreams: &upstreams, config, ..Start::default() }).await;
    let body = chat_body(40_000, "");
    let answer = ask(ramjet.api, "", &reports(10_000, 0), &body).await;
    let home: usize = answer.header("x-ramjet-upstream").unwrap().parse().unwrap();
    let mut running = H1::connect(ramjet.api).await.unwrap();
    let head = chat_head(&format!("x-play: on-call-ok\r\ncontent-length: {}\r\n", body.len()));
    running.send(&[head.as_bytes(), &body].concat()).await;
    until("it is busy", || async { engines[home].seen().len() == 2 }).await;
    let answer = ask(ramjet.api, "", &reports(10_000, 0), &body).await;
    assert_eq!(answer.header("x-ramjet-upstream"), Some(if home == 0 { "1" } else { "0" }));
    let path = format!("/api/explain/{}", answer.header("x-ramjet-request-id").unwrap());
    let told = json(ramjet.admin, &path).await;
    let why = format!("{} comes before it, but has no room for it now, or turns requests away", upstreams[home]);
    assert_eq!((&told["why"], &told["reason"], &told["passed_over"]), (&why.into(), &"spill".into(), &1.into()));
    engines[home].call();
    assert_eq!(running.answer().await.unwrap().status, 200);
}
