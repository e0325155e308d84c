//! Bodies that come compressed: what is in them, for reading alone. Pure, and bounded against bodies that are small to
//! send and huge to read.
//!
//! What is read decides where a request goes; what is forwarded is what came, so nothing depends on two decoders agreeing.
//! The libraries are those that Pingora links already. Stacked codings were considered and refused: nobody sends them, and
//! each one multiplies what a few bytes can ask for.

use std::io::{self, Read};

/// A coding of RFC 9110, section 8.4.1, or of the registry that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// RFC 1952; several members are one body.
    Gzip,
    /// RFC 1950, or bare RFC 1951 as some clients send it.
    Deflate,
    /// RFC 8878.
    Zstd,
    /// RFC 7932.
    Brotli,
}

/// Why a body was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// Its coding is not known, or it has several.
    Unknown,
    /// It is not what its coding says.
    Broken,
    /// It expands beyond what honest text does ([`DENSEST`]).
    TooDense,
    /// It is larger than the limit, decoded.
    TooLarge,
}

/// How many times its size a body may expand. Prompts come to ten or twenty; what deflate can do at most is a thousand.
pub const DENSEST: usize = 100;
/// What is decoded at a time.
const PIECE: usize = 256 << 10;
/// Below this size the ratio plays no part.
pub(super) const HARMLESS: usize = 1 << 20;
/// The largest window of zstd, as RFC 9659 has it for HTTP: 8 MiB.
pub(super) const ZSTD_WINDOW_LOG: u32 = 23;

impl Coding {
    /// The coding that the values of `Content-Encoding` name, if any.
    ///
    /// # Errors
    /// [`Unread::Unknown`] for one that is not known, and for several.
    pub fn of<'a>(values: impl Iterator<Item = &'a [u8]>) -> Result<Option<Coding>, Unread> {
        let words =
            values.flat_map(|value| value.split(|c| *c == b',')).map(|word| word.trim_ascii().to_ascii_lowercase());
        let mut words = words.filter(|word| !matches!(&**word, b"" | b"identity"));
        let Some(word) = words.next() else { return Ok(None) };
        let coding = match &*word {
            b"gzip" | b"x-gzip" => Coding::Gzip,
            b"deflate" => Coding::Deflate,
            b"zstd" => Coding::Zstd,
            b"br" => Coding::Brotli,
            _ => return Err(Unread::Unknown),
        };
        if words.next().is_none() { Ok(Some(coding)) } else { Err(Unread::Unknown) }
    }

    /// What is in `body`: at most `limit` bytes.
    ///
    /// # Errors
    /// [`Unread`] when it cannot be read or must not be.
    pub fn decode(self, body: &[u8], limit: usize) -> Result<Vec<u8>, Unread> {
        let most = limit.min(body.len().saturating_mul(DENSEST).max(HARMLESS));
        let mut plain = self.reader(body).map_err(|_| Unread::Broken)?.take(most as u64 + 1);
        // in pieces: a vector that grows to the limit has been there twice for a moment
        let (mut pieces, mut length) = (Vec::new(), 0);
        loop {
            let mut piece = Vec::with_capacity(PIECE);
            let read = plain.by_ref().take(PIECE as u64).read_to_end(&mut piece);
            length += piece.len();
            let is_last = piece.len() < PIECE;
            pieces.push(piece);
            match read {
                _ if length > most && most == limit => return Err(Unread::TooLarge),
                _ if length > most => return Err(Unread::TooDense),
                Ok(_) if is_last => return Ok(pieces.concat()),
                Ok(_) => {}
                Err(_) => return Err(Unread::Broken),
            }
        }
    }

    fn reader(self, body: &[u8]) -> io::Result<Box<dyn Read + '_>> {
        Ok(match self {
            Coding::Gzip => Box::new(flate2::read::MultiGzDecoder::new(body)),
            Coding::Deflate if has_zlib_head(body) => Box::new(flate2::read::ZlibDecoder::new(body)),
            Coding::Deflate => Box::new(flate2::read::DeflateDecoder::new(body)),
            Coding::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(body)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG)?;
                Box::new(decoder)
            }
            Coding::Brotli => Box::new(brotli::Decompressor::new(body, BROTLI_BUFFER)),
        })
    }
}

const BROTLI_BUFFER: usize = 16 << 10;

/// RFC 1950, section 2.2: method 8, and a multiple of 31.
pub(super) fn has_zlib_head(body: &[u8]) -> bool {
    let [method, flags, ..] = body else { return false };
    method & 0x0f == 8 && u16::from_be_bytes([*method, *flags]).is_multiple_of(31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
    use proptest::prelude::*;
    use std::io::Write;

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn encoded(text: &[u8]) -> Vec<(Coding, Vec<u8>)> {
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::fast());
        zlib.write_all(text).unwrap();
        let mut raw = DeflateEncoder::new(Vec::new(), Compression::fast());
        raw.write_all(text).unwrap();
        let mut brotli = Vec::new();
        brotli::CompressorWriter::new(&mut brotli, 4096, 2, 20).write_all(text).unwrap();
        vec![
            (Coding::Gzip, gzip(text)),
            (Coding::Deflate, zlib.finish().unwrap()),
            (Coding::Deflate, raw.finish().unwrap()),
            (Coding::Zstd, zstd::encode_all(text, 1).unwrap()),
            (Coding::Brotli, brotli),
        ]
    }

    #[test]
    fn known_codings_have_names() {
        for (values, coding) in [
            (&["gzip"][..], Ok(Some(Coding::Gzip))),
            (&[" X-GZIP "], Ok(Some(Coding::Gzip))),
            (&["Deflate, identity"], Ok(Some(Coding::Deflate))),
            (&["", "zstd"], Ok(Some(Coding::Zstd))),
            (&["br"], Ok(Some(Coding::Brotli))),
            (&[], Ok(None)),
            (&["identity", ""], Ok(None)),
            (&["gzip, gzip"], Err(Unread::Unknown)),
            (&["gzip", "br"], Err(Unread::Unknown)),
            (&["compress"], Err(Unread::Unknown)),
        ] {
            assert_eq!(Coding::of(values.iter().map(|v| v.as_bytes())), coding, "{values:?}");
        }
    }

    #[test]
    fn what_was_encoded_is_read_and_half_of_it_is_broken() {
        let text: Vec<u8> = (0..5000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        for (coding, body) in encoded(&text) {
            assert_eq!(coding.decode(&body, 1 << 20).as_deref(), Ok(&*text), "{coding:?}");
            assert_eq!(coding.decode(&body[..body.len() / 2], 1 << 20), Err(Unread::Broken), "{coding:?}");
            assert_eq!(coding.decode(&body, text.len()).map(|out| out.len()), Ok(text.len()), "{coding:?}");
            assert_eq!(coding.decode(&body, text.len() - 1), Err(Unread::TooLarge), "{coding:?}");
        }
        assert_eq!(Coding::Gzip.decode(&[gzip(b"a"), gzip(b"b")].concat(), 10).as_deref(), Ok(&b"ab"[..]));
    }

    #[test]
    fn a_bomb_is_given_up_early() {
        let zeros = vec![0; 64 << 20];
        for (coding, body) in encoded(&zeros) {
            assert_eq!(coding.decode(&body, 1 << 30), Err(Unread::TooDense), "{coding:?}");
            assert_eq!(coding.decode(&body, 1 << 20), Err(Unread::TooLarge), "{coding:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_do_harm(bytes in prop::collection::vec(any::<u8>(), 0..200), at in 0usize..300, flip in any::<u8>()) {
            for (coding, mut body) in encoded(&bytes) {
                let n = at % body.len();
                body[n] ^= flip;
                let out = coding.decode(&body, 1000);
                prop_assert!(out.is_err() || out.is_ok_and(|o| o.len() <= 1000));
                let _any = coding.decode(&bytes, 1000);
            }
        }
    }
}
