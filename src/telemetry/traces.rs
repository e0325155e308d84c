//! Traces: what one request did when, as OpenTelemetry has it, and the W3C trace context that ties it to who asked and to
//! the engine that answered.
//!
//! A span for the request (server), and below it one for each wait in the queue, for a hold behind another request, for the
//! choice, and for each attempt (client), whose id is what the engine sees as its parent. Pure but for the clock: times are
//! durations since the request began.
//!
//! **Invariant:** no prompt text, no key, no host: attributes are closed words and numbers, and a replica is its ordinal.

pub mod collector;
pub mod otlp;

use http::HeaderMap;
use smallvec::SmallVec;
use std::time::{Duration, SystemTime};

/// The header of the trace context.
pub const PARENT: &str = "traceparent";
/// What goes along with it.
pub const STATE: &str = "tracestate";
/// Spans of one request: more attempts and waits than that are not told apart.
const MOST_SPANS: usize = 32;

/// The id of a request's span: not zero, and with room for those of the spans below it.
fn root_id(drawn: u64) -> u64 {
    drawn & !(2 * MOST_SPANS as u64 - 1) | 1 << 63
}

/// Who asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    /// The trace.
    pub trace: u128,
    /// The span of who asked.
    pub span: u64,
    /// Whether it is recorded there.
    pub sampled: bool,
}

/// A trace context that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no trace context")]
pub struct NoContext;

/// What an attribute says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A closed word.
    Word(&'static str),
    /// A whole number.
    Number(i64),
    /// An id, shown as sixteen hexadecimal digits.
    Id(u64),
}

/// A stretch of time.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// Its id within the trace.
    pub id: u64,
    /// Its name.
    pub name: &'static str,
    /// Whether it is an attempt at a replica.
    pub is_attempt: bool,
    /// From when to when, since the request began; `None` while it goes on.
    pub from: Duration,
    /// See `from`.
    pub to: Option<Duration>,
    /// When its first token came.
    pub first_token: Option<Duration>,
    /// Why it failed.
    pub failed: Option<&'static str>,
    /// What is known of it.
    pub attributes: SmallVec<[(&'static str, Value); 6]>,
}

/// One request.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// The trace that it belongs to.
    pub id: u128,
    /// The span of who asked.
    pub parent: Option<u64>,
    /// When it began.
    pub at: SystemTime,
    /// The request.
    pub root: Span,
    /// What is below it, in the order of beginning.
    pub spans: Vec<Span>,
}

impl Parent {
    /// The context in a head.
    ///
    /// # Errors
    /// What is there does not follow <https://www.w3.org/TR/trace-context/>, or is there twice: a new trace begins.
    pub fn of(headers: &HeaderMap) -> Result<Option<Parent>, NoContext> {
        let mut values = headers.get_all(PARENT).iter();
        match (values.next(), values.next()) {
            (None, _) => Ok(None),
            (Some(value), None) => Parent::parse(value.as_bytes()).map(Some).ok_or(NoContext),
            (Some(_), Some(_)) => Err(NoContext),
        }
    }

    /// `00-TRACE-SPAN-FLAGS`; later versions may have more behind it.
    fn parse(value: &[u8]) -> Option<Parent> {
        let text = std::str::from_utf8(value).ok()?;
        let is_hex =
            |part: &str, length| part.len() == length && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let mut parts = text.split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let fits = is_hex(version, 2) && is_hex(trace, 32) && is_hex(span, 16) && is_hex(flags, 2);
        if !fits || version == "ff" || version == "00" && parts.next().is_some() {
            return None;
        }
        let trace = u128::from_str_radix(trace, 16).ok().filter(|trace| *trace != 0)?;
        let span = u64::from_str_radix(span, 16).ok().filter(|span| *span != 0)?;
        Some(Parent { trace, span, sampled: u8::from_str_radix(flags, 16).ok()? & 1 == 1 })
    }
}

impl Trace {
    /// What an engine is told: this trace, with `span` as its parent.
    pub fn header(&self, span: u64) -> String {
        format!("00-{:032x}-{span:016x}-01", self.id)
    }

    /// A span begins.
    pub fn begin(&mut self, name: &'static str, is_attempt: bool, from: Duration) -> Option<&mut Span> {
        if self.spans.len() >= MOST_SPANS {
            return None;
        }
        // the root's id leaves room for so many after it
        let id = self.root.id | (1 + self.spans.len() as u64);
        self.spans.push(Span { is_attempt, from, ..Span::new(id, name) });
        self.spans.last_mut()
    }

    /// The attempt that is being made.
    pub fn attempt(&self) -> Option<&Span> {
        self.spans.iter().rev().find(|span| span.is_attempt)
    }

    /// The attempt ends, for this reason if it failed.
    pub fn end_attempt(&mut self, to: Duration, failed: Option<&'static str>) -> Option<&mut Span> {
        let span = self.spans.iter_mut().rev().find(|span| span.is_attempt && span.to.is_none())?;
        (span.to, span.failed) = (Some(to), failed);
        Some(span)
    }

    /// A wait of this name went on from `from` until `to`: the same one, if it began then.
    pub fn waited(&mut self, name: &'static str, from: Duration, to: Duration) {
        let known = self.spans.iter_mut().find(|span| span.name == name && span.from == from);
        let span = match known {
            Some(span) => Some(span),
            None => self.begin(name, false, from),
        };
        if let Some(span) = span {
            span.to = Some(to);
        }
    }
}

impl Span {
    /// One that begins with the request and of which nothing is known.
    pub fn new(id: u64, name: &'static str) -> Self {
        let (from, attributes) = (Duration::ZERO, SmallVec::new());
        Span { id, name, is_attempt: false, from, to: None, first_token: None, failed: None, attributes }
    }

    /// Says something of it.
    pub fn say(&mut self, name: &'static str, value: Value) -> &mut Self {
        self.attributes.push((name, value));
        self
    }

    /// Says a number, as far as the protocol has room for it: 63 bits.
    pub fn count(&mut self, name: &'static str, value: impl TryInto<i64>) -> &mut Self {
        self.say(name, Value::Number(value.try_into().unwrap_or(i64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn of(values: &[&str]) -> Result<Option<Parent>, NoContext> {
        let mut headers = HeaderMap::new();
        values.iter().for_each(|value| {
            headers.append(PARENT, value.parse().unwrap());
        });
        Parent::of(&headers)
    }

    #[test]
    fn the_context_is_read_as_the_standard_has_it() {
        let parent =
            Parent { trace: 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c, span: 0xb7ad_6b71_6920_3331, sampled: true };
        assert_eq!(of(&[GOOD]), Ok(Some(parent)));
        assert_eq!(of(&[]), Ok(None));
        let not_sampled = GOOD.replace("-01", "-00");
        assert_eq!(of(&[&not_sampled]), Ok(Some(Parent { sampled: false, ..parent })));
        // a later version may say more
        assert_eq!(of(&[&format!("01{}-what-else", &GOOD[2..])]), Ok(Some(parent)));
        for bad in [
            format!("{GOOD}-more"),
            GOOD.to_uppercase(),
            GOOD.replace("00-", "ff-"),
            GOOD.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            GOOD.replace("b7ad6b7169203331", &"0".repeat(16)),
            GOOD[1..].to_owned(),
            GOOD.replace('-', "_"),
            String::new(),
            "00-0af7".to_owned(),
        ] {
            assert_eq!(of(&[&bad]), Err(NoContext), "{bad}");
        }
        assert_eq!(of(&[GOOD, GOOD]), Err(NoContext));
    }

    fn trace() -> Trace {
        let root = Span::new(root_id(0), "request");
        Trace { id: 7, parent: None, at: SystemTime::UNIX_EPOCH, root, spans: Vec::new() }
    }

    #[test]
    fn spans_have_ids_of_their_own_and_are_bounded() {
        let mut trace = trace();
        for n in 0..1000 {
            trace.waited("queue", Duration::from_secs(n), Duration::from_secs(n + 1));
        }
        let ids: std::collections::HashSet<u64> = trace.spans.iter().map(|s| s.id).chain([trace.root.id]).collect();
        assert_eq!((trace.spans.len(), ids.len(), ids.contains(&0)), (MOST_SPANS, MOST_SPANS + 1, false));
    }

    #[test]
    fn a_wait_that_goes_on_is_one_and_the_last_attempt_is_the_one_that_ends() {
        let mut trace = trace();
        let at = Duration::from_secs;
        trace.waited("queue", at(1), at(2));
        trace.waited("queue", at(1), at(4));
        assert_eq!(trace.spans.iter().map(|s| (s.from, s.to)).collect::<Vec<_>>(), [(at(1), Some(at(4)))]);
        trace.begin("attempt", true, at(4));
        assert_eq!(trace.end_attempt(at(5), Some("connect")).map(|s| s.failed), Some(Some("connect")));
        assert!(trace.end_attempt(at(6), None).is_none());
        trace.begin("attempt", true, at(6));
        assert_eq!(trace.attempt().map(|s| (s.from, s.to)), Some((at(6), None)));
    }
}
