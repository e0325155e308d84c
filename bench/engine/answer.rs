//! What a client reads: one JSON document, or the same as a stream of events.
//!
//! The shapes are vLLM's: role chunk with the first token, a finish chunk, a usage chunk only when asked for, `[DONE]`.
//! Beside `usage` the last document carries `simulated_ms`, the request's own times in virtual milliseconds, so that a
//! load generator can tell what the machine added.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use hyper::body::{Body, Frame};
use tokio::sync::mpsc;
use tokio::time::Sleep;

use super::fault::Fault;
use super::sim::{Delta, Ticket};
use super::text::{Ask, Kind};

/// Lets what was written reach the peer before a reset throws it away.
const BEFORE_RESET: Duration = Duration::from_millis(5);

/// What a body gives next.
type Next = Option<Result<Frame<Bytes>, io::Error>>;

/// A request on its way to an answer. Dropping it stops the work.
pub(crate) struct Answer {
    ask: Ask,
    bytes_per_token: usize,
    made: usize,
    cached: usize,
    deltas: mpsc::UnboundedReceiver<Delta>,
    ticket: Ticket,
}

impl Answer {
    pub(crate) fn new(ask: Ask, deltas: mpsc::UnboundedReceiver<Delta>, ticket: Ticket) -> Self {
        let bytes_per_token = ticket.shared.params.bytes_per_token;
        Self { ask, bytes_per_token, made: 0, cached: 0, deltas, ticket }
    }

    /// Waits for the whole answer; `None` when the engine dropped the request.
    pub(crate) async fn whole(mut self) -> Option<String> {
        loop {
            let delta = self.deltas.recv().await?;
            self.count(&delta);
            if delta.done.is_some() {
                return Some(self.document(&delta));
            }
        }
    }

    fn count(&mut self, delta: &Delta) -> usize {
        let from = self.made;
        self.made += delta.tokens;
        self.cached = delta.cached.unwrap_or(self.cached);
        from
    }

    fn text(&self, from: usize) -> &str {
        let end = (self.made * self.bytes_per_token).min(self.ask.answer.len());
        self.ask.answer.get(from * self.bytes_per_token..end).unwrap_or("")
    }

    fn head(&self, object: &str) -> String {
        let (prefix, infix) = match self.ask.kind {
            Kind::Chat => ("chatcmpl", "chat.completion"),
            Kind::Completion => ("cmpl", "text_completion"),
        };
        let object = if self.ask.kind == Kind::Chat { format!("{infix}{object}") } else { infix.to_owned() };
        let created = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |age| age.as_secs());
        let model = serde_json::Value::from(self.ask.model.as_str());
        format!(r#"{{"id":"{prefix}-{:x}","object":"{object}","created":{created},"model":{model}"#, self.ask.job.id)
    }

    fn reason(&self) -> &'static str {
        if self.ask.limited { "length" } else { "stop" }
    }

    fn tail(&self, delta: &Delta) -> String {
        let (prompt, made) = (self.ask.job.prompt_tokens, self.made);
        let times = delta.done.map_or(String::new(), |times| {
            format!(r#","simulated_ms":{{"ttft":{:.3},"total":{:.3}}}"#, times.ttft, times.total)
        });
        format!(
            r#""usage":{{"prompt_tokens":{prompt},"completion_tokens":{made},"total_tokens":{},"prompt_tokens_details":{{"cached_tokens":{}}}}}{times}}}"#,
            prompt + made,
            self.cached
        )
    }

    fn document(&self, delta: &Delta) -> String {
        let (head, text, reason) = (self.head(""), self.text(0), self.reason());
        let content = match self.ask.kind {
            Kind::Chat => format!(r#""message":{{"role":"assistant","content":"{text}"}}"#),
            Kind::Completion => format!(r#""text":"{text}""#),
        };
        format!(
            r#"{head},"choices":[{{"index":0,{content},"logprobs":null,"finish_reason":"{reason}"}}],{}"#,
            self.tail(delta)
        )
    }

    /// Everything one delta makes a stream say.
    fn events(&mut self, delta: &Delta) -> String {
        let from = self.count(delta);
        let head = self.head(".chunk");
        let mut out = String::with_capacity(512);
        let mut choice = |content: &str, reason: &str| {
            out.push_str(&format!(
                "data: {head},\"choices\":[{{\"index\":0,{content},\"logprobs\":null,\"finish_reason\":{reason}}}]}}\n\n"
            ));
        };
        let (open, close, empty) = match self.ask.kind {
            Kind::Chat => ("\"delta\":{\"content\":\"", "\"}", "\"delta\":{}"),
            Kind::Completion => ("\"text\":\"", "\"", "\"text\":\"\""),
        };
        if from == 0 && self.ask.kind == Kind::Chat {
            choice("\"delta\":{\"role\":\"assistant\",\"content\":\"\"}", "null");
        }
        choice(&format!("{open}{}{close}", self.text(from)), "null");
        if delta.done.is_some() {
            choice(empty, &format!("\"{}\"", self.reason()));
            if self.ask.usage {
                out.push_str(&format!("data: {head},\"choices\":[],{}\n\n", self.tail(delta)));
            }
            out.push_str("data: [DONE]\n\n");
        }
        out
    }
}

/// The body of a streamed answer.
pub(crate) struct EventBody {
    answer: Answer,
    /// tells the connection to close with a reset
    reset: Arc<AtomicBool>,
    sent: usize,
    ended: bool,
    breaking: Option<Pin<Box<Sleep>>>,
}

impl EventBody {
    pub(crate) fn new(answer: Answer, reset: Arc<AtomicBool>) -> Self {
        Self { answer, reset, sent: 0, ended: false, breaking: None }
    }

    fn broken(&mut self, cx: &mut Context<'_>) -> Option<Poll<Next>> {
        let fault = *self.answer.ticket.shared.fault.borrow();
        match fault {
            Fault::Error { after } if self.sent >= after => {
                self.ended = true;
                let text = "data: {\"error\":{\"message\":\"engine core died\",\"type\":\"InternalServerError\",\"param\":null,\"code\":500}}\n\ndata: [DONE]\n\n";
                Some(Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(text.as_bytes()))))))
            }
            Fault::Reset { after } if self.sent >= after => {
                let sleep = self.breaking.get_or_insert_with(|| Box::pin(tokio::time::sleep(BEFORE_RESET)));
                Some(sleep.as_mut().poll(cx).map(|()| {
                    // ordering: read by the same connection's task
                    self.reset.store(true, Ordering::Relaxed);
                    Some(Err(io::Error::from(io::ErrorKind::ConnectionReset)))
                }))
            }
            _ => None,
        }
    }
}

impl Body for EventBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Next> {
        if self.ended {
            return Poll::Ready(None);
        }
        if let Some(broken) = self.broken(cx) {
            return broken;
        }
        let Poll::Ready(delta) = self.answer.deltas.poll_recv(cx) else { return Poll::Pending };
        let Some(delta) = delta else {
            // dropped by the engine: the stream breaks off without an end
            return Poll::Ready(Some(Err(io::Error::from(io::ErrorKind::UnexpectedEof))));
        };
        self.sent += 1;
        self.ended = delta.done.is_some();
        let events = self.answer.events(&delta);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(events)))))
    }
}
