//! Who asks what, when: pure, seeded state machines that the simulator wakes.
//!
//! A closed-loop client thinks, asks, waits for all its answers and thinks again; an open one asks on its own clock. What
//! is drawn for a turn depends on (seed, client, number) alone, so slow answers change nothing in what follows.

pub(crate) mod agents;
pub(crate) mod fanout;
pub(crate) mod open;
pub(crate) mod talk;

use super::content::Text;
use crate::num::Rng;

/// One request of a client.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    /// the session it belongs to, for measuring
    pub(crate) session: u64,
    /// whether the request names its session
    pub(crate) named: bool,
    /// the prompt
    pub(crate) prompt: Text,
    /// content and tokens of the answer
    pub(crate) answer: (u64, usize),
}

/// A population. Times are virtual ms.
pub(crate) trait Clients {
    /// When each client wakes first.
    fn start(&self) -> Vec<(f64, usize)>;
    /// A client wakes and asks.
    fn wake(&mut self, client: usize, out: &mut Vec<Ask>);
    /// The last of a client's open requests has ended, the turn completely or not: how long until it wakes again.
    fn answered(&mut self, client: usize, complete: bool) -> Option<f64>;
}

/// Streams of random numbers and names, one per purpose.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose {
    Shared = 1,
    Group = 2,
    Turn = 3,
    User = 4,
    Answer = 5,
    Start = 6,
    Summary = 7,
}

/// A number whose logarithm is uniform.
fn log_between(rng: &mut Rng, low: f64, high: f64) -> f64 {
    rng.between(low.ln(), high.ln()).exp()
}
