//! What is asked, what is answered and what goes wrong, all from a seed: whoever knows a request's number knows every byte
//! of it and of its answers, so nothing need be remembered to be checked.

use std::fmt::Write as _;

use bytes::Bytes;
use serde_json::json;

use crate::num::{Rng, size};

/// The API that is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Chat,
    Completion,
    Messages,
    /// told to keep nothing
    Responses,
    /// kept by the engine: never to be sent twice
    KeptResponse,
    Embeddings,
    /// a path that no router understands: its body is streamed through, and it may do anything
    Other,
}

/// What the client does besides asking.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Manner {
    Stays,
    /// real ms after it began
    Leaves(f64),
    /// with this share of its body sent
    LeavesInBody(f64),
    /// waits so many ms after each piece
    ReadsSlowly(f64),
}

/// One request.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) kind: Kind,
    pub(crate) streams: bool,
    /// sent in chunks, without a length
    pub(crate) is_chunked: bool,
    pub(crate) manner: Manner,
    pub(crate) body: Bytes,
}

/// How an answer's end is marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    Length,
    Chunked,
    /// by the end of the connection, as of old, and by the last event
    Close,
}

/// One answer as an engine means it, without what goes wrong.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) content_type: &'static str,
    pub(crate) framing: Framing,
    pub(crate) body: Bytes,
}

/// What goes wrong with one attempt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fault {
    None,
    /// ms before each piece
    Slow(f64),
    /// the connection goes before a byte was answered, with a reset or without
    Lost {
        resets: bool,
    },
    /// an error, with `Retry-After` or without
    Status {
        code: u16,
        comes_back: bool,
    },
    Garbage,
    /// part of a head, then the end
    HalfHead,
    /// so many bytes of the body, then the end
    Cut {
        at: usize,
        resets: bool,
    },
    /// so many bytes of the body, then what is no chunk
    BadChunk {
        at: usize,
    },
    /// so many bytes of the body, then silence
    Stall {
        at: usize,
    },
    /// silence instead of an answer
    Silent,
    /// the last event is missing, although the body ends as it should
    NoEnd,
    /// all is well, but the connection is closed without a word
    ClosesAfter,
}

const WORDS: [&str; 16] = [
    "the",
    "cache",
    "holds",
    "what",
    "was",
    "read",
    "\\n",
    "gr\\u00fc\\u00df",
    "of",
    "it",
    "\\\"",
    "token",
    "\u{e9}t\u{e9}",
    "and",
    "then",
    "\\\\",
];

impl Kind {
    const ALL: [(Kind, f64); 7] = [
        (Kind::Chat, 0.4),
        (Kind::Completion, 0.15),
        (Kind::Messages, 0.15),
        (Kind::Responses, 0.07),
        (Kind::KeptResponse, 0.06),
        (Kind::Embeddings, 0.1),
        (Kind::Other, 0.07),
    ];

    pub(crate) fn path(self) -> &'static str {
        match self {
            Kind::Chat => "/v1/chat/completions",
            Kind::Completion => "/v1/completions",
            Kind::Messages => "/v1/messages",
            Kind::Responses | Kind::KeptResponse => "/v1/responses",
            Kind::Embeddings => "/v1/embeddings",
            Kind::Other => "/v1/chaos",
        }
    }

    /// Whether a second engine may get it although the first may have begun it.
    pub(crate) fn is_repeatable(self) -> bool {
        !matches!(self, Kind::KeptResponse | Kind::Other)
    }
}

// === requests ===

/// The request with this number.
pub(crate) fn ask(seed: u64, id: u64) -> Ask {
    let mut rng = Rng::of(&[seed, id, 1]);
    let mut draw = rng.unit();
    let kind = Kind::ALL.into_iter().find(|(_, share)| {
        draw -= share;
        draw < 0.0
    });
    let kind = kind.map_or(Kind::Chat, |(kind, _)| kind);
    let streams = !matches!(kind, Kind::Embeddings | Kind::Other) && rng.chance(0.7);
    let manner = match rng.unit() {
        x if x < 0.1 => Manner::Leaves(rng.between(1.0, 400.0)),
        x if x < 0.13 => Manner::LeavesInBody(rng.unit()),
        x if x < 0.2 => Manner::ReadsSlowly(rng.between(1.0, 15.0)),
        _ => Manner::Stays,
    };
    let is_chunked = rng.chance(0.15);
    let body = body(kind, streams, id, &mut rng, seed);
    Ask { kind, streams, is_chunked, manner, body: body.into() }
}

fn body(kind: Kind, streams: bool, id: u64, rng: &mut Rng, seed: u64) -> String {
    let length = match rng.unit() {
        x if x < 0.6 => rng.between(50.0, 2e3),
        x if x < 0.95 => rng.between(2e3, 6e4),
        x if x < 0.99 => rng.between(6e4, 3e5),
        _ => rng.between(1e6, 3e6),
    };
    // a beginning that others have as well, so that there is something to route by
    let shared = text(&mut Rng::of(&[seed, rng.next() % 8, 2]), 6000);
    let own = text(rng, size(length));
    let start = format!(r#"{{"model":"chaos","seed":{id}, "temperature" : 0.70,"stream":{streams}"#);
    match kind {
        Kind::Chat | Kind::Messages => format!(
            r#"{start},"max_tokens":64,"messages":[{{"role":"user","content":"{shared}"}},{{"role":"assistant","content":"ok"}},{{"content":"{own}","role":"user"}}]}}"#
        ),
        Kind::Completion => format!(r#"{start},"prompt":"{shared}{own}"}}"#),
        Kind::Responses => format!(r#"{start},"store":false,"input":"{own}"}}"#),
        Kind::KeptResponse => format!(r#"{start},"input":"{own}"}}"#),
        Kind::Embeddings | Kind::Other => format!(r#"{start},"input":["{own}"]}}"#),
    }
}

/// About so many bytes between the quotes of a JSON string.
fn text(rng: &mut Rng, bytes: usize) -> String {
    let mut out = String::with_capacity(bytes + 16);
    while out.len() < bytes {
        let mut dice = rng.next();
        for _ in 0..16 {
            out.push_str(WORDS[size((dice % 16) as f64)]);
            out.push(' ');
            dice >>= 4;
        }
    }
    out
}

// === answers ===

/// What an engine answers to a request at its `attempt`th try, the first being 0.
pub(crate) fn answer(seed: u64, id: u64, attempt: usize, kind: Kind, streams: bool) -> Answer {
    let mut rng = Rng::of(&[seed, id, attempt as u64, 3]);
    if streams {
        let framing = if rng.chance(0.06) { Framing::Close } else { Framing::Chunked };
        let body = stream(kind, &name(id, attempt), &mut rng);
        return Answer { content_type: "text/event-stream", framing, body: body.into() };
    }
    let framing = if rng.chance(0.2) { Framing::Chunked } else { Framing::Length };
    let length = if rng.chance(0.05) { rng.between(1e5, 1e6) } else { rng.between(20.0, 2e4) };
    let text = text(&mut rng, size(length));
    let usage = r#""usage":{"prompt_tokens":9,"completion_tokens":7,"input_tokens":9,"output_tokens":7}"#;
    let body = format!(r#"{{"id":"{}","text":"{text}", {usage} }}"#, name(id, attempt));
    Answer { content_type: "application/json", framing, body: body.into() }
}

/// What a generation is called, in its answer and in the header field that names it.
pub(crate) fn name(id: u64, attempt: usize) -> String {
    format!("{id}-{attempt}")
}

/// The error body of an attempt.
pub(crate) fn error_body(id: u64, attempt: usize) -> String {
    json!({"error": {"message": name(id, attempt), "type": "chaos", "param": null, "code": null}}).to_string()
}

fn stream(kind: Kind, name: &str, rng: &mut Rng) -> String {
    let mut out = String::new();
    let tokens = 2 + rng.next() % 50;
    let long = rng.chance(0.04);
    for _ in 0..tokens {
        let word = text(rng, if long { 8000 } else { 10 });
        // writing to a string cannot fail
        let _ = match kind {
            Kind::Messages => write!(
                out,
                "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"delta\":{{\"text\":\"{word}\"}},\"g\":\"{name}\"}}\n\n"
            ),
            Kind::Responses | Kind::KeptResponse => write!(
                out,
                "event: response.output_text.delta\ndata: {{\"type\":\"response.output_text.delta\",\"delta\":\"{word}\",\"g\":\"{name}\"}}\n\n"
            ),
            _ => write!(
                out,
                "data: {{\"id\":\"{name}\",\"choices\":[{{\"index\":0,\"text\":\"{word}\",\"delta\":{{\"content\":\"{word}\"}}}}]}}\n\n"
            ),
        };
        if rng.chance(0.1) {
            out.push_str(": still here\r\n\r\n");
        }
    }
    out.push_str(end(kind));
    out
}

/// The last event of a stream.
pub(crate) fn end(kind: Kind) -> &'static str {
    match kind {
        Kind::Messages => "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
        Kind::Responses | Kind::KeptResponse => {
            "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":9,\"output_tokens\":7}}}\n\n"
        }
        _ => "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":7}}\n\ndata: [DONE]\n\n",
    }
}

// === faults ===

/// What goes wrong with this attempt.
pub(crate) fn fault(seed: u64, id: u64, attempt: usize, answer: &Answer, streams: bool) -> Fault {
    let mut rng = Rng::of(&[seed, id, attempt as u64, 4]);
    if rng.chance(0.7) {
        return if rng.chance(0.1) { Fault::Slow(rng.between(1.0, 40.0)) } else { Fault::None };
    }
    let at = size(rng.unit() * (answer.body.len() - 1) as f64);
    let resets = rng.chance(0.5);
    match rng.next() % 12 {
        0 | 1 => Fault::Lost { resets },
        2 => Fault::Status { code: [502, 503][usize::from(resets)], comes_back: false },
        3 => Fault::Status { code: [429, 500, 503, 400, 504][size((rng.next() % 5) as f64)], comes_back: true },
        4 => Fault::Garbage,
        5 => Fault::HalfHead,
        6 | 7 => Fault::Cut { at, resets },
        8 if answer.framing == Framing::Chunked => Fault::BadChunk { at },
        // the end of the connection after the silence would be the end that the answer has anyway
        9 if answer.framing != Framing::Close => Fault::Stall { at },
        10 if rng.chance(0.5) => Fault::Silent,
        // without a framing that is a cut
        11 if streams && answer.framing != Framing::Close => Fault::NoEnd,
        _ => Fault::ClosesAfter,
    }
}

impl Fault {
    /// How many bytes of a body of `length` an engine sends, and whether it then ends as it should.
    pub(crate) fn sends(self, length: usize, kind: Kind) -> (usize, bool) {
        match self {
            Fault::None | Fault::Slow(_) | Fault::ClosesAfter => (length, true),
            Fault::NoEnd => (length - end(kind).len(), true),
            Fault::Cut { at, .. } | Fault::BadChunk { at } | Fault::Stall { at } => (at, false),
            Fault::Lost { .. } | Fault::Status { .. } | Fault::Garbage | Fault::HalfHead | Fault::Silent => (0, false),
        }
    }

    /// The word for it in the summary.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Fault::None => "none",
            Fault::Slow(_) => "slow",
            Fault::Lost { resets: true } => "reset",
            Fault::Lost { resets: false } => "closed",
            Fault::Status { comes_back: false, .. } => "502/503",
            Fault::Status { comes_back: true, .. } => "other status",
            Fault::Garbage => "garbage",
            Fault::HalfHead => "half head",
            Fault::Cut { .. } => "cut",
            Fault::BadChunk { .. } => "bad chunk",
            Fault::Stall { .. } => "stall",
            Fault::Silent => "silent",
            Fault::NoEnd => "no last event",
            Fault::ClosesAfter => "closes after",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_number_says_everything_and_bodies_are_json() {
        let mut faults = BTreeSet::new();
        for id in 0..600 {
            let first = ask(7, id);
            assert_eq!(first.body, ask(7, id).body);
            assert_ne!(first.body, ask(8, id).body);
            let value: serde_json::Value = serde_json::from_slice(&first.body).unwrap();
            assert_eq!(value["seed"], id);
            let answer = answer(7, id, 0, first.kind, first.streams);
            let (sent, _) = fault(7, id, 0, &answer, first.streams).sends(answer.body.len(), first.kind);
            assert!(sent <= answer.body.len());
            faults.insert(fault(7, id, 0, &answer, first.streams).word());
            if !first.streams {
                assert!(serde_json::from_slice::<serde_json::Value>(&answer.body).is_ok());
            }
        }
        assert_eq!(faults.len(), 14, "every fault happens: {faults:?}");
    }

    #[test]
    fn attempts_differ_in_every_answer() {
        assert_ne!(answer(7, 1, 0, Kind::Chat, true).body, answer(7, 1, 1, Kind::Chat, true).body);
    }
}
