//! Counters and histograms that began in a process before this one: they are added to what is shown, so that nothing
//! goes backwards when one ramjet follows another. What is shown of the process itself begins anew.

use crate::pack::record;
use prometheus::proto::{Bucket, Counter, Histogram, LabelPair, Metric, MetricFamily, MetricType};
use std::collections::HashMap;

/// The names of what belongs to one process.
const OWN: &str = "process_";

/// Label names and values.
pub(super) type Labels = Vec<(String, String)>;

/// What has been counted, by the names of metrics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    families: Vec<(String, Family)>,
}
record!(Counts { families });

#[derive(Clone, Debug, PartialEq)]
struct Family {
    help: String,
    counters: Vec<(Labels, f64)>,
    histograms: Vec<(Labels, Tally)>,
}
record!(Family { help, counters, histograms });

/// A histogram.
#[derive(Clone, Debug, Default, PartialEq)]
struct Tally {
    count: u64,
    sum: f64,
    /// Upper bounds and how many were up to there.
    buckets: Vec<(f64, u64)>,
}
record!(Tally { count, sum, buckets });

impl Tally {
    fn of(histogram: &Histogram) -> Self {
        let buckets = histogram.get_bucket().iter().map(|b| (b.upper_bound(), b.cumulative_count()));
        Tally { count: histogram.get_sample_count(), sum: histogram.get_sample_sum(), buckets: buckets.collect() }
    }

    /// Changes it by another one, bucket by bucket; those with other bounds are not the same histogram.
    fn change(&mut self, other: &Tally, whole: impl Fn(u64, u64) -> u64, sum: impl Fn(f64, f64) -> f64) {
        let bounds = |tally: &Tally| tally.buckets.iter().map(|b| b.0.to_bits()).collect::<Vec<_>>();
        if bounds(self) == bounds(other) {
            self.count = whole(self.count, other.count);
            self.sum = sum(self.sum, other.sum);
            self.buckets.iter_mut().zip(&other.buckets).for_each(|(own, other)| own.1 = whole(own.1, other.1));
        }
    }

    fn show(&self) -> Histogram {
        let bucket = |(bound, count): &(f64, u64)| {
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(*bound);
            bucket.set_cumulative_count(*count);
            bucket
        };
        let mut shown = Histogram::default();
        shown.set_sample_count(self.count);
        shown.set_sample_sum(self.sum);
        shown.set_bucket(self.buckets.iter().map(bucket).collect());
        shown
    }
}

impl Counts {
    /// What `families` show.
    pub(super) fn of(families: &[MetricFamily]) -> Self {
        let mut counts = Counts::default();
        for family in families.iter().filter(|family| !family.name().starts_with(OWN)) {
            let mut read = Family { help: family.help().to_owned(), counters: Vec::new(), histograms: Vec::new() };
            for metric in family.get_metric() {
                match family.get_field_type() {
                    MetricType::COUNTER => read.counters.push((labels(metric), metric.get_counter().get_value())),
                    MetricType::HISTOGRAM => read.histograms.push((labels(metric), Tally::of(metric.get_histogram()))),
                    _ => {}
                }
            }
            if !read.counters.is_empty() || !read.histograms.is_empty() {
                counts.families.push((family.name().to_owned(), read));
            }
        }
        counts
    }

    /// Adds these to what is shown.
    pub(super) fn add_to(&self, families: &mut Vec<MetricFamily>) {
        for (name, inherited) in &self.families {
            match families.iter_mut().find(|family| family.name() == name) {
                Some(family) => inherited.add_to(family),
                None => families.push(inherited.show(name)),
            }
        }
        families.sort_by(|a, b| a.name().cmp(b.name()));
    }

    /// Leaves out the series that have a label which does not stay.
    pub(super) fn keep(&mut self, stays: impl Fn(&str, &str) -> bool) {
        let all_stay = |labels: &Labels| labels.iter().all(|(name, value)| stays(name, value));
        for (_, family) in &mut self.families {
            family.counters.retain(|(labels, _)| all_stay(labels));
            family.histograms.retain(|(labels, _)| all_stay(labels));
        }
    }

    /// Takes others in.
    pub fn add(&mut self, other: &Counts) {
        let mut shown = Vec::new();
        self.add_to(&mut shown);
        other.add_to(&mut shown);
        *self = Counts::of(&shown);
    }

    /// What has been counted since `before`.
    #[must_use]
    pub fn since(mut self, before: &Counts) -> Self {
        for (name, family) in &mut self.families {
            let Some((_, old)) = before.families.iter().find(|(known, _)| known == name) else { continue };
            let old_counters: HashMap<_, _> = old.counters.iter().map(|(labels, n)| (labels, n)).collect();
            for (labels, value) in &mut family.counters {
                *value = (*value - old_counters.get(labels).copied().unwrap_or(&0.0)).max(0.0);
            }
            for (labels, tally) in &mut family.histograms {
                if let Some((_, old)) = old.histograms.iter().find(|(known, _)| known == labels) {
                    tally.change(old, u64::saturating_sub, |now, old| (now - old).max(0.0));
                }
            }
        }
        self
    }

    /// The sum of a counter's series whose labels are wanted.
    pub(super) fn total(&self, name: &str, wanted: impl Fn(&Labels) -> bool) -> f64 {
        let family = self.families.iter().find(|(known, _)| known == name);
        family.map_or(0.0, |(_, f)| f.counters.iter().filter(|(labels, _)| wanted(labels)).map(|(_, n)| n).sum())
    }

    /// A counter by replica.
    pub(super) fn by_upstream(&self, name: &str) -> HashMap<&str, f64> {
        let family = self.families.iter().find(|(known, _)| known == name);
        let counters = family.into_iter().flat_map(|(_, family)| &family.counters);
        counters.filter_map(|(labels, n)| Some((labels.first()?.1.as_str(), *n))).collect()
    }

    /// How many a histogram without labels has seen up to each of its bounds, and in all.
    pub(super) fn cumulative(&self, name: &str) -> Vec<u64> {
        let family = self.families.iter().find(|(known, _)| known == name);
        let tally = family.and_then(|(_, f)| f.histograms.first()).map(|(_, tally)| tally);
        tally.map_or_else(Vec::new, |t| t.buckets.iter().map(|b| b.1).chain([t.count]).collect())
    }

    /// The counter of this name for one replica.
    pub(super) fn of_upstream(&self, name: &str, upstream: &str) -> f64 {
        self.total(name, |labels| labels.iter().any(|(key, value)| key == "upstream" && value == upstream))
    }
}

impl Family {
    fn add_to(&self, family: &mut MetricFamily) {
        let (kind, mut places) = (family.get_field_type(), Places::of(family));
        if kind == MetricType::COUNTER {
            for (wanted, value) in &self.counters {
                let metric = places.find(family, wanted);
                let mut counter = Counter::default();
                counter.set_value(metric.get_counter().get_value() + value);
                metric.set_counter(counter);
            }
        }
        if kind == MetricType::HISTOGRAM {
            for (wanted, tally) in &self.histograms {
                let metric = places.find(family, wanted);
                let mut sum = Tally::of(metric.get_histogram());
                if sum.buckets.is_empty() {
                    sum = tally.clone();
                } else {
                    sum.change(tally, u64::saturating_add, |a, b| a + b);
                }
                metric.set_histogram(sum.show());
            }
        }
    }

    fn show(&self, name: &str) -> MetricFamily {
        let mut family = MetricFamily::default();
        family.set_name(name.to_owned());
        family.set_help(self.help.clone());
        let kind = if self.counters.is_empty() { MetricType::HISTOGRAM } else { MetricType::COUNTER };
        family.set_field_type(kind);
        self.add_to(&mut family);
        family
    }
}

/// Where the metrics of a family stand: there may be thousands, so they are not searched one by one.
struct Places(HashMap<Labels, usize>);

impl Places {
    fn of(family: &MetricFamily) -> Self {
        Places(family.get_metric().iter().enumerate().map(|(at, metric)| (labels(metric), at)).collect())
    }

    /// The metric with these labels, made if needed.
    fn find<'a>(&mut self, family: &'a mut MetricFamily, wanted: &Labels) -> &'a mut Metric {
        let all = family.mut_metric();
        let at = self.0.get(wanted).copied().unwrap_or_else(|| {
            let pair = |(name, value): &(String, String)| {
                let mut pair = LabelPair::default();
                pair.set_name(name.clone());
                pair.set_value(value.clone());
                pair
            };
            all.push(Metric::from_label(wanted.iter().map(pair).collect()));
            self.0.insert(wanted.clone(), all.len() - 1);
            all.len() - 1
        });
        &mut all[at]
    }
}

fn labels(metric: &Metric) -> Labels {
    metric.get_label().iter().map(|pair| (pair.name().to_owned(), pair.value().to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack;
    use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry, TextEncoder};

    struct Process(Registry, IntCounterVec, HistogramVec);

    fn process() -> Process {
        let counters = IntCounterVec::new(Opts::new("c_total", "c"), &["upstream", "code"]).unwrap();
        let histograms = HistogramVec::new(HistogramOpts::new("h", "h").buckets(vec![1.0, 2.0]), &["k"]).unwrap();
        let registry = Registry::new();
        registry.register(Box::new(counters.clone())).unwrap();
        registry.register(Box::new(histograms.clone())).unwrap();
        Process(registry, counters, histograms)
    }

    fn shown(process: &Process, inherited: &Counts) -> String {
        let mut families = process.0.gather();
        inherited.add_to(&mut families);
        TextEncoder::new().encode_to_string(&families).unwrap()
    }

    #[test]
    fn what_is_shown_goes_on_where_the_process_before_ended() {
        let (old, new) = (process(), process());
        old.1.with_label_values(&["a", "200"]).inc_by(3);
        old.1.with_label_values(&["b", "200"]).inc_by(9);
        old.2.with_label_values(&["x"]).observe(1.5);
        let before = Counts::of(&old.0.gather());
        let mut inherited = pack::open::<Counts>(&pack::seal(&before)).unwrap();
        // a family of which nothing was counted yet is there all the same
        assert_eq!(shown(&new, &inherited), shown(&old, &Counts::default()));
        assert_eq!(inherited.of_upstream("c_total", "b").to_bits(), 9.0f64.to_bits());
        new.1.with_label_values(&["a", "200"]).inc();
        new.2.with_label_values(&["x"]).observe(0.5);
        // what the old process still counts comes later
        old.1.with_label_values(&["a", "500"]).inc();
        old.2.with_label_values(&["x"]).observe(5.0);
        inherited.add(&Counts::of(&old.0.gather()).since(&before));
        let text = shown(&new, &inherited);
        for line in [
            "c_total{code=\"200\",upstream=\"a\"} 4",
            "c_total{code=\"500\",upstream=\"a\"} 1",
            "c_total{code=\"200\",upstream=\"b\"} 9",
            "h_bucket{k=\"x\",le=\"1\"} 1",
            "h_bucket{k=\"x\",le=\"2\"} 2",
            "h_bucket{k=\"x\",le=\"+Inf\"} 3",
            "h_sum{k=\"x\"} 7",
        ] {
            assert!(text.lines().any(|own| own == line), "{line} in {text}");
        }
    }
}
