//! What the last day is made of: the totals of some counters, those that processes before this one counted included, and
//! what the fleet is at the moment. Read once a second, so only what is needed is looked at.

use super::history::{AtReplica, Sample, Sums, TTFT_BUCKETS};
use super::inherited::Labels;
use super::metrics::{CACHED_TOKENS, Metrics, PROMPT_TOKENS, TTFT, TTFT_NAME};
use crate::fleet::Fleet;
use crate::policy::queue::Shed;
use crate::types::Priority;
use prometheus::IntCounterVec;
use prometheus::core::Collector;
use std::collections::HashMap;

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
        counts.uncached_tokens = counter("ramjet_uncached_prompt_tokens_total", self.ready.uncached());
        let ended = |wanted: fn(&str) -> bool| {
            let is_wanted = |labels: &Labels| labels.iter().any(|(name, value)| name == "code" && wanted(value));
            float(self.ready.ended(wanted)) + inherited.total("ramjet_requests_total", is_wanted)
        };
        counts.requests = ended(|_| true);
        // the server's side is to blame
        counts.errors = ended(|code| code.starts_with('5'));
        counts.left = ended(|code| code == "499");
        let shed: u64 = Shed::ALL.iter().map(|shed| self.shed.with_label_values(&[shed.label()]).get()).sum();
        counts.shed = counter("ramjet_shed_total", shed);
        drop(inherited);
        sums.ttft = self.first_tokens();
        sums.gauges.in_flight = f64::from(i32::try_from(self.inflight.get()).unwrap_or(i32::MAX));
        sums.gauges.waiting = self.gauge_sum();
        sums
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
        let waiting: i64 =
            Priority::ALL.iter().map(|priority| self.queue_length.with_label_values(&[priority.name()]).get()).sum();
        f64::from(i32::try_from(waiting).unwrap_or(i32::MAX))
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
