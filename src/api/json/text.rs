//! The text of JSON strings: what it means, and the one way of writing it by which texts are told apart.
//!
//! What it means is asked of names and short words. Of a prompt only sameness is asked: megabytes of source code, dense in
//! `\n` and `\"`, which all who write JSON write so and no other way. These escapes stand as they are, and a text is only
//! searched for letters that are escaped though they need not be.

use super::is_escaped;
use memchr::memchr;
use memchr::memmem::Finder;
use std::sync::LazyLock;

/// What stands for escapes side by side is gathered up to this many bytes.
const GATHER: usize = 256;

/// How escapes begin that others write otherwise.
static UNSETTLED: LazyLock<[Finder<'static>; 2]> = LazyLock::new(|| [Finder::new(r"\u"), Finder::new(r"\/")]);

/// Passes on the bytes that a text means.
///
/// A lone surrogate comes out as its three-byte form: such text is forwarded, so it must have one stable reading.
pub(super) fn decode(mut text: &[u8], mut sink: impl FnMut(&[u8])) {
    while let Some(clean) = memchr(b'\\', text) {
        sink(&text[..clean]);
        let escape = &text[clean + 1..];
        let read = match escape {
            [] => 0,
            [b'u', digits @ ..] => match unicode(digits) {
                Some((letter, read)) => {
                    sink(letter.bytes());
                    1 + read
                }
                None => {
                    sink(br"\u");
                    1
                }
            },
            [code, ..] => {
                sink(&[meaning(*code)]);
                1
            }
        };
        text = &escape[read..];
    }
    sink(text);
}

/// What one letter after a backslash means; most mean themselves.
fn meaning(code: u8) -> u8 {
    match code {
        b'n' => b'\n',
        b't' => b'\t',
        b'r' => b'\r',
        b'b' => 0x08,
        b'f' => 0x0c,
        other => other,
    }
}

/// Passes a text on as it is written by those who escape what they must and no more: quotes, backslashes, and the control
/// characters that have a letter for it, each by its letter.
pub(super) fn settle(text: &[u8], mut sink: impl FnMut(&[u8])) {
    if memchr(b'\\', text).is_none() {
        return sink(text);
    }
    let (mut from, mut next) = (0, [0, 0]);
    loop {
        for (place, finder) in next.iter_mut().zip(UNSETTLED.iter()) {
            if *place <= from {
                *place = find(finder, text, from);
            }
        }
        let at = next[0].min(next[1]);
        sink(&text[from..at]);
        if at == text.len() {
            return;
        }
        from = at + settle_run(&text[at..], &mut sink);
    }
}

/// The place of the next escape that begins so, where no escape is open at `from`; the end of the text if there is none.
fn find(finder: &Finder<'_>, text: &[u8], from: usize) -> usize {
    let mut at = from;
    while let Some(found) = finder.find(&text[at..]) {
        let place = at + found;
        if !is_escaped(&text[from..place]) {
            return place;
        }
        at = place + 1;
    }
    text.len()
}

/// Passes on what stands at the beginning of a text: escapes side by side, as those beyond ASCII come. Returns how much was
/// read, one byte at least.
fn settle_run(text: &[u8], sink: &mut impl FnMut(&[u8])) -> usize {
    let (mut gathered, mut n, mut read) = ([0; GATHER], 0, 0);
    while let Some((letter, length)) = unsettled(&text[read..]).filter(|_| n + Letter::MOST <= GATHER) {
        let bytes = letter.bytes();
        gathered[n..n + bytes.len()].copy_from_slice(bytes);
        n += bytes.len();
        read += length;
    }
    if read == 0 {
        sink(&text[..1]);
        return 1;
    }
    sink(&gathered[..n]);
    read
}

/// The escape at the beginning of a text, if others write it otherwise: how, and how much was read.
fn unsettled(text: &[u8]) -> Option<(Letter, usize)> {
    let digits = match text {
        [b'\\', b'/', ..] => return Some((Letter::of(b"/"), 2)),
        [b'\\', b'u', digits @ ..] => digits,
        _ => return None,
    };
    let (letter, read) = unicode(digits)?;
    let settled = match letter.bytes() {
        b"\"" => Letter::of(br#"\""#),
        b"\\" => Letter::of(br"\\"),
        b"\n" => Letter::of(br"\n"),
        b"\t" => Letter::of(br"\t"),
        b"\r" => Letter::of(br"\r"),
        b"\x08" => Letter::of(br"\b"),
        b"\x0c" => Letter::of(br"\f"),
        _ => letter,
    };
    Some((settled, 2 + read))
}

/// The bytes of one letter.
struct Letter {
    bytes: [u8; Letter::MOST],
    length: usize,
}

impl Letter {
    const MOST: usize = 4;

    fn of(text: &[u8]) -> Self {
        let mut bytes = [0; Letter::MOST];
        bytes[..text.len()].copy_from_slice(text);
        Letter { bytes, length: text.len() }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Decodes the four digits after `\u` and a following low surrogate, if there are four. The letter, and how much was read.
fn unicode(rest: &[u8]) -> Option<(Letter, usize)> {
    let first = hex4(rest)?;
    if (0xd800..0xdc00).contains(&first)
        && rest[4..].starts_with(b"\\u")
        && let Some(second) = hex4(&rest[6..])
        && (0xdc00..0xe000).contains(&second)
    {
        return Some((letter(0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00)), 10));
    }
    Some((letter(first), 4))
}

fn letter(code: u32) -> Letter {
    if let Some(c) = char::from_u32(code) {
        return Letter::of(c.encode_utf8(&mut [0; 4]).as_bytes());
    }
    let byte = |shift: u32| 0x80 | u8::try_from((code >> shift) & 0x3f).unwrap_or(0);
    Letter::of(&[0xe0 | u8::try_from(code >> 12).unwrap_or(0), byte(6), byte(0)])
}

fn hex4(text: &[u8]) -> Option<u32> {
    let digits = text.get(..4)?;
    digits.iter().try_fold(0, |sum, d| Some(sum << 4 | char::from(*d).to_digit(16)?))
}
