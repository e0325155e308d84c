//! An incremental reader of server-sent events: bytes in as they come, the data of complete events out.
//!
//! It looks at a stream beside the relay and owns no part of it. Lines may end in LF, CRLF or CR, be split anywhere,
//! and comments, other fields and a byte order mark are stepped over (WHATWG HTML, section 9.2). Bounded: an event
//! whose data is larger than [`MAX_EVENT`] is reported without its data.

use smallvec::SmallVec;

/// The most data of one event that is kept.
pub const MAX_EVENT: usize = 256 << 10;
/// The most of an unfinished line that is kept: one that is longer holds more data than an event may.
const MAX_LINE: usize = MAX_EVENT + b"data: ".len();
/// As much of an event's name as tells those apart that are told apart; longer ones are all content.
const MAX_NAME: usize = 32;

/// A complete event.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// Its data, lines joined by LF.
    Data(&'a [u8]),
    /// Its data was larger than [`MAX_EVENT`].
    TooLarge {
        /// What its `event` field says; empty without one.
        name: &'a [u8],
    },
}

/// The state between two pieces of a stream.
#[derive(Debug, Default)]
pub struct Scanner {
    line: Vec<u8>,
    data: Vec<u8>,
    /// The value of the `event` field, at most [`MAX_NAME`] bytes of it.
    name: SmallVec<[u8; MAX_NAME]>,
    has_data: bool,
    too_large: bool,
    /// The unfinished line is kept in part.
    line_cut: bool,
    /// A CR ended the last line: an LF that follows belongs to it.
    after_cr: bool,
    started: bool,
}

impl Scanner {
    /// Takes a piece of the stream; calls `event` for every event that it completes.
    pub fn push(&mut self, mut piece: &[u8], mut event: impl FnMut(Event<'_>)) {
        if self.after_cr && !piece.is_empty() {
            self.after_cr = false;
            piece = piece.strip_prefix(b"\n").unwrap_or(piece);
        }
        while let Some(end) = memchr::memchr2(b'\n', b'\r', piece) {
            let (line, ended) = (&piece[..end], piece[end]);
            piece = &piece[end + 1..];
            if ended == b'\r' {
                match piece.strip_prefix(b"\n") {
                    Some(rest) => piece = rest,
                    None => self.after_cr = piece.is_empty(),
                }
            }
            self.end_line(line, &mut event);
        }
        self.keep(piece);
    }

    fn end_line(&mut self, tail: &[u8], event: &mut impl FnMut(Event<'_>)) {
        if self.line.is_empty() {
            self.whole_line(tail, event);
        } else {
            self.keep(tail);
            let line = std::mem::take(&mut self.line);
            self.whole_line(&line, event);
            if !std::mem::take(&mut self.line_cut) {
                self.line = line;
                self.line.clear();
            }
        }
    }

    /// Keeps the unfinished part of a line; of one that grows too large, only its beginning.
    fn keep(&mut self, part: &[u8]) {
        let room = MAX_LINE.saturating_sub(self.line.len());
        self.line_cut |= part.len() > room;
        self.line.extend_from_slice(&part[..part.len().min(room)]);
    }

    fn whole_line(&mut self, line: &[u8], event: &mut impl FnMut(Event<'_>)) {
        let line = if std::mem::replace(&mut self.started, true) {
            line
        } else {
            line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line)
        };
        if line.is_empty() {
            return self.dispatch(event);
        }
        if let Some(name) = field(line, b"event") {
            self.name.clear();
            self.name.extend_from_slice(&name[..name.len().min(MAX_NAME)]);
        }
        let Some(value) = field(line, b"data") else { return };
        self.too_large |= self.line_cut || self.data.len() + 1 + value.len() > MAX_EVENT;
        if self.too_large {
            return;
        }
        if std::mem::replace(&mut self.has_data, true) {
            self.data.push(b'\n');
        }
        self.data.extend_from_slice(value);
    }

    fn dispatch(&mut self, event: &mut impl FnMut(Event<'_>)) {
        if std::mem::take(&mut self.too_large) {
            event(Event::TooLarge { name: &self.name });
            self.data = Vec::new();
        } else if self.has_data {
            event(Event::Data(&self.data));
        }
        self.has_data = false;
        self.data.clear();
        self.name.clear();
    }
}

/// The value of a line, if it is one of this field.
fn field<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let value = line.strip_prefix(name).filter(|rest| matches!(rest.first(), Some(b':') | None))?;
    let value = value.strip_prefix(b":").unwrap_or(value);
    Some(value.strip_prefix(b" ").unwrap_or(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn events(pieces: &[&[u8]]) -> Vec<Option<String>> {
        let mut scanner = Scanner::default();
        let mut out = Vec::new();
        for piece in pieces {
            scanner.push(piece, |e| {
                out.push(match e {
                    Event::Data(d) => Some(String::from_utf8_lossy(d).into_owned()),
                    Event::TooLarge { .. } => None,
                });
            });
        }
        out
    }

    fn data(list: &[&str]) -> Vec<Option<String>> {
        list.iter().map(|s| Some((*s).to_owned())).collect()
    }

    #[test]
    fn reads_every_line_ending_comments_and_joined_lines() {
        let text = b"\xef\xbb\xbfdata: a\n\n: keep-alive\n\ndata:b\r\ndata: c\r\n\r\nevent: x\rid: 7\rdata\r\rdatas: no\n\ndata:  two\n\n";
        assert_eq!(events(&[text]), data(&["a", "b\nc", "", " two"]));
    }

    #[test]
    fn an_unfinished_event_is_not_an_event() {
        assert_eq!(events(&[b"data: a\n"]), data(&[]));
        assert_eq!(events(&[b"data: a\n", b"\n"]), data(&["a"]));
    }

    #[test]
    fn an_event_over_the_bound_is_reported_without_its_data_and_the_next_is_read() {
        let big = vec![b'x'; MAX_EVENT + 1];
        assert_eq!(events(&[b"data: ", &big, b"\n\ndata: y\n\n"]), vec![None, Some("y".to_owned())]);
        let line = [b"data: ", &big[..MAX_EVENT / 2], b"\n"].concat();
        assert_eq!(events(&[&line, &line, &line, b"\n", b"data: y\n\n"]), vec![None, Some("y".to_owned())]);
    }

    #[test]
    fn an_event_at_the_bound_is_read_alike_in_one_piece_and_in_many() {
        for more in 0..3 {
            let line = [b"data: ", &vec![b'x'; MAX_EVENT - 2 + more][..], b"\n\n"].concat();
            let whole = events(&[&line]);
            assert_eq!(whole[0].is_some(), more < 2);
            assert!(whole == events(&[&line[..9], &line[9..]]), "{more}");
            assert!(whole == events(&line.chunks(1000).collect::<Vec<_>>()), "{more}");
        }
    }

    #[test]
    fn memory_is_bounded_whatever_comes() {
        let mut scanner = Scanner::default();
        for _ in 0..200_000 {
            scanner.push(b"data:\n", |_| ());
            scanner.push(b"data", |_| ());
            scanner.push(b": x\n", |_| ());
        }
        scanner.push(&vec![b':'; 3 * MAX_EVENT], |_| ());
        assert!(scanner.data.capacity() <= 2 * MAX_EVENT && scanner.line.capacity() <= 2 * MAX_EVENT);
    }

    #[test]
    fn a_large_comment_is_no_event() {
        let comment = [&[b':'][..], &vec![b'x'; 2 * MAX_EVENT], b"\n\ndata: y\n\n"].concat();
        assert_eq!(events(&[&comment]), data(&["y"]));
        assert_eq!(events(&[&comment[..MAX_EVENT], &comment[MAX_EVENT..]]), data(&["y"]));
    }

    proptest! {
        #[test]
        fn the_cut_into_pieces_does_not_matter(
            text in "((data|event|:|id)?:? ?[a-z]{0,4}(\n|\r\n|\r)){0,12}", cuts in prop::collection::vec(0usize..80, 0..20),
        ) {
            let text = text.as_bytes();
            let mut cuts: Vec<_> = cuts.into_iter().map(|c| c.min(text.len())).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<_> = cuts.windows(2).map(|w| &text[w[0]..w[1]]).collect();
            prop_assert_eq!(events(&pieces), events(&[text]));
        }
    }
}
