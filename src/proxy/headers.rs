//! What changes in the head of an answer: fields that belong to one connection go no further, and a client of HTTP/1.0
//! gets a body that it can read. Everything else is the engine's, redirects included: whoever put an engine's own
//! address into one meant the client to see it.

use http::Version;
use http::header::{CONNECTION, HeaderName, TE, TRAILER, TRANSFER_ENCODING, UPGRADE};
use pingora_http::ResponseHeader;

/// Fields of one connection besides `Transfer-Encoding`, which frames the body and is Pingora's business
/// (RFC 9110, section 7.6.1).
const HOP_BY_HOP: [HeaderName; 7] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("proxy-authenticate"),
    TE,
    TRAILER,
    UPGRADE,
];

/// Takes out what belongs to the engine's connection.
pub(super) fn drop_hop_by_hop(response: &mut ResponseHeader) {
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

/// Without chunks, for clients that do not know them: the body then ends with the connection.
pub(super) fn suit_version(response: &mut ResponseHeader, client: Version) {
    if client < Version::HTTP_11 {
        response.remove_header(&TRANSFER_ENCODING);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        suit_version(&mut response, Version::HTTP_11);
        assert!(response.headers.contains_key(TRANSFER_ENCODING));
        suit_version(&mut response, Version::HTTP_10);
        assert!(!response.headers.contains_key(TRANSFER_ENCODING));
    }
}
