//! The head of a request for the engine of an attempt: host, path prefix, key, rank and framing are ramjet's to say, what
//! belongs to the client's connection goes no further, and the rest passes as it came, byte by byte and in its order.

use super::context::Context;
use super::headers::ConnectionFields;
use super::{Proxy, explain, rank, usage};
use bytes::{BufMut, BytesMut};
use http::header::{AUTHORIZATION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, TRANSFER_ENCODING};
use http::{HeaderName, HeaderValue, Version};
use pingora_error::{Error, ErrorType, Result};
use pingora_http::{IntoCaseHeaderName, RequestHeader};
use std::borrow::Cow;

/// What is reserved for a head.
const HEAD: usize = 1024;
/// What is reserved for what is changed in it.
const CHANGES: usize = 8;

/// Fields and what they are to say; nothing where they are to go.
pub(super) type Changes = Vec<(HeaderName, Option<HeaderValue>)>;

impl Proxy {
    /// `upstream_request_filter`: the same for a request that Pingora sends.
    pub(super) fn address_request(&self, request: &mut RequestHeader, ctx: &Context) -> Result<()> {
        for (name, value) in self.changes(request, ctx)? {
            match value {
                Some(value) => request.insert_header(name, value)?,
                None => drop(request.remove_header(&name)),
            }
        }
        let target = target(request, ctx).into_owned();
        if target != request.raw_path() { request.set_raw_path(&target) } else { Ok(()) }
    }

    /// The head of a request whose body was read, as it is sent.
    pub(super) fn head_for(&self, request: &RequestHeader, ctx: &Context) -> Result<BytesMut> {
        let target = target(request, ctx);
        written(request, &origin_form(&target, request), self.changes(request, ctx)?)
    }

    /// What is changed for the engine of the current attempt.
    fn changes(&self, request: &RequestHeader, ctx: &Context) -> Result<Changes> {
        let Some(attempt) = &ctx.attempt else {
            return Error::e_explain(ErrorType::InternalError, "a request without a replica");
        };
        let spec = &attempt.reservation.replica().spec;
        let mut changes = Vec::with_capacity(CHANGES);
        changes.push((HOST, Some(spec.authority.clone())));
        changes.push((explain::ASK, None));
        if let Some(body) = ctx.body.held() {
            changes.push((CONTENT_LENGTH, Some(HeaderValue::from(body.len()))));
            changes.push((TRANSFER_ENCODING, None));
            changes.push((EXPECT, None));
        }
        if let Some(key) = &spec.authorization {
            changes.push((AUTHORIZATION, Some(key.clone())));
        }
        if self.router.fleet().has_ranks() {
            changes.push(rank::field(spec.role.rank));
        }
        changes.extend(usage::coding(request, ctx));
        changes.extend(ctx.trace_field());
        Ok(changes)
    }
}

/// The target at the engine of the current attempt.
fn target<'a>(request: &'a RequestHeader, ctx: &Context) -> Cow<'a, [u8]> {
    let prefix = ctx.attempt.as_ref().map_or("", |attempt| &attempt.reservation.replica().spec.prefix);
    match request.raw_path() {
        path if prefix.is_empty() => path.into(),
        path @ [b'/', ..] => [prefix.as_bytes(), path].concat().into(),
        _ => [prefix, path_of(request)].concat().into_bytes().into(),
    }
}

/// A target as engines know it: one in absolute form is for proxies (RFC 9112, section 3.2).
fn origin_form<'a>(target: &'a [u8], request: &'a RequestHeader) -> Cow<'a, [u8]> {
    if target.starts_with(b"/") { target.into() } else { path_of(request).as_bytes().into() }
}

fn path_of(request: &RequestHeader) -> &str {
    request.uri.path_and_query().map_or("/", |path| path.as_str())
}

/// The head of `request`, with `changes`, for `target`.
fn written(request: &RequestHeader, target: &[u8], mut changes: Changes) -> Result<BytesMut> {
    let dropped = ConnectionFields::of(request).map_err(Error::into_down)?;
    let mut head = BytesMut::with_capacity(HEAD);
    head.put_slice(request.method.as_str().as_bytes());
    head.put_u8(b' ');
    if target.iter().any(|byte| *byte <= b' ') {
        return Error::e_explain(ErrorType::InvalidHTTPHeader, "a target that ends before its end")
            .map_err(Error::into_down);
    }
    head.put_slice(target);
    head.put_slice(b" HTTP/1.1\r\n");
    let mut has_cookie = false;
    let mut names = request.case_header_iter().map(|(name, _)| name);
    for (name, value) in &request.headers {
        let spelt = names.next();
        let change = changes.iter_mut().find(|(changed, _)| changed == name);
        // said once, in the first one's place
        let value = match &change {
            Some((_, changed)) => changed.as_ref(),
            None if dropped.contains(name) => None,
            None => Some(value),
        };
        if *name == COOKIE && request.version == Version::HTTP_2 {
            if !std::mem::replace(&mut has_cookie, true) && value.is_some() {
                put(&mut head, b"Cookie", &cookie(request)?);
            }
        } else if let Some(value) = value {
            match spelt {
                Some(name) => put(&mut head, name.as_slice(), value),
                None => put(&mut head, name.into_case_header_name().as_slice(), value),
            }
        }
        if let Some((_, changed)) = change {
            *changed = None;
        }
    }
    for (name, value) in &changes {
        if let Some(value) = value {
            put(&mut head, name.into_case_header_name().as_slice(), value);
        }
    }
    head.put_slice(b"\r\n");
    Ok(head)
}

/// A cookie that came in pieces, which HTTP/2 alone has (RFC 9113, section 8.2.3).
fn cookie(request: &RequestHeader) -> Result<HeaderValue> {
    let pieces: Vec<_> = request.headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    HeaderValue::from_bytes(&pieces.join(&b"; "[..]))
        .map_err(|e| Error::because(ErrorType::InvalidHTTPHeader, "a cookie that is none", e).into_down())
}

fn put(head: &mut BytesMut, name: &[u8], value: &HeaderValue) {
    head.reserve(name.len() + value.len() + 4);
    head.put_slice(name);
    head.put_slice(b": ");
    head.put_slice(value.as_bytes());
    head.put_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(fields: &[(&'static str, &str)]) -> RequestHeader {
        let mut request = RequestHeader::build("POST", b"/v1/x", None).unwrap();
        for (name, value) in fields {
            request.append_header(*name, *value).unwrap();
        }
        request
    }

    fn sent(fields: &[(&'static str, &str)], changes: Changes) -> Vec<String> {
        let head = written(&request(fields), b"/v1/x", changes).unwrap();
        let head = String::from_utf8(head.to_vec()).unwrap();
        let lines = head.strip_prefix("POST /v1/x HTTP/1.1\r\n").unwrap().strip_suffix("\r\n").unwrap();
        lines.split_terminator("\r\n").map(str::to_owned).collect()
    }

    #[test]
    fn what_is_not_ours_passes_as_it_came_and_fields_of_one_name_in_their_order() {
        let fields = [("X-b", "2"), ("x-A", "1"), ("X-B", ""), ("Cookie", "c=\"d\"")];
        assert_eq!(sent(&fields, vec![]), ["X-b: 2", "X-B: ", "x-A: 1", "Cookie: c=\"d\""]);
    }

    #[test]
    fn what_is_changed_is_said_once_in_its_place_or_at_the_end() {
        let fields = [("hOST", "a"), ("x-a", "1"), ("Host", "b"), ("Expect", "100-continue")];
        let changes = vec![
            (HOST, Some(HeaderValue::from_static("engine:1"))),
            (EXPECT, None),
            (CONTENT_LENGTH, Some(HeaderValue::from(7))),
        ];
        assert_eq!(sent(&fields, changes), ["hOST: engine:1", "x-a: 1", "Content-Length: 7"]);
    }

    #[test]
    fn a_callers_rank_goes_in_any_case() {
        let fields = [("x-DATA-parallel-RANK", "7"), ("X-Data-Parallel-Rank", "8"), ("x-a", "1")];
        assert_eq!(sent(&fields, vec![rank::field(None)]), ["x-a: 1"]);
        assert_eq!(sent(&fields, vec![rank::field(Some(5))]), ["x-DATA-parallel-RANK: 5", "x-a: 1"]);
    }

    #[test]
    fn what_belongs_to_the_clients_connection_stays_there() {
        let fields = [
            ("Connection", "keep-alive, X-Mine,close"),
            ("x-mine", "1"),
            ("Keep-Alive", "timeout=5"),
            ("TE", "trailers"),
            ("Upgrade", "h2c"),
            ("HTTP2-Settings", "AAA"),
            ("Proxy-Authorization", "Basic x"),
            ("Transfer-Encoding", "chunked"),
            ("x-a", "1"),
        ];
        assert_eq!(sent(&fields, vec![]), ["x-a: 1"]);
        for said in ["host", "X-Forwarded-For", "a b", ":path", "a,b,c,d,e,f,g,h,i,j"] {
            let refused = written(&request(&[("connection", said)]), b"/", vec![]);
            assert!(refused.is_err(), "{said}");
        }
    }

    #[test]
    fn a_cookie_in_pieces_is_put_together_where_it_may_come_so() {
        let fields = [("cookie", "a=1"), ("x-a", "1"), ("cookie", "b=2")];
        let mut h2 = request(&fields);
        h2.set_version(Version::HTTP_2);
        let head = written(&h2, b"/", vec![]).unwrap();
        assert_eq!(&head[..], b"POST / HTTP/1.1\r\nCookie: a=1; b=2\r\nx-a: 1\r\n\r\n");
        assert_eq!(sent(&fields, vec![]), ["cookie: a=1", "cookie: b=2", "x-a: 1"]);
    }

    #[test]
    fn a_target_says_the_path_alone() {
        let mut request = RequestHeader::build("POST", b"/", None).unwrap();
        request.set_uri("http://other.example/v1/x?y=1".parse().unwrap());
        assert_eq!(&*origin_form(b"http://other.example/v1/x?y=1", &request), b"/v1/x?y=1");
        assert_eq!(&*origin_form(b"/v1/x%20?y", &request), b"/v1/x%20?y");
        assert!(written(&request, b"/v1/x HTTP/1.1\r\nx: y", vec![]).is_err());
    }
}
