//! People who talk to an application: a system prompt that all its users share, short turns, reading in between; then
//! somebody else. With other sizes the same is decode-bound work.

use super::{Ask, Clients, Prompt, Purpose, log_between};
use crate::num::{Rng, size};

/// Ranges of what is drawn, tokens or ms.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) apps: u64,
    pub(crate) system: (f64, f64),
    pub(crate) turns: (f64, f64),
    pub(crate) user: (f64, f64),
    pub(crate) answer: (f64, f64),
    pub(crate) think: (f64, f64),
}

/// Chat with products: long instructions, short answers.
pub(crate) const CHAT: Shape = Shape {
    apps: 24,
    system: (2e3, 8e3),
    turns: (1.0, 9.0),
    user: (30.0, 600.0),
    answer: (60.0, 600.0),
    think: (5e3, 40e3),
};

/// Short prompts and long answers.
pub(crate) const DECODE: Shape = Shape {
    apps: 200,
    system: (20.0, 300.0),
    turns: (1.0, 3.0),
    user: (50.0, 400.0),
    answer: (400.0, 2500.0),
    think: (1e3, 10e3),
};

/// See the module header.
#[derive(Debug)]
pub(crate) struct Talk<P> {
    seed: u64,
    shape: Shape,
    users: Vec<User<P>>,
}

#[derive(Debug, Clone, Default)]
struct User<P> {
    text: P,
    session: u64,
    turn: u64,
    left: u64,
}

impl<P: Prompt> Talk<P> {
    pub(crate) fn new(shape: Shape, count: usize, seed: u64) -> Self {
        let mut all = Self { seed, shape, users: vec![User::default(); count] };
        (0..count).for_each(|id| all.open(id));
        all
    }

    fn rng(&self, purpose: Purpose, id: usize, number: u64) -> Rng {
        Rng::of(&[self.seed, purpose as u64, id as u64, number])
    }

    /// The next person's conversation.
    fn open(&mut self, id: usize) {
        let session = self.users[id].session + 1;
        let mut rng = self.rng(Purpose::Start, id, session);
        // some applications are used much more than others
        let app = size(self.shape.apps as f64 * rng.unit() * rng.unit());
        let mut shared = self.rng(Purpose::Shared, app, 0);
        let mut text = P::default();
        text.push(shared.next(), size(shared.between(self.shape.system.0, self.shape.system.1)));
        let left = crate::num::whole(rng.between(self.shape.turns.0, self.shape.turns.1 + 1.0));
        let turn = self.users[id].turn;
        self.users[id] = User { text, session, turn, left };
    }

    fn turn(&self, id: usize) -> (Rng, usize, usize) {
        let mut rng = self.rng(Purpose::Turn, id, self.users[id].turn);
        let user = size(log_between(&mut rng, self.shape.user.0, self.shape.user.1));
        let answer = size(log_between(&mut rng, self.shape.answer.0, self.shape.answer.1));
        (rng, user, answer)
    }

    fn names(&self, id: usize) -> (u64, u64) {
        let turn = self.users[id].turn;
        (self.rng(Purpose::User, id, turn).next(), self.rng(Purpose::Answer, id, turn).next())
    }
}

impl<P: Prompt> Clients<P> for Talk<P> {
    fn start(&self) -> Vec<(f64, usize)> {
        let at = |id| self.rng(Purpose::Start, id, 0).between(0.0, self.shape.think.1);
        (0..self.users.len()).map(|id| (at(id), id)).collect()
    }

    fn wake(&mut self, id: usize, out: &mut Vec<Ask<P>>) {
        let ((_, user, answer), (asks, says)) = (self.turn(id), self.names(id));
        let mut prompt = self.users[id].text.clone();
        prompt.push(asks, user);
        let session = (id as u64) << 32 | self.users[id].session;
        out.push(Ask { session, named: true, prompt, answer: (says, answer) });
    }

    fn answered(&mut self, id: usize, complete: bool) -> Option<f64> {
        if !complete {
            return Some(1000.0);
        }
        let ((mut rng, user, answer), (asks, says)) = (self.turn(id), self.names(id));
        let state = &mut self.users[id];
        state.text.push(asks, user);
        state.text.answer(says, answer);
        state.turn += 1;
        state.left = state.left.saturating_sub(1);
        if state.left == 0 {
            self.open(id);
        }
        Some(rng.between(self.shape.think.0, self.shape.think.1))
    }
}
