//! The day is kept, adds up, and never takes more memory than it says.

use super::*;
use crate::pack;

const BOUNDS: [f64; 2] = [1.0, 2.0];

fn sample(requests: f64, in_flight: f64, replicas: &[(&str, f64)]) -> Sample {
    let mut fleet = Sums::default();
    fleet.counts.requests = requests;
    fleet.gauges.in_flight = in_flight;
    let of = |(name, tokens): &(&str, f64)| {
        ((*name).to_owned(), AtReplica { in_flight, prompt_tokens: *tokens, ..AtReplica::default() })
    };
    Sample { fleet, replicas: replicas.iter().map(of).collect() }
}

fn requests(points: &[Point<Sums>]) -> f64 {
    points.iter().map(|p| p.sums.counts.requests).sum()
}

#[test]
fn points_add_up_to_what_was_counted_and_gauges_to_their_mean() {
    let history = History::new(&BOUNDS);
    // what was counted before the first sample belongs to nobody here
    for (n, second) in (1000..1300).enumerate() {
        history.sample(f64::from(second), sample(50.0 + 2.0 * n as f64, 7.0, &[("a", 100.0 * n as f64)]));
    }
    let (step, hour) = history.series(Span::Hour);
    assert_eq!((step, hour.len(), requests(&hour)), (10, 30, 598.0));
    let (step, day) = history.series(Span::Day);
    assert_eq!((step, requests(&day)), (120, 598.0));
    let whole = hour[5];
    assert_eq!((whole.seconds, whole.samples, whole.sums.counts.requests), (10.0, 10.0, 20.0));
    assert_eq!(whole.sums.gauges.in_flight / whole.samples, 7.0);
    let (step, replica) = history.of_replica("a").unwrap();
    assert_eq!((step, replica.iter().map(|p| p.sums.prompt_tokens).sum::<f64>()), (300, 29_900.0));
    assert!(history.of_replica("b").is_none());
    let now = history.now(1299.0);
    assert_eq!((now.seconds, now.sums.counts.requests), (60.0, 120.0));
}

#[test]
fn a_day_of_load_and_ten_more_take_what_is_said_and_no_more() {
    let history = History::new(&BOUNDS);
    let names: Vec<String> = (0..20).map(|n| format!("replica-{n}")).collect();
    let mut after_a_day = 0;
    for minute in 0..11 * 24 * 60_u32 {
        let replicas: Vec<_> = names.iter().map(|n| (n.as_str(), f64::from(minute))).collect();
        history.sample(f64::from(minute) * 60.0, sample(f64::from(minute), 1.0, &replicas));
        if minute == 25 * 60 {
            after_a_day = history.bytes();
        }
    }
    assert_eq!(history.bytes(), after_a_day);
    let most = FIXED_BYTES + names.len() * (REPLICA_BYTES + 16);
    assert!(after_a_day <= most, "{after_a_day} of {most}");
    const { assert!(FIXED_BYTES < 320 << 10 && REPLICA_BYTES <= 16 << 10) };
    let (_, day) = history.series(Span::Day);
    assert!(day.len() <= DAY.keeps && requests(&day) >= 24.0 * 60.0 - 3.0, "{}", requests(&day));
    assert!(day.last().unwrap().at - day[0].at <= 24 * 3600);
}

#[test]
fn replicas_that_left_are_forgotten_after_a_day_and_more_than_fit_are_not_taken() {
    let history = History::new(&BOUNDS);
    let names: Vec<String> = (0..2 * MOST_REPLICAS).map(|n| n.to_string()).collect();
    let many: Vec<_> = names.iter().map(|n| (n.as_str(), 1.0)).collect();
    history.sample(0.0, sample(0.0, 0.0, &many));
    history.sample(1.0, sample(0.0, 0.0, &many));
    assert_eq!(history.past.lock().replicas.len(), MOST_REPLICAS);
    history.sample(100_000.0, sample(0.0, 0.0, &[("new", 1.0)]));
    assert_eq!(history.past.lock().replicas.len(), 1);
}

#[test]
fn gaps_clocks_that_go_back_and_counters_that_fall_make_no_nonsense() {
    let history = History::new(&BOUNDS);
    for (at, total) in [(1000.0, 10.0), (1001.0, 20.0), (900.0, 25.0), (901.0, 5.0), (1_000_000.0, 6.0)] {
        history.sample(at, sample(total, 0.0, &[]));
    }
    let (_, hour) = history.series(Span::Hour);
    assert_eq!(hour.iter().map(|p| (p.at, p.sums.counts.requests)).collect::<Vec<_>>(), [(1_000_000, 1.0)]);
    assert!(hour.iter().all(|p| p.seconds >= 0.0 && p.seconds <= 3600.0));
}

#[test]
fn the_next_process_goes_on() {
    let old = History::new(&BOUNDS);
    for second in 0..500 {
        old.sample(f64::from(second), sample(f64::from(second), 1.0, &[("a", f64::from(second))]));
    }
    let handed: HistoryState = pack::open(&pack::seal(&old.state())).unwrap();
    let new = History::new(&BOUNDS);
    new.restore(handed);
    assert_eq!(new.state(), old.state());
    // its counters begin with what it was told
    new.sample(501.0, sample(499.0, 1.0, &[]));
    new.sample(502.0, sample(502.0, 1.0, &[]));
    assert_eq!(requests(&new.series(Span::Hour).1), 499.0 + 3.0);
    // more than is kept is not taken
    let much = HistoryState { hour: vec![Point::default(); 5000], ..HistoryState::default() };
    new.restore(much);
    assert_eq!(new.series(Span::Hour).1.len(), HOUR.keeps);
}

#[test]
fn quantiles_lie_within_their_bucket() {
    let history = History::new(&BOUNDS);
    let mut buckets = [0.0; TTFT_BUCKETS];
    assert_eq!(history.quantile(0.5, &buckets), None);
    buckets[1] = 10.0;
    assert_eq!(history.quantile(0.5, &buckets), Some(1.5));
    buckets[0] = 10.0;
    assert_eq!(history.quantile(0.25, &buckets), Some(0.5));
    // beyond the last bound
    buckets[2] = 1000.0;
    assert_eq!(history.quantile(0.95, &buckets), Some(2.0));
}
