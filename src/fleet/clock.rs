//! The fleet's clock: milliseconds since its beginning, for what policy needs of time.

use std::sync::atomic::AtomicU64;
use std::time::Instant;

/// A clock that every replica's work is measured on. It goes on when another process takes over.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    since: Instant,
    /// What it showed then.
    then: f64,
}

impl Clock {
    /// Milliseconds since the clock's beginning.
    pub fn now(&self) -> f64 {
        self.then + self.since.elapsed().as_secs_f64() * 1000.0
    }

    /// A clock that shows `now`.
    pub fn at(now: f64) -> Self {
        Clock { since: Instant::now(), then: now }
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
