//! A streamed answer: read alike however it is cut, as the standard reads it, and within its bounds.
//!
//! Input: the stream. Two bytes 1 and a byte n stand for n times 2 KiB of letters, a byte 2 and a byte n for n letters, so
//! that a short input reaches the bounds.

use super::dice::Dice;
use super::events::{Event as Expected, events};
use ramjet::api::answer::{StreamReader, StreamState, WholeReader};
use ramjet::api::sse::{Event, MAX_EVENT, Scanner};
use serde_json::Value;

/// No input unfolds to more.
const MOST: usize = 640 << 10;
/// Longer streams are cut into few pieces: each costs the reader something.
const SHORT: usize = 8 << 10;
/// As much of a name as is told of an event that is too large.
const NAME: usize = 32;

pub(crate) fn check(data: &[u8]) {
    let stream = unfolded(data);
    let mut dice = Dice::of(data);
    let mut cuts = vec![dice.cut(&stream, 1 + stream.len() / 3)];
    if stream.len() <= SHORT {
        cuts.extend([dice.cut(&stream, 7), stream.chunks(1).collect()]);
    }
    let whole = scanned(&[&stream]);
    as_the_standard_has_it(&whole, &events(&stream));
    let (state, id) = told(&[&stream]);
    for cut in &cuts {
        // compared, not shown: an event may have a quarter of a megabyte
        assert!(scanned(cut) == whole, "events differ");
        assert_eq!(told(cut), (state, id.clone()), "what is told differs");
        assert_eq!(reported(cut), reported(&[&stream]), "what a whole answer reports differs");
    }
    if stream.len() <= SHORT {
        first_token(&stream, state);
    }
    says_what_it_says(&whole, state);
}

fn unfolded(data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut left = data;
    loop {
        let run = match left {
            [1, 1, n, ..] => usize::from(*n) * 2048,
            [2, n, ..] => usize::from(*n),
            [byte, ..] => {
                out.push(*byte);
                left = &left[1..];
                continue;
            }
            [] => return out,
        };
        out.extend(std::iter::repeat_n(b'x', run.min(MOST - out.len().min(MOST))));
        left = &left[if left[0] == 1 { 3 } else { 2 }..];
    }
}

/// Data of an event, or the name of one that was too large.
#[derive(Debug, PartialEq)]
enum Scanned {
    Data(Vec<u8>),
    TooLarge(Vec<u8>),
}

fn scanned(pieces: &[&[u8]]) -> Vec<Scanned> {
    let mut scanner = Scanner::default();
    let mut out = Vec::new();
    for piece in pieces {
        scanner.push(piece, |event| {
            out.push(match event {
                Event::Data(data) => Scanned::Data(data.to_vec()),
                Event::TooLarge { name } => Scanned::TooLarge(name.to_vec()),
            });
        });
    }
    out
}

fn as_the_standard_has_it(scanned: &[Scanned], expected: &[Expected]) {
    assert_eq!(scanned.len(), expected.len(), "another number of events");
    for (scanned, expected) in scanned.iter().zip(expected) {
        match scanned {
            Scanned::Data(data) => {
                assert!(data.len() <= MAX_EVENT, "an event beyond the bound");
                assert!(*data == expected.data, "other data");
            }
            Scanned::TooLarge(name) => {
                assert!(
                    expected.data.len() >= MAX_EVENT || expected.longest_line > MAX_EVENT,
                    "a small event is refused"
                );
                assert_eq!(**name, expected.name[..expected.name.len().min(NAME)]);
            }
        }
    }
}

/// What was told after the last piece, and the id on the way; that something came in a piece is true of one of them.
fn told(pieces: &[&[u8]]) -> (StreamState, Option<Vec<u8>>) {
    let mut reader = StreamReader::with_id();
    let (mut state, mut id, mut progressed) = (StreamState::default(), None, false);
    for piece in pieces {
        state = reader.push(piece);
        progressed |= state.progressed;
        id = id.or(reader.take_id());
    }
    (StreamState { progressed, ..state }, id)
}

fn reported(pieces: &[&[u8]]) -> (ramjet::api::answer::Usage, Vec<Vec<u8>>) {
    let mut reader = WholeReader::with_ids(&["id", "output_file_id"]);
    pieces.iter().for_each(|piece| reader.push(piece));
    (reader.usage(), reader.ids())
}

/// The first token is told with the byte that completes its event, not before and not after.
fn first_token(stream: &[u8], state: StreamState) {
    let mut reader = StreamReader::default();
    let at = stream.chunks(1).position(|byte| reader.push(byte).generated);
    assert_eq!(at.is_some(), state.generated);
    if let Some(at) = at {
        assert!(StreamReader::default().push(&stream[..=at]).generated, "told too late");
        assert!(!StreamReader::default().push(&stream[..at]).generated, "told too early");
    }
}

/// A few things that are plain to see are seen.
fn says_what_it_says(events: &[Scanned], state: StreamState) {
    for event in events {
        let Scanned::Data(data) = event else { continue };
        assert!(data != b"[DONE]" || state.finished, "the end is missed");
        let Ok(Value::Object(event)) = serde_json::from_slice(data) else { continue };
        assert!(event.get("error").is_none_or(Value::is_null) || state.failed, "an error is missed");
        let choices = event.get("choices").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        for choice in choices.iter().filter_map(Value::as_object) {
            let text = choice.get("text").or_else(|| choice.get("delta")?.get("content")).and_then(Value::as_str);
            let all_objects = choices.iter().all(Value::is_object);
            assert!(!all_objects || text.is_none_or(str::is_empty) || state.generated, "a token is missed");
        }
    }
}
