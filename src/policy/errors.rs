//! Whether requests fail at a replica: a circuit breaker over what real requests met, driven by values.
//!
//! Within a window, `failures` different requests must have failed, and at least half of what ended there. A request that
//! is sent again and again counts once: what kills every engine that reads it must not fence them all. After a pause the
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
    /// With its answer.
    Well,
    /// By the engine's fault. What the engine has read is named by a hash; `None`: it read nothing, so that the request
    /// cannot be the cause.
    Badly(Option<u64>),
}

/// What the requests at one replica have met.
#[derive(Clone, Debug, Default)]
pub struct Errors {
    recent: VecDeque<(f64, Ended)>,
    state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum State {
    #[default]
    Trusted,
    Fenced {
        until: f64,
        pause: f64,
    },
    Trial {
        since: f64,
        pause: f64,
        good: u32,
    },
}

record!(Errors { recent, state });

impl Pack for Ended {
    fn pack(&self, out: &mut Vec<u8>) {
        match self {
            Ended::Well => None,
            Ended::Badly(print) => Some(*print),
        }
        .pack(out);
    }

    fn unpack(from: &mut &[u8]) -> Option<Self> {
        Some(Option::unpack(from)?.map_or(Ended::Well, Ended::Badly))
    }
}

impl Pack for State {
    fn pack(&self, out: &mut Vec<u8>) {
        match *self {
            State::Trusted => (0u8, 0.0, (0.0, 0)),
            State::Fenced { until, pause } => (1, until, (pause, 0)),
            State::Trial { since, pause, good } => (2, since, (pause, good)),
        }
        .pack(out);
    }

    fn unpack(from: &mut &[u8]) -> Option<Self> {
        let (kind, at, (pause, good)) = <(u8, f64, (f64, u32))>::unpack(from)?;
        match kind {
            0 => Some(State::Trusted),
            1 => Some(State::Fenced { until: at, pause }),
            2 => Some(State::Trial { since: at, pause, good }),
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
            (State::Trial { since, pause, good }, Ended::Well) => {
                let good = good + 1;
                self.state = State::Trial { since, pause, good };
                if good >= limits.successes {
                    self.state = State::Trusted;
                }
            }
            (State::Trial { pause, .. }, Ended::Badly(_)) => {
                if may_fence() {
                    let pause = (2.0 * pause).min(LONGEST * limits.pause_ms);
                    self.state = State::Fenced { until: now + pause, pause };
                }
            }
            (State::Trusted, _) => {
                self.remember(ended, now, limits);
                if ended == Ended::Well || !self.is_bad(limits) {
                    return;
                }
                if may_fence() {
                    self.state = State::Fenced { until: now + limits.pause_ms, pause: limits.pause_ms };
                }
                // whether or not, it begins anew, so that who may not is not asked at every failure
                self.recent.clear();
            }
        }
    }

    /// The pause may be over.
    pub fn tick(&mut self, now: f64) {
        if let State::Fenced { until, pause } = self.state
            && now >= until
        {
            self.state = State::Trial { since: now, pause, good: 0 };
        }
    }

    fn remember(&mut self, ended: Ended, now: f64, limits: ErrorLimits) {
        while self.recent.front().is_some_and(|(at, _)| now - at > limits.window_ms) || self.recent.len() >= MEMORY {
            self.recent.pop_front();
        }
        self.recent.push_back((now, ended));
    }

    fn is_bad(&self, limits: ErrorLimits) -> bool {
        let mut named = Vec::new();
        let mut different = 0;
        for (_, ended) in &self.recent {
            match ended {
                Ended::Badly(Some(print)) if named.contains(print) => {}
                Ended::Badly(print) => {
                    named.extend(*print);
                    different += 1;
                }
                Ended::Well => {}
            }
        }
        let good = self.recent.iter().filter(|(_, ended)| *ended == Ended::Well).count();
        different >= limits.failures && different >= good
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
            ops in prop::collection::vec((0.0f64..80.0, 0u8..4), 0..200),
        ) {
            let (mut e, mut now, mut bad) = (Errors::default(), 0.0, 0);
            for (after, op) in ops {
                now += after;
                match op {
                    0 => e.on(Ended::Well, now, now, L, || true),
                    1 => { bad += 1; e.on(Ended::Badly(None), now, now, L, || true); }
                    2 => { bad += 1; fail(&mut e, bad, now); }
                    _ => e.tick(now),
                }
                prop_assert!(!e.is_fenced() || bad >= 3);
                prop_assert!(!(e.is_fenced() && e.is_on_trial()));
                prop_assert!(e.recent.len() <= MEMORY);
            }
            e.tick(now + LONGEST * L.pause_ms);
            prop_assert!(!e.is_fenced());
        }
    }
}
