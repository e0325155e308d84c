//! The text of JSON strings, decoded in one pass.
//!
//! Agents send source code, dense in `\n` and `\"`; a call per escape would cost more than the escapes. So short
//! stretches are copied eight bytes at a time into a small buffer together with what the escapes between them mean, and
//! only long clean stretches are passed on as they stand.

use memchr::memchr2;

/// Decoded bytes are gathered up to this many, so that dense escapes do not become a call each.
const GATHER: usize = 512;
/// A stretch without escapes that is this long is searched, and passed on, as a whole.
const LONG_STRETCH: usize = 64;

/// What one letter after a backslash means; most mean themselves.
const PLAIN: [u8; 256] = {
    let mut plain = [0; 256];
    let mut code = 0u8;
    loop {
        plain[code as usize] = match code {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'b' => 0x08,
            b'f' => 0x0c,
            other => other,
        };
        if code == u8::MAX {
            break plain;
        }
        code += 1;
    }
};

/// Decodes the text of a string up to its closing quote (or the end of `text`), whose offset is returned.
///
/// A lone surrogate comes out as its three-byte form: such text is forwarded, so it must have one stable reading.
pub(super) fn decode(text: &[u8], mut sink: impl FnMut(&[u8])) -> usize {
    let mut gathered = [0; GATHER];
    let (mut at, mut n) = (0, 0);
    loop {
        let stretch = copy_stretch(&text[at..], &mut gathered[n..]);
        at += stretch.length;
        n += stretch.length;
        if n + 16 > GATHER || stretch.is_long {
            sink(&gathered[..n]);
            n = 0;
        }
        if stretch.is_long {
            let clean = memchr2(b'"', b'\\', &text[at..]).unwrap_or(text.len() - at);
            sink(&text[at..at + clean]);
            at += clean;
        }
        match text[at..] {
            [b'\\', b'u', ref digits @ ..] => {
                at += 2 + unescape_unicode(digits, &mut |piece| {
                    gathered[n..n + piece.len()].copy_from_slice(piece);
                    n += piece.len();
                });
            }
            [b'\\', code, ..] => {
                gathered[n] = PLAIN[usize::from(code)];
                n += 1;
                at += 2;
            }
            [b'\\'] => at += 1,
            [] | [b'"', ..] => break,
            [..] => {}
        }
    }
    if n > 0 {
        sink(&gathered[..n]);
    }
    at
}

struct Stretch {
    /// Bytes copied.
    length: usize,
    /// Whether there was neither a quote nor a backslash for so long that a search pays.
    is_long: bool,
}

/// Copies what comes before the next quote or backslash, eight bytes at a time, as long as it is short and fits.
fn copy_stretch(text: &[u8], out: &mut [u8]) -> Stretch {
    let mut length = 0;
    let (words, _) = text.as_chunks::<8>();
    for word in words {
        let Some(room) = out[length..].first_chunk_mut::<8>() else { return Stretch { length, is_long: false } };
        *room = *word;
        match first_special(*word) {
            8 => length += 8,
            n => return Stretch { length: length + n, is_long: false },
        }
        if length >= LONG_STRETCH {
            return Stretch { length, is_long: true };
        }
    }
    let tail = text[length..].iter().zip(&mut out[length..]);
    let copied = tail.take_while(|(c, _)| !matches!(c, b'"' | b'\\')).map(|(c, room)| *room = *c).count();
    Stretch { length: length + copied, is_long: false }
}

/// The place of the first quote or backslash among eight bytes; 8 when there is none.
///
/// The classic test for a zero byte, on the bytes with the wanted one taken off; its lowest hit is exact.
fn first_special(word: [u8; 8]) -> usize {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    const HIGH: u64 = u64::from_le_bytes([0x80; 8]);
    let zero_bytes = |w: u64| w.wrapping_sub(ONES) & !w & HIGH;
    let word = u64::from_le_bytes(word);
    let hits = zero_bytes(word ^ u64::from_le_bytes([b'"'; 8])) | zero_bytes(word ^ u64::from_le_bytes([b'\\'; 8]));
    hits.trailing_zeros() as usize / 8
}

/// Decodes the four digits after `\u` and a following low surrogate. Returns how much was read.
fn unescape_unicode(rest: &[u8], sink: &mut impl FnMut(&[u8])) -> usize {
    let Some(first) = hex4(rest) else {
        sink(b"\\u");
        return 0;
    };
    if (0xd800..0xdc00).contains(&first)
        && rest[4..].starts_with(b"\\u")
        && let Some(second) = hex4(&rest[6..])
        && (0xdc00..0xe000).contains(&second)
    {
        push_code_point(0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00), sink);
        return 10;
    }
    push_code_point(first, sink);
    4
}

fn push_code_point(code: u32, sink: &mut impl FnMut(&[u8])) {
    match char::from_u32(code) {
        Some(c) => sink(c.encode_utf8(&mut [0; 4]).as_bytes()),
        None => {
            let byte = |shift: u32| 0x80 | u8::try_from((code >> shift) & 0x3f).unwrap_or(0);
            sink(&[0xe0 | u8::try_from(code >> 12).unwrap_or(0), byte(6), byte(0)]);
        }
    }
}

fn hex4(text: &[u8]) -> Option<u32> {
    let digits = text.get(..4)?;
    digits.iter().try_fold(0, |sum, d| Some(sum << 4 | char::from(*d).to_digit(16)?))
}
