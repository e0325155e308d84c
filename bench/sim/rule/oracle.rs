//! The reference: it sees every engine's true cache, queue, batch and rates, and knows how long each answer will be.
//!
//! Three objectives, of which a workload's best one counts: the earliest first token for this request; its whole time
//! there plus the delay it imposes on those already there (its prefill stalls every stream that runs then, its decode
//! makes their steps longer); or that plus the delay imposed on those who will come there before the queue is empty
//! again, at the rate at which they came lately. None knows which sessions will follow this choice.

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
    /// ms of prefill that are queued before it, and its own
    backlog: f64,
    read: f64,
}

/// See the module header.
#[derive(Debug)]
pub(super) struct Oracle {
    aim: Aim,
    /// tokens each waiting request will have to read
    to_read: HashMap<u64, usize>,
    turns: Inflight,
    flow: Vec<Flow>,
}

/// What an oracle minimises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Aim {
    /// the request's own time to first token
    Ttft,
    /// its own whole time and the delay of those present
    Whole,
    /// likewise, and the delay of those to come
    Future,
}

/// Over how long arrivals are averaged, ms.
const MEMORY_MS: f64 = 60e3;

/// Arrivals at a replica, and the prefill they bring, with exponential forgetting.
#[derive(Debug, Clone, Copy, Default)]
struct Flow {
    at: f64,
    requests: f64,
    read_ms: f64,
}

impl Flow {
    fn add(&mut self, now: f64, read_ms: f64) {
        let keep = ((self.at - now) / MEMORY_MS).exp();
        *self = Self { at: now, requests: self.requests * keep + 1.0, read_ms: self.read_ms * keep + read_ms };
    }

    /// What those to come will wait longer in all, if so much prefill is added to a backlog: each one who comes before
    /// the queue is empty by all of it, or, near the end, by a part.
    fn imposed(&self, now: f64, backlog: f64, read: f64) -> f64 {
        let keep = ((self.at - now) / MEMORY_MS).exp() / MEMORY_MS;
        let (rate, busy) = (self.requests * keep, (self.read_ms * keep).min(0.9));
        rate * read * (backlog + read / 2.0) / (1.0 - busy)
    }
}

impl Oracle {
    pub(super) fn new(replicas: usize, aim: Aim) -> Self {
        let (turns, flow) = (Inflight::new(replicas), vec![Flow::default(); replicas]);
        Self { aim, to_read: HashMap::new(), turns, flow }
    }

    fn forecast(&self, know: &Knowledge, replica: usize, now: f64) -> Forecast {
        let (engine, job) = (&know.engines[replica], know.job);
        let usable = (job.prompt_tokens.saturating_sub(1) / ENGINE_BLOCK).min(job.chain.len());
        let chain = &job.chain[..usable];
        let (mut ahead, mut before, mut queued) = (0, 0, 0);
        for prompt in engine.queue() {
            // those ahead will have read what is shared with them
            ahead = ahead.max(shared(chain, prompt.prompt));
            before += prompt.left.or_else(|| self.to_read.get(&prompt.id).copied()).unwrap_or(0);
            queued += 1;
        }
        // and may have driven out what is not
        let cached = engine.will_match(chain, before).max(ahead) * ENGINE_BLOCK;
        let own = job.prompt_tokens - cached;
        let running: Vec<usize> = engine.to_make().collect();
        let step_left = (know.busy_until[replica] - now).max(0.0);
        let batch = running.len() + queued;
        // reading goes on between decode steps, where something decodes
        let step = if batch == 0 { 0.0 } else { engine.step_ms(batch) };
        let reading = engine.steps(before + own) as f64 * step + engine.read_ms(before + own);
        let ttft = step_left + room_ms(engine, &running, own) + reading;
        let whole = ttft + job.output_tokens as f64 * engine.step_ms(batch + 1);
        let imposed = imposed(engine, &running, queued, (ttft, own, job.output_tokens));
        let (backlog, read) = (engine.read_ms(before), engine.read_ms(own));
        Forecast { cached, ttft, whole, imposed, backlog, read }
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
        let cost = |r: usize| match (self.aim, &forecasts[r]) {
            (Aim::Ttft, f) => f.ttft,
            (Aim::Whole, f) => f.whole + f.imposed,
            (Aim::Future, f) => f.whole + f.imposed + self.flow[r].imposed(now, f.backlog, f.read),
        };
        let replica = self.turns.least(know, cost);
        let Forecast { cached, ttft, .. } = forecasts[replica];
        self.flow[replica].add(now, forecasts[replica].read);
        self.to_read.insert(request.id, know.job.prompt_tokens - cached);
        Decision { ttft_ms: Some(ttft), ..Decision::counting_on(replica, cached) }
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
