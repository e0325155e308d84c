//! Whether an engine has lost everything it was doing at once, which is what its end looks like from outside: all of its
//! connections break in the same moment. One that its supervisor starts anew at once is back before any probe has noticed,
//! with an empty cache that everybody believes to be full. Pure; time comes in as milliseconds on any clock.
//!
//! A request or two may break for reasons of their own. That `LEAST` or more break within `MOMENT_MS`, and that nothing
//! is left of what was there when the first one did, has one cause.

/// Requests that must have broken.
const LEAST: u32 = 3;
/// How long the moment is.
const MOMENT_MS: f64 = 1000.0;

/// What broke at one replica lately.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Collapse {
    /// When the first one of them did.
    since: f64,
    /// How many were there then, and have not broken.
    left: u32,
    broken: u32,
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
            *self = Collapse { since: now, left: there, broken: 0 };
        }
        self.broken += u32::from(breaks);
        self.left = self.left.saturating_sub(1);
        let is_all = self.left == 0 && self.broken >= LEAST;
        if is_all {
            *self = Collapse::default();
        }
        is_all
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
