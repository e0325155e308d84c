//! Any JSON value, written so that key order, spacing and escapes do not show.

use super::super::json::{Cursor, Kind, Malformed, Str};
use super::sink::Sink;
use smallvec::SmallVec;

/// Values nested deeper than this are hashed as they stand: a bound on the stack, and on how often a byte is passed.
const MAX_DEPTH: usize = 16;
/// One byte is written in at most so many.
const LONGEST_ESCAPE: usize = 6;

/// Members of an object: keys and the text of their values.
pub(super) type Members<'a> = SmallVec<[(Str<'a>, &'a [u8]); 4]>;

pub(super) fn text<S: Sink>(s: Str<'_>, sink: &mut S) {
    let s = match sink.room() {
        Some(room) => Str { raw: &s.raw[..s.raw.len().min(room * LONGEST_ESCAPE)], ..s },
        None => s,
    };
    s.settle(|piece| sink.push(piece));
}

/// The string that comes next.
pub(super) fn string<S: Sink>(cursor: &mut Cursor<'_>, sink: &mut S) -> Result<(), Malformed> {
    text(cursor.string()?, sink);
    Ok(())
}

/// Writes the value that comes next; a string in quotes.
pub(super) fn value<S: Sink>(cursor: &mut Cursor<'_>, sink: &mut S, depth: usize) -> Result<(), Malformed> {
    match cursor.kind()? {
        _ if sink.is_full() => drop(cursor.skip()?),
        Kind::String => {
            sink.push(b"\"");
            string(cursor, sink)?;
            sink.push(b"\"");
        }
        Kind::Array if depth < MAX_DEPTH => {
            sink.push(b"[");
            cursor.array(|item| {
                value(item, sink, depth + 1)?;
                sink.push(b",");
                Ok(())
            })?;
            sink.push(b"]");
        }
        Kind::Object if depth < MAX_DEPTH => {
            let mut list = SmallVec::new();
            cursor.object(|key, member| {
                let text = member.skip()?;
                // a marker on a tool says where a cache may end, and is not read
                if depth > 1 || key.raw != b"cache_control" {
                    list.push((key, text));
                }
                Ok(())
            })?;
            sink.push(b"{");
            members(list, sink, depth)?;
            sink.push(b"}");
        }
        _ => sink.push(cursor.skip()?),
    }
    Ok(())
}

/// Sorts members by their keys, however those are escaped: some clients escape every letter beyond ASCII.
pub(super) fn sort(list: &mut Members<'_>) {
    list.sort_by(|a, b| a.0.bytes().cmp(&b.0.bytes()));
}

/// Writes members in the order of their keys.
pub(super) fn members<S: Sink>(mut list: Members<'_>, sink: &mut S, depth: usize) -> Result<(), Malformed> {
    sort(&mut list);
    for (key, member) in list {
        text(key, sink);
        sink.push(b":");
        value(&mut Cursor::new(member), sink, depth + 1)?;
        sink.push(b",");
    }
    Ok(())
}
