//! Which one of several connections is believed that tell of the same cache. Pure.
//!
//! An engine that is started again connects anew, and its old connection may be open for a while without another word. So
//! the one that began to tell last is believed, and what another one told is void. But an older one that tells on is another
//! engine that goes by the same name: what two caches do is true of neither. Then nobody is believed until all but one are
//! gone, instead of each in turn. What an old connection brings that was under way when its engine began a new one is read at
//! about that time, and its end soon after it: an operator is told when it goes on for longer than that.

use std::sync::{Arc, Weak};

/// What is under way when a connection ends is read within so many milliseconds.
const UNDER_WAY: f64 = 1000.0;

/// The connections that have told something of one cache and are open.
#[derive(Debug, Default)]
pub(super) struct Tellers {
    /// In the order in which they began.
    open: Vec<Weak<()>>,
    /// Since when several of them tell.
    contested: Option<f64>,
    /// Whether that is more than what was under way.
    is_certain: bool,
}

/// What it means that a connection tells something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// It tells on.
    GoesOn,
    /// It begins to: what another one told is of another engine, or is not whole.
    Begins,
    /// It tells on although another one has begun: neither is believed from now on.
    Contests,
    /// It is not believed.
    Ignored,
    /// Nor is it, and what was under way cannot be the reason any more.
    Disputes,
}

impl Tellers {
    /// This one is about to tell something, at `now`, in milliseconds.
    pub(super) fn hear(&mut self, teller: &Arc<()>, now: f64) -> Word {
        self.tidy();
        let place = self.open.iter().position(|open| is(open, teller));
        if place.is_none() {
            self.open.push(Arc::downgrade(teller));
        }
        let is_last = place.is_none_or(|at| at + 1 == self.open.len());
        match self.contested {
            None if place.is_none() => Word::Begins,
            None if is_last => Word::GoesOn,
            None => {
                (self.contested, self.is_certain) = (Some(now), false);
                Word::Contests
            }
            Some(since) if !is_last && !self.is_certain && now - since >= UNDER_WAY => {
                self.is_certain = true;
                Word::Disputes
            }
            Some(_) => Word::Ignored,
        }
    }

    /// Whether this one is believed.
    pub(super) fn believes(&self, teller: &Arc<()>) -> bool {
        self.contested.is_none() && self.open.last().is_some_and(|open| is(open, teller))
    }

    /// This one tells nothing more; whether it was believed.
    pub(super) fn leaves(&mut self, teller: &Arc<()>) -> bool {
        let was_believed = self.believes(teller);
        self.open.retain(|open| !is(open, teller));
        self.tidy();
        was_believed
    }

    /// Takes out those that have gone without a word.
    fn tidy(&mut self) {
        self.open.retain(|open| open.strong_count() > 0);
        self.contested = self.contested.filter(|_| self.open.len() > 1);
    }
}

fn is(open: &Weak<()>, teller: &Arc<()>) -> bool {
    open.as_ptr() == Arc::as_ptr(teller)
}

#[cfg(test)]
mod tests {
    use super::Word::{Begins, Contests, Disputes, GoesOn, Ignored};
    use super::*;

    #[test]
    fn the_last_one_that_began_is_believed_and_nobody_while_two_tell_at_once() {
        let mut tellers = Tellers::default();
        let [a, b, c] = [(); 3].map(|()| Arc::new(()));
        assert_eq!([&a, &a, &b, &b].map(|teller| tellers.hear(teller, 0.0)), [Begins, GoesOn, Begins, GoesOn]);
        assert!(tellers.believes(&b) && !tellers.believes(&a));
        assert!(!tellers.leaves(&a) && tellers.believes(&b), "it was silent");
        assert_eq!(
            [&a, &b, &a, &b, &c].map(|teller| tellers.hear(teller, 0.0)),
            [Begins, Contests, Ignored, Ignored, Ignored]
        );
        assert!(![&a, &b, &c].iter().any(|teller| tellers.believes(teller)));
        assert!(!tellers.leaves(&c));
        assert_eq!(tellers.hear(&a, 0.0), Ignored);
        // one of them goes without a word
        drop(b);
        assert_eq!([&a, &a].map(|teller| tellers.hear(teller, 0.0)), [GoesOn; 2]);
        assert!(tellers.leaves(&a) && !tellers.leaves(&a));
    }

    #[test]
    fn what_was_under_way_is_no_dispute_and_what_goes_on_is_one_once() {
        let mut tellers = Tellers::default();
        let [old, new, third] = [(); 3].map(|()| Arc::new(()));
        let said = [(&old, 0.0), (&new, 50.0), (&old, 51.0), (&old, 90.0), (&new, 95.0)];
        let heard = said.map(|(teller, now)| tellers.hear(teller, now));
        assert_eq!(heard, [Begins, Begins, Contests, Ignored, Ignored]);
        // the end of the old one is read
        tellers.leaves(&old);
        assert_eq!(tellers.hear(&new, 5000.0), GoesOn);
        assert_eq!(tellers.hear(&third, 6000.0), Begins);
        let said = [(&new, 6100.0), (&new, 7099.0), (&third, 9000.0), (&new, 9001.0), (&new, 9002.0)];
        let heard = said.map(|(teller, now)| tellers.hear(teller, now));
        assert_eq!(heard, [Contests, Ignored, Ignored, Disputes, Ignored], "the old one is silent, or is not");
        tellers.leaves(&third);
        let again = Arc::new(());
        let said = [(&again, 9003.0), (&new, 9004.0), (&new, 9005.0), (&new, 99_000.0)];
        let heard = said.map(|(teller, now)| tellers.hear(teller, now));
        assert_eq!(heard, [Begins, Contests, Ignored, Disputes], "another time");
    }
}
