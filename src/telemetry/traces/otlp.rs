//! Traces as OTLP has them in JSON (<https://opentelemetry.io/docs/specs/otlp/>, "JSON Protobuf Encoding"): ids in
//! hexadecimal, times and whole numbers as texts. Only what is needed of it; nothing in a span needs escaping but the name of
//! the service.

use super::{Span, Trace, Value};
use std::fmt::Write;
use std::time::{Duration, SystemTime};

const SERVER: u8 = 2;
const CLIENT: u8 = 3;
const INTERNAL: u8 = 1;
const FAILED: u8 = 2;

/// A request to a collector: these traces, of a service of this name.
pub fn batch(service: &str, traces: &[Trace]) -> String {
    let mut out = String::with_capacity(512 + 2048 * traces.len());
    // writing to a String cannot fail, here and below
    out.push_str(r#"{"resourceSpans":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"#);
    quote(&mut out, service);
    let version = env!("CARGO_PKG_VERSION");
    let _infallible = write!(
        out,
        r#"}}}},{{"key":"service.version","value":{{"stringValue":"{version}"}}}}]}},"scopeSpans":[{{"scope":{{"name":"ramjet","version":"{version}"}},"spans":["#
    );
    let mut is_first = true;
    for trace in traces {
        span(&mut out, trace, &trace.root, trace.parent, SERVER, &mut is_first);
        for inner in &trace.spans {
            let kind = if inner.is_attempt { CLIENT } else { INTERNAL };
            span(&mut out, trace, inner, Some(trace.root.id), kind, &mut is_first);
        }
    }
    out.push_str("]}]}]}");
    out
}

fn span(out: &mut String, trace: &Trace, span: &Span, parent: Option<u64>, kind: u8, is_first: &mut bool) {
    if !std::mem::replace(is_first, false) {
        out.push(',');
    }
    let nanos =
        |since: Duration| (trace.at + since).duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    let (from, to) = (nanos(span.from), nanos(span.to.unwrap_or(span.from)));
    let _infallible = write!(out, r#"{{"traceId":"{:032x}","spanId":"{:016x}""#, trace.id, span.id);
    if let Some(parent) = parent {
        let _infallible = write!(out, r#","parentSpanId":"{parent:016x}""#);
    }
    let name = span.name;
    let _infallible = write!(
        out,
        r#","name":"{name}","kind":{kind},"startTimeUnixNano":"{from}","endTimeUnixNano":"{to}","attributes":["#
    );
    let failed = span.failed.map(|why| ("error.type", Value::Word(why)));
    for (n, (key, value)) in span.attributes.iter().copied().chain(failed).enumerate() {
        let comma = if n > 0 { "," } else { "" };
        let _infallible = match value {
            Value::Word(word) => write!(out, r#"{comma}{{"key":"{key}","value":{{"stringValue":"{word}"}}}}"#),
            Value::Id(id) => write!(out, r#"{comma}{{"key":"{key}","value":{{"stringValue":"{id:016x}"}}}}"#),
            Value::Number(number) => write!(out, r#"{comma}{{"key":"{key}","value":{{"intValue":"{number}"}}}}"#),
        };
    }
    out.push(']');
    if let Some(at) = span.first_token {
        let _infallible = write!(out, r#","events":[{{"timeUnixNano":"{}","name":"first_token"}}]"#, nanos(at));
    }
    if span.failed.is_some() {
        let _infallible = write!(out, r#","status":{{"code":{FAILED}}}"#);
    }
    out.push('}');
}

fn quote(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars().filter(|c| !c.is_control()) {
        if matches!(c, '"' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_what_the_protocol_says() {
        let (to, failed) = (Some(Duration::from_millis(30)), Some("connect"));
        let root = Span { to, failed, ..Span::new(1, "chat_completions") };
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let mut trace = Trace { id: 0xabc, parent: Some(9), at, root, spans: Vec::new() };
        let attempt = trace.begin("attempt", true, Duration::from_millis(10)).unwrap();
        attempt.count("ramjet.replica", 3u8).say("ramjet.reason", Value::Word("cold"));
        attempt.first_token = Some(Duration::from_millis(20));
        let batch: serde_json::Value = serde_json::from_str(&batch("a \"b\"\\", &[trace])).unwrap();
        let resource = &batch["resourceSpans"][0];
        assert_eq!(resource["resource"]["attributes"][0]["value"]["stringValue"], "a \"b\"\\");
        let spans = resource["scopeSpans"][0]["spans"].as_array().unwrap();
        assert_eq!((spans.len(), &spans[0]["traceId"]), (2, &"00000000000000000000000000000abc".into()));
        assert_eq!((&spans[0]["parentSpanId"], &spans[0]["kind"]), (&"0000000000000009".into(), &2.into()));
        assert_eq!(spans[0]["status"]["code"], 2);
        assert_eq!(spans[1]["parentSpanId"], spans[0]["spanId"]);
        assert_eq!((&spans[1]["kind"], &spans[1]["startTimeUnixNano"]), (&3.into(), &"1000010000000".into()));
        assert_eq!(spans[1]["attributes"][0]["value"]["intValue"], "3");
        assert_eq!(spans[1]["events"][0]["timeUnixNano"], "1000020000000");
    }
}
