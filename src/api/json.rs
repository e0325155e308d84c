//! A lazy reader of JSON text: one cursor, borrowed slices, no tree.
//!
//! A general parser was considered and refused for this one job. Routing needs the *byte spans* of a few values in a
//! megabyte body (edits change spans, never re-serialise), needs to look at everything else only to step over it, and
//! must not stumble over text that strict parsers reject but engines accept or must be allowed to reject themselves:
//! lone surrogates, duplicate keys, `NaN`, bytes that are not UTF-8. So the cursor checks structure only as far as it
//! must to find where values end.

use memchr::{memchr, memchr2};

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

impl Str<'_> {
    /// Passes the decoded bytes on in pieces.
    pub fn decode(self, sink: impl FnMut(&[u8])) {
        decode(self.raw, sink);
    }

    /// The decoded text; bytes that are not UTF-8 are replaced.
    pub fn text(self) -> String {
        let mut out = Vec::with_capacity(self.raw.len());
        self.decode(|piece| out.extend_from_slice(piece));
        String::from_utf8(out).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
    }

    /// Whether the string is exactly `word` (a plain word, compared without decoding).
    pub fn is(self, word: &str) -> bool {
        self.raw == word.as_bytes()
    }
}

// === decoding ===

/// Decoded bytes are gathered up to this many, so that dense escapes do not become a call each.
const GATHER: usize = 512;
/// A stretch without escapes that is this long is searched, and passed on, as a whole.
const LONG_STRETCH: usize = 64;

/// Decodes the text of a string up to its closing quote (or the end of `text`), whose offset is returned.
///
/// A lone surrogate comes out as its three-byte form: such text is forwarded, so it must have one stable reading.
fn decode(text: &[u8], mut sink: impl FnMut(&[u8])) -> usize {
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
        match text.get(at) {
            Some(b'\\') => {
                at += 1 + unescape(&text[at + 1..], |piece| {
                    gathered[n..n + piece.len()].copy_from_slice(piece);
                    n += piece.len();
                })
            }
            None | Some(b'"') => break,
            Some(_) => {}
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

/// Decodes one escape, given what follows its backslash; at most eight bytes come out. Returns how much was read.
fn unescape(rest: &[u8], mut sink: impl FnMut(&[u8])) -> usize {
    let Some(code) = rest.first() else { return 0 };
    match code {
        b'n' => sink(b"\n"),
        b't' => sink(b"\t"),
        b'r' => sink(b"\r"),
        b'b' => sink(b"\x08"),
        b'f' => sink(b"\x0c"),
        b'u' => return 1 + unescape_unicode(&rest[1..], &mut sink),
        other => sink(&[*other]),
    }
    1
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

    /// Reads a string and passes its decoded bytes on, in one pass.
    pub fn string_decoded(&mut self, sink: impl FnMut(&[u8])) -> Result<()> {
        if self.kind()? != Kind::String {
            return self.fail();
        }
        let end = self.at + 1 + decode(&self.text[self.at + 1..], sink);
        self.at = (end + 1).min(self.text.len());
        if self.text.get(end) == Some(&b'"') { Ok(()) } else { self.fail() }
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
    /// Text from source code is dense in `\n` and thin in quotes, so the search looks for quotes only and then counts
    /// the backslashes before one.
    fn closing_quote(&self, from: usize) -> Result<usize> {
        let mut search = from;
        while let Some(found) = memchr(b'"', &self.text[search..]) {
            let quote = search + found;
            let slashes = self.text[from..quote].iter().rev().take_while(|c| **c == b'\\').count();
            if slashes % 2 == 0 {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decoded(raw: &str) -> Vec<u8> {
        let mut out = Vec::new();
        Str { raw: raw.as_bytes(), at: 0 }.decode(|p| out.extend_from_slice(p));
        out
    }

    #[test]
    fn decodes_every_escape() {
        assert_eq!(decoded(r#"a\n\t\r\b\f\"\\\/\u0041\u00e9\ud83d\ude00"#), "a\n\t\r\u{8}\u{c}\"\\/Aé😀".as_bytes());
    }

    #[test]
    fn lone_surrogate_has_one_stable_reading() {
        assert_eq!(decoded(r"\ud83dx"), b"\xed\xa0\xbdx");
        assert_eq!(decoded(r"\ud83d\u0041"), b"\xed\xa0\xbdA");
        assert_eq!(decoded(r"\u12"), br"\u12");
    }

    #[test]
    fn skips_odd_values_and_returns_their_text() {
        let text = br#" {"a": [1, {"x": "]}\"\\"}], "b": NaN , "c":-1e9 } "#;
        let mut seen = Vec::new();
        let mut cursor = Cursor::new(text);
        cursor
            .object(|key, value| {
                seen.push((key.text(), String::from_utf8_lossy(value.skip()?).into_owned()));
                Ok(())
            })
            .unwrap();
        assert!(cursor.at_end());
        let want = [("a", r#"[1, {"x": "]}\"\\"}]"#), ("b", "NaN"), ("c", "-1e9")];
        assert_eq!(seen, want.map(|(k, v)| (k.to_owned(), v.to_owned())));
    }

    #[test]
    fn broken_text_is_an_error_not_a_panic() {
        for text in ["", "{", "[1", "{\"a\"", "{\"a\":}", "\"abc", "{\"a\" 1}", "[1 2]", "]", "{\"a\":\"\\"] {
            let mut c = Cursor::new(text.as_bytes());
            let result = match c.kind() {
                Ok(Kind::Object) => c.object(|_, v| v.skip().map(drop)),
                Ok(Kind::Array) => c.array(|v| v.skip().map(drop)),
                _ => c.skip().map(drop),
            };
            assert!(result.is_err(), "{text:?}");
        }
    }

    fn any_json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            ".*".prop_map(serde_json::Value::from),
        ];
        leaf.prop_recursive(4, 64, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Into::into),
                prop::collection::btree_map(".*", inner, 0..8)
                    .prop_map(|m| serde_json::Value::Object(m.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn skip_covers_exactly_one_value(value in any_json(), pretty: bool, tail in "[,\\] }]?") {
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
            let whole = format!("{text}{tail}");
            prop_assert_eq!(Cursor::new(whole.as_bytes()).skip().unwrap(), text.as_bytes());
        }

        #[test]
        fn strings_decode_as_a_strict_parser_does(s in ".*") {
            let text = serde_json::to_string(&s).unwrap();
            prop_assert_eq!(Cursor::new(text.as_bytes()).string().unwrap().text(), s);
        }

        #[test]
        fn long_strings_of_every_density_decode_in_one_pass(parts in prop::collection::vec("[a-z]{0,90}[\"\\\\\n😀é]{0,3}", 0..40)) {
            let s = parts.concat();
            let text = serde_json::to_string(&s).unwrap() + "tail";
            let mut out = Vec::new();
            let mut cursor = Cursor::new(text.as_bytes());
            cursor.string_decoded(|p| out.extend_from_slice(p)).unwrap();
            prop_assert_eq!(String::from_utf8(out).unwrap(), s);
            prop_assert_eq!(cursor.at, text.len() - 4);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut c = Cursor::new(&bytes);
            let _unused = c.object(|k, v| { k.decode(|_| ()); v.skip().map(drop) });
            let _unused = Cursor::new(&bytes).string_decoded(|_| ());
            decode(&bytes, |_| ());
        }
    }
}
