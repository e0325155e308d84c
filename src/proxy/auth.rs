//! The keys of clients: who may ask, and that no such key goes further.

use crate::api::sha256::{Digest, is_same, sha256};
use http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use pingora_http::RequestHeader;
use std::sync::Arc;

/// Where clients put keys: OpenAI's SDKs, Anthropic's, and those for Azure.
const PLACES: [HeaderName; 3] =
    [AUTHORIZATION, HeaderName::from_static("x-api-key"), HeaderName::from_static("api-key")];
/// No key is longer.
const LONGEST: usize = 1024;

/// The keys that clients may use, by name and digest.
pub struct ClientKeys(Vec<(Arc<str>, Digest)>);

impl ClientKeys {
    /// Keys by name and SHA-256 digest.
    pub fn new(keys: impl IntoIterator<Item = (String, Digest)>) -> Self {
        ClientKeys(keys.into_iter().map(|(name, digest)| (name.into(), digest)).collect())
    }

    /// The name of the key that a request carries. Every field that holds a client's key is taken out, whichever of
    /// them counts; other fields may be meant for the engine and stay.
    pub(super) fn admit(&self, request: &mut RequestHeader) -> Option<Arc<str>> {
        let mut admitted = None;
        for place in &PLACES {
            let name = request.headers.get_all(place).iter().find_map(|value| self.name_of(value));
            if name.is_some() {
                request.remove_header(place);
            }
            admitted = admitted.or(name);
        }
        admitted
    }

    /// Looks at every key, so that the time tells nothing about them.
    fn name_of(&self, value: &HeaderValue) -> Option<Arc<str>> {
        let key = key_in(value.as_bytes());
        if key.len() > LONGEST {
            return None;
        }
        let digest = sha256(key);
        let mut found = None;
        for (name, known) in &self.0 {
            if is_same(known, &digest) {
                found = Some(name);
            }
        }
        found.cloned()
    }
}

/// The key in a field, after `Bearer` if that stands there.
fn key_in(value: &[u8]) -> &[u8] {
    match value.split_first_chunk::<7>() {
        Some((scheme, key)) if scheme.eq_ignore_ascii_case(b"bearer ") => key.trim_ascii(),
        _ => value.trim_ascii(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(fields: &[(&'static str, &str)]) -> RequestHeader {
        let mut request = RequestHeader::build("GET", b"/", None).unwrap();
        for (name, value) in fields {
            request.append_header(*name, *value).unwrap();
        }
        request
    }

    #[test]
    fn a_key_counts_wherever_it_stands_and_goes_no_further() {
        let keys = ClientKeys::new([("a".to_owned(), sha256(b"key-a")), ("b".to_owned(), sha256(b"key-b"))]);
        for (fields, name, left) in [
            (&[("authorization", "Bearer key-a")][..], Some("a"), &[][..]),
            (&[("Authorization", "bearer  key-b ")], Some("b"), &[]),
            (&[("x-api-key", "key-b")], Some("b"), &[]),
            (&[("api-key", "key-b"), ("x-api-key", "key-b")], Some("b"), &[]),
            (&[("x-api-key", "key-a"), ("authorization", "Bearer of-the-engine")], Some("a"), &["authorization"]),
            (&[("x-api-key", "other"), ("x-api-key", "key-a")], Some("a"), &[]),
            (&[("authorization", "Bearer wrong")], None, &["authorization"]),
            (&[("authorization", "Basic key-a")], None, &["authorization"]),
            (&[("authorization", "")], None, &["authorization"]),
            (&[("cookie", "key-a")], None, &["cookie"]),
            (&[], None, &[]),
        ] {
            let mut request = request(fields);
            assert_eq!(keys.admit(&mut request).as_deref(), name, "{fields:?}");
            assert_eq!(request.headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), left, "{fields:?}");
        }
    }
}
