//! Pictures, films, recordings and files: a digest of their whole data with the weight of what an engine reads for
//! them, so that a picture is neither worth megabytes of credit nor confused with another one.
//!
//! A weight is an estimate that holds within a factor of two or three, which is what routing needs: one token is about
//! four canonical bytes. An address on the web stands for what is there, since nothing is fetched.

use super::super::json::{Cursor, Kind, Malformed, Str};
use super::content::content;
use super::sink::Sink;
use super::value::{Members, members, text, value};

/// A picture is read as about 500 tokens: the middle, by ratio, between models that take 256 for any picture and those
/// that take 1,300 for a screenshot.
const PICTURE: usize = 2048;
/// A film is sampled: eight pictures.
const FILM: usize = 8 * PICTURE;
/// Base64 bytes of uncompressed audio per canonical byte: 24 kHz 16-bit speech at 25 tokens a second.
const WAVE_BYTES_PER_UNIT: usize = 640;
/// The same of compressed audio, at 128 kbit/s.
const COMPRESSED_BYTES_PER_UNIT: usize = 213;
/// A recording behind an address: half a minute.
const RECORDING_ELSEWHERE: usize = 3000;
/// Base64 bytes of a file per canonical byte: a page of a PDF is about 100 kB and 700 tokens of text.
const FILE_BYTES_PER_UNIT: usize = 48;
/// Nothing weighs less than a few words, or more than a long document of text.
const LEAST: usize = 128;
const MOST: usize = 64 << 10;
/// How base64 begins that begins with `RIFF`: a WAVE file.
const RIFF: &[u8] = b"UklGR";

/// Lists within lists: a list of films, each a list of frames. Deeper ones are plain values.
const MAX_DEPTH: usize = 3;

/// What it is that an engine reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Media {
    Picture,
    Film,
    Recording,
    File,
}

/// Whether a member of a part with this name holds something other than text.
pub(super) fn is_media(key: &[u8]) -> bool {
    matches!(
        key,
        b"image_url"
            | b"image"
            | b"video_url"
            | b"video"
            | b"input_audio"
            | b"audio_url"
            | b"audio"
            | b"file"
            | b"file_data"
            | b"file_url"
            | b"source"
    )
}

/// What a member holds, from its name and the type of its part (in quotes).
pub(super) fn kind(key: &[u8], part: &[u8]) -> Media {
    match key {
        b"video_url" | b"video" => Media::Film,
        b"input_audio" | b"audio_url" | b"audio" => Media::Recording,
        b"file" | b"file_data" | b"file_url" => Media::File,
        b"source" if part != b"\"image\"" => Media::File,
        _ => Media::Picture,
    }
}

/// A string, an object one of whose members is the data, or a list of either.
pub(super) fn media<S: Sink>(data: &[u8], kind: Media, sink: &mut S, depth: usize) -> Result<(), Malformed> {
    let mut cursor = Cursor::new(data);
    match cursor.kind()? {
        Kind::String => digest(cursor.string()?, kind, sink),
        Kind::Object => {
            let mut list = Members::new();
            cursor.object(|key, member| {
                list.push((key, member.skip()?));
                Ok(())
            })?;
            return source(list, kind, sink, depth);
        }
        Kind::Array if depth < MAX_DEPTH => {
            let each = if kind == Media::Film { Media::Picture } else { kind };
            cursor.array(|item| media(item.skip()?, each, sink, depth + 1))?;
        }
        _ => value(&mut cursor, sink, 1)?,
    }
    Ok(())
}

fn source<S: Sink>(mut list: Members<'_>, kind: Media, sink: &mut S, depth: usize) -> Result<(), Malformed> {
    let is_text = list.iter().any(|(key, value)| key.raw == b"type" && *value == b"\"text\"");
    list.sort_by(|a, b| a.0.raw.cmp(b.0.raw));
    let mut rest = Members::new();
    for (key, member) in list {
        let mut cursor = Cursor::new(member);
        match (key.raw, cursor.kind()?) {
            // a document may be given as plain text, or as parts of its own
            (b"data", Kind::String) if is_text => text(cursor.string()?, sink),
            (b"content", _) => content(&mut cursor, sink, depth + 1)?,
            (b"url" | b"data" | b"file_data" | b"file_url", Kind::String) => digest(cursor.string()?, kind, sink),
            _ if member == b"null" => {}
            _ => rest.push((key, member)),
        }
    }
    members(rest, sink, 1)
}

fn digest<S: Sink>(data: Str<'_>, kind: Media, sink: &mut S) {
    let data = data.bytes();
    sink.push_digest(&data, weight(&data, kind));
}

fn weight(data: &[u8], kind: Media) -> usize {
    let elsewhere = data.starts_with(b"http://") || data.starts_with(b"https://");
    let weight = match kind {
        Media::Picture => PICTURE,
        Media::Film => FILM,
        Media::Recording if elsewhere => RECORDING_ELSEWHERE,
        Media::Recording if payload(data).starts_with(RIFF) => data.len() / WAVE_BYTES_PER_UNIT,
        Media::Recording => data.len() / COMPRESSED_BYTES_PER_UNIT,
        Media::File => (data.len() / FILE_BYTES_PER_UNIT).max(PICTURE),
    };
    weight.clamp(LEAST, MOST)
}

/// What follows the head of a data URL.
fn payload(data: &[u8]) -> &[u8] {
    let head = &data[..data.len().min(128)];
    let end = head.iter().position(|c| *c == b',').filter(|_| data.starts_with(b"data:"));
    &data[end.map_or(0, |comma| comma + 1)..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_follow_what_is_read_and_stay_in_bounds() {
        let base64 = |n: usize| vec![b'A'; n];
        let wave = |n: usize| [b"UklGR".to_vec(), base64(n)].concat();
        assert_eq!(weight(&base64(100), Media::Picture), weight(&base64(9_000_000), Media::Picture));
        // ten seconds, as samples at 24 kHz and at 128 kbit/s: about 250 tokens
        for recording in [wave(640_000), base64(213_000), [b"data:audio/wav;base64,".to_vec(), wave(640_000)].concat()]
        {
            let tokens = weight(&recording, Media::Recording) / 4;
            assert!((240..=260).contains(&tokens), "{tokens}");
        }
        assert_eq!(weight(b"https://x.test/a.mp3", Media::Recording), RECORDING_ELSEWHERE);
        assert_eq!(weight(&base64(100), Media::File), PICTURE);
        assert_eq!(weight(&base64(60_000_000), Media::File), MOST);
        assert_eq!(weight(b"", Media::Recording), LEAST);
    }
}
