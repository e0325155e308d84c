//! Results as tables for readers and as JSON lines for programs.

use serde_json::json;

use super::measure::Row;
use super::rule::is_oracle;
use super::verdict::{ORACLE, ratios};
use super::workload::Workload;
use crate::num::share;

/// A workload's rules with their figures.
#[derive(Debug)]
pub(crate) struct Table<'a> {
    pub(crate) workload: &'a Workload,
    pub(crate) rows: Vec<(&'static str, Row)>,
    /// the same seed by seed, in the same order
    pub(crate) runs: Vec<Vec<Row>>,
}

impl Table<'_> {
    /// The figures of a rule, and seed by seed.
    pub(crate) fn find(&self, rule: &str) -> Option<(Row, &[Row])> {
        let at = self.rows.iter().position(|(name, _)| *name == rule)?;
        Some((self.rows[at].1, &self.runs[at]))
    }

    /// The best of some rules: who does more turns, or of two that do as many (within 1 %) who answers earlier.
    pub(crate) fn best(&self, of: impl Fn(&str) -> bool) -> Option<(&'static str, Row)> {
        let those = self.rows.iter().filter(|(name, _)| of(name)).copied();
        those.reduce(|best, other| {
            let faster = share(other.1.per_minute, best.1.per_minute) - 1.0;
            let better = faster > 0.01 || (faster > -0.01 && other.1.ttft_p95_s < best.1.ttft_p95_s);
            if better { other } else { best }
        })
    }

    /// As text.
    pub(crate) fn text(&self) -> String {
        let (reference, literal) = (self.best(is_oracle), self.find(ORACLE));
        let n = self.workload.slowdown.len();
        let mut out = format!("{}: {}, {n} replicas", self.workload.name, self.workload.about);
        if let (Some((reference, _)), Some((rule, _))) = (reference, self.best(|name| !is_oracle(name))) {
            out += &format!(" (reference: {reference}; best rule: {rule})");
        }
        out += "\n  rule            turns/min  p50 s  p95 s  p99 s  max s  reused  sticky  busy  crowd  err cached/ttft   turns   p95 × reference   turns   p95 × oracle_ttft\n";
        for (name, row) in &self.rows {
            let [turns, p95] = reference.map_or([0.0; 2], |(_, r)| ratios(row, &r));
            let [turns_ttft, p95_ttft] = literal.map_or([0.0; 2], |(r, _)| ratios(row, &r));
            out += &format!(
                "  {name:<15} {:>9.0} {:>6.2} {:>6.2} {:>6.2} {:>6.1} {:>6.1}% {:>6.1}% {:>5.2} {:>6.2} {:>6.1}%/{:>5.0}% {turns:>7.3} {p95:>7.2}            {turns_ttft:>8.3} {p95_ttft:>7.2}\n",
                row.per_minute,
                row.ttft_p50_s,
                row.ttft_p95_s,
                row.ttft_p99_s,
                row.longest_s,
                row.reused * 100.0,
                row.sticky * 100.0,
                row.busy,
                row.crowd,
                row.mistaken * 100.0,
                row.mistimed * 100.0,
            );
        }
        out
    }

    /// One JSON object per line.
    pub(crate) fn json(&self) -> String {
        let (reference, literal) = (self.best(is_oracle), self.find(ORACLE));
        let line = |(name, row): &(&str, Row)| {
            let ratio = |field: fn(&Row) -> f64| reference.map(|(_, r)| share(field(row), field(&r)));
            let value = json!({
                "workload": self.workload.name,
                "rule": name,
                "reference": reference.map(|(name, _)| name),
                "per_minute": row.per_minute,
                "ttft_p50_s": row.ttft_p50_s,
                "ttft_p95_s": row.ttft_p95_s,
                "ttft_p99_s": row.ttft_p99_s,
                "longest_s": row.longest_s,
                "reused": row.reused,
                "sticky": row.sticky,
                "imbalance": row.busy,
                "crowding": row.crowd,
                "cached_error": row.mistaken,
                "ttft_error": row.mistimed,
                "lost": row.lost,
                "to_oracle_ttft": literal.map(|(r, _)| ratios(row, &r)),
                "per_minute_ratio": ratio(|r| r.per_minute),
                "ttft_p95_ratio": ratio(|r| r.ttft_p95_s),
            });
            format!("{value}\n")
        };
        self.rows.iter().map(line).collect()
    }
}
