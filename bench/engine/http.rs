//! The routes of a simulated engine. Inference looks like vLLM's; `/fault`, `/flush` and `/stats` steer and watch it.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::json;
use tokio::sync::{mpsc, oneshot};

use super::answer::{Answer, EventBody};
use super::fault::{self, Fault};
use super::sim::{Command, Shared, Ticket};
use super::text::{Kind, understand};

/// The answer to a `refuse` order must leave before the connection is dropped.
const BEFORE_REFUSING: Duration = Duration::from_millis(20);
/// Names the engine on every response, for a load generator that talks to it without a router.
const X_ENGINE: HeaderName = HeaderName::from_static("x-engine");

pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// Answers one request. `reset` makes the connection close with a TCP reset.
pub(crate) async fn answer(
    shared: Arc<Shared>,
    reset: Arc<AtomicBool>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let name = HeaderValue::from_str(&shared.name).unwrap_or(HeaderValue::from_static("?"));
    let path = request.uri().path().to_owned();
    let method = request.method().clone();
    let mut response = match (&method, path.as_str()) {
        (&Method::POST, "/v1/chat/completions") => infer(&shared, Kind::Chat, reset, request).await,
        (&Method::POST, "/v1/completions") => infer(&shared, Kind::Completion, reset, request).await,
        (&Method::POST, "/fault" | "/flush") => match request.into_body().collect().await {
            Ok(body) => control(&shared, &path, &body.to_bytes()),
            Err(error) => problem(StatusCode::BAD_REQUEST, &error.to_string()),
        },
        (&Method::GET, _) => get(&shared, &path),
        _ => problem(StatusCode::NOT_FOUND, "no such route"),
    };
    response.headers_mut().insert(X_ENGINE, name);
    Ok(response)
}

/// What can be asked without a body; also served by the control listener.
pub(crate) fn get(shared: &Shared, path: &str) -> Response<Body> {
    match path {
        "/health" | "/ping" => full(StatusCode::OK, "text/plain", String::new()),
        "/v1/models" => full(StatusCode::OK, "application/json", models(shared)),
        "/metrics" => full(StatusCode::OK, "text/plain; version=0.0.4", metrics(shared)),
        "/stats" => full(StatusCode::OK, "application/json", stats(shared)),
        _ => problem(StatusCode::NOT_FOUND, "no such route"),
    }
}

/// `/fault` and `/flush` (which drops requests and cache, as a restart does); also served by the control listener.
pub(crate) fn control(shared: &Arc<Shared>, path: &str, body: &[u8]) -> Response<Body> {
    if path == "/flush" {
        let _ = shared.commands.send(Command::Restart);
        return full(StatusCode::OK, "application/json", "{}".to_owned());
    }
    let order = match fault::from_json(body) {
        Ok(order) => order,
        Err(error) => return problem(StatusCode::BAD_REQUEST, &error),
    };
    if order.fault == Fault::Refuse {
        tokio::spawn(apply(Arc::clone(shared), order, BEFORE_REFUSING));
    } else {
        begin(shared, order);
        if order.for_ms.is_some() {
            tokio::spawn(end(Arc::clone(shared), order));
        }
    }
    full(StatusCode::OK, "application/json", "{}".to_owned())
}

async fn apply(shared: Arc<Shared>, order: fault::Order, delay: Duration) {
    tokio::time::sleep(delay).await;
    begin(&shared, order);
    end(shared, order).await;
}

fn begin(shared: &Shared, order: fault::Order) {
    if order.restart {
        let _ = shared.commands.send(Command::Restart);
    }
    shared.fault.send_replace(order.fault);
}

/// Ends a timed fault unless another one was ordered since.
async fn end(shared: Arc<Shared>, order: fault::Order) {
    if let Some(ms) = order.for_ms {
        tokio::time::sleep(Duration::from_millis(ms)).await;
        shared.fault.send_if_modified(|now| {
            let same = *now == order.fault;
            if same {
                *now = Fault::None;
            }
            same
        });
    }
}

async fn infer(shared: &Arc<Shared>, kind: Kind, reset: Arc<AtomicBool>, request: Request<Incoming>) -> Response<Body> {
    let id = shared.next_id();
    let body = match request.into_body().collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return problem(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    let now = *shared.fault.borrow();
    if let Fault::Unavailable { retry_after } = now {
        return unavailable("the engine is not available", retry_after);
    }
    let ask = match understand(kind, &body, id, &shared.params) {
        Ok(ask) => ask,
        Err(error) => return problem(StatusCode::BAD_REQUEST, &error),
    };
    drop(body);
    let (tx, rx) = mpsc::unbounded_channel();
    let ticket = Ticket { id, shared: Arc::clone(shared) };
    let (taken, reply) = oneshot::channel();
    let _ = shared.commands.send(Command::Submit(ask.job.clone(), tx, taken));
    if reply.await != Ok(true) {
        return unavailable("the queue is full", Some(1));
    }
    let stream = ask.stream;
    let answer = Answer::new(ask, rx, ticket);
    if stream {
        let mut response = Response::new(EventBody::new(answer, reset).boxed_unsync());
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
        return response;
    }
    match answer.whole().await {
        Some(document) => full(StatusCode::OK, "application/json", document),
        None => problem(StatusCode::INTERNAL_SERVER_ERROR, "the engine restarted"),
    }
}

fn full(status: StatusCode, kind: &'static str, text: String) -> Response<Body> {
    let body = Full::new(Bytes::from(text)).map_err(|never: Infallible| match never {});
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// An error in OpenAI's shape.
pub(crate) fn problem(status: StatusCode, message: &str) -> Response<Body> {
    let kind = if status.is_client_error() { "invalid_request_error" } else { "InternalServerError" };
    let error = json!({"error": {"message": message, "type": kind, "param": null, "code": status.as_u16()}});
    full(status, "application/json", error.to_string())
}

fn unavailable(message: &str, retry_after: Option<u64>) -> Response<Body> {
    let mut response = problem(StatusCode::SERVICE_UNAVAILABLE, message);
    if let Some(seconds) = retry_after {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

fn models(shared: &Shared) -> String {
    let id = &shared.params.model;
    let context = shared.params.max_context;
    json!({"object": "list", "data": [{"id": id, "object": "model", "created": 0, "owned_by": "ramjet-bench",
        "root": id, "parent": null, "max_model_len": context}]})
    .to_string()
}

fn stats(shared: &Shared) -> String {
    let snapshot = *shared.snapshot.lock();
    let now = snapshot.engine;
    json!({
        "name": shared.name, "running": now.running, "waiting": now.waiting, "received": shared.seen(),
        "finished": now.finished, "aborted": now.aborted, "prompt_tokens": now.prompt_tokens,
        "cached_tokens": now.cached_tokens, "prefill_tokens": now.prefill_tokens,
        "generated_tokens": now.generated_tokens, "kv_blocks": now.kv_blocks, "kv_held": now.kv_held,
        "kv_capacity": now.kv_capacity, "kv_evicted": now.kv_evicted, "busy_ms": now.busy_ms,
        "virtual_ms": snapshot.virtual_ms, "steps": snapshot.steps, "late_ms": snapshot.late_ms,
    })
    .to_string()
}

fn metrics(shared: &Shared) -> String {
    let now = shared.snapshot.lock().engine;
    let label = format!("{{model_name=\"{}\",engine=\"0\"}}", shared.params.model);
    let used = crate::num::share(now.kv_blocks as f64, now.kv_capacity as f64);
    let rows: [(&str, &str, f64); 11] = [
        ("vllm:num_requests_running", "gauge", now.running as f64),
        ("vllm:num_requests_waiting", "gauge", now.waiting as f64),
        ("vllm:kv_cache_usage_perc", "gauge", crate::num::share(now.kv_held as f64, now.kv_capacity as f64)),
        ("vllm:prompt_tokens_total", "counter", now.prompt_tokens as f64),
        ("vllm:generation_tokens_total", "counter", now.generated_tokens as f64),
        ("sim_prefill_tokens_total", "counter", now.prefill_tokens as f64),
        ("sim_cached_tokens_total", "counter", now.cached_tokens as f64),
        ("sim_requests_total", "counter", shared.seen() as f64),
        ("sim_requests_finished_total", "counter", now.finished as f64),
        ("sim_requests_aborted_total", "counter", now.aborted as f64),
        ("sim_kv_used_ratio", "gauge", used),
    ];
    rows.iter().map(|(name, kind, value)| format!("# TYPE {name} {kind}\n{name}{label} {value}\n")).collect()
}
