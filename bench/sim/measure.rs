//! What a run is judged by, collected while it is watched.

use std::collections::{HashMap, HashSet};

use crate::num::{share, size};

/// What happened between the end of the warm-up and the end of the run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    pub(crate) turns: u64,
    pub(crate) lost: u64,
    pub(crate) ttft_ms: Vec<f64>,
    /// how long those had waited that had no first token at the end
    pub(crate) still_ms: Vec<f64>,
    pub(crate) prompt_tokens: u64,
    pub(crate) reusable_tokens: u64,
    pub(crate) cached_tokens: u64,
    pub(crate) followed: u64,
    pub(crate) stayed: u64,
    /// sum of |believed − true| cached tokens, where the rule had a belief
    pub(crate) mistaken_tokens: u64,
    /// the same for the time to first token
    pub(crate) mistaken_ms: f64,
    pub(crate) waited_ms: f64,
    pub(crate) busy_ms: Vec<f64>,
    /// time that completed requests spent at each replica
    pub(crate) spent_ms: Vec<f64>,
}

/// What has been said so far: the cache of infinite size that no engine has.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    blocks: HashSet<u64>,
    last: HashMap<u64, usize>,
}

impl Memory {
    /// How many leading blocks somebody has had before.
    pub(crate) fn known(&self, chain: &[u64]) -> usize {
        chain.partition_point(|block| self.blocks.contains(block))
    }

    pub(crate) fn learn(&mut self, chain: &[u64]) {
        // what is known is a prefix, so only the rest is new
        let from = self.known(chain);
        self.blocks.extend(&chain[from..]);
    }

    /// Where the session was before, now that it goes to `replica`.
    pub(crate) fn moved(&mut self, session: u64, replica: usize) -> Option<usize> {
        self.last.insert(session, replica)
    }
}

/// One line of a table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Row {
    pub(crate) per_minute: f64,
    pub(crate) ttft_p50_s: f64,
    pub(crate) ttft_p95_s: f64,
    pub(crate) ttft_p99_s: f64,
    /// the longest that anybody waited, those included who still did at the end
    pub(crate) longest_s: f64,
    /// share of the reusable tokens that were reused
    pub(crate) reused: f64,
    /// share of a session's turns that stay where the one before was
    pub(crate) sticky: f64,
    /// busy time of the busiest replica to the mean
    pub(crate) busy: f64,
    /// time requests spent at the most crowded replica to the mean: tells replicas apart that are all always busy
    pub(crate) crowd: f64,
    /// mean error of the belief about cached tokens, as a share of the prompt
    pub(crate) mistaken: f64,
    /// mean error of the expected time to first token, as a share of it
    pub(crate) mistimed: f64,
    /// requests that were cut off
    pub(crate) lost: f64,
}

impl Tally {
    pub(crate) fn new(replicas: usize) -> Self {
        Self { spent_ms: vec![0.0; replicas], ..Self::default() }
    }

    /// The figures of a run watched for so many ms.
    pub(crate) fn row(&self, watched_ms: f64) -> Row {
        let mut ttft = self.ttft_ms.clone();
        ttft.sort_unstable_by(f64::total_cmp);
        let at = |q: f64| quantile(&ttft, q) / 1000.0;
        Row {
            per_minute: self.turns as f64 * 60e3 / watched_ms,
            ttft_p50_s: at(0.50),
            ttft_p95_s: at(0.95),
            ttft_p99_s: at(0.99),
            longest_s: ttft.iter().chain(&self.still_ms).copied().fold(0.0, f64::max) / 1000.0,
            reused: share(self.cached_tokens as f64, self.reusable_tokens as f64),
            sticky: share(self.stayed as f64, self.followed as f64),
            busy: imbalance(&self.busy_ms),
            crowd: imbalance(&self.spent_ms),
            mistaken: share(self.mistaken_tokens as f64, self.prompt_tokens as f64),
            mistimed: share(self.mistaken_ms, self.waited_ms),
            lost: self.lost as f64,
        }
    }
}

impl Row {
    /// The mean of several seeds' rows.
    pub(crate) fn mean(rows: &[Row]) -> Row {
        let of = |field: fn(&Row) -> f64| rows.iter().map(field).sum::<f64>() / rows.len().max(1) as f64;
        Row {
            per_minute: of(|r| r.per_minute),
            ttft_p50_s: of(|r| r.ttft_p50_s),
            ttft_p95_s: of(|r| r.ttft_p95_s),
            ttft_p99_s: of(|r| r.ttft_p99_s),
            longest_s: of(|r| r.longest_s),
            reused: of(|r| r.reused),
            sticky: of(|r| r.sticky),
            busy: of(|r| r.busy),
            crowd: of(|r| r.crowd),
            mistaken: of(|r| r.mistaken),
            mistimed: of(|r| r.mistimed),
            lost: of(|r| r.lost),
        }
    }
}

/// The largest to the mean.
fn imbalance(of: &[f64]) -> f64 {
    let mean = of.iter().sum::<f64>() / of.len().max(1) as f64;
    share(of.iter().copied().fold(0.0, f64::max), mean)
}

fn quantile(sorted: &[f64], q: f64) -> f64 {
    let at = size(q * sorted.len() as f64).min(sorted.len().saturating_sub(1));
    sorted.get(at).copied().unwrap_or(0.0)
}
