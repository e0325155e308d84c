//! Who asks what, when: pure, seeded state machines, woken in virtual time by `sim` and on sockets by `crowd`.
//!
//! A prompt is a list of named contents with their sizes. What becomes of the names, hashes or text, is up to the type of
//! [`Prompt`]; so a workload's shape is said once.
//!
//! A closed-loop client thinks, asks, waits for all its answers and thinks again; an open one asks on its own clock. What
//! is drawn for a turn depends on (seed, client, number) alone, so slow answers change nothing in what follows.

pub(crate) mod agents;
pub(crate) mod fanout;
pub(crate) mod open;
pub(crate) mod talk;

use crate::num::Rng;
use crate::sim::content::Text;

/// A prompt under construction.
pub(crate) trait Prompt: Clone + Default {
    /// Appends `tokens` tokens of the content called `name`. Fewer tokens of a name are the start of more of it.
    fn push(&mut self, name: u64, tokens: usize);
    /// Appends what was answered to all of it.
    fn answer(&mut self, name: u64, tokens: usize) {
        self.push(name, tokens);
    }
}

/// One request of a client.
#[derive(Debug, Clone)]
pub(crate) struct Ask<P = Text> {
    /// the session it belongs to, for measuring
    pub(crate) session: u64,
    /// whether the request names its session
    pub(crate) named: bool,
    /// the prompt
    pub(crate) prompt: P,
    /// content and tokens of the answer
    pub(crate) answer: (u64, usize),
}

/// A population. Times are virtual ms.
pub(crate) trait Clients<P = Text> {
    /// When each client wakes first.
    fn start(&self) -> Vec<(f64, usize)>;
    /// A client wakes and asks.
    fn wake(&mut self, client: usize, out: &mut Vec<Ask<P>>);
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
    Clock = 8,
}

/// A number whose logarithm is uniform.
fn log_between(rng: &mut Rng, low: f64, high: f64) -> f64 {
    rng.between(low.ln(), high.ln()).exp()
}
