//! What one engine stores, by its own account: which of its blocks are there, how they continue each other, and which
//! of the prompts that it was sent they belong to. Pure.
//!
//! An engine names its blocks by hashes of tokens, which a router does not have. But it says which block continues which,
//! so how deep a block lies is known; and an answer says how many tokens its prompt had and how many of them came from
//! the cache. So a prompt is the run of blocks that begins where its cached tokens end and is as deep as the prompt is
//! long, stored while it was being read: where just one *reading* fits, the prompt is known to the block from then on, and
//! so is what is evicted of it. Where none or several fit, nothing is known of it. An engine tells of what it reads before
//! it answers, so of those that fit one is the prompt's own; what comes a few batches late is waited for.
//!
//! Blocks that follow each other are a *run*; a run that continues another one in its middle is its branch. Engines evict the
//! end of a prompt before its beginning, so a run is known by how deep it is still there.

mod readings;

pub use readings::Answer;

use readings::{Readings, Search, Wanted};
use std::collections::{HashMap, VecDeque};

/// The most blocks of one engine that are known at a time; an engine that stores more is not followed.
const MOST_BLOCKS: usize = 1 << 18;
/// The most prompts that are known of one engine.
const MOST_PROMPTS: usize = 4096;
/// The most runs on the way from the end of a prompt to its beginning.
const MOST_RUNS: usize = 4096;
/// Batches of events that may come after the answer that they go before.
const PATIENCE: u64 = 4;
/// The most answers that wait for them.
const MOST_WAITING: usize = 64;

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

/// Where a prompt is.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// Its end, with what was told of the answer so far.
    end: At,
    /// Blocks up to the end of the answer.
    most: u32,
}

/// What a prompt holds in a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Tokens that are there of it and of the answer to it.
    pub tokens: u32,
    /// Whether nothing of it is gone.
    pub is_whole: bool,
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
    readings: Readings,
    waiting: VecDeque<(Answer, u64)>,
    batches: u64,
    /// It stores more than is followed.
    is_too_large: bool,
    /// What was known before it was cleared.
    past: Option<Box<Stored>>,
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
        let anew = Stored { batches: self.batches + 1, next: self.next, ..Stored::default() };
        let past = std::mem::replace(self, anew);
        self.past = Some(Box::new(Stored { past: None, ..past }));
    }

    /// The same of an engine that goes on as it was: one that stores more than is followed still does.
    pub fn lose_track(&mut self) {
        let is_too_large = self.is_too_large;
        self.clear();
        self.is_too_large = is_too_large;
    }

    /// What was known before it was cleared: to be freed when nobody waits for it.
    pub fn past(&mut self) -> Option<Box<Stored>> {
        self.past.take()
    }

    /// A batch of events begins.
    pub fn begin_batch(&mut self) {
        self.batches += 1;
    }

    /// It has ended: answers that came before it may be known now.
    pub fn end_batch(&mut self) {
        for _ in 0..self.waiting.len() {
            let Some((told, at)) = self.waiting.pop_front() else { break };
            if self.relate(&told) == Search::Nothing && self.batches - at < PATIENCE {
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
        if self.is_too_large {
            return Ok(());
        }
        if self.tokens != tokens {
            if self.tokens != 0 {
                return self.lose();
            }
            self.tokens = tokens;
        }
        let begins = match after.map(|after| self.blocks.get(&after)) {
            Some(None) => return Ok(()),
            Some(Some(block)) => Some(block.at),
            None => None,
        };
        let mut at = begins;
        for name in blocks {
            if let Some(known) = self.blocks.get(name).map(|block| block.at) {
                // nor was one before it taken out and put in again
                if self.before(known) != at {
                    return self.lose();
                }
                at = Some(known);
            } else {
                if self.blocks.len() >= MOST_BLOCKS {
                    let lost = self.lose();
                    self.is_too_large = true;
                    return lost;
                }
                at = Some(self.continue_run(at));
            }
            let Some(at) = at else { continue };
            self.blocks.entry(*name).or_insert(Block { at, copies: 0 }).copies += 1;
        }
        if let Some(end) = at.filter(|_| !blocks.is_empty()) {
            self.was_read(begins, end);
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
        if search == Search::Nothing {
            if self.waiting.len() >= MOST_WAITING {
                self.waiting.pop_front();
            }
            self.waiting.push_back((told, self.batches));
        }
        matches!(search, Search::Found(_))
    }

    /// What is there of the prompt that ends at `print` and of the answer to it; `None` if that is not known.
    pub fn held(&self, print: u64) -> Option<Held> {
        let end = self.prompts.get(&print)?.end;
        let (mut at, mut held) = (end, end.depth);
        for _ in 0..MOST_RUNS {
            let run = self.runs.get(&at.run)?;
            if run.alive < at.depth {
                held = run.alive;
            }
            match run.parent {
                Some(parent) => at = parent,
                None => return Some(Held { tokens: held * self.tokens, is_whole: held == end.depth }),
            }
        }
        None
    }

    fn lose(&mut self) -> Result<(), Lost> {
        self.clear();
        Err(Lost)
    }

    /// The block before this one.
    fn before(&self, block: At) -> Option<At> {
        let run = self.runs.get(&block.run)?;
        if run.start() + 1 == block.depth { run.parent } else { Some(At { depth: block.depth - 1, ..block }) }
    }

    /// The block at `depth` on the way to `end`.
    fn on_the_way(&self, end: At, depth: u32) -> At {
        let mut at = At { depth: depth.min(end.depth), ..end };
        for _ in 0..MOST_RUNS {
            match self.runs.get(&at.run).and_then(|run| run.parent).filter(|parent| at.depth <= parent.depth) {
                Some(parent) => at.run = parent.run,
                None => break,
            }
        }
        at
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
        At { run, depth }
    }

    /// Blocks after `begins` up to `end` were stored for a request: what was generated for it may be among them.
    fn was_read(&mut self, begins: Option<At>, end: At) {
        let (owner, in_doubt) = self.readings.go_on(begins, end, self.batches);
        let grows = |known: &Known| Some(known.end) == begins && known.end.depth < known.most;
        if let Some(print) = owner.map(|owner| owner.print)
            && let Some(known) = self.prompts.get(&print).copied().filter(grows)
        {
            self.know(print, Known { end: self.on_the_way(end, known.most), ..known });
        }
        for print in in_doubt {
            if self.prompts.get(&print).is_some_and(grows) {
                self.forget(print);
            }
        }
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
            match parent {
                Some(at) => id = at.run,
                None => return,
            }
        }
    }

    /// Finds where the prompt of an answer is.
    fn relate(&mut self, told: &Answer) -> Search {
        if self.tokens == 0 {
            return Search::Nothing;
        }
        let (prompt, cached, output) = told.tokens;
        let [depth, from] = [prompt, cached.min(prompt)].map(|tokens| tokens / self.tokens);
        // most engines never read the last token of an answer
        let [least, whole] = [1, 0].map(|unread| prompt.saturating_add(output.saturating_sub(unread)) / self.tokens);
        // of others nothing may be taken where nothing was stored
        let (mut search, others) = match from < depth || least > depth {
            true => self.read_lately(told, from, (depth, whole)),
            false => (Search::Nothing, Vec::new()),
        };
        if search == Search::Nothing && from == depth {
            search = self.read_before(told, depth).map_or(Search::Nothing, Search::Found);
        }
        // somebody else was found to have read it, as wrongly as this one would be
        others.iter().for_each(|print| self.forget(*print));
        if let Search::Found(end) = search {
            let most = if told.is_repeated { least } else { depth };
            self.readings.own(end, told.print);
            self.know(told.print, Known { end: self.on_the_way(end, most), most });
        }
        search
    }

    /// What has been stored since the prompt was sent from where its cached tokens end to where it ends itself, or its
    /// answer.
    fn read_lately(&self, told: &Answer, from: u32, (depth, whole): (u32, u32)) -> (Search, Vec<u64>) {
        let before = told.previous.and_then(|print| self.prompts.get(&print)).map(|known| known.end);
        let follows = |end: At| before.is_none_or(|before| self.is_on_the_way(self.on_the_way(end, from), before));
        let continues = |end: At| self.runs.contains_key(&end.run) && (from == 0 || follows(end));
        self.readings.find(told, Wanted { from, ends: (depth.max(from + 1), whole) }, continues)
    }

    /// A prompt of which everything was cached ends where the one before it, or itself, was continued.
    fn read_before(&self, told: &Answer, depth: u32) -> Option<At> {
        let known = |print: u64| self.prompts.get(&print).map(|known| known.end);
        let end = known(told.print).or_else(|| told.previous.and_then(known))?;
        let at = self.on_the_way(end, depth);
        (at.depth == depth && self.runs.get(&at.run)?.alive >= depth).then_some(at)
    }

    /// Whether a block lies between the beginning of a prompt and `end`.
    fn is_on_the_way(&self, block: At, end: At) -> bool {
        let of = |at: At| self.runs.get(&at.run);
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

    fn know(&mut self, print: u64, known: Known) {
        if let Some(run) = self.runs.get_mut(&known.end.run) {
            run.uses += 1;
        }
        match self.prompts.insert(print, known) {
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
