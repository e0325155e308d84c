//! Metrics against what is said of them: each that the alerts, the dashboard or the table in `deploy/` name is in a real
//! scrape, and all series are there before anything has happened.

use crate::support::client::{self, H1, chat_head};
use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start, tempdir};
use crate::support::{chat_body, hex, until};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

fn deploy(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(name)).unwrap()
}

async fn scrape(ramjet: &Ramjet) -> String {
    String::from_utf8(client::get(ramjet.admin, "/metrics").await.unwrap().body).unwrap()
}

/// Names and types.
fn types(page: &str) -> BTreeMap<String, String> {
    let lines = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    lines.map(|(name, kind)| (name.to_owned(), kind.to_owned())).collect()
}

/// Every series, without its value.
fn series(page: &str) -> BTreeSet<String> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect()
}

/// All queries of a rule file or a dashboard.
fn queries(name: &str) -> Vec<String> {
    let text = deploy(name);
    if name.ends_with(".json") {
        fn gather(value: &Value, out: &mut Vec<String>) {
            match value {
                Value::Array(items) => items.iter().for_each(|item| gather(item, out)),
                Value::Object(members) => {
                    out.extend(members.get("expr").and_then(Value::as_str).map(str::to_owned));
                    members.values().for_each(|value| gather(value, out));
                }
                _ => {}
            }
        }
        let (whole, mut out) = (serde_json::from_str(&text).unwrap(), Vec::new());
        gather(&whole, &mut out);
        return out;
    }
    let (mut out, mut lines) = (Vec::new(), text.lines().peekable());
    while let Some(line) = lines.next() {
        let Some(query) = line.trim_start().strip_prefix("expr: ") else { continue };
        let mut query = query.replace(">-", "");
        let deeper = |other: &str| other.len() - other.trim_start().len() > line.len() - line.trim_start().len();
        while query.trim().is_empty() || lines.peek().is_some_and(|next| deeper(next)) {
            query.push_str(lines.next().unwrap());
        }
        out.push(query);
    }
    out
}

/// What a query names: a metric, and which values its labels must have.
fn named(query: &str) -> Vec<(String, Vec<(String, String)>)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let mut out = Vec::new();
    let mut rest = query;
    while let Some(at) = rest.find(is_part) {
        let word = &rest[at..];
        let end = word.find(|c| !is_part(c)).unwrap_or(word.len());
        let (name, after) = word.split_at(end);
        rest = after;
        if !["ramjet_", "ramjet:", "process_"].iter().any(|own| name.starts_with(own)) {
            continue;
        }
        let matchers = after.strip_prefix('{').and_then(|inner| inner.split_once('}')).map_or("", |(inner, _)| inner);
        let exact = matchers.split(", ").filter_map(|m| m.split_once("=\""));
        let exact = exact.map(|(label, value)| (label.to_owned(), value.trim_end_matches('"').to_owned()));
        out.push((name.to_owned(), exact.filter(|(label, _)| !label.ends_with('!') && label != "job").collect()));
    }
    out
}

#[test]
fn queries_are_taken_apart_as_prometheus_does() {
    let found = named(
        r#"sum by (a) (rate(ramjet_x_total{code=~"5..", state="fenced", a!="b"}[5m])) / process_y > on (b) up{job="ramjet"}"#,
    );
    let labels = vec![("state".to_owned(), "fenced".to_owned())];
    assert_eq!(found, [("ramjet_x_total".to_owned(), labels), ("process_y".to_owned(), Vec::new())]);
    assert!(queries("prometheus-rules.yaml").len() >= 20 && queries("grafana.json").len() >= 40);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_metric_that_alerts_and_dashboards_name_is_in_a_real_scrape() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let ramjet = Ramjet::start(&[a.addr, b.addr]).await;
    // a replica that fails, so that a request goes on to the other one
    for engine in [&a, &b] {
        engine.script(&["status=503"]);
    }
    client::chat(ramjet.api, "", &chat_body(500, "")).await.unwrap();
    until("it was repeated", || async { ramjet.metric("ramjet_upstream_failovers_total").await > 0.0 }).await;
    let page = scrape(&ramjet).await;
    let (types, series) = (types(&page), series(&page));
    let rules = deploy("prometheus-rules.yaml");
    let recorded = |name: &str| rules.contains(&format!("- record: {name}\n"));
    for file in ["prometheus-rules.yaml", "grafana.json"] {
        for query in queries(file) {
            for (name, labels) in named(&query) {
                let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
                let base = base.filter(|base| types.get(*base).is_some_and(|kind| kind == "histogram"));
                let is_there = types.contains_key(base.unwrap_or(&name)) || name.contains(':') && recorded(&name);
                assert!(is_there, "{file}: {name} in {query}");
                for (label, value) in labels.iter().filter(|(_, value)| !value.contains('$')) {
                    let wanted = format!("{label}=\"{value}\"");
                    let found = series.iter().any(|s| s.starts_with(&format!("{name}{{")) && s.contains(&wanted));
                    assert!(found, "{file}: no series of {name} has {wanted}");
                }
            }
        }
    }
    // and the table names what is there, and nothing else
    let table = deploy("METRICS.md");
    let rows = table.lines().filter_map(|line| {
        let cells: Vec<&str> = line.split(" | ").collect();
        Some((cells[0].strip_prefix("| `")?.trim_end_matches('`').to_owned(), (*cells.get(1)?).to_owned()))
    });
    let rows: BTreeMap<String, String> = rows.collect();
    for (name, kind) in &types {
        assert_eq!(rows.get(name), Some(kind), "{name}");
    }
    // labels of names that are configured: without keys, sources and KV events there are none
    let may_lack = ["ramjet_client_key_requests_total", "ramjet_discovery_", "ramjet_upstream_kv_"];
    for name in rows.keys().filter(|name| !types.contains_key(*name)) {
        assert!(may_lack.iter().any(|known| name.starts_with(known)), "{name} is in no scrape");
    }
}

/// An answer that reports what was cached.
const REPORT: &str =
    r#"json={"usage":{"prompt_tokens":2500,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":0}}}"#;

/// Requests of many kinds and ends; none of them waits.
async fn mixed_traffic(ramjet: &Ramjet) {
    let api = ramjet.api;
    for path in ["chat/completions", "completions", "responses", "messages", "embeddings", "rerank", "score", "batches"]
    {
        for play in ["slowly=2", "", "status=418", "status=301", "status=404", "status=206"] {
            let body = r#"{"model":"m","stream":true,"prompt":"x","input":"x","messages":[]}"#;
            client::post(api, &format!("/v1/{path}"), play, body).await.unwrap();
        }
    }
    client::post(api, "/generate", "", r#"{"text":"x"}"#).await.unwrap();
    for path in ["/v1/models", "/health", "/some/path?of=mine"] {
        client::get(api, path).await.unwrap();
    }
    // prompts that part from one before them, of a model that is listed and of one that is not
    let rules = "A rule that stays the same for ever and is read again and again. ".repeat(150);
    for (n, model) in (10..34).zip(["m", "made-up"].into_iter().cycle()) {
        let system = format!("It is 2026-11-30 12:{n}:00. {rules}");
        let body = format!(r#"{{"model":"{model}","messages":[{{"role":"system","content":"{system}"}}]}}"#);
        client::post(api, "/v1/chat/completions", REPORT, &body).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_keys_bring_their_series_and_take_them_along() {
    let engine = Engine::start().await;
    let file = tempdir().join(format!("{}.keys", engine.addr.port()));
    let digest = |key: &[u8]| hex::encode(&[ramjet::api::sha256::sha256(key).to_vec()]);
    let write = |names: &[&str]| {
        let lines: String = names.iter().map(|name| format!("{name}: {}\n", digest(name.as_bytes()))).collect();
        std::fs::write(&file, lines).unwrap();
    };
    write(&["team-a", "team-b"]);
    let config = format!("auth: {{ keys_file: {} }}\n", file.display());
    let start = Start { upstreams: &[engine.addr], config: &config, ..Start::default() };
    let ramjet = Ramjet::start_with(start).await;
    let names = || async {
        let all = ramjet.series("ramjet_client_key_requests_total").await;
        let name = |labels: &str| labels.split("key=\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
        all.iter().map(|(labels, _)| name(labels)).collect::<BTreeSet<_>>()
    };
    assert_eq!(names().await, ["team-a", "team-b"].map(str::to_owned).into());
    let before = series(&scrape(&ramjet).await);
    let body = chat_body(500, "");
    for status in [200, 418] {
        let mut h1 = H1::connect(ramjet.api).await.unwrap();
        let play = if status == 200 { String::new() } else { format!("x-play: status={status}\r\n") };
        let fields = format!("authorization: Bearer team-a\r\n{play}content-length: {}\r\n", body.len());
        h1.send(chat_head(&fields).as_bytes()).await;
        h1.send(&body).await;
        assert_eq!(h1.answer().await.unwrap().status, status);
    }
    until("both are counted", || async { ramjet.metric("ramjet_client_key_requests_total").await == 2.0 }).await;
    assert_eq!(series(&scrape(&ramjet).await), before);
    write(&["team-b", "team-c"]);
    ramjet.rewrite(&start);
    assert_eq!(ramjet.reload().await.status, 200);
    assert_eq!(names().await, ["team-b", "team-c"].map(str::to_owned).into());
}

#[tokio::test(flavor = "multi_thread")]
async fn all_series_are_there_before_anything_has_happened() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    for engine in [&a, &b] {
        engine.lists(r#"{"id":"m"}"#);
    }
    let ramjet = Ramjet::start(&[a.addr, b.addr]).await;
    until("the model is known", || async { scrape(&ramjet).await.contains(r#"model="m""#) }).await;
    let before = series(&scrape(&ramjet).await);
    mixed_traffic(&ramjet).await;
    client::chat(ramjet.api, "slowly=2", &chat_body(9_000, "\"stream\":true,")).await.unwrap();
    client::chat(ramjet.api, "", &chat_body(500, "")).await.unwrap();
    client::get(ramjet.api, "/v1/models").await.unwrap();
    client::get(ramjet.api, "/some/path?of=mine").await.unwrap();
    for engine in [&a, &b] {
        engine.script(&["drop", "drop", "drop"]);
    }
    assert_eq!(client::chat(ramjet.api, "", &chat_body(500, "")).await.unwrap().status, 502);
    until("the script is over", || async {
        client::chat(ramjet.api, "", &chat_body(500, "")).await.unwrap().status == 200
    })
    .await;
    let made_up = String::from_utf8(chat_body(700, "")).unwrap().replace("\"m\"", "\"a-model-that-i-made-up\"");
    assert_eq!(client::chat(ramjet.api, "", made_up.as_bytes()).await.unwrap().status, 404);
    let mut h1 = H1::connect(ramjet.api).await.unwrap();
    let body = chat_body(700, "");
    h1.send(chat_head(&format!("x-play: prefill\r\ncontent-length: {}\r\n", body.len())).as_bytes()).await;
    h1.send(&body).await;
    until("it is served", || async { ramjet.metric("ramjet_requests_placed").await == 1.0 }).await;
    drop(h1);
    until("its client has left", || async { ramjet.metric("ramjet_client_disconnects_total").await == 1.0 }).await;
    ramjet.settled().await;
    assert_eq!(ramjet.metric("ramjet_self_check_failures_total").await, 0.0);
    until("broken prompts are counted", || async { ramjet.metric("ramjet_prompt_breaks_total").await > 0.0 }).await;
    assert!(ramjet.metric("ramjet_model_cached_tokens_reported_total").await > 0.0);
    let written = ramjet.series("ramjet_table_bytes").await;
    for table in ["turns", "sessions", "decisions", "block_counts", "prompt_outlines"] {
        assert!(written.iter().any(|(of, bytes)| of.contains(table) && *bytes > 0.0), "{table}: {written:?}");
    }
    let after = series(&scrape(&ramjet).await);
    // none came and none went
    let changed: Vec<_> = after.symmetric_difference(&before).collect();
    assert!(changed.is_empty(), "{changed:?}");
    assert!(!after.iter().any(|s| s.contains("made-up") || s.contains("some/path")));
}
