//! Span edits on the raw body: bytes outside the edited span are untouched, so numbers, key order, duplicates and
//! escapes survive.

use super::json::Cursor;
use super::request::Member;
use bytes::{Bytes, BytesMut};
use std::ops::Range;

/// One edit of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A whole member of an object goes, together with the comma that its going leaves over.
    Remove(Range<usize>),
    /// These bytes go and nothing else.
    Cut(Range<usize>),
}

impl Change {
    fn span(&self) -> &Range<usize> {
        let (Change::Remove(span) | Change::Cut(span)) = self;
        span
    }
}

/// The removal of every token limit above `over`.
///
/// Engines refuse or mis-serve a limit beyond their context length, and a client that sends a huge one means "no
/// limit"; without the member an engine uses what is left of its context.
pub fn limits_over(limits: &[Member], over: u64) -> impl Iterator<Item = Change> {
    limits.iter().filter(move |m| m.value.is_some_and(|v| v > over)).map(|m| Change::Remove(m.span.clone()))
}

/// Makes all changes in one pass. None of their spans may lie in another one.
pub fn apply(body: &[u8], mut changes: Vec<Change>) -> Bytes {
    changes.sort_unstable_by_key(|change| change.span().start);
    let mut out = BytesMut::with_capacity(body.len());
    let mut from = 0;
    for change in changes {
        let Range { start, mut end } = *change.span();
        debug_assert!(from <= start, "changes overlap");
        out.extend_from_slice(&body[from..start]);
        if let Change::Remove(_) = change {
            let after = body[end..].iter().position(|c| !c.is_ascii_whitespace()).map(|n| end + n);
            match after.filter(|n| body[*n] == b',') {
                Some(comma) => end = comma + 1,
                None => drop_trailing_comma(&mut out),
            }
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

/// The last member of an object, written and rewritten by ramjet: readers that meet a key twice take the last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastMember {
    /// What was written so far, from the comma before it; empty just before the closing brace at first.
    span: Range<usize>,
    /// Whether it stands alone, so that it needs no comma.
    is_alone: bool,
}

impl LastMember {
    /// Looks for the end of the object that `body` is, and takes out members called `name` that came with it. `None`
    /// when it is no JSON object.
    pub fn find(body: &mut Bytes, name: &str) -> Option<LastMember> {
        let (end, own) = end_and_own(body, name)?;
        if own.is_empty() {
            return Some(end);
        }
        *body = apply(body, own.into_iter().map(Change::Remove).collect());
        // a reader that takes the first of two would be misled by one that is left, so it is looked at again
        end_and_own(body, name).filter(|(_, own)| own.is_empty()).map(|(end, _)| end)
    }

    /// Writes the member `text` (key and value), or nothing, in the place of what was written before. Without another
    /// owner of the body's memory, it is not copied.
    pub fn write(&mut self, body: Bytes, text: &str) -> Bytes {
        let comma = if self.is_alone || text.is_empty() { "" } else { "," };
        let mut out = body.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
        // a brace, and what white space there is
        let tail = out[self.span.end..].to_vec();
        out.truncate(self.span.start);
        out.extend_from_slice(comma.as_bytes());
        out.extend_from_slice(text.as_bytes());
        self.span.end = out.len();
        out.extend_from_slice(&tail);
        out.freeze()
    }
}

/// The place before the closing brace of an object, and the members called `name`.
fn end_and_own(body: &[u8], name: &str) -> Option<(LastMember, Vec<Range<usize>>)> {
    let (mut own, mut is_alone) = (Vec::new(), true);
    let mut cursor = Cursor::new(body);
    let whole = cursor.object(|key, value| {
        is_alone = false;
        value.skip()?;
        if key.is(name) {
            own.push(key.at..value.offset_after());
        }
        Ok(())
    });
    let brace = cursor.offset_after().checked_sub(1)?;
    let readable = whole.is_ok() && cursor.at_end();
    readable.then_some((LastMember { span: brace..brace, is_alone }, own))
}

#[cfg(test)]
mod tests {
    use super::super::request::read;
    use super::*;
    use proptest::prelude::*;

    fn with_last(body: &str, texts: &[&str]) -> Option<String> {
        let mut body = Bytes::copy_from_slice(body.as_bytes());
        let mut last = LastMember::find(&mut body, "rank")?;
        for text in texts {
            body = last.write(body, text);
        }
        Some(String::from_utf8(body.to_vec()).unwrap())
    }

    #[test]
    fn a_last_member_follows_all_others_and_replaces_those_of_its_name() {
        let cases = [
            (r#"{"a":1.50}"#, r#"{"a":1.50,"rank":3}"#),
            ("{}", r#"{"rank":3}"#),
            (" { } \n", " { \"rank\":3} \n"),
            ("{\"a\" : [1] }\r\n", "{\"a\" : [1] ,\"rank\":3}\r\n"),
            (r#"{"rank":7}"#, r#"{"rank":3}"#),
            (r#"{"rank":7,"a":1,"r\u0061nk":"8"}"#, r#"{"a":1,"rank":3}"#),
            (r#"{"a":1 , "rank":7, "rank":{"rank":1} , "b":2}"#, r#"{"a":1 ,   "b":2,"rank":3}"#),
            (r#"{"x":{"rank":7},"a":"\"rank\":7}"}"#, r#"{"x":{"rank":7},"a":"\"rank\":7}","rank":3}"#),
        ];
        for (body, want) in cases {
            assert_eq!(with_last(body, &[r#""rank":3"#]).as_deref(), Some(want), "{body}");
        }
        for body in ["", "[1]", "{", "{\"a\":1,}", "{} {}", "\"rank\"", "null"] {
            assert_eq!(with_last(body, &["x"]), None, "{body}");
        }
    }

    #[test]
    fn a_body_with_room_is_not_copied() {
        let mut room = BytesMut::with_capacity(4096);
        room.extend_from_slice(&[br#"{"a":""#, &[b'x'; 2000][..], br#""}"#].concat());
        let mut body = room.freeze();
        let at = body.as_ptr();
        let mut last = LastMember::find(&mut body, "rank").unwrap();
        body = last.write(body, r#""rank":3"#);
        body = last.write(body, r#""rank":12"#);
        assert_eq!(body.as_ptr(), at);
        // another owner keeps what it has
        let held = body.clone();
        let other = last.write(body, r#""rank":4"#);
        assert!(held.ends_with(b",\"rank\":12}") && other.ends_with(b",\"rank\":4}"));
    }

    proptest! {
        #[test]
        fn whatever_was_written_last_counts_and_nothing_leaves_no_trace(
            body in r#"\{ ?("[a-c]": ?(1|"x"|\[\]|\{"rank":1\})( ?, ?"[a-c]":2){0,3} ?)?\}[ \n]{0,3}"#,
            ranks in prop::collection::vec(0u16..2000, 0..5),
        ) {
            let texts: Vec<String> = ranks.iter().map(|r| format!("\"rank\":{r}")).collect();
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let written = with_last(&body, &texts).unwrap();
            let value: serde_json::Value = serde_json::from_str(&written).unwrap();
            prop_assert_eq!(value.get("rank").and_then(serde_json::Value::as_u64), ranks.last().map(|r| u64::from(*r)));
            prop_assert_eq!(with_last(&body, &[&texts[..], &[""]].concat()).unwrap(), body);
        }
    }

    fn stripped(body: &str) -> Option<String> {
        let body = Bytes::copy_from_slice(body.as_bytes());
        let limits = read(&body).unwrap().limits;
        let changes: Vec<_> = limits_over(&limits, 100).collect();
        (!changes.is_empty()).then(|| String::from_utf8(apply(&body, changes).to_vec()).unwrap())
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
