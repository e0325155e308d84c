//! Who may use the admin API: whoever holds the token, and on loopback everybody who is there. A page from elsewhere, in the
//! browser of somebody who is there, is not; nor is one whose name was made to lead here (DNS rebinding): its requests carry
//! that name as their `Host`.
//!
//! The token is sent as a bearer token. A browser cannot do that, so it may send it as the password of Basic authentication,
//! whatever the user; a browser does so by itself from then on, for pages from elsewhere too, and that is not let in.

use crate::api::sha256::{Digest, is_same, sha256};
use http::header::{AUTHORIZATION, HOST, HeaderName, ORIGIN};
use pingora_http::RequestHeader;
use std::net::IpAddr;

/// No token is longer.
const LONGEST: usize = 1024;

/// By this a browser tells which page asks.
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

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
        let given = request.headers.get(AUTHORIZATION).map(|value| value.as_bytes());
        let bearer = given.and_then(bearer).map(<[u8]>::to_vec);
        let given = bearer.or_else(|| given.filter(|_| is_own_page(request)).and_then(password));
        match (self.token, given) {
            (Some(token), Some(given)) if is_same(&token, &sha256(&given)) => Permit::Granted,
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

/// The password of Basic authentication.
fn password(value: &[u8]) -> Option<Vec<u8>> {
    let (scheme, pair) = value.split_first_chunk::<6>()?;
    let pair = scheme.eq_ignore_ascii_case(b"basic ").then(|| base64(pair.trim_ascii()))??;
    let colon = pair.iter().position(|byte| *byte == b':')?;
    Some(pair[colon + 1..].to_vec()).filter(|password| password.len() <= LONGEST)
}

/// Decodes base64 (RFC 4648, section 4); `None` if it is none.
fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let digits = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(text);
    if digits.len() > 2 * LONGEST || digits.len() % 4 == 1 {
        return None;
    }
    let (mut out, mut bits, mut held) = (Vec::with_capacity(digits.len()), 0_u32, 0);
    for digit in digits {
        let six = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        (bits, held) = (bits << 6 | u32::from(six), held + 6);
        if held >= 8 {
            held -= 8;
            out.push(u8::try_from(bits >> held & 0xff).ok()?);
        }
    }
    Some(out)
}

/// Whether no page asks, or one of this listener, or the user by the address bar.
fn is_own_page(request: &RequestHeader) -> bool {
    let host = request.headers.get(HOST).map(|host| host.as_bytes());
    let authority = |origin: &[u8]| origin.split(|byte| *byte == b'/').nth(2).map(<[u8]>::to_vec);
    let is_same = |origin: &[u8]| host.is_some() && authority(origin).as_deref() == host;
    request.headers.get(SITE).is_none_or(|site| matches!(site.as_bytes(), b"same-origin" | b"none"))
        && request.headers.get(ORIGIN).is_none_or(|origin| is_same(origin.as_bytes()))
}

/// Whether no page, or one of this listener, asks; and that by a name that nobody else can give to this machine.
fn is_from_here(request: &RequestHeader) -> bool {
    let host = request.headers.get(HOST).map(|host| host.as_bytes());
    let is_same = |origin: &[u8]| origin.strip_prefix(b"http://").is_some_and(|authority| Some(authority) == host);
    host.is_none_or(is_loopback) && request.headers.get(ORIGIN).is_none_or(|origin| is_same(origin.as_bytes()))
}

/// Whether an authority is this machine, whoever resolves it.
fn is_loopback(authority: &[u8]) -> bool {
    let Ok(authority) = std::str::from_utf8(authority) else { return false };
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|c| c.is_ascii_digit()) => host,
        _ => authority,
    };
    let literal = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.eq_ignore_ascii_case("localhost") || literal.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
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
        // its name was made to lead to 127.0.0.1 after the page had come
        let rebound: &[_] = &[("origin", "http://evil.test:9090"), ("host", "evil.test:9090")];
        let rebound_read: &[_] = &[("host", "evil.test:9090")];
        let own: &[_] = &[("origin", "http://127.0.0.1:9090"), ("host", "127.0.0.1:9090")];
        use Permit::{Forbidden, Granted, Unauthorized};
        for (is_local, token, fields, permit) in [
            (true, None, plain, Granted),
            (true, None, own, Granted),
            (true, None, page, Forbidden),
            (true, token, page, Unauthorized),
            (true, None, rebound, Forbidden),
            (true, None, rebound_read, Forbidden),
            (true, token, rebound_read, Unauthorized),
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

    #[test]
    fn the_token_may_be_a_password_but_not_for_pages_from_elsewhere() {
        let access = Access { is_local: false, token: Some(sha256(b"s:ecret\xc3\xa4")) };
        // anybody:s:ecretä
        let right = ("authorization", "Basic YW55Ym9keTpzOmVjcmV0w6Q=");
        let host = ("host", "router.test:9090");
        let own = ("origin", "http://router.test:9090");
        let proxied = ("origin", "https://router.test:9090");
        let other = ("origin", "http://evil.test:9090");
        for (fields, permit) in [
            (&[right, host][..], Permit::Granted),
            (&[right, host, own], Permit::Granted),
            (&[right, host, proxied], Permit::Granted),
            (&[right, host, ("sec-fetch-site", "none")], Permit::Granted),
            (&[right, host, ("sec-fetch-site", "same-origin")], Permit::Granted),
            (&[right, host, ("sec-fetch-site", "cross-site")], Permit::Unauthorized),
            (&[right, host, ("sec-fetch-site", "same-site")], Permit::Unauthorized),
            (&[right, host, other], Permit::Unauthorized),
            (&[right, host, ("origin", "null")], Permit::Unauthorized),
            // anybody:s:ecret
            (&[host, ("authorization", "Basic YW55Ym9keTpzOmVjcmV0")], Permit::Unauthorized),
            (&[host, ("authorization", "Basic !")], Permit::Unauthorized),
            (&[host, ("authorization", "Basic ")], Permit::Unauthorized),
            // a script that has the token may be anywhere
            (&[host, other, ("authorization", "Bearer s:ecret\u{e4}")], Permit::Granted),
        ] {
            let mut request = RequestHeader::build("POST", b"/", None).unwrap();
            for (name, value) in fields {
                request.insert_header(*name, http::HeaderValue::from_bytes(value.as_bytes()).unwrap()).unwrap();
            }
            assert_eq!(access.check(&request), permit, "{fields:?}");
        }
        for (text, bytes) in
            [("", Some("")), ("Zg==", Some("f")), ("Zm8=", Some("fo")), ("Zm9v", Some("foo")), ("Z", None)]
        {
            assert_eq!(base64(text.as_bytes()).as_deref(), bytes.map(str::as_bytes), "{text}");
        }
    }

    #[test]
    fn only_names_that_nobody_else_can_give_are_this_machine() {
        for (host, wanted) in [
            ("localhost", true),
            ("LocalHost:9090", true),
            ("127.0.0.1:9090", true),
            ("127.1.2.3", true),
            ("[::1]:9090", true),
            ("[::1]", true),
            ("10.0.0.1:9090", false),
            ("evil.test", false),
            ("127.0.0.1.evil.test:9090", false),
            ("localhost.evil.test", false),
            ("localhost:x@evil.test:1", false),
            ("", false),
        ] {
            assert_eq!(is_loopback(host.as_bytes()), wanted, "{host}");
        }
    }
}
