//! Developers with coding agents: a harness prompt that many share, a text about the repository that a few share, a
//! conversation that grows from 20k to 110k tokens and is then compacted to a summary.
//!
//! Some harnesses put a clock, a nonce or a billing line near the head of the prompt, anew for every turn: with these
//! nothing after that line is ever the beginning of a prompt again, and nobody names the session.

use super::{Ask, Clients, Prompt, Purpose, log_between};
use crate::num::{Rng, size};
use crate::sim::content::Text;

/// A conversation beyond this is compacted.
const CONTEXT: usize = 110_000;
const HARNESSES: u64 = 3;
const PER_REPOSITORY: u64 = 4;
/// Tokens before the line that changes, and of it.
const BEFORE_CLOCK: usize = 300;
const CLOCK: usize = 24;

/// See the module header.
#[derive(Debug)]
pub(crate) struct Agents {
    seed: u64,
    agents: Vec<Agent>,
    /// whether a line near the head changes from turn to turn
    has_clock: bool,
}

#[derive(Debug, Clone, Default)]
struct Agent {
    text: Text,
    /// what comes after the opening: content, tokens, whether it was generated
    said: Vec<(u64, usize, bool)>,
    turn: u64,
    compactions: u64,
}

#[derive(Debug, Clone, Copy)]
struct Turn {
    user: usize,
    answer: usize,
    think: f64,
}

impl Agents {
    /// So many developers, somewhere between a fresh start and two thirds of their context.
    pub(crate) fn new(count: usize, seed: u64) -> Self {
        let mut all = Self { seed, agents: vec![Agent::default(); count], has_clock: false };
        for id in 0..count {
            let history = all.rng(Purpose::Start, id, 0).between(1e3, 55e3);
            all.agents[id].text = all.opening(id);
            let name = all.name(Purpose::Start, id, 0);
            all.agents[id].say(name, size(history), false);
        }
        all
    }

    /// The same with a clock near the head of every prompt.
    pub(crate) fn with_clock(count: usize, seed: u64) -> Self {
        Self { has_clock: true, ..Self::new(count, seed) }
    }

    /// The prompt of a developer so far, as it reads in this turn.
    fn prompt(&self, id: usize, turn: u64) -> Text {
        let agent = &self.agents[id];
        if !self.has_clock {
            return agent.text.clone();
        }
        let repository = id as u64 / PER_REPOSITORY;
        let mut harness = self.rng(Purpose::Shared, 0, repository % HARNESSES);
        let (name, tokens) = (harness.next(), size(harness.between(14e3, 20e3)));
        let mut text = Text::default();
        text.push(name, BEFORE_CLOCK);
        text.push(self.name(Purpose::Clock, id, turn), CLOCK);
        text.push(!name, tokens - BEFORE_CLOCK);
        self.push_repository(repository, &mut text);
        for (name, tokens, is_generated) in &agent.said {
            if *is_generated { text.answer(*name, *tokens) } else { text.push(*name, *tokens) }
        }
        text
    }

    fn rng(&self, purpose: Purpose, a: usize, b: u64) -> Rng {
        Rng::of(&[self.seed, purpose as u64, a as u64, b])
    }

    fn name(&self, purpose: Purpose, a: usize, b: u64) -> u64 {
        self.rng(purpose, a, b).next()
    }

    /// What every conversation of a developer begins with.
    fn opening(&self, id: usize) -> Text {
        let repository = id as u64 / PER_REPOSITORY;
        let mut text = Text::default();
        let mut harness = self.rng(Purpose::Shared, 0, repository % HARNESSES);
        text.push(harness.next(), size(harness.between(14e3, 20e3)));
        self.push_repository(repository, &mut text);
        text
    }

    fn push_repository(&self, repository: u64, text: &mut Text) {
        let mut group = self.rng(Purpose::Group, 0, repository);
        text.push(group.next(), size(group.between(4e3, 10e3)));
    }

    fn turn(&self, id: usize, number: u64) -> Turn {
        let mut rng = self.rng(Purpose::Turn, id, number);
        let user = if rng.chance(0.04) { 7500.0 } else { log_between(&mut rng, 250.0, 3000.0) };
        let answer = log_between(&mut rng, 80.0, 500.0);
        // mostly the agent's own tools, sometimes a person reads what came
        let think = if rng.chance(0.05) { rng.between(10e3, 30e3) } else { rng.between(500.0, 5000.0) };
        Turn { user: size(user), answer: size(answer), think }
    }

    fn compact(&mut self, id: usize) {
        let number = self.agents[id].compactions;
        self.agents[id].compactions += 1;
        self.agents[id].text = self.opening(id);
        self.agents[id].said.clear();
        let mut rng = self.rng(Purpose::Summary, id, number);
        self.agents[id].say(rng.next(), size(rng.between(1e3, 3e3)), false);
    }
}

impl Agent {
    fn say(&mut self, name: u64, tokens: usize, is_generated: bool) {
        if is_generated {
            self.text.answer(name, tokens);
        } else {
            self.text.push(name, tokens);
        }
        self.said.push((name, tokens, is_generated));
    }
}

impl Clients for Agents {
    fn start(&self) -> Vec<(f64, usize)> {
        (0..self.agents.len()).map(|id| (self.rng(Purpose::Start, id, 1).between(0.0, 60e3), id)).collect()
    }

    fn wake(&mut self, id: usize, out: &mut Vec<Ask>) {
        let number = self.agents[id].turn;
        let turn = self.turn(id, number);
        let mut prompt = self.prompt(id, number);
        prompt.push(self.name(Purpose::User, id, number), turn.user);
        let answer = (self.name(Purpose::Answer, id, number), turn.answer);
        out.push(Ask { session: id as u64, named: !self.has_clock, prompt, answer });
    }

    fn answered(&mut self, id: usize, complete: bool) -> Option<f64> {
        let number = self.agents[id].turn;
        let turn = self.turn(id, number);
        if !complete {
            return Some(1000.0);
        }
        let (user, answer) = (self.name(Purpose::User, id, number), self.name(Purpose::Answer, id, number));
        let agent = &mut self.agents[id];
        agent.say(user, turn.user, false);
        agent.say(answer, turn.answer, true);
        agent.turn += 1;
        if agent.text.tokens() > CONTEXT {
            self.compact(id);
        }
        Some(turn.think)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Unshared tokens of one replica's agents (half of 64) after so many turns of each.
    fn held(turns: usize) -> usize {
        let mut all = Agents::new(64, 1);
        for _ in 0..turns {
            (0..64).for_each(|id| assert!(all.answered(id, true).is_some()));
        }
        (0..64).map(|id| all.agents[id].text.tokens() - all.opening(id).tokens()).sum::<usize>() / 2
    }

    #[test]
    fn conversations_grow_and_are_compacted() {
        let sizes = [0, 20, 40, 60].map(held);
        assert!(sizes[0] < sizes[1] && sizes[2] < sizes[1], "{sizes:?}");
        assert!(sizes.iter().all(|size| (900_000..2_000_000).contains(size)), "{sizes:?}");
        let mut all = Agents::new(64, 1);
        assert!(all.agents.iter().all(|agent| (19_000..85_000).contains(&agent.text.tokens())));
        all.has_clock = true;
        let (one, next) = (all.prompt(0, 0), all.prompt(0, 1));
        let shared = one.chain().iter().zip(next.chain()).take_while(|(a, b)| a == b).count();
        assert_eq!(shared, BEFORE_CLOCK / crate::sim::content::ENGINE_BLOCK);
        assert!(one.tokens().abs_diff(all.agents[0].text.tokens()) <= CLOCK);
    }
}
