//! What an answer tells: the first generated token, the end, a failure, and how many tokens were read and cached.
//!
//! Engines differ in where they put things; whatever is found is taken, and what is absent stays unknown. Cached
//! tokens that are not reported are *unknown*, not zero.

use super::json::{Cursor, Kind, Malformed};
use super::sse::{Event, Scanner};

/// Tokens as an engine reported them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens, cached ones included.
    pub prompt: Option<u64>,
    /// Prompt tokens that came from the prefix cache.
    pub cached: Option<u64>,
    /// Generated tokens.
    pub completion: Option<u64>,
}

/// How far a streamed answer has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamState {
    /// Something was generated.
    pub generated: bool,
    /// A finish reason or `[DONE]` was seen.
    pub finished: bool,
    /// An error event was seen; a `[DONE]` after it does not heal it.
    pub failed: bool,
    /// What was reported.
    pub usage: Usage,
}

/// Reads a streamed answer beside its relay.
#[derive(Debug, Default)]
pub struct StreamReader {
    scanner: Scanner,
    state: StreamState,
    /// Kept apart: what `usage` says goes before what the timings say.
    usage: Usage,
    timings: Usage,
}

/// The most of a whole (not streamed) answer that is kept for reading: its last bytes, where usage stands.
pub const MAX_WHOLE: usize = 64 << 10;

/// Reads a whole answer beside its relay: keeps the last [`MAX_WHOLE`] bytes.
#[derive(Debug, Default)]
pub struct WholeReader {
    tail: Vec<u8>,
}

// === impl StreamReader ===

impl StreamReader {
    /// Takes a piece of the stream in; returns the state after it.
    pub fn push(&mut self, piece: &[u8]) -> StreamState {
        let Self { scanner, state, usage, timings } = self;
        scanner.push(piece, |event| match event {
            Event::Data(b"[DONE]") => state.finished = true,
            // an event beyond all usual sizes is content
            Event::TooLarge => state.generated = true,
            Event::Data(data) => {
                // text that cannot be read is relayed all the same; it only tells nothing
                let _unreadable = chunk(data, state, usage, timings);
            }
        });
        state.usage = usage.or(*timings);
        *state
    }
}

/// One event of a chat or completion stream.
fn chunk(
    data: &[u8],
    state: &mut StreamState,
    usage_seen: &mut Usage,
    timings_seen: &mut Usage,
) -> Result<(), Malformed> {
    Cursor::new(data).object(|key, value| {
        match key.raw {
            b"choices" if value.kind()? == Kind::Array => value.array(|choice| self::choice(choice, state))?,
            b"usage" if value.kind()? == Kind::Object => usage(value, usage_seen)?,
            b"timings" if value.kind()? == Kind::Object => timings(value, timings_seen)?,
            b"error" => state.failed |= value.skip()? != b"null",
            _ => drop(value.skip()?),
        }
        Ok(())
    })
}

fn choice(choice: &mut Cursor<'_>, state: &mut StreamState) -> Result<(), Malformed> {
    choice.object(|key, value| {
        match key.raw {
            b"delta" if value.kind()? == Kind::Object => delta(value, state)?,
            b"text" => state.generated |= is_something(value.skip()?),
            b"finish_reason" => state.finished |= is_something(value.skip()?),
            _ => drop(value.skip()?),
        }
        Ok(())
    })
}

/// A role alone, or empty and null members, are no generated token.
fn delta(delta: &mut Cursor<'_>, state: &mut StreamState) -> Result<(), Malformed> {
    delta.object(|key, value| {
        let text = value.skip()?;
        state.generated |= key.raw != b"role" && is_something(text);
        Ok(())
    })
}

fn is_something(text: &[u8]) -> bool {
    !matches!(text, b"null" | b"\"\"" | b"[]" | b"{}")
}

/// A usage object, wherever engines put the cached tokens.
fn usage(object: &mut Cursor<'_>, usage: &mut Usage) -> Result<(), Malformed> {
    object.object(|key, value| {
        match key.raw {
            b"prompt_tokens" => usage.prompt = number(value)?.or(usage.prompt),
            b"completion_tokens" | b"output_tokens" => usage.completion = number(value)?.or(usage.completion),
            b"cached_tokens" | b"cache_read_input_tokens" => usage.cached = number(value)?.or(usage.cached),
            b"prompt_tokens_details" | b"input_tokens_details" if value.kind()? == Kind::Object => {
                value.object(|key, value| {
                    match key.raw {
                        b"cached_tokens" => usage.cached = number(value)?.or(usage.cached),
                        _ => drop(value.skip()?),
                    }
                    Ok(())
                })?;
            }
            _ => drop(value.skip()?),
        }
        Ok(())
    })
}

/// llama.cpp's own figures, sent on request with every event and always with the last: the latest count.
fn timings(object: &mut Cursor<'_>, usage: &mut Usage) -> Result<(), Malformed> {
    let mut fresh = None;
    object.object(|key, value| {
        match key.raw {
            b"prompt_n" => fresh = number(value)?,
            b"cache_n" => usage.cached = number(value)?.or(usage.cached),
            b"predicted_n" => usage.completion = number(value)?.or(usage.completion),
            _ => drop(value.skip()?),
        }
        Ok(())
    })?;
    if let (Some(fresh), Some(cached)) = (fresh, usage.cached) {
        usage.prompt = Some(cached.saturating_add(fresh));
    }
    Ok(())
}

impl Usage {
    /// These figures, where unknown those of `other`.
    fn or(self, other: Usage) -> Usage {
        Usage {
            prompt: self.prompt.or(other.prompt),
            cached: self.cached.or(other.cached),
            completion: self.completion.or(other.completion),
        }
    }
}

fn number(value: &mut Cursor<'_>) -> Result<Option<u64>, Malformed> {
    Ok(std::str::from_utf8(value.skip()?).ok().and_then(|t| t.parse().ok()))
}

// === impl WholeReader ===

impl WholeReader {
    /// Takes a piece of the body in.
    pub fn push(&mut self, piece: &[u8]) {
        let piece = &piece[piece.len().saturating_sub(MAX_WHOLE)..];
        let surplus = (self.tail.len() + piece.len()).saturating_sub(MAX_WHOLE);
        self.tail.drain(..surplus);
        self.tail.extend_from_slice(piece);
    }

    /// What the body reported; the last `usage` and `timings` in the kept tail count.
    pub fn usage(&self) -> Usage {
        let (mut by_usage, mut by_timings) = (Usage::default(), Usage::default());
        // text that cannot be read tells nothing
        let _unreadable = self.last("\"usage\"").map(|mut value| usage(&mut value, &mut by_usage));
        let _unreadable = self.last("\"timings\"").map(|mut value| timings(&mut value, &mut by_timings));
        by_usage.or(by_timings)
    }

    /// The value after the last `key`. (Within a string the quotes of a key would be escaped.)
    fn last(&self, key: &str) -> Option<Cursor<'_>> {
        let at = memchr::memmem::rfind(&self.tail, key.as_bytes())?;
        self.tail[at + key.len()..].trim_ascii_start().strip_prefix(b":").map(Cursor::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state_after(events: &[&str]) -> StreamState {
        let mut reader = StreamReader::default();
        events.iter().fold(StreamState::default(), |_, e| reader.push(format!("data: {e}\n\n").as_bytes()))
    }

    #[test]
    fn a_role_or_an_empty_delta_is_not_a_generated_token() {
        for event in [
            r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#,
            r#"{"choices":[{"delta":{"role":"assistant","content":null,"tool_calls":[],"reasoning_content":""}}]}"#,
            r#"{"choices":[{"index":0,"text":"","logprobs":null}]}"#,
            r#"{"choices":[],"usage":null}"#,
            "not json",
        ] {
            assert_eq!(state_after(&[event]), StreamState::default(), "{event}");
        }
    }

    #[test]
    fn content_reasoning_tool_calls_and_text_are_generated_tokens() {
        for event in [
            r#"{"choices":[{"delta":{"content":"x"}}]}"#,
            r#"{"choices":[{"delta":{"reasoning_content":"x"}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}"#,
            r#"{"choices":[{"text":" "}]}"#,
        ] {
            assert!(state_after(&[event]).generated, "{event}");
        }
    }

    #[test]
    fn an_error_event_is_a_failure_even_if_done_follows() {
        let state = state_after(&[
            r#"{"choices":[{"delta":{"content":"x"}}]}"#,
            r#"{"error":{"message":"core died"}}"#,
            "[DONE]",
        ]);
        assert!(state.failed && state.finished);
    }

    #[test]
    fn usage_is_read_in_every_engines_words_and_absent_is_unknown() {
        let rows = [
            (
                r#"{"usage":{"prompt_tokens":100,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":96}}}"#,
                Some(100),
                Some(96),
                Some(5),
            ),
            (
                r#"{"usage":{"prompt_tokens":100,"completion_tokens":5,"prompt_tokens_details":null}}"#,
                Some(100),
                None,
                Some(5),
            ),
            (r#"{"usage":{"prompt_tokens":100,"cached_tokens":0}}"#, Some(100), Some(0), None),
            (
                r#"{"timings":{"cache_n":90,"prompt_n":10,"predicted_n":4,"prompt_ms":1.5}}"#,
                Some(100),
                Some(90),
                Some(4),
            ),
            (r#"{"usage":null}"#, None, None, None),
        ];
        for (event, prompt, cached, completion) in rows {
            assert_eq!(state_after(&[event]).usage, Usage { prompt, cached, completion }, "{event}");
        }
    }

    #[test]
    fn timings_with_every_event_count_to_the_last_and_usage_goes_before_them() {
        let events: Vec<_> =
            (1..=50).map(|n| format!(r#"{{"timings":{{"cache_n":90,"prompt_n":10,"predicted_n":{n}}}}}"#)).collect();
        let mut texts: Vec<_> = events.iter().map(String::as_str).collect();
        assert_eq!(state_after(&texts).usage, Usage { prompt: Some(100), cached: Some(90), completion: Some(50) });
        texts.insert(7, r#"{"usage":{"prompt_tokens":101,"completion_tokens":51}}"#);
        assert_eq!(state_after(&texts).usage, Usage { prompt: Some(101), cached: Some(90), completion: Some(51) });
    }

    #[test]
    fn a_later_event_without_figures_does_not_erase_them() {
        let state = state_after(&[
            r#"{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":3}}}"#,
            r#"{"usage":{"completion_tokens":2}}"#,
        ]);
        assert_eq!(state.usage, Usage { prompt: Some(9), cached: Some(3), completion: Some(2) });
    }

    #[test]
    fn a_whole_answer_is_read_from_its_tail() {
        let mut reader = WholeReader::default();
        reader.push(&vec![b'x'; 3 * MAX_WHOLE]);
        for piece in
            [&br#"y"}],"usage": {"prompt_tok"#[..], br#"ens":7,"completion_tokens":1,"#, br#""total_tokens":8}}"#]
        {
            reader.push(piece);
        }
        assert!(reader.tail.len() <= MAX_WHOLE);
        assert_eq!(reader.usage(), Usage { prompt: Some(7), cached: None, completion: Some(1) });
        assert_eq!(WholeReader::default().usage(), Usage::default());
    }
}
