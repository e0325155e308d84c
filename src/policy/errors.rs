//! Whether requests fail at a replica: a circuit breaker over what real requests met, driven by values.
//!
//! Within a window, `failures` different requests must have failed, and at least half of what ended there, or all that
//! ended since the first of them: an engine that worked until a moment ago is not owed as many failures. A request that is
//! sent again and again counts once: what kills every engine that reads it must not fence them all. After a pause the
//! replica is on *trial*: it gets few requests at a time, and either some of them end well, or one fails and the next
//! pause is twice as long. What began before the trial says nothing in it.
//!
//! Refused: to count what says *busy* (429, 503) or what a client did wrong (4xx). Whoever calls does not report those.

use crate::pack::{Pack, record};
use std::collections::VecDeque;

/// The most requests that a replica on trial has at a time.
pub const TRIALS: u32 = 2;
/// The most outcomes that are remembered.
const MEMORY: usize = 128;
/// The longest pause, as a multiple of the first.
const LONGEST: f64 = 32.0;

/// When a replica is fenced and when it is tried again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ErrorLimits {
    /// How far back outcomes count, in milliseconds.
    pub window_ms: f64,
    /// Different failed requests that fence.
    pub failures: usize,
    /// From the fence to the trial, in milliseconds.
    pub pause_ms: f64,
    /// Requests that must end well on trial.
    pub successes: u32,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With its answer, for which something was generated.
    Well,
    /// With another answer: its engine is there.
    Answered,
    /// By the engine's fault. What the engine has read is named by a hash; `None`: it read nothing, so that the request
    /// cannot be the cause.
    Badly(Option<u64>),
}

/// What the requests at one replica have met.
#[derive(Clone, Debug, Default)]
pub struct Errors {
    recent: VecDeque<(f64, Ended)>,
    /// When there were other answers: apart, as they may be many more than what they must not drive out.
    answered: VecDeque<f64>,
    state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum State {
    #[default]
    Trusted,
    Fenced {
        until: f64,
        pause: f64,
        by: Cause,
    },
    Trial {
        since: f64,
        pause: f64,
        by: Cause,
        good: u32,
    },
}

/// What it is fenced or on trial for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cause {
    /// It could not be reached.
    Unreached,
    /// It failed what it had read.
    Failed,
}

record!(Errors { recent, answered, state });

impl Pack for Ended {
    fn pack(&self, out: &mut Vec<u8>) {
        match *self {
            Ended::Well => (0u8, None),
            Ended::Answered => (1, None),
            Ended::Badly(print) => (2, print),
        }
        .pack(out);
    }

    fn unpack(from: &mut &[u8]) -> Option<Self> {
        match <(u8, Option<u64>)>::unpack(from)? {
            (0, _) => Some(Ended::Well),
            (1, _) => Some(Ended::Answered),
            (2, print) => Some(Ended::Badly(print)),
            _ => None,
        }
    }
}

impl Pack for Cause {
    fn pack(&self, out: &mut Vec<u8>) {
        (*self == Cause::Unreached).pack(out);
    }

    fn unpack(from: &mut &[u8]) -> Option<Self> {
        Some(if bool::unpack(from)? { Cause::Unreached } else { Cause::Failed })
    }
}

impl Pack for State {
    fn pack(&self, out: &mut Vec<u8>) {
        match *self {
            State::Trusted => (0u8, (0.0, 0.0), (Cause::Failed, 0)),
            State::Fenced { until, pause, by } => (1, (until, pause), (by, 0)),
            State::Trial { since, pause, by, good } => (2, (since, pause), (by, good)),
        }
        .pack(out);
    }

    fn unpack(from: &mut &[u8]) -> Option<Self> {
        let (kind, (at, pause), (by, good)) = <(u8, (f64, f64), (Cause, u32))>::unpack(from)?;
        match kind {
            0 => Some(State::Trusted),
            1 => Some(State::Fenced { until: at, pause, by }),
            2 => Some(State::Trial { since: at, pause, by, good }),
            _ => None,
        }
    }
}

impl Errors {
    /// Whether new requests are kept away.
    pub fn is_fenced(&self) -> bool {
        matches!(self.state, State::Fenced { .. })
    }

    /// Whether it gets few requests, to see how they end.
    pub fn is_on_trial(&self) -> bool {
        matches!(self.state, State::Trial { .. })
    }

    /// A request ended at `now` that had begun at `began`, both in milliseconds. A fence is raised only if `may_fence`
    /// says so, which is asked when everything else speaks for it.
    pub fn on(&mut self, ended: Ended, began: f64, now: f64, limits: ErrorLimits, may_fence: impl FnOnce() -> bool) {
        match (self.state, ended) {
            (State::Fenced { .. }, _) => {}
            (State::Trial { since, .. }, _) if began < since => {}
            (State::Trial { by: Cause::Failed, .. }, Ended::Answered) => {}
            (State::Trial { since, pause, by, good }, Ended::Well | Ended::Answered) => {
                let good = good + 1;
                self.state = State::Trial { since, pause, by, good };
                if good >= limits.successes {
                    self.state = State::Trusted;
                }
            }
            (State::Trial { pause, by, .. }, Ended::Badly(print)) => {
                if may_fence() {
                    let pause = (2.0 * pause).min(LONGEST * limits.pause_ms);
                    let by = if print.is_some() { Cause::Failed } else { by };
                    self.state = State::Fenced { until: now + pause, pause, by };
                }
            }
            (State::Trusted, Ended::Badly(_)) => {
                self.remember(ended, now, limits);
                let Some(by) = self.cause(limits) else { return };
                if may_fence() {
                    self.state = State::Fenced { until: now + limits.pause_ms, pause: limits.pause_ms, by };
                }
                // whether or not, it begins anew, so that who may not is not asked at every failure
                self.recent.clear();
            }
            (State::Trusted, _) => self.remember(ended, now, limits),
        }
    }

    /// The pause may be over.
    pub fn tick(&mut self, now: f64) {
        if let State::Fenced { until, pause, by } = self.state
            && now >= until
        {
            self.state = State::Trial { since: now, pause, by, good: 0 };
        }
    }

    fn remember(&mut self, ended: Ended, now: f64, limits: ErrorLimits) {
        let is_old = |at: f64| now - at > limits.window_ms;
        while self.recent.front().is_some_and(|(at, _)| is_old(*at)) || self.recent.len() >= MEMORY {
            self.recent.pop_front();
        }
        while self.answered.front().is_some_and(|at| is_old(*at)) || self.answered.len() >= MEMORY {
            self.answered.pop_front();
        }
        match ended {
            Ended::Answered => self.answered.push_back(now),
            _ => self.recent.push_back((now, ended)),
        }
    }

    /// What it is to be fenced for, if what has been seen suffices.
    fn cause(&self, limits: ErrorLimits) -> Option<Cause> {
        let all = Failures::among(self.recent.iter());
        let since_one_was_well = Failures::among(self.recent.iter().rev().take_while(|(_, e)| *e != Ended::Well));
        let good = self.recent.iter().filter(|(_, ended)| *ended == Ended::Well).count();
        // who mostly answers is there, whatever becomes of what is to be generated
        let is_there = self.answered.len() > all.unreached;
        let different = |of: &Failures| of.named.len() + if is_there { 0 } else { of.unreached };
        let is_bad = different(&since_one_was_well) >= limits.failures
            || (different(&all) >= limits.failures && different(&all) >= good);
        // one that restarts breaks some answers, and takes no connections for a while
        let by = if all.named.len() > all.unreached { Cause::Failed } else { Cause::Unreached };
        is_bad.then_some(by)
    }
}

/// Failed requests among some.
#[derive(Debug, Default)]
struct Failures {
    /// Different ones that the engine has read.
    named: Vec<u64>,
    /// Those that it has not: all are different.
    unreached: usize,
}

impl Failures {
    fn among<'a>(outcomes: impl Iterator<Item = &'a (f64, Ended)>) -> Self {
        let mut all = Failures::default();
        for (_, ended) in outcomes {
            match ended {
                Ended::Badly(Some(print)) if all.named.contains(print) => {}
                Ended::Badly(Some(print)) => all.named.push(*print),
                Ended::Badly(None) => all.unreached += 1,
                Ended::Well | Ended::Answered => {}
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const L: ErrorLimits = ErrorLimits { window_ms: 1000.0, failures: 3, pause_ms: 100.0, successes: 2 };

    fn fail(e: &mut Errors, print: u64, now: f64) {
        e.on(Ended::Badly(Some(print)), now, now, L, || true);
    }

    fn fenced() -> Errors {
        let mut e = Errors::default();
        (0..3).for_each(|n| fail(&mut e, n, 10.0));
        assert!(e.is_fenced());
        e
    }

    #[test]
    fn different_failures_fence_within_the_window_only() {
        let mut e = Errors::default();
        for n in 0..20u8 {
            fail(&mut e, n.into(), f64::from(n) * 600.0);
            assert!(!e.is_fenced(), "{n}");
        }
        fail(&mut e, 30, 19.0 * 600.0 + 1.0);
        assert!(e.is_fenced());
    }

    #[test]
    fn what_mostly_works_is_not_fenced() {
        let mut e = Errors::default();
        for n in 0..60 {
            match n % 3 {
                0 => fail(&mut e, n, 10.0),
                _ => e.on(Ended::Well, 10.0, 10.0, L, || true),
            }
        }
        // the first few outcomes are too few to tell, and later ones mostly good
        assert!(!e.is_fenced());
    }

    #[test]
    fn what_fails_from_one_moment_on_is_fenced_however_well_it_worked() {
        let mut e = Errors::default();
        (0..100).for_each(|_| e.on(Ended::Well, 10.0, 10.0, L, || true));
        fail(&mut e, 1, 11.0);
        fail(&mut e, 2, 12.0);
        e.on(Ended::Well, 11.0, 12.0, L, || true);
        fail(&mut e, 3, 13.0);
        fail(&mut e, 3, 13.0);
        fail(&mut e, 4, 14.0);
        assert!(!e.is_fenced());
        fail(&mut e, 5, 15.0);
        assert!(e.is_fenced());
    }

    #[test]
    fn a_trial_ends_well_or_with_a_longer_pause() {
        let mut e = fenced();
        e.tick(109.0);
        assert!(e.is_fenced());
        e.tick(110.0);
        assert!(e.is_on_trial() && !e.is_fenced());
        // a stream that began before breaks now: no news
        e.on(Ended::Badly(None), 5.0, 120.0, L, || true);
        assert!(e.is_on_trial());
        e.on(Ended::Badly(None), 115.0, 120.0, L, || true);
        e.tick(319.0);
        assert!(e.is_fenced());
        e.tick(320.0);
        e.on(Ended::Well, 321.0, 322.0, L, || true);
        assert!(e.is_on_trial());
        e.on(Ended::Well, 321.0, 323.0, L, || true);
        assert!(!e.is_on_trial() && !e.is_fenced());
    }

    #[test]
    fn answers_without_generation_stand_against_failed_connections_and_end_their_trial() {
        let mut e = Errors::default();
        // a fleet that computes embeddings: plenty of answers, then three refused connections
        (0..100).for_each(|_| e.on(Ended::Answered, 1.0, 1.0, L, || true));
        (0..3).for_each(|_| e.on(Ended::Badly(None), 2.0, 2.0, L, || true));
        assert!(!e.is_fenced());
        // it is gone: nothing is answered any more
        let mut e = Errors::default();
        (0..3).for_each(|_| e.on(Ended::Badly(None), 2.0, 2.0, L, || true));
        assert!(e.is_fenced());
        e.tick(200.0);
        assert!(e.is_on_trial());
        (0..2).for_each(|_| e.on(Ended::Answered, 201.0, 202.0, L, || true));
        assert!(!e.is_on_trial() && !e.is_fenced());
    }

    #[test]
    fn what_fails_to_generate_is_not_saved_by_answers_without_generation() {
        let mut e = Errors::default();
        for n in 0..3 {
            (0..1000).for_each(|_| e.on(Ended::Answered, 1.0, 1.0, L, || true));
            fail(&mut e, n, 10.0);
        }
        assert!(e.is_fenced());
        e.tick(110.0);
        (0..9).for_each(|_| e.on(Ended::Answered, 111.0, 112.0, L, || true));
        assert!(e.is_on_trial());
        // nor by failed connections in the trial
        e.on(Ended::Badly(None), 113.0, 113.0, L, || true);
        e.tick(400.0);
        (0..9).for_each(|_| e.on(Ended::Answered, 401.0, 402.0, L, || true));
        assert!(e.is_on_trial());
    }

    #[test]
    fn where_nobody_else_is_left_there_is_no_fence() {
        let mut e = Errors::default();
        let mut asked = 0;
        let mut refuse = || {
            asked += 1;
            false
        };
        (0..30).for_each(|n| e.on(Ended::Badly(Some(n)), 1.0, 1.0, L, &mut refuse));
        assert!(!e.is_fenced());
        assert_eq!(asked, 10);
    }

    proptest! {
        #[test]
        fn one_request_fences_nobody_however_often_it_comes(
            print in any::<u64>(), times in prop::collection::vec((0.0f64..500.0, any::<bool>()), 0..300),
        ) {
            let (mut e, mut now) = (Errors::default(), 0.0);
            for (after, well) in times {
                now += after;
                let ended = if well { Ended::Well } else { Ended::Badly(Some(print)) };
                e.on(ended, now, now, L, || true);
                e.tick(now);
                prop_assert!(!e.is_fenced());
            }
        }

        #[test]
        fn it_is_never_fenced_for_ever_and_never_without_enough_failures(
            ops in prop::collection::vec((0.0f64..80.0, 0u8..5), 0..200),
        ) {
            let (mut e, mut now, mut bad) = (Errors::default(), 0.0, 0);
            for (after, op) in ops {
                now += after;
                match op {
                    0 => e.on(Ended::Well, now, now, L, || true),
                    1 => { bad += 1; e.on(Ended::Badly(None), now, now, L, || true); }
                    2 => { bad += 1; fail(&mut e, bad, now); }
                    3 => e.on(Ended::Answered, now, now, L, || true),
                    _ => e.tick(now),
                }
                prop_assert!(!e.is_fenced() || bad >= 3);
                prop_assert!(!(e.is_fenced() && e.is_on_trial()));
                prop_assert!(e.recent.len() <= MEMORY && e.answered.len() <= MEMORY);
            }
            e.tick(now + LONGEST * L.pause_ms);
            prop_assert!(!e.is_fenced());
        }
    }
}
