//! From a body to what routing goes by: fingerprints, model, and the edited body where a rule applies. Pure.

use crate::api::canonical;
use crate::api::compat::{self, Compat};
use crate::api::endpoint::Endpoint;
use crate::api::request::{self, Request};
use crate::api::usage::Question;
use crate::prefix::fingerprint::{Chain, Ends, Fingerprints};
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
    /// Where its turns end.
    pub ends: Ends,
    /// Canonical bytes of the prompt; of one longer than what is fingerprinted, the bytes of the body.
    pub prompt_bytes: u64,
    /// The prompt begins with what an engine keeps: it has no fingerprints, and what the body holds is its end.
    pub is_hidden: bool,
    /// What an engine keeps that it names: the id of the response that it continues, or of its file.
    pub names: Option<Vec<u8>>,
    /// The conversation that it belongs to, as far as its turns so far tell; see [`canonical::anchor`].
    pub anchor: Option<u64>,
    /// The client's own word for its session (`prompt_cache_key`); see [`session_key`].
    pub hint: Option<u64>,
    /// The model asked for.
    pub model: Option<String>,
    /// Whether the answer is to be streamed.
    pub streams: bool,
    /// Whether it asks for one answer, so that what is reported tells of one.
    pub is_single: bool,
    /// Whether the engine is told to keep nothing of it.
    pub is_stateless: bool,
    /// The body to send in place of the one that came.
    pub edited: Option<Bytes>,
    /// How to ask for usage in it, if that is wanted.
    pub question: Option<Question>,
}

/// The hash that a session's name is routed by: the same in every process, so that several routers agree.
pub(super) fn session_key(name: &[u8]) -> u64 {
    xxh3_64(name)
}

/// Reads a body. One that cannot be understood gives nothing: it is routed by load and forwarded as it came.
pub fn prepare(endpoint: Endpoint, body: &Bytes, shape: &PromptShape, rules: Compat) -> Prepared {
    let Ok(mut request) = request::read(body) else { return Prepared::default() };
    let edited = compat::suit(endpoint, body, &mut request, rules);
    let question = || Question::find(endpoint, &request, edited.as_ref().unwrap_or(body));
    let question = rules.ask_usage.then(question).flatten();
    let is_hidden = endpoint == Endpoint::Responses && canonical::is_hidden(&request);
    let prints = if is_hidden { None } else { fingerprints(endpoint, &request, shape) };
    let names = match endpoint {
        Endpoint::Responses => request.previous_response_id,
        Endpoint::Batches => request.input_file_id,
        _ => None,
    };
    let hint = request.prompt_cache_key.filter(|key| endpoint.is_inference() && !key.raw.is_empty());
    Prepared {
        prompt_bytes: prints.as_ref().map_or(0, |p| if p.is_cut { body.len() as u64 } else { p.bytes }),
        ends: prints.as_ref().map(|p| p.ends).unwrap_or_default(),
        chain: prints.map(|p| p.prints.into()),
        is_hidden,
        names: names.map(|id| id.bytes().into_owned()),
        // as a client's own word: the same in every process, so that several routers agree
        anchor: canonical::anchor(endpoint, &request, 0),
        hint: hint.map(|key| session_key(&key.bytes())),
        streams: request.stream,
        is_single: !request.is_many,
        is_stateless: request.is_stateless,
        model: request.model.map(|m| m.text()),
        edited,
        question,
    }
}

fn fingerprints(endpoint: Endpoint, request: &Request<'_>, shape: &PromptShape) -> Option<Fingerprints> {
    let chain = Chain::new(shape.secret, shape.block_bytes, shape.max_prefix_bytes);
    let prints = match endpoint {
        Endpoint::Chat => canonical::chat(request, chain),
        Endpoint::Completions => canonical::completion(request, chain),
        Endpoint::Responses => canonical::responses(request, chain),
        Endpoint::Messages => canonical::anthropic(request, chain),
        Endpoint::Generate => canonical::generate(request, chain),
        _ => return None,
    };
    prints.ok()
}

#[cfg(test)]
mod arbitrary;

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: PromptShape = PromptShape { secret: 1, block_bytes: 256, max_prefix_bytes: 1 << 20 };

    fn over(limit: u64) -> Compat {
        Compat { strip_max_tokens_over: Some(limit), ..Compat::default() }
    }

    #[test]
    fn what_cannot_be_read_gives_nothing_and_changes_nothing() {
        for body in ["", "[1]", "{\"model\":", "hello"] {
            let p = prepare(Endpoint::Chat, &Bytes::copy_from_slice(body.as_bytes()), &SHAPE, over(1));
            assert!(p.chain.is_none() && p.model.is_none() && p.edited.is_none(), "{body}");
        }
    }

    fn of(endpoint: Endpoint, body: &str) -> Prepared {
        prepare(endpoint, &Bytes::copy_from_slice(body.as_bytes()), &SHAPE, over(100))
    }

    #[test]
    fn a_prompt_that_begins_elsewhere_has_no_fingerprints() {
        let input = "x".repeat(2000);
        let body = format!(r#"{{"model":"m","input":"{input}","previous_response_id":"resp_\u0031","store":false}}"#);
        let hidden = of(Endpoint::Responses, &body);
        assert!(hidden.is_hidden && hidden.chain.is_none() && hidden.is_stateless);
        assert_eq!((hidden.names, hidden.prompt_bytes), (Some(b"resp_1".to_vec()), 0));
        let whole = of(Endpoint::Responses, &body.replace("previous_response_id", "unknown"));
        assert!(!whole.is_hidden && whole.names.is_none());
        assert_eq!(whole.chain.map(|c| c.len()), Some(7));
        // other APIs have no such member
        let chat = of(Endpoint::Chat, r#"{"messages":[],"previous_response_id":"resp_1"}"#);
        assert!(!chat.is_hidden && chat.names.is_none());
    }

    #[test]
    fn a_batch_names_its_file() {
        let body = r#"{"input_file_id":"file-1","endpoint":"/v1/chat/completions"}"#;
        assert_eq!(of(Endpoint::Batches, body).names, Some(b"file-1".to_vec()));
        assert_eq!(of(Endpoint::Chat, body).names, None);
    }

    #[test]
    fn the_clients_own_word_is_the_same_in_every_process() {
        let body = |key: &str| Bytes::from(format!(r#"{{"messages":[],"prompt_cache_key":{key}}}"#));
        let other = PromptShape { secret: 2, ..SHAPE };
        let hint = |key: &str| prepare(Endpoint::Chat, &body(key), &SHAPE, Compat::default()).hint;
        assert!(hint(r#""a""#).is_some() && hint(r#""a""#) == hint(r#""\u0061""#) && hint(r#""a""#) != hint(r#""b""#));
        assert_eq!(hint(r#""a""#), prepare(Endpoint::Chat, &body(r#""a""#), &other, Compat::default()).hint);
        assert_eq!((hint(r#""""#), hint("7"), hint("null")), (None, None, None));
    }

    #[test]
    fn only_the_apis_where_a_limit_is_optional_lose_it() {
        let body = r#"{"max_tokens":900,"messages":[],"prompt":"x"}"#;
        for endpoint in Endpoint::ALL {
            let loses = matches!(endpoint, Endpoint::Chat | Endpoint::Completions);
            assert_eq!(of(endpoint, body).edited.is_some(), loses, "{endpoint:?}");
        }
    }

    #[test]
    fn what_generates_nothing_is_read_for_its_model_alone() {
        let body = r#"{"model":"m","input":"x","prompt":"x","messages":[]}"#;
        for endpoint in Endpoint::ALL.into_iter().filter(|e| e.is_read()) {
            let p = of(endpoint, body);
            assert_eq!((p.model.as_deref(), p.chain.is_some()), (Some("m"), endpoint.is_inference()), "{endpoint:?}");
        }
    }

    #[test]
    fn an_edit_does_not_touch_the_fingerprints() {
        let content = "x".repeat(2000);
        let plain = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{content}"}}]}}"#);
        let capped = plain.replacen('{', r#"{"max_tokens":900,"#, 1);
        let of = |body: &str| prepare(Endpoint::Chat, &Bytes::copy_from_slice(body.as_bytes()), &SHAPE, over(100));
        let (a, b) = (of(&plain), of(&capped));
        assert_eq!(a.chain, b.chain);
        assert_eq!(a.chain.map(|c| c.len()), Some(7));
        assert_eq!((a.edited, b.edited), (None, Some(Bytes::from(plain))));
    }
}
