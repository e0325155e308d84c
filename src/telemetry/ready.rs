//! What every request counts, with the series at hand: to find one by its labels takes longer than to count.

use super::metrics::{Metrics, Outcome};
use super::status::{codes, place};
use crate::api::endpoint::Endpoint;
use crate::policy::accounts::Accounts;
use crate::policy::lane::Gate;
use crate::policy::select::{Decision, Reason};
use prometheus::{Histogram, IntCounter, IntCounterVec};
use std::time::Duration;

/// Series whose labels are closed sets, each in the order of its set.
#[derive(Default)]
pub(super) struct Ready {
    /// By endpoint, status, and whether the answer is streamed.
    requests: Box<[IntCounter]>,
    durations: Box<[Histogram]>,
    decisions: Box<[IntCounter]>,
    lanes: Box<[IntCounter]>,
    /// Those of what had to be read.
    accounts: Box<[IntCounter]>,
}

impl Ready {
    /// The series of `metrics`, which are there from now on.
    pub(super) fn of(metrics: &Metrics) -> Self {
        let requests = Endpoint::ALL.iter().flat_map(|endpoint| {
            codes().flat_map(|code| {
                ["false", "true"].map(|stream| metrics.requests.with_label_values(&[endpoint.label(), code, stream]))
            })
        });
        let accounts = Accounts::default().all().map(|(account, _)| account);
        Ready {
            requests: requests.collect(),
            durations: Endpoint::ALL.iter().map(|e| metrics.duration.with_label_values(&[e.label()])).collect(),
            decisions: by_label(&metrics.decisions, Reason::ALL.map(Reason::label)),
            lanes: by_label(&metrics.lane, Gate::ALL.map(Gate::label)),
            accounts: by_label(&metrics.uncached_tokens, accounts),
        }
    }

    fn request(&self, o: &Outcome) -> Option<&IntCounter> {
        let row = o.endpoint as usize * codes().len() + place(o.status);
        self.requests.get(2 * row + usize::from(o.stream))
    }

    /// Requests that ended with a status whose label is wanted.
    pub(super) fn ended(&self, wanted: impl Fn(&str) -> bool) -> u64 {
        let codes = Endpoint::ALL.iter().flat_map(|_| codes().flat_map(|code| [code, code]));
        codes.zip(&self.requests).filter(|(code, _)| wanted(code)).map(|(_, series)| series.get()).sum()
    }

    /// Tokens that had to be read.
    pub(super) fn uncached(&self) -> u64 {
        self.accounts.iter().map(IntCounter::get).sum()
    }

    /// Counts what had to be read.
    pub(super) fn account(&self, accounts: Accounts) {
        self.accounts.iter().zip(accounts.all()).for_each(|(series, (_, tokens))| series.inc_by(tokens));
    }
}

/// The series of a counter with one label, in the order of its values.
pub(super) fn by_label<const N: usize>(counters: &IntCounterVec, values: [&str; N]) -> Box<[IntCounter]> {
    values.iter().map(|value| counters.with_label_values(&[value])).collect()
}

impl Metrics {
    /// A choice was made, for a request with a prompt to compare or without.
    pub fn decided(&self, decision: &Decision, has_prompt: bool, took: Duration) {
        let ready = (self.ready.decisions.get(decision.reason as usize), self.ready.lanes.get(decision.gate as usize));
        if let (Some(reason), Some(gate)) = ready {
            reason.inc();
            gate.inc();
        }
        self.decision_time.observe(took.as_secs_f64());
        if let Some(flight) = decision.flight {
            self.flight(flight);
        }
        if let (true, Some(first)) = (has_prompt, decision.ranked.first()) {
            self.overlap.observe(f64::from(first.overlap));
        }
    }

    /// A request ended.
    pub fn ended(&self, o: &Outcome) {
        if let (Some(request), Some(duration)) = (self.ready.request(o), self.ready.durations.get(o.endpoint as usize))
        {
            request.inc();
            duration.observe(o.duration.as_secs_f64());
        }
        if let Some(ttft) = o.ttft {
            self.ttft.observe(ttft.as_secs_f64());
        }
        if let (Some(ttft), Some(tokens @ 2..)) = (o.ttft, o.usage.completion) {
            let per_token = o.duration.saturating_sub(ttft) / u32::try_from(tokens - 1).unwrap_or(u32::MAX);
            self.per_token.observe(per_token.as_secs_f64());
        }
        self.prompt_tokens.inc_by(o.usage.prompt.unwrap_or(0));
        self.cached_tokens.inc_by(o.usage.cached.unwrap_or(0));
        self.completion_tokens.inc_by(o.usage.completion.unwrap_or(0));
        if o.answered && o.endpoint.is_inference() && o.usage.cached.is_none() {
            self.unreported.inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::answer::Usage;

    #[test]
    fn what_is_at_hand_is_what_its_labels_say() {
        assert!(Endpoint::ALL.iter().enumerate().all(|(n, endpoint)| *endpoint as usize == n));
        assert!(Reason::ALL.iter().enumerate().all(|(n, reason)| *reason as usize == n));
        assert!(Gate::ALL.iter().enumerate().all(|(n, gate)| *gate as usize == n));
        let metrics = Metrics::new().unwrap();
        for endpoint in Endpoint::ALL {
            for (status, label) in [(200, "200"), (418, "4xx"), (499, "499"), (503, "503"), (0, "none")] {
                let ended = |stream| {
                    let (duration, usage) = (Duration::from_secs(1), Usage::default());
                    let outcome = Outcome { endpoint, status, stream, duration, ttft: None, usage, answered: false };
                    let series = metrics.requests.with_label_values(&[endpoint.label(), label, &stream.to_string()]);
                    metrics.ended(&outcome);
                    series.get()
                };
                assert_eq!((ended(false), ended(true), ended(true)), (1, 1, 2), "{endpoint:?} {status}");
            }
            assert_eq!(metrics.duration.with_label_values(&[endpoint.label()]).get_sample_count(), 15);
        }
        let all = 3 * Endpoint::ALL.len() as u64;
        assert_eq!(metrics.ready.ended(|_| true), 5 * all);
        assert_eq!(
            (metrics.ready.ended(|code| code == "499"), metrics.ready.ended(|c| c.starts_with('5'))),
            (all, all)
        );
    }
}
