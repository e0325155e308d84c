//! From a body to what routing goes by: fingerprints, model, and the edited body where a rule applies. Pure.

use crate::api::canonical;
use crate::api::edit::strip_token_limits;
use crate::api::endpoint::Endpoint;
use crate::api::request;
use crate::prefix::fingerprint::Chain;
use bytes::Bytes;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// How prompts become fingerprints.
#[derive(Clone, Copy, Debug)]
pub struct PromptShape {
    /// The group secret.
    pub secret: u64,
    /// Size of a block in bytes.
    pub block_bytes: usize,
    /// How much of a prompt is fingerprinted.
    pub max_prefix_bytes: usize,
}

/// What was found in a body.
#[derive(Debug, Default)]
pub struct Prepared {
    /// The fingerprints of the prompt.
    pub chain: Option<Arc<[u64]>>,
    /// Canonical bytes of the prompt; of one longer than what is fingerprinted, the bytes of the body.
    pub prompt_bytes: u64,
    /// The model asked for.
    pub model: Option<String>,
    /// Whether the answer is to be streamed.
    pub streams: bool,
    /// Whether it asks for one answer, so that what is reported tells of one.
    pub is_single: bool,
    /// What the client calls its session; see [`session_key`].
    pub hint: Option<u64>,
    /// What names a conversation by its text although its head changes from turn to turn.
    pub anchor: Option<u64>,
    /// The body to send in place of the one that came.
    pub edited: Option<Bytes>,
}

/// The hash that a session's name is routed by: the same in every process, so that several routers agree.
pub(super) fn session_key(name: &[u8]) -> u64 {
    xxh3_64(name)
}

/// Reads a body. One that cannot be understood gives nothing: it is routed by load and forwarded as it came.
pub fn prepare(endpoint: Endpoint, body: &Bytes, shape: &PromptShape, strip_over: Option<u64>) -> Prepared {
    let Ok(request) = request::read(body) else { return Prepared::default() };
    let chain = Chain::new(shape.secret, shape.block_bytes, shape.max_prefix_bytes);
    let prints = match endpoint {
        Endpoint::Chat => canonical::chat(&request, chain).ok(),
        Endpoint::Completions => canonical::completion(&request, chain).ok(),
        Endpoint::Models | Endpoint::Health | Endpoint::Other => None,
    };
    Prepared {
        prompt_bytes: prints.as_ref().map_or(0, |p| if p.is_cut { body.len() as u64 } else { p.bytes }),
        chain: prints.map(|p| p.prints.into()),
        streams: request.stream,
        is_single: !request.is_many,
        hint: request.cache_key.map(|key| session_key(key.text().as_bytes())),
        anchor: None,
        model: request.model.map(|m| m.text()),
        edited: strip_over.and_then(|over| strip_token_limits(body, &request.limits, over)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: PromptShape = PromptShape { secret: 1, block_bytes: 256, max_prefix_bytes: 1 << 20 };

    #[test]
    fn what_cannot_be_read_gives_nothing_and_changes_nothing() {
        for body in ["", "[1]", "{\"model\":", "hello"] {
            let p = prepare(Endpoint::Chat, &Bytes::copy_from_slice(body.as_bytes()), &SHAPE, Some(1));
            assert!(p.chain.is_none() && p.model.is_none() && p.edited.is_none(), "{body}");
        }
    }

    #[test]
    fn a_session_is_known_by_its_name_whoever_reads_it() {
        let hint = |body: &'static str, secret| {
            let shape = PromptShape { secret, ..SHAPE };
            prepare(Endpoint::Chat, &Bytes::from_static(body.as_bytes()), &shape, None).hint
        };
        let of = |body| hint(body, 1);
        assert_eq!(of(r#"{"prompt_cache_key":"a"}"#), of(r#"{"n":1,"prompt_cache_key":"\u0061"}"#));
        assert_ne!(of(r#"{"prompt_cache_key":"a"}"#), of(r#"{"prompt_cache_key":"b"}"#));
        assert_eq!(of(r#"{"prompt_cache_key":"a"}"#), hint(r#"{"prompt_cache_key":"a"}"#, 2));
        assert_eq!((of("{}"), of(r#"{"prompt_cache_key":7}"#)), (None, None));
    }

    #[test]
    fn an_edit_does_not_touch_the_fingerprints() {
        let content = "x".repeat(2000);
        let plain = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{content}"}}]}}"#);
        let capped = plain.replacen('{', r#"{"max_tokens":900,"#, 1);
        let of = |body: &str| prepare(Endpoint::Chat, &Bytes::copy_from_slice(body.as_bytes()), &SHAPE, Some(100));
        let (a, b) = (of(&plain), of(&capped));
        assert_eq!(a.chain, b.chain);
        assert_eq!(a.chain.map(|c| c.len()), Some(7));
        assert_eq!((a.edited, b.edited), (None, Some(Bytes::from(plain))));
    }
}
