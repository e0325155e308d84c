//! What other processes have promised a replica that this one has requests at, too.

use crate::pack::record;

/// Requests at one replica that came by way of another process. Whole numbers: what is added and taken away leaves nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Elsewhere {
    /// Units of load reserved for them.
    pub units: u32,
    /// Those whose prompts wait to be read.
    pub waiting: u32,
    /// Those whose answers are being generated.
    pub decoding: u32,
    /// Milliseconds until their prompts are read.
    pub queue_ms: u32,
}

impl Elsewhere {
    /// How many there are.
    pub fn requests(self) -> u32 {
        self.waiting.saturating_add(self.decoding)
    }

    /// This with `after` in the place of `before`, which was part of it.
    #[must_use]
    pub fn changed(self, before: Self, after: Self) -> Self {
        let number = |own: u32, before: u32, after: u32| own.saturating_sub(before).saturating_add(after);
        Elsewhere {
            units: number(self.units, before.units, after.units),
            waiting: number(self.waiting, before.waiting, after.waiting),
            decoding: number(self.decoding, before.decoding, after.decoding),
            queue_ms: number(self.queue_ms, before.queue_ms, after.queue_ms),
        }
    }
}

record!(Elsewhere { units, waiting, decoding, queue_ms });

#[cfg(test)]
mod tests {
    use super::super::{Backlog, Read};
    use super::*;

    /// All of a turn was the prompt's own.
    fn own(ms: f64) -> Read {
        Read { turn_ms: ms, took_ms: ms }
    }

    fn elsewhere(queue_ms: u32) -> Elsewhere {
        Elsewhere { queue_ms, ..Elsewhere::default() }
    }

    #[test]
    fn the_time_in_which_others_prompts_are_read_is_not_a_prompts_own() {
        // an engine that takes twice as long as is believed
        let mut b = Backlog::default();
        b.replace_elsewhere(Elsewhere::default(), elsewhere(300));
        let first = b.begin(0.0, 100.0, true);
        assert_eq!(b.first_token(first, 800.0), Some(Read { turn_ms: 800.0, took_ms: 200.0 }));
        // theirs came between two of ours
        b.replace_elsewhere(elsewhere(300), Elsewhere::default());
        let (second, third) = (b.begin(1000.0, 100.0, true), b.begin(1000.0, 100.0, true));
        b.replace_elsewhere(Elsewhere::default(), elsewhere(100));
        let fourth = b.begin(1010.0, 100.0, true);
        assert_eq!(b.first_token(second, 1200.0), Some(own(200.0)));
        assert_eq!(b.first_token(third, 1400.0), Some(own(200.0)), "theirs came later");
        assert_eq!(b.first_token(fourth, 1800.0), Some(Read { turn_ms: 400.0, took_ms: 200.0 }));
        // theirs were read before its turn
        let (fifth, sixth) = (b.begin(2000.0, 100.0, true), b.begin(2000.0, 100.0, true));
        b.replace_elsewhere(elsewhere(100), Elsewhere::default());
        assert_eq!(b.first_token(fifth, 2400.0), Some(Read { turn_ms: 400.0, took_ms: 200.0 }));
        assert_eq!(b.first_token(sixth, 2600.0), Some(own(200.0)));
    }
}
