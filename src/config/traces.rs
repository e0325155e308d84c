//! The settings of `traces`: a part of the table.

use super::kind::{FilePath, LINE, OrNull, Text, number};
use super::node::Node;
use super::page::Page;
use super::reader::Reader;
use super::schema::{Kind, Section, settings};
use std::path::PathBuf;

/// Where a collector listens.
const COLLECTOR: Text = Text {
    allowed: "http://HOST:PORT or https://HOST, with a port and a path or without; no user and no query",
    rule: |text| {
        let secure = text.strip_prefix("https://");
        let rest = secure.or(text.strip_prefix("http://")).unwrap_or_default();
        let authority = rest.split('/').next().unwrap_or_default();
        // the colons of an IPv6 address stand in brackets
        let (host, port) =
            authority.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')).unwrap_or((authority, ""));
        let has_port = port.parse::<u16>().is_ok_and(|port| port > 0);
        !host.is_empty()
            && (has_port || secure.is_some() && host == authority)
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
        /// The issuers of its certificate, as PEM, for https. Null: those that the system trusts.
        ca_file: Option<PathBuf> = None, OrNull(FilePath);
        /// The share of requests that are traced, of those whose client does not say so itself (in traceparent).
        sample: f64 = 1.0, number(0.0..=1.0);
        /// The name of the service in traces.
        service: String = "ramjet".to_owned(), LINE;
    }
}

#[cfg(test)]
mod tests {
    use super::COLLECTOR;

    #[test]
    fn a_collector_has_a_scheme_and_a_host_and_in_clear_text_a_port() {
        for (text, is_good) in [
            ("http://collector:4318", true),
            ("http://[::1]:4318/v1/traces", true),
            ("https://collector", true),
            ("https://collector/v1/traces", true),
            ("https://[fd00::1]/x", true),
            ("https://collector:4318", true),
            ("http://collector", false),
            ("http://[::1]", false),
            ("https://", false),
            ("https://:443", false),
            ("https://collector:0", false),
            ("https://collector:port", false),
            ("https://user@collector", false),
            ("collector:4318", false),
            ("ftp://collector:4318", false),
        ] {
            assert_eq!((COLLECTOR.rule)(text), is_good, "{text}");
        }
    }
}
