//! Answers that come compressed, decoded beside their relay: piece by piece, as far as each piece goes. Pure, and bounded.
//!
//! The client gets what the engine sent. To ask engines for plain text instead was considered and refused: it would change
//! what they were asked for and what clients get, and an engine's front may compress all the same. The price is paid only
//! where an engine compresses, which none does by itself.

use super::encoding::{Coding, DENSEST, HARMLESS, Unread, ZSTD_WINDOW_LOG, has_zlib_head};
use std::io::{self, Write};

/// Decodes one answer.
pub struct Decoder {
    inflater: Inflater,
    /// Bytes taken in, and the most that may come out of them all.
    encoded: usize,
    decoded: usize,
}

enum Inflater {
    /// Deflate with or without the head of zlib: what came is too short to tell.
    Undecided(Vec<u8>),
    Decided(Box<dyn Inflate>),
}

/// A decoder of some library.
trait Inflate: Write + Send + Sync {
    fn sink(&mut self) -> &mut Sink;
}

/// What has come out, and how much more may.
#[derive(Default)]
struct Sink {
    out: Vec<u8>,
    room: usize,
}

impl Decoder {
    /// A decoder of an answer in this coding.
    ///
    /// # Errors
    /// [`Unread::Broken`] where the library cannot be set up.
    pub fn new(coding: Coding) -> Result<Self, Unread> {
        let sink = Sink::default();
        let inflater = match coding {
            Coding::Deflate => Inflater::Undecided(Vec::new()),
            Coding::Gzip => decided(flate2::write::MultiGzDecoder::new(sink)),
            Coding::Brotli => decided(brotli::DecompressorWriter::new(sink, BUFFER)),
            Coding::Zstd => decided(zstd_decoder(sink).map_err(|_| Unread::Broken)?),
        };
        Ok(Decoder { inflater, encoded: 0, decoded: 0 })
    }

    /// Takes a piece in; returns what it and those before it say and was not said yet.
    ///
    /// # Errors
    /// [`Unread::Broken`] and [`Unread::TooDense`], after which there is nothing more to ask.
    pub fn push(&mut self, piece: &[u8]) -> Result<Vec<u8>, Unread> {
        let joined;
        let mut piece = piece;
        if let Inflater::Undecided(first) = &mut self.inflater {
            first.extend_from_slice(piece);
            if first.len() < 2 {
                return Ok(Vec::new());
            }
            joined = std::mem::take(first);
            piece = &joined;
            let sink = Sink::default();
            self.inflater = match has_zlib_head(piece) {
                true => decided(flate2::write::ZlibDecoder::new(sink)),
                false => decided(flate2::write::DeflateDecoder::new(sink)),
            };
        }
        let Inflater::Decided(inflater) = &mut self.inflater else { return Ok(Vec::new()) };
        self.encoded += piece.len();
        let most = self.encoded.saturating_mul(DENSEST).max(HARMLESS);
        inflater.sink().room = most.saturating_sub(self.decoded);
        let done = inflater.write_all(piece).and_then(|()| inflater.flush());
        let sink = inflater.sink();
        self.decoded += sink.out.len();
        match done {
            Ok(()) => Ok(std::mem::take(&mut sink.out)),
            Err(_) if sink.room == 0 => Err(Unread::TooDense),
            Err(_) => Err(Unread::Broken),
        }
    }
}

/// What brotli's library decodes at a time.
const BUFFER: usize = 4 << 10;

fn decided(inflater: impl Inflate + 'static) -> Inflater {
    Inflater::Decided(Box::new(inflater))
}

fn zstd_decoder(sink: Sink) -> io::Result<zstd::stream::write::Decoder<'static, Sink>> {
    let mut decoder = zstd::stream::raw::Decoder::new()?;
    decoder.set_parameter(zstd::stream::raw::DParameter::WindowLogMax(ZSTD_WINDOW_LOG))?;
    Ok(zstd::stream::write::Decoder::with_decoder(sink, decoder))
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.room {
            self.room = 0;
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.room -= bytes.len();
        self.out.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

macro_rules! inflate {
    ($($decoder:ty),*) => {
        $(impl Inflate for $decoder {
            fn sink(&mut self) -> &mut Sink {
                self.get_mut()
            }
        })*
    };
}

inflate!(
    flate2::write::MultiGzDecoder<Sink>,
    flate2::write::ZlibDecoder<Sink>,
    flate2::write::DeflateDecoder<Sink>,
    brotli::DecompressorWriter<Sink>,
    zstd::stream::write::Decoder<'static, Sink>
);

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
    use proptest::prelude::*;

    /// `texts` as pieces that were flushed one by one, and the end.
    fn pieces<W: Write>(mut encoder: W, texts: &[&[u8]], take: impl Fn(&mut W) -> Vec<u8>) -> (W, Vec<Vec<u8>>) {
        let flushed = texts.iter().map(|text| {
            encoder.write_all(text).unwrap();
            encoder.flush().unwrap();
            take(&mut encoder)
        });
        let flushed = flushed.collect();
        (encoder, flushed)
    }

    fn encoded(texts: &[&[u8]]) -> Vec<(Coding, Vec<Vec<u8>>)> {
        let taken = |out: &mut Vec<u8>| std::mem::take(out);
        let mut all = Vec::new();
        let (last, mut gzip) = pieces(GzEncoder::new(Vec::new(), Compression::fast()), texts, |e| taken(e.get_mut()));
        gzip.push(last.finish().unwrap());
        all.push((Coding::Gzip, gzip));
        let (last, mut zlib) = pieces(ZlibEncoder::new(Vec::new(), Compression::fast()), texts, |e| taken(e.get_mut()));
        zlib.push(last.finish().unwrap());
        all.push((Coding::Deflate, zlib));
        let (last, mut raw) =
            pieces(DeflateEncoder::new(Vec::new(), Compression::fast()), texts, |e| taken(e.get_mut()));
        raw.push(last.finish().unwrap());
        all.push((Coding::Deflate, raw));
        let zstd = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        let (last, mut zstd) = pieces(zstd, texts, |e| taken(e.get_mut()));
        zstd.push(last.finish().unwrap());
        all.push((Coding::Zstd, zstd));
        let brotli = brotli::CompressorWriter::new(Vec::new(), 4096, 2, 20);
        let (last, mut brotli) = pieces(brotli, texts, |e| taken(e.get_mut()));
        brotli.push(last.into_inner());
        all.push((Coding::Brotli, brotli));
        all
    }

    #[test]
    fn each_piece_is_read_when_it_comes() {
        let texts: [&[u8]; 3] = [b"data: one\n\n", b"data: two\n\n", b"data: [DONE]\n\n"];
        for (coding, pieces) in encoded(&texts) {
            let mut decoder = Decoder::new(coding).unwrap();
            for (piece, text) in pieces.iter().zip(texts) {
                let piece: Vec<_> = piece.iter().flat_map(|b| decoder.push(&[*b]).unwrap()).collect();
                assert_eq!(String::from_utf8(piece).unwrap(), String::from_utf8(text.to_vec()).unwrap(), "{coding:?}");
            }
            assert_eq!(decoder.push(&pieces[3]), Ok(Vec::new()), "{coding:?}");
        }
    }

    #[test]
    fn what_is_no_such_coding_is_broken_and_a_bomb_is_given_up() {
        let zeros = vec![0; 64 << 20];
        for (coding, pieces) in encoded(&[&zeros]) {
            let bomb = pieces.concat();
            let mut decoder = Decoder::new(coding).unwrap();
            let read = bomb.chunks(1000).try_fold(0, |sum, piece| Ok(sum + decoder.push(piece)?.len()));
            assert_eq!(read, Err(Unread::TooDense), "{coding:?}");
            assert!(decoder.decoded <= (decoder.encoded * DENSEST).max(HARMLESS));
            let mut decoder = Decoder::new(coding).unwrap();
            assert_eq!(decoder.push(b"{\"plain\":\"text\"} and more of it"), Err(Unread::Broken), "{coding:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_do_harm(bytes in prop::collection::vec(any::<u8>(), 0..200), at in 0usize..300, flip in any::<u8>()) {
            for (coding, pieces) in encoded(&[&bytes]) {
                let mut body = pieces.concat();
                let n = at % body.len();
                body[n] ^= flip;
                for text in [&body, &bytes] {
                    let mut decoder = Decoder::new(coding).unwrap();
                    let _any = text.chunks(7).try_for_each(|piece| decoder.push(piece).map(drop));
                }
            }
        }
    }
}
