//! Whether a batch follows the one before it, from their numbers. Pure.

/// The number of the last batch of a publisher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sequence(Option<u64>);

/// What the number of a batch says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing is missing.
    Follows,
    /// Those from this number on are.
    Missing(u64),
    /// The publisher has begun anew: what it said before is of another engine.
    Anew,
}

impl Sequence {
    /// What number `n` says; the next one is held against it.
    pub(super) fn step(&mut self, n: u64) -> Step {
        let before = self.0.replace(n);
        match before {
            None if n == 0 => Step::Follows,
            None => Step::Missing(0),
            Some(last) if Some(n) == last.checked_add(1) => Step::Follows,
            Some(last) if n <= last => Step::Anew,
            Some(last) => Step::Missing(last + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_told_from_a_new_beginning() {
        let mut sequence = Sequence::default();
        let steps = [0, 1, 2, 5, 6, 0, 1, u64::MAX, 3].map(|n| sequence.step(n));
        let gap = |from| Step::Missing(from);
        assert_eq!(
            steps,
            [
                Step::Follows,
                Step::Follows,
                Step::Follows,
                gap(3),
                Step::Follows,
                Step::Anew,
                Step::Follows,
                gap(2),
                Step::Anew
            ]
        );
        assert_eq!(Sequence::default().step(7), gap(0));
    }
}
