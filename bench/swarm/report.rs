//! From single turns to the figures that are compared. Pure.

use serde_json::{Value, json};

use crate::num::{share, size};

/// One finished turn. Times are virtual ms.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    /// since the start of the load
    pub(crate) ended: f64,
    pub(crate) ttft: f64,
    pub(crate) total: f64,
    pub(crate) prompt: u64,
    pub(crate) cached: u64,
    /// the engine's own time, where it says so
    pub(crate) simulated: Option<f64>,
    /// `None` on a developer's first turn or where no header names the replica
    pub(crate) same_replica: Option<bool>,
}

/// What one engine did during the measured time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct EngineUse {
    pub(crate) busy: f64,
    pub(crate) kv: f64,
    pub(crate) late_ms: f64,
}

/// The figures of one run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Report {
    pub(crate) turns: usize,
    pub(crate) turns_per_min: f64,
    pub(crate) cached_share: f64,
    pub(crate) prompt_mean: f64,
    pub(crate) ttft: [f64; 3],
    pub(crate) turn: [f64; 2],
    pub(crate) same_replica: f64,
    pub(crate) failures: usize,
    /// requests sent again on a new connection, from start to end
    pub(crate) resent: usize,
    /// share of the turns' time that no engine simulated: network, proxy, and the machine being late
    pub(crate) overhead: f64,
    pub(crate) engines: Vec<EngineUse>,
}

impl Report {
    /// Figures of the turns that ended in `from..to`.
    pub(crate) fn of(samples: &[Sample], from: f64, to: f64) -> Self {
        let inside: Vec<&Sample> = samples.iter().filter(|s| s.ended >= from && s.ended < to).collect();
        let sorted = |value: fn(&Sample) -> f64| {
            let mut values: Vec<f64> = inside.iter().map(|sample| value(sample)).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let (ttft, turn) = (sorted(|s| s.ttft), sorted(|s| s.total));
        let sum = |value: fn(&Sample) -> f64| inside.iter().map(|sample| value(sample)).sum::<f64>();
        let known = sum(|s| f64::from(u8::from(s.same_replica.is_some())));
        let timed = sum(|s| s.simulated.map_or(0.0, |_| s.total));
        let prompt = sum(|s| s.prompt as f64);
        Self {
            turns: inside.len(),
            turns_per_min: share(inside.len() as f64, (to - from) / 60e3),
            cached_share: share(sum(|s| s.cached as f64), prompt),
            prompt_mean: share(prompt, inside.len() as f64),
            ttft: [0.5, 0.95, 0.99].map(|p| quantile(&ttft, p)),
            turn: [0.5, 0.95].map(|p| quantile(&turn, p)),
            same_replica: share(sum(|s| f64::from(u8::from(s.same_replica == Some(true)))), known),
            failures: 0,
            resent: 0,
            overhead: share(timed - sum(|s| s.simulated.unwrap_or(0.0)), timed),
            engines: Vec::new(),
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        let engines: Vec<Value> = self
            .engines
            .iter()
            .map(|e| json!({"busy_share": e.busy, "kv_share": e.kv, "late_ms": e.late_ms}))
            .collect();
        json!({
            "turns": self.turns, "turns_per_min": self.turns_per_min, "cached_share": self.cached_share,
            "prompt_tokens_mean": self.prompt_mean, "ttft_ms": {"p50": self.ttft[0], "p95": self.ttft[1],
            "p99": self.ttft[2]}, "turn_ms": {"p50": self.turn[0], "p95": self.turn[1]},
            "same_replica_share": self.same_replica, "failures": self.failures, "resent": self.resent, "overhead_share": self.overhead,
            "engines": engines,
        })
    }

    /// Lines for a person.
    pub(crate) fn to_text(&self) -> String {
        let [p50, p95, p99] = self.ttft.map(|ms| ms / 1e3);
        let [t50, t95] = self.turn.map(|ms| ms / 1e3);
        let mut text = format!(
            "turns/min          {:.0}   ({} turns measured)\n\
             cached share       {:.1} %   (mean prompt {:.0} tokens)\n\
             TTFT               p50 {p50:.2} s   p95 {p95:.2} s   p99 {p99:.2} s\n\
             turn               p50 {t50:.2} s   p95 {t95:.2} s\n\
             same replica       {:.1} %\n\
             failures           {}   ({} requests sent again: the kept connection was closed)\n\
             not simulated      {:.1} % of turn time (network, proxy, lag)\n",
            self.turns_per_min,
            self.turns,
            self.cached_share * 100.0,
            self.prompt_mean,
            self.same_replica * 100.0,
            self.failures,
            self.resent,
            self.overhead * 100.0
        );
        for (at, engine) in self.engines.iter().enumerate() {
            text.push_str(&format!(
                "engine {at}           busy {:.0} %   kv {:.0} %   steps late {:.1} ms\n",
                engine.busy * 100.0,
                engine.kv * 100.0,
                engine.late_ms
            ));
        }
        text.push_str(&self.warning().map_or(String::new(), |warning| format!("{warning}\n")));
        text
    }

    /// Says so when the machine, not the engines, set the pace.
    pub(crate) fn warning(&self) -> Option<String> {
        (self.overhead > 0.10).then(|| {
            format!(
                "warning: {:.0} % of turn time was not simulated (limit 10 %): lower --time-scale or use an idle machine",
                self.overhead * 100.0
            )
        })
    }
}

/// The nearest-rank quantile of sorted values; 0 when there are none.
pub(crate) fn quantile(sorted: &[f64], p: f64) -> f64 {
    let rank = size((p * sorted.len() as f64).ceil()).max(1) - 1;
    sorted.get(rank.min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(ended: f64, ttft: f64, same: Option<bool>) -> Sample {
        Sample { ended, ttft, total: 1000.0, prompt: 100, cached: 80, simulated: Some(950.0), same_replica: same }
    }

    #[test]
    fn only_the_window_counts() {
        let samples: Vec<Sample> =
            (0..120).map(|at| sample(f64::from(at) * 1e3, f64::from(at), Some(at % 4 != 0))).collect();
        let report = Report::of(&samples, 60e3, 120e3);
        assert_eq!(report.turns, 60);
        assert!((report.turns_per_min - 60.0).abs() < 1e-9);
        assert!((report.cached_share - 0.8).abs() < 1e-9);
        assert!((report.same_replica - 0.75).abs() < 1e-9);
        assert!((report.overhead - 0.05).abs() < 1e-9);
        assert!((report.ttft[0] - 89.0).abs() < 1e-9);
    }

    #[test]
    fn nothing_measured_is_zeroes() {
        let report = Report::of(&[], 0.0, 0.0);
        assert_eq!((report.turns, report.turns_per_min.to_bits()), (0, 0));
        assert_eq!(quantile(&[], 0.5).to_bits(), 0);
        assert_eq!(quantile(&[1.0, 2.0], 0.99).to_bits(), 2f64.to_bits());
    }
}
