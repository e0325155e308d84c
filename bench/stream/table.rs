//! The figures of all rounds as Markdown for a reader and as JSON for a program. Pure.

use std::fmt::Write;

use serde_json::{Value, json};

use super::{Heard, Row};
use crate::num::share;
use crate::overhead::table::{Spread, spread};

struct Figures {
    rate: Spread,
    added: [Spread; 3],
    cpu: Spread,
    /// KiB beyond what the process had before
    a_stream: f64,
    /// share of a processor
    busy: Spread,
    lost: usize,
}

fn figures(row: &Row, rows: &[Row]) -> Figures {
    let is_direct = |r: &&Row| r.streams == row.streams && r.target == "direct";
    let direct = rows.iter().find(is_direct).map_or(&[][..], |r| &r.rounds);
    let of = |value: &dyn Fn(&Heard) -> f64| spread(row.rounds.iter().map(value));
    let added = [0, 1, 2].map(|at| spread(row.rounds.iter().zip(direct).map(|(h, d)| h.latency[at] - d.latency[at])));
    let grown = |h: &Heard| h.memory[1].rss.saturating_sub(h.memory[0].rss) as f64 / 1024.0;
    Figures {
        rate: of(&|h| share(h.events as f64, h.seconds)),
        added,
        cpu: of(&|h| share(h.cpu * 1e6, h.events as f64)),
        // later rounds find memory that was not given back
        a_stream: share(of(&grown).most, row.streams as f64),
        busy: of(&|h| share(h.cpu, h.seconds) * 100.0),
        lost: row.rounds.iter().map(|h| h.lost).sum(),
    }
}

pub(super) fn markdown(rows: &[Row]) -> String {
    let mut out = String::from(
        "Median of the rounds (least–most).\n\n| streams | target | events/s | added p50 µs | added p99 µs | \
         added p99.9 µs | CPU µs an event | of a processor | KiB a stream |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let f = figures(row, rows);
        let lost = if f.lost == 0 { String::new() } else { format!(" **{} lost**", f.lost) };
        let is_direct = row.target == "direct";
        let [p50, p99, p999] = f.added.map(|s| if is_direct { "–".to_owned() } else { s.text(0) });
        let known = |text: String| if f.cpu.median > 0.0 { text } else { String::from("–") };
        let _ = writeln!(
            out,
            "| {} | {}{lost} | {:.0} | {p50} | {p99} | {p999} | {} | {} | {} |",
            row.streams,
            row.target,
            f.rate.median,
            known(f.cpu.text(1)),
            known(format!("{:.0} %", f.busy.median)),
            known(format!("{:.1}", f.a_stream)),
        );
    }
    out
}

pub(super) fn json(rows: &[Row]) -> Value {
    let row = |row: &Row| {
        let f = figures(row, rows);
        let rounds: Vec<Value> = row
            .rounds
            .iter()
            .map(|h| {
                json!({"events": h.events, "lost": h.lost, "seconds": h.seconds, "latency_us": h.latency, "cpu_s": h.cpu,
                    "rss_before": h.memory[0].rss, "rss": h.memory[1].rss, "pss": h.memory[1].pss})
            })
            .collect();
        json!({
            "streams": row.streams, "target": row.target, "lost": f.lost, "events_per_s": f.rate.json(),
            "added_p50_us": f.added[0].json(), "added_p99_us": f.added[1].json(), "added_p999_us": f.added[2].json(),
            "cpu_us": f.cpu.json(), "kib_a_stream": f.a_stream, "rounds": rounds,
        })
    };
    json!({"rows": rows.iter().map(row).collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overhead::usage::Memory;

    #[test]
    fn an_event_costs_what_it_takes_longer_than_directly() {
        let heard = |us: f64, rss: u64| Heard {
            events: 1000,
            seconds: 1.0,
            latency: [us, 2.0 * us, 3.0 * us],
            cpu: 0.01,
            memory: [Memory::default(), Memory { rss, pss: rss }],
            lost: 0,
        };
        let row = |target: &str, rounds| Row { streams: 10, target: target.to_owned(), rounds };
        let rows = [row("direct", vec![heard(5.0, 0); 2]), row("x", vec![heard(9.0, 40 << 10), heard(7.0, 20 << 10)])];
        let f = figures(&rows[1], &rows);
        assert_eq!(f.added[0], Spread { median: 3.0, least: 2.0, most: 4.0 });
        assert!((f.cpu.median - 10.0).abs() < 1e-9 && (f.a_stream - 4.0).abs() < 1e-9);
        assert!(markdown(&rows).contains("| 10 | x | 1000 | 3 (2–4) |"));
    }

    #[test]
    fn a_lost_stream_is_not_hidden() {
        let rows = [Row { streams: 1, target: "x".to_owned(), rounds: vec![Heard { lost: 1, ..Heard::default() }] }];
        assert!(markdown(&rows).contains("**1 lost**"));
        assert_eq!(json(&rows)["rows"][0]["lost"], 1);
    }
}
