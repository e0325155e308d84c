//! The engine itself, without IO: requests in, tokens out, on virtual time.
//!
//! Work happens in steps, as in engines with chunked prefill: up to `chunk_tokens` of prompt, first come first served,
//! then one token for every running sequence. A step's length is the sum of both, so prefill stalls the streams that
//! run and a large batch slows itself. Steps follow each other in exact virtual time; a caller that comes late gets the
//! same schedule, only later.
//!
//! The pattern is sans-IO: `submit`, `cancel` and `set_*` put things in, `advance` moves time and says what came out,
//! `next_at` says when to call again.
//!
//! Left out on purpose: preemption (a request is admitted only when its whole KV fits) and attention cost that grows
//! with context.

pub(crate) mod outlook;

use std::collections::VecDeque;

use super::cache::Cache;
use super::params::Params;

/// A request as the scheduler sees it.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) id: u64,
    /// chained hashes of every whole block of prompt and answer together
    pub(crate) chain: Vec<u64>,
    pub(crate) prompt_tokens: usize,
    /// at least 1
    pub(crate) output_tokens: usize,
}

/// One more token of one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Token {
    pub(crate) id: u64,
    pub(crate) at: f64,
    /// set on the first token: prompt tokens that came from the cache
    pub(crate) cached: Option<usize>,
    /// set on the last token
    pub(crate) done: Option<Times>,
}

/// What the request took, in virtual ms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Times {
    pub(crate) ttft: f64,
    pub(crate) total: f64,
}

/// Counters since the start, and gauges.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Stats {
    pub(crate) running: usize,
    pub(crate) waiting: usize,
    pub(crate) finished: u64,
    pub(crate) aborted: u64,
    pub(crate) prompt_tokens: u64,
    pub(crate) cached_tokens: u64,
    pub(crate) prefill_tokens: u64,
    pub(crate) generated_tokens: u64,
    pub(crate) kv_blocks: usize,
    pub(crate) kv_held: usize,
    pub(crate) kv_capacity: usize,
    pub(crate) kv_evicted: u64,
    pub(crate) busy_ms: f64,
}

#[derive(Debug)]
struct Seq {
    job: Job,
    arrived: f64,
    cached: usize,
    read: usize,
    made: usize,
    first_at: f64,
    tip: Option<u64>,
    /// leading blocks of the chain placed (or given up on)
    placed: usize,
}

impl Seq {
    fn unplaced(&self) -> usize {
        // the last block may stay partial and still takes a whole one
        (self.job.chain.len() + 1).saturating_sub(self.placed)
    }
}

#[derive(Debug)]
struct Step {
    ends: f64,
    /// sequences whose prompt is read when the step ends
    ready: Vec<Seq>,
}

/// One engine. See the module header.
#[derive(Debug)]
pub(crate) struct Engine {
    params: Params,
    cache: Cache,
    waiting: VecDeque<Seq>,
    /// admitted, prompt partly read
    reading: Option<Seq>,
    decoding: Vec<Seq>,
    step: Option<Step>,
    clock: f64,
    frozen_at: Option<f64>,
    slowdown: f64,
    /// blocks that running sequences will still need
    promised: usize,
    stats: Stats,
}

impl Engine {
    pub(crate) fn new(params: Params) -> Self {
        let cache = Cache::new(params.kv_tokens / params.block_tokens);
        Self {
            params,
            cache,
            waiting: VecDeque::new(),
            reading: None,
            decoding: Vec::new(),
            step: None,
            clock: 0.0,
            frozen_at: None,
            slowdown: 1.0,
            promised: 0,
            stats: Stats::default(),
        }
    }

    /// Counters and gauges as of the last call.
    pub(crate) fn stats(&self) -> Stats {
        let ready = self.step.as_ref().map_or(0, |step| step.ready.len());
        Stats {
            running: self.decoding.len() + ready + usize::from(self.reading.is_some()),
            waiting: self.waiting.len(),
            kv_blocks: self.cache.len(),
            kv_held: self.cache.pinned(),
            kv_capacity: self.cache.capacity(),
            kv_evicted: self.cache.evicted(),
            ..self.stats
        }
    }

    /// When `advance` has something to do next.
    pub(crate) fn next_at(&self) -> Option<f64> {
        if self.frozen_at.is_some() { None } else { self.step.as_ref().map(|step| step.ends) }
    }

    /// A request arrives. Call `advance(now)` first.
    pub(crate) fn submit(&mut self, now: f64, job: Job) {
        let seq = Seq { job, arrived: now, cached: 0, read: 0, made: 0, first_at: now, tip: None, placed: 0 };
        self.waiting.push_back(seq);
        self.wake(now);
    }

    /// A client has left: its work stops, what was read stays cached. False when it had already ended.
    pub(crate) fn cancel(&mut self, now: f64, id: u64) -> bool {
        let Some(seq) = self.take(id) else { return false };
        self.release(seq);
        self.stats.aborted += 1;
        self.wake(now);
        true
    }

    /// Stops or resumes generation; requests are still taken.
    pub(crate) fn set_frozen(&mut self, now: f64, frozen: bool) {
        match (self.frozen_at, frozen) {
            (None, true) => self.frozen_at = Some(now),
            (Some(since), false) => {
                self.frozen_at = None;
                if let Some(step) = &mut self.step {
                    step.ends += now - since;
                }
                self.wake(now);
            }
            _ => {}
        }
    }

    /// Makes every later step this many times as long.
    pub(crate) fn set_slowdown(&mut self, factor: f64) {
        self.slowdown = factor;
    }

    /// Drops every request and the cache, as a restart does. Returns the ids dropped.
    pub(crate) fn restart(&mut self) -> Vec<u64> {
        let ready = self.step.take().map(|step| step.ready).unwrap_or_default();
        let all = self.waiting.drain(..).chain(self.reading.take()).chain(self.decoding.drain(..)).chain(ready);
        let dropped: Vec<u64> = all.map(|seq| seq.job.id).collect();
        self.cache.clear();
        self.promised = 0;
        self.stats.aborted += dropped.len() as u64;
        dropped
    }

    /// Empties the cache, but for what running requests hold.
    pub(crate) fn empty(&mut self) {
        self.cache.forget();
    }

    /// Ends every step that is due and appends the tokens it made.
    pub(crate) fn advance(&mut self, now: f64, out: &mut Vec<Token>) {
        if self.frozen_at.is_some() {
            return;
        }
        while self.step.as_ref().is_some_and(|step| step.ends <= now) {
            if let Some(step) = self.step.take() {
                self.finish(step, out);
            }
            self.plan();
        }
    }

    fn wake(&mut self, now: f64) {
        if self.step.is_none() && self.frozen_at.is_none() {
            self.clock = self.clock.max(now);
            self.plan();
        }
    }

    /// Starts the next step at `clock`, if there is work.
    fn plan(&mut self) {
        let batch = self.decoding.len();
        let mut ready = Vec::new();
        let read = self.read_chunk(&mut ready);
        if read == 0 && ready.is_empty() && batch == 0 {
            return;
        }
        let decode = if batch == 0 { 0.0 } else { self.params.step_ms + self.params.step_growth_ms * batch as f64 };
        let prefill = read as f64 * 1000.0 / self.params.prefill_rate;
        let length = (decode + prefill) * self.slowdown;
        self.stats.prefill_tokens += read as u64;
        self.stats.busy_ms += length;
        self.step = Some(Step { ends: self.clock + length, ready });
    }

    /// Reads prompts up to the chunk's budget; whole ones go to `ready`. Returns the tokens read.
    fn read_chunk(&mut self, ready: &mut Vec<Seq>) -> usize {
        let mut budget = self.params.chunk_tokens;
        while budget > 0 {
            let taken = self.reading.take();
            let Some(mut seq) = taken.or_else(|| self.admit(ready.len())) else { break };
            let read = (seq.job.prompt_tokens - seq.read).min(budget);
            budget -= read;
            seq.read += read;
            self.place(&mut seq);
            if seq.read == seq.job.prompt_tokens {
                ready.push(seq);
            } else {
                self.reading = Some(seq);
            }
        }
        self.params.chunk_tokens - budget
    }

    /// The first request that waits, if a slot and its memory are free.
    fn admit(&mut self, ready: usize) -> Option<Seq> {
        if self.decoding.len() + ready >= self.params.max_running {
            return None;
        }
        let mut seq = self.waiting.pop_front()?;
        // the last prompt token is always computed: it gives the first answer token
        let usable = seq.job.prompt_tokens.saturating_sub(1) / self.params.block_tokens;
        let have = self.cache.matched(&seq.job.chain[..usable.min(seq.job.chain.len())]);
        seq.placed = have;
        seq.tip = have.checked_sub(1).map(|last| seq.job.chain[last]);
        if let Some(tip) = seq.tip {
            self.cache.pin(tip);
        }
        if self.cache.pinned() + self.promised + seq.unplaced() > self.cache.capacity() && self.cache.pinned() > 0 {
            if let Some(tip) = seq.tip {
                self.cache.unpin(tip);
            }
            (seq.placed, seq.tip) = (0, None);
            if self.busy(ready) {
                self.waiting.push_front(seq);
                return None;
            }
            // alone and still too large: run it without its cached part rather than never
        }
        self.promised += seq.unplaced();
        seq.cached = seq.placed * self.params.block_tokens;
        seq.read = seq.cached;
        self.stats.prompt_tokens += seq.job.prompt_tokens as u64;
        self.stats.cached_tokens += seq.cached as u64;
        Some(seq)
    }

    fn busy(&self, ready: usize) -> bool {
        self.decoding.len() + ready > 0 || self.reading.is_some()
    }

    /// Caches the blocks that are complete by now.
    fn place(&mut self, seq: &mut Seq) {
        let whole = ((seq.read + seq.made) / self.params.block_tokens).min(seq.job.chain.len());
        if whole > seq.placed {
            seq.tip = self.cache.grow(seq.tip, &seq.job.chain[seq.placed..whole]);
            let all_in = seq.tip == Some(seq.job.chain[whole - 1]);
            // no room even though promised: only for one too large for the whole cache; it gives up caching
            let placed = if all_in { whole } else { seq.job.chain.len() + 1 };
            self.promised -= placed - seq.placed;
            seq.placed = placed;
        }
    }

    fn finish(&mut self, step: Step, out: &mut Vec<Token>) {
        self.clock = step.ends;
        let running = std::mem::take(&mut self.decoding);
        for mut seq in running.into_iter().chain(step.ready) {
            seq.made += 1;
            self.stats.generated_tokens += 1;
            let first = seq.made == 1;
            if first {
                seq.first_at = self.clock;
            }
            self.place(&mut seq);
            let ended = seq.made >= seq.job.output_tokens;
            let times = Times { ttft: seq.first_at - seq.arrived, total: self.clock - seq.arrived };
            let (cached, done) = (first.then_some(seq.cached), ended.then_some(times));
            out.push(Token { id: seq.job.id, at: self.clock, cached, done });
            if ended {
                self.stats.finished += 1;
                self.release(seq);
            } else {
                self.decoding.push(seq);
            }
        }
    }

    fn take(&mut self, id: u64) -> Option<Seq> {
        if let Some(at) = self.waiting.iter().position(|seq| seq.job.id == id) {
            return self.waiting.remove(at);
        }
        if self.reading.as_ref().is_some_and(|seq| seq.job.id == id) {
            return self.reading.take();
        }
        if let Some(at) = self.decoding.iter().position(|seq| seq.job.id == id) {
            return Some(self.decoding.swap_remove(at));
        }
        let ready = &mut self.step.as_mut()?.ready;
        let at = ready.iter().position(|seq| seq.job.id == id)?;
        Some(ready.swap_remove(at))
    }

    fn release(&mut self, seq: Seq) {
        // an admitted request has read something by the time anyone can ask
        if seq.read > 0 {
            self.promised -= seq.unplaced();
        }
        if let Some(tip) = seq.tip {
            self.cache.unpin(tip);
        }
    }
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
