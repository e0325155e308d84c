//! The runs of all settings as tables for a reader and as JSON for a program. Pure.

use serde_json::{Value, json};

use super::Run;
use crate::load::batch::Batches;
use crate::load::report::Report;
use crate::num::share;

/// Median, least and most.
fn spread(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let median = match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    };
    [median, values.first().copied().unwrap_or(0.0), values.last().copied().unwrap_or(0.0)]
}

fn median(runs: &[Run], value: impl Fn(&Run) -> f64) -> f64 {
    spread(runs.iter().map(value).collect())[0]
}

/// A figure against the first setting's, round by round.
fn ratios(runs: &[Run], base: &[Run], value: fn(&Report) -> f64) -> [f64; 3] {
    spread(runs.iter().zip(base).map(|(run, base)| share(value(&run.report), value(&base.report))).collect())
}

fn turns(report: &Report) -> f64 {
    report.turns_per_min
}

fn p95(report: &Report) -> f64 {
    report.ttft[1]
}

fn batches(report: &Report) -> Batches {
    report.batches.unwrap_or_default()
}

/// Several tables where requests are asked together.
pub(super) fn text(policies: &[String], runs: &[Vec<Run>]) -> String {
    let base = policies.first().map_or("", String::as_str);
    let heads = [
        format!("{:10}", "policy"),
        format!("{:>20}", "turns/min (min-max)"),
        format!("{:>20}", format!("vs {base} (min-max)")),
        format!("{:>22}", "TTFT s p50/p95/p99"),
        format!("{:>20}", format!("p95 vs {base}")),
        format!("{:>15}", "turn s p50/p95"),
        format!("{:>8}", "cached"),
        format!("{:>8}", "same"),
        format!("{:>8}", "busiest"),
        format!("{:>7}", "failed"),
        format!("{:>5}", "open"),
        format!("{:>9}", "not sim."),
        format!("{:>8}", "late ms"),
        format!("{:>7}", "cpu"),
        format!("{:>14}", "router ms/turn"),
    ];
    let mut text = format!("{}\n", heads.join(" "));
    let first = runs.first().map_or(&[][..], Vec::as_slice);
    for (policy, these) in policies.iter().zip(runs) {
        text.push_str(&row(policy, these, first));
    }
    if first.iter().any(|run| run.report.batches.is_some()) {
        text.push_str(&fanouts(policies, runs));
    }
    for (policy, runs) in policies.iter().zip(runs) {
        for run in runs {
            text.extend(run.report.warnings().iter().map(|warning| format!("{policy}: {warning}\n")));
            text.extend(run.failures.iter().map(|(kind, n)| format!("{policy}: failed {n} times: {kind}\n")));
        }
    }
    text
}

fn row(policy: &str, runs: &[Run], base: &[Run]) -> String {
    let [per_min, least, most] = spread(runs.iter().map(|run| turns(&run.report)).collect());
    let of = |[ratio, low, high]: [f64; 3]| format!("{ratio:.3} ({low:.3}-{high:.3})");
    let seconds = |value: fn(&Report) -> f64| median(runs, |run| value(&run.report)) / 1e3;
    let percent = |value: fn(&Report) -> f64| format!("{:.1} %", median(runs, |run| value(&run.report)) * 100.0);
    let ttft = format!("{:.2}/{:.2}/{:.2}", seconds(|r| r.ttft[0]), seconds(|r| r.ttft[1]), seconds(|r| r.ttft[2]));
    let turn = format!("{:.2}/{:.2}", seconds(|r| r.turn[0]), seconds(|r| r.turn[1]));
    let failed: usize = runs.iter().map(|run| run.report.failures).sum();
    let cells = [
        format!("{policy:10}"),
        format!("{:>20}", format!("{per_min:.0} ({least:.0}-{most:.0})")),
        format!("{:>20}", of(ratios(runs, base, turns))),
        format!("{ttft:>22}"),
        format!("{:>20}", of(ratios(runs, base, p95))),
        format!("{turn:>15}"),
        format!("{:>8}", percent(|r| r.cached_share)),
        format!("{:>8}", percent(|r| r.same_replica)),
        format!("{:>8}", percent(Report::busiest)),
        format!("{failed:>7}"),
        format!("{:>5.0}", median(runs, |run| run.report.unfinished as f64)),
        format!("{:>9}", percent(|r| r.overhead)),
        format!("{:>8.1}", median(runs, |run| run.report.late[1])),
        format!("{:>7}", format!("{:.0} %", median(runs, |run| run.cpu) * 100.0)),
        format!("{:>14.2}", median(runs, |run| run.router_cpu_ms)),
    ];
    format!("{}\n", cells.join(" "))
}

fn fanouts(policies: &[String], runs: &[Vec<Run>]) -> String {
    let base = policies.first().map_or("", String::as_str);
    let mut text = format!(
        "{:10} {:>14} {:>20} {:>16} {:>18} {:>14} {:>24}\n",
        "policy",
        "fan-outs/min",
        format!("vs {base} (min-max)"),
        "all s p50/p95",
        "prefills/fan-out",
        "replicas used",
        "over one per replica"
    );
    let first = runs.first().map_or(&[][..], Vec::as_slice);
    for (policy, runs) in policies.iter().zip(runs) {
        let of = |value: fn(&Batches) -> f64| median(runs, |run| value(&batches(&run.report)));
        let [ratio, low, high] = ratios(runs, first, |report| batches(report).per_min);
        text.push_str(&format!(
            "{policy:10} {:>14.1} {:>20} {:>16} {:>18.2} {:>14.2} {:>22.1} %\n",
            of(|b| b.per_min),
            format!("{ratio:.3} ({low:.3}-{high:.3})"),
            format!("{:.2}/{:.2}", of(|b| b.took[0]) / 1e3, of(|b| b.took[1]) / 1e3),
            of(|b| b.full),
            of(|b| b.replicas),
            of(|b| b.excess) * 100.0
        ));
    }
    text
}

/// One object per setting.
pub(super) fn json(policies: &[String], runs: &[Vec<Run>]) -> Value {
    let base = runs.first().map_or(&[][..], Vec::as_slice);
    let of = |[median, min, max]: [f64; 3]| json!({"median": median, "min": min, "max": max});
    let all = policies.iter().zip(runs).map(|(policy, runs)| {
        let reports: Vec<Value> = runs.iter().map(|run| run.report.to_json()).collect();
        json!({
            "policy": policy, "turns_per_min": median(runs, |run| turns(&run.report)),
            "ratio": of(ratios(runs, base, turns)), "ttft_p95_ratio": of(ratios(runs, base, p95)), "rounds": reports,
            "machine_cpu_share": median(runs, |run| run.cpu),
            "router_cpu_ms_per_turn": median(runs, |run| run.router_cpu_ms),
        })
    });
    Value::Array(all.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(turns_per_min: f64) -> Run {
        Run { report: Report { turns_per_min, ..Report::default() }, ..Run::default() }
    }

    #[test]
    fn median_of_odd_and_even() {
        assert_eq!(spread(vec![3.0, 1.0, 2.0]), [2.0, 1.0, 3.0]);
        assert_eq!(spread(vec![1.0, 2.0]), [1.5, 1.0, 2.0]);
        assert_eq!(spread(vec![]), [0.0; 3]);
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let (base, fast) = ([run(100.0), run(200.0)], [run(110.0), run(220.0)]);
        assert!(ratios(&fast, &base, turns).iter().all(|ratio| (ratio - 1.1).abs() < 1e-9));
    }

    #[test]
    fn fanouts_get_a_table_of_their_own_where_there_are_any() {
        let names = ["load".to_owned(), "cost".to_owned()];
        assert!(!text(&names, &[vec![run(1.0)], vec![run(2.0)]]).contains("fan-outs/min"));
        let fan = |per_min, full| {
            let batches = Some(Batches { per_min, full, excess: 0.25, ..Batches::default() });
            Run { report: Report { batches, ..Report::default() }, ..Run::default() }
        };
        let text = text(&names, &[vec![fan(10.0, 9.5)], vec![fan(20.0, 1.5)]]);
        assert!(text.contains("fan-outs/min") && text.contains("2.000 (2.000-2.000)"), "{text}");
        assert!(text.contains("9.50") && text.contains("25.0 %"), "{text}");
    }
}
