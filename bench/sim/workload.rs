//! The workloads by name: a fleet, a population, what happens to the fleet, and how long it is watched.

use std::sync::Arc;

use super::content::Text;
use crate::clients::agents::Agents;
use crate::clients::fanout::Fanout;
use crate::clients::open::{Rag, Trace};
use crate::clients::{Clients, talk};
use crate::engine::params::Params;

/// Something that happens to a replica.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// it stops, loses its cache and requests, and is back, noticed by probes, after so many ms
    Restart(f64),
    /// it loses its cache and requests and is back at once: no probe notices
    Flush,
    /// it loses its cache but for what its requests hold: nothing shows that
    Emptied,
}

/// A scenario, apart from who asks.
#[derive(Debug, Clone)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// how much slower than normal each replica is
    pub(crate) slowdown: Vec<f64>,
    pub(crate) kv_tokens: usize,
    /// the cache of the first replica, where that is another one
    pub(crate) first_kv_tokens: Option<usize>,
    /// not measured, ms
    pub(crate) warm_up: f64,
    /// measured, ms
    pub(crate) watch: f64,
    /// when (after the warm-up), which replica, what
    pub(crate) faults: Vec<(f64, usize, Fault)>,
    /// who asks
    pub(crate) population: Population,
}

/// Who asks.
#[derive(Debug, Clone)]
pub(crate) enum Population {
    Agents(usize),
    /// with a line near the head of their prompts that changes from turn to turn
    Clocked(usize),
    Talk(talk::Shape, usize),
    Fanout(usize),
    /// requests per second
    Rag(f64),
    Trace(Arc<Trace>),
}

/// The names of all workloads that need no file.
pub(crate) const ALL: [&str; 20] = [
    "agents-2-few",
    "agents-2",
    "agents-8",
    "agents-40",
    "agents-100",
    "cold",
    "clock",
    "chat",
    "fanout",
    "rag",
    "fast",
    "slow-one",
    "slow-half",
    "tight-caches",
    "small-caches",
    "one-small",
    "restart",
    "flush",
    "emptied",
    "decode",
];
/// The workload that is a trace.
pub(crate) const TRACE: &str = "trace";

/// How long cold caches disturb: agents that start together with 50k tokens each.
const WARM_UP: f64 = 240e3;

impl Workload {
    /// The workload of this name; `quick` watches it for a shorter time.
    pub(crate) fn named(name: &str, quick: bool) -> Option<Self> {
        use Population::{Agents, Clocked, Fanout, Rag, Talk};
        let plain = |replicas, population, about| Self::plain(replicas, population, about, quick);
        let fault = |what| {
            let mut workload = plain(4, Agents(112), "112 coding agents, one replica loses its cache");
            workload.faults = vec![(workload.watch / 3.0, 1, what)];
            workload
        };
        let mut workload = match name {
            "agents-2-few" => plain(2, Agents(16), "16 coding agents"),
            "agents-2" => plain(2, Agents(64), "64 coding agents"),
            "agents-8" => plain(8, Agents(256), "256 coding agents"),
            "agents-40" => plain(40, Agents(1200), "1200 coding agents"),
            "agents-100" => plain(100, Agents(3000), "3000 coding agents"),
            "clock" => plain(4, Clocked(6), "6 coding agents whose prompts change near the head in every turn"),
            "chat" => plain(4, Talk(talk::CHAT, 800), "800 users of 24 applications"),
            "fanout" => plain(4, Fanout(16), "16 programs that ask 10 things at once about something new"),
            "rag" => plain(4, Rag(2.0), "questions about unique documents, 2 a second"),
            // four times as fast as a router supposes of engines that it does not know
            "fast" => Self {
                slowdown: vec![0.25; 8],
                ..plain(8, Rag(12.0), "questions about unique documents, 12 a second, engines that are fast")
            },
            "slow-one" => plain(4, Agents(98), "98 coding agents, one replica half as fast").slow(1),
            "slow-half" => plain(8, Agents(168), "168 coding agents, four replicas half as fast").slow(4),
            "cold" => {
                Self { warm_up: 0.0, watch: WARM_UP, ..plain(8, Agents(256), "256 coding agents find cold caches") }
            }
            // the conversations of one replica's agents weigh 1.0 to 1.8 million tokens, what they share 0.2 million more
            "tight-caches" => {
                plain(2, Agents(64), "64 coding agents, caches a little too small").with_caches(1_300_000)
            }
            "small-caches" => {
                plain(2, Agents(64), "64 coding agents, caches about half of the working set").with_caches(800_000)
            }
            "one-small" => Self {
                first_kv_tokens: Some(600_000),
                ..plain(4, Agents(98), "98 coding agents, one replica's cache an eighth of the others'")
            },
            "restart" => fault(Fault::Restart(20e3)),
            "flush" => fault(Fault::Flush),
            "emptied" => fault(Fault::Emptied),
            "decode" => plain(4, Talk(talk::DECODE, 400), "400 users, short prompts and long answers"),
            _ => return None,
        };
        workload.name = ALL.into_iter().find(|known| *known == name)?;
        Some(workload)
    }

    /// A recorded trace; `quick` ends it after a quarter.
    pub(crate) fn trace(path: &str, quick: bool) -> Result<Self, String> {
        let trace = Arc::new(Trace::read(path)?);
        let length = if quick { trace.length() / 4.0 } else { trace.length() };
        let mut workload = Self::plain(6, Population::Trace(trace), "a recorded trace", quick);
        (workload.name, workload.warm_up, workload.watch) = (TRACE, length / 10.0, length * 0.9);
        Ok(workload)
    }

    fn plain(replicas: usize, population: Population, about: &'static str, quick: bool) -> Self {
        let (warm_up, watch) = (WARM_UP, if quick { 90e3 } else { 360e3 });
        let (slowdown, faults) = (vec![1.0; replicas], Vec::new());
        Self {
            name: "",
            about,
            slowdown,
            kv_tokens: 4_900_000,
            first_kv_tokens: None,
            warm_up,
            watch,
            faults,
            population,
        }
    }

    fn slow(mut self, replicas: usize) -> Self {
        self.slowdown[..replicas].fill(2.0);
        self
    }

    fn with_caches(self, kv_tokens: usize) -> Self {
        Self { kv_tokens, ..self }
    }

    /// Who asks.
    pub(crate) fn clients(&self, seed: u64) -> Box<dyn Clients> {
        match &self.population {
            Population::Agents(count) => Box::new(Agents::new(*count, seed)),
            Population::Clocked(count) => Box::new(Agents::with_clock(*count, seed)),
            Population::Talk(shape, count) => Box::new(talk::Talk::<Text>::new(*shape, *count, seed)),
            Population::Fanout(count) => Box::new(Fanout::new(*count, seed)),
            Population::Rag(per_s) => Box::new(Rag::new(*per_s, self.warm_up + self.watch, seed)),
            Population::Trace(trace) => Box::new(trace.clone()),
        }
    }

    /// Tokens that the engines' caches hold, replica by replica.
    pub(crate) fn caches(&self) -> Vec<usize> {
        (0..self.slowdown.len()).map(|replica| self.engine(replica).kv_tokens).collect()
    }

    /// What a replica's engine is made of.
    pub(crate) fn engine(&self, replica: usize) -> Params {
        Params {
            time_scale: 1.0,
            bytes_per_token: super::content::BYTES_PER_TOKEN,
            block_tokens: super::content::ENGINE_BLOCK,
            kv_tokens: self.first_kv_tokens.filter(|_| replica == 0).unwrap_or(self.kv_tokens),
            prefill_rate: 8000.0,
            chunk_tokens: 2048,
            max_running: 256,
            max_queue: None,
            step_ms: 12.0,
            step_growth_ms: 0.15,
            max_context: 262_144,
            events_per_s: 50.0,
            model: String::new(),
        }
    }
}
