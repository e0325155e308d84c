//! What changes in the head of an answer: fields that belong to one connection go no further, an engine's own address
//! does not leave the fleet, and a client of HTTP/1.0 gets a body that it can read.

use crate::fleet::replica::ReplicaSpec;
use http::header::{CONNECTION, CONTENT_LOCATION, HeaderName, LOCATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderValue, Uri, Version};
use pingora_error::Result;
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

/// Reduces a redirect to the replica itself to its path, which leads through ramjet again.
pub(super) fn hide_replica(response: &mut ResponseHeader, replica: &ReplicaSpec) -> Result<()> {
    for name in [LOCATION, CONTENT_LOCATION] {
        if let Some(path) = response.headers.get(&name).and_then(|value| path_of_own(value, replica)) {
            response.insert_header(name, path)?;
        }
    }
    Ok(())
}

/// The path and query of a URL of the replica, its prefix taken off.
fn path_of_own(value: &HeaderValue, replica: &ReplicaSpec) -> Option<HeaderValue> {
    let uri: Uri = value.to_str().ok()?.parse().ok()?;
    let own = replica.authority.to_str().ok()?;
    if !uri.authority()?.as_str().eq_ignore_ascii_case(own) {
        return None;
    }
    let path = uri.path_and_query().map_or("/", |p| p.as_str());
    let path = path.strip_prefix(replica.prefix.as_str()).filter(|rest| rest.starts_with('/')).unwrap_or(path);
    HeaderValue::from_str(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(prefix: &str) -> ReplicaSpec {
        ReplicaSpec {
            name: "r".into(),
            host: "10.0.0.1".into(),
            port: 8000,
            prefix: prefix.into(),
            authority: HeaderValue::from_static("10.0.0.1:8000"),
            models: vec![],
            authorization: None,
        }
    }

    #[test]
    fn a_redirect_to_the_replica_leads_through_ramjet() {
        let rows = [
            ("http://10.0.0.1:8000/v1/chat?x=1", "", "/v1/chat?x=1"),
            ("http://10.0.0.1:8000/team/v1/chat", "/team", "/v1/chat"),
            ("http://10.0.0.1:8000/teams", "/team", "/teams"),
            ("http://10.0.0.1:8000", "", "/"),
            ("https://elsewhere/x", "", "https://elsewhere/x"),
            ("/v1/models", "", "/v1/models"),
        ];
        for (sent, prefix, wanted) in rows {
            let mut response = ResponseHeader::build(307, None).unwrap();
            response.insert_header(LOCATION, sent).unwrap();
            hide_replica(&mut response, &replica(prefix)).unwrap();
            assert_eq!(response.headers[LOCATION], wanted, "{sent}");
        }
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
        suit_version(&mut response, Version::HTTP_11);
        assert!(response.headers.contains_key(TRANSFER_ENCODING));
        suit_version(&mut response, Version::HTTP_10);
        assert!(!response.headers.contains_key(TRANSFER_ENCODING));
    }
}
