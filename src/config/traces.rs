//! The settings of `traces`: a part of the table.

use super::kind::{LINE, OrNull, Text, number};
use super::node::Node;
use super::page::Page;
use super::reader::Reader;
use super::schema::{Kind, Section, settings};

/// Where a collector listens.
const COLLECTOR: Text = Text {
    allowed: "http://HOST:PORT, with a path or without; no user and no query",
    rule: |text| {
        let rest = text.strip_prefix("http://").unwrap_or_default();
        let authority = rest.split('/').next().unwrap_or_default();
        let port = authority.rsplit_once(':').map_or("", |(_, port)| port);
        !authority.starts_with(':')
            && port.parse::<u16>().is_ok_and(|port| port > 0)
            && rest.chars().all(|c| c.is_ascii_graphic() && !"@?#\"\\".contains(c))
    },
    shown: false,
};

settings! {
    /// Traces of requests: a span for each, and below it one for its wait in the queue, one for the choice and one for each
    /// attempt. They name replicas by their ordinals, and carry no prompt text, no key and no host.
    pub struct Traces {
        /// The collector; without a path, /v1/traces is meant. Null: nothing is traced, and the trace context of clients
        /// passes through as it came. Else engines get the same trace, with the span of the attempt as parent.
        endpoint: Option<String> = None, OrNull(COLLECTOR);
        /// The share of requests that are traced, of those whose client does not say so itself (in traceparent).
        sample: f64 = 1.0, number(0.0..=1.0);
        /// The name of the service in traces.
        service: String = "ramjet".to_owned(), LINE;
    }
}
