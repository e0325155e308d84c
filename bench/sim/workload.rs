//! The workloads by name: a fleet, a population, what happens to the fleet, and how long it is watched.

use super::clients::Clients;
use super::clients::agents::Agents;
use crate::engine::params::Params;

/// Something that happens to a replica.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// it stops, loses its cache and requests, and is back, noticed by probes, after so many ms
    Restart(f64),
    /// it loses its cache and requests and is back at once: no probe notices
    Flush,
}

/// A scenario, apart from who asks.
#[derive(Debug, Clone)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// how much slower than normal each replica is
    pub(crate) slowdown: Vec<f64>,
    pub(crate) kv_tokens: usize,
    /// not measured, ms
    pub(crate) warm_up: f64,
    /// measured, ms
    pub(crate) watch: f64,
    /// when (after the warm-up), which replica, what
    pub(crate) faults: Vec<(f64, usize, Fault)>,
    population: Population,
}

#[derive(Debug, Clone, Copy)]
enum Population {
    Agents(usize),
}

/// The name, the text for the table's title, replicas and population.
const ALL: [(&str, &str, usize, Population); 4] = [
    ("agents-2", "64 coding agents", 2, Population::Agents(64)),
    ("agents-8", "256 coding agents", 8, Population::Agents(256)),
    ("agents-40", "1200 coding agents", 40, Population::Agents(1200)),
    ("agents-100", "3000 coding agents", 100, Population::Agents(3000)),
];

/// The names of all workloads.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|&(name, ..)| name)
}

impl Workload {
    /// The workload of this name; `quick` watches it for a shorter time.
    pub(crate) fn named(name: &str, quick: bool) -> Option<Self> {
        let &(name, about, replicas, population) = ALL.iter().find(|&&(known, ..)| known == name)?;
        let (warm_up, watch) = if quick { (120e3, 60e3) } else { (240e3, 300e3) };
        let slowdown = vec![1.0; replicas];
        let kv_tokens = 4_900_000;
        Some(Self { name, about, slowdown, kv_tokens, warm_up, watch, faults: Vec::new(), population })
    }

    /// Who asks.
    pub(crate) fn clients(&self, seed: u64) -> Box<dyn Clients> {
        match self.population {
            Population::Agents(count) => Box::new(Agents::new(count, seed)),
        }
    }

    /// What one engine is made of.
    pub(crate) fn engine(&self) -> Params {
        Params {
            time_scale: 1.0,
            bytes_per_token: super::content::BYTES_PER_TOKEN,
            block_tokens: super::content::ENGINE_BLOCK,
            kv_tokens: self.kv_tokens,
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
