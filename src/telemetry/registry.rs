//! How a table of metrics becomes a struct of them: every metric is declared once, with its name, its help and its labels
//! or buckets in one place.

use prometheus::core::{Collector, MetricVec, MetricVecBuilder};
use prometheus::proto::LabelPair;
use prometheus::{
    Counter, Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};
use std::cell::RefCell;
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
            /// What they are, in the order of the table.
            pub(super) described: Vec<$crate::telemetry::registry::Described>,
            /// What is copied into counters at a scrape must not be copied twice.
            pub(super) rendering: parking_lot::Mutex<()>,
            /// What processes before this one counted.
            pub(super) inherited: parking_lot::Mutex<$crate::telemetry::inherited::Counts>,
            /// The models that have series of their own, with these.
            pub(super) models: parking_lot::Mutex<Vec<(String, $crate::telemetry::prompts::Series)>>,
            /// The series that every request counts in.
            pub(super) ready: $crate::telemetry::ready::Ready,
            /// The names of the clients' keys.
            pub(super) keys: parking_lot::Mutex<std::collections::HashSet<String>>,
            $(pub(super) $field: $crate::telemetry::registry::metrics!(@type $kind),)+
        }

        impl $name {
            fn declare() -> $crate::telemetry::registry::Result<Self> {
                let builder = $crate::telemetry::registry::Builder::default();
                Ok($name {
                    $($field: builder.$kind($($argument),+)?,)+
                    registry: builder.registry,
                    described: builder.described.into_inner(),
                    rendering: parking_lot::Mutex::new(()),
                    inherited: parking_lot::Mutex::default(),
                    models: parking_lot::Mutex::default(),
                    ready: $crate::telemetry::ready::Ready::default(),
                    keys: parking_lot::Mutex::default(),
                })
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

/// What a metric is, for documents.
#[derive(Clone, Debug)]
pub(super) struct Described {
    pub(super) name: String,
    pub(super) kind: &'static str,
    pub(super) help: String,
    pub(super) labels: Vec<String>,
    pub(super) buckets: Vec<f64>,
}

/// Makes metrics and registers them.
#[derive(Default)]
pub(super) struct Builder {
    pub(super) registry: Registry,
    pub(super) described: RefCell<Vec<Described>>,
}

impl Builder {
    fn add<T: Collector + Clone + 'static>(&self, kind: &'static str, buckets: &[f64], metric: Result<T>) -> Result<T> {
        let metric = metric?;
        self.described.borrow_mut().extend(metric.desc().iter().map(|desc| Described {
            name: desc.fq_name.clone(),
            kind,
            help: desc.help.clone(),
            labels: desc.variable_labels.clone(),
            buckets: buckets.to_vec(),
        }));
        self.registry.register(Box::new(metric.clone()))?;
        Ok(metric)
    }

    pub(super) fn counter(&self, name: &str, help: &str) -> Result<IntCounter> {
        self.add("counter", &[], IntCounter::new(name, help))
    }

    pub(super) fn counters(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec> {
        self.add("counter", &[], IntCounterVec::new(Opts::new(name, help), labels))
    }

    pub(super) fn float_counter(&self, name: &str, help: &str) -> Result<Counter> {
        self.add("counter", &[], Counter::new(name, help))
    }

    pub(super) fn float_gauge(&self, name: &str, help: &str) -> Result<Gauge> {
        self.add("gauge", &[], Gauge::new(name, help))
    }

    pub(super) fn gauge(&self, name: &str, help: &str) -> Result<IntGauge> {
        self.add("gauge", &[], IntGauge::new(name, help))
    }

    pub(super) fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec> {
        self.add("gauge", &[], IntGaugeVec::new(Opts::new(name, help), labels))
    }

    pub(super) fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Result<Histogram> {
        self.add("histogram", buckets, Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec())))
    }

    pub(super) fn histograms(&self, name: &str, help: &str, buckets: &[f64], labels: &[&str]) -> Result<HistogramVec> {
        self.add(
            "histogram",
            buckets,
            HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels),
        )
    }
}
