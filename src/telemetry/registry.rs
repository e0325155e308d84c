//! How a table of metrics becomes a struct of them: every metric is declared once, with its name, its help and its labels
//! or buckets in one place.

use prometheus::core::{Collector, MetricVec, MetricVecBuilder};
use prometheus::proto::LabelPair;
use prometheus::{
    Counter, Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};
use std::collections::HashMap;

pub(super) type Result<T> = std::result::Result<T, prometheus::Error>;

/// Declares a struct of metrics and its constructor `declare`, which registers all of them.
macro_rules! metrics {
    (
        $(#[$doc:meta])*
        pub struct $name:ident { $($field:ident: $kind:ident($($argument:expr),+);)+ }
    ) => {
        $(#[$doc])*
        pub struct $name {
            pub(super) registry: prometheus::Registry,
            /// What is copied into counters at a scrape must not be copied twice.
            pub(super) rendering: parking_lot::Mutex<()>,
            /// What processes before this one counted.
            pub(super) inherited: parking_lot::Mutex<$crate::telemetry::inherited::Counts>,
            /// The models that have series of their own.
            pub(super) models: parking_lot::Mutex<std::collections::HashSet<String>>,
            $(pub(super) $field: $crate::telemetry::registry::metrics!(@type $kind),)+
        }

        impl $name {
            fn declare() -> $crate::telemetry::registry::Result<Self> {
                let builder = $crate::telemetry::registry::Builder::default();
                Ok($name { $($field: builder.$kind($($argument),+)?,)+ registry: builder.registry, rendering: parking_lot::Mutex::new(()), inherited: parking_lot::Mutex::default(), models: parking_lot::Mutex::default() })
            }
        }
    };
    (@type counter) => { prometheus::IntCounter };
    (@type counters) => { prometheus::IntCounterVec };
    (@type float_counter) => { prometheus::Counter };
    (@type float_gauge) => { prometheus::Gauge };
    (@type gauge) => { prometheus::IntGauge };
    (@type gauges) => { prometheus::IntGaugeVec };
    (@type histogram) => { prometheus::Histogram };
    (@type histograms) => { prometheus::HistogramVec };
}
pub(super) use metrics;

/// Takes out the series of a metric that have a label which does not stay.
pub(super) fn keep<T: MetricVecBuilder>(series: &MetricVec<T>, stays: impl Fn(&LabelPair) -> bool) {
    for metric in series.collect().iter().flat_map(|family| family.get_metric()) {
        let labels = metric.get_label();
        if !labels.iter().all(&stays) {
            let by_name: HashMap<&str, &str> = labels.iter().map(|label| (label.name(), label.value())).collect();
            // it may be gone by now
            let _gone = series.remove(&by_name);
        }
    }
}

/// Makes metrics and registers them.
#[derive(Default)]
pub(super) struct Builder {
    pub(super) registry: Registry,
}

impl Builder {
    fn add<T: Collector + Clone + 'static>(&self, metric: Result<T>) -> Result<T> {
        let metric = metric?;
        self.registry.register(Box::new(metric.clone()))?;
        Ok(metric)
    }

    pub(super) fn counter(&self, name: &str, help: &str) -> Result<IntCounter> {
        self.add(IntCounter::new(name, help))
    }

    pub(super) fn counters(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec> {
        self.add(IntCounterVec::new(Opts::new(name, help), labels))
    }

    pub(super) fn float_counter(&self, name: &str, help: &str) -> Result<Counter> {
        self.add(Counter::new(name, help))
    }

    pub(super) fn float_gauge(&self, name: &str, help: &str) -> Result<Gauge> {
        self.add(Gauge::new(name, help))
    }

    pub(super) fn gauge(&self, name: &str, help: &str) -> Result<IntGauge> {
        self.add(IntGauge::new(name, help))
    }

    pub(super) fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec> {
        self.add(IntGaugeVec::new(Opts::new(name, help), labels))
    }

    pub(super) fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Result<Histogram> {
        self.add(Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec())))
    }

    pub(super) fn histograms(&self, name: &str, help: &str, buckets: &[f64], labels: &[&str]) -> Result<HistogramVec> {
        self.add(HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels))
    }
}
