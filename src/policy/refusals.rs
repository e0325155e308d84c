//! For how long a replica that turns requests away (429, 503) is asked last: driven by values.
//!
//! What turns requests away at once has nothing to do, so every rule that looks at load sends it all that is new, and as it
//! says *busy* and not *broken*, no probe fences it: an engine that is still loading its model would draw the traffic of
//! the fleet. So after a refusal others are asked first for a moment, and if it refuses the next request too, for twice
//! as long. One request that is let in ends that. It is no fence: whoever finds the others full is sent there.

/// The first pause, in milliseconds: queues move on fast.
const FIRST_MS: f64 = 250.0;
/// The longest one.
const LONGEST_MS: f64 = 8000.0;

/// The refusals of one replica.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Refusals {
    until: f64,
    pause_ms: f64,
}

impl Default for Refusals {
    fn default() -> Self {
        Refusals { until: f64::NEG_INFINITY, pause_ms: 0.0 }
    }
}

impl Refusals {
    /// It has turned a request away at `now`, in milliseconds. Those that went there with it say the same.
    pub fn refused(&mut self, now: f64) {
        if !self.are_fresh(now) {
            self.pause_ms = (2.0 * self.pause_ms).clamp(FIRST_MS, LONGEST_MS);
            self.until = now + self.pause_ms;
        }
    }

    /// It has let one in.
    pub fn accepted(&mut self) {
        *self = Refusals::default();
    }

    /// Whether others are asked first.
    pub fn are_fresh(&self, now: f64) -> bool {
        now < self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_refusal_after_a_pause_doubles_it_and_one_that_is_let_in_ends_it() {
        let mut r = Refusals::default();
        assert!(!r.are_fresh(0.0));
        r.refused(0.0);
        // a burst is one refusal
        (0..50).for_each(|n| r.refused(f64::from(n)));
        assert!(r.are_fresh(249.0) && !r.are_fresh(250.0));
        r.refused(260.0);
        assert!(r.are_fresh(759.0) && !r.are_fresh(760.0));
        r.accepted();
        assert!(!r.are_fresh(300.0));
        r.refused(300.0);
        assert!(r.are_fresh(549.0) && !r.are_fresh(550.0));
    }

    proptest! {
        #[test]
        fn nobody_is_asked_last_for_longer_than_that(times in prop::collection::vec(0.0f64..9000.0, 1..60)) {
            let (mut r, mut now) = (Refusals::default(), 0.0);
            for after in times {
                now += after;
                r.refused(now);
                prop_assert!(r.are_fresh(now) && !r.are_fresh(now + LONGEST_MS));
            }
        }
    }
}
