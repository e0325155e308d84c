//! What is measured of the request path, for those who count instructions and those who take times: bodies, fleets and
//! events, the same in every run.

#![expect(clippy::expect_used, reason = "a bench that cannot be set up should stop")]

use bytes::Bytes;
use http::HeaderValue;
use pingora_load_balancing::{Backends, LoadBalancer};
use ramjet::api::compat::Compat;
use ramjet::api::endpoint::Endpoint;
use ramjet::api::family::Family;
use ramjet::engine::discovery::Configured;
use ramjet::fleet::Fleet;
use ramjet::fleet::claim::ClaimGuard;
use ramjet::fleet::replica::{ReplicaSpec, Role};
use ramjet::fleet::router::{Prompt, Router};
use ramjet::policy::flight::FlightParams;
use ramjet::policy::health::Thresholds;
use ramjet::policy::score::{AffinityParams, LoadParams};
use ramjet::policy::select::Params;
use ramjet::prefix::fingerprint::Ends;
use ramjet::prefix::residency::Size;
use ramjet::proxy::{PromptShape, prepare};
use ramjet::telemetry::linter::{Job, Linter};
use ramjet::telemetry::metrics::Metrics;
use ramjet::types::{Basis, PolicyKind, ReplicaId};
use std::fmt::Write;
use std::hint::black_box;
use std::sync::Arc;

/// A prompt of 1 MiB.
pub(crate) const SIZE: Size = Size { prompt: 262_144.0, block: 512.0, ends: Ends { previous: None, own: None } };
pub(crate) const RULES: Compat = Compat {
    strip_max_tokens_over: Some(100_000),
    flatten_text_parts: true,
    drop_unknown_reasoning_effort: true,
    ask_usage: false,
};
pub(crate) const SHAPE: PromptShape = PromptShape { secret: 7, block_bytes: 2048, max_prefix_bytes: 2 << 20 };
/// One event of a stream, as vLLM writes it.
pub(crate) const EVENT: &[u8] = b"data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n";

/// A coding agent's request of about so many bytes: turns of prose and escaped source code. In `parts`, each content is
/// a list, which a rule makes a string, so the body is edited.
pub(crate) fn conversation(bytes: usize, parts: bool) -> Bytes {
    let code = "    if let Some(value) = map.get(\\\"key\\\") {\\n        total += value.len();\\n    }\\n";
    let mut body =
        String::from(r#"{"model":"m","stream":true,"messages":[{"role":"system","content":"You edit code."}"#);
    let mut turn = 0;
    while body.len() + 4096 < bytes {
        let text = format!("turn {turn}: the file now reads\\n{}", code.repeat(40));
        if parts {
            write!(body, r#",{{"role":"user","content":[{{"type":"text","text":"{text}"}}]}}"#)
        } else {
            write!(body, r#",{{"role":"user","content":"{text}"}}"#)
        }
        .expect("a String grows");
        turn += 1;
    }
    body.push_str("]}");
    Bytes::from(body)
}

/// So many replicas that are ready, and who chooses among them.
pub(crate) fn fleet(replicas: u16, policy: PolicyKind) -> (Arc<Fleet>, Router) {
    let spec = |n: u16| ReplicaSpec {
        name: format!("r{n}"),
        host: format!("10.0.{}.{}", n / 256, n % 256),
        port: 8000,
        prefix: String::new(),
        authority: HeaderValue::from_static("r"),
        models: vec![],
        authorization: None,
        tls: None,
        role: Role::default(),
    };
    let params = Params {
        policy,
        affinity: AffinityParams { basis: Basis::Relative, cap_blocks: 32, alpha: 4.0 },
        load: LoadParams { unit_bytes: 32 << 10, max_units: 8, block_bytes: 2048 },
        flight: FlightParams::default(),
    };
    let fleet = Arc::new(Fleet::new((0..replicas).map(spec).collect(), params, 256 << 20));
    let thresholds = Thresholds { failures: 2, successes: 2 };
    let backends = Backends::new(Box::new(Configured::new(fleet.clone(), move || thresholds)));
    let balancer = Arc::new(LoadBalancer::from_backends_with_config(backends, Some(fleet.clone())));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(balancer.update()).expect("numeric addresses");
    (fleet.clone(), Router::new(fleet, balancer))
}

/// The fingerprints of a body that every replica knows in part: all a shared head, some more, some all of it.
pub(crate) fn warm(fleet: &Arc<Fleet>, replicas: u16, body: &Bytes) -> Arc<[u64]> {
    let chain = prepare(Endpoint::Chat, body, &SHAPE, RULES).chain.expect("a chat body");
    for n in 0..replicas {
        let held: Arc<[u64]> = chain[..chain.len() * usize::from(1 + n % 8) / 8].into();
        ClaimGuard::new(fleet, &held, SIZE, ReplicaId(n)).confirm();
    }
    chain
}

/// What the linter takes of the path of a request, whose prompt is held in part: it asks, and gives the body to its thread.
pub(crate) fn linted(held: f64) -> Box<dyn FnMut()> {
    let (linter, metrics) = (Linter::default(), Arc::new(Metrics::new().expect("names that differ")));
    let body = conversation(64 << 10, false);
    // a user agent as the library of Python has it
    let client = || Family::of(black_box(b"OpenAI/Python 1.109.1"));
    Box::new(move || {
        let Some(client) = linter.suspects(client, black_box(held * 16_384.0), 16_384.0) else { return };
        let job = Job { client, endpoint: Endpoint::Chat, model: 7, body: body.clone(), density: 0.25 };
        linter.look(black_box(job), &metrics);
    })
}

/// What is to be placed of a body with these fingerprints.
pub(crate) fn prompt(chain: &Arc<[u64]>, bytes: u64) -> Prompt<'_> {
    Prompt {
        request: 1,
        ends: Ends::default(),
        chain,
        body_bytes: bytes,
        prompt_bytes: bytes,
        model: Some("m"),
        streams: true,
        session: None,
        pinned: None,
    }
}
