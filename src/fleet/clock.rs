//! The fleet's clock: milliseconds since its beginning, for what policy needs of time. One that is set by hand lets a
//! fleet live in virtual time: a simulation, or decisions that are made again from a journal.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// A clock that every replica's work is measured on. Clones show the same time.
#[derive(Clone, Debug)]
pub struct Clock(Source);

/// Sets a clock that does not go by itself.
#[derive(Debug)]
pub struct Hand(Arc<AtomicU64>);

#[derive(Clone, Debug)]
enum Source {
    Real(Instant),
    /// Milliseconds as bits. Relaxed: whoever sets it orders what happens.
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// A clock that stands at 0 until it is set by its hand.
    pub fn manual() -> (Self, Hand) {
        let time = Arc::new(AtomicU64::new(0.0f64.to_bits()));
        (Clock(Source::Manual(time.clone())), Hand(time))
    }

    /// Milliseconds since the clock's beginning.
    pub fn now(&self) -> f64 {
        match &self.0 {
            Source::Real(beginning) => beginning.elapsed().as_secs_f64() * 1000.0,
            Source::Manual(time) => f64::from_bits(time.load(Relaxed)),
        }
    }
}

impl Hand {
    /// Sets the time, in milliseconds. It never goes back: an earlier one changes nothing.
    pub fn set(&self, now: f64) {
        // the bits of numbers that are not negative are ordered as they are
        self.0.fetch_max(now.max(0.0).to_bits(), Relaxed);
    }
}

impl Default for Clock {
    /// A clock that begins now.
    fn default() -> Self {
        Clock(Source::Real(Instant::now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_stands_until_it_is_set_and_never_goes_back() {
        let (clock, hand) = Clock::manual();
        let other = clock.clone();
        assert_eq!(clock.now(), 0.0);
        for (set, shows) in [(-3.0, 0.0), (7.5, 7.5), (2.0, 7.5), (1e12, 1e12)] {
            hand.set(set);
            assert_eq!((clock.now(), other.now()), (shows, shows));
        }
    }
}
