//! Micro-benches of the request path: what one request costs before and after its bytes move.
//!
//! `cargo bench --bench hot_path` prints times; compare runs on one machine, not times between machines.

#![expect(clippy::expect_used, reason = "a bench that cannot be set up should stop")]
#![expect(missing_docs, reason = "the harness's macro writes an undocumented function")]

use bytes::Bytes;
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use http::HeaderValue;
use pingora_load_balancing::{Backends, LoadBalancer};
use ramjet::api::answer::StreamReader;
use ramjet::api::compat::Compat;
use ramjet::api::endpoint::Endpoint;
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
use ramjet::telemetry::decisions::{Decisions, Record, Rule, Subject};
use ramjet::types::{Basis, PolicyKind, ReplicaId};
use std::fmt::Write;
use std::hint::black_box;
use std::sync::Arc;
use std::time::SystemTime;

/// A prompt of 1 MiB.
const SIZE: Size = Size { prompt: 262_144.0, block: 512.0, ends: Ends { previous: None, own: None } };

const RULES: Compat = Compat {
    strip_max_tokens_over: Some(100_000),
    flatten_text_parts: true,
    drop_unknown_reasoning_effort: true,
    ask_usage: false,
};
const SHAPE: PromptShape = PromptShape { secret: 7, block_bytes: 2048, max_prefix_bytes: 2 << 20 };

/// A coding agent's request: a long system prompt, then turns of prose and escaped source code.
fn conversation(bytes: usize) -> Bytes {
    let code = "    if let Some(value) = map.get(\\\"key\\\") {\\n        total += value.len();\\n    }\\n";
    let mut body =
        String::from(r#"{"model":"m","stream":true,"messages":[{"role":"system","content":"You edit code."}"#);
    let mut turn = 0;
    while body.len() + 4096 < bytes {
        let text = format!("turn {turn}: the file now reads\\n{}", code.repeat(40));
        write!(body, r#",{{"role":"user","content":[{{"type":"text","text":"{text}"}}]}}"#).expect("a String grows");
        turn += 1;
    }
    body.push_str("]}");
    Bytes::from(body)
}

fn prepare_body(c: &mut Criterion) {
    let mut group = c.benchmark_group("prepare");
    for kib in [1, 64, 512, 4096] {
        let body = conversation(kib << 10);
        group.throughput(Throughput::Bytes(body.len() as u64));
        group.bench_with_input(BenchmarkId::new("chat_KiB", kib), &body, |b, body| {
            b.iter(|| prepare(Endpoint::Chat, black_box(body), &SHAPE, RULES));
        });
    }
    group.finish();
}

fn fleet(replicas: u16) -> (Arc<Fleet>, Router) {
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
        policy: PolicyKind::Affinity,
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

/// A fully warm prompt: every replica holds a shared head, a few hold more, one holds all of it.
fn decide(c: &mut Criterion) {
    let mut group = c.benchmark_group("decision");
    for replicas in [2, 40, 256, 1000] {
        let (fleet, router) = fleet(replicas);
        for kib in [64, 1024] {
            let body = conversation(kib << 10);
            let chain = prepare(Endpoint::Chat, &body, &SHAPE, RULES).chain.expect("a chat body");
            for n in 0..replicas {
                let held: Arc<[u64]> = chain[..chain.len() * usize::from(1 + n % 8) / 8].into();
                ClaimGuard::new(&fleet, &held, SIZE, ReplicaId(n)).confirm();
            }
            let bytes = body.len() as u64;
            let prompt = Prompt {
                request: 1,
                ends: Ends::default(),
                chain: &chain,
                body_bytes: bytes,
                prompt_bytes: bytes,
                model: Some("m"),
                streams: true,
                session: None,
                pinned: None,
            };
            group.bench_function(BenchmarkId::new(format!("warm_{kib}_KiB"), replicas), |b| {
                b.iter(|| router.place(black_box(prompt), 0.0));
            });
        }
    }
    group.finish();
}

/// What it costs to keep a decision, outside of the lock under which it was made.
fn record(c: &mut Criterion) {
    let mut group = c.benchmark_group("decision_kept");
    for replicas in [2, 40, 1000] {
        let (fleet, router) = fleet(replicas);
        let chain: Arc<[u64]> = (1..=512u64).collect();
        let prompt = Prompt {
            request: 1,
            ends: Ends::default(),
            chain: &chain,
            body_bytes: 1 << 20,
            prompt_bytes: 1 << 20,
            model: Some("m"),
            streams: true,
            session: None,
            pinned: None,
        };
        let made = router.place(prompt, 0.0).expect("replicas").decision;
        let decisions = Decisions::default();
        let tokens = fleet.tokens(1 << 20, Some("m"));
        group.bench_function(BenchmarkId::from_parameter(replicas), |b| {
            b.iter(|| {
                let placed = Subject {
                    endpoint: Endpoint::Chat,
                    model: Some("m".into()),
                    body_bytes: 1 << 20,
                    prompt_bytes: 1 << 20,
                    blocks: chain.len(),
                    tokens,
                    pinned: false,
                };
                let rule = Rule { policy: PolicyKind::Affinity, affinity: fleet.params().affinity };
                decisions.keep(None, Record::new(7, SystemTime::now(), placed, rule, black_box(&made)))
            });
        });
    }
    group.finish();
}

/// What the index costs besides the decision: a claim on a warm prompt with one new block, confirmed.
fn claim(c: &mut Criterion) {
    let (fleet, _) = fleet(40);
    let chain: Vec<u64> = (1..=512u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    let mut n = 0u64;
    c.bench_function("claim/warm_512_blocks", |b| {
        b.iter_batched(
            || {
                n += 1;
                let mut next = chain.clone();
                next.push(n);
                Arc::<[u64]>::from(next)
            },
            |chain| ClaimGuard::new(&fleet, &chain, SIZE, ReplicaId(3)).confirm(),
            BatchSize::SmallInput,
        );
    });
}

fn read_stream(c: &mut Criterion) {
    let event: &[u8] = b"data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n";
    c.bench_function("stream/event", |b| {
        let mut reader = StreamReader::default();
        b.iter(|| reader.push(black_box(event)));
    });
}

criterion_group!(benches, prepare_body, decide, record, claim, read_stream);
criterion_main!(benches);
