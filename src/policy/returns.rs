//! How many turns a session that begins is to be expected to take, learned from those before it. Pure; time comes in as
//! milliseconds on any clock.
//!
//! Where a session begins it stays, so the choice counts for each of its turns. How many there will be is the number of
//! requests that followed an earlier one of their session, for each session that began:
//!
//! ```text
//! turns = returned / begun
//! ```
//!
//! A session counts as begun only once it has had time to return (`PATIENCE_MS`): where many begin at once and wait for
//! each other, none has returned yet, and that says nothing. Until sessions tell, they are supposed to be long, as those of
//! agents are: of short ones there are soon enough to tell. Only those that their clients name are looked at: of a prompt
//! without a name it is not known whether it begins anything.

use crate::pack::record;

/// After what time a session that has not returned counts as one that was to.
const PATIENCE_MS: f64 = 60_000.0;
/// The most turns that are expected of any, and those that are supposed of a named session before anything is known.
const MOST: f64 = 400.0;
/// What is remembered, in requests.
const MEMORY: f64 = 8192.0;
/// In how many spans the time of those that have just begun is known.
const SPANS: usize = 16;
#[expect(clippy::cast_precision_loss, reason = "it is 16")]
const SPANS_F: f64 = SPANS as f64;
const SPAN_MS: f64 = PATIENCE_MS / SPANS_F;

/// What sessions do, as was seen.
#[derive(Clone, Debug, PartialEq)]
pub struct Returns {
    returned: f64,
    begun: f64,
    /// Those that began within `PATIENCE_MS`, span by span, the current one last.
    young: [f64; SPANS],
    /// The number of the current span.
    span: f64,
}

record!(Returns { returned, begun, young, span });

impl Default for Returns {
    /// Nothing known.
    fn default() -> Self {
        Returns { returned: 0.0, begun: 0.0, young: [0.0; SPANS], span: 0.0 }
    }
}

impl Returns {
    /// A prompt was read, of a session that had one before if `returns`.
    pub fn saw(&mut self, now: f64, returns: bool) {
        self.grow(now);
        if returns {
            self.returned += 1.0;
        } else {
            self.young[SPANS - 1] += 1.0;
        }
        if self.returned + self.begun > MEMORY {
            self.returned /= 2.0;
            self.begun /= 2.0;
        }
    }

    /// The turns that a session which begins now is expected to take after its first.
    pub fn expected(&mut self, now: f64) -> f64 {
        self.grow(now);
        ((self.returned + MOST) / (self.begun + 1.0)).min(MOST)
    }

    /// Those that are no longer young have begun.
    fn grow(&mut self, now: f64) {
        let span = (now / SPAN_MS).floor();
        let mut passed = (span - self.span).min(SPANS_F);
        while passed > 0.0 {
            self.begun += self.young[0];
            self.young.rotate_left(1);
            self.young[SPANS - 1] = 0.0;
            passed -= 1.0;
        }
        self.span = span.max(self.span);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Sessions of `turns` requests, one beginning each `gap` ms, their requests a second apart.
    fn seen(sessions: u32, turns: u32, gap: f64) -> f64 {
        let mut all: Vec<(f64, bool)> = (0..sessions)
            .flat_map(|n| (0..turns).map(move |turn| (f64::from(n) * gap + f64::from(turn) * 1000.0, turn > 0)))
            .collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut returns = Returns::default();
        all.iter().for_each(|(at, is_return)| returns.saw(*at, *is_return));
        returns.expected(all.last().map_or(0.0, |(at, _)| *at))
    }

    #[test]
    fn sessions_are_supposed_to_be_long_until_they_are_seen_not_to_return() {
        assert_eq!(Returns::default().expected(0.0), MOST);
        // they begin together and wait for each other
        assert_eq!(seen(256, 1, 200.0), MOST);
        assert!(seen(600, 1, 500.0) < 1.0);
        assert!((3.0..4.5).contains(&seen(2000, 4, 500.0)), "{}", seen(2000, 4, 500.0));
    }

    #[test]
    fn a_pause_makes_nobody_young_again() {
        let mut returns = Returns::default();
        (0..500).for_each(|_| returns.saw(1e6, false));
        assert_eq!(returns.expected(1e6 + 40_000.0), MOST);
        let later = returns.expected(1e9);
        assert!(later < 1.0, "{later}");
        assert_eq!(returns.expected(1e9 + 1.0), later);
        // a clock that is read in another order takes nothing back
        assert_eq!(returns.expected(5.0), later);
    }

    proptest! {
        #[test]
        fn it_stays_within_what_can_be(all in prop::collection::vec((0.0f64..1e5, any::<bool>()), 0..400)) {
            let (mut returns, mut now) = (Returns::default(), 0.0);
            for (gap, is_return) in all {
                now += gap;
                returns.saw(now, is_return);
                prop_assert!((0.0..=MOST).contains(&returns.expected(now)));
            }
            let mut bytes = Vec::new();
            crate::pack::Pack::pack(&returns, &mut bytes);
            let read: Option<Returns> = crate::pack::Pack::unpack(&mut bytes.as_slice());
            prop_assert_eq!(read, Some(returns));
        }
    }
}
