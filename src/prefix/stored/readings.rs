//! What requests read, one after the other, as an engine tells of it: which blocks were stored in one go, one after the
//! other, whether they were there already or not. An answer belongs to one of them. Pure.

use super::At;
use std::collections::VecDeque;

/// The most readings that are remembered: those that went on last.
const MOST: usize = 1024;

/// An answer, for the prompt that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Answer {
    /// The prompt: the fingerprint of its end.
    pub print: u64,
    /// The prompt of the turn before.
    pub previous: Option<u64>,
    /// Tokens of the prompt, those that came from the cache, and those of the answer.
    pub tokens: (u32, u32, u32),
    /// Whether the next turn has the answer in it as it was generated.
    pub is_repeated: bool,
    /// The count of batches when it was sent; see [`super::Stored::batches`].
    pub since: u64,
}

/// Blocks that a request, or a session with one after the other, has stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    /// Blocks before the first one of which no answer has told.
    pub from: u32,
    /// The last one.
    pub end: At,
    /// The batch that brought it.
    batch: u64,
    /// The prompt that was found last to end here.
    pub owner: Option<Owner>,
}

/// The prompt that a reading was found to be of, and where what was new of it began and ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Owner {
    pub print: u64,
    pub begins: u32,
    pub ends: u32,
}

/// The last readings, in the order in which they went on.
#[derive(Debug, Default)]
pub(super) struct Readings {
    all: VecDeque<Reading>,
    /// The batch that brought the last block of one that is not remembered.
    forgotten: u64,
}

/// What is asked of a reading.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// Blocks that were there before.
    pub from: u32,
    /// Blocks of the prompt, and of the prompt with its answer.
    pub ends: (u32, u32),
}

/// What came of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Search {
    /// All that fit end here.
    Found(At),
    /// None does.
    Nothing,
    /// Several do, or one that is remembered no more may have.
    Doubt,
}

impl Readings {
    /// Blocks after `begins` were stored, up to `end`. Returns whose reading goes on with that, and those of whom that
    /// cannot be said any more, as several have got as far as `begins`.
    pub(super) fn go_on(&mut self, begins: Option<At>, end: At, batch: u64) -> (Option<Owner>, Vec<u64>) {
        let from = begins.map_or(0, |at| at.depth);
        let mut there = (0..self.all.len()).filter(|at| begins == Some(self.all[*at].end));
        let (only, more) = (there.next(), there.next());
        let begun = match (only, more) {
            (Some(at), None) => self.all.remove(at),
            _ => None,
        };
        let (mut from, mut in_doubt) = (from, Vec::new());
        if more.is_some() {
            for reading in self.all.iter_mut().filter(|reading| begins == Some(reading.end)) {
                from = from.min(reading.from);
                in_doubt.extend(reading.owner.map(|owner| owner.print));
            }
        }
        let reading = match begun {
            Some(begun) => Reading { end, batch, ..begun },
            None => Reading { from, end, batch, owner: None },
        };
        if self.all.len() >= MOST
            && let Some(oldest) = self.all.pop_front()
        {
            self.forgotten = self.forgotten.max(oldest.batch);
        }
        self.all.push_back(reading);
        (reading.owner, in_doubt)
    }

    /// The readings that the prompt of an answer may be, where those that `continue` are ones for it. Prompts of others
    /// that were found in one of them come along.
    pub(super) fn find(&self, told: &Answer, wanted: Wanted, continues: impl Fn(At) -> bool) -> (Search, Vec<u64>) {
        let (least, most) = wanted.ends;
        let fits = |reading: &Reading, begins: u32, ends: u32| {
            let is_as_long = (begins..ends).contains(&wanted.from) && (least..=most).contains(&ends);
            reading.batch > told.since && is_as_long && continues(reading.end)
        };
        let others = self.all.iter().filter_map(|reading| {
            let owner =
                reading.owner.filter(|owner| Some(owner.print) != told.previous && owner.print != told.print)?;
            fits(reading, owner.begins, owner.ends).then_some(owner.print)
        });
        let others: Vec<u64> = others.collect();
        let mut found = self.all.iter().filter(|r| fits(r, r.from, r.end.depth)).map(|r| r.end);
        let search = match (found.next(), found.next()) {
            _ if !others.is_empty() => Search::Doubt,
            (None, _) => Search::Nothing,
            _ if self.forgotten > told.since => Search::Doubt,
            (Some(end), other) if other.is_none_or(|other| other == end) && found.all(|r| r == end) => {
                Search::Found(end)
            }
            _ => Search::Doubt,
        };
        (search, others)
    }

    /// Those that end there are of this prompt.
    pub(super) fn own(&mut self, end: At, print: u64) {
        for reading in self.all.iter_mut().filter(|reading| reading.end == end) {
            let begins = reading.owner.map_or(reading.from, |owner| owner.begins);
            let begins = if reading.from < end.depth { reading.from } else { begins };
            reading.owner = Some(Owner { print, begins, ends: end.depth });
            reading.from = end.depth;
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
}
