//! The sessions of a fleet: where each one was last, and how much those that live at a replica need of its cache. Pure.
//!
//! A cache is always full, mostly of what nobody will ask for again, so what it holds does not tell whether one more
//! session fits. What does is the sum of the sessions that will come back: each counts, with those tokens of its last
//! prompt that were not there before it came, at the replica of its last request, from then until it is unlikely to
//! return. How long that is, in requests of the whole fleet, is learned from those that do return.
//!
//! A session is told by the end of its last prompt, which its next one contains.

use super::dense::Dense;
use super::fingerprint::{Ends, Place};
use crate::pack::record;
use crate::types::ReplicaId;
use std::collections::VecDeque;

/// The number of a claim, or of the end of a request: they are counted together.
pub type Number = u64;

/// The sessions by the end of their last prompt.
#[derive(Debug)]
pub struct Crowd {
    sessions: Dense<Session>,
    /// Claims and the ends of their prompts, oldest first; what was followed by another turn is void.
    expected: VecDeque<(Number, u64)>,
    /// The same of those that are not expected to return.
    late: VecDeque<(Number, u64)>,
    /// By replica.
    at: Vec<Residents>,
    /// Requests of the fleet within which nearly all sessions that return have returned.
    patience: f64,
}

/// The sessions that are expected to return to a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Residents {
    /// How many there are.
    pub sessions: u32,
    /// Tokens that those of them need which have returned before: many prompts are the only ones of their kind.
    pub tokens: f64,
}

/// A session after its last request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Session {
    /// Where that went.
    pub replica: ReplicaId,
    /// Tokens that it needs there.
    pub tokens: f64,
    /// Tokens of its prompts that were there before it.
    pub trunk: f64,
    /// Its last use: the number of the claim, or of the end, of that request.
    used: Number,
    /// Where it was before, and when last.
    earlier: [Option<(ReplicaId, Number)>; 2],
    claim: Number,
    /// Whether it is counted at its replica.
    is_expected: bool,
    /// Whether it has returned before.
    returns: bool,
}

record!(Session { replica, tokens, trunk, used, earlier, claim, is_expected, returns });

/// What is handed to the next process: the sessions by the end of their last prompt.
#[derive(Clone, Debug, Default)]
pub struct CrowdState {
    sessions: Vec<(u64, Session)>,
    patience: f64,
}
record!(CrowdState { sessions, patience });

/// Sessions of each kind that are remembered.
const MOST: usize = 7 << 12;
/// Those of one kind that may be there for a moment besides.
const MORE: usize = 64;
/// A session is not expected any more after so many times the requests within which nearly all return.
const GONE: f64 = 3.0;
/// One in so many returns later than "nearly all".
const LATE: f64 = 50.0;
/// How much one return changes what is believed of all.
const GAIN: f64 = 0.04;
/// The requests within which sessions return, before any has.
const START: f64 = 1000.0;

impl Default for Crowd {
    fn default() -> Self {
        Crowd {
            sessions: Dense::with_room(2 * (MOST + MORE), 4 * MOST),
            expected: VecDeque::with_capacity(MOST + MORE),
            late: VecDeque::with_capacity(MOST + MORE),
            at: Vec::new(),
            patience: START,
        }
    }
}

impl Session {
    /// Whether it is counted at its replica.
    pub fn is_expected(&self) -> bool {
        self.is_expected
    }

    /// Tokens that it needs where it is.
    pub fn needs(&self) -> f64 {
        if self.returns { self.tokens } else { 0.0 }
    }

    /// When it was last at `replica`, if it was.
    pub fn last_use(&self, replica: ReplicaId) -> Option<Number> {
        let earlier = || self.earlier.iter().flatten().find(|(at, _)| *at == replica).map(|(_, used)| *used);
        if self.replica == replica { Some(self.used) } else { earlier() }
    }

    /// Nothing is left of it at `replica`; whether it is still known where it is.
    pub fn leave(&mut self, replica: ReplicaId) -> bool {
        for stay in self.earlier.iter_mut().filter(|stay| stay.is_some_and(|(at, _)| at == replica)) {
            *stay = None;
        }
        self.replica != replica
    }

    /// Where else it was before it goes to `replica`.
    fn stays_besides(&self, replica: ReplicaId) -> [Option<(ReplicaId, Number)>; 2] {
        let all = std::iter::once((self.replica, self.used)).chain(self.earlier.into_iter().flatten());
        let mut others = all.filter(|(at, _)| *at != replica);
        [others.next(), others.next()]
    }
}

impl Crowd {
    /// The session whose last prompt ended there.
    pub fn session(&self, previous: Option<Place>) -> Option<Session> {
        self.sessions.get(previous?.print).copied()
    }

    /// The sessions that are expected to return to `replica`.
    pub fn residents(&self, replica: ReplicaId) -> Residents {
        self.at.get(replica.index()).copied().unwrap_or_default()
    }

    /// Claim `number` sends a prompt of `prompt` tokens to `replica`, which knew `known` of them. Returns the session
    /// before and after it; `None` where the end of the prompt is not known.
    pub fn come(
        &mut self,
        number: Number,
        ends: Ends,
        replica: ReplicaId,
        (prompt, known): (f64, f64),
    ) -> Option<(Option<Session>, Session)> {
        self.expire(number);
        let before = ends.previous.and_then(|end| self.take(end.print));
        if let Some(before) = before {
            self.learn(number - before.claim);
        }
        let own = ends.own?;
        // the same prompt again
        let before = self.take(own.print).or(before);
        let trunk = before.map_or(known, |before| before.trunk);
        let session = Session {
            replica,
            tokens: (prompt - trunk).max(0.0),
            trunk,
            used: number,
            earlier: before.map_or([None; 2], |before| before.stays_besides(replica)),
            claim: number,
            is_expected: true,
            returns: before.is_some(),
        };
        self.enter(&session);
        self.sessions.insert(own.print, session);
        self.expected.push_back((number, own.print));
        Some((before, session))
    }

    /// Claim `number` came to nothing: the session is again what it was before.
    pub fn undo(&mut self, number: Number, ends: Ends, before: Option<Session>) {
        if let Some(own) = ends.own {
            self.drop_if_same((number, own.print));
        }
        let end = ends.previous.filter(|end| self.sessions.get(end.print).is_none());
        if let (Some(end), Some(before)) = (end, before.filter(|b| b.is_expected)) {
            self.enter(&before);
            self.sessions.insert(end.print, before);
            self.expected.push_back((before.claim, end.print));
            self.trim();
        }
    }

    /// The request of claim `claim`, whose prompt ended at `print`, is over, as event `number`.
    pub fn end(&mut self, print: u64, claim: Number, number: Number) {
        if let Some(session) = self.sessions.get_mut(print).filter(|s| s.claim == claim) {
            session.used = number;
        }
    }

    /// Nobody lives at `replica` any more.
    pub fn forget(&mut self, replica: ReplicaId) {
        self.sessions.retain(|session| session.leave(replica));
        if let Some(at) = self.at.get_mut(replica.index()) {
            *at = Residents::default();
        }
    }

    /// What is handed over.
    pub fn state(&self) -> CrowdState {
        let sessions = self.sessions.iter().copied().collect();
        CrowdState { sessions, patience: self.patience }
    }

    /// Takes in what another process knew, `slot` telling whom a slot of it is now. Into an empty crowd.
    pub fn restore(&mut self, state: CrowdState, slot: impl Fn(usize) -> Option<ReplicaId>) {
        let mut sessions = state.sessions;
        sessions.sort_unstable_by_key(|(print, session)| (session.claim, *print));
        for (print, mut session) in sessions {
            let Some(replica) = slot(session.replica.index()) else { continue };
            session.replica = replica;
            session.earlier = session.earlier.map(|stay| stay.and_then(|(at, used)| Some((slot(at.index())?, used))));
            if session.is_expected {
                self.enter(&session);
                self.expected.push_back((session.claim, print));
            } else {
                self.late.push_back((session.claim, print));
            }
            self.sessions.insert(print, session);
            self.trim();
        }
        if state.patience.is_finite() {
            self.patience = state.patience;
        }
    }

    /// Tokens of each session that is expected to return to `replica`.
    pub fn tokens_at(&self, replica: ReplicaId) -> impl Iterator<Item = f64> {
        let there = move |s: &Session| s.replica == replica && s.is_expected;
        self.sessions.iter().filter(move |(_, s)| there(s)).map(|(_, s)| s.tokens)
    }

    /// Bytes of sessions that were ever written.
    pub fn written(&self) -> usize {
        self.sessions.written()
    }

    /// Heap bytes that are reserved: always the same.
    pub fn bytes(&self) -> usize {
        self.sessions.bytes() + (self.expected.capacity() + self.late.capacity()) * size_of::<(Number, u64)>()
    }

    /// Follows a high quantile of the gaps between the requests of a session.
    #[expect(clippy::cast_precision_loss, reason = "requests are far fewer than 2^52")]
    fn learn(&mut self, gap: Number) {
        let up = if gap as f64 > self.patience { 1.0 - 1.0 / LATE } else { -1.0 / LATE };
        self.patience *= 1.0 + GAIN * up;
    }

    #[expect(clippy::cast_precision_loss, reason = "requests are far fewer than 2^52")]
    fn expire(&mut self, now: Number) {
        let patience = GONE * self.patience;
        let is_late = |claim: Number| (now - claim) as f64 > patience;
        while let Some((claim, print)) = self.expected.front().copied().filter(|(claim, _)| is_late(*claim)) {
            self.expected.pop_front();
            let Some(session) = self.sessions.get_mut(print).filter(|s| s.claim == claim && s.is_expected) else {
                continue;
            };
            session.is_expected = false;
            let session = *session;
            self.exit(&session);
            self.late.push_back((claim, print));
        }
        self.trim();
    }

    /// No more are remembered than may be.
    fn trim(&mut self) {
        while self.expected.len() > MOST
            && let Some(oldest) = self.expected.pop_front()
        {
            self.drop_if_same(oldest);
        }
        while self.late.len() > MOST
            && let Some(oldest) = self.late.pop_front()
        {
            self.drop_if_same(oldest);
        }
    }

    fn drop_if_same(&mut self, (claim, print): (Number, u64)) {
        if self.sessions.get(print).is_some_and(|s| s.claim == claim) {
            self.take(print);
        }
    }

    fn enter(&mut self, session: &Session) {
        if self.at.len() <= session.replica.index() {
            self.at.resize(session.replica.index() + 1, Residents::default());
        }
        let at = &mut self.at[session.replica.index()];
        at.sessions += 1;
        at.tokens += session.needs();
    }

    fn exit(&mut self, session: &Session) {
        if let Some(at) = self.at.get_mut(session.replica.index()) {
            at.sessions -= 1;
            // what is left of rounding must not add up
            at.tokens = if at.sessions == 0 { 0.0 } else { at.tokens - session.needs() };
        }
    }

    fn take(&mut self, print: u64) -> Option<Session> {
        let session = self.sessions.remove(print)?;
        if session.is_expected {
            self.exit(&session);
        }
        Some(session)
    }
}

#[cfg(test)]
mod tests;
