//! Why tokens of a prompt had to be read again: each one is put to exactly one account. Pure. (What was saved is told
//! against taking turns: see `rotation` among the prefixes.)
//!
//! Engines hold prompts from the first token on, so a prompt is looked at as a line, and what each party knows of it
//! reaches from its beginning to some place:
//!
//! ```text
//! cached ──┤ held here, as was believed ──┤ held by another one ──┤ once held here ──┤ the session's last prompt ──┤
//!           evicted                        routing                 evicted            volatile or new               new
//! ```
//!
//! Volatile means a session whose text changes near its head (a clock in the system prompt, tools in another order), so
//! that what was read for it is of no use: its last prompt is known to have been longer, and next to nothing of this one
//! is found anywhere. A name that many conversations share looks the same.
//!
//! What is refused: to compare to the token. Sizes in tokens are estimates, and engines cache in blocks of their own; a
//! belief that is off by as much as `SLACK` has come true.

/// Blocks by which a belief may be off, and the share of it.
const SLACK: (f64, f64) = (2.0, 0.1);
/// Near the head: the part of a session's last prompt, one in this.
const HEAD: f64 = 4.0;

/// What is known of a prompt that was served, in tokens from its beginning on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Facts {
    /// Of the prompt, as reported.
    pub prompt: u64,
    /// Of these, those from the cache, as reported.
    pub cached: u64,
    /// Of one block.
    pub block: f64,
    /// Believed to be held where it went.
    pub held: f64,
    /// Held there once, evicted or not.
    pub known: f64,
    /// Believed to be held by another replica, the one with most.
    pub elsewhere: f64,
    /// Of the session's prompt before, if the session is known.
    pub before: Option<f64>,
}

/// The tokens of a prompt: those that came from the cache, those that were read although they might have been there, and
/// those that could not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accounts {
    /// They came from the cache.
    pub cached: u64,
    /// Never seen before.
    pub new: u64,
    /// Another replica held them.
    pub routing: u64,
    /// They were there.
    pub evicted: u64,
    /// Of a session whose text changes near its head.
    pub volatile: u64,
}

impl Accounts {
    /// The accounts of what was read by name; the names are metric labels.
    pub fn all(self) -> [(&'static str, u64); 4] {
        [("new", self.new), ("routing", self.routing), ("evicted", self.evicted), ("volatile", self.volatile)]
    }

    /// All accounts, that of what was not read first.
    pub fn whole(self) -> [(&'static str, u64); 5] {
        let [new, routing, evicted, volatile] = self.all();
        [("cached", self.cached), new, routing, evicted, volatile]
    }

    /// Their sum: the prompt.
    pub fn total(self) -> u64 {
        self.whole().iter().map(|(_, tokens)| tokens).sum()
    }
}

/// Puts what was read of a prompt to accounts.
#[expect(clippy::cast_precision_loss, reason = "tokens of a prompt fit a float")]
pub fn account(facts: &Facts) -> Accounts {
    let mut line = Line { at: facts.cached, end: facts.prompt };
    let cached = facts.cached as f64;
    let slack = |place: f64| SLACK.0 * facts.block + SLACK.1 * place;
    let reach = |place: f64| if place - cached <= slack(place) { 0.0 } else { place };
    let (held, elsewhere, known) = (reach(facts.held), reach(facts.elsewhere), reach(facts.known));
    let mut evicted = line.up_to(held);
    let routing = line.up_to(elsewhere);
    evicted += line.up_to(known);
    let found = cached.max(facts.held).max(facts.elsewhere).max(facts.known);
    let is_volatile = |before: &f64| found * HEAD < *before && facts.block <= *before;
    let volatile = facts.before.filter(is_volatile).map_or(0, |before| line.up_to(before));
    Accounts { cached: facts.cached.min(facts.prompt), new: line.up_to(f64::INFINITY), routing, evicted, volatile }
}

/// The part of a prompt that is in no account yet.
struct Line {
    at: u64,
    end: u64,
}

impl Line {
    /// Takes the tokens before `place`.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, and is clamped after")]
    fn up_to(&mut self, place: f64) -> u64 {
        let place = (place as u64).min(self.end);
        let taken = place.saturating_sub(self.at);
        self.at += taken;
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FACTS: Facts =
        Facts { prompt: 10_000, cached: 0, block: 100.0, held: 0.0, known: 0.0, elsewhere: 0.0, before: None };

    fn of(facts: Facts) -> [u64; 4] {
        account(&facts).all().map(|(_, n)| n)
    }

    #[test]
    fn every_kind_of_repeated_work_has_its_account() {
        // [new, routing, evicted, volatile]
        assert_eq!(of(FACTS), [10_000, 0, 0, 0]);
        assert_eq!(of(Facts { cached: 9_000, held: 9_000.0, known: 9_000.0, ..FACTS }), [1000, 0, 0, 0]);
        assert_eq!(of(Facts { elsewhere: 8_000.0, ..FACTS }), [2_000, 8_000, 0, 0]);
        assert_eq!(of(Facts { cached: 1_000, held: 8_000.0, known: 8_000.0, ..FACTS }), [2_000, 0, 7_000, 0]);
        // it was known to be evicted here, and another one held some of it
        assert_eq!(of(Facts { known: 8_000.0, elsewhere: 5_000.0, ..FACTS }), [2_000, 5_000, 3_000, 0]);
        // what was believed here does not count against the choice, whoever else held it
        let both = Facts { held: 6_000.0, known: 6_000.0, elsewhere: 8_000.0, ..FACTS };
        assert_eq!(of(both), [2_000, 2_000, 6_000, 0]);
    }

    #[test]
    fn a_known_session_that_changes_near_its_head_is_volatile() {
        let session = Facts { before: Some(9_000.0), ..FACTS };
        assert_eq!(of(session), [1_000, 0, 0, 9_000]);
        assert_eq!(of(Facts { cached: 500, held: 500.0, ..session }), [1_000, 0, 0, 8_500]);
        // it breaks in the middle: that is an edit, or another turn
        assert_eq!(of(Facts { cached: 5_000, held: 5_000.0, ..session }), [5_000, 0, 0, 0]);
        // a long turn after a short one
        assert_eq!(of(Facts { cached: 500, held: 500.0, before: Some(500.0), ..FACTS }), [9_500, 0, 0, 0]);
    }

    #[test]
    fn an_estimate_that_is_a_little_off_blames_nobody() {
        let near = Facts { cached: 9_000, held: 9_800.0, known: 9_800.0, elsewhere: 9_800.0, ..FACTS };
        assert_eq!(of(near), [1_000, 0, 0, 0]);
    }

    proptest! {
        #[test]
        fn accounts_sum_to_what_was_read(
            prompt in 0u64..300_000, cached in 0u64..300_000, block in 0.0f64..9000.0, held in 0.0f64..4e5,
            known in 0.0f64..4e5, elsewhere in 0.0f64..4e5, before in prop::option::of(0.0f64..4e5),
        ) {
            let facts = Facts { prompt, cached, block, held, known, elsewhere, before };
            let accounts = account(&facts);
            prop_assert_eq!(accounts.total(), prompt);
            prop_assert_eq!(accounts.cached, cached.min(prompt));
            prop_assert!(before.is_some() || accounts.volatile == 0);
            prop_assert!(elsewhere > 0.0 || accounts.routing == 0);
            prop_assert!(held.max(known) > 0.0 || accounts.evicted == 0);
        }
    }
}
