//! Takes the event that tells the usage out of a stream, and lets every other byte pass, as soon as it may.
//!
//! Only an event that is not complete is kept back: what a client makes of its lines it makes at the blank line, where engines
//! write line by line. Comments pass at once, and so does what is too long to be the one that is looked for. What is hidden: an event whose `choices` are empty and
//! whose `usage` is an object. One with choices, or with an error, is the client's.

use super::super::json::{Cursor, Kind};
use super::super::sse::{Event, Scanner};
use bytes::{BufMut, Bytes, BytesMut};

/// The longest event that is kept back: those that tell the usage have some hundred bytes.
const MAX_HELD: usize = 16 << 10;
/// What stands in every event that is looked for.
const MARK: &[u8] = b"\"usage\"";

/// What becomes of the bytes of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fate {
    /// It is kept back: its end decides.
    #[default]
    Held,
    /// It passes to the end of its line, which is a comment before any event.
    Comment,
    /// It passes to its end.
    Passes,
}

/// The state between two pieces of a stream.
#[derive(Debug, Default)]
pub struct Hider {
    /// The event so far.
    held: Vec<u8>,
    fate: Fate,
    /// Bytes of the line so far.
    line: usize,
    /// A CR ended the last line: an LF that follows belongs to it, and goes where it went.
    after_cr: bool,
    /// The last event was taken out.
    is_last_hidden: bool,
    hidden: u64,
}

impl Hider {
    /// Takes a piece of the stream; what the client gets of it, and of what was kept back before it.
    pub fn push(&mut self, piece: Bytes) -> Bytes {
        if piece.is_empty() {
            return piece;
        }
        if self.is_between() && piece.ends_with(b"\n\n") && memchr::memmem::find(&piece, MARK).is_none() {
            return piece;
        }
        let mut out = BytesMut::with_capacity(self.held.len() + piece.len());
        let mut rest = &piece[..];
        if std::mem::take(&mut self.after_cr) && rest.first() == Some(&b'\n') {
            self.line_feed(&mut out);
            rest = &rest[1..];
        }
        while let Some(end) = memchr::memchr2(b'\n', b'\r', rest) {
            let is_cr = rest[end] == b'\r';
            let end = if is_cr && rest.get(end + 1) == Some(&b'\n') { end + 1 } else { end };
            self.after_cr = is_cr && end + 1 == rest.len() && rest[end] == b'\r';
            let is_blank = self.line == 0 && matches!(&rest[..=end], b"\n" | b"\r" | b"\r\n");
            self.take(&rest[..=end], &mut out);
            self.line = 0;
            if is_blank {
                self.end_event(&mut out);
            } else if self.fate == Fate::Comment {
                self.fate = Fate::Held;
            }
            rest = &rest[end + 1..];
        }
        self.line += rest.len();
        self.take(rest, &mut out);
        out.freeze()
    }

    /// The end of the stream: what was kept back, an event without its end, is the client's.
    pub fn finish(&mut self) -> Bytes {
        Bytes::from(std::mem::take(&mut self.held))
    }

    /// How many events were taken out.
    pub fn hidden(&self) -> u64 {
        self.hidden
    }

    /// Whether the last piece ended with an event.
    fn is_between(&self) -> bool {
        self.held.is_empty() && self.fate == Fate::Held && self.line == 0 && !self.after_cr
    }

    /// The LF of a line end whose CR came before.
    fn line_feed(&mut self, out: &mut BytesMut) {
        match self.fate {
            Fate::Held if !self.held.is_empty() => self.held.push(b'\n'),
            Fate::Held if self.is_last_hidden => {}
            _ => out.put_u8(b'\n'),
        }
    }

    /// Some bytes of an event, at most to the end of a line.
    fn take(&mut self, bytes: &[u8], out: &mut BytesMut) {
        if bytes.is_empty() {
            return;
        }
        self.is_last_hidden = false;
        if self.fate == Fate::Held && self.held.is_empty() && bytes[0] == b':' {
            self.fate = Fate::Comment;
        }
        if self.fate != Fate::Held {
            return out.put_slice(bytes);
        }
        self.held.extend_from_slice(bytes);
        if self.held.len() > MAX_HELD {
            self.fate = Fate::Passes;
            out.put_slice(&std::mem::take(&mut self.held));
        }
    }

    fn end_event(&mut self, out: &mut BytesMut) {
        self.is_last_hidden = self.fate == Fate::Held && tells_usage(&self.held);
        if self.is_last_hidden {
            self.hidden += 1;
        } else {
            out.put_slice(&self.held);
        }
        self.held.clear();
        self.fate = Fate::Held;
    }
}

/// Whether an event is the one that answers the question.
fn tells_usage(event: &[u8]) -> bool {
    if memchr::memmem::find(event, MARK).is_none() {
        return false;
    }
    let mut tells = false;
    Scanner::default().push(event, |event| {
        if let Event::Data(data) = event {
            tells = is_usage(data);
        }
    });
    tells
}

fn is_usage(data: &[u8]) -> bool {
    let (mut is_empty, mut has_usage, mut has_error) = (false, false, false);
    let mut cursor = Cursor::new(data);
    let whole = cursor.object(|key, value| {
        let (kind, text) = (value.kind()?, value.skip()?);
        match key.raw {
            b"choices" => {
                let inner = text.strip_prefix(b"[").and_then(|text| text.strip_suffix(b"]"));
                is_empty = inner.is_some_and(|inner| inner.trim_ascii().is_empty());
            }
            b"usage" => has_usage = kind == Kind::Object,
            b"error" => has_error = text != b"null",
            _ => {}
        }
        Ok(())
    });
    whole.is_ok() && is_empty && has_usage && !has_error
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const USAGE: &str = r#"data: {"id":"x","choices":[ ],"usage":{"prompt_tokens":7}}"#;

    fn passed(pieces: &[&[u8]]) -> (Vec<Vec<u8>>, u64) {
        let mut hider = Hider::default();
        let mut out: Vec<Vec<u8>> = pieces.iter().map(|p| hider.push(Bytes::copy_from_slice(p)).to_vec()).collect();
        out.push(hider.finish().to_vec());
        (out, hider.hidden())
    }

    fn whole(text: &str) -> String {
        String::from_utf8(passed(&[text.as_bytes()]).0.concat()).unwrap()
    }

    #[test]
    fn one_event_goes_and_every_other_byte_stays() {
        for end in ["\n", "\r\n", "\r"] {
            let text = format!("data: a{end}{end}{USAGE}{end}{end}data: [DONE]{end}{end}");
            assert_eq!(whole(&text), format!("data: a{end}{end}data: [DONE]{end}{end}"), "{end:?}");
        }
        for event in [
            r#"data: {"choices":[{"delta":{"content":"x"}}],"usage":{"prompt_tokens":7}}"#,
            r#"data: {"choices":[],"usage":null}"#,
            r#"data: {"choices":[]}"#,
            r#"data: {"choices":[],"usage":{},"error":{"code":400}}"#,
            r#"data: {"choices":null,"usage":{}}"#,
            r#"data: {"usage":{"prompt_tokens":7}}"#,
            r#"data: {"x":{"choices":[],"usage":{}}}"#,
            r#"data: {"choices":[],"usage":{}"#,
            r#"data: "usage""#,
            r#": {"choices":[],"usage":{}}"#,
        ] {
            let text = format!("{event}\n\ndata: [DONE]\n\n");
            assert_eq!(whole(&text), text);
        }
        // other fields of the event go along with it, and a comment before it stays
        let text = format!(": ping\nid: 1\nevent: x\n{USAGE}\n\n");
        assert_eq!(whole(&text), ": ping\n");
        // an event without its end is none
        assert_eq!(whole(&format!("{USAGE}\n")), format!("{USAGE}\n"));
    }

    #[test]
    fn an_empty_piece_between_a_cr_and_its_lf_lets_no_part_of_a_hidden_event_pass() {
        let (out, hidden) = passed(&[USAGE.as_bytes(), b"\r\n\r", b"", b"\n", b": x"]);
        assert_eq!((out.concat(), hidden), (b": x".to_vec(), 1));
    }

    #[test]
    fn nothing_waits_but_an_event_without_its_end() {
        let (out, hidden) =
            passed(&[b"data: a\n\nda", b"ta: b\n\n", b": pi", b"ng\n", b"\n", USAGE.as_bytes(), b"\n\n"]);
        let out: Vec<&str> = out.iter().map(|piece| std::str::from_utf8(piece).unwrap()).collect();
        assert_eq!((out, hidden), (vec!["data: a\n\n", "data: b\n\n", ": pi", "ng\n", "\n", "", "", ""], 1));
        // a long one passes as it comes
        let long = vec![b'x'; MAX_HELD];
        let (out, _) = passed(&[b"data: ", &long, b"y", b"\n\n", b"data: a\n\n"]);
        assert_eq!(out.iter().map(Vec::len).collect::<Vec<_>>(), [0, MAX_HELD + 6, 1, 2, 9, 0]);
    }

    #[test]
    fn what_needs_no_look_is_not_copied() {
        let piece = Bytes::from_static(b"data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n");
        assert_eq!(Hider::default().push(piece.clone()).as_ptr(), piece.as_ptr());
    }

    proptest! {
        #[test]
        fn whatever_the_cuts_what_passes_is_the_stream_without_those_events(
            events in prop::collection::vec((0usize..7, prop::sample::select(vec!["\n", "\r\n", "\r"])), 0..8),
            cuts in prop::collection::vec(0usize..600, 0..30),
            tail in prop::sample::select(vec!["", "data: x", "data: {\"choices\":[],\"usage\":{}}", "\n", ":"]),
        ) {
            let (mut all, mut left) = (String::new(), String::new());
            for (kind, end) in events {
                let event = [
                    USAGE,
                    "data: {\"choices\":[],\ndata: \"usage\":{}}",
                    ": ping",
                    "data: {\"choices\":[{\"index\":0}],\"usage\":{}}",
                    "data: [DONE]",
                    "",
                    "event: x\ndata: {\"choices\":[],\"usage\":null}",
                ][kind].replace('\n', end);
                let event = if event.is_empty() { end.to_owned() } else { format!("{event}{end}{end}") };
                // a CR before an LF would be one line end
                if all.ends_with('\r') && event.starts_with('\n') {
                    continue;
                }
                all.push_str(&event);
                if kind > 1 {
                    left.push_str(&event);
                }
            }
            if !(all.ends_with('\r') && tail.starts_with('\n')) {
                all.push_str(tail);
                left.push_str(tail);
            }
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(all.len())).chain([0, all.len()]).collect();
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|w| &all.as_bytes()[w[0]..w[1]]).collect();
            let (out, _) = passed(&pieces);
            prop_assert_eq!(String::from_utf8(out.concat()).unwrap(), left);
        }
    }
}
