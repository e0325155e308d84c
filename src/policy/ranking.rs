//! A ranking that is sorted only as far as somebody looks.
//!
//! Most requests go to the first of their candidates and are never heard of again, and a fleet may have hundreds: the
//! best one is found in one pass, and the others stay where they are. Whoever reads the whole (failover, an
//! explanation) sees it sorted, as if it had been sorted from the beginning: the order is total.

use super::select::Ranked;
use crate::types::ReplicaId;
use smallvec::SmallVec;
use std::cmp::Ordering;
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;

type List = SmallVec<[Ranked; 4]>;

/// The order of a ranking: higher scores first, then, where that counts, deeper overlaps, then whose turn it is.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// Whether overlap decides between equal scores.
    pub by_overlap: bool,
    /// Whose turn it is; the others follow in the order of their slots, and those before it come last.
    pub turn: ReplicaId,
}

/// Candidates, best first.
#[derive(Clone, Debug)]
pub struct Ranking {
    list: List,
    /// How many of the first are where they belong; all after them come later in `order`. At least one, if there is any.
    settled: usize,
    order: Order,
    /// The whole in its order, once somebody has looked at it.
    whole: OnceLock<Box<[Ranked]>>,
}

impl Order {
    /// By what they are worth; those that take turns are equal.
    pub(super) fn merit(self, a: &Ranked, b: &Ranked) -> Ordering {
        let deeper = || if self.by_overlap { b.overlap.cmp(&a.overlap) } else { Ordering::Equal };
        b.score.total_cmp(&a.score).then_with(deeper)
    }

    fn compare(self, a: &Ranked, b: &Ranked) -> Ordering {
        let place = |r: &Ranked| (r.id < self.turn, r.id);
        self.merit(a, b).then_with(|| place(a).cmp(&place(b)))
    }
}

impl Ranking {
    /// Ranks `list`, in whatever order it comes.
    pub fn new(mut list: List, order: Order) -> Self {
        let best = (0..list.len()).min_by(|a, b| order.compare(&list[*a], &list[*b]));
        if let Some(best) = best {
            list.swap(0, best);
        }
        Ranking { settled: list.len().min(1), list, order, whole: OnceLock::new() }
    }

    /// The best one.
    pub fn first(&self) -> Option<&Ranked> {
        self.list.first()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The one at a place.
    pub fn at(&self, place: usize) -> Option<&Ranked> {
        if place < self.settled { self.list.get(place) } else { self.sorted().get(place) }
    }

    /// All of them: the best one first, the others in no order.
    pub fn unordered(&self) -> &[Ranked] {
        &self.list
    }

    /// One replica's.
    pub fn of(&self, id: ReplicaId) -> Option<&Ranked> {
        self.list.iter().find(|r| r.id == id)
    }

    /// The best `n`.
    pub fn best(&self, n: usize) -> SmallVec<[Ranked; 8]> {
        let compare = |a: usize, b: usize| match (a < self.settled, b < self.settled) {
            (false, false) => self.order.compare(&self.list[a], &self.list[b]),
            _ => a.cmp(&b),
        };
        let mut best: SmallVec<[usize; 8]> = SmallVec::new();
        for at in 0..self.list.len() {
            if best.len() == n && best.last().is_none_or(|last| compare(*last, at).is_lt()) {
                continue;
            }
            best.truncate(n.saturating_sub(1));
            best.insert(best.partition_point(|other| compare(*other, at).is_lt()), at);
        }
        best.into_iter().map(|at| self.list[at]).collect()
    }

    /// Puts a replica first; the others keep their order. Whether it is there.
    pub fn put_first(&mut self, id: ReplicaId) -> bool {
        let Some(at) = self.list.iter().position(|r| r.id == id) else { return false };
        self.whole.take();
        if at < self.settled {
            self.list[..=at].rotate_right(1);
        } else {
            // the one whose place it takes goes where the first of the others was, and that one where it was
            self.list.swap(self.settled, at);
            self.list[..=self.settled].rotate_right(1);
            self.settled += 1;
        }
        true
    }

    /// Puts those of `other` behind these.
    pub fn append(&mut self, mut other: Ranking) {
        self.settle();
        other.settle();
        self.list.append(&mut other.list);
        self.settled = self.list.len();
    }

    /// Drops those that are not wanted.
    pub fn retain(&mut self, keep: impl FnMut(&mut Ranked) -> bool) {
        self.settle();
        self.list.retain(keep);
        self.settled = self.list.len();
    }

    /// Sorts the whole.
    fn settle(&mut self) {
        match self.whole.take() {
            Some(whole) => self.list = List::from_slice(&whole),
            None => self.list[self.settled..].sort_unstable_by(|a, b| self.order.compare(a, b)),
        }
        self.settled = self.list.len();
    }

    fn sorted(&self) -> &[Ranked] {
        if self.settled == self.list.len() {
            return &self.list;
        }
        self.whole.get_or_init(|| {
            let mut list = self.list.clone();
            list[self.settled..].sort_unstable_by(|a, b| self.order.compare(a, b));
            list.into_vec().into_boxed_slice()
        })
    }
}

impl Deref for Ranking {
    type Target = [Ranked];

    fn deref(&self) -> &[Ranked] {
        self.sorted()
    }
}

impl DerefMut for Ranking {
    fn deref_mut(&mut self) -> &mut [Ranked] {
        self.settle();
        &mut self.list
    }
}

impl<'a> IntoIterator for &'a Ranking {
    type Item = &'a Ranked;
    type IntoIter = std::slice::Iter<'a, Ranked>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl FromIterator<Ranked> for Ranking {
    /// A ranking in the order in which they come.
    fn from_iter<T: IntoIterator<Item = Ranked>>(all: T) -> Self {
        let list: List = all.into_iter().collect();
        let order = Order { by_overlap: false, turn: ReplicaId(0) };
        Ranking { settled: list.len(), list, order, whole: OnceLock::new() }
    }
}

impl PartialEq for Ranking {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

#[cfg(test)]
mod tests {
    use super::super::cost::Price;
    use super::*;
    use proptest::prelude::*;

    fn ranked((id, (overlap, score)): (u16, (u32, i8))) -> Ranked {
        let id = ReplicaId(id);
        let price = Price::default();
        Ranked { id, overlap, held: 0.0, credit: 0, load: 0, score: f64::from(score), price, units: 1 }
    }

    fn ids(all: &[Ranked]) -> Vec<u16> {
        all.iter().map(|r| r.id.0).collect()
    }

    fn rankings() -> impl Strategy<Value = (Vec<Ranked>, Order)> {
        let few = prop::collection::vec((0u32..3, -2i8..3), 1..24);
        (few, any::<bool>(), 0u16..24).prop_map(|(list, by_overlap, turn)| {
            let list: Vec<_> = (0..).zip(list).map(ranked).collect();
            (list, Order { by_overlap, turn: ReplicaId(turn) })
        })
    }

    proptest! {
        /// Against a list that is sorted at once and rotated as slices are.
        #[test]
        fn however_it_is_looked_at_it_is_what_sorting_at_once_gives(
            (list, order) in rankings(), turns in 0usize..24, firsts in prop::collection::vec(0u16..26, 0..5), looks in any::<u8>(),
        ) {
            let mut plain = list.clone();
            plain.sort_by(|a, b| order.compare(a, b));
            let mut given: List = list.into();
            let n = given.len();
            given.rotate_left(turns % n);
            let mut ranking = Ranking::new(given, order);
            for (n, id) in firsts.into_iter().enumerate() {
                if looks & (1 << n) > 0 {
                    prop_assert_eq!(ids(&ranking), ids(&plain));
                }
                let at = plain.iter().position(|r| r.id.0 == id);
                prop_assert_eq!(ranking.put_first(ReplicaId(id)), at.is_some());
                if let Some(at) = at {
                    plain[..=at].rotate_right(1);
                }
                prop_assert_eq!(ranking.first(), plain.first());
                prop_assert_eq!(ids(&ranking.best(8)), ids(&plain[..plain.len().min(8)]));
                prop_assert_eq!((ranking.at(3), ranking.len()), (plain.get(3), plain.len()));
            }
            if looks & 128 > 0 {
                ranking.retain(|r| r.id.0 % 3 > 0);
                plain.retain(|r| r.id.0 % 3 > 0);
            }
            let mut both = ranking.clone();
            both.append(Ranking::new(plain.iter().rev().copied().collect(), order));
            prop_assert_eq!(ids(&ranking), ids(&plain));
            plain.extend({ let mut again = plain.clone(); again.sort_by(|a, b| order.compare(a, b)); again });
            prop_assert_eq!(ids(&both), ids(&plain));
            both[..].reverse();
            plain.reverse();
            prop_assert_eq!(ids(&both), ids(&plain));
        }
    }
}
