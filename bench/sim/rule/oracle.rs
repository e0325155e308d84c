//! The reference: it sees every engine's true cache, queue, batch and rates, and knows how long each answer will be.
//!
//! Two objectives, of which a workload's better one counts: the earliest first token for this request; or its whole time
//! there plus the delay it imposes on those already there (its prefill stalls every stream that runs then, its decode
//! makes their steps longer). Neither knows the future: who comes next, and which sessions will follow this choice.

use std::collections::HashMap;

use super::simple::Inflight;
use super::{Decision, End, Knowledge, Request, Rule};
use crate::engine::schedule::Engine;
use crate::sim::content::ENGINE_BLOCK;

/// What a request would find at one engine.
#[derive(Debug, Clone, Copy)]
struct Forecast {
    /// prompt tokens cached when its turn comes
    cached: usize,
    /// ms until the first token
    ttft: f64,
    /// ms until the last one
    whole: f64,
    /// ms added to all others there together
    imposed: f64,
}

/// See the module header.
#[derive(Debug)]
pub(super) struct Oracle {
    /// weight of what is imposed; `None`: only the first token counts
    others: Option<f64>,
    /// tokens each waiting request will have to read
    to_read: HashMap<u64, usize>,
    turns: Inflight,
}

impl Oracle {
    /// Takes the earliest first token.
    pub(super) fn own_ttft(replicas: usize) -> Self {
        Self { others: None, to_read: HashMap::new(), turns: Inflight::new(replicas) }
    }

    /// Takes the least of own whole time and `others` × the delay imposed.
    pub(super) fn whole(replicas: usize, others: f64) -> Self {
        Self { others: Some(others), ..Self::own_ttft(replicas) }
    }

    fn forecast(&self, know: &Knowledge, replica: usize, now: f64) -> Forecast {
        let (engine, job) = (&know.engines[replica], know.job);
        let usable = (job.prompt_tokens.saturating_sub(1) / ENGINE_BLOCK).min(job.chain.len());
        let chain = &job.chain[..usable];
        let (mut held, mut before, mut queued) = (engine.matched(chain), 0, 0);
        for prompt in engine.queue() {
            // those ahead will have read what is shared with them
            held = held.max(shared(chain, prompt.prompt));
            before += prompt.left.or_else(|| self.to_read.get(&prompt.id).copied()).unwrap_or(0);
            queued += 1;
        }
        let cached = held * ENGINE_BLOCK;
        let own = job.prompt_tokens - cached;
        let running: Vec<usize> = engine.to_make().collect();
        let step_left = (know.busy_until[replica] - now).max(0.0);
        let batch = running.len() + queued;
        let stall = |tokens: usize| engine.steps(tokens) as f64 * engine.step_ms(batch) + engine.read_ms(tokens);
        let ttft = step_left + room_ms(engine, &running, own) + stall(before + own);
        let whole = ttft + job.output_tokens as f64 * engine.step_ms(batch + 1);
        Forecast { cached, ttft, whole, imposed: imposed(engine, &running, queued, (ttft, own, job.output_tokens)) }
    }
}

/// What a request (its wait, its tokens to read and to make) costs those already at an engine.
fn imposed(engine: &Engine, running: &[usize], queued: usize, own: (f64, usize, usize)) -> f64 {
    let (ttft, to_read, to_make) = own;
    let growth = engine.step_ms(1) - engine.step_ms(0);
    let step = engine.step_ms(running.len() + queued);
    let read = engine.read_ms(to_read);
    let by_then = (ttft - read).max(0.0) / step;
    let one = |left: f64| if left > by_then { read + (left - by_then).min(to_make as f64) * growth } else { 0.0 };
    // those ahead in the queue will run by then; what they have to make is taken as its own
    running.iter().map(|&left| one(left as f64)).sum::<f64>() + queued as f64 * one(by_then + to_make as f64)
}

/// How long until an engine has memory for so many more tokens, when all that run there keep theirs to the end.
fn room_ms(engine: &Engine, running: &[usize], tokens: usize) -> f64 {
    let missing = tokens.saturating_sub(engine.free_tokens());
    if missing == 0 || running.is_empty() {
        return 0.0;
    }
    let each = engine.capacity_tokens() / running.len().max(1);
    let mut left = running.to_vec();
    left.sort_unstable();
    let ends = left[missing.div_ceil(each.max(1)).clamp(1, left.len()) - 1];
    ends as f64 * engine.step_ms(running.len())
}

/// How many leading blocks two chains share.
fn shared(a: &[u64], b: &[u64]) -> usize {
    let n = a.len().min(b.len());
    // names chain whole prefixes: once different, always different
    let (mut low, mut high) = (0, n);
    while low < high {
        let mid = usize::midpoint(low, high);
        if a[mid] == b[mid] { low = mid + 1 } else { high = mid }
    }
    low
}

impl Rule for Oracle {
    fn place(&mut self, request: &Request, know: &Knowledge, now: f64) -> Decision {
        let forecasts: Vec<Forecast> = (0..know.engines.len()).map(|r| self.forecast(know, r, now)).collect();
        let others = self.others;
        let cost = |r: usize| match (others, &forecasts[r]) {
            (None, f) => f.ttft,
            (Some(weight), f) => f.whole + weight * f.imposed,
        };
        let replica = self.turns.least(know, cost);
        let cached = forecasts[replica].cached;
        self.to_read.insert(request.id, know.job.prompt_tokens - cached);
        Decision { replica, cached: Some(cached) }
    }

    fn end(&mut self, request: &Request, _: &End, _: f64) {
        self.to_read.remove(&request.id);
    }

    fn failed(&mut self, request: &Request, _: usize, _: f64) {
        self.to_read.remove(&request.id);
    }

    fn booked(&self) -> u64 {
        self.to_read.len() as u64
    }
}
