//! `GET /api/events`: what changes, as server-sent events, for as long as somebody watches.
//!
//! Once a second: `now` with the last minute in numbers, `fleet` and `decisions` if they are not as they were. Each is a
//! whole document as the API gives it, so that a page that missed one has missed nothing.

use super::json::document;
use super::{Admin, Answer, FOR_BROWSERS, explain, fleet, series};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, TRANSFER_ENCODING};
use pingora_core::protocols::http::ServerSession;
use pingora_core::server::ShutdownWatch;
use pingora_error::Result;
use pingora_http::ResponseHeader;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

const EVERY: Duration = Duration::from_secs(1);
/// How long a viewer may leave an event unread.
const PATIENCE: Duration = Duration::from_secs(30);
/// The most viewers at a time.
const MOST: usize = 16;
/// Decisions that are shown.
const DECISIONS: usize = 50;

/// How many watch.
#[derive(Debug, Default)]
pub(super) struct Viewers(AtomicUsize);

struct Viewer<'a>(&'a Viewers);

impl Viewers {
    fn enter(&self) -> Option<Viewer<'_>> {
        let entered = self.0.fetch_update(Relaxed, Relaxed, |n| (n < MOST).then_some(n + 1));
        entered.ok().map(|_| Viewer(self))
    }
}

impl Drop for Viewer<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Relaxed);
    }
}

/// What was told last of what need not be repeated.
#[derive(Default)]
struct Told {
    fleet: String,
    decisions: String,
}

impl Admin {
    /// Tells until the viewer leaves or the listener closes; an answer instead, where that cannot be.
    pub(super) async fn tell(&self, session: &mut ServerSession, closes: &ShutdownWatch) -> Result<Option<Answer>> {
        if session.req_header().method != http::Method::GET {
            return Ok(Some(Answer::error(405, "only GET is allowed here")));
        }
        let Some(_viewer) = self.viewers.enter() else {
            return Ok(Some(Answer::error(503, "too many watch already")));
        };
        session.set_keepalive(None);
        session.set_write_timeout(Some(PATIENCE));
        let mut response = ResponseHeader::build(200, Some(8))?;
        response.insert_header(CONTENT_TYPE, "text/event-stream")?;
        response.insert_header(CACHE_CONTROL, "no-store")?;
        // a proxy before it must not gather events
        response.insert_header("x-accel-buffering", "no")?;
        if session.req_header().version >= http::Version::HTTP_11 {
            response.insert_header(TRANSFER_ENCODING, "chunked")?;
        }
        for (name, value) in FOR_BROWSERS {
            response.insert_header(name, value)?;
        }
        session.write_response_header(Box::new(response)).await?;
        let (mut told, mut closes) = (Told::default(), closes.clone());
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let is_due = tokio::select! {
                _ = ticks.tick() => true,
                _left = session.read_body_or_idle(true) => false,
                () = async { drop(closes.wait_for(|closes| *closes).await) } => false,
            };
            if !is_due {
                break;
            }
            session.write_response_body(self.events(&mut told), false).await?;
        }
        session.write_response_body(Bytes::new(), true).await?;
        Ok(None)
    }

    /// What there is to say.
    fn events(&self, told: &mut Told) -> Bytes {
        let mut out = String::new();
        say(&mut out, "now", &self.now());
        let fleet = fleet::all(&self.fleet, &self.metrics);
        let decisions = explain::list(&self.decisions.latest(DECISIONS), &self.fleet.replicas());
        for (name, last, document) in [("fleet", &mut told.fleet, fleet), ("decisions", &mut told.decisions, decisions)]
        {
            if *last != document {
                say(&mut out, name, &document);
                *last = document;
            }
        }
        Bytes::from(out)
    }

    fn now(&self) -> String {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs_f64();
        document(|o| {
            o.number("at", now);
            o.text("version", env!("CARGO_PKG_VERSION"));
            o.text("health", fleet::health(&self.fleet));
            o.plain("fail_open", self.fleet.fails_open());
            o.plain("draining", self.draining.load(Relaxed));
            o.text("policy", self.fleet.params().policy.name());
            o.plain("generation", self.metrics.generation());
            let (bytes, blocks) = self.fleet.index_size();
            o.plain("index_bytes", bytes);
            o.plain("index_blocks", blocks);
            o.plain("requests_in_flight", self.metrics.inflight());
            series::now(o, &self.seen.history, now);
        })
    }
}

/// One event. A document is one line.
fn say(out: &mut String, name: &str, document: &str) {
    for part in ["event: ", name, "\ndata: ", document.trim_end(), "\n\n"] {
        out.push_str(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_watch_than_may_and_who_leaves_makes_room() {
        let viewers = Viewers::default();
        let mut all: Vec<_> = (0..MOST).map(|_| viewers.enter().unwrap()).collect();
        assert!(viewers.enter().is_none());
        all.pop();
        assert!(viewers.enter().is_some());
    }

    #[test]
    fn an_event_ends_with_an_empty_line() {
        let mut out = String::new();
        say(&mut out, "now", "{\"a\":1}\n");
        assert_eq!(out, "event: now\ndata: {\"a\":1}\n\n");
    }
}
