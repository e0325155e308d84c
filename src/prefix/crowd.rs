//! The sessions of a fleet: where each one was last, and how much those that live at a replica need of its cache. Pure.
//!
//! A cache is always full, mostly of what nobody will ask for again, so what it holds does not tell whether one more
//! session fits. What does is the sum of the sessions that will come back: each counts, with those tokens of its last
//! prompt that were not there before it came, at the replica of its last request, from then until it is unlikely to
//! return. How long that is, in requests of the whole fleet, is learned from those that do return.
//!
//! A session is told by the end of its last prompt, which its next one contains.

use super::fingerprint::{Ends, Place};
use super::halves::AsItIs;
use crate::pack::record;
use crate::types::ReplicaId;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;

/// The number of a claim, or of the end of a request: they are counted together.
pub type Number = u64;

/// The sessions by the end of their last prompt.
#[derive(Debug)]
pub struct Crowd {
    sessions: HashMap<u64, Session, BuildHasherDefault<AsItIs>>,
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
/// What their table has room for, from the start: twice as many as are in it, or it would grow again and again where it
/// need only be cleared of those that were taken out.
const ROOM: usize = 4 * MOST;
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
            sessions: HashMap::with_capacity_and_hasher(ROOM, BuildHasherDefault::default()),
            expected: VecDeque::with_capacity(MOST + 1),
            late: VecDeque::with_capacity(MOST + 1),
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
        self.sessions.get(&previous?.print).copied()
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
        let end = ends.previous.filter(|end| !self.sessions.contains_key(&end.print));
        if let (Some(end), Some(before)) = (end, before.filter(|b| b.is_expected)) {
            self.enter(&before);
            self.sessions.insert(end.print, before);
            self.expected.push_back((before.claim, end.print));
        }
    }

    /// The request of claim `claim`, whose prompt ended at `print`, is over, as event `number`.
    pub fn end(&mut self, print: u64, claim: Number, number: Number) {
        if let Some(session) = self.sessions.get_mut(&print).filter(|s| s.claim == claim) {
            session.used = number;
        }
    }

    /// Nobody lives at `replica` any more.
    pub fn forget(&mut self, replica: ReplicaId) {
        self.sessions.retain(|_, session| session.leave(replica));
        if let Some(at) = self.at.get_mut(replica.index()) {
            *at = Residents::default();
        }
    }

    /// What is handed over.
    pub fn state(&self) -> CrowdState {
        let sessions = self.sessions.iter().map(|(print, session)| (*print, *session)).collect();
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
        }
        if state.patience.is_finite() {
            self.patience = state.patience;
        }
    }

    /// Tokens of each session that is expected to return to `replica`.
    pub fn tokens_at(&self, replica: ReplicaId) -> impl Iterator<Item = f64> {
        self.sessions.values().filter(move |s| s.replica == replica && s.is_expected).map(|s| s.tokens)
    }

    /// Heap bytes, about: always the same.
    pub fn bytes(&self) -> usize {
        self.sessions.capacity() * (size_of::<(u64, Session)>() + 1)
            + (self.expected.capacity() + self.late.capacity()) * size_of::<(Number, u64)>()
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
            let Some(session) = self.sessions.get_mut(&print).filter(|s| s.claim == claim && s.is_expected) else {
                continue;
            };
            session.is_expected = false;
            let session = *session;
            self.exit(&session);
            self.late.push_back((claim, print));
        }
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
        if self.sessions.get(&print).is_some_and(|s| s.claim == claim) {
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
        let session = self.sessions.remove(&print)?;
        if session.is_expected {
            self.exit(&session);
        }
        Some(session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack;
    use proptest::prelude::*;

    const A: ReplicaId = ReplicaId(0);
    const B: ReplicaId = ReplicaId(1);

    /// A turn of a session: its prompt follows the one that ended at `before`.
    fn turn(before: u64, own: u64) -> Ends {
        let place = |print| Some(Place { print, blocks: 1 });
        Ends { previous: place(before).filter(|p| p.print > 0), own: place(own) }
    }

    fn residents(crowd: &Crowd, at: ReplicaId) -> (u32, f64) {
        let Residents { sessions, tokens } = crowd.residents(at);
        (sessions, tokens)
    }

    #[test]
    fn a_session_needs_what_it_brought_where_it_was_last_once_it_has_returned() {
        let mut crowd = Crowd::default();
        let _ = crowd.come(1, turn(0, 10), A, (5000.0, 2000.0));
        assert_eq!(residents(&crowd, A), (1, 0.0));
        let _ = crowd.come(2, turn(10, 11), A, (6000.0, 5000.0));
        assert_eq!(residents(&crowd, A), (1, 4000.0));
        crowd.end(11, 2, 3);
        let (before, now) = crowd.come(4, turn(11, 12), B, (7000.0, 0.0)).unwrap();
        assert_eq!((residents(&crowd, A), residents(&crowd, B)), ((0, 0.0), (1, 5000.0)));
        assert_eq!(before.and_then(|s| s.last_use(A)), Some(3));
        assert_eq!((now.last_use(A), now.last_use(B), now.last_use(ReplicaId(2))), (Some(3), Some(4), None));
    }

    #[test]
    fn who_does_not_return_is_not_counted_and_is_known_if_it_does_after_all() {
        let mut crowd = Crowd::default();
        let _ = crowd.come(1, turn(0, 10), A, (5000.0, 2000.0));
        let _ = crowd.come(2, turn(10, 11), A, (6000.0, 0.0));
        for n in 0..5000 {
            let _ = crowd.come(3 + n, turn(0, 100 + n), B, (100.0, 0.0));
        }
        assert_eq!(residents(&crowd, A), (0, 0.0));
        let (before, _) = crowd.come(6000, turn(11, 12), A, (7000.0, 6000.0)).unwrap();
        assert_eq!(before.map(|s| s.trunk), Some(2000.0));
        assert_eq!(residents(&crowd, A), (1, 5000.0));
    }

    #[test]
    fn a_request_that_failed_leaves_its_session_where_it_was() {
        let mut crowd = Crowd::default();
        let _ = crowd.come(1, turn(0, 10), A, (5000.0, 2000.0));
        let _ = crowd.come(2, turn(10, 11), A, (6000.0, 5000.0));
        let before = residents(&crowd, A);
        let (session, _) = crowd.come(3, turn(11, 12), B, (7000.0, 0.0)).unwrap();
        crowd.undo(3, turn(11, 12), session);
        assert_eq!((residents(&crowd, A), residents(&crowd, B)), (before, (0, 0.0)));
        assert_eq!(crowd.session(turn(11, 12).previous).map(|s| s.replica), Some(A));
    }

    #[test]
    fn the_next_process_knows_the_sessions_under_other_slots() {
        let mut crowd = Crowd::default();
        let _ = crowd.come(1, turn(0, 10), A, (5000.0, 2000.0));
        let _ = crowd.come(2, turn(10, 11), B, (6000.0, 5000.0));
        let _ = crowd.come(3, turn(0, 20), A, (700.0, 0.0));
        let state = pack::open::<CrowdState>(&pack::seal(&crowd.state())).unwrap();
        let mut next = Crowd::default();
        // A is gone
        next.restore(state, |old| (old == 1).then_some(A));
        assert_eq!(residents(&next, A), residents(&crowd, B));
        assert_eq!((next.session(turn(20, 0).previous), next.sessions.len()), (None, 1));
        let session = next.session(turn(11, 0).previous).unwrap();
        assert_eq!((session.last_use(A), session.earlier), (Some(2), [None; 2]));
        let (before, _) = next.come(4, turn(11, 12), A, (7000.0, 6000.0)).unwrap();
        assert_eq!(before, Some(session));
    }

    proptest! {
        #[test]
        fn what_is_counted_is_what_is_there_whatever_happens(
            ops in prop::collection::vec((0usize..12, 0u16..3, 0u8..4, 1u64..2000), 1..200),
        ) {
            let mut crowd = Crowd::default();
            let mut last = [0u64; 12];
            let mut number = 0;
            for (session, replica, what, skip) in ops {
                number += skip;
                let replica = ReplicaId(replica);
                let ends = turn(last[session], (session as u64) * 1_000_000 + number + 1);
                match what {
                    0 => crowd.forget(replica),
                    1 => if let Some((before, _)) = crowd.come(number, ends, replica, (900.0, 100.0)) {
                        crowd.undo(number, ends, before);
                    },
                    _ => {
                        let _ = crowd.come(number, ends, replica, (900.0, 100.0));
                        last[session] = ends.own.unwrap().print;
                    }
                }
                for id in (0..3).map(ReplicaId) {
                    let there = || crowd.sessions.values().filter(|s| s.replica == id && s.is_expected);
                    let tokens: f64 = there().map(Session::needs).sum();
                    prop_assert_eq!(residents(&crowd, id), (u32::try_from(there().count()).unwrap(), tokens));
                }
            }
        }
    }
}
