//! What the last day is made of: the totals of some counters, those that processes before this one counted included, and
//! what the fleet is at the moment. Read once a second, so only what is needed is looked at.

use super::history::{AtReplica, Sample, Sums, TTFT_BUCKETS};
use super::inherited::Labels;
use super::metrics::{CACHED_TOKENS, Metrics, PROMPT_TOKENS, TTFT, TTFT_NAME};
use crate::fleet::Fleet;
use prometheus::IntCounterVec;
use prometheus::core::Collector;
use std::collections::HashMap;

/// A status of which the server's side is to blame.
fn is_error(labels: &[(&str, &str)]) -> bool {
    labels.iter().any(|(name, value)| *name == "code" && value.starts_with('5'))
}

fn is_left(labels: &[(&str, &str)]) -> bool {
    labels.contains(&("code", "499"))
}

/// A count as a number to calculate with.
#[expect(clippy::cast_precision_loss, reason = "counts are shown to a few digits")]
fn float(count: u64) -> f64 {
    count as f64
}

impl Metrics {
    /// The bounds of the histogram of times to the first token, in seconds.
    pub fn ttft_bounds() -> &'static [f64] {
        const { assert!(TTFT.len() + 1 == TTFT_BUCKETS) };
        TTFT
    }

    /// What the counters show and the fleet is.
    pub fn sample(&self, fleet: &Fleet) -> Sample {
        let members = fleet.members();
        let prompt = self.by_upstream(&self.upstream_prompt_tokens, PROMPT_TOKENS);
        let cached = self.by_upstream(&self.upstream_cached_tokens, CACHED_TOKENS);
        let of = |totals: &HashMap<String, f64>, name: &str| totals.get(name).copied().unwrap_or(0.0);
        let replicas: Vec<_> = members
            .present()
            .map(|replica| {
                let name = replica.name();
                let at = AtReplica {
                    healthy: f64::from(u8::from(replica.is_healthy())),
                    in_flight: f64::from(replica.inflight()),
                    prompt_tokens: of(&prompt, name),
                    cached_tokens: of(&cached, name),
                };
                (name.to_owned(), at)
            })
            .collect();
        let mut sums = self.totals();
        sums.gauges.healthy = replicas.iter().map(|(_, at)| at.healthy).sum();
        sums.gauges.replicas = replicas.iter().map(|_| 1.0).sum();
        Sample { fleet: sums, replicas }
    }

    fn totals(&self) -> Sums {
        let inherited = self.inherited.lock();
        let counter = |name: &str, own: u64| float(own) + inherited.total(name, |_| true);
        let mut sums = Sums::default();
        let counts = &mut sums.counts;
        counts.prompt_tokens = counter("ramjet_prompt_tokens_total", self.prompt_tokens.get());
        counts.cached_tokens = counter("ramjet_cached_prompt_tokens_total", self.cached_tokens.get());
        counts.predicted_tokens = counter("ramjet_predicted_cached_prompt_tokens_total", self.predicted_cached.get());
        counts.output_tokens = counter("ramjet_completion_tokens_total", self.completion_tokens.get());
        drop(inherited);
        counts.requests = self.sum(&self.requests, "ramjet_requests_total", |_| true);
        counts.errors = self.sum(&self.requests, "ramjet_requests_total", is_error);
        counts.left = self.sum(&self.requests, "ramjet_requests_total", is_left);
        counts.shed = self.sum(&self.shed, "ramjet_shed_total", |_| true);
        counts.uncached_tokens = self.sum(&self.uncached_tokens, "ramjet_uncached_prompt_tokens_total", |_| true);
        sums.ttft = self.first_tokens();
        sums.gauges.in_flight = f64::from(i32::try_from(self.inflight.get()).unwrap_or(i32::MAX));
        sums.gauges.waiting = self.gauge_sum();
        sums
    }

    /// The sum of a counter's series whose labels are wanted.
    fn sum(&self, counters: &IntCounterVec, name: &str, wanted: impl Fn(&[(&str, &str)]) -> bool) -> f64 {
        let families = counters.collect();
        let own = families.iter().flat_map(|family| family.get_metric()).filter(|metric| {
            let labels: Vec<_> = metric.get_label().iter().map(|l| (l.name(), l.value())).collect();
            wanted(&labels)
        });
        let own: f64 = own.map(|metric| metric.get_counter().get_value()).sum();
        let wanted =
            |labels: &Labels| wanted(&labels.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect::<Vec<_>>());
        own + self.inherited.lock().total(name, wanted)
    }

    /// A counter by replica.
    fn by_upstream(&self, counters: &IntCounterVec, name: &str) -> HashMap<String, f64> {
        let inherited = self.inherited.lock();
        let before = inherited.by_upstream(name);
        let families = counters.collect();
        let all = families.iter().flat_map(|family| family.get_metric());
        all.filter_map(|metric| {
            let upstream = metric.get_label().first()?.value();
            let before = before.get(upstream).copied().unwrap_or(0.0);
            Some((upstream.to_owned(), metric.get_counter().get_value() + before))
        })
        .collect()
    }

    /// Requests that wait for room.
    fn gauge_sum(&self) -> f64 {
        let families = self.queue_length.collect();
        families.iter().flat_map(|family| family.get_metric()).map(|metric| metric.get_gauge().get_value()).sum()
    }

    /// Times to the first token, by bucket.
    fn first_tokens(&self) -> [f64; TTFT_BUCKETS] {
        let mut cumulative = [0.0; TTFT_BUCKETS];
        for family in self.ttft.collect() {
            for histogram in family.get_metric().iter().map(|metric| metric.get_histogram()) {
                let counts = histogram.get_bucket().iter().map(|b| b.cumulative_count());
                let counts = counts.chain([histogram.get_sample_count()]);
                cumulative.iter_mut().zip(counts).for_each(|(sum, count)| *sum += float(count));
            }
        }
        let inherited = self.inherited.lock().cumulative(TTFT_NAME);
        if inherited.len() == TTFT_BUCKETS {
            cumulative.iter_mut().zip(inherited).for_each(|(sum, count)| *sum += float(count));
        }
        let mut below = 0.0;
        cumulative.map(|count| {
            let own = (count - below).max(0.0);
            below = count;
            own
        })
    }
}
