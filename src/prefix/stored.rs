//! What one engine stores, by its own account: which of its blocks are there, how they continue each other, and which
//! of the prompts that it was sent they belong to. Pure.
//!
//! An engine names its blocks by hashes of tokens, which a router does not have. But it says which block continues which,
//! so how deep a block lies is known; and an answer says how many tokens its prompt had and how many of them came from
//! the cache. So a prompt is the run of blocks that begins where its cached tokens end and is as deep as the prompt is
//! long, stored while it was being read: where just one run fits, the prompt is known to the block from then on, and so
//! is what is evicted of it. Where none or several fit, nothing is known of it; nothing is ever guessed.
//!
//! Blocks that follow each other are a *run*; a run that continues another one in its middle is its branch. Engines evict the
//! end of a prompt before its beginning, so a run is known by how deep it is still there.

use std::collections::{HashMap, VecDeque};

/// The most blocks of one engine that are known at a time; an engine that stores more is not followed.
const MOST_BLOCKS: usize = 1 << 18;
/// The most prompts that are known of one engine.
const MOST_PROMPTS: usize = 4096;
/// The most runs on the way from the end of a prompt to its beginning.
const MOST_RUNS: usize = 4096;
/// Runs that grew lately, and answers that wait for theirs.
const LATELY: usize = 512;
/// Batches of events for which an answer waits.
const PATIENCE: u64 = 64;

/// The place of a block: its run, and how many blocks there are up to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct At {
    run: u32,
    depth: u32,
}

/// Blocks that follow each other.
#[derive(Clone, Debug)]
struct Run {
    /// The block that its first one continues.
    parent: Option<At>,
    /// Up to which depth its blocks are there, and up to which they have been.
    alive: u32,
    end: u32,
    /// Its blocks that are there, its branches, and the prompts that end in it.
    uses: u32,
}

impl Run {
    fn start(&self) -> u32 {
        self.parent.map_or(0, |at| at.depth)
    }
}

/// A block that is there.
#[derive(Clone, Copy, Debug)]
struct Block {
    at: At,
    /// How often it was stored and not removed: an engine may have several of the same.
    copies: u32,
}

/// Blocks at the end of a run of which no answer has told.
#[derive(Clone, Copy, Debug)]
struct Fresh {
    run: u32,
    from: u32,
    to: u32,
    /// The batch that brought the last of them.
    batch: u64,
    /// The prompt that was found last to end here, and where what was new of it began and ended.
    owner: Option<(u64, u32, u32)>,
}

/// What came of a search for the place of a prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Search {
    Found(At),
    /// Its blocks may still be told of.
    NotYet,
    /// Several places fit: it will never be known which one is meant.
    Never,
}

/// An answer, for the prompt that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Answer {
    /// The prompt: the fingerprint of its end.
    pub print: u64,
    /// The prompt of the turn before.
    pub previous: Option<u64>,
    /// Tokens of the prompt, those that came from the cache, and those of the answer.
    pub tokens: (u32, u32, u32),
    /// The count of batches when it was sent; see [`Stored::batches`].
    pub since: u64,
}

/// Where a prompt is.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// Its end, with what was generated after it.
    end: At,
}

/// What one engine stores.
#[derive(Debug, Default)]
pub struct Stored {
    /// Tokens of a block.
    tokens: u32,
    blocks: HashMap<u64, Block>,
    runs: HashMap<u32, Run>,
    next: u32,
    prompts: HashMap<u64, Known>,
    /// In the order in which they became known.
    order: VecDeque<u64>,
    fresh: VecDeque<Fresh>,
    waiting: VecDeque<(Answer, u64)>,
    batches: u64,
}

/// What is said cannot be true of one cache, or is more than is followed: nothing that was known is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost;

impl Stored {
    /// Batches of events so far.
    pub fn batches(&self) -> u64 {
        self.batches
    }

    /// Blocks that are there, as far as they are known.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Prompts that are known.
    pub fn prompts(&self) -> usize {
        self.prompts.len()
    }

    /// Nothing is known any more. Answers to what was sent before say nothing.
    pub fn clear(&mut self) {
        *self = Stored { batches: self.batches + 1, next: self.next, ..Stored::default() };
    }

    /// A batch of events begins.
    pub fn begin_batch(&mut self) {
        self.batches += 1;
    }

    /// It has ended: answers that waited for it may be known now.
    pub fn end_batch(&mut self) {
        for _ in 0..self.waiting.len() {
            let Some((told, at)) = self.waiting.pop_front() else { break };
            if self.relate(&told) == Search::NotYet && self.batches - at < PATIENCE {
                self.waiting.push_back((told, at));
            }
        }
    }

    /// These blocks of so many tokens are there, the first one after the one that is named. A block that continues an
    /// unknown one is not known.
    ///
    /// # Errors
    /// See [`Lost`].
    pub fn store(&mut self, blocks: &[u64], after: Option<u64>, tokens: u32) -> Result<(), Lost> {
        if self.tokens != tokens {
            if self.tokens != 0 {
                return self.lose();
            }
            self.tokens = tokens;
        }
        let mut at = match after.map(|after| self.blocks.get(&after)) {
            Some(None) => return Ok(()),
            Some(Some(block)) => Some(block.at),
            None => None,
        };
        for name in blocks {
            let depth = at.map_or(0, |at| at.depth) + 1;
            if let Some(known) = self.blocks.get_mut(name) {
                known.copies += 1;
                at = Some(known.at);
                if known.at.depth != depth {
                    return self.lose();
                }
            } else {
                if self.blocks.len() >= MOST_BLOCKS {
                    return self.lose();
                }
                let place = self.continue_run(at);
                self.blocks.insert(*name, Block { at: place, copies: 1 });
                at = Some(place);
            }
        }
        Ok(())
    }

    /// These are gone.
    pub fn remove(&mut self, blocks: &[u64]) {
        for name in blocks {
            let Some(block) = self.blocks.get_mut(name) else { continue };
            block.copies -= 1;
            if block.copies == 0 {
                let at = block.at;
                self.blocks.remove(name);
                if let Some(run) = self.runs.get_mut(&at.run) {
                    run.alive = run.alive.min(at.depth - 1);
                }
                self.release(at.run);
            }
        }
    }

    /// An answer tells of its prompt; whether it is known already where that is.
    pub fn answered(&mut self, told: Answer) -> bool {
        let search = self.relate(&told);
        if search == Search::NotYet {
            if self.waiting.len() >= LATELY {
                self.waiting.pop_front();
            }
            self.waiting.push_back((told, self.batches));
        }
        matches!(search, Search::Found(_))
    }

    /// Tokens that are there of the prompt that ends at `print` and of the answer to it; `None` if that is not known.
    pub fn held(&self, print: u64) -> Option<u32> {
        let end = self.prompts.get(&print)?.end;
        let (mut at, mut held) = (end, end.depth);
        for _ in 0..MOST_RUNS {
            let run = self.runs.get(&at.run)?;
            if run.alive < at.depth {
                held = run.alive;
            }
            match run.parent {
                Some(parent) => at = parent,
                None => return Some(held * self.tokens),
            }
        }
        None
    }

    fn lose(&mut self) -> Result<(), Lost> {
        self.clear();
        Err(Lost)
    }

    /// A new block after the one at `at`: its place.
    fn continue_run(&mut self, at: Option<At>) -> At {
        let depth = at.map_or(0, |at| at.depth) + 1;
        let tail =
            at.filter(|at| self.runs.get(&at.run).is_some_and(|run| run.end == at.depth && run.alive == at.depth));
        let run = tail.map_or_else(|| self.branch(at), |at| at.run);
        if let Some(run) = self.runs.get_mut(&run) {
            (run.end, run.alive, run.uses) = (depth, depth, run.uses + 1);
        }
        match self.fresh.iter_mut().rev().find(|fresh| fresh.run == run) {
            Some(fresh) => (fresh.to, fresh.batch) = (depth, self.batches),
            None => {
                if self.fresh.len() >= LATELY {
                    self.fresh.pop_front();
                }
                self.fresh.push_back(Fresh { run, from: depth - 1, to: depth, batch: self.batches, owner: None });
            }
        }
        At { run, depth }
    }

    fn branch(&mut self, parent: Option<At>) -> u32 {
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        if let Some(run) = parent.and_then(|at| self.runs.get_mut(&at.run)) {
            run.uses += 1;
        }
        let start = parent.map_or(0, |at| at.depth);
        self.runs.insert(id, Run { parent, alive: start, end: start, uses: 0 });
        id
    }

    /// A run has a use less.
    fn release(&mut self, run: u32) {
        let mut id = run;
        while let Some(run) = self.runs.get_mut(&id) {
            run.uses -= 1;
            if run.uses > 0 {
                return;
            }
            let parent = run.parent;
            self.runs.remove(&id);
            self.fresh.retain(|fresh| fresh.run != id);
            match parent {
                Some(at) => id = at.run,
                None => return,
            }
        }
    }

    /// Finds where the prompt of an answer is.
    fn relate(&mut self, told: &Answer) -> Search {
        if self.tokens == 0 {
            return Search::NotYet;
        }
        let (prompt, cached, output) = told.tokens;
        let [depth, from] = [prompt, cached].map(|tokens| tokens / self.tokens);
        // the last token of an answer was never read
        let most = prompt.saturating_add(output) / self.tokens;
        let search = if depth > from {
            self.read_lately(told, (from, depth, most))
        } else {
            self.read_before(told, depth).map_or(Search::Never, Search::Found)
        };
        if let Search::Found(end) = search {
            self.know(told.print, At { depth: most.max(depth), ..end });
        }
        search
    }

    /// The only run that has grown since the prompt was sent from where its cached tokens end to where it ends itself.
    fn read_lately(&mut self, told: &Answer, (from, depth, most): (u32, u32, u32)) -> Search {
        let before = told.previous.and_then(|print| self.prompts.get(&print)).map(|known| known.end);
        let continues = |run: u32| {
            let at = At { run, depth: from };
            from == 0 || before.is_none_or(|before| self.is_on_the_way(at, before))
        };
        // what was generated last time is cached now
        let fits = |fresh: &Fresh, (begins, ends): (u32, u32)| {
            let is_as_long = (begins..ends).contains(&from) && (depth..=most).contains(&ends);
            fresh.batch > told.since && is_as_long && continues(fresh.run)
        };
        // one that somebody else was found to have read, as wrongly as this one would be
        let is_disputed = |fresh: &Fresh| {
            let (owner, begins, ends) = fresh.owner.filter(|(owner, ..)| Some(*owner) != told.previous)?;
            (owner != told.print && fits(fresh, (begins, ends))).then_some(owner)
        };
        let disputed: Vec<u64> = self.fresh.iter().filter_map(is_disputed).collect();
        let mut found =
            (0..self.fresh.len()).filter(|at| fits(&self.fresh[*at], (self.fresh[*at].from, self.fresh[*at].to)));
        let (only, more) = (found.next(), found.next());
        if !disputed.is_empty() || more.is_some() {
            disputed.iter().for_each(|print| self.forget(*print));
            return Search::Never;
        }
        let Some(fresh) = only.and_then(|at| self.fresh.get_mut(at)) else { return Search::NotYet };
        fresh.owner = Some((told.print, fresh.from, fresh.to));
        fresh.from = fresh.to;
        Search::Found(At { run: fresh.run, depth })
    }

    /// A prompt of which everything was cached ends where the one before it, or itself, was continued.
    fn read_before(&self, told: &Answer, depth: u32) -> Option<At> {
        let known = |print: u64| self.prompts.get(&print).map(|known| known.end);
        let end = known(told.print).or_else(|| told.previous.and_then(known))?;
        let run = self.runs.get(&end.run)?;
        (run.start() <= depth && depth <= run.alive).then_some(At { run: end.run, depth })
    }

    /// Whether a block lies between the beginning of a prompt and `end`.
    fn is_on_the_way(&self, block: At, end: At) -> bool {
        let of = |at: At| self.runs.get(&at.run);
        // the block itself is the last one before a branch
        let block = of(block).and_then(|run| run.parent.filter(|parent| parent.depth == block.depth)).unwrap_or(block);
        let mut at = Some(end);
        for _ in 0..MOST_RUNS {
            match at {
                Some(here) if here.run == block.run => {
                    return block.depth <= here.depth.max(of(here).map_or(0, |r| r.end));
                }
                Some(here) => at = of(here).and_then(|run| run.parent),
                None => return false,
            }
        }
        false
    }

    /// Where a prompt is, is not known after all.
    fn forget(&mut self, print: u64) {
        if let Some(known) = self.prompts.remove(&print) {
            self.order.retain(|known| *known != print);
            self.release(known.end.run);
        }
    }

    fn know(&mut self, print: u64, end: At) {
        if let Some(run) = self.runs.get_mut(&end.run) {
            run.uses += 1;
        }
        match self.prompts.insert(print, Known { end }) {
            Some(before) => self.release(before.end.run),
            None => self.order.push_back(print),
        }
        if self.prompts.len() > MOST_PROMPTS
            && let Some(oldest) = self.order.pop_front()
            && let Some(gone) = self.prompts.remove(&oldest)
        {
            self.release(gone.end.run);
        }
    }
}

#[cfg(test)]
mod tests;
