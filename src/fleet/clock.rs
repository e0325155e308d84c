//! The fleet's clock: milliseconds since its beginning, for what policy needs of time. One that is set by hand lets a
//! fleet live in virtual time: a simulation, or decisions that are made again from a journal.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// A clock that every replica's work is measured on. Clones show the same time. It goes on when another process takes over.
#[derive(Clone, Debug)]
pub struct Clock(Source);

/// Sets a clock that does not go by itself.
#[derive(Debug)]
pub struct Hand(Arc<AtomicU64>);

#[derive(Clone, Debug)]
enum Source {
    Real {
        since: Instant,
        /// What it showed then.
        then: f64,
    },
    /// Milliseconds as bits. Relaxed: whoever sets it orders what happens.
    Manual(Arc<AtomicU64>),
}

thread_local! {
    /// What every clock that goes by itself shows on this thread, while it is held.
    static HELD: Cell<Option<f64>> = const { Cell::new(None) };
}

/// Holds the clocks of this thread at a time, or lets them go on.
pub(super) fn hold(at: Option<f64>) {
    HELD.set(at);
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
            Source::Real { since, then } => HELD.get().unwrap_or_else(|| then + since.elapsed().as_secs_f64() * 1000.0),
            Source::Manual(time) => f64::from_bits(time.load(Relaxed)),
        }
    }

    /// A clock that shows `now`.
    pub fn at(now: f64) -> Self {
        Clock(Source::Real { since: Instant::now(), then: now })
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
        Clock::at(0.0)
    }
}

/// A time that never was, as bits.
pub(super) fn never() -> AtomicU64 {
    AtomicU64::new(0)
}

/// A time as bits that are ordered as times are: the bits of positive numbers.
pub(super) fn time_bits(now: f64) -> u64 {
    now.max(f64::MIN_POSITIVE).to_bits()
}

/// The time that the bits say; minus infinity if there was none.
pub(super) fn time_of(bits: u64) -> f64 {
    if bits == 0 { f64::NEG_INFINITY } else { f64::from_bits(bits) }
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
