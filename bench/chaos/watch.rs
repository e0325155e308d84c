//! The router from outside: its memory while it works, and its gauges when all is over.

use std::time::{Duration, Instant};

use super::client::get;
use crate::memory::{Growth, Memory};
use crate::num::to_float;

/// Gauges that are zero when nobody is asking.
const AT_REST: [&str; 6] = [
    "ramjet_requests_inflight",
    "ramjet_requests_placed",
    "ramjet_reservations",
    "ramjet_queue_length",
    "ramjet_upstream_inflight",
    "ramjet_upstream_load_units",
];
/// By then everything has been noticed, time-outs included.
const REST_WITHIN: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// In shorter runs memory is not judged: what an allocator holds goes up and down by more than a leak would add.
const LEAST_JUDGED: f64 = 100.0;
/// What the second half may add, by its slope, in MiB: as much as it goes up and down.
const MOST_GROWTH: f64 = 1.5;

/// Whether memory is judged in a run of so many seconds.
pub(crate) fn judges(duration: f64) -> bool {
    duration >= LEAST_JUDGED
}

/// What the second half added by its slope, in MiB; a sentence; and whether that is too much. So many requests were made in
/// all.
pub(crate) fn judge(memory: &Memory, requests: u64) -> (String, bool) {
    let Some(Growth { half, end, by, until }) = memory.growth() else {
        return ("memory: unknown".to_owned(), false);
    };
    let each = |mib: f64| crate::num::share(mib * 1024.0 * 1024.0, to_float(requests) / 2.0);
    let text = format!(
        "memory: {half:.1} MiB at half time, {end:.1} MiB at the end; by the slope of the second half {by:+.2} MiB, {:+.0} \
         bytes a request (bound {MOST_GROWTH} MiB: more than {:.0} bytes a request are found)",
        each(by),
        each(MOST_GROWTH),
    );
    match judges(until) {
        true => (text, by > MOST_GROWTH),
        false => (format!("{text}, not judged: the run is too short"), false),
    }
}

/// Waits until everything that must be zero is, and says how long that took.
pub(crate) async fn rest(admin: &str) -> Result<Duration, String> {
    let began = Instant::now();
    loop {
        let page = get(admin, "/metrics").await?;
        let busy: Vec<&str> = page.lines().filter(|line| is_busy(line)).collect();
        if busy.is_empty() {
            return Ok(began.elapsed());
        }
        if began.elapsed() > REST_WITHIN {
            return Err(format!("at rest these are not zero: {}", busy.join(", ")));
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

fn is_busy(line: &str) -> bool {
    let Some((name, value)) = line.rsplit_once(' ') else { return false };
    let name = name.split('{').next().unwrap_or_default();
    AT_REST.contains(&name) && value.parse() != Ok(0.0)
}

/// The sum of a counter over its labels that contain `part`.
pub(crate) fn total(page: &str, name: &str, part: &str) -> f64 {
    let lines = page.lines().filter(|line| line.starts_with(name) && line.contains(part));
    lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(mib: impl Fn(f64) -> f64) -> Memory {
        Memory::of((0..600).map(|n| (f64::from(n), mib(f64::from(n)))).collect())
    }

    #[test]
    fn growth_is_told_from_noise() {
        let judge = |memory: Memory| judge(&memory, 40_000);
        assert!(!judge(memory(|at| 60.0 + (at * 7.0) % 5.0)).1);
        assert!(!judge(memory(|at| at.min(200.0))).1, "the first half does not count");
        let (text, grows) = judge(memory(|at| 60.0 + at * 0.006));
        assert!(grows && text.contains("+1.80 MiB, +94 bytes a request"), "{text}");
    }

    #[test]
    fn gauges_are_found_with_and_without_labels() {
        for (line, busy) in [
            ("ramjet_requests_inflight 0", false),
            ("ramjet_requests_inflight 2", true),
            ("ramjet_upstream_load_units{upstream=\"a\"} 1", true),
            ("ramjet_requests_total{code=\"200\"} 7", false),
            ("# HELP ramjet_requests_inflight Requests being served.", false),
        ] {
            assert_eq!(is_busy(line), busy, "{line}");
        }
        assert_eq!(total("a{x=\"1\"} 2\na{x=\"2\"} 3\nb 7", "a{", "x=\"2\""), 3.0);
    }
}
