//! Where a session is whose last turn went by way of another router that tells nothing. Pure.
//!
//! Routers that go by the same rendezvous agree on one replica for each name, whatever else they see. So a session whose
//! last turn this router has not seen is *presumed* to be there, with all of that turn: whoever served it presumed the
//! same. A replica that this router has sent the session to before holds less, and what is lost where the presumption is
//! wrong is what would have been read at any other one.
//!
//! Whether there are such routers at all is told by engines: what they find of such prompts and this router never sent
//! there, somebody else did. A router that is alone sees nothing of that and presumes nothing, even where clients rewrite
//! what was said, so that no turn seems to follow the one before it. After a start without what it knew before it is
//! somebody else to itself: of sessions that it has not seen since, it presumes what it would choose among equals.

/// What engines found lately, of what other routers must have had read there.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Presumption(f64);

/// What is found less often is chance.
const LEAST: f64 = 0.1;
/// How much one answer counts.
const GAIN: f64 = 0.1;
/// An estimate of less than so many blocks is none.
const BLOCKS: f64 = 2.0;

/// A prompt whose turn before went by way of another router, in tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Strange {
    /// Up to the end of the turn before.
    pub before: f64,
    /// Of that, what this router had read there.
    pub held: f64,
    /// What the engine had of the prompt.
    pub cached: f64,
    /// Of a block.
    pub block: f64,
}

impl Presumption {
    /// Whether to presume anything.
    pub fn is_worth_it(self) -> bool {
        self.0 >= LEAST
    }

    /// An answer has told of a prompt.
    pub fn learn(&mut self, prompt: Strange) {
        let Strange { before, held, cached, block } = prompt;
        let unknown = before - held;
        if block <= 0.0 || unknown < BLOCKS * block {
            return;
        }
        // an engine may have found a part of a block more than is known in whole ones
        let share = ((cached - held - block) / (unknown - block)).clamp(0.0, 1.0);
        self.0 += GAIN * (share - self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROMPT: Strange = Strange { before: 9000.0, held: 0.0, cached: 0.0, block: 500.0 };

    #[test]
    fn a_router_that_is_alone_presumes_nothing_and_one_of_several_does_after_a_few_answers() {
        let mut presumption = Presumption::default();
        // what this router had read is there, and the rest of a block
        (0..100).for_each(|_| presumption.learn(Strange { held: 6000.0, cached: 6400.0, ..PROMPT }));
        // of so little nothing can be said
        (0..100).for_each(|_| presumption.learn(Strange { held: 8600.0, cached: 9000.0, ..PROMPT }));
        assert!(!presumption.is_worth_it());
        (0..2).for_each(|_| presumption.learn(Strange { held: 6000.0, cached: 9000.0, ..PROMPT }));
        assert!(presumption.is_worth_it());
        (0..50).for_each(|_| presumption.learn(PROMPT));
        assert!(!presumption.is_worth_it());
    }
}
