//! Which one of several connections is believed that tell of the same cache. Pure.
//!
//! An engine that is started again connects anew, and its old connection may be open for a while without another word. So
//! the one that began to tell last is believed, and what another one told is void. But an older one that tells on is another
//! engine that goes by the same name: what two caches do is true of neither. Then nobody is believed until all but one are
//! gone, instead of each in turn.

use std::sync::{Arc, Weak};

/// The connections that have told something of one cache and are open.
#[derive(Debug, Default)]
pub(super) struct Tellers {
    /// In the order in which they began.
    open: Vec<Weak<()>>,
    /// Whether several of them tell.
    is_contested: bool,
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
}

impl Tellers {
    /// This one is about to tell something.
    pub(super) fn hear(&mut self, teller: &Arc<()>) -> Word {
        self.tidy();
        let place = self.open.iter().position(|open| is(open, teller));
        if place.is_none() {
            self.open.push(Arc::downgrade(teller));
        }
        match place {
            _ if self.is_contested => Word::Ignored,
            None => Word::Begins,
            Some(at) if at + 1 == self.open.len() => Word::GoesOn,
            Some(_) => {
                self.is_contested = true;
                Word::Contests
            }
        }
    }

    /// Whether this one is believed.
    pub(super) fn believes(&self, teller: &Arc<()>) -> bool {
        !self.is_contested && self.open.last().is_some_and(|open| is(open, teller))
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
        self.is_contested &= self.open.len() > 1;
    }
}

fn is(open: &Weak<()>, teller: &Arc<()>) -> bool {
    open.as_ptr() == Arc::as_ptr(teller)
}

#[cfg(test)]
mod tests {
    use super::Word::{Begins, Contests, GoesOn, Ignored};
    use super::*;

    #[test]
    fn the_last_one_that_began_is_believed_and_nobody_while_two_tell_at_once() {
        let mut tellers = Tellers::default();
        let [a, b, c] = [(); 3].map(|()| Arc::new(()));
        assert_eq!([&a, &a, &b, &b].map(|teller| tellers.hear(teller)), [Begins, GoesOn, Begins, GoesOn]);
        assert!(tellers.believes(&b) && !tellers.believes(&a));
        assert!(!tellers.leaves(&a) && tellers.believes(&b), "it was silent");
        assert_eq!(
            [&a, &b, &a, &b, &c].map(|teller| tellers.hear(teller)),
            [Begins, Contests, Ignored, Ignored, Ignored]
        );
        assert!(![&a, &b, &c].iter().any(|teller| tellers.believes(teller)));
        assert!(!tellers.leaves(&c));
        assert_eq!(tellers.hear(&a), Ignored);
        // one of them goes without a word
        drop(b);
        assert_eq!([&a, &a].map(|teller| tellers.hear(teller)), [GoesOn; 2]);
        assert!(tellers.leaves(&a) && !tellers.leaves(&a));
    }
}
