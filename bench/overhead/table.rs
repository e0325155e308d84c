//! The figures of all rounds as Markdown for a reader and as JSON for a program. Pure.

use std::fmt::Write;

use serde_json::{Value, json};

use super::Row;
use super::fire::Hit;
use crate::num::share;

const MIB: f64 = 1_048_576.0;

/// Median, least and most.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

/// Of no values, zeroes.
pub(crate) fn spread(values: impl Iterator<Item = f64>) -> Spread {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let median = match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    };
    Spread { median, least: values.first().copied().unwrap_or(0.0), most: values.last().copied().unwrap_or(0.0) }
}

impl Spread {
    pub(crate) fn text(self, digits: usize) -> String {
        format!("{:.digits$} ({:.digits$}–{:.digits$})", self.median, self.least, self.most)
    }

    pub(crate) fn json(self) -> Value {
        json!({"median": self.median, "least": self.least, "most": self.most})
    }
}

fn rate(hit: &Hit) -> f64 {
    share(hit.requests as f64, hit.seconds)
}

/// Microseconds of processor time a request.
fn cpu(hit: &Hit) -> f64 {
    share(hit.cpu * 1e6, hit.requests as f64)
}

/// The figures of one row; those beside others are of the same round.
struct Figures {
    rate: Spread,
    added: [Spread; 2],
    cpu: Spread,
    /// requests a second, and processor time a request, over ramjet's
    beside: [Spread; 2],
    rss: f64,
    failures: u64,
}

fn figures(row: &Row, rows: &[Row]) -> Figures {
    let other = |name: &str| {
        let of_cell = |r: &&Row| r.bytes == row.bytes && r.connections == row.connections && r.target == name;
        rows.iter().find(of_cell).map_or(&[][..], |r| &r.hits)
    };
    let (direct, ramjet) = (other("direct"), other("ramjet"));
    let added = [0, 1].map(|at| spread(row.hits.iter().zip(direct).map(|(h, d)| h.latency[at] - d.latency[at])));
    let over = |value: fn(&Hit) -> f64| spread(row.hits.iter().zip(ramjet).map(|(h, r)| share(value(h), value(r))));
    Figures {
        rate: spread(row.hits.iter().map(rate)),
        added,
        cpu: spread(row.hits.iter().map(cpu)),
        beside: [over(rate), over(cpu)],
        rss: row.hits.iter().map(|h| h.memory.rss as f64 / MIB).fold(0.0, f64::max),
        failures: row.hits.iter().map(|h| h.failures).sum(),
    }
}

/// A table for each size of body.
pub(super) fn markdown(rows: &[Row], pinned: bool) -> String {
    let mut out = String::from(if pinned {
        "Targets have one processor, engines and load the others. "
    } else {
        "One processor for all: requests a second are of no use. "
    });
    out.push_str("Median of the rounds (least–most).\n");
    let mut size = None;
    for row in rows {
        if size.replace(row.bytes) != Some(row.bytes) {
            let _ = write!(
                out,
                "\nBodies of {} KiB\n\n| connections | target | requests/s | ÷ ramjet's | added p50 µs | added p99 µs \
                 | CPU µs a request | ÷ ramjet's | RSS MiB |\n|---|---|---|---|---|---|---|---|---|\n",
                row.bytes >> 10
            );
        }
        let f = figures(row, rows);
        let failures = if f.failures == 0 { String::new() } else { format!(" **{} failed**", f.failures) };
        let is_direct = row.target == "direct";
        let cell = |text: String| if is_direct { String::from("–") } else { text };
        let known = |text: String| if f.cpu.median > 0.0 { text } else { String::from("–") };
        let _ = writeln!(
            out,
            "| {} | {}{failures} | {} | {} | {} | {} | {} | {} | {} |",
            row.connections,
            row.target,
            f.rate.text(0),
            cell(f.beside[0].text(2)),
            cell(f.added[0].text(0)),
            cell(f.added[1].text(0)),
            known(f.cpu.text(1)),
            known(f.beside[1].text(2)),
            known(format!("{:.0}", f.rss)),
        );
    }
    out
}

pub(super) fn json(rows: &[Row], pinned: bool) -> Value {
    let row = |row: &Row| {
        let f = figures(row, rows);
        let rounds: Vec<Value> = row.hits.iter().map(round).collect();
        json!({
            "body_bytes": row.bytes, "connections": row.connections, "target": row.target, "failures": f.failures,
            "requests_per_s": f.rate.json(), "added_p50_us": f.added[0].json(), "added_p99_us": f.added[1].json(),
            "cpu_us": f.cpu.json(), "rate_over_ramjet": f.beside[0].json(), "cpu_over_ramjet": f.beside[1].json(),
            "rss_mib": f.rss, "rounds": rounds,
        })
    };
    json!({"pinned": pinned, "rows": rows.iter().map(row).collect::<Vec<_>>()})
}

fn round(hit: &Hit) -> Value {
    json!({
        "requests": hit.requests, "failures": hit.failures, "seconds": hit.seconds, "p50_us": hit.latency[0],
        "p99_us": hit.latency[1], "cpu_s": hit.cpu, "rss": hit.memory.rss, "pss": hit.memory.pss,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(target: &str, rate: &[u64], p50: f64) -> Row {
        let hit = |n: &u64| Hit { requests: *n, seconds: 1.0, latency: [p50, 2.0 * p50], cpu: 0.5, ..Hit::default() };
        Row { bytes: 1024, connections: 1, target: target.to_owned(), hits: rate.iter().map(hit).collect() }
    }

    #[test]
    fn rounds_are_compared_with_their_own() {
        let rows = [row("direct", &[100, 50], 10.0), row("ramjet", &[50, 25], 30.0), row("x", &[100, 25], 40.0)];
        let f = figures(&rows[2], &rows);
        assert_eq!(f.beside[0], Spread { median: 1.5, least: 1.0, most: 2.0 });
        assert_eq!(f.added[0], Spread { median: 30.0, least: 30.0, most: 30.0 });
        assert!((f.cpu.most - 20_000.0).abs() < 1e-6);
        let text = markdown(&rows, true);
        assert!(text.contains("| 1 | x | 62 (25–100) | 1.50 (1.00–2.00) | 30 (30–30) | 60 (60–60) |"), "{text}");
        assert_eq!(json(&rows, true)["rows"][1]["added_p50_us"]["median"], 20.0);
    }

    #[test]
    fn a_failure_is_not_hidden() {
        let mut bad = row("x", &[1], 1.0);
        bad.hits[0].failures = 3;
        assert!(markdown(&[bad], false).contains("**3 failed**"));
    }
}
