//! Where a body ends, said so that nobody behind us can misread it (RFC 9112, section 6). Of answers, what an engine says
//! twice is said once, what must not be said is left out, and what a client could not take apart is no answer. Requests
//! that say such things are refused.
//!
//! Pingora has read the head by then, and reads the body by it; lengths that differ it refuses itself.

use http::header::{CONTENT_LENGTH, HeaderName, TRANSFER_ENCODING};
use http::{HeaderMap, StatusCode, Version};
use pingora_error::{Error, ErrorType, Result};
use pingora_http::ResponseHeader;

/// Whether a head says once and plainly where its body ends. Pingora takes `3, 3` for a length, and passes that on; and
/// of `gzip, chunked` it passes on that there are chunks, and not what is in them.
pub(super) fn is_plain(fields: &HeaderMap) -> bool {
    let (mut has_length, mut has_coding) = (false, false);
    fields.iter().all(|(name, value)| match *name {
        CONTENT_LENGTH => !std::mem::replace(&mut has_length, true) && !value.as_bytes().contains(&b','),
        TRANSFER_ENCODING => {
            let is_chunked = value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
            !std::mem::replace(&mut has_coding, true) && is_chunked
        }
        _ => true,
    })
}

/// Settles what an engine's head says of the body.
pub(super) fn settle(response: &mut ResponseHeader) -> Result<()> {
    // a length in an interim answer, or in one that has no body, is a body to some clients
    if response.status.is_informational() || response.status == StatusCode::NO_CONTENT {
        response.remove_header(&CONTENT_LENGTH);
        response.remove_header(&TRANSFER_ENCODING);
        return Ok(());
    }
    if is_plain(&response.headers) {
        return Ok(());
    }
    if let [first, _, ..] = &*items(&response.headers, CONTENT_LENGTH) {
        response.insert_header(CONTENT_LENGTH, first)?;
    }
    match &*items(&response.headers, TRANSFER_ENCODING) {
        [] => Ok(()),
        [coding] if coding.eq_ignore_ascii_case("chunked") => Ok(()),
        // of old, for none at all: the end of the connection ends the body
        codings if codings.iter().all(|coding| coding.eq_ignore_ascii_case("identity")) => {
            response.remove_header(&TRANSFER_ENCODING);
            Ok(())
        }
        // nobody asked for another one, which HTTP/2 has no word for
        _ => Err(Error::explain(ErrorType::InvalidHTTPHeader, "a transfer coding that nobody asked for").into_up()),
    }
}

/// Says the answer in ramjet's own version, and without chunks to clients that do not know them: the body then ends with the
/// connection.
pub(super) fn suit_version(response: &mut ResponseHeader, client: Version) {
    response.set_version(Version::HTTP_11);
    if client < Version::HTTP_11 {
        response.remove_header(&TRANSFER_ENCODING);
    }
}

/// The items of a list, over all its fields.
fn items(fields: &HeaderMap, name: HeaderName) -> Vec<String> {
    let values = fields.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
    values.flat_map(|value| value.split(',').map(|item| item.trim().to_owned()).collect::<Vec<_>>()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(status: u16, fields: &[(&'static str, &str)]) -> Option<Vec<(String, String)>> {
        let mut response = ResponseHeader::build(status, None).unwrap();
        for (name, value) in fields {
            response.append_header(*name, *value).unwrap();
        }
        settle(&mut response).ok()?;
        let left = response.headers.iter();
        Some(left.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect())
    }

    #[test]
    fn a_request_says_once_where_its_body_ends() {
        for (fields, plain) in [
            (&[][..], true),
            (&[("content-length", "3")][..], true),
            (&[("content-length", "3, 3")], false),
            (&[("content-length", "3"), ("content-length", "3")], false),
            (&[("transfer-encoding", "Chunked")], true),
            (&[("transfer-encoding", "gzip, chunked")], false),
            (&[("transfer-encoding", "gzip"), ("transfer-encoding", "chunked")], false),
        ] {
            let mut head = HeaderMap::new();
            for (name, value) in fields {
                head.append(*name, value.parse().unwrap());
            }
            assert_eq!(is_plain(&head), plain, "{fields:?}");
        }
    }

    #[test]
    fn a_length_is_said_once_and_only_where_there_is_a_body() {
        const LENGTH: &str = "content-length";
        const CODING: &str = "transfer-encoding";
        for (status, fields, wanted) in [
            (200, &[(LENGTH, "3")][..], Some((LENGTH, "3"))),
            (200, &[(LENGTH, "3"), (LENGTH, "3")], Some((LENGTH, "3"))),
            (200, &[(LENGTH, "3, 3")], Some((LENGTH, "3"))),
            (200, &[(CODING, "chunked")], Some((CODING, "chunked"))),
            (200, &[(CODING, "identity")], None),
            (304, &[(LENGTH, "3")], Some((LENGTH, "3"))),
            (204, &[(LENGTH, "3")], None),
            (204, &[(CODING, "chunked")], None),
            (103, &[(LENGTH, "3")], None),
        ] {
            let wanted: Vec<_> = wanted.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            assert_eq!(settled(status, fields), Some(wanted), "{status} {fields:?}");
        }
        for coding in ["gzip, chunked", "chunked, chunked", "gzip"] {
            assert_eq!(settled(200, &[(CODING, coding)]), None, "{coding}");
        }
    }
}
