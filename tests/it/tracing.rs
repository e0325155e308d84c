//! Traces: what a collector gets, what engines are told, and what passes untouched.

use crate::support::client::{self, H1, chat_head};
use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start, lease};
use crate::support::{chat_body, until};
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CLIENT: &str = "b7ad6b7169203331";

/// A collector that keeps what it gets.
struct Collector {
    addr: SocketAddr,
    got: Arc<Mutex<Vec<String>>>,
}

impl Collector {
    async fn start(status: u16) -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (addr, got) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<String>>>::default());
        let kept = got.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(take(stream, status, kept.clone()));
            }
        });
        Collector { addr, got }
    }

    fn config(&self) -> String {
        format!("traces: {{ endpoint: \"http://{}\", service: \"the router\" }}", self.addr)
    }

    /// All spans so far.
    fn spans(&self) -> Vec<Value> {
        let of = |body: &String| {
            let batch: Value = serde_json::from_str(body).unwrap();
            batch["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().clone()
        };
        self.got.lock().unwrap().iter().flat_map(of).collect()
    }

    /// Waits for spans with this name.
    async fn named(&self, name: &str, count: usize) -> Vec<Value> {
        let find = || self.spans().into_iter().filter(|span| span["name"] == name).collect::<Vec<_>>();
        until(name, || std::future::ready(find().len() >= count)).await;
        find()
    }
}

async fn take(mut stream: TcpStream, status: u16, kept: Arc<Mutex<Vec<String>>>) {
    let mut bytes = Vec::new();
    let end = loop {
        match memchr::memmem::find(&bytes, b"\r\n\r\n") {
            Some(end) => break end + 4,
            None => assert!(stream.read_buf(&mut bytes).await.unwrap() > 0),
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    assert!(
        head.starts_with("POST /v1/traces HTTP/1.1\r\n") && head.contains("content-type: application/json\r\n"),
        "{head}"
    );
    let length: usize = head.split("content-length: ").nth(1).unwrap().lines().next().unwrap().parse().unwrap();
    while bytes.len() < end + length {
        assert!(stream.read_buf(&mut bytes).await.unwrap() > 0);
    }
    kept.lock().unwrap().push(String::from_utf8(bytes[end..].to_vec()).unwrap());
    let _gone = stream.write_all(format!("HTTP/1.1 {status} X\r\ncontent-length: 2\r\n\r\n{{}}").as_bytes()).await;
}

async fn ask(ramjet: &Ramjet, fields: &str, play: &str, body: &[u8]) -> client::Answer {
    let mut h1 = H1::connect(ramjet.api).await.unwrap();
    let length = body.len();
    h1.send(chat_head(&format!("x-play: {play}\r\n{fields}content-length: {length}\r\n")).as_bytes()).await;
    h1.send(body).await;
    h1.answer().await.unwrap()
}

fn attribute<'a>(span: &'a Value, key: &str) -> &'a Value {
    let all = span["attributes"].as_array().unwrap();
    let found = all.iter().find(|a| a["key"] == key).unwrap_or_else(|| panic!("no {key} in {span}"));
    found["value"].as_object().unwrap().values().next().unwrap()
}

fn start<'a>(upstreams: &'a [SocketAddr], config: &'a str) -> Start<'a> {
    Start { upstreams, config, ..Start::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_a_span_with_its_choice_and_its_attempt_below_it_and_the_engine_goes_on() {
    let (engine, collector) = (Engine::start().await, Collector::start(200).await);
    let config = collector.config();
    let ramjet = Ramjet::start_with(start(&[engine.addr], &config)).await;
    let fields = format!(
        "traceparent: 00-{TRACE}-{CLIENT}-01\r\ntracestate: vendor=a secret of it,other=1\r\nauthorization: Bearer k3y\r\n"
    );
    let secret = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"tell nobody of the treasure"}]}"#;
    let answer = ask(&ramjet, &fields, "slowly=3", secret.as_bytes()).await;
    let root = &collector.named("chat_completions", 1).await[0];
    assert_eq!((&root["traceId"], &root["parentSpanId"]), (&TRACE.into(), &CLIENT.into()));
    assert_eq!((&root["kind"], attribute(root, "http.response.status_code")), (&2.into(), &"200".into()));
    assert_eq!(attribute(root, "ramjet.request_id"), answer.header("x-ramjet-request-id").unwrap());
    assert_eq!(root["events"][0]["name"], "first_token");
    let (route, attempt) = (&collector.named("route", 1).await[0], &collector.named("attempt", 1).await[0]);
    for inner in [route, attempt] {
        assert_eq!((&inner["traceId"], &inner["parentSpanId"]), (&TRACE.into(), &root["spanId"]));
        let time = |span: &Value, end: &str| span[end].as_str().unwrap().parse::<u64>().unwrap();
        assert!(time(inner, "startTimeUnixNano") >= time(root, "startTimeUnixNano"));
        assert!(time(inner, "endTimeUnixNano") <= time(root, "endTimeUnixNano"));
        assert!(time(inner, "endTimeUnixNano") >= time(inner, "startTimeUnixNano"));
    }
    assert_eq!((&attempt["kind"], attribute(route, "ramjet.candidates")), (&3.into(), &"1".into()));
    let seen = &engine.seen()[0];
    let told = format!("00-{TRACE}-{}-01", attempt["spanId"].as_str().unwrap());
    assert_eq!(seen.header("traceparent"), Some(told.as_str()));
    assert_eq!(seen.header("tracestate"), Some("vendor=a secret of it,other=1"));
    let said = collector.got.lock().unwrap().concat();
    assert!(said.contains("\"stringValue\":\"the router\""), "{said}");
    for secret in ["treasure", "k3y", "127.0.0.1", "a secret", &engine.addr.port().to_string()] {
        assert!(!said.contains(secret), "{secret} in {said}");
    }
    until("it was counted", || async { sent(&ramjet, "sent").await >= 1.0 }).await;
}

async fn sent(ramjet: &Ramjet, outcome: &str) -> f64 {
    let series = ramjet.series("ramjet_traces_total").await;
    series.iter().find(|(labels, _)| labels.contains(outcome)).unwrap().1
}

#[tokio::test(flavor = "multi_thread")]
async fn each_attempt_has_its_span_and_says_why_it_failed() {
    let (a, b, collector) = (Engine::start().await, Engine::start().await, Collector::start(200).await);
    let config = collector.config();
    let ramjet = Ramjet::start_with(start(&[a.addr, b.addr], &config)).await;
    for engine in [&a, &b] {
        engine.script(&["status=503"]);
    }
    ask(&ramjet, "", "", &chat_body(500, "")).await;
    let attempts = collector.named("attempt", 2).await;
    assert_eq!(attribute(&attempts[0], "error.type"), "bad_gateway", "{}", attempts[0]);
    let seen = [a.seen(), b.seen()].concat();
    let told: Vec<&str> = seen.iter().map(|s| s.header("traceparent").unwrap()).collect();
    for attempt in &attempts {
        let span = attempt["spanId"].as_str().unwrap();
        assert_eq!(told.iter().filter(|parent| parent.contains(span)).count(), 1, "{span} in {told:?}");
    }
    // nobody asked with a context: the trace is ramjet's own
    assert!(collector.named("chat_completions", 1).await[0].get("parentSpanId").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_room_has_its_span() {
    let (engine, collector) = (Engine::start().await, Collector::start(200).await);
    let config = format!("limits: {{ inflight: 1 }}\n{}", collector.config());
    let ramjet = Ramjet::start_with(start(&[engine.addr], &config)).await;
    let first = client::begin_chat(ramjet.api, "decode", &chat_body(500, "")).await.unwrap();
    until("the first is served", || async { ramjet.metric("ramjet_requests_placed").await == 1.0 }).await;
    let mut second = client::begin_chat(ramjet.api, "", &chat_body(600, "")).await.unwrap();
    until("the second waits", || async { ramjet.metric("ramjet_queue_length").await == 1.0 }).await;
    drop(first);
    assert_eq!(second.answer().await.unwrap().status, 200);
    let wait = &collector.named("queue", 1).await[0];
    assert_eq!(wait["kind"], 1);
    let roots = collector.named("chat_completions", 2).await;
    assert!(roots.iter().any(|root| root["spanId"] == wait["parentSpanId"]));
    // a client that leaves is no failure
    let left = roots.iter().find(|root| attribute(root, "ramjet.end") == "client_left").unwrap();
    assert!(left.get("status").is_none(), "{left}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_collector_or_a_sampled_flag_the_context_passes_as_it_came() {
    let (engine, collector) = (Engine::start().await, Collector::start(200).await);
    let mut running = Vec::new();
    let not_sampled = format!("00-{TRACE}-{CLIENT}-00");
    let sampled = format!("00-{TRACE}-{CLIENT}-01");
    for (config, parent, passes) in [
        (String::new(), sampled.as_str(), true),
        (String::new(), "what is this", true),
        (collector.config(), not_sampled.as_str(), true),
        (collector.config(), "what is this", false),
    ] {
        let ramjet = Ramjet::start_with(start(&[engine.addr], &config)).await;
        ask(&ramjet, &format!("traceparent: {parent}\r\ntracestate: a=b\r\n"), "", &chat_body(500, "")).await;
        let seen = engine.seen().pop().unwrap();
        assert_eq!(seen.header("traceparent") == Some(parent), passes, "{config} {parent}: {}", seen.head);
        assert_eq!(seen.header("tracestate"), passes.then_some("a=b"), "{config} {parent}");
        if config.is_empty() {
            ask(&ramjet, "", "", &chat_body(500, "")).await;
            assert_eq!(engine.seen().pop().unwrap().header("traceparent"), None);
        }
        running.push(ramjet);
    }
    // of the four, the last one alone was traced
    assert_eq!(collector.named("chat_completions", 1).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_gone_or_refuses_is_counted_and_requests_do_not_notice() {
    let engine = Engine::start().await;
    let (refusing, gone) = (Collector::start(503).await, lease());
    for addr in [refusing.addr, gone] {
        let config = format!("traces: {{ endpoint: \"http://{addr}/v1/traces\" }}");
        let ramjet = Ramjet::start_with(start(&[engine.addr], &config)).await;
        for _ in 0..5 {
            assert_eq!(ask(&ramjet, "", "", &chat_body(500, "")).await.status, 200);
        }
        until("they have failed", || async { sent(&ramjet, "failed").await == 5.0 }).await;
        ramjet.settled().await;
    }
}
