//! A body in chunks, taken apart (RFC 9112, section 7.1). Extensions say nothing to us, and trailers go no further.

use super::answer::no_chunk;
use bytes::{Buf, Bytes, BytesMut};
use httparse::{Status, parse_chunk_size};
use memchr::memchr;
use pingora_error::Result;

/// The longest line: the size of a chunk with its extensions, or a trailer.
const LINE: usize = 8 << 10;
/// The most bytes of all trailers.
const TRAILERS: usize = 64 << 10;

/// Where in the body the reader is.
#[derive(Debug, Default)]
pub(super) enum Chunks {
    /// Before the size of a chunk.
    #[default]
    Size,
    /// In a chunk with so many bytes left.
    Data(u64),
    /// Behind a chunk.
    Behind,
    /// In the trailers, of which so many bytes were read.
    Trailers(usize),
}

impl Chunks {
    /// Takes from `come` all of the body that is in it, and whether that is its end. What stays is not whole.
    ///
    /// # Errors
    /// What is no chunk, once what comes before it has been taken.
    pub(super) fn take(&mut self, come: &mut BytesMut) -> Result<(Option<Bytes>, bool)> {
        let mut taken = Taken::Nothing;
        let is_end = match self.take_into(&mut taken, come) {
            Err(e) if matches!(taken, Taken::Nothing) => return Err(e),
            is_end => is_end.unwrap_or(false),
        };
        Ok((taken.whole(), is_end))
    }

    fn take_into(&mut self, taken: &mut Taken, come: &mut BytesMut) -> Result<bool> {
        let is_end = loop {
            match self {
                Chunks::Size => match size(come)? {
                    None => break false,
                    Some((line, size)) => {
                        come.advance(line);
                        *self = if size == 0 { Chunks::Trailers(0) } else { Chunks::Data(size) };
                    }
                },
                Chunks::Data(left) => {
                    let size = usize::try_from(*left).unwrap_or(usize::MAX).min(come.len());
                    if size == 0 {
                        break false;
                    }
                    *left -= size as u64;
                    taken.add(come.split_to(size));
                    if *left == 0 {
                        *self = Chunks::Behind;
                    }
                }
                Chunks::Behind => match &come[..] {
                    [b'\r', b'\n', ..] => {
                        come.advance(2);
                        *self = Chunks::Size;
                    }
                    [] | [b'\r'] => break false,
                    _ => return Err(no_chunk()),
                },
                Chunks::Trailers(read) => {
                    if *read > TRAILERS {
                        return Err(no_chunk());
                    }
                    let Some(end) = memchr(b'\n', come) else {
                        break if come.len() < LINE { false } else { return Err(no_chunk()) };
                    };
                    let is_last = matches!(come[..end], [] | [b'\r']);
                    come.advance(end + 1);
                    *read += end + 1;
                    if is_last {
                        break true;
                    }
                }
            }
        };
        Ok(is_end)
    }
}

/// The length of the line that says the size of a chunk, and the size; nothing while it is not whole.
fn size(come: &[u8]) -> Result<Option<(usize, u64)>> {
    match come.first() {
        None => return Ok(None),
        // the library takes a line without a digit for the last chunk
        Some(digit) if !digit.is_ascii_hexdigit() => return Err(no_chunk()),
        Some(_) => {}
    }
    match parse_chunk_size(come) {
        Ok(Status::Complete(found)) => Ok(Some(found)),
        Ok(Status::Partial) if come.len() < LINE => Ok(None),
        _ => Err(no_chunk()),
    }
}

/// What was taken: one piece as it lies, several put together.
enum Taken {
    Nothing,
    One(BytesMut),
    Several(BytesMut),
}

impl Taken {
    fn add(&mut self, piece: BytesMut) {
        *self = match std::mem::replace(self, Taken::Nothing) {
            Taken::Nothing => Taken::One(piece),
            Taken::One(first) => {
                let mut all = BytesMut::with_capacity(2 * (first.len() + piece.len()));
                all.extend_from_slice(&first);
                all.extend_from_slice(&piece);
                Taken::Several(all)
            }
            Taken::Several(mut all) => {
                all.extend_from_slice(&piece);
                Taken::Several(all)
            }
        };
    }

    fn whole(self) -> Option<Bytes> {
        match self {
            Taken::Nothing => None,
            Taken::One(bytes) | Taken::Several(bytes) => Some(bytes.freeze()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(text: &str) -> Result<(String, bool)> {
        let (mut chunks, mut come) = (Chunks::default(), BytesMut::from(text));
        let (piece, is_end) = chunks.take(&mut come)?;
        Ok((String::from_utf8(piece.unwrap_or_default().to_vec()).unwrap(), is_end))
    }

    #[test]
    fn what_is_there_is_taken_in_one_piece() {
        for (text, body, is_end) in [
            ("", "", false),
            ("5", "", false),
            ("5\r\nhel", "hel", false),
            ("5\r\nhello\r\n3\r\nyou\r\n1", "helloyou", false),
            ("A ; x=\"y\"\r\n0123456789\r\n0\r\n\r\n", "0123456789", true),
            ("0\r\na: b\r\n", "", false),
            ("00\r\na: b\r\n\r\n", "", true),
        ] {
            assert_eq!(taken(text).unwrap(), (body.to_owned(), is_end), "{text:?}");
        }
    }

    #[test]
    fn what_is_no_chunk_is_an_error() {
        let long = format!("5;{}", "x".repeat(LINE));
        let trailers = format!("0\r\n{}", "a: b\r\n".repeat(TRAILERS / 6 + 1));
        // a line without a size is not the end
        for text in ["\r\n\r\n", ";x\r\n", "x\r\n", "5\nhello", "11111111111111111\r\n", &*long, &*trailers] {
            assert!(taken(text).is_err(), "{text:.40?}");
        }
    }
}
