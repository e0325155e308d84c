//! Whether an engine has lost everything it was doing at once, which is what its end looks like from outside: all of its
//! connections break in the same moment. One that its supervisor starts anew at once is back before any probe has noticed,
//! with an empty cache that everybody believes to be full. Pure; time comes in as milliseconds on any clock.
//!
//! A request or two may break for reasons of their own. That `LEAST` or more break within `MOMENT_MS`, and that nothing
//! is left of what was there when the first one did, has one cause. Where all lived equally long, to within what they began
//! and broke apart, that may be a limit of something on the way: the same age ends them.

/// Requests that must have broken.
const LEAST: u32 = 3;
/// How long the moment is.
const MOMENT_MS: f64 = 1000.0;
/// One that ends again so soon may be ended by what is sent to it.
const AGAIN_MS: f64 = 60_000.0;
/// What begins, or ends, so close together does so at once.
const AT_ONCE_MS: f64 = 20.0;
/// Nothing on the way ends what is younger.
const YOUNG_MS: f64 = 5000.0;

/// What broke at one replica lately.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Collapse {
    /// When the first one of them did.
    since: f64,
    /// How many were there then, and have not broken.
    left: u32,
    broken: u32,
    /// When the oldest and the youngest of those that have broken began, and how old the youngest and the oldest were.
    began: (f64, f64),
    ages: (f64, f64),
    /// When all of it ended the last time, and whether not again.
    ended: Option<(f64, bool)>,
}

impl Collapse {
    /// A request that began at `began` has failed at `now`, where `there` were there, this one included: it broke off, or
    /// (`breaks` is false) its engine was not reached. Whether that was the last one of all.
    pub fn on_failed(&mut self, breaks: bool, began: f64, now: f64, there: u32) -> bool {
        let begins = self.broken == 0 || now - self.since > MOMENT_MS;
        if begins && !breaks || !begins && began >= self.since {
            // nothing has broken yet, or it was sent there afterwards
            return false;
        }
        if begins {
            let age = now - began;
            *self = Collapse { since: now, left: there, broken: 0, began: (began, began), ages: (age, age), ..*self };
        }
        if breaks {
            self.broken += 1;
            let (began_at, ages, age) = (self.began, self.ages, now - began);
            self.began = (began_at.0.min(began), began_at.1.max(began));
            self.ages = (ages.0.min(age), ages.1.max(age));
        }
        // an engine that ends does so in one instant, whenever they began; a limit follows each of them
        let (apart, spread) = (self.began.1 - self.began.0, self.ages.1 - self.ages.0);
        let are_one_age = self.ages.0 > YOUNG_MS && apart <= MOMENT_MS && spread <= apart / 2.0 + AT_ONCE_MS;
        self.left = self.left.saturating_sub(1);
        let is_all = self.left == 0 && self.broken >= LEAST;
        if is_all {
            let again = self.ended.is_some_and(|(at, _)| now - at < AGAIN_MS);
            let ended = if are_one_age { self.ended } else { Some((now, !again)) };
            *self = Collapse { ended, ..Collapse::default() };
        }
        is_all && !are_one_age
    }

    /// Whether the end of the engine is why a request failed at `at` that was being generated well until then: neither is
    /// the prompt's fault, nor will the engine that comes after it fail that again.
    pub fn excuses(&self, at: f64) -> bool {
        self.ended.is_some_and(|(ended, is_first)| is_first && (ended - at).abs() <= MOMENT_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// When each of some requests breaks, of so many that are there.
    fn breaks(there: u32, at: &[f64]) -> bool {
        let mut collapse = Collapse::default();
        let mut ends = at.iter().zip((0..=there).rev());
        ends.any(|(now, left)| collapse.on_failed(true, 0.0, 1000.0 + now, left))
    }

    #[test]
    fn it_is_the_end_of_all_that_counts() {
        assert!(breaks(4, &[0.0, 1.0, 1.0, 30.0]));
        assert!(!breaks(4, &[0.0, 1.0, 1.0]), "one goes on");
        assert!(!breaks(2, &[0.0, 1.0]), "two are few");
        assert!(!breaks(3, &[0.0, 800.0, 1600.0]), "not in one moment");
    }

    #[test]
    fn what_is_sent_there_afterwards_is_not_what_was_there() {
        let mut collapse = Collapse::default();
        assert!(!collapse.on_failed(true, 0.0, 100.0, 3));
        assert!(!collapse.on_failed(true, 100.0, 101.0, 3) && !collapse.on_failed(true, 100.5, 102.0, 3));
        assert!(!collapse.on_failed(true, 7.0, 103.0, 2) && collapse.on_failed(true, 8.0, 104.0, 1));
        // and it begins anew
        assert!(!collapse.on_failed(true, 9.0, 105.0, 1));
    }

    #[test]
    fn who_does_not_reach_it_any_more_is_not_left_there() {
        let mut collapse = Collapse::default();
        // an idle connection that was closed says nothing by itself
        assert!(!collapse.on_failed(false, 0.0, 99.0, 5));
        assert!(!collapse.on_failed(true, 0.0, 100.0, 4) && !collapse.on_failed(true, 0.0, 100.0, 3));
        assert!(!collapse.on_failed(true, 0.0, 101.0, 2) && collapse.on_failed(false, 99.5, 102.0, 1));
    }

    #[test]
    fn an_end_excuses_what_broke_with_it_unless_it_comes_again() {
        let mut collapse = Collapse::default();
        let mut end = |now: f64| (0..3).rev().map(|left| collapse.on_failed(true, now - 9.0, now, left + 1)).last();
        assert_eq!(end(100.0), Some(true));
        assert!(collapse.excuses(99.0) && collapse.excuses(101.0) && !collapse.excuses(9000.0));
        let mut end = |now: f64| (0..3).rev().map(|left| collapse.on_failed(true, now - 9.0, now, left + 1)).last();
        assert_eq!(end(30_000.0), Some(true));
        assert!(!collapse.excuses(30_000.0));
    }

    #[test]
    fn those_that_reach_the_same_age_together_end_by_that() {
        let ends = |began: [f64; 3], at: fn(f64) -> f64| {
            let mut collapse = Collapse::default();
            let mut ends = began.into_iter().zip([3, 2, 1]);
            ends.any(|(began, there)| collapse.on_failed(true, began, at(began), there))
        };
        assert!(!ends([0.0, 20.0, 900.0], |began| began + 60_000.0));
        assert!(!ends([0.0, 3.0, 9.0], |_| 60_000.0), "nothing tells them from these");
        assert!(ends([0.0, 20.0, 900.0], |_| 60_000.0), "they end at once");
        assert!(ends([0.0, 20.0, 900.0], |began| began + 4000.0), "nothing is cut so early");
    }

    proptest! {
        #[test]
        fn whoever_ends_well_in_between_speaks_for_the_engine(there in 3u32..40, well in 1u32..5) {
            let mut collapse = Collapse::default();
            for n in 0..there.saturating_sub(well) {
                prop_assert!(!collapse.on_failed(true, 0.0, 500.0, there - n));
            }
        }
    }
}
