//! From a request body to what an engine reads, and from that to the answer it gives. Pure.
//!
//! Tokens are a fixed number of bytes of rendered text, so that a prompt's blocks can be cut without a tokenizer and
//! the answer, once sent back as an assistant message, renders to the very bytes that were generated: the next turn
//! finds them cached. The words of the answer depend only on the prompt, so every engine gives the same one.

use serde_json::Value;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::params::Params;
use super::schedule::Job;
use crate::num::{mix, to_size};

/// Tokens of an answer when the request sets no limit.
const DEFAULT_ANSWER: u64 = 128;

/// 32 words of three letters; with the space that follows, one token each at four bytes per token.
const WORDS: &[u8; 128] = b"the and for you all new can has his one our out day get how man now old see two way who boy did let put say she too use run fix ";

/// Which of the two endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Chat,
    Completion,
}

/// A request, understood.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) kind: Kind,
    pub(crate) model: String,
    pub(crate) stream: bool,
    pub(crate) usage: bool,
    /// the limit was given, so the answer ends with `length`
    pub(crate) limited: bool,
    pub(crate) answer: String,
    pub(crate) job: Job,
}

/// Reads a body; the error is what the client is told with status 400.
pub(crate) fn understand(kind: Kind, body: &[u8], id: u64, params: &Params) -> Result<Ask, String> {
    let json: Value = serde_json::from_slice(body).map_err(|error| format!("body is not JSON: {error}"))?;
    let mut text = match kind {
        Kind::Chat => render_chat(&json)?,
        Kind::Completion => render_completion(&json)?,
    };
    let limit = ["max_completion_tokens", "max_tokens"].iter().find_map(|key| json.get(key).filter(|v| !v.is_null()));
    let output = match limit {
        None => DEFAULT_ANSWER,
        Some(limit) => limit.as_u64().filter(|n| *n > 0).ok_or("max_tokens must be at least 1")?,
    };
    let prompt_tokens = text.len().div_ceil(params.bytes_per_token).max(1);
    if prompt_tokens >= params.max_context {
        return Err(format!("prompt has {prompt_tokens} tokens, the context ends at {}", params.max_context));
    }
    let output_tokens = to_size(output).min(params.max_context - prompt_tokens);
    // the prompt ends on a token's edge, so that its answer starts on one
    text.resize(prompt_tokens * params.bytes_per_token, b' ');
    let answer = words(xxh3_64(&text), output_tokens * params.bytes_per_token);
    text.extend_from_slice(answer.as_bytes());
    let job = Job { id, chain: chain(&text, params.block_bytes()), prompt_tokens, output_tokens };
    let flag = |value: Option<&Value>| value.and_then(Value::as_bool).unwrap_or(false);
    Ok(Ask {
        kind,
        model: json.get("model").and_then(Value::as_str).unwrap_or(&params.model).to_owned(),
        stream: flag(json.get("stream")),
        usage: flag(json.pointer("/stream_options/include_usage")),
        limited: limit.is_some(),
        answer,
        job,
    })
}

fn render_chat(json: &Value) -> Result<Vec<u8>, String> {
    let messages = json.get("messages").and_then(Value::as_array).ok_or("messages must be an array")?;
    let mut text = Vec::with_capacity(64 * 1024);
    if let Some(tools) = json.get("tools") {
        text.extend_from_slice(b"<tools>");
        push_json(&mut text, tools);
    }
    for message in messages {
        let object = message.as_object().ok_or("a message must be an object")?;
        push_role(&mut text, object.get("role").and_then(Value::as_str).ok_or("a message needs a role")?);
        push_content(&mut text, object.get("content").unwrap_or(&Value::Null));
        for (key, value) in object.iter().filter(|(key, _)| !matches!(key.as_str(), "role" | "content")) {
            text.extend_from_slice(key.as_bytes());
            push_json(&mut text, value);
        }
    }
    push_role(&mut text, "assistant");
    Ok(text)
}

/// A role marker, padded to 16 bytes: a message then starts on the edge of a token, as real templates' markers do.
fn push_role(text: &mut Vec<u8>, role: &str) {
    let pad = (16 - text.len() % 16) % 16;
    text.resize(text.len() + pad, b' ');
    text.extend_from_slice(format!("<|{role:.11}|>\n").as_bytes());
    let pad = (16 - text.len() % 16) % 16;
    text.resize(text.len() + pad, b' ');
}

fn push_content(text: &mut Vec<u8>, content: &Value) {
    match content {
        Value::Null => {}
        Value::String(content) => text.extend_from_slice(content.as_bytes()),
        Value::Array(parts) => {
            for part in parts {
                match part.get("text").and_then(Value::as_str) {
                    Some(content) => text.extend_from_slice(content.as_bytes()),
                    None => push_json(text, part),
                }
            }
        }
        other => push_json(text, other),
    }
}

fn push_json(text: &mut Vec<u8>, value: &Value) {
    text.extend_from_slice(value.to_string().as_bytes());
}

fn render_completion(json: &Value) -> Result<Vec<u8>, String> {
    let mut text = Vec::new();
    match json.get("prompt") {
        Some(Value::String(prompt)) => text.extend_from_slice(prompt.as_bytes()),
        Some(Value::Array(items)) => {
            for item in items {
                match item {
                    Value::String(prompt) => text.extend_from_slice(prompt.as_bytes()),
                    // a token id stands for one token's worth of bytes
                    other => text.extend_from_slice(&xxh3_64(other.to_string().as_bytes()).to_le_bytes()[..4]),
                }
            }
        }
        _ => return Err("prompt must be a string or an array".to_owned()),
    }
    Ok(text)
}

/// Chained hashes of the whole blocks of a text.
pub(crate) fn chain(text: &[u8], block: usize) -> Vec<u64> {
    text.chunks_exact(block)
        .scan(0, |above, bytes| {
            *above = xxh3_64_with_seed(bytes, *above);
            Some(*above)
        })
        .collect()
}

/// Plain words that depend on the seed alone.
pub(crate) fn words(seed: u64, bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 4);
    let mut at = seed;
    while text.len() < bytes {
        at = at.wrapping_add(1);
        let word = to_size(mix(at) % 32) * 4;
        text.extend(WORDS[word..word + 4].iter().map(|&byte| char::from(byte)));
    }
    text.truncate(bytes);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(body: &str) -> Ask {
        understand(Kind::Chat, body.as_bytes(), 1, &Params::shipped()).unwrap()
    }

    #[test]
    fn next_turn_renders_to_the_bytes_that_were_generated() {
        let long = words(3, 1000);
        let first = ask(&format!(r#"{{"messages":[{{"role":"user","content":"{long}"}}],"max_tokens":200}}"#));
        let answer = &first.answer;
        let second = ask(&format!(
            r#"{{"messages":[{{"role":"user","content":"{long}"}},{{"role":"assistant","content":"{answer}"}},
            {{"role":"user","content":"go on"}}]}}"#
        ));
        let shared = first.job.chain.iter().zip(&second.job.chain).take_while(|(a, b)| a == b).count();
        assert_eq!(shared, first.job.chain.len());
    }

    #[test]
    fn same_request_same_answer_and_another_differs() {
        let body = |text: &str| format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}]}}"#);
        assert_eq!(ask(&body("a")).answer, ask(&body("a")).answer);
        assert_ne!(ask(&body("a")).answer, ask(&body("b")).answer);
    }

    #[test]
    fn text_parts_read_like_a_string() {
        let plain = ask(r#"{"messages":[{"role":"user","content":"hello"}]}"#);
        let parts = ask(r#"{"messages":[{"content":[{"type":"text","text":"hello"}],"role":"user"}]}"#);
        assert_eq!(plain.job.chain, parts.job.chain);
    }

    #[test]
    fn limits_and_nonsense() {
        let ok = ask(r#"{"messages":[],"max_tokens":3,"stream":true,"stream_options":{"include_usage":true}}"#);
        assert_eq!((ok.job.output_tokens, ok.stream, ok.usage, ok.limited), (3, true, true, true));
        for bad in ["[", "{}", r#"{"messages":[],"max_tokens":0}"#, r#"{"messages":[],"max_tokens":-1}"#] {
            assert!(understand(Kind::Chat, bad.as_bytes(), 1, &Params::shipped()).is_err(), "{bad}");
        }
    }
}
