//! A lazy reader of JSON text: one cursor, borrowed slices, no tree.
//!
//! A general parser was considered and refused for this one job. Routing needs the *byte spans* of a few values in a
//! megabyte body (edits change spans, never re-serialise), needs to look at everything else only to step over it, and
//! must not stumble over text that strict parsers reject but engines accept or must be allowed to reject themselves:
//! lone surrogates, duplicate keys, `NaN`, bytes that are not UTF-8. So the cursor checks structure only as far as it
//! must to find where values end.

mod text;

use memchr::memchr;
use std::borrow::Cow;
use text::{decode, settle};

/// The text ends or turns where a value, a key or a separator was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Byte offset at which reading stopped.
    pub at: usize,
}

/// What kind of value comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `{…}`
    Object,
    /// `[…]`
    Array,
    /// `"…"`
    String,
    /// `true`, `false`, `null`, a number, or anything else without structure.
    Atom,
}

/// The bytes between the quotes of a JSON string, still escaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Str<'a> {
    /// The escaped bytes.
    pub raw: &'a [u8],
    /// The offset of the opening quote in the text.
    pub at: usize,
}

/// A reading position in JSON text.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    text: &'a [u8],
    at: usize,
}

type Result<T> = std::result::Result<T, Malformed>;

// === impl Str ===

impl<'a> Str<'a> {
    /// The string that a value is, given its whole text and no more, as [`Cursor::skip`] returns it.
    pub fn of(value: &'a [u8]) -> Option<Self> {
        let raw = value.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
        Some(Str { raw, at: 0 })
    }
}

impl Str<'_> {
    /// Passes on, in pieces, bytes that differ exactly where the meaning of texts differs, and at the same place, for texts
    /// of valid JSON. Quotes, backslashes and those control characters that have a letter are escaped in them.
    pub fn settle(self, sink: impl FnMut(&[u8])) {
        settle(self.raw, sink);
    }

    /// The decoded bytes: those of the text itself where nothing is escaped.
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        if memchr(b'\\', self.raw).is_none() {
            return Cow::Borrowed(self.raw);
        }
        let mut out = Vec::with_capacity(self.raw.len());
        decode(self.raw, |piece| out.extend_from_slice(piece));
        Cow::Owned(out)
    }

    /// The decoded text; bytes that are not UTF-8 are replaced.
    pub fn text(self) -> String {
        let mut out = Vec::with_capacity(self.raw.len());
        decode(self.raw, |piece| out.extend_from_slice(piece));
        String::from_utf8(out).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
    }

    /// Whether the decoded string is exactly `word`.
    pub fn is(self, word: &str) -> bool {
        self.raw == word.as_bytes() || (memchr(b'\\', self.raw).is_some() && self.text() == word)
    }

    /// The place of the word among `words` that the decoded string is.
    pub fn position(self, words: &[&str]) -> Option<usize> {
        words.iter().position(|word| self.is(word))
    }
}

// === impl Cursor ===

impl<'a> Cursor<'a> {
    /// A cursor at the start of `text`.
    pub fn new(text: &'a [u8]) -> Self {
        Cursor { text, at: 0 }
    }

    /// The byte offset of the next value (white space is stepped over).
    pub fn offset(&mut self) -> usize {
        self.space();
        self.at
    }

    /// The byte offset just after what was read last.
    pub fn offset_after(&self) -> usize {
        self.at
    }

    /// What comes next.
    pub fn kind(&mut self) -> Result<Kind> {
        self.space();
        match self.text.get(self.at) {
            Some(b'{') => Ok(Kind::Object),
            Some(b'[') => Ok(Kind::Array),
            Some(b'"') => Ok(Kind::String),
            Some(b',' | b':' | b'}' | b']') | None => self.fail(),
            Some(_) => Ok(Kind::Atom),
        }
    }

    /// Steps over the next value and returns its text.
    pub fn skip(&mut self) -> Result<&'a [u8]> {
        let kind = self.kind()?;
        let start = self.at;
        match kind {
            Kind::String => drop(self.string()?),
            Kind::Atom => self.atom(),
            Kind::Object | Kind::Array => self.container()?,
        }
        Ok(&self.text[start..self.at])
    }

    /// Reads a string; anything else is an error at its place.
    pub fn string(&mut self) -> Result<Str<'a>> {
        if self.kind()? != Kind::String {
            return self.fail();
        }
        let start = self.at + 1;
        let end = self.closing_quote(start)?;
        self.at = end + 1;
        Ok(Str { raw: &self.text[start..end], at: start - 1 })
    }

    /// Calls `member` for every member of an object, the cursor standing at its value, which `member` must consume.
    pub fn object(&mut self, mut member: impl FnMut(Str<'a>, &mut Self) -> Result<()>) -> Result<()> {
        self.items(b'{', b'}', |cursor| {
            let key = cursor.string()?;
            cursor.expect(b':')?;
            member(key, cursor)
        })
    }

    /// Calls `item` for every item of an array, the cursor standing at it; `item` must consume it.
    pub fn array(&mut self, item: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        self.items(b'[', b']', item)
    }

    /// Whether only white space is left.
    pub fn at_end(&mut self) -> bool {
        self.space();
        self.at == self.text.len()
    }

    fn items(&mut self, open: u8, close: u8, mut item: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        self.expect(open)?;
        self.space();
        if self.text.get(self.at) == Some(&close) {
            self.at += 1;
            return Ok(());
        }
        loop {
            item(self)?;
            self.space();
            match self.text.get(self.at) {
                Some(b',') => self.at += 1,
                Some(c) if *c == close => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return self.fail(),
            }
        }
    }

    fn expect(&mut self, byte: u8) -> Result<()> {
        self.space();
        if self.text.get(self.at) != Some(&byte) {
            return self.fail();
        }
        self.at += 1;
        Ok(())
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.text.get(self.at) {
            self.at += 1;
        }
    }

    fn atom(&mut self) {
        while let Some(c) = self.text.get(self.at) {
            if matches!(c, b',' | b':' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t') {
                return;
            }
            self.at += 1;
        }
    }

    /// Steps over an object or array by counting brackets outside strings.
    fn container(&mut self) -> Result<()> {
        let mut depth = 0usize;
        while let Some(c) = self.text.get(self.at) {
            match c {
                b'"' => self.at = self.closing_quote(self.at + 1)?,
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth -= 1,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return Ok(());
            }
        }
        self.fail()
    }

    /// The offset of the quote that ends the string whose text starts at `from`.
    ///
    /// Text from source code is dense in `\n` and less so in quotes, so the search looks for quotes only and then at what is
    /// before one.
    fn closing_quote(&self, from: usize) -> Result<usize> {
        let mut search = from;
        while let Some(quote) = next_quote(self.text, search) {
            if !is_escaped(&self.text[from..quote]) {
                return Ok(quote);
            }
            search = quote + 1;
        }
        Err(Malformed { at: self.text.len() })
    }

    fn fail<T>(&self) -> Result<T> {
        Err(Malformed { at: self.at })
    }
}

/// The place of the next quote. In source code it is near, and to begin a search costs more than to look; a picture has none
/// for megabytes.
#[inline]
fn next_quote(text: &[u8], from: usize) -> Option<usize> {
    /// So many times sixteen bytes are near.
    const NEAR: usize = 8;
    const ONES: u128 = u128::from_le_bytes([1; 16]);
    const QUOTES: u128 = u128::from_le_bytes([b'"'; 16]);
    let mut at = from;
    for near in text.get(from..)?.as_chunks::<16>().0.iter().take(NEAR) {
        // without a way out, so that all sixteen are compared at once
        if near.iter().fold(false, |found, c| found | (*c == b'"')) {
            // the classic test for a zero byte; its lowest hit is exact
            let differs = u128::from_le_bytes(*near) ^ QUOTES;
            let hits = differs.wrapping_sub(ONES) & !differs & (ONES << 7);
            return Some(at + hits.trailing_zeros() as usize / 8);
        }
        at += 16;
    }
    memchr(b'"', &text[at..]).map(|found| at + found)
}

/// Whether what follows a text, at whose beginning no escape is open, is escaped by its last backslash.
#[inline]
fn is_escaped(before: &[u8]) -> bool {
    match before {
        // most that end with a backslash end with one
        [.., b'\\', b'\\'] => before.iter().rev().take_while(|c| **c == b'\\').count() % 2 == 1,
        [.., b'\\'] => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
