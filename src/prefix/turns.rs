//! What an engine holds at the end of a turn: the prompt and the text that it generated after it. The next turn of a
//! conversation contains both, though only the engine has read the second; how many tokens they are is what the answer
//! reports. So the end of a prompt says of the next one where it was, to the token, which matters most to prompts that
//! are shorter than a few blocks. Bounded: a table of the last turns, the older half of which goes at once.

use super::halves::Halves;
use crate::pack::record;
use crate::types::ReplicaId;

/// Turns in one half of the table.
const HALF: usize = 7 << 12;

/// The last turns by the fingerprint of the end of their prompt.
#[derive(Debug, Default)]
pub struct Turns(Halves<Turn, HALF>);

/// What is held of a turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Turn {
    /// Who answered it.
    pub replica: ReplicaId,
    /// Tokens of its prompt and of the answer.
    pub tokens: f64,
    /// Tokens of one block of its prompt: prose and source code differ, so each conversation has its own.
    pub block: f64,
}

record!(Turn { replica, tokens, block });

impl Turn {
    /// Tokens of it after the first `blocks` blocks of `block` tokens.
    pub fn after(&self, blocks: usize, block: f64) -> f64 {
        (self.tokens - f64::from(u32::try_from(blocks).unwrap_or(u32::MAX)) * block).max(0.0)
    }
}

impl Turns {
    /// A prompt that ends at `print` was answered.
    pub fn set(&mut self, print: u64, turn: Turn) {
        self.0.put(print, turn);
    }

    /// Who answered the prompt that ends at `print`.
    pub fn get(&self, print: u64) -> Option<Turn> {
        self.0.get(print)
    }

    /// What a replica answered is held no longer.
    pub fn forget(&mut self, replica: ReplicaId) {
        self.0.retain(|turn| turn.replica != replica);
    }

    /// All that is known, the older half first.
    pub fn all(&self) -> Vec<(u64, Turn)> {
        self.0.all()
    }

    /// Bytes of entries that were ever written.
    pub fn written(&self) -> usize {
        self.0.written()
    }

    /// Heap bytes, about.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_turns_are_known_and_no_more_are_kept() {
        let mut turns = Turns::default();
        let print = |n: usize| (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let turn = |n: u16| Turn { replica: ReplicaId(n), tokens: 7.0, block: 512.0 };
        for n in 0..3 * HALF {
            turns.set(print(n), turn(1));
        }
        turns.set(print(3 * HALF - 1), turn(2));
        assert_eq!((turns.get(print(3 * HALF - 1)), turns.get(print(0))), (Some(turn(2)), None));
        assert!(turns.0.len() <= 2 * HALF && turns.bytes() < 4 << 20);
    }
}
