//! What a developer's client needs from a stream: when the first word came, the answer, the usage, how it ended.
//!
//! Answers are kept in the escaped form they travel in, because they go back as they are in the next request.

use memchr::memmem::find;
use serde_json::Value;

/// Token counts and, from a simulated engine, its own times in virtual ms.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Usage {
    pub(crate) prompt: u64,
    pub(crate) cached: u64,
    pub(crate) simulated_total: Option<f64>,
}

/// Reads a stream however it is cut into chunks.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    partial: Vec<u8>,
    /// the answer, JSON-escaped
    pub(crate) answer: String,
    pub(crate) usage: Option<Usage>,
    pub(crate) done: bool,
    pub(crate) error: bool,
}

impl Reader {
    /// Takes what arrived.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) {
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            let (line, rest) = bytes.split_at(end);
            bytes = &rest[1..];
            if self.partial.is_empty() {
                self.line(line);
            } else {
                let mut whole = std::mem::take(&mut self.partial);
                whole.extend_from_slice(line);
                self.line(&whole);
            }
        }
        self.partial.extend_from_slice(bytes);
    }

    /// Whether the first word has come.
    pub(crate) fn begun(&self) -> bool {
        !self.answer.is_empty()
    }

    fn line(&mut self, line: &[u8]) {
        let Some(data) = line.strip_prefix(b"data:") else { return };
        let data = data.trim_ascii();
        if data == b"[DONE]" {
            self.done = true;
        } else if data.starts_with(b"{\"error\"") {
            self.error = true;
        } else {
            if let Some(delta) = find(data, b"\"delta\":{") {
                self.answer.push_str(content(&data[delta..]));
            }
            if find(data, b"\"usage\":{").is_some() {
                self.usage = usage(data);
            }
        }
    }
}

/// The raw string value of `content`, empty if there is none.
fn content(delta: &[u8]) -> &str {
    const KEY: &[u8] = b"\"content\":\"";
    let Some(at) = find(delta, KEY) else { return "" };
    let text = &delta[at + KEY.len()..];
    let mut end = 0;
    while end < text.len() && text[end] != b'"' {
        end += if text[end] == b'\\' { 2 } else { 1 };
    }
    text.get(..end).and_then(|text| std::str::from_utf8(text).ok()).unwrap_or("")
}

fn usage(data: &[u8]) -> Option<Usage> {
    let json: Value = serde_json::from_slice(data).ok()?;
    let number = |path: &str| json.pointer(path).and_then(Value::as_u64);
    Some(Usage {
        prompt: number("/usage/prompt_tokens")?,
        cached: number("/usage/prompt_tokens_details/cached_tokens").unwrap_or(0),
        simulated_total: json.pointer("/simulated_ms/total").and_then(Value::as_f64),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STREAM: &str = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n\
        : a comment\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"a \\\"b\\\" \"}}]}\n\n\
        data: {\"choices\":[{\"delta\":{\"content\":\"c\"}}]}\n\n\
        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\ndata: [DONE]\n\n";

    proptest! {
        #[test]
        fn any_cut_reads_the_same(cuts in prop::collection::vec(1usize..40, 1..40)) {
            let mut reader = Reader::default();
            let (mut at, mut cut) = (0, cuts.iter().cycle());
            while at < STREAM.len() {
                let end = (at + cut.next().unwrap()).min(STREAM.len());
                reader.feed(&STREAM.as_bytes()[at..end]);
                at = end;
            }
            prop_assert_eq!(reader.answer.as_str(), "a \\\"b\\\" c");
            prop_assert_eq!(reader.usage, Some(Usage { prompt: 9, cached: 4, simulated_total: None }));
            prop_assert!(reader.done && !reader.error);
        }
    }

    #[test]
    fn error_event_is_seen_though_done_follows() {
        let mut reader = Reader::default();
        reader.feed(b"data: {\"error\":{\"message\":\"x\"}}\n\ndata: [DONE]\n\n");
        assert!(reader.error && reader.done && !reader.begun());
    }
}
