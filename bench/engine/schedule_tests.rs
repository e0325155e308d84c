//! The schedule on paper: every figure below can be worked out by hand from the parameters.

use super::*;
use proptest::prelude::*;

fn params() -> Params {
    Params { prefill_rate: 1000.0, chunk_tokens: 100, step_ms: 10.0, step_growth_ms: 1.0, ..Params::shipped() }
}

/// A job whose blocks are named after `session`, so that equal sessions share their prefix.
fn job(id: u64, session: u64, prompt_tokens: usize, output_tokens: usize) -> Job {
    let blocks = (prompt_tokens + output_tokens) / 16;
    let chain = (0..blocks).map(|at| session * 1_000_000 + at as u64).collect();
    Job { id, chain, prompt_tokens, output_tokens }
}

fn drain(engine: &mut Engine, until: f64) -> Vec<Token> {
    let mut out = Vec::new();
    engine.advance(until, &mut out);
    out
}

#[test]
fn first_token_after_prefill_then_one_per_step() {
    let mut engine = Engine::new(params());
    engine.submit(0.0, job(1, 1, 250, 3));
    let out = drain(&mut engine, 1e6);
    let at: Vec<f64> = out.iter().map(|token| token.at).collect();
    assert_eq!(at, [250.0, 261.0, 272.0]);
    assert_eq!(out[0].cached, Some(0));
    assert_eq!(out[2].done, Some(Times { ttft: 250.0, total: 272.0 }));
}

#[test]
fn next_turn_hits_prompt_and_answer() {
    let mut engine = Engine::new(params());
    engine.submit(0.0, job(1, 1, 160, 32));
    drain(&mut engine, 1e6);
    engine.submit(1e6, job(2, 1, 250, 1));
    let out = drain(&mut engine, 2e6);
    assert_eq!(out[0].cached, Some(192), "160 of prompt and 32 of answer, whole blocks");
    assert_eq!(out[0].at, 1e6 + 58.0);
}

#[test]
fn prefill_stalls_running_decodes() {
    let mut engine = Engine::new(params());
    engine.submit(0.0, job(1, 1, 16, 50));
    let _ = drain(&mut engine, 16.0);
    engine.submit(16.0, job(2, 2, 300, 1));
    let at: Vec<f64> = drain(&mut engine, 400.0).iter().filter(|token| token.id == 1).map(|token| token.at).collect();
    assert_eq!(at[..4], [27.0, 138.0, 249.0, 360.0], "each chunk of 100 tokens sits between two tokens");
}

#[test]
fn late_caller_gets_the_same_schedule() {
    let run = |step: f64| {
        let mut engine = Engine::new(params());
        engine.submit(0.0, job(1, 1, 500, 40));
        engine.submit(0.0, job(2, 1, 700, 40));
        let mut out = Vec::new();
        let mut now = 0.0;
        while now < 5000.0 {
            now += step;
            engine.advance(now, &mut out);
        }
        out
    };
    assert_eq!(run(1.0), run(977.0));
}

#[test]
fn leaving_in_queue_prefill_and_decode_stops_the_work() {
    let mut engine = Engine::new(Params { max_running: 1, ..params() });
    engine.submit(0.0, job(1, 1, 1000, 10));
    engine.submit(0.0, job(2, 2, 1000, 10));
    let _ = drain(&mut engine, 350.0);
    assert!(engine.cancel(350.0, 2), "queued");
    assert!(engine.cancel(350.0, 1), "in prefill");
    let _ = drain(&mut engine, 1e6);
    let stats = engine.stats();
    assert_eq!((stats.running, stats.waiting, stats.aborted, stats.kv_held), (0, 0, 2, 0));
    assert!(stats.prefill_tokens <= 400, "the chunk that ran, no more: {}", stats.prefill_tokens);
    engine.submit(1e6, job(3, 1, 1000, 100));
    let out = drain(&mut engine, 1e6 + 1000.0);
    assert!(out[0].cached >= Some(288), "what was read stays cached");
    assert!(engine.cancel(1e6 + 1000.0, 3), "in decode");
    assert!(!engine.cancel(1e6 + 1000.0, 3), "only once");
    assert_eq!(engine.promised, 0);
}

#[test]
fn frozen_makes_no_progress_and_thaws_where_it_stopped() {
    let mut engine = Engine::new(params());
    engine.submit(0.0, job(1, 1, 100, 1));
    engine.set_frozen(40.0, true);
    assert!(drain(&mut engine, 1e6).is_empty());
    assert_eq!(engine.next_at(), None);
    engine.set_frozen(1000.0, false);
    assert_eq!(drain(&mut engine, 1e6)[0].at, 1060.0);
}

#[test]
fn too_large_for_the_cache_runs_alone_and_others_still_run() {
    let mut engine = Engine::new(Params { kv_tokens: 160, ..params() });
    engine.submit(0.0, job(1, 1, 1000, 20));
    engine.submit(0.0, job(2, 2, 100, 20));
    engine.submit(0.0, job(3, 1, 1000, 20));
    let ended = drain(&mut engine, 1e6).iter().filter(|token| token.done.is_some()).count();
    assert_eq!((ended, engine.promised, engine.stats().kv_held), (3, 0, 0));
}

#[test]
fn slow_stretches_both_phases() {
    let mut engine = Engine::new(params());
    engine.set_slowdown(3.0);
    engine.submit(0.0, job(1, 1, 100, 2));
    let at: Vec<f64> = drain(&mut engine, 1e6).iter().map(|token| token.at).collect();
    assert_eq!(at, [300.0, 333.0]);
}

proptest! {
    #[test]
    fn every_request_ends_once_and_nothing_leaks(
        kv in 4usize..60,
        jobs in prop::collection::vec((0u64..4, 1usize..600, 1usize..30, 0f64..300.0, any::<bool>()), 1..25),
    ) {
        let mut engine = Engine::new(Params { kv_tokens: kv * 16, max_running: 4, ..params() });
        let (mut now, mut out, mut cancelled) = (0.0, Vec::new(), 0);
        for (id, (session, prompt, output, gap, leave)) in jobs.iter().enumerate() {
            now += gap;
            engine.advance(now, &mut out);
            engine.submit(now, job(id as u64, *session, *prompt, *output));
            if *leave && engine.cancel(now, id as u64 / 2) {
                cancelled += 1;
            }
            prop_assert!(engine.cache.len() <= engine.cache.capacity());
        }
        engine.advance(1e9, &mut out);
        let done = out.iter().filter(|token| token.done.is_some()).count();
        prop_assert_eq!(done + cancelled, jobs.len());
        prop_assert_eq!((engine.promised, engine.cache.pinned()), (0, 0));
        prop_assert!(out.windows(2).all(|pair| pair[0].at <= pair[1].at));
    }
}
