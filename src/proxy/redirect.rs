//! Where an engine sends a client: engines build the address of a redirect from the `Host` that they were asked by, which is
//! a replica's own and no business of clients. It becomes relative, so that the client comes back to where it asked; what
//! leads anywhere else passes as it came, and is followed by nobody here.

use crate::fleet::replica::ReplicaSpec;
use http::header::LOCATION;
use pingora_error::Result;
use pingora_http::ResponseHeader;

/// Takes the replica's own address out of a `Location`.
pub(super) fn hide_address(response: &mut ResponseHeader, replica: &ReplicaSpec) -> Result<()> {
    let Some(location) = response.headers.get(LOCATION) else { return Ok(()) };
    if let Some(relative) = relative(location.as_bytes(), replica.authority.as_bytes(), replica.prefix.as_bytes()) {
        response.insert_header(LOCATION, relative)?;
    }
    Ok(())
}

/// `location` as a client should see it, if that is not as it is.
fn relative(location: &[u8], authority: &[u8], prefix: &[u8]) -> Option<Vec<u8>> {
    let path = match after_scheme(location) {
        Some(rest) => {
            let (host, path) = rest.split_at_checked(authority.len())?;
            let ends = path.first().is_none_or(|c| b"/?#".contains(c));
            Some(path).filter(|_| ends && host.eq_ignore_ascii_case(authority))?
        }
        None if !prefix.is_empty() && location.starts_with(b"/") => location,
        None => return None,
    };
    let own = path.strip_prefix(prefix).filter(|rest| rest.first().is_none_or(|c| b"/?#".contains(c)));
    let shown = match (own, after_scheme(location)) {
        (Some(path), _) => path,
        (None, Some(_)) => path,
        (None, None) => return None,
    };
    let root: &[u8] = match shown {
        // two slashes would begin another host
        [b'/', b'/' | b'\\', ..] => b"/.",
        [b'/', ..] => b"",
        _ => b"/",
    };
    Some([root, shown].concat())
}

/// What follows `http://` or `//`.
fn after_scheme(location: &[u8]) -> Option<&[u8]> {
    let is = |scheme: &[u8]| location.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
    let scheme = [&b"http://"[..], b"https://", b"//"].into_iter().find(|scheme| is(scheme))?;
    location.get(scheme.len()..)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_a_replica_is_no_business_of_clients() {
        for (location, prefix, wanted) in [
            ("http://10.0.0.11:8000/v1/models", "", Some("/v1/models")),
            ("HTTP://10.0.0.11:8000/v1/models?a=http://x", "", Some("/v1/models?a=http://x")),
            ("https://10.0.0.11:8000", "", Some("/")),
            ("//10.0.0.11:8000?x", "", Some("/?x")),
            ("http://10.0.0.11:8000/pre/v1/models", "/pre", Some("/v1/models")),
            ("http://10.0.0.11:8000/pre", "/pre", Some("/")),
            ("http://10.0.0.11:8000/prefer/x", "/pre", Some("/prefer/x")),
            ("/pre/v1/models", "/pre", Some("/v1/models")),
            // a host of its own choice would otherwise begin where the address ended
            ("http://10.0.0.11:8000//evil.test/x", "", Some("/.//evil.test/x")),
            ("http://10.0.0.11:8000/\\evil.test/x", "", Some("/./\\evil.test/x")),
            ("http://10.0.0.11:8000/pre//evil.test/x", "/pre", Some("/.//evil.test/x")),
            // elsewhere
            ("http://10.0.0.11:80001/v1/models", "", None),
            ("http://10.0.0.11:8000@evil.test/", "", None),
            ("http://10.0.0.11/v1", "", None),
            ("http://other:8000/v1", "", None),
            ("/v1/models", "", None),
            ("/v1/models", "/pre", None),
            ("models", "/pre", None),
            ("", "", None),
        ] {
            let shown = relative(location.as_bytes(), b"10.0.0.11:8000", prefix.as_bytes());
            assert_eq!(shown.map(|s| String::from_utf8(s).unwrap()).as_deref(), wanted, "{location} {prefix}");
        }
    }
}
