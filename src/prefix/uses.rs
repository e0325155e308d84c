//! When a block was last used at which replica, as far as eight bytes a block can tell. Pure.
//!
//! An engine evicts what it has not used for long, whatever other engines do with the same text. So a conversation that
//! has moved must not seem to be used where it was: its blocks are used on, elsewhere. To note a time for every pair of
//! block and replica would cost more than the block; noted are the last use, by whom it was, and the last one by anybody
//! else. With that a block that one or two replicas hold is known exactly: where it is, and where it was before. Of a
//! block that more hold (a system prompt, say) every replica but the last user is given the latest use that may be its
//! own, which is never too early.

use super::lru::{Mark, Marks, Stamp};
use crate::pack::record;
use crate::types::ReplicaId;
use smallvec::SmallVec;

/// Whose slot is never used.
const NOBODY: ReplicaId = ReplicaId(u16::MAX);

/// The last uses of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    last: Stamp,
    /// By anybody but who used it last.
    before: Stamp,
    by: ReplicaId,
}

record!(Use { last, before, by });

/// A run of blocks of a chain whose last uses are the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// Blocks of the chain up to its end.
    pub end: u32,
    /// Their last uses.
    pub used: Use,
    /// How many replicas hold them.
    pub members: u32,
}

/// The runs of a chain.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Runs(SmallVec<[Run; 4]>);

impl Use {
    /// The first one.
    pub fn first((by, stamp): (ReplicaId, Stamp)) -> Self {
        Use { last: stamp, before: stamp, by }
    }

    /// Another one.
    pub fn again(&mut self, (by, stamp): (ReplicaId, Stamp)) {
        if self.by != by {
            (self.before, self.by) = (self.last, by);
        }
        self.last = stamp;
    }

    /// The same where the replica that used it last has another slot, or none.
    #[must_use]
    pub fn moved(self, slot: impl Fn(usize) -> Option<ReplicaId>) -> Self {
        Use { by: slot(self.by.index()).unwrap_or(NOBODY), ..self }
    }

    fn of(&self, replica: ReplicaId) -> Stamp {
        if self.by == replica { self.last } else { self.before }
    }
}

impl Runs {
    /// The next block, or several.
    #[inline]
    pub fn push(&mut self, run: Run) {
        match self.0.last_mut() {
            Some(last) if last.used == run.used && last.members == run.members => last.end = run.end,
            _ => self.0.push(run),
        }
    }

    /// When the blocks were last used at `replica`, which holds all of those that matter.
    pub fn at(&self, replica: ReplicaId) -> Marks {
        let mut marks = Marks::new();
        for Run { end, used, members } in &self.0 {
            let mark = Mark { end: *end, used: used.of(replica), own: *members <= 2 || used.by == replica };
            match marks.last_mut() {
                Some(last) if (last.used, last.own) == (mark.used, mark.own) => last.end = mark.end,
                _ => marks.push(mark),
            }
        }
        marks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a table of every replica's last use.
        #[test]
        fn of_two_replicas_it_knows_each_ones_last_use_and_of_more_none_too_early(uses in prop::collection::vec(0u16..4, 1..40), few in 1u16..5) {
            let mut last = [None; 4];
            let mut used: Option<Use> = None;
            for (stamp, by) in (0..).zip(uses) {
                let by = by % few;
                let now = (ReplicaId(by), stamp);
                last[usize::from(by)] = Some(stamp);
                match &mut used {
                    Some(used) => used.again(now),
                    none => *none = Some(Use::first(now)),
                }
                let run = Run { end: 7, used: used.unwrap(), members: last.iter().map(|l| u32::from(l.is_some())).sum() };
                for (replica, last) in (0..).zip(last).filter_map(|(r, last)| Some((ReplicaId(r), last?))) {
                    let mut runs = Runs::default();
                    runs.push(run);
                    let mark = runs.at(replica)[0];
                    prop_assert!(mark.used >= last);
                    prop_assert!(mark.used == last || !mark.own);
                    prop_assert!(run.members > 2 || mark.own);
                }
            }
        }
    }
}
