//! One conversation as the pieces of a request body.
//!
//! A body of half a megabyte is sent every turn and differs from the last one only at its end. The pieces are shared
//! byte strings; a turn appends two of them and clones a list of references, so the client costs almost nothing beside
//! what it measures. **Invariant:** the pieces in order are one valid JSON document.

use bytes::Bytes;

use super::script::{BYTES_PER_TOKEN, Shape};
use crate::load::body::Pieces;

/// A conversation that grows and is compacted.
#[derive(Debug)]
pub(crate) struct Talk {
    developer: usize,
    base: [Bytes; 2],
    history: Vec<Bytes>,
    bytes: usize,
    compactions: u64,
}

impl Talk {
    /// A conversation with the history its developer has at the start.
    pub(crate) fn start(shape: &Shape, developer: usize, base: [Bytes; 2]) -> Self {
        let mut talk = Self { developer, base, history: Vec::new(), bytes: 0, compactions: 0 };
        talk.bytes = talk.base.iter().map(Bytes::len).sum();
        let goal = talk.bytes + shape.history_bytes(developer, talk.bytes);
        // numbers from the far end: they meet no real turn
        let mut number = u64::MAX;
        while talk.bytes < goal {
            let turn = shape.turn(developer, number);
            talk.user(&shape.user_text(developer, number, turn.user_bytes));
            talk.assistant(&shape.user_text(developer, number - 1, turn.user_bytes / 8));
            number -= 2;
        }
        talk
    }

    /// Replaces the history by a summary if `more` bytes would not fit.
    pub(crate) fn make_room(&mut self, shape: &Shape, more: usize) -> bool {
        let full = (self.bytes + more) / BYTES_PER_TOKEN > shape.context_tokens;
        if full {
            self.history.clear();
            self.bytes = self.base.iter().map(Bytes::len).sum();
            self.compactions += 1;
            self.user(&shape.summary(self.developer, self.compactions));
            self.assistant("Understood.");
        }
        full
    }

    /// Adds what a user or a tool says; the text is already escaped.
    pub(crate) fn user(&mut self, text: &str) {
        self.push(format!(r#",{{"role":"user","content":"{text}"}}"#).into());
    }

    /// Adds the model's answer; the text is already escaped.
    pub(crate) fn assistant(&mut self, text: &str) {
        self.push(format!(r#",{{"role":"assistant","content":"{text}"}}"#).into());
    }

    fn push(&mut self, piece: Bytes) {
        self.bytes += piece.len();
        self.history.push(piece);
    }

    /// The body of the next request.
    pub(crate) fn body(&self, model: &str, max_tokens: u64) -> Pieces {
        let head = format!(
            r#"{{"model":"{model}","max_tokens":{max_tokens},"stream":true,"stream_options":{{"include_usage":true}},"#
        );
        let pieces = std::iter::once(Bytes::from(head))
            .chain(self.base.iter().cloned())
            .chain(self.history.iter().cloned())
            .chain(std::iter::once(Bytes::from_static(b"]}")));
        Pieces::new(pieces.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        shape: Shape,
    }

    fn json(talk: &Talk) -> serde_json::Value {
        serde_json::from_slice(&talk.body("m", 5).whole()).unwrap()
    }

    #[test]
    fn pieces_are_one_document_before_and_after_compaction() {
        let shape = Line::parse_from(["x", "--context-tokens", "60000"]).shape;
        let mut talk = Talk::start(&shape, 0, [shape.harness(0), shape.repository(0)]);
        talk.user("hello");
        let last = json(&talk)["messages"].as_array().unwrap().last().unwrap().clone();
        assert_eq!(last["content"], "hello");
        assert!(talk.make_room(&shape, 200_000));
        assert_eq!(json(&talk)["messages"].as_array().unwrap().len(), 4);
        assert!(!talk.make_room(&shape, 1000));
    }
}
