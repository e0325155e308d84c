//! Each population on real sockets, against simulated engines without a router.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use super::*;
use crate::engine::Fleet;
use crate::engine::params::Params;
use crate::load::measure;
use crate::load::report::Report;
use crate::load::target::{Spread, Target};

/// Fast enough that hours of the population pass in seconds.
const SCALE: f64 = 200.0;

async fn fleet(count: u16) -> Fleet {
    let params = Params { time_scale: SCALE, events_per_s: 5.0, ..Params::shipped() };
    Fleet::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), count, "sim", &params).await.unwrap()
}

fn course(fleet: &Fleet, spread: Spread) -> Course {
    let engines: Vec<String> = fleet.engines.iter().map(|engine| engine.url()).collect();
    Course { target: Target::of(&engines, spread).unwrap(), model: "sim".to_owned(), time_scale: SCALE }
}

/// Lets a load that never ends run until its figures are enough.
async fn until(load: Load, enough: impl Fn(&Report) -> bool) -> Report {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let report = load.board.report(0.0, f64::INFINITY);
        if enough(&report) {
            return report;
        }
        assert!(Instant::now() < deadline, "never enough: {report:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Forty requests that begin with the same two blocks, then go their own way.
fn trace() -> Trace {
    let mut file = tempfile();
    for at in 0..40u64 {
        let line = serde_json::json!({"timestamp": at * 50, "input_length": 1500, "output_length": 3,
            "hash_ids": [7, 8, 100 + at]});
        writeln!(file.1, "{line}").unwrap();
    }
    let recording = Recording { file: Some(file.0.clone()), speed: 1.0, skip: 0.0, requests: None };
    let trace = recording.read().unwrap();
    assert!(Recording { skip: 3.0, ..recording }.read().unwrap_err().contains("ends after 1.95 s"));
    std::fs::remove_file(&file.0).unwrap();
    trace
}

fn tempfile() -> (PathBuf, std::fs::File) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("ramjet-bench-trace-{}-{number}", std::process::id()));
    (path.clone(), std::fs::File::create(path).unwrap())
}

#[tokio::test]
async fn chat_grows_conversations_that_are_found_again() {
    let fleet = fleet(2).await;
    let load = Crowd::chat(&Users { users: 20 }, 1).start(&course(&fleet, Spread::Sticky));
    let report = until(load, |report| report.turns >= 100).await;
    assert_eq!((report.failures, report.batches), (0, None));
    assert!(report.cached_share > 0.3, "{report:?}");
    assert!((report.same_replica - 1.0).abs() < 1e-9, "sticky sessions stay: {report:?}");
    assert_eq!(report.replicas.len(), 2);
}

#[tokio::test]
async fn fanout_counts_full_prefills_and_replicas() {
    for (spread, replicas) in [(Spread::Sticky, 1.0), (Spread::Rotate, 2.0)] {
        let fleet = fleet(2).await;
        let load = Crowd::fanout(&Programs { programs: 1 }, 1).start(&course(&fleet, spread));
        let report = until(load, |report| report.batches.is_some_and(|batches| batches.count >= 3)).await;
        let batches = report.batches.unwrap();
        assert!(report.turns >= 10 * batches.count && report.failures == 0, "{report:?}");
        // an engine reads one prompt at a time, so the nine that wait find what the first has read
        assert!((batches.full - replicas).abs() < 1e-9 && (batches.replicas - replicas).abs() < 1e-9, "{batches:?}");
        assert_eq!(batches.excess.to_bits(), 0);
    }
}

#[tokio::test]
async fn trace_ends_by_itself_and_equal_blocks_are_found() {
    let fleet = fleet(1).await;
    let load = Crowd::trace(trace()).start(&course(&fleet, Spread::Sticky));
    let (report, _) = measure(load, &Pace { warmup: 0.0, duration: 30.0 }, &[]).await;
    assert_eq!((report.turns, report.failures, report.unfinished), (40, 0, 0));
    // what the roles of a prompt add
    assert!((report.prompt_mean - 1508.0).abs() < 1e-9, "{report:?}");
    assert!((0.55..0.70).contains(&report.cached_share), "1024 of 1508 tokens are common: {report:?}");
}

#[tokio::test]
async fn failures_are_counted_and_not_measured_as_turns() {
    let fleet = fleet(1).await;
    fleet.set_faults(&["503".to_owned()]).unwrap();
    let load = Crowd::trace(trace().part(0.0, 1.0, Some(5))).start(&course(&fleet, Spread::Sticky));
    let (_, board) = measure(load, &Pace { warmup: 0.0, duration: 30.0 }, &[]).await;
    // from its beginning: the first one may fail before measuring begins
    let report = board.report(0.0, f64::INFINITY);
    assert_eq!((report.turns, report.failures), (0, 5));
    assert_eq!(board.failures().into_iter().collect::<Vec<_>>(), [("status 503".to_owned(), 5)]);
}

#[test]
fn a_recording_needs_a_file_and_a_direction() {
    let recording = Recording { file: None, speed: 1.0, skip: 0.0, requests: None };
    assert!(recording.read().unwrap_err().contains("--file"));
    assert!(Recording { speed: 0.0, ..recording }.read().unwrap_err().contains("--speed"));
}
