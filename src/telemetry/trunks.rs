//! Which beginnings of prompts are shared by most, by fingerprint: what a prefix cache lives on.
//!
//! Of each prompt the blocks at some depths are counted (1, 2, 3, 4, 6, 8, 12 and so on), in a table of fixed size in which
//! a print has four places: one that comes rarely wears down the weakest of the four before it takes that place. How many
//! sessions share a beginning is estimated from a set of 64 bits (linear counting), so that one session that grows is not
//! taken for many. Pure: the time comes in as seconds since 1970.

use parking_lot::Mutex;
use std::collections::HashMap;

/// Prints that are counted.
const PLACES: usize = 4096;
/// Places of one print.
const WAYS: usize = 4;
/// A beginning is the same trunk as a longer one that nearly as many uses have.
const NEARLY: f64 = 0.8;

/// One beginning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trunk {
    /// The fingerprint of its last counted block.
    pub print: u64,
    /// Blocks up to there; it may go on for half as many again.
    pub blocks: u32,
    /// Requests that began with it lately: those of half an hour ago count half, of an hour ago a quarter.
    pub uses: u32,
    /// Sessions among them, about; at most some hundreds are told apart.
    pub sessions: u32,
    /// When it was used last, in seconds since 1970.
    pub last: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    print: u64,
    /// The print at the depth before.
    before: u64,
    blocks: u32,
    uses: u32,
    last: u64,
    /// Sessions of this half hour and of the one before, as bits of their hashes.
    now: u64,
    then: u64,
}

/// The counters.
#[derive(Debug)]
pub struct Trunks(Mutex<Box<[Place]>>);

impl Default for Trunks {
    /// Nothing was seen yet.
    fn default() -> Self {
        Trunks(Mutex::new(vec![Place::default(); PLACES].into_boxed_slice()))
    }
}

impl Trunks {
    /// Bytes that it takes, whatever comes.
    pub const BYTES: usize = PLACES * size_of::<Place>();

    /// A request with this prompt, of this session (as a hash), ended at `now`.
    pub fn used(&self, chain: &[u64], session: u64, now: u64) {
        let places = &mut **self.0.lock();
        let mut before = 0;
        for depth in depths().take_while(|depth| *depth <= chain.len()) {
            let print = chain[depth - 1];
            let blocks = u32::try_from(depth).unwrap_or(u32::MAX);
            count(places, Place { print, before, blocks, uses: 1, last: now, now: 1 << (session % 64), then: 0 });
            before = print;
        }
    }

    /// Half an hour is over.
    pub fn age(&self) {
        for place in &mut **self.0.lock() {
            place.uses /= 2;
            (place.then, place.now) = (place.now, 0);
        }
    }

    /// Beginnings that several sessions share, those first that save most reading.
    pub fn most_shared(&self, limit: usize) -> Vec<Trunk> {
        let places = self.0.lock().clone();
        let mut longer: HashMap<u64, u32> = HashMap::new();
        for place in &places {
            let most = longer.entry(place.before).or_default();
            *most = (*most).max(place.uses);
        }
        let goes_on = |p: &Place| f64::from(longer.get(&p.print).copied().unwrap_or(0)) >= NEARLY * f64::from(p.uses);
        let shared = places.iter().filter(|p| p.uses > 1 && !goes_on(p));
        let mut trunks: Vec<Trunk> = shared.map(Place::trunk).filter(|trunk| trunk.sessions > 1).collect();
        trunks.sort_by_key(|t| std::cmp::Reverse((u64::from(t.uses - 1) * u64::from(t.blocks), t.print)));
        trunks.truncate(limit);
        trunks
    }
}

impl Place {
    fn trunk(&self) -> Trunk {
        let free = (self.now | self.then).count_zeros();
        let sessions = (64.0 / f64::from(free.max(1))).ln() * 64.0;
        let (blocks, uses, last) = (self.blocks, self.uses, self.last);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most some hundreds")]
        let sessions = (sessions.round() as u32).min(uses);
        Trunk { print: self.print, blocks, uses, sessions, last }
    }
}

/// One more use, in the place of the print, in a free one, or at the cost of the weakest.
fn count(places: &mut [Place], seen: Place) {
    let at = usize::try_from(seen.print % (PLACES / WAYS) as u64).unwrap_or(0) * WAYS;
    let ways = &mut places[at..at + WAYS];
    if let Some(own) = ways.iter_mut().find(|p| p.print == seen.print && p.blocks == seen.blocks) {
        own.uses = own.uses.saturating_add(1);
        own.last = seen.last;
        own.now |= seen.now;
    } else if let Some(weakest) = ways.iter_mut().min_by_key(|p| p.uses) {
        match weakest.uses {
            0 => *weakest = seen,
            _ => weakest.uses -= 1,
        }
    }
}

/// 1, 2, 3, 4, 6, 8, 12, 16, 24 and so on.
fn depths() -> impl Iterator<Item = usize> {
    std::iter::once(1).chain((0..usize::BITS - 2).flat_map(|n| [2 << n, 3 << n]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use xxhash_rust::xxh3::xxh3_64_with_seed;

    fn print(of: u64, block: u64) -> u64 {
        xxh3_64_with_seed(&of.to_le_bytes(), block)
    }

    /// `shared` blocks of a trunk, then `own` blocks of a session.
    fn chain(trunk: u64, shared: u64, session: u64, own: u64) -> Vec<u64> {
        (0..shared).map(|n| print(trunk, n)).chain((0..own).map(|n| print(1000 + session, n))).collect()
    }

    #[test]
    fn depths_grow_by_a_third_or_a_half() {
        assert_eq!(depths().take(10).collect::<Vec<_>>(), [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]);
    }

    #[test]
    fn trunks_are_found_and_sessions_that_grow_are_not_taken_for_them() {
        let trunks = Trunks::default();
        for session in 0..20 {
            for turn in 0..5 {
                trunks.used(&chain(1, 16, session, 3 * turn), session, 7);
            }
        }
        for turn in 0..500 {
            trunks.used(&chain(9, 0, 77, turn), 77, 8);
        }
        let found = trunks.most_shared(10);
        let best = found[0];
        assert_eq!((best.print, best.blocks, best.uses, best.last), (print(1, 15), 16, 100, 7));
        assert!((15..=25).contains(&best.sessions), "{}", best.sessions);
        assert_eq!(found.len(), 1, "{found:?}");
        trunks.age();
        assert_eq!((trunks.most_shared(10)[0].uses, trunks.most_shared(10)[0].sessions), (50, best.sessions));
        trunks.age();
        assert!(trunks.most_shared(10).is_empty(), "nobody has come for an hour");
    }

    #[test]
    fn ten_hours_of_load_take_no_more_memory_and_what_is_shared_outlives_what_is_not() {
        let trunks = Trunks::default();
        for n in 0..200_000 {
            trunks.used(&chain(n % 4, 64, n, 20), n, n / 10);
            if n % 10_000 == 0 {
                trunks.age();
            }
        }
        assert_eq!(trunks.0.lock().len() * size_of::<Place>(), Trunks::BYTES);
        const { assert!(Trunks::BYTES < 256 << 10) };
        let found: Vec<u64> = trunks.most_shared(4).iter().map(|t| t.print).collect();
        for trunk in 0..4 {
            assert!(found.contains(&print(trunk, 63)), "{trunk}");
        }
    }
}
