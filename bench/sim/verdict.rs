//! Whether `cost` keeps its promise on a workload: close to the oracle that picks the earliest first token, and, seed by
//! seed, not worse than the best rule that is not this router's own.
//!
//! Close is 3 % of its turns and 10 % of its TTFT p95, as means over the seeds. Worse beyond noise is what a sign test calls
//! so: the same seed is the same work for both rules, and if neither were better, so many seeds would speak against
//! `cost` in one of twenty cases at most (seven of eight, say). It does not ask by how much: that is shown beside.

use serde_json::json;

use super::measure::Row;
use super::rule::{is_oracle, is_own};
use super::table::Table;
use crate::num::share;

/// The rule that is judged.
const JUDGED: &str = "cost";
/// The oracle of the promise: it picks the earliest first token.
pub(crate) const ORACLE: &str = "oracle_ttft";
/// What it may differ from the oracle.
const TURNS: f64 = 0.97;
const P95: f64 = 1.10;
/// How often a verdict of "worse" may be chance.
const CHANCE: f64 = 0.05;

/// What is compared: turns a minute and TTFT p95.
type Pair<T> = [T; 2];

/// The judged rule on one workload.
#[derive(Debug)]
pub(crate) struct Verdict {
    workload: &'static str,
    seeds: usize,
    /// as ratios to the oracle of the promise, and to the best of all oracles
    to_oracle: Pair<f64>,
    to_best: Pair<f64>,
    /// the best of the other rules, and how it compares with the oracle of the promise
    rule: &'static str,
    rule_to_oracle: Pair<f64>,
    against: Pair<Paired>,
}

/// A figure of the judged rule against another one's, seed by seed, as shares of the other's; above 0 is worse.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Paired {
    median: f64,
    least: f64,
    most: f64,
    worse: u32,
    better: u32,
}

impl Paired {
    fn of(mut differences: Vec<f64>) -> Self {
        differences.sort_unstable_by(f64::total_cmp);
        let at = |n: usize| differences.get(n).copied().unwrap_or(0.0);
        let n = differences.len();
        let count = |is: fn(f64) -> bool| u32::try_from(differences.iter().filter(|d| is(**d)).count()).unwrap_or(0);
        Self {
            median: f64::midpoint(at(n / 2), at(n.saturating_sub(1) / 2)),
            least: at(0),
            most: at(n.saturating_sub(1)),
            worse: count(|d| d > 0.0),
            better: count(|d| d < 0.0),
        }
    }

    /// Whether chance alone would rarely make it worse so often. Equal seeds say nothing.
    fn is_worse(&self) -> bool {
        let n = self.worse + self.better;
        // of 2^n outcomes, those that are as bad
        let (mut ways, mut bad) = (1.0, 0.0);
        for k in (self.worse..=n).rev() {
            bad += ways;
            ways *= f64::from(k) / f64::from(n - k + 1);
        }
        n > 0 && bad <= CHANCE * f64::from(n).exp2()
    }
}

impl Verdict {
    /// `None` where the rule was not run, or nothing that it is compared with.
    pub(crate) fn of(table: &Table) -> Option<Self> {
        let ((own, runs), (oracle, _)) = (table.find(JUDGED)?, table.find(ORACLE)?);
        let (_, best) = table.best(is_oracle)?;
        let (rule, other) = table.best(|name| !is_oracle(name) && !is_own(name))?;
        let (_, others) = table.find(rule)?;
        let seeds = || runs.iter().zip(others);
        let fewer = |(a, b): (&Row, &Row)| 1.0 - share(a.per_minute, b.per_minute);
        let later = |(a, b): (&Row, &Row)| share(a.ttft_p95_s, b.ttft_p95_s) - 1.0;
        Some(Self {
            workload: table.workload.name,
            seeds: runs.len(),
            to_oracle: ratios(&own, &oracle),
            to_best: ratios(&own, &best),
            rule,
            rule_to_oracle: ratios(&other, &oracle),
            against: [Paired::of(seeds().map(fewer).collect()), Paired::of(seeds().map(later).collect())],
        })
    }

    /// What of the promise is broken; empty if nothing is.
    pub(crate) fn broken(&self) -> Vec<&'static str> {
        let [turns, p95] = self.to_oracle;
        let [fewer, later] = self.against.map(|paired| paired.is_worse());
        let all = [
            (turns < TURNS, "turns < oracle"),
            (p95 > P95, "p95 > oracle"),
            (fewer, "turns < best rule"),
            (later, "p95 > best rule"),
        ];
        all.into_iter().filter(|(is_broken, _)| *is_broken).map(|(_, what)| what).collect()
    }

    fn line(&self) -> String {
        let pair = |[turns, p95]: Pair<f64>| format!("{turns:>6.3} {p95:>6.3}");
        let against = |p: &Paired| {
            let [median, least, most] = [p.median, p.least, p.most].map(|d| d * 100.0);
            format!("{median:>+6.1}% ({least:+.1}..{most:+.1}), {}/{}", p.worse, self.seeds)
        };
        let [fewer, later] = &self.against;
        let broken = self.broken();
        format!(
            "  {:<13} {}  {}  {:<12} {}  {:<27} {:<27} {}\n",
            self.workload,
            pair(self.to_oracle),
            pair(self.to_best),
            self.rule,
            pair(self.rule_to_oracle),
            against(fewer),
            against(later),
            if broken.is_empty() { "kept".into() } else { broken.join(", ") },
        )
    }

    /// As a JSON line.
    pub(crate) fn json(&self) -> String {
        let against = |p: &Paired| json!({ "median": p.median, "least": p.least, "most": p.most, "worse": p.worse, "beyond_noise": p.is_worse() });
        let [fewer, later] = &self.against;
        let value = json!({
            "verdict": self.workload,
            "seeds": self.seeds,
            "to_oracle_ttft": self.to_oracle,
            "to_best_oracle": self.to_best,
            "best_rule": self.rule,
            "best_rule_to_oracle_ttft": self.rule_to_oracle,
            "fewer_turns": against(fewer),
            "later_p95": against(later),
            "broken": self.broken(),
        });
        format!("{value}\n")
    }
}

/// Turns a minute and TTFT p95 of one as ratios to those of another.
pub(crate) fn ratios(a: &Row, b: &Row) -> Pair<f64> {
    [share(a.per_minute, b.per_minute), share(a.ttft_p95_s, b.ttft_p95_s)]
}

/// All verdicts as a table.
pub(crate) fn text(verdicts: &[Verdict]) -> String {
    let Some(seeds) = verdicts.first().map(|verdict| verdict.seeds) else { return String::new() };
    let mut out =
        format!("{JUDGED} against the oracles and the best other rule, {seeds} seeds; pairs are turns, TTFT p95\n");
    out += &format!(
        "  {:<13} {:<13}  {:<13}  {:<12} {:<13}  {:<27} {:<27} promise\n",
        "workload",
        "× oracle_ttft",
        "× best oracle",
        "best rule",
        "× oracle_ttft",
        "fewer turns than it, seeds",
        "later p95, seeds"
    );
    verdicts.iter().for_each(|verdict| out += &verdict.line());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worse_is_what_chance_rarely_makes_it() {
        let of = |worse: usize, better: usize| {
            let differences = [vec![0.01; worse], vec![-0.05; better]].concat();
            Paired::of(differences).is_worse()
        };
        // 1 + 8 of 256, 1 + 8 + 28 of 256, 1 of 16, 1 of 32
        for (worse, better, want) in
            [(8, 0, true), (7, 1, true), (6, 2, false), (4, 0, false), (5, 0, true), (0, 8, false), (0, 0, false)]
        {
            assert_eq!(of(worse, better), want, "{worse} {better}");
        }
        assert!(!Paired::of(vec![0.0; 9]).is_worse());
    }

    #[test]
    fn a_pair_is_told_by_its_middle_and_its_ends() {
        let paired = Paired::of(vec![0.3, -0.1, 0.0, 0.2]);
        assert_eq!((paired.median, paired.least, paired.most, paired.worse, paired.better), (0.1, -0.1, 0.3, 2, 1));
    }
}
