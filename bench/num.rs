//! Number conversions and a seeded generator, in one place because each lossy cast needs its reason.
//!
//! The generator is SplitMix64: a dozen lines, the same on every machine, and good enough to shape load.

use std::time::Duration;

/// A non-negative float as a whole number; negative and NaN become 0, too large saturates.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate, which is meant")]
pub(crate) fn whole(x: f64) -> u64 {
    x as u64
}

/// Like [`whole`], for sizes and indices.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate, which is meant")]
pub(crate) fn size(x: f64) -> usize {
    x as usize
}

/// A count as a float: exact below 2^53.
#[expect(clippy::cast_precision_loss, reason = "counts of a simulation are far smaller")]
pub(crate) fn to_float(x: u64) -> f64 {
    x as f64
}

/// A wire number as a size; what does not fit saturates.
pub(crate) fn to_size(x: u64) -> usize {
    usize::try_from(x).unwrap_or(usize::MAX)
}

/// Milliseconds as a duration; never negative.
pub(crate) fn millis(ms: f64) -> Duration {
    Duration::from_nanos(whole(ms * 1e6))
}

/// A duration as milliseconds.
pub(crate) fn as_millis(d: Duration) -> f64 {
    d.as_secs_f64() * 1e3
}

/// `part / all`, 0 when there is nothing.
pub(crate) fn share(part: f64, all: f64) -> f64 {
    if all > 0.0 { part / all } else { 0.0 }
}

/// SplitMix64.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// A generator for one purpose: the same parts give the same numbers.
    pub(crate) fn of(parts: &[u64]) -> Self {
        let mut rng = Self(0x9e37_79b9_7f4a_7c15);
        for part in parts {
            rng.0 ^= mix(part.wrapping_add(rng.0));
            rng.next();
        }
        rng
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// In `0.0..1.0`.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// In `low..high`.
    pub(crate) fn between(&mut self, low: f64, high: f64) -> f64 {
        low + self.unit() * (high - low)
    }

    /// True with this probability.
    pub(crate) fn chance(&mut self, p: f64) -> bool {
        self.unit() < p
    }
}

/// The finalizer of SplitMix64: every input bit reaches every output bit.
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_parts_same_numbers_and_order_matters() {
        assert_eq!(Rng::of(&[1, 2]).next(), Rng::of(&[1, 2]).next());
        assert_ne!(Rng::of(&[1, 2]).next(), Rng::of(&[2, 1]).next());
    }

    #[test]
    fn unit_stays_in_range() {
        let mut rng = Rng::of(&[7]);
        assert!((0..10_000).all(|_| (0.0..1.0).contains(&rng.unit())));
    }
}
