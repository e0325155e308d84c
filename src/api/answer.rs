//! What an answer tells: the first generated token, the end, a failure, how many tokens were read and cached, and the id
//! under which the engine keeps it.
//!
//! Engines differ in where they put things; whatever is found is taken, and what is absent stays unknown. Cached
//! tokens that are not reported are *unknown*, not zero.

mod event;
mod figures;
mod made;

use super::json::{Cursor, Kind};
use super::sse::{Event, Scanner};
use event::event;
use figures::{Figures, timings};
use memchr::memmem::Finder;
use std::sync::LazyLock;

pub use made::{Made, made};

/// Tokens as an engine reported them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens, cached ones included.
    pub prompt: Option<u64>,
    /// Prompt tokens that came from the prefix cache.
    pub cached: Option<u64>,
    /// Generated tokens.
    pub completion: Option<u64>,
    /// Of these, reasoning.
    pub reasoning: Option<u64>,
}

/// How far a streamed answer has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamState {
    /// Something was generated.
    pub generated: bool,
    /// A finish reason, `[DONE]`, or the last event of a protocol that has one was seen.
    pub finished: bool,
    /// An error event was seen; a `[DONE]` after it does not heal it.
    pub failed: bool,
    /// The last of those was the client's fault.
    pub refused: bool,
    /// Something was generated, or the end came, in the last piece: comments and empty events are no progress.
    pub progressed: bool,
    /// There were events, and none of them was of a protocol that is known: when it ends nobody can tell.
    pub foreign: bool,
    /// What was reported.
    pub usage: Usage,
}

/// Reads a streamed answer beside its relay.
#[derive(Debug, Default)]
pub struct StreamReader {
    scanner: Scanner,
    seen: Seen,
}

/// What the events so far have said.
#[derive(Debug, Default)]
struct Seen {
    state: StreamState,
    /// Kept apart: what `usage` says goes before what the timings say.
    usage: Figures,
    timings: Usage,
    id: Id,
    /// There was an event, and one of a known protocol.
    events: bool,
    known: bool,
}

/// The id of a kept answer, if that is wanted.
#[derive(Debug, Default)]
enum Id {
    #[default]
    Unwanted,
    Wanted,
    Known(Vec<u8>),
    Taken,
}

/// The most of a whole (not streamed) answer that is kept for reading: its last bytes, where usage stands.
pub const MAX_WHOLE: usize = 64 << 10;
/// The most of its first bytes that is kept where its id is wanted, which engines write first.
const MAX_HEAD: usize = 4 << 10;
/// No engine gives out a longer id.
const MAX_ID: usize = 256;

/// Keys that are looked for in whole answers.
static USAGE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"usage\""));
static META_INFO: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"meta_info\""));
static TIMINGS: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"timings\""));

/// Reads a whole answer beside its relay: keeps the last [`MAX_WHOLE`] bytes, and few of the first.
#[derive(Debug, Default)]
pub struct WholeReader {
    head: Vec<u8>,
    tail: Vec<u8>,
    /// The members whose ids are wanted.
    wanted: &'static [&'static str],
}

// === impl StreamReader ===

impl StreamReader {
    /// A reader that also looks for the id of the answer.
    pub fn with_id() -> Self {
        StreamReader { seen: Seen { id: Id::Wanted, ..Seen::default() }, ..Self::default() }
    }

    /// Takes a piece of the stream in; returns the state after it.
    pub fn push(&mut self, piece: &[u8]) -> StreamState {
        let Self { scanner, seen } = self;
        let (generated, finished) = (std::mem::take(&mut seen.state.generated), seen.state.finished);
        scanner.push(piece, |e| match e {
            Event::Data(b"[DONE]") => seen.state.finished = true,
            Event::TooLarge { name } => {
                seen.known = true;
                event::too_large(name, &mut seen.state);
            }
            Event::Data(data) => {
                seen.events = true;
                // text that cannot be read is relayed all the same; it only tells nothing
                let _unreadable = event(data, seen);
            }
        });
        seen.state.progressed = seen.state.generated || seen.state.finished && !finished;
        seen.state.generated |= generated;
        seen.state.foreign = seen.events && !seen.known;
        seen.state.usage = seen.usage.usage().or(seen.timings);
        seen.state
    }

    /// The id of the answer, once, when it is known.
    pub fn take_id(&mut self) -> Option<Vec<u8>> {
        if !matches!(self.seen.id, Id::Known(_)) {
            return None;
        }
        match std::mem::replace(&mut self.seen.id, Id::Taken) {
            Id::Known(id) => Some(id),
            _ => None,
        }
    }
}

impl Usage {
    /// These figures, where unknown those of `other`.
    fn or(self, other: Usage) -> Usage {
        Usage {
            prompt: self.prompt.or(other.prompt),
            cached: self.cached.or(other.cached),
            completion: self.completion.or(other.completion),
            reasoning: self.reasoning.or(other.reasoning),
        }
    }
}

// === impl WholeReader ===

impl WholeReader {
    /// A reader that also looks for the ids that are the values of these members.
    pub fn with_ids(wanted: &'static [&'static str]) -> Self {
        WholeReader { wanted, ..Self::default() }
    }

    /// Takes a piece of the body in.
    pub fn push(&mut self, piece: &[u8]) {
        if !self.wanted.is_empty() {
            let room = MAX_HEAD - self.head.len();
            self.head.extend_from_slice(&piece[..piece.len().min(room)]);
        }
        let piece = &piece[piece.len().saturating_sub(MAX_WHOLE)..];
        let surplus = (self.tail.len() + piece.len()).saturating_sub(MAX_WHOLE);
        self.tail.drain(..surplus);
        self.tail.extend_from_slice(piece);
    }

    /// What the body reported; the last `usage` and `timings` in the kept tail count, SGLang's `meta_info` where there is
    /// no `usage`.
    pub fn usage(&self) -> Usage {
        let (mut by_usage, mut by_timings) = (Figures::default(), Usage::default());
        // text that cannot be read tells nothing
        let figures = self.last(&USAGE).or_else(|| self.last(&META_INFO));
        let _unreadable = figures.map(|mut value| by_usage.read(&mut value));
        let _unreadable = self.last(&TIMINGS).map(|mut value| timings(&mut value, &mut by_timings));
        by_usage.usage().or(by_timings)
    }

    /// The ids that are wanted: of a body that is kept in full wherever they stand, else if they stand near the beginning.
    pub fn ids(&self) -> Vec<Vec<u8>> {
        if self.wanted.is_empty() {
            return Vec::new();
        }
        let is_all = self.tail.len() < MAX_WHOLE;
        let mut ids = vec![Vec::new(); self.wanted.len()];
        // the head may end in the middle of a member: what stands before it was read
        let _cut = Cursor::new(if is_all { &self.tail } else { &self.head }).object(|key, value| {
            match key.position(self.wanted) {
                Some(n) if value.kind()? == Kind::String => ids[n] = value.string()?.bytes().into_owned(),
                _ => drop(value.skip()?),
            }
            Ok(())
        });
        ids.retain(|id| is_id(id));
        ids
    }

    /// What it shows of a completion; of a body that is not kept in full, nothing.
    pub fn made(&self) -> Made {
        if self.tail.len() < MAX_WHOLE { made(&self.tail) } else { Made::Untold }
    }

    /// The value after the last `key`. (Within a string the quotes of a key would be escaped.)
    fn last(&self, key: &Finder<'_>) -> Option<Cursor<'_>> {
        // forwards: many bytes are looked at together, backwards one by one
        let at = key.find_iter(&self.tail).last()?;
        self.tail[at + key.needle().len()..].trim_ascii_start().strip_prefix(b":").map(Cursor::new)
    }
}

fn is_id(text: &[u8]) -> bool {
    !text.is_empty() && text.len() <= MAX_ID
}

#[cfg(test)]
mod tests;
