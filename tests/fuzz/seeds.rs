//! Every seed of the fuzz targets, and everything that they once found, through their oracles: what was found stays fixed
//! without a fuzzer.

#![expect(clippy::unwrap_used, reason = "a test that meets the unexpected should stop")]

mod oracles;

use std::path::Path;

fn replay(target: &str) {
    let (_, oracle) = oracles::ALL.into_iter().find(|(name, _)| *name == target).unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/seeds").join(target);
    let mut seeds: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    seeds.sort();
    assert!(seeds.len() > 5, "{} seeds", seeds.len());
    for seed in seeds {
        // a failure is about the last one that is named
        println!("{}", seed.display());
        oracle(&std::fs::read(seed).unwrap());
    }
}

#[test]
fn requests_are_read_as_they_are_meant() {
    replay("request");
}

#[test]
fn streams_are_read_alike_however_they_are_cut() {
    replay("sse");
}

#[test]
fn equal_prompts_have_equal_fingerprints() {
    replay("canonical");
}

#[test]
fn configurations_are_taken_or_refused_by_line() {
    replay("config");
}

#[test]
fn what_a_store_says_is_read_or_left_alone() {
    replay("cluster");
}

#[test]
fn what_an_engine_says_of_its_cache_is_read_as_it_is_meant_and_bounded() {
    replay("kv_events");
}
