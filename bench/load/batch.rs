//! Requests that are asked at the same instant about the same new text: how often that text was read in full. Pure.
//!
//! Whoever routes them well reads it once per replica that is used, whatever the number of requests.

use serde_json::{Value, json};

use super::client::Reply;
use super::report::quantile;
use crate::num::share;

/// A request that finds less than this share of the common text cached has read it.
const FOUND: f64 = 0.5;

/// Requests asked together, all answered.
#[derive(Debug, Clone)]
pub(crate) struct Batch {
    /// virtual ms since the load started
    pub(crate) ended: f64,
    /// virtual ms from the first request to the last answer
    pub(crate) took: f64,
    /// requests that read the common text in full
    pub(crate) full: usize,
    /// replicas that got any of them
    pub(crate) replicas: usize,
}

impl Batch {
    /// `common` is the share of each prompt that all of them begin with.
    pub(crate) fn of(ended: f64, took: f64, replies: &[(&Reply, f64)]) -> Self {
        let read = |(reply, common): &&(&Reply, f64)| {
            let usage = reply.usage.unwrap_or_default();
            (usage.cached as f64) < FOUND * common * usage.prompt as f64
        };
        let mut replicas: Vec<&String> = replies.iter().filter_map(|(reply, _)| reply.replica.as_ref()).collect();
        replicas.sort();
        replicas.dedup();
        Self { ended, took, full: replies.iter().filter(read).count(), replicas: replicas.len() }
    }
}

/// The figures of many of them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Batches {
    pub(crate) count: usize,
    pub(crate) per_min: f64,
    /// virtual ms until all were answered: p50, p95
    pub(crate) took: [f64; 2],
    /// full reads of the common text, mean
    pub(crate) full: f64,
    /// replicas used, mean
    pub(crate) replicas: f64,
    /// share of the batches in which some replica must have read the text more than once
    pub(crate) excess: f64,
}

impl Batches {
    /// Figures of those that ended in `from..to`; `None` where there are none.
    pub(crate) fn of(batches: &[Batch], from: f64, to: f64) -> Option<Self> {
        let inside: Vec<&Batch> = batches.iter().filter(|b| b.ended >= from && b.ended < to).collect();
        let count = inside.len() as f64;
        let mean = |value: fn(&Batch) -> f64| share(inside.iter().map(|batch| value(batch)).sum(), count);
        let mut took: Vec<f64> = inside.iter().map(|batch| batch.took).collect();
        took.sort_by(f64::total_cmp);
        (!inside.is_empty()).then(|| Self {
            count: inside.len(),
            per_min: share(count, (to - from) / 60e3),
            took: [0.5, 0.95].map(|p| quantile(&took, p)),
            full: mean(|b| b.full as f64),
            replicas: mean(|b| b.replicas as f64),
            excess: mean(|b| f64::from(u8::from(b.full > b.replicas))),
        })
    }

    pub(crate) fn to_json(self) -> Value {
        json!({
            "count": self.count, "per_min": self.per_min, "answered_ms": {"p50": self.took[0], "p95": self.took[1]},
            "full_prefills_mean": self.full, "replicas_mean": self.replicas, "excess_share": self.excess,
        })
    }

    /// Lines for a person.
    pub(crate) fn to_text(self) -> String {
        let [p50, p95] = self.took.map(|ms| ms / 1e3);
        format!(
            "fan-outs/min       {:.1}   ({} measured)   all answered after p50 {p50:.2} s   p95 {p95:.2} s\n\
             full prefills      {:.2} of the new prefix per fan-out, on {:.2} replicas; more than one per replica in {:.1} %\n",
            self.per_min,
            self.count,
            self.full,
            self.replicas,
            self.excess * 100.0
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::sse::Usage;

    fn reply(replica: &str, prompt: u64, cached: u64) -> Reply {
        let usage = Some(Usage { prompt, cached, simulated_total: None });
        let replica = Some(replica.to_owned());
        Reply { replica, ttft_ms: 1.0, total_ms: 2.0, usage, answer: String::new() }
    }

    #[test]
    fn a_full_read_finds_less_than_half_of_what_is_common() {
        // 900 of 1000 tokens are common; 100 of them are known to everybody
        let full = |all: [Reply; 3]| {
            let batch = Batch::of(5.0, 2.0, &all.each_ref().map(|reply| (reply, 0.9)));
            (batch.full, batch.replicas)
        };
        assert_eq!(full([reply("a", 1000, 100), reply("a", 1000, 896), reply("b", 1000, 449)]), (2, 2));
        assert_eq!(full([reply("a", 1000, 0), reply("a", 1000, 0), reply("a", 1000, 450)]), (2, 1));
    }

    #[test]
    fn excess_counts_batches_with_more_reads_than_replicas() {
        let batch = |ended, full, replicas| Batch { ended, took: 10.0, full, replicas };
        let all = [batch(1.0, 1, 1), batch(2.0, 3, 2), batch(3.0, 2, 2), batch(4.0, 1, 3), batch(99.0, 9, 1)];
        let figures = Batches::of(&all, 0.0, 60.0).unwrap();
        assert_eq!((figures.count, figures.full.to_bits()), (4, 1.75f64.to_bits()));
        assert!((figures.excess - 0.25).abs() < 1e-9 && (figures.replicas - 2.0).abs() < 1e-9);
        assert_eq!(Batches::of(&all, 200.0, 300.0), None);
    }
}
