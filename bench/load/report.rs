//! From single turns to the figures that are compared. Pure.

use serde_json::{Map, Value, json};

use super::batch::Batches;
use crate::num::{share, size};

/// Requests may leave late by this share of what an answer takes.
const LATE_SHARE: f64 = 0.10;

/// One finished turn. Times are virtual ms.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    /// since the start of the load
    pub(crate) ended: f64,
    /// how long after its due time it left
    pub(crate) late: f64,
    pub(crate) ttft: f64,
    pub(crate) total: f64,
    pub(crate) prompt: u64,
    pub(crate) cached: u64,
    /// the engine's own time, where it says so
    pub(crate) simulated: Option<f64>,
    /// `None` on a session's first turn or where no header names the replica
    pub(crate) same_replica: Option<bool>,
    /// which one answered, as the board numbers them
    pub(crate) replica: Option<usize>,
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
    /// requests that were still open at the end
    pub(crate) unfinished: usize,
    /// virtual ms that requests left after their due time: p50, p99
    pub(crate) late: [f64; 2],
    /// share of the machine's processors that this process used while measuring
    pub(crate) cpu: f64,
    /// share of the turns' time that no engine simulated: network, proxy, and the machine being late
    pub(crate) overhead: f64,
    /// turns by replica, as the replies name them
    pub(crate) replicas: Vec<(String, usize)>,
    /// where requests are asked several at once
    pub(crate) batches: Option<Batches>,
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
        let (ttft, turn, late) = (sorted(|s| s.ttft), sorted(|s| s.total), sorted(|s| s.late));
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
            late: [0.5, 0.99].map(|p| quantile(&late, p)),
            overhead: share(timed - sum(|s| s.simulated.unwrap_or(0.0)), timed),
            ..Self::default()
        }
    }

    /// Share of the turns that the busiest replica answered.
    pub(crate) fn busiest(&self) -> f64 {
        let most = self.replicas.iter().map(|(_, turns)| *turns).max().unwrap_or(0);
        share(most as f64, self.replicas.iter().map(|(_, turns)| *turns as f64).sum())
    }

    pub(crate) fn to_json(&self) -> Value {
        let engines: Vec<Value> = self
            .engines
            .iter()
            .map(|e| json!({"busy_share": e.busy, "kv_share": e.kv, "late_ms": e.late_ms}))
            .collect();
        let replicas: Map<String, Value> =
            self.replicas.iter().map(|(name, turns)| (name.clone(), Value::from(*turns))).collect();
        json!({
            "turns": self.turns, "turns_per_min": self.turns_per_min, "cached_share": self.cached_share,
            "prompt_tokens_mean": self.prompt_mean, "ttft_ms": {"p50": self.ttft[0], "p95": self.ttft[1],
            "p99": self.ttft[2]}, "turn_ms": {"p50": self.turn[0], "p95": self.turn[1]},
            "same_replica_share": self.same_replica, "failures": self.failures, "resent": self.resent,
            "unfinished": self.unfinished, "overhead_share": self.overhead, "cpu_share": self.cpu,
            "late_ms": {"p50": self.late[0], "p99": self.late[1]}, "turns_by_replica": replicas,
            "batches": self.batches.map(Batches::to_json), "engines": engines,
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
             failures           {}   ({} requests sent again: the kept connection was closed; {} open at the end)\n\
             not simulated      {:.1} % of turn time (network, proxy, lag)\n\
             this process       {:.0} % of the processors; requests left late by p50 {:.1} ms, p99 {:.1} ms\n",
            self.turns_per_min,
            self.turns,
            self.cached_share * 100.0,
            self.prompt_mean,
            self.same_replica * 100.0,
            self.failures,
            self.resent,
            self.unfinished,
            self.overhead * 100.0,
            self.cpu * 100.0,
            self.late[0],
            self.late[1]
        );
        text.push_str(&self.batches.map_or(String::new(), Batches::to_text));
        text.push_str(&self.balance());
        for (at, engine) in self.engines.iter().enumerate() {
            text.push_str(&format!(
                "engine {at}           busy {:.0} %   kv {:.0} %   steps late {:.1} ms\n",
                engine.busy * 100.0,
                engine.kv * 100.0,
                engine.late_ms
            ));
        }
        text.extend(self.warnings().iter().map(|warning| format!("{warning}\n")));
        text
    }

    fn balance(&self) -> String {
        let all: usize = self.replicas.iter().map(|(_, turns)| turns).sum();
        let percent = |turns: usize| format!("{:.1} %", share(turns as f64, all as f64) * 100.0);
        let parts: Vec<String> =
            self.replicas.iter().map(|(name, turns)| format!("{name} {}", percent(*turns))).collect();
        if parts.is_empty() { String::new() } else { format!("turns by replica   {}\n", parts.join("   ")) }
    }

    /// Says so when the machine, not the engines, set the pace.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let advice = "lower --time-scale or use an idle machine";
        let mut all = Vec::new();
        if self.overhead > 0.10 {
            let share = self.overhead * 100.0;
            all.push(format!("warning: {share:.0} % of turn time was not simulated (limit 10 %): {advice}"));
        }
        if self.late[1] > LATE_SHARE * self.turn[0] {
            let (late, turn) = (self.late[1], self.turn[0]);
            all.push(format!(
                "warning: the load fell behind its schedule: 1 % of the requests left more than {late:.0} ms late, \
                 an answer takes {turn:.0} ms: {advice}"
            ));
        }
        if self.cpu > 0.8 {
            all.push(format!("warning: this process used {:.0} % of the processors: {advice}", self.cpu * 100.0));
        }
        all
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
        let (total, prompt, cached, simulated) = (1000.0, 100, 80, Some(950.0));
        Sample { ended, late: ttft, ttft, total, prompt, cached, simulated, same_replica: same, replica: None }
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
    fn a_load_behind_its_schedule_says_so() {
        let report = |late| Report::of(&vec![Sample { late, ..sample(1.0, 5.0, None) }; 50], 0.0, 60e3);
        assert_eq!(report(99.0).warnings(), Vec::<String>::new());
        assert!(report(101.0).warnings()[0].contains("left more than 101 ms late"));
    }

    #[test]
    fn the_busiest_replica_is_named_by_its_share() {
        let report = |replicas: &[(&str, usize)]| Report {
            replicas: replicas.iter().map(|(name, turns)| ((*name).to_owned(), *turns)).collect(),
            ..Report::default()
        };
        assert!((report(&[("a", 10), ("b", 30)]).busiest() - 0.75).abs() < 1e-9);
        assert_eq!(report(&[]).busiest().to_bits(), 0);
        assert!(report(&[("a", 10), ("b", 30)]).to_text().contains("a 25.0 %   b 75.0 %"));
    }

    #[test]
    fn nothing_measured_is_zeroes() {
        let report = Report::of(&[], 0.0, 0.0);
        assert_eq!((report.turns, report.turns_per_min.to_bits()), (0, 0));
        assert_eq!(quantile(&[], 0.5).to_bits(), 0);
        assert_eq!(quantile(&[1.0, 2.0], 0.99).to_bits(), 2f64.to_bits());
    }
}
