//! When each session leaves a replica that is drained within a given time: the cheapest to move first, the dearest last.
//! Pure.
//!
//! What a move costs is what has to be read again elsewhere, in tokens. Sessions go in the order of that, and so that the
//! reading is spread evenly: when some share of the time has passed, those have gone that together cost that share of
//! the whole. Those that cost about the same go by lot. A session moves at a turn of its own, so that the time is one
//! from which on it may not stay; nobody stays beyond the whole of it.
//!
//! **Who has little to lose goes at once**: a new session, one that has moved already, and a prompt most of which has to
//! be read anyway.

/// Costs that differ by less than this share are about the same.
const NEAR: f64 = 0.1;
/// A move that costs less than this share of the prompt is cheap.
const LITTLE: f64 = 0.25;

/// The order in which the sessions of a replica leave it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Departures {
    /// What each session costs, ascending, and the share of the whole that is spent when it has gone.
    spent: Vec<(f64, f64)>,
}

impl Departures {
    /// The order of sessions that cost so many tokens each.
    pub fn of(costs: impl Iterator<Item = f64>) -> Self {
        let mut costs: Vec<f64> = costs.filter(|cost| *cost > 0.0).collect();
        costs.sort_unstable_by(f64::total_cmp);
        let whole: f64 = costs.iter().sum();
        let mut sum = 0.0;
        let spent = costs.into_iter().map(|cost| {
            sum += cost;
            (cost, sum / whole)
        });
        Departures { spent: spent.collect() }
    }

    /// The share of the time after which a session goes whose move costs `cost`; `lot`, from 0 to 1 and the session's own,
    /// decides among those that cost about the same.
    pub fn goes_after(&self, cost: f64, lot: f64) -> f64 {
        let from = self.spent_below(cost * (1.0 - NEAR));
        let to = self.spent_below(cost * (1.0 + NEAR));
        from + lot * (to - from)
    }

    /// Whether a request of `prompt` tokens may still come, `passed` being the share of the time that has passed and
    /// `cost` the tokens of it that any other replica would have to read and this one has not.
    pub fn stays(&self, (prompt, cost): (f64, f64), lot: f64, passed: f64) -> bool {
        passed < 1.0 && cost > LITTLE * prompt && passed < self.goes_after(cost, lot)
    }

    /// The share of the whole that sessions cheaper than `cost` make up.
    fn spent_below(&self, cost: f64) -> f64 {
        let cheaper = self.spent.partition_point(|(other, _)| *other < cost);
        cheaper.checked_sub(1).map_or(0.0, |last| self.spent[last].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_dearest_goes_last_and_what_is_cheap_at_once() {
        let order = Departures::of([30_000.0, 1000.0, 9000.0].into_iter());
        let after = |cost| order.goes_after(cost, 1.0);
        assert_eq!((after(1000.0), after(9000.0), after(30_000.0)), (0.025, 0.25, 1.0));
        assert!(order.stays((31_000.0, 30_000.0), 0.9, 0.9) && !order.stays((31_000.0, 30_000.0), 0.9, 1.0));
        assert!(!order.stays((9000.0, 9000.0), 0.9, 0.3));
        // most of it is new
        assert!(!order.stays((130_000.0, 30_000.0), 0.9, 0.0));
        assert!(!order.stays((30_000.0, 0.0), 0.9, 0.0));
        // of whom nothing is known
        assert!(!Departures::default().stays((9000.0, 9000.0), 0.9, 0.0));
    }

    #[test]
    fn equals_do_not_go_all_at_once() {
        let order = Departures::of(std::iter::repeat_n(5000.0, 100));
        let lots = (0..100).map(|n| f64::from(n) / 100.0);
        let gone = |passed| lots.clone().filter(|lot| !order.stays((6000.0, 5000.0), *lot, passed)).count();
        assert_eq!([0.0, 0.25, 0.5, 1.0].map(gone), [1, 26, 51, 100]);
    }

    proptest! {
        #[test]
        fn nobody_goes_before_who_is_much_cheaper_and_what_is_read_again_is_spread_evenly(
            costs in prop::collection::vec(1.0f64..1e5, 1..60), lots in prop::collection::vec(0.0f64..1.0, 60), passed in 0.0f64..1.0,
        ) {
            let order = Departures::of(costs.iter().copied());
            let goes: Vec<_> = costs.iter().zip(&lots).map(|(cost, lot)| (*cost, order.goes_after(*cost, *lot))).collect();
            for (cost, after) in &goes {
                prop_assert!((0.0..=1.0 + 1e-9).contains(after));
                let dearer = goes.iter().filter(|(other, _)| *other > cost * (1.0 + 3.0 * NEAR));
                prop_assert!(dearer.into_iter().all(|(_, other)| other >= after));
            }
            let whole: f64 = costs.iter().sum();
            let near = |share: f64| goes.iter().filter(|(_, after)| *after <= share).map(|(cost, _)| cost).sum::<f64>() / whole;
            // but for those that the moment falls into, who cost about the same
            let at = order.spent.partition_point(|(_, spent)| *spent < passed).min(costs.len() - 1);
            let edge = order.spent[at].0;
            let band: f64 = costs.iter().filter(|c| **c > edge / 1.5 && **c < edge * 1.5).sum::<f64>() / whole;
            prop_assert!((near(passed) - passed).abs() <= band + 1e-9, "{} of {passed}", near(passed));
        }
    }
}
