//! Micro-benches of the request path: what one request costs before and after its bytes move.
//!
//! `cargo bench --bench hot_path` prints times; compare runs on one machine, not times between machines. What must not
//! become slower unseen is counted in instructions, by `ramjet-bench instructions`.

#![expect(clippy::expect_used, reason = "a bench that cannot be set up should stop")]
#![expect(missing_docs, reason = "the harness's macro writes an undocumented function")]

mod cases;

use bytes::Bytes;
use cases::{EVENT, RULES, SHAPE, SIZE, conversation, fleet, linted, prompt, warm};
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ramjet::api::answer::{StreamReader, WholeReader};
use ramjet::api::compat::Compat;
use ramjet::api::endpoint::Endpoint;
use ramjet::api::sse::Scanner;
use ramjet::fleet::claim::ClaimGuard;
use ramjet::prefix::index::PrefixIndex;
use ramjet::proxy::prepare;
use ramjet::telemetry::decisions::{Decisions, Record, Rule, Subject};
use ramjet::types::{PolicyKind, ReplicaId};
use std::hint::black_box;
use std::sync::Arc;
use std::time::SystemTime;

fn prepare_body(c: &mut Criterion) {
    let mut group = c.benchmark_group("prepare");
    for kib in [1, 64, 512, 4096] {
        let body = conversation(kib << 10, false);
        group.throughput(Throughput::Bytes(body.len() as u64));
        group.bench_with_input(BenchmarkId::new("chat_KiB", kib), &body, |b, body| {
            b.iter(|| prepare(Endpoint::Chat, black_box(body), &SHAPE, RULES));
        });
    }
    group.finish();
}

/// A body in which many spans change, against the same one that is left alone.
fn edit_spans(c: &mut Criterion) {
    let mut group = c.benchmark_group("edit");
    for kib in [64, 512] {
        let body = conversation(kib << 10, true);
        group.throughput(Throughput::Bytes(body.len() as u64));
        for (name, rules) in [("left_KiB", Compat::default()), ("edited_KiB", RULES)] {
            group.bench_with_input(BenchmarkId::new(name, kib), &body, |b, body: &Bytes| {
                b.iter(|| prepare(Endpoint::Chat, black_box(body), &SHAPE, rules));
            });
        }
    }
    group.finish();
}

/// The index alone: who of so many replicas holds how much of 512 blocks.
fn walk(c: &mut Criterion) {
    let mut group = c.benchmark_group("walk");
    for replicas in [2, 40, 256, 1000] {
        let chain: Vec<u64> = (1..=512u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        let mut index = PrefixIndex::new(64 << 20);
        for n in 0..replicas {
            index.hold(&chain[..chain.len() * usize::from(1 + n % 8) / 8], ReplicaId(n), 1);
        }
        let mut overlaps = vec![0; usize::from(replicas)];
        group.bench_function(BenchmarkId::new("512_blocks", replicas), |b| {
            b.iter(|| index.walk(black_box(&chain), &mut overlaps));
        });
    }
    group.finish();
}

/// An index of ten million blocks: what a walk costs where nothing is in a processor's cache, and what a block weighs.
fn walk_large(c: &mut Criterion) {
    const CHAINS: u64 = 20_000;
    let chain =
        |n: u64| -> Vec<u64> { (1..=500).map(|at: u64| (n * 500 + at).wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect() };
    let mut index = PrefixIndex::new(800 << 20);
    for n in 0..CHAINS {
        let replica = u16::try_from(n % 256).unwrap_or_default();
        index.hold(&chain(n), ReplicaId(replica), 1);
    }
    println!("{} blocks, {} bytes each", index.blocks(), index.bytes() / index.blocks());
    let mut overlaps = vec![0; 256];
    let mut n = 0;
    c.bench_function("walk/500_of_10_million_blocks", |b| {
        b.iter_batched(
            || {
                n = (n + 7919) % CHAINS;
                chain(n)
            },
            |chain| index.walk(&chain, &mut overlaps),
            BatchSize::SmallInput,
        );
    });
}

/// A fully warm prompt: every replica holds a shared head, a few hold more, one holds all of it.
fn decide(c: &mut Criterion) {
    let mut group = c.benchmark_group("decision");
    for (rule, policy) in [("affinity", PolicyKind::Affinity), ("cost", PolicyKind::Cost)] {
        for replicas in [2, 40, 256, 1000] {
            let (fleet, router) = fleet(replicas, policy);
            for kib in [64, 1024] {
                let body = conversation(kib << 10, false);
                let chain = warm(&fleet, replicas, &body);
                let prompt = prompt(&chain, body.len() as u64);
                group.bench_function(BenchmarkId::new(format!("{rule}_{kib}_KiB"), replicas), |b| {
                    b.iter(|| router.place(black_box(prompt), 0.0));
                });
            }
        }
    }
    group.finish();
}

/// What it costs to keep a decision, outside of the lock under which it was made.
fn record(c: &mut Criterion) {
    let mut group = c.benchmark_group("decision_kept");
    for replicas in [2, 40, 1000] {
        let (fleet, router) = fleet(replicas, PolicyKind::Affinity);
        let chain: Arc<[u64]> = (1..=512u64).collect();
        let made = router.place(prompt(&chain, 1 << 20), 0.0).expect("replicas").decision;
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
    let (fleet, _) = fleet(40, PolicyKind::Affinity);
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

/// What the cache linter takes of the path of a request.
fn lint(c: &mut Criterion) {
    c.bench_function("lint/a_turn_that_is_held", |b| b.iter(linted(0.97)));
    c.bench_function("lint/a_prompt_that_nobody_holds", |b| b.iter(linted(0.0)));
}

fn read_answer(c: &mut Criterion) {
    c.bench_function("stream/scan_event", |b| {
        let mut scanner = Scanner::default();
        b.iter(|| scanner.push(black_box(EVENT), |event| _ = black_box(event)));
    });
    c.bench_function("stream/read_event", |b| {
        let mut reader = StreamReader::default();
        b.iter(|| reader.push(black_box(EVENT)));
    });
    let whole = [
        br#"{"id":"x","choices":[{"message":{"content":""#,
        &[b'w'; 4000][..],
        br#""}}],"usage":{"prompt_tokens":9}}"#,
    ];
    let whole = whole.concat();
    c.bench_function("answer/read_4_KB", |b| {
        b.iter(|| {
            let mut reader = WholeReader::default();
            reader.push(black_box(&whole));
            reader.usage()
        });
    });
}

criterion_group!(benches, prepare_body, edit_spans, walk, walk_large, decide, record, claim, lint, read_answer);
criterion_main!(benches);
