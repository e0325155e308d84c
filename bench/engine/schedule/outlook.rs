//! What an all-knowing observer may ask an engine: its true cache, queue, batch and rates.
//!
//! Only a simulator's reference rule looks here. A child of the scheduler, so that its fields stay private.

use super::{Engine, Seq};

/// A prompt that is not read yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Queued<'a> {
    /// which request
    pub(crate) id: u64,
    /// hashes of its prompt's whole blocks
    pub(crate) prompt: &'a [u64],
    /// tokens left to read, when that is settled already
    pub(crate) left: Option<usize>,
}

impl Engine {
    /// How many leading blocks of this chain are cached.
    pub(crate) fn matched(&self, chain: &[u64]) -> usize {
        self.cache.matched(chain)
    }

    /// How many of them still will be after so many tokens have been read for those who wait now.
    pub(crate) fn will_match(&self, chain: &[u64], tokens: usize) -> usize {
        let tip = |prompt: Queued<'_>| self.cache.matched(prompt.prompt).checked_sub(1).map(|at| prompt.prompt[at]);
        self.cache.survives(chain, tokens.div_ceil(self.params.block_tokens), self.queue().filter_map(tip))
    }

    /// Prompts that wait or are half read, in the order in which they will be read.
    pub(crate) fn queue(&self) -> impl Iterator<Item = Queued<'_>> {
        let reading = self.reading.iter().map(|seq| (seq, Some(seq.job.prompt_tokens - seq.read)));
        let waiting = self.waiting.iter().map(|seq| (seq, None));
        let prompt = |seq: &Seq| (seq.job.prompt_tokens / self.params.block_tokens).min(seq.job.chain.len());
        reading.chain(waiting).map(move |(seq, left)| Queued {
            id: seq.job.id,
            prompt: &seq.job.chain[..prompt(seq)],
            left,
        })
    }

    /// How many answer tokens each running sequence still has to make.
    pub(crate) fn to_make(&self) -> impl Iterator<Item = usize> {
        let ready = self.step.iter().flat_map(|step| &step.ready);
        self.decoding.iter().chain(ready).map(|seq| seq.job.output_tokens.saturating_sub(seq.made))
    }

    /// Milliseconds to read this many tokens, alone.
    pub(crate) fn read_ms(&self, tokens: usize) -> f64 {
        tokens as f64 * 1000.0 / self.params.prefill_rate * self.slowdown
    }

    /// Milliseconds of one decode step of this many sequences.
    pub(crate) fn step_ms(&self, batch: usize) -> f64 {
        (self.params.step_ms + self.params.step_growth_ms * batch as f64) * self.slowdown
    }

    /// Steps needed to read this many tokens.
    pub(crate) fn steps(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.params.chunk_tokens)
    }

    /// Tokens of memory that a new request could have now, cold.
    pub(crate) fn free_tokens(&self) -> usize {
        let taken = self.cache.pinned() + self.promised;
        self.cache.capacity().saturating_sub(taken) * self.params.block_tokens
    }

    /// Tokens of cache in all.
    pub(crate) fn capacity_tokens(&self) -> usize {
        self.cache.capacity() * self.params.block_tokens
    }
}
