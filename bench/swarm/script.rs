//! What the developers do: who works on which repository, what each turn adds, how long they think. Pure and seeded.
//!
//! A turn is drawn from (seed, developer, number) alone, so an answer that comes late or fails changes nothing in what
//! follows. Sizes are those of coding agents: a harness prompt with tools that all users of one harness share, a text
//! about the repository that its developers share, then tool results of a few kilobytes, now and then a large one.

use bytes::Bytes;
use clap::Args;

use crate::num::{Rng, size, to_size, whole};

/// The load. Virtual time.
#[derive(Args, Clone, Debug)]
pub(crate) struct Shape {
    /// developers, each with one agent that takes turns
    #[arg(long, default_value_t = 16)]
    pub(crate) developers: usize,
    /// the same seed gives the same conversations
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// kinds of coding harness; each has its own shared prompt of 64 to 96 KiB
    #[arg(long, default_value_t = 3)]
    pub(crate) harnesses: usize,
    /// developers per repository: those on one repository and harness share its text
    #[arg(long, default_value_t = 2)]
    pub(crate) per_repository: usize,
    /// a conversation that would exceed this is compacted to a summary
    #[arg(long, default_value_t = 120_000)]
    pub(crate) context_tokens: usize,
    /// how much of the way to compaction conversations have come at the start, at most; 0 starts all afresh
    #[arg(long, default_value_t = 0.9)]
    pub(crate) head_start: f64,
    /// multiplies every think time
    #[arg(long, default_value_t = 1.0)]
    pub(crate) think: f64,
}

/// The bytes per token that sizes are reckoned with.
pub(crate) const BYTES_PER_TOKEN: usize = 4;
const KIB: f64 = 1024.0;

/// One turn of one developer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Turn {
    pub(crate) user_bytes: usize,
    pub(crate) max_tokens: u64,
    pub(crate) think_ms: f64,
}

/// Streams of random numbers, one per purpose.
#[derive(Clone, Copy)]
enum Purpose {
    Harness = 1,
    Repository = 2,
    Turn = 3,
    Words = 4,
    Start = 5,
    Summary = 6,
}

impl Shape {
    fn rng(&self, purpose: Purpose, a: u64, b: u64) -> Rng {
        Rng::of(&[self.seed, purpose as u64, a, b])
    }

    /// Turn `number` of a developer.
    pub(crate) fn turn(&self, developer: usize, number: u64) -> Turn {
        let mut rng = self.rng(Purpose::Turn, developer as u64, number);
        let user = if rng.chance(0.04) { 30.0 * KIB } else { log_between(&mut rng, KIB, 12.0 * KIB) };
        let answer = log_between(&mut rng, 50.0, 400.0);
        // mostly the agent's own tools, sometimes a person reads what came
        let think = if rng.chance(0.05) { rng.between(10e3, 30e3) } else { rng.between(500.0, 3000.0) };
        Turn { user_bytes: size(user), max_tokens: whole(answer), think_ms: think * self.think }
    }

    /// The text a user or a tool adds on that turn.
    pub(crate) fn user_text(&self, developer: usize, number: u64, bytes: usize) -> String {
        prose(&mut self.rng(Purpose::Words, developer as u64, number), bytes)
    }

    /// What stands in for the history after a compaction.
    pub(crate) fn summary(&self, developer: usize, number: u64) -> String {
        let mut rng = self.rng(Purpose::Summary, developer as u64, number);
        let bytes = size(rng.between(4.0 * KIB, 12.0 * KIB));
        prose(&mut rng, bytes)
    }

    /// Bytes of conversation a developer has at the start, beyond what `base` bytes take.
    pub(crate) fn history_bytes(&self, developer: usize, base: usize) -> usize {
        let room = (self.context_tokens * BYTES_PER_TOKEN).saturating_sub(base) as f64;
        size(self.rng(Purpose::Start, developer as u64, 0).unit() * self.head_start.clamp(0.0, 0.95) * room)
    }

    /// Which harness a developer uses.
    pub(crate) fn harness_of(&self, developer: usize) -> usize {
        self.repository_of(developer) % self.harnesses.max(1)
    }

    /// Which repository a developer works on.
    pub(crate) fn repository_of(&self, developer: usize) -> usize {
        developer / self.per_repository.max(1)
    }

    /// The shared opening of every request of a harness: tools, then the system message. A piece of JSON.
    pub(crate) fn harness(&self, harness: usize) -> Bytes {
        let mut rng = self.rng(Purpose::Harness, harness as u64, 0);
        let total = size(rng.between(64.0 * KIB, 96.0 * KIB));
        let tools: Vec<String> = (0..20).map(|at| tool(&mut rng, at, total / 40)).collect();
        let tools = tools.join(",");
        let system = prose(&mut rng, total.saturating_sub(tools.len()));
        Bytes::from(format!(r#""tools":[{tools}],"messages":[{{"role":"system","content":"{system}"}}"#))
    }

    /// The text about a repository, as the first user message. A piece of JSON.
    pub(crate) fn repository(&self, repository: usize) -> Bytes {
        let mut rng = self.rng(Purpose::Repository, repository as u64, 0);
        let bytes = size(rng.between(16.0 * KIB, 48.0 * KIB));
        Bytes::from(format!(r#",{{"role":"user","content":"{}"}}"#, prose(&mut rng, bytes)))
    }
}

fn log_between(rng: &mut Rng, low: f64, high: f64) -> f64 {
    (rng.between(low.ln(), high.ln())).exp()
}

fn tool(rng: &mut Rng, at: usize, bytes: usize) -> String {
    let about = prose(rng, bytes.saturating_sub(160));
    format!(
        r#"{{"type":"function","function":{{"name":"tool_{at}","description":"{about}","parameters":{{"type":"object","properties":{{"path":{{"type":"string"}}}},"required":["path"]}}}}}}"#
    )
}

const WORDS: [&str; 32] = [
    "let", "the", "value", "is", "read", "from", "file", "and", "returns", "error", "when", "not", "found", "test",
    "case", "fails", "at", "line", "with", "index", "out", "of", "range", "call", "this", "function", "before",
    "write", "then", "check", "buffer", "size",
];

/// Text that needs no escaping but its line ends, which are written as JSON writes them.
pub(crate) fn prose(rng: &mut Rng, bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 64);
    while text.len() < bytes {
        let mut bits = rng.next();
        for _ in 0..10 {
            text.push_str(WORDS[to_size(bits % 32)]);
            text.push(' ');
            bits >>= 5;
        }
        text.push_str("\\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        shape: Shape,
    }

    fn shape(args: &[&str]) -> Shape {
        Line::parse_from(std::iter::once(&"x").chain(args)).shape
    }

    #[test]
    fn seed_decides_everything() {
        let (a, b, c) = (shape(&[]), shape(&[]), shape(&["--seed", "2"]));
        assert_eq!(a.turn(3, 9), b.turn(3, 9));
        assert_eq!(a.harness(1), b.harness(1));
        assert_ne!(a.turn(3, 9), c.turn(3, 9));
        assert_ne!(a.user_text(3, 9, 100), a.user_text(4, 9, 100));
    }

    #[test]
    fn sizes_are_those_of_agents() {
        let shape = shape(&[]);
        let turns: Vec<Turn> = (0..2000).map(|number| shape.turn(0, number)).collect();
        assert!(turns.iter().all(|turn| (1024..=30 * 1024).contains(&turn.user_bytes)));
        assert!(turns.iter().all(|turn| (50..=400).contains(&turn.max_tokens)));
        let mean = turns.iter().map(|turn| turn.user_bytes).sum::<usize>() / turns.len();
        assert!((4500..6500).contains(&mean), "{mean}");
        for harness in 0..3 {
            let bytes = shape.harness(harness).len();
            assert!((64 * 1024..98 * 1024).contains(&bytes), "{bytes}");
        }
    }

    #[test]
    fn neighbours_share_a_repository() {
        let shape = shape(&["--per-repository", "2"]);
        assert_eq!(shape.repository_of(0), shape.repository_of(1));
        assert_ne!(shape.repository_of(1), shape.repository_of(2));
    }
}
