//! Programs that read something long and new, then ask ten things about it at once, then go on to the next.
//!
//! The branches arrive in the same instant, when nobody holds the prefix yet: a rule that only believes in finished
//! prefills reads it ten times.

use super::{Ask, Clients, Prompt, Purpose};
use crate::num::{Rng, size};

const BRANCHES: u64 = 10;

/// See the module header.
#[derive(Debug)]
pub(crate) struct Fanout {
    seed: u64,
    round: Vec<u64>,
}

impl Fanout {
    pub(crate) fn new(count: usize, seed: u64) -> Self {
        Self { seed, round: vec![0; count] }
    }

    fn rng(&self, purpose: Purpose, id: usize, number: u64) -> Rng {
        Rng::of(&[self.seed, purpose as u64, id as u64, number])
    }
}

impl<P: Prompt> Clients<P> for Fanout {
    fn start(&self) -> Vec<(f64, usize)> {
        (0..self.round.len()).map(|id| (self.rng(Purpose::Start, id, 0).between(0.0, 20e3), id)).collect()
    }

    fn wake(&mut self, id: usize, out: &mut Vec<Ask<P>>) {
        let round = self.round[id];
        let mut rng = self.rng(Purpose::Group, id, round);
        let mut prefix = P::default();
        prefix.push(self.rng(Purpose::Shared, 0, 0).next(), 2000);
        prefix.push(rng.next(), size(rng.between(20e3, 40e3)));
        for branch in 0..BRANCHES {
            let mut rng = self.rng(Purpose::Turn, id, round * BRANCHES + branch);
            let mut prompt = prefix.clone();
            prompt.push(rng.next(), size(rng.between(100.0, 800.0)));
            let answer = (rng.next(), size(rng.between(100.0, 400.0)));
            out.push(Ask { session: (id as u64) << 32 | round, named: false, prompt, answer });
        }
    }

    fn answered(&mut self, id: usize, complete: bool) -> Option<f64> {
        self.round[id] += u64::from(complete);
        Some(self.rng(Purpose::User, id, self.round[id]).between(2e3, 10e3))
    }
}
