//! The price of a request on a replica, in milliseconds.
//!
//! ```text
//! price(r) = queue     time until the prompts promised to r are read
//!          + prefill   time to read what r does not hold of this one       (dearer in a long context)
//!          + decode    time to generate the answer in r's batch, as it is to be expected
//!          + imposed   what these mean for the requests that are at r: those that wait do so longer by this prefill,
//!                      those that generate are interrupted by it, and each of their tokens takes longer for one more
//!                      sequence in the batch
//!          + coming    what they mean for the requests that will come to r before its queue is empty again
//!          + evicted   what the sessions of r lose of its cache when this one lives there, and will have to read again
//!          + later     where its session begins: what living with those at r means for its later turns, and for them
//! ```
//!
//! A request that looks at its own first token only takes the shortest queue and forgets what it does to everybody else;
//! pricing that is what makes sessions stay and new ones spread, without a knob. The weights below are part of the rule:
//! half or double any of them changes throughput by a few percent at most (`ramjet-bench sim`).
//!
//! An answer shares its batch with those who generate now, and they are half done on average; then with those who come in
//! their place, who go wherever it is cheapest by then, and so are no reason to prefer a replica now. A long answer must not
//! be sent to a longer queue for one sequence fewer that will be there for a moment. And the more come while an answer is
//! generated, the sooner such a difference is gone (`SETTLED`).
//!
//! A session stays where it begins. So for one that begins its later turns count as well ([`super::returns`]): in each of
//! them it meets as many sequences as are usually at r, those that come in a minute for as long as an answer takes. Without
//! that, replicas which hold what many sessions begin with attract them all, until their queues tell, and keep them.

use super::estimate::{Rates, START};
use super::flow::Coming;
use super::room::Room;

/// What a millisecond of this prefill counts for each request that waits there. Above 1: where some wait, those who come
/// meanwhile will, and they stay for their answers.
pub(super) const WAITING: f64 = 2.8;
/// The same for each request that generates: engines go on generating between the chunks of a prompt.
const INTERRUPTED: f64 = 0.4;
/// For how much of an answer's time those who generate now do, at most.
const NOW: f64 = 0.5;
/// Where more than twice so many come while an answer is generated, those who generate now count the less the more they
/// are: the others go where it is cheaper.
const SETTLED: f64 = 10.0;

/// What is to be placed, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tokens {
    /// Of the prompt.
    pub prompt: f64,
    /// Of one block of overlap.
    pub block: f64,
    /// Expected of the answer.
    pub output: f64,
    /// Turns that its session is expected to take after this one, where it begins with it; else 0.
    pub turns: f64,
}

/// A replica as a price sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prospect {
    /// Its rates.
    pub rates: Rates,
    /// Time until the prompts promised to it are read.
    pub queue_ms: f64,
    /// Requests there whose prompts wait to be read.
    pub waiting: f64,
    /// Requests there whose answers are being generated.
    pub decoding: f64,
    /// Those who will still come.
    pub coming: Coming,
    /// Its cache as the session of the request sees it.
    pub room: Room,
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
    /// What it costs those who are there, as far as it counts.
    pub imposed: f64,
    /// What it costs those who will come before it is read.
    pub coming: f64,
    /// What it drives out of the cache and will be read again.
    pub evicted: f64,
    /// What its session's later turns cost there.
    pub later: f64,
    /// No term: what generating takes if the batch stays as it is now. Who watches over the answer goes by that.
    pub answer: f64,
}

impl Price {
    /// The sum.
    #[inline]
    pub fn total(&self) -> f64 {
        self.queue + self.prefill + self.decode + self.imposed + self.coming + self.evicted + self.later
    }

    /// What reading costs, those included who wait for it.
    #[inline]
    pub fn reading(&self) -> f64 {
        self.prefill + self.imposed + self.coming
    }

    /// The terms by name.
    pub fn terms(&self) -> [(&'static str, f64); 7] {
        [
            ("queue", self.queue),
            ("prefill", self.prefill),
            ("decode", self.decode),
            ("imposed", self.imposed),
            ("coming", self.coming),
            ("evicted", self.evicted),
            ("later", self.later),
        ]
    }
}

impl Prospect {
    /// A replica of which nothing is known, without work.
    pub const IDLE: Prospect = Prospect {
        rates: START,
        queue_ms: 0.0,
        waiting: 0.0,
        decoding: 0.0,
        coming: Coming { rate: 0.0, share: 0.0 },
        room: Room::ENDLESS,
    };
}

impl Tokens {
    /// Tokens that a replica with `overlap` blocks and a `tail` of tokens after them holds, and those it does not. The
    /// last token is always read.
    #[inline]
    pub fn split(&self, overlap: u32, tail: f64) -> (f64, f64) {
        let cached = (f64::from(overlap) * self.block + tail).min((self.prompt - 1.0).max(0.0));
        (cached, (self.prompt - cached).max(1.0))
    }
}

/// The price of a request where `overlap` blocks of it and a `tail` of tokens are held, and where others lose `lost` tokens
/// by its session; see [`super::room`].
#[inline]
pub fn price(tokens: Tokens, (overlap, tail): (u32, f64), lost: f64, at: &Prospect) -> Price {
    let (cached, new) = tokens.split(overlap, tail);
    let prefill = at.rates.prefill_ms(new, cached);
    let requests = at.waiting + at.decoding;
    // those that are there on average: who come, for as long as an answer takes
    let step = at.rates.step_ms(requests + 1.0);
    let usual = at.coming.rate * tokens.output * step;
    let batch = requests * (SETTLED / usual.max(1.0)).min(NOW);
    let decode = tokens.output * at.rates.step_ms(batch + 1.0);
    let again = if lost > 0.0 { at.rates.prefill_ms(tokens.prompt, 0.0) * lost / tokens.prompt.max(1.0) } else { 0.0 };
    let slower = tokens.output * at.rates.step_growth;
    Price {
        queue: at.queue_ms,
        prefill,
        decode,
        imposed: (at.waiting * WAITING + at.decoding * INTERRUPTED) * prefill + batch * slower,
        // who has a request there will not come with another one
        coming: at.coming.delay(at.queue_ms, prefill).min((at.room.sessions - requests).max(0.0) * prefill),
        // it is read before what comes later, by whomever: all wait for it
        evicted: again * (1.0 + requests),
        // where many wait, they are who lives there
        later: tokens.turns * slower * usual.max(at.waiting),
        answer: tokens.output * step,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TURN: Tokens = Tokens { prompt: 60_000.0, block: 512.0, output: 200.0, turns: 0.0 };

    fn at(queue_ms: f64, requests: f64) -> Prospect {
        Prospect { queue_ms, waiting: requests / 2.0, decoding: requests / 2.0, ..Prospect::IDLE }
    }

    #[test]
    fn a_warm_replica_is_left_only_when_waiting_there_costs_more_than_reading_anew() {
        let warm = |queue| price(TURN, (115, 0.0), 0.0, &at(queue, 4.0)).total();
        let cold = price(TURN, (40, 0.0), 0.0, &at(0.0, 1.0)).total();
        assert!(warm(3000.0) < cold);
        assert!(warm(20_000.0) > cold);
    }

    #[test]
    fn a_long_answer_does_not_wait_longer_for_one_sequence_fewer() {
        let tokens = Tokens { prompt: 700.0, block: 512.0, output: 1300.0, turns: 0.0 };
        // as many as usual: they come one in 350 ms and stay for 35 s
        let coming = Coming { rate: 1.0 / 350.0, share: 0.2 };
        let total = |queue_ms, decoding| {
            let at = Prospect { queue_ms, decoding, coming, ..Prospect::IDLE };
            price(tokens, (0, 0.0), 0.0, &at).total()
        };
        assert!(total(0.0, 100.0) < total(300.0, 99.0));
        assert!(total(0.0, 100.0) > total(300.0, 90.0));
    }

    #[test]
    fn a_session_begins_where_fewer_are_usually_there_the_longer_it_is_the_more_so() {
        let at = |rate| Prospect { coming: Coming { rate, share: 0.0 }, ..at(0.0, 8.0) };
        let (few, many) = (at(0.004), at(0.005));
        let total = |turns, overlap, at: &Prospect| price(Tokens { turns, ..TURN }, (overlap, 0.0), 0.0, at).total();
        // where more of it is held
        assert!(total(0.0, 105, &few) > total(0.0, 110, &many));
        assert!(total(400.0, 105, &few) < total(400.0, 110, &many));
        // but not for any price
        assert!(total(400.0, 20, &few) > total(400.0, 110, &many));
    }

    #[test]
    fn those_who_generate_now_count_less_where_many_come_meanwhile() {
        let decode = |rate| {
            let at = Prospect { coming: Coming { rate, share: 0.0 }, ..at(0.0, 30.0) };
            let alone = Prospect { waiting: 0.0, decoding: 0.0, ..at };
            price(TURN, (0, 0.0), 0.0, &at).decode - price(TURN, (0, 0.0), 0.0, &alone).decode
        };
        assert!(decode(0.05) < 0.3 * decode(0.001) && decode(0.05) > 0.0);
        assert_eq!(decode(0.0), decode(0.001));
    }

    #[test]
    fn a_busy_batch_counts_although_nobody_waits() {
        assert!(price(TURN, (0, 0.0), 0.0, &at(0.0, 30.0)).total() > price(TURN, (0, 0.0), 0.0, &at(0.0, 3.0)).total());
    }

    proptest! {
        #[test]
        fn more_work_there_never_makes_it_cheaper_and_more_overlap_never_dearer(
            prompt in 1.0f64..200_000.0, overlap in 0u32..400, queue in 0.0f64..1e6, n in 0.0f64..300.0, more in 0.0f64..100.0,
        ) {
            let tokens = Tokens { prompt, ..TURN };
            let base = price(tokens, (overlap, 0.0), 0.0, &at(queue, n)).total();
            prop_assert!(base.is_finite() && base > 0.0);
            let terms: f64 = price(tokens, (overlap, 0.0), 0.0, &at(queue, n)).terms().iter().map(|(_, value)| value).sum();
            prop_assert!((terms - base).abs() <= 1e-9 * base);
            prop_assert!(price(tokens, (overlap, 0.0), 0.0, &at(queue + more, n)).total() >= base);
            prop_assert!(price(tokens, (overlap, 0.0), 0.0, &at(queue, n + more)).total() >= base);
            prop_assert!(price(tokens, (overlap + 1, 0.0), 0.0, &at(queue, n)).total() <= base + 1e-6);
        }
    }
}
