//! What operators have said of replicas, to any router of the group: the last word counts, everywhere. Pure.
//!
//! A word has a time, which is never earlier than that of the word before it, so that a clock that is slow cannot keep an
//! operator from taking back what was said by way of another router. Of two words at the same time the one that drains
//! counts.
//!
//! What differs from the last word is an operator's new one only where the replica was here before: one that comes, or comes
//! back, knows nothing of what was said meanwhile, and is to be told.

use super::wire::{Name, Order};
use std::collections::{BTreeMap, BTreeSet};

/// What has been said, as far as this router knows.
#[derive(Debug, Default)]
pub struct Orders {
    /// The last word about each replica.
    last: BTreeMap<Name, Order>,
    /// The replicas that were here when it was looked last.
    here: BTreeSet<Name>,
}

/// What is in force at a replica of this router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InForce {
    /// Which one.
    pub replica: Name,
    /// Whether it is drained.
    pub drained: bool,
    /// Until when its sessions may stay, in milliseconds since 1970; 0 if they may not.
    pub leaves_by: u64,
    /// Since when it is drained, in milliseconds since 1970; 0 if it is not.
    pub since: u64,
}

/// What follows from what the store says.
#[derive(Debug, Default, PartialEq)]
pub struct Settled {
    /// To be done here.
    pub obey: Vec<Order>,
    /// To be written there.
    pub write: Vec<Order>,
}

/// Names that are remembered: beyond any fleet, and a bound on what a store can make us remember.
const MOST: usize = 1 << 16;
/// Ends of stays that differ by less, in milliseconds, are the same: clocks are.
const NEAR: u64 = 2000;

impl Order {
    /// Its place among others about the same replica.
    fn rank(&self) -> (u64, bool) {
        (self.at, self.drained)
    }

    fn says(&self, there: &InForce, now: u64) -> bool {
        // a stay that is over is none
        let stay = |ends: u64| if ends > now { ends } else { 0 };
        let (a, b) = (stay(self.leaves_by), stay(there.leaves_by));
        self.drained == there.drained && (!self.drained || (a > 0) == (b > 0) && a.abs_diff(b) < NEAR)
    }
}

impl Orders {
    /// What has been said to this router since it was asked last, at `now`, going by what is in force; and what was said of
    /// replicas that are new here.
    pub fn said_here(&mut self, in_force: &[InForce], now: u64) -> Settled {
        let mut settled = Settled::default();
        for there in in_force {
            let last = self.last.get(&there.replica).copied();
            if last.map_or(!there.drained, |last| last.says(there, now)) || last.is_none() && self.last.len() >= MOST {
                continue;
            }
            if let Some(last) = last.filter(|_| !self.here.contains(&there.replica)) {
                settled.obey.push(last);
                continue;
            }
            // the first word may have been said to a process before this one
            let at = last.map_or(there.since.min(now), |last| now.max(last.at + 1));
            let order = Order { replica: there.replica, at, drained: there.drained, leaves_by: there.leaves_by };
            self.last.insert(order.replica, order);
            settled.write.push(order);
        }
        if self.here.len() != in_force.len() || !in_force.iter().all(|there| self.here.contains(&there.replica)) {
            self.here = in_force.iter().map(|there| there.replica).collect();
        }
        settled
    }

    /// The store says this at `now`: whatever is later counts here, and what it lacks is to be written.
    pub fn said_there(&mut self, stored: Vec<Order>, now: u64) -> Settled {
        let mut settled = Settled::default();
        let mut there = BTreeMap::new();
        // nobody's clock is a day ahead: such a word could never be taken back
        for order in stored.into_iter().filter(|order| order.at < now + 86_400_000) {
            there.insert(order.replica, order.rank());
            match self.last.get(&order.replica) {
                Some(known) if known.rank() >= order.rank() => {}
                None if self.last.len() >= MOST => {}
                _ => {
                    self.last.insert(order.replica, order);
                    settled.obey.push(order);
                }
            }
        }
        let lacks = |order: &&Order| there.get(&order.replica).is_none_or(|rank| *rank < order.rank());
        settled.write = self.last.values().filter(lacks).copied().collect();
        settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn there(drained: bool) -> InForce {
        InForce { replica: 1, drained, leaves_by: 0, since: u64::from(drained) * 1000 }
    }

    fn said(orders: &mut Orders, there: InForce, now: u64) -> Vec<Order> {
        let settled = orders.said_here(&[there], now);
        assert_eq!(settled.obey, []);
        settled.write
    }

    #[test]
    fn the_last_word_counts_whoever_heard_it_and_however_slow_a_clock_is() {
        let (mut a, mut b) = (Orders::default(), Orders::default());
        assert_eq!(
            (said(&mut a, there(false), 500), said(&mut b, there(false), 500)),
            (vec![], vec![]),
            "nothing was said"
        );
        let drain = said(&mut a, there(true), 1000);
        assert_eq!((drain.len(), said(&mut a, there(true), 1001).len()), (1, 0));
        assert_eq!(b.said_there(drain.clone(), 400).obey, drain);
        // it is undrained by way of b, whose clock is behind
        let undrain = said(&mut b, there(false), 400);
        assert_eq!((undrain[0].at, undrain[0].drained), (1001, false));
        assert_eq!(a.said_there(undrain.clone(), 1002), Settled { obey: undrain, write: vec![] });
        assert_eq!(said(&mut a, there(false), 1003), []);
    }

    #[test]
    fn a_store_that_has_forgotten_is_told_and_one_that_says_nonsense_is_not_believed() {
        let mut orders = Orders::default();
        let drain = said(&mut orders, there(true), 1000);
        assert_eq!(orders.said_there(Vec::new(), 1000), Settled { obey: vec![], write: drain });
        let never = Order { replica: 1, at: u64::MAX, drained: false, leaves_by: 0 };
        assert_eq!(orders.said_there(vec![never], 1000).obey, []);
    }

    #[test]
    fn a_stay_that_ends_by_itself_is_no_word() {
        let mut orders = Orders::default();
        let slowly = InForce { leaves_by: 5000, ..there(true) };
        assert_eq!(said(&mut orders, slowly, 1000).len(), 1);
        let later = InForce { leaves_by: 5003, ..slowly };
        assert_eq!((said(&mut orders, later, 2000), said(&mut orders, there(true), 6000)), (vec![], vec![]));
        assert_eq!(said(&mut orders, there(true), 2000).len(), 1, "it is to leave at once");
    }

    #[test]
    fn a_replica_that_comes_after_its_drain_is_drained_and_undrains_nobody() {
        let (mut a, mut orders) = (Orders::default(), Orders::default());
        let drain = said(&mut a, there(true), 1000);
        orders.said_there(drain.clone(), 1001);
        for now in [2000, 4000] {
            assert_eq!(orders.said_here(&[], now), Settled::default());
            let comes = orders.said_here(&[there(false)], now + 1);
            assert_eq!(comes, Settled { obey: drain.clone(), write: vec![] }, "it comes, and comes back");
            assert_eq!(orders.said_here(&[there(true)], now + 2), Settled::default());
        }
        assert_eq!(said(&mut orders, there(false), 5000).len(), 1, "now it is an operator's word");
    }

    proptest! {
        #[test]
        fn in_whatever_order_words_arrive_all_routers_end_with_the_same(
            words in prop::collection::vec((0u64..3, 1u64..9, any::<bool>()), 1..20), turns in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let words: Vec<Order> = words.into_iter().map(|(replica, at, drained)| Order { replica, at, drained, leaves_by: 0 }).collect();
            let mut other = words.clone();
            turns.iter().for_each(|turn| { let at = turn.index(other.len()); other.swap(0, at) });
            let (mut a, mut b) = (Orders::default(), Orders::default());
            words.into_iter().for_each(|word| { a.said_there(vec![word], 9); });
            b.said_there(other, 9);
            prop_assert_eq!(a.last, b.last);
        }
    }
}
