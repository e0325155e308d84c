//! How requests have been arriving at one replica lately, and so how many will still come. Pure; time comes in as
//! milliseconds on any clock.
//!
//! Work that is added to a backlog delays not only those who are there: everybody who comes before it is done waits
//! longer too. At `rate` arrivals a millisecond, adding `read` to a backlog of `backlog` delays `rate × backlog` of them
//! by all of it and those of the last stretch by a half on average; and since those who come bring work of their own,
//! which keeps the queue alive longer, all of it counts `1 / (1 − share)` times, `share` being the part of time that
//! arriving prompts take to read:
//!
//! ```text
//! delay of those to come = rate × read × (backlog + read / 2) / (1 − share)
//! ```
//!
//! This is the mean delay of a queue with one server, as in any textbook (Pollaczek and Khinchine).

use crate::pack::record;

/// Over how long arrivals are averaged, in milliseconds.
const MEMORY_MS: f64 = 60_000.0;
/// A queue that is fuller than this would never be empty again; it is the present that is wanted.
const MOST_SHARE: f64 = 0.9;

/// Arrivals at a replica and the work they bring, old ones forgotten exponentially.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Flow {
    at: f64,
    requests: f64,
    read_ms: f64,
}

record!(Flow { at, requests, read_ms });

/// What is to be expected.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Coming {
    /// Requests a millisecond.
    pub rate: f64,
    /// The part of the time that reading their prompts takes, below 1.
    pub share: f64,
}

impl Flow {
    /// A request arrives whose prompt takes `read_ms`.
    pub fn add(&mut self, now: f64, read_ms: f64) {
        let kept = self.kept(now);
        *self = Flow { at: now, requests: self.requests * kept + 1.0, read_ms: self.read_ms * kept + read_ms };
    }

    /// What is to be expected.
    #[inline]
    pub fn coming(&self, now: f64) -> Coming {
        if self.requests <= 0.0 {
            return Coming::default();
        }
        let kept = self.kept(now) / MEMORY_MS;
        Coming { rate: self.requests * kept, share: (self.read_ms * kept).min(MOST_SHARE) }
    }

    /// As a row of numbers; see [`Self::from_row`].
    pub fn row(&self) -> [f64; 3] {
        [self.at, self.requests, self.read_ms]
    }

    /// What [`Self::row`] was made of.
    #[inline]
    pub fn from_row([at, requests, read_ms]: [f64; 3]) -> Self {
        Flow { at, requests, read_ms }
    }

    fn kept(&self, now: f64) -> f64 {
        ((self.at - now).min(0.0) / MEMORY_MS).exp()
    }
}

impl Coming {
    /// How much longer those to come wait in all when `read` is added to `backlog` (both in milliseconds).
    #[inline]
    pub fn delay(&self, backlog: f64, read: f64) -> f64 {
        self.rate * read * (backlog + read / 2.0) / (1.0 - self.share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_steady_stream_is_seen_as_it_is_and_forgotten_when_it_ends() {
        let mut flow = Flow::default();
        for n in 0..600 {
            flow.add(f64::from(n) * 500.0, 200.0);
        }
        let Coming { rate, share } = flow.coming(300_000.0);
        assert!((rate / 0.002 - 1.0).abs() < 0.02 && (share / 0.4 - 1.0).abs() < 0.02, "{rate} {share}");
        assert!(flow.coming(900_000.0).rate < 0.0001 * rate);
    }

    #[test]
    fn work_delays_those_to_come_by_what_it_lasts() {
        let coming = Coming { rate: 0.01, share: 0.5 };
        // ten come while a second of backlog is read, each waits 100 ms longer, and they bring as much work again
        assert!((coming.delay(1000.0, 100.0) - 2.0 * (10.0 * 100.0 + 50.0)).abs() < 1e-9);
        assert_eq!(Coming::default().delay(1000.0, 100.0), 0.0);
    }

    proptest! {
        #[test]
        fn it_stays_finite_and_grows_with_work(seen in prop::collection::vec((0.0f64..1e6, 0.0f64..1e6), 0..60), read in 0.0f64..1e6) {
            let (mut flow, mut now) = (Flow::default(), 0.0);
            for (gap, read) in seen {
                now += gap;
                flow.add(now, read);
            }
            let coming = flow.coming(now);
            prop_assert!(coming.delay(10.0, read).is_finite() && (0.0..=MOST_SHARE).contains(&coming.share));
            prop_assert!(coming.delay(20.0, read + 1.0) >= coming.delay(10.0, read));
        }
    }
}
