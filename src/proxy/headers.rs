//! What changes in heads. Of a request: offers of other protocols are declined, but for WebSocket. Of an answer: fields
//! that belong to one connection go no further. Everything else is the engine's; of redirects see `redirect.rs`, of what
//! says where a body ends `framing.rs`.

use http::header::{CONNECTION, HeaderName, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE};
use http::{Method, Version};
use pingora_error::{Error, ErrorType, Result};
use pingora_http::{RequestHeader, ResponseHeader};

/// Fields of one connection besides `Transfer-Encoding`, which frames the body and is Pingora's business
/// (RFC 9110, section 7.6.1).
static HOP_BY_HOP: [HeaderName; 7] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("proxy-authenticate"),
    TE,
    TRAILER,
    UPGRADE,
];

/// What no client may call its connection's own.
const PROTECTED: [&str; 4] = ["host", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"];
/// How many fields it may call so.
const MOST_SAID: usize = 9;

/// What comes with an offer of HTTP/2.
static HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
/// Fields of the connection that requests alone have; the framing of what was read is ramjet's to say.
static REQUESTS_ALONE: [HeaderName; 3] =
    [PROXY_AUTHORIZATION, TRANSFER_ENCODING, HeaderName::from_static("http2-settings")];

/// Takes out what belongs to the engine's connection.
pub(super) fn drop_hop_by_hop(response: &mut ResponseHeader) {
    // few engines say anything of it
    if !response.headers.keys().any(|name| HOP_BY_HOP.contains(name)) {
        return;
    }
    let nominated: Vec<HeaderName> = response
        .headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .filter(|name| *name != TRANSFER_ENCODING && *name != http::header::CONTENT_LENGTH)
        .collect();
    for name in HOP_BY_HOP.iter().chain(&nominated) {
        response.remove_header(name);
    }
}

/// The fields of a request that belong to the client's connection.
pub(super) struct ConnectionFields(Vec<HeaderName>);

impl ConnectionFields {
    /// Those that `request` says, besides those that always do.
    ///
    /// # Errors
    /// What a client may not call its connection's own is refused, as Pingora does it.
    pub(super) fn of(request: &RequestHeader) -> Result<Self> {
        let mut said = Vec::new();
        for value in request.headers.get_all(CONNECTION) {
            let items = value.as_bytes().split(|c| *c == b',').map(<[u8]>::trim_ascii);
            for item in items.filter(|item| !item.is_empty()) {
                let name = HeaderName::from_bytes(item).ok().filter(|name| !PROTECTED.contains(&name.as_str()));
                let Some(name) = name.filter(|_| said.len() < MOST_SAID) else {
                    return Error::e_explain(ErrorType::InvalidHTTPHeader, "a field that is not the connection's own");
                };
                said.push(name);
            }
        }
        Ok(ConnectionFields(said))
    }

    pub(super) fn contains(&self, name: &HeaderName) -> bool {
        HOP_BY_HOP.contains(name) || REQUESTS_ALONE.contains(name) || self.0.contains(name)
    }
}

/// Whether a request asks for a WebSocket, which is passed through.
pub(super) fn wants_websocket(request: &RequestHeader) -> bool {
    if request.method != Method::GET || request.version != Version::HTTP_11 {
        return false;
    }
    let mut offered = request.headers.get_all(UPGRADE).iter().flat_map(|value| value.as_bytes().split(|c| *c == b','));
    offered.any(|protocol| protocol.trim_ascii().eq_ignore_ascii_case(b"websocket"))
}

/// Declines an offer to go on in another protocol (RFC 9110, section 7.8): Java clients offer HTTP/2 with every request,
/// and an engine that takes them at their word loses the body.
pub(super) fn decline_upgrade(request: &mut RequestHeader) {
    request.remove_header(&UPGRADE);
    request.remove_header(&HTTP2_SETTINGS);
}

/// What an upgraded connection is for: the model in the query, as OpenAI's realtime clients name it.
pub(super) fn model_in_query(query: &str) -> Option<String> {
    let value = query.split('&').find_map(|pair| pair.strip_prefix("model="))?;
    let mut out = Vec::with_capacity(value.len());
    let mut bytes = value.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [bytes.next()?, bytes.next()?];
                hex(digits)?
            }
            byte => byte,
        });
    }
    String::from_utf8(out).ok().filter(|model| !model.is_empty())
}

/// A request's target with another model in its query; every byte outside the name stays.
pub(super) fn renamed(target: &[u8], model: &str) -> Option<Vec<u8>> {
    let query = target.iter().position(|c| *c == b'?')? + 1;
    let pairs = target[query..].split(|c| *c == b'&');
    let mut at = query;
    for pair in pairs {
        let end = at + pair.len();
        if pair.starts_with(b"model=") {
            return Some([&target[..at], b"model=", encoded(model).as_bytes(), &target[end..]].concat());
        }
        at = end + 1;
    }
    None
}

/// A text as a value in a query.
fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'-' | b'.' | b'_' | b'~' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => out.push(char::from(byte)),
            _ => out.extend(['%', digit(byte >> 4), digit(byte & 15)]),
        }
    }
    out
}

fn digit(value: u8) -> char {
    char::from_digit(value.into(), 16).unwrap_or('0').to_ascii_uppercase()
}

/// The byte that two digits stand for.
fn hex(digits: [u8; 2]) -> Option<u8> {
    let [high, low] = digits.map(|digit| char::from(digit).to_digit(16));
    u8::try_from(high? * 16 + low?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_websocket_is_asked_for_with_get_in_http_1_1() {
        for (method, version, offer, wanted) in [
            ("GET", Version::HTTP_11, "websocket", true),
            ("GET", Version::HTTP_11, "h2c , WebSocket", true),
            ("POST", Version::HTTP_11, "websocket", false),
            ("GET", Version::HTTP_10, "websocket", false),
            ("GET", Version::HTTP_11, "h2c", false),
            ("GET", Version::HTTP_11, "websockets", false),
        ] {
            let mut request = RequestHeader::build(method, b"/", None).unwrap();
            request.set_version(version);
            request.insert_header(UPGRADE, offer).unwrap();
            assert_eq!(wants_websocket(&request), wanted, "{method} {version:?} {offer}");
            decline_upgrade(&mut request);
            assert!(request.headers.is_empty());
        }
    }

    #[test]
    fn a_query_names_a_model() {
        for (query, model) in [
            ("model=m", Some("m")),
            ("a=model=x&model=org%2Fm+1%20b", Some("org/m 1 b")),
            ("model=", None),
            ("model=%f", None),
            ("model=%+1", None),
            ("model=%ff", None),
            ("models=m", None),
        ] {
            assert_eq!(model_in_query(query).as_deref(), model, "{query}");
        }
    }

    #[test]
    fn a_model_is_renamed_in_a_query_and_nothing_else_is() {
        for (target, wanted) in [
            ("/v1/realtime?model=alias", Some("/v1/realtime?model=org%2FM%201")),
            ("/v1/realtime?a=model=x&model=alias&b=%2f", Some("/v1/realtime?a=model=x&model=org%2FM%201&b=%2f")),
            ("/v1/realtime?models=alias", None),
            ("/v1/realtime", None),
        ] {
            let shown = renamed(target.as_bytes(), "org/M 1").map(|t| String::from_utf8(t).unwrap());
            assert_eq!(shown.as_deref(), wanted, "{target}");
        }
        assert_eq!(model_in_query(&format!("model={}", encoded("größe/a b&c"))).as_deref(), Some("größe/a b&c"));
    }

    #[test]
    fn fields_of_the_engines_connection_go_no_further() {
        let mut response = ResponseHeader::build(200, None).unwrap();
        for (name, value) in [
            ("connection", "keep-alive, X-Mine"),
            ("x-mine", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "x"),
            ("transfer-encoding", "chunked"),
            ("x-kept", "1"),
        ] {
            response.insert_header(name, value).unwrap();
        }
        drop_hop_by_hop(&mut response);
        let mut left: Vec<_> = response.headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["transfer-encoding", "x-kept"]);
    }
}
