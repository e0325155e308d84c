//! Token counts, in the words of every API and engine.
//!
//! OpenAI counts cached tokens into the prompt, Anthropic beside it: there the prompt is what was new, what was read from
//! the cache and what was written to it. Who reports says so by the names of the counts.

use super::super::json::{Cursor, Kind, Malformed};
use super::Usage;

/// The counts of usage objects, as they stand there; a later one replaces an earlier one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Figures {
    /// The prompt, cached tokens included.
    prompt: Option<u64>,
    /// `input_tokens`, which includes them or not.
    input: Option<u64>,
    /// Tokens that came from the cache, as OpenAI and SGLang name them.
    cached: Option<u64>,
    /// The same, as Anthropic names them.
    cache_read: Option<u64>,
    /// Tokens beside the input that went into the cache.
    cache_written: Option<u64>,
    completion: Option<u64>,
    /// Of these, reasoning: OpenAI's details, and SGLang beside them.
    reasoning: Option<u64>,
}

impl Figures {
    /// Reads a usage object.
    pub(super) fn read(&mut self, object: &mut Cursor<'_>) -> Result<(), Malformed> {
        object.object(|key, value| {
            let count = match key.raw {
                b"prompt_tokens" => &mut self.prompt,
                b"input_tokens" => &mut self.input,
                b"completion_tokens" | b"output_tokens" => &mut self.completion,
                b"cached_tokens" => &mut self.cached,
                b"reasoning_tokens" => &mut self.reasoning,
                b"cache_read_input_tokens" => &mut self.cache_read,
                b"cache_creation_input_tokens" => &mut self.cache_written,
                b"prompt_tokens_details" | b"input_tokens_details" if value.kind()? == Kind::Object => {
                    return details(value, b"cached_tokens", &mut self.cached);
                }
                b"completion_tokens_details" | b"output_tokens_details" if value.kind()? == Kind::Object => {
                    return details(value, b"reasoning_tokens", &mut self.reasoning);
                }
                _ => return value.skip().map(drop),
            };
            *count = number(value)?.or(*count);
            Ok(())
        })
    }

    /// What they come to.
    pub(super) fn usage(self) -> Usage {
        let beside = |count: Option<u64>| if self.cached.is_some() { 0 } else { count.unwrap_or(0) };
        let whole =
            self.input.map(|n| n.saturating_add(beside(self.cache_read)).saturating_add(beside(self.cache_written)));
        Usage {
            prompt: self.prompt.or(whole),
            cached: self.cached.or(self.cache_read),
            completion: self.completion,
            reasoning: self.reasoning,
        }
    }
}

fn details(object: &mut Cursor<'_>, name: &[u8], count: &mut Option<u64>) -> Result<(), Malformed> {
    object.object(|key, value| {
        if key.raw == name {
            *count = number(value)?.or(*count);
        } else {
            value.skip()?;
        }
        Ok(())
    })
}

/// llama.cpp's own figures, sent on request with every event and always with the last: the latest count.
pub(super) fn timings(object: &mut Cursor<'_>, usage: &mut Usage) -> Result<(), Malformed> {
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

fn number(value: &mut Cursor<'_>) -> Result<Option<u64>, Malformed> {
    Ok(std::str::from_utf8(value.skip()?).ok().and_then(|t| t.parse().ok()))
}
