//! What was believed of one prompt, to be held against what its answer tells. Pure.

use super::super::lru::{Mark, Stamp};

/// What was believed of a prompt when it was claimed, to be compared with what its answer reports.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Belief {
    /// The claim.
    pub(super) claimed: Stamp,
    /// Leading blocks that its replica once held, not counting those that another pending claim alone vouched for.
    pub known: u32,
    /// Of these, the blocks that were not believed to be evicted.
    pub held: u32,
    /// When the known ones were last used: at which claim, and how many tokens were touched since.
    pub(super) runs: Vec<Mark<(Stamp, f64)>>,
    /// Tokens of a block, and of all of it, as far as they were known.
    pub(super) block: f64,
    pub(super) prompt: f64,
}

impl Belief {
    /// Leading tokens that were believed to be held, and those that once were.
    pub fn tokens(&self) -> (f64, f64) {
        (f64::from(self.held) * self.block, f64::from(self.known) * self.block)
    }

    /// The last use of a block that was there, at `depth`: at which claim, and how many tokens were touched since, those
    /// of its own prompt that go before it not counted. `None` where others may have used it. `block` tokens a block.
    pub(super) fn kept(&self, depth: f64, block: f64) -> Option<(Stamp, f64)> {
        let run = self.runs.iter().find(|run| f64::from(run.end) >= depth)?;
        self.gone(depth, block).filter(|_| run.own)
    }

    /// The same of a block that was not there, or of the first one after it that nobody else uses: it is gone, too.
    pub(super) fn gone(&self, depth: f64, block: f64) -> Option<(Stamp, f64)> {
        let run = self.runs.iter().find(|run| run.own && f64::from(run.end) >= depth)?;
        let start = self.runs.iter().rev().find(|r| r.end < run.end).map_or(0.0, |r| f64::from(r.end));
        let (used, distance) = run.used;
        let before = (f64::from(run.end) - depth.max(start)) * block;
        (depth > 0.0).then(|| (used, (distance - before).max(0.0)))
    }
}
