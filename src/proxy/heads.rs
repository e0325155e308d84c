//! What is decided about heads while Pingora reads them: how long one of HTTP/2 may take, and what a client is told
//! whose head of HTTP/1 Pingora refuses.
//!
//! Pingora bounds a head of HTTP/2 in size and in pieces, but not in time, and closes an idle connection only if no
//! request is running on it. So a client could hold a connection with half a head for as long as it liked. What such a
//! head holds back is the whole connection, since nothing may stand between its frames (RFC 9113, section 6.10), and
//! the whole connection ends with it; nginx does the same.
//!
//! A head of HTTP/1 that Pingora cannot read is answered by it with an empty 400 (CONNECT with an empty 405), before
//! any hook. Those bytes are exchanged on their way out. On HTTP/2 they cannot be, since they are frames in the state of
//! a whole connection: the library answers a head of more than 64 KiB with an empty 431 and resets the stream of a
//! malformed one as RFC 9113, section 8.1.1, has it, and Pingora refuses CONNECT as on HTTP/1.

use super::course::Course;
use super::front::LONGEST;
use super::wire::Listener;
use crate::api::errors::{Dialect, ErrorKind, METHODS};
use http::StatusCode;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep};

// === HTTP/1 ===

/// As much of a request as tells whose shape of errors its client reads.
const START: usize = 32;
/// A refused head of which so much has come was refused for its size: its beginning may have come while the answer before
/// it was on its way, and is not counted.
const LARGE: usize = LONGEST / 2;
/// A longer target cannot be read (`http::Uri`).
const LONGEST_TARGET: usize = 65_534;

/// Puts ramjet's errors in the place of Pingora's own.
#[derive(Debug)]
pub(super) struct Refusals {
    /// How far the request is. Once it is Pingora's no more, what is written is not Pingora's own.
    course: Arc<Course>,
    /// Whether it was so when something last came or went.
    was_begun: bool,
    /// Of the head that Pingora reads: its first bytes, and how many have come.
    start: Vec<u8>,
    length: usize,
    /// The length of its first line, and whether that has ended.
    first_line: (usize, bool),
    /// Whether the answer has been exchanged already.
    is_told: bool,
}

impl Refusals {
    /// Listens to a connection whose first bytes are `head`.
    pub(super) fn new(course: Arc<Course>, head: &[u8]) -> Self {
        let (start, first_line) = Default::default();
        let mut own = Refusals { course, was_begun: false, start, length: 0, first_line, is_told: false };
        own.note(head);
        own
    }

    fn note(&mut self, bytes: &[u8]) {
        let room = START - self.start.len();
        self.start.extend_from_slice(&bytes[..bytes.len().min(room)]);
        self.length += bytes.len();
        if let (length, false) = self.first_line {
            let end = memchr::memchr(b'\n', bytes);
            self.first_line = (length + end.unwrap_or(bytes.len()), end.is_some());
        }
    }

    /// What Pingora would say with `bytes`, in the words of the client.
    fn words(&self, bytes: &[u8]) -> ErrorKind {
        match bytes.get(9..12) {
            Some(b"405") => ErrorKind::MethodNotAllowed,
            _ if self.length > LARGE || self.first_line.0 > LONGEST_TARGET => ErrorKind::HeadTooLarge,
            _ => ErrorKind::BadRequest,
        }
    }
}

impl Listener for Refusals {
    fn came(&mut self, bytes: &[u8]) {
        if self.course.has_begun() {
            self.was_begun = true;
            return;
        }
        if std::mem::take(&mut self.was_begun) {
            self.start.clear();
            self.length = 0;
            self.first_line = (0, false);
        }
        self.note(bytes);
    }

    fn is_overdue(&mut self, _: &mut Context<'_>) -> bool {
        false
    }

    fn in_place_of(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        if self.course.has_begun() {
            self.was_begun = true;
            return None;
        }
        Some(if std::mem::replace(&mut self.is_told, true) {
            Vec::new()
        } else {
            refusal(self.words(bytes), &self.start)
        })
    }

    fn keeps_back(&self) -> bool {
        self.course.is_whole()
    }

    fn most(&self) -> usize {
        self.course.most()
    }
}

/// An answer in HTTP/1 to a request that begins with `start`.
pub(super) fn refusal(kind: ErrorKind, start: &[u8]) -> Vec<u8> {
    let target = start.split(|c| c.is_ascii_whitespace()).nth(1).unwrap_or_default();
    let path = target.split(|c| *c == b'?').next().unwrap_or_default();
    let body = kind.body(Dialect::of(&String::from_utf8_lossy(path)));
    let reason = StatusCode::from_u16(kind.status()).ok().and_then(|s| s.canonical_reason()).unwrap_or_default();
    let allow = if kind == ErrorKind::MethodNotAllowed { format!("allow: {METHODS}\r\n") } else { String::new() };
    format!(
        "HTTP/1.1 {} {reason}\r\ncontent-type: application/json\r\nx-ramjet-error: {}\r\n{allow}\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        kind.status(),
        kind.code(),
        body.len(),
    )
    .into_bytes()
}

// === HTTP/2 ===

/// Limits the time of heads, and of all frames but those of bodies, which have a limit of their own.
#[derive(Debug)]
pub(super) struct HeadClock {
    frames: Frames,
    patience: Duration,
    /// Runs while something is unfinished.
    clock: Option<Pin<Box<Sleep>>>,
}

impl HeadClock {
    /// For connections whose heads may each take as long as `patience`.
    pub(super) fn new(patience: Duration) -> Self {
        HeadClock { frames: Frames::new(), patience, clock: None }
    }
}

impl Listener for HeadClock {
    fn came(&mut self, bytes: &[u8]) {
        let has_ended = self.frames.push(bytes);
        match &mut self.clock {
            _ if !self.frames.is_unfinished() => self.clock = None,
            None => self.clock = Some(Box::pin(sleep(self.patience))),
            Some(clock) if has_ended => clock.as_mut().reset(Instant::now() + self.patience),
            Some(_) => {}
        }
    }

    fn is_overdue(&mut self, task: &mut Context<'_>) -> bool {
        self.clock.as_mut().is_some_and(|clock| clock.as_mut().poll(task).is_ready())
    }

    fn in_place_of(&mut self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }
}

/// The connection preface (RFC 9113, section 3.4) and the header of a frame (section 4.1), in bytes.
const PREFACE: usize = 24;
const FRAME_HEADER: usize = 9;
/// Types of frames (section 6) and the flag that ends a head.
const DATA: u8 = 0x0;
const HEADERS: u8 = 0x1;
const CONTINUATION: u8 = 0x9;
const END_HEADERS: u8 = 0x4;

/// Where the bytes of a client stand. It follows the lengths of frames and nothing else: what is wrong in them is found by
/// who reads them.
#[derive(Debug)]
struct Frames {
    header: [u8; FRAME_HEADER],
    /// Bytes of the header that are there.
    read: usize,
    /// Bytes of preface or payload that are still to come.
    left: usize,
    /// The payload belongs to a body.
    is_data: bool,
    /// A head has begun whose last frame has not.
    is_open: bool,
}

impl Frames {
    fn new() -> Self {
        Frames { header: [0; FRAME_HEADER], read: 0, left: PREFACE, is_data: false, is_open: false }
    }

    /// Goes on; returns whether a frame that ends a head, or belongs to none, has ended meanwhile.
    fn push(&mut self, mut bytes: &[u8]) -> bool {
        let mut has_ended = false;
        while !bytes.is_empty() {
            if self.left > 0 {
                let taken = self.left.min(bytes.len());
                self.left -= taken;
                bytes = &bytes[taken..];
            } else {
                let taken = (FRAME_HEADER - self.read).min(bytes.len());
                self.header[self.read..self.read + taken].copy_from_slice(&bytes[..taken]);
                self.read += taken;
                bytes = &bytes[taken..];
                if self.read == FRAME_HEADER {
                    self.begin();
                }
            }
            has_ended |= self.left == 0 && self.read == 0 && !self.is_open;
        }
        has_ended
    }

    /// The header of a frame is there.
    fn begin(&mut self) {
        let [a, b, c, kind, flags, ..] = self.header;
        self.read = 0;
        self.left = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        self.is_data = kind == DATA;
        self.is_open = matches!(kind, HEADERS | CONTINUATION) && flags & END_HEADERS == 0;
    }

    /// Whether something other than a body is there in part.
    fn is_unfinished(&self) -> bool {
        self.is_open || self.read > 0 || self.left > 0 && !self.is_data
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(kind: u8, flags: u8, length: u8) -> Vec<u8> {
        let mut out = vec![0, 0, length, kind, flags, 0, 0, 0, 1];
        out.resize(FRAME_HEADER + usize::from(length), 7);
        out
    }

    /// A connection's bytes, and where in them nothing but a body is unfinished.
    fn connection() -> (Vec<u8>, Vec<usize>) {
        let (mut bytes, mut whole) = (vec![b'P'; PREFACE], vec![PREFACE]);
        for (kind, flags, length) in [
            (0x4, 0, 6),
            (HEADERS, END_HEADERS, 20),
            (DATA, 0, 30),
            (HEADERS, 0, 10),
            (CONTINUATION, 0, 0),
            (CONTINUATION, END_HEADERS, 5),
            (0x6, 0, 8),
            (DATA, 1, 0),
        ] {
            let start = bytes.len();
            bytes.extend(frame(kind, flags, length));
            if kind == DATA {
                whole.extend(start + FRAME_HEADER..bytes.len());
            }
            let is_open = matches!(kind, HEADERS | CONTINUATION) && flags & END_HEADERS == 0;
            whole.extend(Some(bytes.len()).filter(|_| !is_open));
        }
        (bytes, whole)
    }

    #[test]
    fn all_but_bodies_is_unfinished_until_its_last_byte() {
        let (bytes, whole) = connection();
        for at in 1..=bytes.len() {
            let mut frames = Frames::new();
            frames.push(&bytes[..at]);
            assert_eq!(!frames.is_unfinished(), whole.contains(&at), "after {at} bytes");
        }
    }

    proptest! {
        #[test]
        fn the_pieces_do_not_matter(cuts in prop::collection::vec(0usize..140, 0..10)) {
            let (bytes, whole) = connection();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let mut frames = Frames::new();
            for pair in cuts.windows(2) {
                let has_ended = frames.push(&bytes[pair[0]..pair[1]]);
                prop_assert_eq!(!frames.is_unfinished(), whole.contains(&pair[1]));
                let ends = |at: &&usize| **at > pair[0] && **at <= pair[1];
                prop_assert!(!has_ended || whole.iter().any(|at| ends(&at)));
            }
            prop_assert!(!frames.is_unfinished());
        }

        #[test]
        fn no_bytes_are_too_odd(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut frames = Frames::new();
            for piece in bytes.chunks(5) {
                frames.push(piece);
            }
        }
    }

    #[test]
    fn a_refusal_is_worded_for_its_client() {
        for (start, member) in [
            ("POST /v1/messages HTTP/1.1", "type"),
            ("POST /v1/messages?beta=true HTTP", "type"),
            ("GET /x?/v1/messages HTT", "error"),
            ("\0\0", "error"),
        ] {
            let text = String::from_utf8(refusal(ErrorKind::BadRequest, start.as_bytes())).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with("HTTP/1.1 400 Bad Request\r\n") && head.contains(&format!("{}", body.len())));
            let body: serde_json::Value = serde_json::from_str(body).unwrap();
            assert!(body.as_object().unwrap().contains_key(member), "{start}");
        }
    }
}
