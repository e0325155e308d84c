//! The table of metrics that stands in `deploy/METRICS.md`, made of the metrics themselves.

use super::metrics::Metrics;
use std::fmt::Write;

const HEAD: &str = "\
# Metrics

Everything that `/metrics` on the admin listener shows, written from the table in the code (`src/telemetry/metrics.rs`).

- **Labels** are closed sets or names from the configuration: no path, no model that a client made up, no prompt text, no host
  unless it is the name of a replica. `upstream`, `from` and `to` are names of replicas; their series go when the replica does.
- **All series are there from the start**, at zero, so that the first event is a rise. Where a label is a name, its series come
  with the name: replicas, keys and sources as they are configured or found, and `ramjet_model_*` with the models that replicas
  list, 64 at most (the others, and what nobody lists, are `other`). `ramjet_upstream_failovers_total` has a pair of replicas
  each: all of them in a fleet of up to 16, and in a larger one, where they would be too many, those between which it happened.
- **Counters go on over an upgrade**, histograms too: the next process adds what this one counted. `process_*` begin anew.
- **Buckets**: times to the first token and of requests grow by about two, from a warm prefix on an idle replica (10 ms) to the
  longest wait that anything allows, so that a quantile is off by a factor of two at most and usually by far less; times per
  token are finer around 10 to 100 ms, where people notice; a decision is measured around its budget of 100 microseconds;
  overlaps are powers of two up to the largest prefix that is compared.

| metric | type | labels | what it is |
|---|---|---|---|
";

impl Metrics {
    /// The page.
    pub fn page(&self) -> String {
        let mut out = HEAD.to_owned();
        for metric in &self.described {
            let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
            let labels = if labels.is_empty() { "–".to_owned() } else { labels.join(" ") };
            let bounds: Vec<String> = metric.buckets.iter().map(ToString::to_string).collect();
            let bounds = if bounds.is_empty() { String::new() } else { format!(" Buckets: {}.", bounds.join(", ")) };
            // writing to a String cannot fail
            let _infallible =
                writeln!(out, "| `{}` | {} | {labels} | {}{bounds} |", metric.name, metric.kind, metric.help);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::Fleet;
    use crate::policy::testing::params;
    use crate::types::PolicyKind;
    use std::collections::HashSet;

    #[test]
    fn the_table_in_deploy_is_fresh() {
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/METRICS.md");
        let page = Metrics::new().unwrap().page();
        if std::env::var_os("RAMJET_WRITE").is_some() {
            std::fs::write(&file, &page).unwrap();
        }
        let written = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(written == page, "deploy/METRICS.md is stale: run this test with RAMJET_WRITE=1");
    }

    #[test]
    fn what_has_no_name_for_a_label_is_there_at_once() {
        let metrics = Metrics::new().unwrap();
        let fleet = Fleet::new(vec![], params(PolicyKind::Cost), 1 << 20);
        let shown: HashSet<String> = metrics.gather(&fleet).iter().map(|f| f.name().to_owned()).collect();
        let names = ["upstream", "from", "to", "key", "source"];
        for metric in &metrics.described {
            let is_named = metric.labels.iter().any(|label| names.contains(&label.as_str()));
            assert_eq!(shown.contains(&metric.name), !is_named, "{}", metric.name);
        }
    }

    #[test]
    fn names_say_what_they_are() {
        for metric in &Metrics::new().unwrap().described {
            let name = metric.name.as_str();
            assert!(name.starts_with("ramjet_") || name.starts_with("process_"), "{name}");
            assert_eq!(name.ends_with("_total"), metric.kind == "counter", "{name}");
            assert!(metric.kind != "histogram" || name.ends_with("_seconds") || name.ends_with("_blocks"), "{name}");
            assert!(metric.help.ends_with('.') && !metric.help.contains('|'), "{name}: {}", metric.help);
        }
    }
}
