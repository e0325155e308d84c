//! Span edits on the raw body: bytes outside the edited span are untouched, so numbers, key order, duplicates and
//! escapes survive.

use super::request::Member;
use bytes::{Bytes, BytesMut};
use std::ops::Range;

/// Removes the token limits above `over` from a request; `None` when there is nothing to remove.
///
/// Engines refuse or mis-serve a limit beyond their context length, and a client that sends a huge one means "no
/// limit"; without the member an engine uses what is left of its context.
pub fn strip_token_limits(body: &Bytes, limits: &[Member], over: u64) -> Option<Bytes> {
    let spans: Vec<_> = limits.iter().filter(|m| m.value.is_some_and(|v| v > over)).map(|m| m.span.clone()).collect();
    (!spans.is_empty()).then(|| remove_members(body, &spans))
}

/// Removes whole members (given in order of their place) together with the comma that a removal leaves over.
fn remove_members(body: &Bytes, spans: &[Range<usize>]) -> Bytes {
    let mut out = BytesMut::with_capacity(body.len());
    let mut from = 0;
    for span in spans {
        let mut end = span.end;
        let after = body[end..].iter().position(|c| !c.is_ascii_whitespace()).map(|n| end + n);
        out.extend_from_slice(&body[from..span.start]);
        match after.filter(|n| body[*n] == b',') {
            Some(comma) => end = comma + 1,
            None => drop_trailing_comma(&mut out),
        }
        from = end;
    }
    out.extend_from_slice(&body[from..]);
    out.freeze()
}

fn drop_trailing_comma(out: &mut BytesMut) {
    let kept = out.iter().rposition(|c| !c.is_ascii_whitespace());
    if let Some(comma) = kept.filter(|n| out[*n] == b',') {
        out.truncate(comma);
    }
}

#[cfg(test)]
mod tests {
    use super::super::request::read;
    use super::*;

    fn stripped(body: &str) -> Option<String> {
        let body = Bytes::copy_from_slice(body.as_bytes());
        let limits = read(&body).unwrap().limits;
        strip_token_limits(&body, &limits, 100).map(|b| String::from_utf8(b.to_vec()).unwrap())
    }

    #[test]
    fn removes_only_what_is_over_and_keeps_every_other_byte() {
        let cases = [
            (r#"{"max_tokens":101,"n":1.50}"#, Some(r#"{"n":1.50}"#)),
            (r#"{"n":1.50 , "max_tokens" : 101 }"#, Some(r#"{"n":1.50  }"#)),
            (r#"{"a":1,"max_tokens":101, "b":2}"#, Some(r#"{"a":1, "b":2}"#)),
            (r#"{"max_tokens":101}"#, Some("{}")),
            (r#"{"max_tokens":500,"max_completion_tokens":500}"#, Some("{}")),
            (r#"{"a":1,"max_tokens":500,"max_completion_tokens":500}"#, Some(r#"{"a":1}"#)),
            (r#"{"max_tokens":101,"max_tokens":7}"#, Some(r#"{"max_tokens":7}"#)),
            (r#"{"max_tokens":100,"n":1}"#, None),
            (r#"{"max_tokens":99999999999999999999,"n":1}"#, Some(r#"{"n":1}"#)),
            (r#"{"max_tokens":1e9,"n":1}"#, Some(r#"{"n":1}"#)),
            (r#"{"max_tokens":100.0}"#, None),
            (r#"{"max_tokens":-1}"#, None),
            (r#"{"max_tokens":"101"}"#, None),
            (r#"{"x":{"max_tokens":101}}"#, None),
        ];
        for (body, want) in cases {
            assert_eq!(stripped(body).as_deref(), want, "{body}");
        }
    }
}
