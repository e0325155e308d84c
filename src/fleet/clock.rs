//! The fleet's clock: milliseconds since its beginning, for what policy needs of time.

use std::time::Instant;

/// A clock that every replica's work is measured on.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// Milliseconds since the clock's beginning.
    pub fn now(&self) -> f64 {
        self.0.elapsed().as_secs_f64() * 1000.0
    }
}

impl Default for Clock {
    /// A clock that begins now.
    fn default() -> Self {
        Clock(Instant::now())
    }
}
