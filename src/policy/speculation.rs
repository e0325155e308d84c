//! Whether speculative decoding works at an engine, from its own counters: driven by values.
//!
//! An engine whose drafts are never accepted pays for them and gains nothing; when that begins all at once, what it
//! computes has gone wrong. Evidence is gathered in *windows*: one ends when enough drafts were proposed since it
//! began, and is barren if none of them was accepted. So idle time proves nothing, and a single accepted draft clears
//! the engine. So many barren windows in a row are a verdict.
//!
//! An engine is known to be another *instance* by its start time, where it tells; else by counters that fell. Without
//! a start time, one that has already counted further than the last one did is taken for that.

/// When there is a verdict.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Barren windows in a row.
    pub windows: u32,
    /// Proposals that make a window.
    pub drafts: f64,
}

/// What an engine counted since its start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// When it started, in seconds, where it tells.
    pub started: Option<f64>,
    /// Proposals: draft tokens, or rounds of them.
    pub drafted: f64,
    /// What came of them.
    pub accepted: Accepted,
}

/// What an engine tells of accepted drafts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Accepted {
    /// Their number since it started.
    Total(f64),
    /// Whether there were any of late.
    Lately(bool),
}

/// What a reading showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Nothing new.
    Nothing,
    /// A window ended without an accepted draft: so many in a row.
    Barren(u32),
    /// That was the last one needed.
    Verdict(u32),
    /// Something was accepted after barren windows.
    Cleared,
    /// Another instance is there.
    Renewed,
}

/// The evidence on one engine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Guard {
    /// Where the window began.
    base: Option<Reading>,
    barren: u32,
}

/// Start times that differ by no more are the same, in seconds: they are written with few digits.
const SAME: f64 = 1.0;

impl Reading {
    /// Whether another instance gave this reading than `earlier`.
    pub fn is_of_another(&self, earlier: &Reading) -> bool {
        if let (Some(now), Some(then)) = (self.started, earlier.started) {
            return (now - then).abs() > SAME;
        }
        let fell = match (self.accepted, earlier.accepted) {
            (Accepted::Total(now), Accepted::Total(then)) => now < then,
            _ => false,
        };
        self.drafted < earlier.drafted || fell
    }

    fn has_accepted_since(&self, earlier: &Reading) -> bool {
        match (self.accepted, earlier.accepted) {
            (Accepted::Total(now), Accepted::Total(then)) => now > then,
            (Accepted::Lately(any), _) => any,
            (Accepted::Total(now), Accepted::Lately(_)) => now > 0.0,
        }
    }
}

impl Guard {
    /// Barren windows in a row so far.
    pub fn barren(&self) -> u32 {
        self.barren
    }

    /// Takes a reading in.
    pub fn on(&mut self, reading: Reading, limits: Limits) -> Finding {
        let Some(base) = self.base.replace(reading) else { return Finding::Nothing };
        if reading.is_of_another(&base) {
            self.barren = 0;
            return Finding::Renewed;
        }
        if reading.has_accepted_since(&base) {
            return if std::mem::take(&mut self.barren) > 0 { Finding::Cleared } else { Finding::Nothing };
        }
        if reading.drafted - base.drafted < limits.drafts {
            // the window goes on
            self.base = Some(base);
            return Finding::Nothing;
        }
        self.barren = self.barren.saturating_add(1);
        if self.barren == limits.windows { Finding::Verdict(self.barren) } else { Finding::Barren(self.barren) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const L: Limits = Limits { windows: 3, drafts: 100.0 };

    fn at(drafted: f64, accepted: f64) -> Reading {
        Reading { started: Some(50.0), drafted, accepted: Accepted::Total(accepted) }
    }

    fn feed(guard: &mut Guard, readings: &[Reading]) -> Vec<Finding> {
        readings.iter().map(|reading| guard.on(*reading, L)).collect()
    }

    #[test]
    fn so_many_windows_without_an_accepted_draft_are_a_verdict_once() {
        let mut g = Guard::default();
        // what was there before the first look proves nothing
        let seen = feed(&mut g, &[at(9e9, 5.0), at(9e9 + 100.0, 5.0), at(9e9 + 300.0, 5.0), at(9e9 + 400.0, 5.0)]);
        assert_eq!(seen, [Finding::Nothing, Finding::Barren(1), Finding::Barren(2), Finding::Verdict(3)]);
        assert_eq!(g.on(at(9e9 + 500.0, 5.0), L), Finding::Barren(4));
    }

    #[test]
    fn idle_time_and_small_windows_prove_nothing_and_one_accepted_draft_clears() {
        let mut g = Guard::default();
        let mut readings = vec![at(0.0, 0.0); 50];
        readings.extend([at(60.0, 0.0), at(99.0, 0.0)]);
        assert!(feed(&mut g, &readings).iter().all(|f| *f == Finding::Nothing));
        // small windows add up
        assert_eq!(feed(&mut g, &[at(100.0, 0.0), at(200.0, 0.0)]), [Finding::Barren(1), Finding::Barren(2)]);
        assert_eq!(feed(&mut g, &[at(300.0, 1.0), at(400.0, 1.0)]), [Finding::Cleared, Finding::Barren(1)]);
    }

    #[test]
    fn another_instance_is_known_by_its_start_or_by_counters_that_fell() {
        let other = |started, drafted, accepted| Reading { started, drafted, accepted: Accepted::Total(accepted) };
        assert!(other(Some(52.0), 500.0, 9.0).is_of_another(&at(100.0, 5.0)));
        assert!(!other(Some(50.4), 0.0, 0.0).is_of_another(&at(100.0, 5.0)));
        assert!(other(None, 99.0, 9.0).is_of_another(&at(100.0, 5.0)));
        assert!(other(None, 200.0, 4.0).is_of_another(&at(100.0, 5.0)));
        assert!(!other(None, 200.0, 5.0).is_of_another(&at(100.0, 5.0)));
        let mut g = Guard::default();
        feed(&mut g, &[at(0.0, 0.0), at(100.0, 0.0), at(200.0, 0.0)]);
        assert_eq!((g.barren(), g.on(other(None, 10.0, 0.0), L), g.barren()), (2, Finding::Renewed, 0));
    }

    #[test]
    fn a_gauge_counts_where_there_is_no_total() {
        let lately = |drafted, any| Reading { started: None, drafted, accepted: Accepted::Lately(any) };
        let mut g = Guard::default();
        let seen = feed(&mut g, &[lately(0.0, true), lately(100.0, false), lately(200.0, true), lately(300.0, false)]);
        assert_eq!(seen, [Finding::Nothing, Finding::Barren(1), Finding::Cleared, Finding::Barren(1)]);
    }

    proptest! {
        #[test]
        fn there_is_no_verdict_without_enough_drafts_that_all_failed(
            steps in prop::collection::vec((0.0f64..300.0, 0u8..8), 0..80),
        ) {
            let (mut g, mut drafted, mut accepted, mut since) = (Guard::default(), 0.0, 0.0, 0.0);
            for (more, luck) in steps {
                drafted += more;
                if luck == 0 {
                    accepted += 1.0;
                }
                let finding = g.on(at(drafted, accepted), L);
                if luck == 0 {
                    since = drafted;
                }
                if let Finding::Verdict(_) = finding {
                    prop_assert!(drafted - since >= 3.0 * L.drafts);
                }
                prop_assert!(luck != 0 || g.barren() == 0);
            }
        }
    }
}
