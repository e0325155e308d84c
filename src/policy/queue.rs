//! Who goes next when more is asked than may run: a bounded queue that is fair between sessions. Pure.
//!
//! - Within a session, first come, first served. Sessions take turns, so one with many requests does not starve others;
//!   a session that has just been served goes behind all that wait.
//! - Interactive requests go before batch requests, but one in [`EVERY`] is a batch request while both wait: batch work
//!   is slow then, never stuck.
//! - What comes free may not suit everybody (another model, the lane): whoever it does not suit keeps its place and its
//!   turn, and the next one that it suits goes.
//!
//! How long a client that is turned away should stay away follows from how fast requests end: see [`retry_after`].
//!
//! What is refused: weighing requests by their size (a turn of a long conversation is mostly cached, and its size says
//! little of its cost), and guessing whether a request can still be served in time.

use super::flight::Flight;
use super::select::{Decision, Reason};
use crate::types::Priority;
use std::collections::{BTreeMap, VecDeque};

/// While both classes wait, one of so many that go is a batch request.
pub const EVERY: u32 = 9;
/// Over how long ends of requests are averaged, in milliseconds.
const MEMORY_MS: f64 = 30_000.0;
/// What a queue's pace is taken to be before it was seen, as ends and milliseconds: one a second, soon forgotten.
const GUESS: (f64, f64) = (0.5, 500.0);
/// The longest that a client is told to stay away, in seconds.
const LONGEST_S: f64 = 60.0;

/// What tells a waiting request from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// Where a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Its class.
    pub priority: Priority,
    /// Its session, or what stands for one, hashed.
    pub session: u64,
}

/// Why a request is turned away. The names are metric labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shed {
    /// The queue is full.
    QueueFull,
    /// It has waited as long as it may.
    WaitedTooLong,
    /// The bodies that are held take all the memory that they may.
    NoMemory,
}

/// Waiting requests.
#[derive(Debug)]
pub struct FairQueue<T> {
    size: usize,
    next: u64,
    len: usize,
    classes: [Class<T>; Priority::ALL.len()],
    /// Interactive requests that went while batch requests waited, since the last one of those.
    ahead: u32,
}

#[derive(Debug)]
struct Class<T> {
    /// The sessions that wait, in the order of their turns; each once, and none without a request.
    turns: VecDeque<u64>,
    sessions: BTreeMap<u64, VecDeque<(Ticket, T)>>,
}

impl Shed {
    /// Every reason, in the order of the metric's label values.
    pub const ALL: [Shed; 3] = [Shed::QueueFull, Shed::WaitedTooLong, Shed::NoMemory];

    /// The label value.
    pub fn label(self) -> &'static str {
        match self {
            Shed::QueueFull => "queue_full",
            Shed::WaitedTooLong => "waited_too_long",
            Shed::NoMemory => "no_memory",
        }
    }
}

impl<T> FairQueue<T> {
    /// An empty queue that takes in at most `size` requests.
    pub fn new(size: usize) -> Self {
        let class = || Class { turns: VecDeque::new(), sessions: BTreeMap::new() };
        FairQueue { size, next: 0, len: 0, classes: [class(), class()], ahead: 0 }
    }

    /// Takes in at most `size` from now on. Nobody who waits is turned away for that.
    pub fn resize(&mut self, size: usize) {
        self.size = size;
    }

    /// Requests that wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Lets a request wait behind those of its session; `None` when the queue is full.
    pub fn push(&mut self, line: Line, item: T) -> Option<Ticket> {
        (self.len < self.size).then(|| self.enter(line, item, false))
    }

    /// Lets a request wait, before those of its session, that has had its turn once and needs another one. There is
    /// always room for it: who was let in is not turned away, and no more of them can come than were let in.
    pub fn push_again(&mut self, line: Line, item: T) -> Ticket {
        self.enter(line, item, true)
    }

    fn enter(&mut self, line: Line, item: T, first: bool) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        self.len += 1;
        let class = &mut self.classes[line.priority as usize];
        let waiting = class.sessions.entry(line.session).or_default();
        if waiting.is_empty() {
            class.turns.push_back(line.session);
        }
        if first {
            waiting.push_front((ticket, item));
        } else {
            waiting.push_back((ticket, item));
        }
        ticket
    }

    /// What waits under a ticket.
    pub fn get_mut(&mut self, line: Line, ticket: Ticket) -> Option<&mut T> {
        let waiting = self.classes[line.priority as usize].sessions.get_mut(&line.session)?;
        waiting.iter_mut().find(|(other, _)| *other == ticket).map(|(_, item)| item)
    }

    /// Takes out a request that does not wait any longer; `None` when its turn has come already.
    pub fn remove(&mut self, line: Line, ticket: Ticket) -> Option<T> {
        let class = &mut self.classes[line.priority as usize];
        let waiting = class.sessions.get(&line.session)?;
        let at = waiting.iter().position(|(other, _)| *other == ticket)?;
        self.len -= 1;
        let turn = if waiting.len() == 1 { class.turns.iter().position(|s| *s == line.session)? } else { 0 };
        class.take(turn, line.session, at, false)
    }

    /// The next request, among those that `suits` says could go.
    pub fn take(&mut self, mut suits: impl FnMut(&T) -> bool) -> Option<T> {
        let [interactive, batch] = &self.classes;
        let both = !interactive.turns.is_empty() && !batch.turns.is_empty();
        let order = if both && self.ahead + 1 >= EVERY { [1, 0] } else { [0, 1] };
        let (class, (turn, session, at)) =
            order.into_iter().find_map(|class| Some((class, self.classes[class].find(&mut suits)?)))?;
        self.ahead = if both && class == Priority::Interactive as usize { (self.ahead + 1).min(EVERY) } else { 0 };
        self.len -= 1;
        self.classes[class].take(turn, session, at, true)
    }
}

impl<T> Class<T> {
    /// The place in the order of turns, the session, and the place in it, of the next request that fits.
    fn find(&self, suits: &mut impl FnMut(&T) -> bool) -> Option<(usize, u64, usize)> {
        self.turns.iter().enumerate().find_map(|(turn, session)| {
            let at = self.sessions.get(session)?.iter().position(|(_, item)| suits(item))?;
            Some((turn, *session, at))
        })
    }

    /// Takes out a request. If it is `served`, its session goes behind the others; the last one's session goes.
    fn take(&mut self, turn: usize, session: u64, at: usize, served: bool) -> Option<T> {
        let waiting = self.sessions.get_mut(&session)?;
        let (_, item) = waiting.remove(at)?;
        let is_last = waiting.is_empty();
        if is_last {
            self.sessions.remove(&session);
        }
        if is_last || served {
            self.turns.remove(turn);
        }
        if served && !is_last {
            self.turns.push_back(session);
        }
        Some(item)
    }
}

/// The class of a request: what it asks for, if that is among those `allowed`; else the first of those.
pub fn class(asked: Option<&str>, allowed: &[Priority]) -> Priority {
    let asked = asked.and_then(|word| allowed.iter().find(|p| p.name().eq_ignore_ascii_case(word.trim())));
    *asked.or(allowed.first()).unwrap_or(&Priority::Interactive)
}

/// The first of a ranking is full, and those after it up to `place` are too: the one there goes first.
pub fn pass_over(decision: &mut Decision, place: usize) {
    let Some(passed) = decision.ranked.get_mut(..=place).filter(|_| place > 0) else { return };
    passed.rotate_right(1);
    decision.passed += place;
    let (first, best) = (passed[0].overlap, passed[1..].iter().map(|r| r.overlap).max());
    if matches!(decision.reason, Reason::Affinity | Reason::Hint) || best > Some(first) {
        decision.reason = Reason::Spill;
    }
    let id = passed[0].id;
    if let Some(hint) = &mut decision.hint {
        hint.stays &= hint.home == Some(id);
    }
    if decision.flight == Some(Flight::Follower) {
        decision.flight = Some(Flight::Apart);
    }
}

/// How fast requests end while others wait. When nobody waits, they end as fast as they come, which says nothing of how
/// fast a queue would go; so that time does not count, and old times fade.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Drain {
    at: f64,
    waits: bool,
    ends: f64,
    time: f64,
}

impl Drain {
    /// A request ended at `now`, in milliseconds on any clock.
    pub fn ended(&mut self, now: f64) {
        self.pass(now);
        if self.waits {
            self.ends += 1.0;
        }
    }

    /// From `now` on somebody waits, or nobody.
    pub fn waits(&mut self, now: f64, whether: bool) {
        self.pass(now);
        self.waits = whether;
    }

    /// Ends a second, at which a queue goes; about one, as long as there was none.
    pub fn per_second(&self, now: f64) -> f64 {
        let mut seen = *self;
        seen.pass(now);
        (seen.ends + GUESS.0) / (seen.time + GUESS.1) * 1000.0
    }

    fn pass(&mut self, now: f64) {
        if self.waits {
            let kept = (-(now - self.at).max(0.0) / MEMORY_MS).exp();
            self.ends *= kept;
            self.time = self.time * kept + MEMORY_MS * (1.0 - kept);
        }
        self.at = now;
    }
}

/// Whole seconds after which a client that is turned away may come again: the time until the `waiting` requests before it
/// are gone, at `per_second` of them, between 1 and 60.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped before it is cast; a queue's length fits a float"
)]
pub fn retry_after(waiting: usize, per_second: f64) -> u32 {
    let seconds = (waiting as f64 + 1.0) / per_second.max(f64::MIN_POSITIVE);
    seconds.ceil().clamp(1.0, LONGEST_S) as u32
}

#[cfg(test)]
mod tests;
