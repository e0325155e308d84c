//! Where turns go when there is more than one address: the three ways a client could spread them without a router.
//!
//! They frame what a router does: `sticky` knows sessions and nothing else, `rotate` knows nothing, `least` knows how
//! many requests are open.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::client::authority;
use crate::num::to_size;

/// How turns are spread over several addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Spread {
    /// each developer or session keeps to one address
    Sticky,
    /// the next address each turn
    Rotate,
    /// the address with the fewest open requests; ties by turn
    Least,
}

impl Spread {
    /// The word on the command line.
    pub(crate) fn parse(word: &str) -> Option<Self> {
        <Self as clap::ValueEnum>::from_str(word, false).ok()
    }
}

/// The addresses under load.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    hosts: Arc<[(String, AtomicUsize)]>,
    spread: Spread,
}

/// One turn's address; the turn counts as open until this is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    hosts: Arc<[(String, AtomicUsize)]>,
    at: usize,
}

impl Seat {
    pub(crate) fn host(&self) -> &str {
        &self.hosts[self.at].0
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // ordering: a count that guards nothing
        self.hosts[self.at].1.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Target {
    /// From URLs or plain host:port addresses; at least one.
    pub(crate) fn of(urls: &[String], spread: Spread) -> Result<Self, String> {
        let hosts = urls.iter().map(|url| Ok((authority(url)?.to_owned(), AtomicUsize::new(0))));
        let hosts: Arc<[(String, AtomicUsize)]> = hosts.collect::<Result<_, String>>()?;
        if hosts.is_empty() { Err("no target".to_owned()) } else { Ok(Self { hosts, spread }) }
    }

    /// Takes the address for this turn of a session; `number` counts what rotates.
    pub(crate) fn seat(&self, session: u64, number: u64) -> Seat {
        let count = self.hosts.len();
        let (session, turn) = (to_size(session % count as u64), to_size(number % count as u64));
        let at = match self.spread {
            Spread::Sticky => session,
            Spread::Rotate => turn,
            Spread::Least => {
                let open = |at: &usize| self.hosts[*at].1.load(Ordering::Relaxed);
                (0..count).map(|step| (turn + step) % count).min_by_key(open).unwrap_or(0)
            }
        };
        self.hosts[at].1.fetch_add(1, Ordering::Relaxed);
        Seat { hosts: Arc::clone(&self.hosts), at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(spread: Spread) -> Target {
        Target::of(&["http://a:1".to_owned(), "http://b:2".to_owned()], spread).unwrap()
    }

    #[test]
    fn each_way_does_what_it_says() {
        let sticky = target(Spread::Sticky);
        assert_eq!((sticky.seat(3, 0).host(), sticky.seat(3, 1).host()), ("b:2", "b:2"));
        let rotate = target(Spread::Rotate);
        assert_eq!((rotate.seat(3, 3).host(), rotate.seat(3, 4).host()), ("b:2", "a:1"));
        let least = target(Spread::Least);
        let first = least.seat(0, 0);
        assert_eq!((first.host(), least.seat(0, 0).host()), ("a:1", "b:2"));
        drop(first);
        assert_eq!(least.seat(0, 0).host(), "a:1");
    }
}
