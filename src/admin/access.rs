//! Who may use the admin API: whoever holds the token, and on loopback everybody who is there. A page from elsewhere, in the
//! browser of somebody who is there, is not.

use crate::api::sha256::{Digest, is_same, sha256};
use http::header::{AUTHORIZATION, HOST, ORIGIN};
use pingora_http::RequestHeader;

/// No token is longer.
const LONGEST: usize = 1024;

/// The rule.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// Whether the listener is on loopback.
    pub is_local: bool,
    /// The digest of the token.
    pub token: Option<Digest>,
}

/// What a request may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Permit {
    /// All.
    Granted,
    /// It lacks the token.
    Unauthorized,
    /// There is no token that it could have.
    Forbidden,
}

impl Access {
    /// Whether a request may use the API.
    pub(super) fn check(&self, request: &RequestHeader) -> Permit {
        let given = request.headers.get(AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
        match (self.token, given) {
            (Some(token), Some(given)) if is_same(&token, &sha256(given)) => Permit::Granted,
            _ if self.is_local && is_from_here(request) => Permit::Granted,
            (Some(_), _) => Permit::Unauthorized,
            (None, _) => Permit::Forbidden,
        }
    }
}

fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_first_chunk::<7>()?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer ") && token.len() <= LONGEST).then_some(token)
}

/// Whether no page, or one of this listener, asks.
fn is_from_here(request: &RequestHeader) -> bool {
    let Some(origin) = request.headers.get(ORIGIN) else { return true };
    let host = request.headers.get(HOST).map_or(&b""[..], |host| host.as_bytes());
    origin.as_bytes().strip_prefix(b"http://").is_some_and(|authority| authority == host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_opens_everywhere_and_loopback_to_who_is_there() {
        let token = Some(sha256(b"secret"));
        let plain: &[(&'static str, &str)] = &[];
        let right: &[_] = &[("authorization", "Bearer secret")];
        let wrong: &[_] = &[("authorization", "Bearer secre")];
        let basic: &[_] = &[("authorization", "secret")];
        let page: &[_] = &[("origin", "http://evil.test"), ("host", "127.0.0.1:9090")];
        let own: &[_] = &[("origin", "http://127.0.0.1:9090"), ("host", "127.0.0.1:9090")];
        use Permit::{Forbidden, Granted, Unauthorized};
        for (is_local, token, fields, permit) in [
            (true, None, plain, Granted),
            (true, None, own, Granted),
            (true, None, page, Forbidden),
            (true, token, page, Unauthorized),
            (true, token, plain, Granted),
            (false, None, plain, Forbidden),
            (false, None, right, Forbidden),
            (false, token, plain, Unauthorized),
            (false, token, wrong, Unauthorized),
            (false, token, basic, Unauthorized),
            (false, token, own, Unauthorized),
            (false, token, right, Granted),
        ] {
            let mut request = RequestHeader::build("POST", b"/", None).unwrap();
            fields.iter().for_each(|(name, value)| request.insert_header(*name, *value).unwrap());
            assert_eq!(Access { is_local, token }.check(&request), permit, "{is_local} {fields:?}");
        }
    }
}
