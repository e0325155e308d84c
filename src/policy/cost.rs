//! The price of a request on a replica, in milliseconds.
//!
//! ```text
//! price(r) = time until the prompts promised to r are read
//!          + time to read what r does not hold of this one        (dearer in a long context)
//!          + time to generate the answer in r's batch
//!          + IMPOSED × the delay that the last two mean for the n requests already at r:
//!            each waits for this prompt, and each of their tokens for one more sequence
//! ```
//!
//! A request that looks at its own first token only takes the shortest queue and forgets what it does to everybody who
//! is decoding there; pricing the imposed delay is what makes sessions stay and new ones spread, without a knob. The
//! share of it that counts may be anything from 0.3 to 1 with the same result.

use super::estimate::Rates;

/// The share of the imposed delay that counts.
const IMPOSED: f64 = 0.6;

/// What is to be placed, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tokens {
    /// Of the prompt.
    pub prompt: f64,
    /// Of one block of overlap.
    pub block: f64,
    /// Expected of the answer.
    pub output: f64,
}

/// A replica as a price sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prospect {
    /// Its rates.
    pub rates: Rates,
    /// Time until the prompts promised to it are read.
    pub queue_ms: f64,
    /// Requests there.
    pub requests: f64,
}

/// The terms of a price, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Price {
    /// Until its turn.
    pub queue: f64,
    /// To read what is not held.
    pub prefill: f64,
    /// To generate the answer.
    pub decode: f64,
    /// What it costs the others, as far as it counts.
    pub imposed: f64,
}

impl Price {
    /// The sum.
    pub fn total(&self) -> f64 {
        self.queue + self.prefill + self.decode + self.imposed
    }
}

impl Tokens {
    /// Tokens that a replica with `overlap` blocks holds, and those it does not. The last token is always read.
    pub fn split(&self, overlap: u32) -> (f64, f64) {
        let cached = (f64::from(overlap) * self.block).min((self.prompt - 1.0).max(0.0));
        (cached, (self.prompt - cached).max(1.0))
    }
}

/// The price of a request where `overlap` blocks of it are held.
pub fn price(tokens: Tokens, overlap: u32, at: &Prospect) -> Price {
    let (cached, new) = tokens.split(overlap);
    let prefill = at.rates.prefill_ms(new, cached);
    let decode = tokens.output * at.rates.step_ms(at.requests + 1.0);
    let imposed = at.requests * (prefill + tokens.output * at.rates.step_growth);
    Price { queue: at.queue_ms, prefill, decode, imposed: IMPOSED * imposed }
}

#[cfg(test)]
mod tests {
    use super::super::estimate::START;
    use super::*;
    use proptest::prelude::*;

    const TURN: Tokens = Tokens { prompt: 60_000.0, block: 512.0, output: 200.0 };

    fn at(queue_ms: f64, requests: f64) -> Prospect {
        Prospect { rates: START, queue_ms, requests }
    }

    #[test]
    fn a_warm_replica_is_left_only_when_waiting_there_costs_more_than_reading_anew() {
        let warm = |queue| price(TURN, 115, &at(queue, 4.0)).total();
        let cold = price(TURN, 40, &at(0.0, 1.0)).total();
        assert!(warm(3000.0) < cold);
        assert!(warm(12_000.0) > cold);
    }

    #[test]
    fn a_busy_batch_counts_although_nobody_waits() {
        assert!(price(TURN, 0, &at(0.0, 30.0)).total() > price(TURN, 0, &at(0.0, 3.0)).total());
    }

    proptest! {
        #[test]
        fn more_work_there_never_makes_it_cheaper_and_more_overlap_never_dearer(
            prompt in 1.0f64..200_000.0, overlap in 0u32..400, queue in 0.0f64..1e6, n in 0.0f64..300.0, more in 0.0f64..100.0,
        ) {
            let tokens = Tokens { prompt, ..TURN };
            let base = price(tokens, overlap, &at(queue, n)).total();
            prop_assert!(base.is_finite() && base > 0.0);
            prop_assert!(price(tokens, overlap, &at(queue + more, n)).total() >= base);
            prop_assert!(price(tokens, overlap, &at(queue, n + more)).total() >= base);
            prop_assert!(price(tokens, overlap + 1, &at(queue, n)).total() <= base + 1e-6);
        }
    }
}
