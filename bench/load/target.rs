//! Where turns go when there is more than one address: the three ways a client could spread them without a router.
//!
//! They frame what a router does: `sticky` knows sessions and nothing else, `rotate` knows nothing, `least` knows how
//! many requests are open.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::RwLock;

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
    hosts: Arc<[Host]>,
    spread: Spread,
}

#[derive(Debug)]
struct Host {
    /// where it is; changes when another process takes its place
    address: RwLock<String>,
    open: AtomicUsize,
    /// whether whoever sends requests has noticed that nobody is there
    is_down: AtomicBool,
}

/// One turn's address; the turn counts as open until this is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    hosts: Arc<[Host]>,
    at: usize,
    address: String,
}

impl Seat {
    pub(crate) fn host(&self) -> &str {
        &self.address
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // ordering: a count that guards nothing
        self.hosts[self.at].open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Target {
    /// From URLs or plain host:port addresses; at least one.
    pub(crate) fn of(urls: &[String], spread: Spread) -> Result<Self, String> {
        let host = |url: &String| {
            let address = RwLock::new(authority(url)?.to_owned());
            Ok(Host { address, open: AtomicUsize::new(0), is_down: AtomicBool::new(false) })
        };
        let hosts = urls.iter().map(host);
        let hosts: Arc<[Host]> = hosts.collect::<Result<_, String>>()?;
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
                let open = |at: &usize| self.hosts[*at].open.load(Ordering::Relaxed);
                (0..count).map(|step| (turn + step) % count).min_by_key(open).unwrap_or(0)
            }
        };
        // whoever finds nobody takes the next one
        let is_up = |at: &usize| !self.hosts[*at].is_down.load(Ordering::Relaxed);
        let at = (0..count).map(|step| (at + step) % count).find(is_up).unwrap_or(at);
        self.hosts[at].open.fetch_add(1, Ordering::Relaxed);
        let address = self.hosts[at].address.read().clone();
        Seat { hosts: Arc::clone(&self.hosts), at, address }
    }
}

impl Target {
    /// Nothing is sent to this address any more; how many requests are open there.
    pub(crate) fn leave(&self, at: usize) -> usize {
        self.hosts[at].is_down.store(true, Ordering::Relaxed);
        self.hosts[at].open.load(Ordering::Relaxed)
    }

    /// Somebody else is in its place.
    pub(crate) fn replace(&self, at: usize, url: &str) -> Result<(), String> {
        authority(url)?.clone_into(&mut self.hosts[at].address.write());
        self.hosts[at].is_down.store(false, Ordering::Relaxed);
        Ok(())
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
        let open = rotate.seat(0, 0);
        assert_eq!((open.host(), rotate.leave(0), rotate.seat(0, 0).host()), ("a:1", 1, "b:2"));
        rotate.replace(0, "http://c:3").unwrap();
        assert_eq!((open.host(), rotate.seat(0, 0).host()), ("a:1", "c:3"));
    }
}
