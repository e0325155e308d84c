//! The work promised to one replica, as far as the router that promised it can know: prompts waiting to be read, in
//! order, and sequences being decoded. Pure; time comes in as milliseconds on any clock.
//!
//! Engines read prompts one after another, so the time until a new prompt's turn is what is left of those before it.
//! When a first token comes, the next prompt begins then, whatever was predicted: errors do not add up; and those before
//! it are read, though they have not shown it yet. An answer that is not streamed shows no first token; its prompt is taken
//! for read when its predicted time is over, or a later one's first token comes.
//!
//! What others have promised the same engine is read in between. Of the time that a prompt took, it has the share that it was
//! expected to have beside what of theirs was before it: no prediction has to be right for that, only its proportions.

mod elsewhere;

pub use elsewhere::Elsewhere;

use super::cost::Prospect;
use super::estimate::Rates;
use super::flow::{Coming, Flow};
use super::room::Room;

/// One request at a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a ticket is to be ended"]
pub struct Ticket(u64);

/// What a first token told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Read {
    /// From the beginning of the prompt's turn to its first token.
    pub turn_ms: f64,
    /// As much of that as its own prompt took.
    pub took_ms: f64,
}

/// The promised work of one replica.
#[derive(Clone, Debug, Default)]
pub struct Backlog {
    next: u64,
    waiting: Vec<Waiting>,
    decoding: Vec<u64>,
    /// When the first of the waiting prompts had its turn, and how much others had promised then.
    turn_began: f64,
    turn_ahead: f64,
    /// Prefill time seen so far; a decoding sequence subtracts what stalled it.
    prefilled_ms: f64,
    flow: Flow,
    /// What other processes have promised.
    elsewhere: Elsewhere,
}

/// A backlog in a few numbers, as far as those tell what a price looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    turn_began: f64,
    /// Prefill of the first waiting prompt, and of those after it.
    first_ms: f64,
    rest_ms: f64,
    waiting: f64,
    decoding: f64,
    flow: Flow,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    ticket: u64,
    begun: f64,
    prefill_ms: f64,
    /// What it takes where nothing of it is held.
    whole_ms: f64,
    /// Whether its first token will be seen.
    streams: bool,
    /// How much others had promised when it came.
    ahead_ms: f64,
}

impl Backlog {
    /// How requests have been arriving.
    pub fn flow(&self) -> Flow {
        self.flow
    }

    /// Nobody is there, and requests have been arriving like this.
    pub fn following(flow: Flow) -> Self {
        Backlog { flow, ..Backlog::default() }
    }

    /// A request arrives whose prompt should take `prefill_ms`; `streams` if its first token will be seen.
    pub fn begin(&mut self, now: f64, prefill_ms: f64, streams: bool) -> Ticket {
        self.begin_with(now, (prefill_ms, prefill_ms), streams)
    }

    /// The same for one that takes `whole_ms` where nothing of it is held.
    pub fn begin_with(&mut self, now: f64, (prefill_ms, whole_ms): (f64, f64), streams: bool) -> Ticket {
        self.settle(now);
        self.next += 1;
        self.flow.add(now, prefill_ms);
        if self.waiting.is_empty() {
            self.turn(now);
        }
        let ahead_ms = f64::from(self.elsewhere.queue_ms);
        self.waiting.push(Waiting { ticket: self.next, begun: now, prefill_ms, whole_ms, streams, ahead_ms });
        Ticket(self.next)
    }

    /// Its first token has come. `None` when it had come before.
    pub fn first_token(&mut self, ticket: Ticket, now: f64) -> Option<Read> {
        self.settle(now);
        let at = self.waiting.iter().position(|w| w.ticket == ticket.0)?;
        let read = self.waiting.remove(at);
        // those of one batch, or whoever shows no token: there is nothing left to read of them
        self.waiting[..at].iter_mut().for_each(|before| before.prefill_ms = 0.0);
        let turn_ms = (now - self.turn_began.max(read.begun)).max(0.0);
        // whatever came in between, its turn began no earlier than that of what was before it
        let others_ms = read.ahead_ms.min(if read.begun < self.turn_began { self.turn_ahead } else { f64::MAX });
        // nothing is left of one that was read with another
        let share = if others_ms > 0.0 && read.prefill_ms > 0.0 {
            read.prefill_ms / (read.prefill_ms + others_ms)
        } else {
            1.0
        };
        self.turn(now);
        self.prefilled_ms += turn_ms;
        self.decoding.push(ticket.0);
        Some(Read { turn_ms, took_ms: turn_ms * share })
    }

    /// The next prompt's turn begins.
    fn turn(&mut self, now: f64) {
        (self.turn_began, self.turn_ahead) = (now, f64::from(self.elsewhere.queue_ms));
    }

    /// It has ended, well or not.
    pub fn end(&mut self, ticket: Ticket, now: f64) {
        self.settle(now);
        if let Some(at) = self.waiting.iter().position(|w| w.ticket == ticket.0) {
            self.waiting.remove(at);
            if at == 0 {
                self.turn(now);
            }
        } else if let Some(at) = self.decoding.iter().position(|t| *t == ticket.0) {
            self.decoding.swap_remove(at);
        }
    }

    /// Its answer turned out to be one that shows no first token.
    pub fn shows_no_token(&mut self, ticket: Ticket) {
        if let Some(w) = self.waiting.iter_mut().find(|w| w.ticket == ticket.0) {
            w.streams = false;
        }
    }

    /// The cache is empty: what waits will be read whole, but for the first, whose turn has begun.
    pub fn emptied(&mut self, now: f64) {
        self.settle(now);
        self.waiting.iter_mut().skip(1).for_each(|w| w.prefill_ms = w.prefill_ms.max(w.whole_ms));
    }

    /// Takes the first prompts for read, as far as they show no first token and their time is over.
    fn settle(&mut self, now: f64) {
        while let Some(w) = self.waiting.first().filter(|w| !w.streams && now - self.turn_began >= w.prefill_ms) {
            self.turn_began += w.prefill_ms;
            self.prefilled_ms += w.prefill_ms;
            self.decoding.push(w.ticket);
            self.waiting.remove(0);
        }
    }

    /// How many of the first prompts are taken for read by now; see [`Self::settle`].
    fn read_meanwhile(&self, now: f64) -> usize {
        let mut left = now - self.turn_began;
        let is_read = |w: &&Waiting| {
            left -= w.prefill_ms;
            !w.streams && left >= 0.0
        };
        self.waiting.iter().take_while(is_read).count()
    }

    /// Time until the prompts promised so far are read, by whomever they were promised.
    pub fn remaining_ms(&self, now: f64) -> f64 {
        let mut elapsed = (now - self.turn_began).max(0.0);
        let mut left = 0.0;
        for (at, w) in self.waiting.iter().enumerate() {
            let done = elapsed.min(w.prefill_ms);
            left += w.prefill_ms - done;
            if w.streams {
                // a prompt whose first token is awaited holds the others up, however late it is
                return left + self.behind(at);
            }
            elapsed -= done;
        }
        left + f64::from(self.elsewhere.queue_ms)
    }

    /// Prefill of the prompts behind the one at this place, and of those that others have promised.
    fn behind(&self, at: usize) -> f64 {
        let own: f64 = self.waiting.iter().skip(at + 1).map(|w| w.prefill_ms).sum();
        own + f64::from(self.elsewhere.queue_ms)
    }

    /// Requests here.
    pub fn requests(&self) -> usize {
        self.waiting.len() + self.decoding.len()
    }

    /// What a price looks at, with these rates.
    #[expect(clippy::cast_precision_loss, reason = "requests at one replica are few")]
    pub fn prospect(&self, rates: Rates, now: f64) -> Prospect {
        let read = self.read_meanwhile(now);
        Prospect {
            rates,
            queue_ms: self.remaining_ms(now),
            waiting: (self.waiting.len() - read) as f64 + f64::from(self.elsewhere.waiting),
            decoding: (self.decoding.len() + read) as f64 + f64::from(self.elsewhere.decoding),
            coming: self.coming(now),
            room: Room::ENDLESS,
        }
    }

    /// The backlog in a few numbers; `None` while a prompt is next that shows no first token: then how many prompts are
    /// read is a matter of time.
    #[expect(clippy::cast_precision_loss, reason = "requests at one replica are few")]
    pub fn summary(&self) -> Option<Summary> {
        let first_ms = match self.waiting.first() {
            Some(first) if !first.streams => return None,
            first => first.map_or(0.0, |w| w.prefill_ms),
        };
        Some(Summary {
            turn_began: self.turn_began,
            first_ms,
            rest_ms: self.behind(0),
            waiting: self.waiting.len() as f64 + f64::from(self.elsewhere.waiting),
            decoding: self.decoding.len() as f64 + f64::from(self.elsewhere.decoding),
            flow: self.flow,
        })
    }

    /// What other processes have promised, all together.
    pub fn elsewhere(&self) -> Elsewhere {
        self.elsewhere
    }

    /// Of what others have promised, `before` is `now` from here on.
    pub fn replace_elsewhere(&mut self, before: Elsewhere, now: Elsewhere) {
        self.elsewhere = self.elsewhere.changed(before, now);
    }

    /// What this process has promised: how much is to be read and how much is being generated.
    pub fn own(&self, now: f64) -> Elsewhere {
        let read = self.read_meanwhile(now);
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive; the cast saturates")]
        let queue_ms = (self.remaining_ms(now) - f64::from(self.elsewhere.queue_ms)).ceil() as u32;
        let (waiting, decoding) = (count(self.waiting.len() - read), count(self.decoding.len() + read));
        Elsewhere { units: 0, waiting, decoding, queue_ms }
    }

    /// Who will still come, going by those who came lately.
    pub fn coming(&self, now: f64) -> Coming {
        self.flow.coming(now)
    }

    /// Sequences being decoded.
    pub fn decoding(&self) -> usize {
        self.decoding.len()
    }

    /// Prefill time seen so far.
    pub fn prefilled_ms(&self) -> f64 {
        self.prefilled_ms
    }
}

impl Summary {
    /// [`Backlog::prospect`] of the backlog that this is the summary of.
    #[inline]
    pub fn prospect(&self, rates: Rates, now: f64) -> Prospect {
        let elapsed = (now - self.turn_began).max(0.0);
        Prospect {
            rates,
            queue_ms: self.first_ms - elapsed.min(self.first_ms) + self.rest_ms,
            waiting: self.waiting,
            decoding: self.decoding,
            coming: self.flow.coming(now),
            room: Room::ENDLESS,
        }
    }

    /// As a row of numbers; see [`Self::from_row`].
    pub fn row(&self) -> [f64; 8] {
        let [at, requests, read_ms] = self.flow.row();
        [self.turn_began, self.first_ms, self.rest_ms, self.waiting, self.decoding, at, requests, read_ms]
    }

    /// What [`Self::row`] was made of.
    #[inline]
    pub fn from_row([turn_began, first_ms, rest_ms, waiting, decoding, at, requests, read_ms]: [f64; 8]) -> Self {
        let flow = Flow::from_row([at, requests, read_ms]);
        Summary { turn_began, first_ms, rest_ms, waiting, decoding, flow }
    }
}

#[cfg(test)]
mod tests {
    use super::super::estimate::START;
    use super::*;
    use proptest::prelude::*;

    /// All of a turn was the prompt's own.
    fn own(ms: f64) -> Read {
        Read { turn_ms: ms, took_ms: ms }
    }

    #[test]
    fn prompts_are_read_in_turn_and_errors_do_not_add_up() {
        let mut b = Backlog::default();
        let first = b.begin(0.0, 100.0, true);
        let second = b.begin(10.0, 50.0, true);
        assert_eq!(b.remaining_ms(20.0), 80.0 + 50.0);
        // the first is late: it is expected any moment, not in the past
        assert_eq!(b.remaining_ms(500.0), 50.0);
        assert_eq!(b.first_token(first, 500.0), Some(own(500.0)));
        assert_eq!(b.remaining_ms(500.0), 50.0);
        assert_eq!(b.first_token(second, 540.0), Some(own(40.0)));
        assert_eq!((b.remaining_ms(541.0), b.decoding(), b.requests()), (0.0, 2, 2));
        assert_eq!(b.first_token(second, 600.0), None);
        let third = b.begin(700.0, 10.0, true);
        assert_eq!(b.first_token(third, 709.0), Some(own(9.0)));
        for ticket in [first, second, third] {
            b.end(ticket, 800.0);
        }
        assert_eq!(b.requests(), 0);
    }

    #[test]
    fn what_waits_at_an_emptied_cache_is_read_whole() {
        let mut b = Backlog::default();
        let read = b.begin_with(0.0, (10.0, 9000.0), false);
        let tickets = [(100.0, 7000.0), (100.0, 5000.0), (300.0, 300.0)].map(|times| b.begin_with(0.0, times, true));
        assert_eq!(b.remaining_ms(20.0), 490.0);
        // what is read, and what is being read, holds what it found
        b.emptied(20.0);
        assert_eq!(b.remaining_ms(20.0), 90.0 + 5000.0 + 300.0);
        [read].into_iter().chain(tickets).for_each(|ticket| b.end(ticket, 30.0));
    }

    #[test]
    fn what_is_not_streamed_is_taken_for_read_after_its_time() {
        let mut b = Backlog::default();
        let whole = b.begin(0.0, 100.0, false);
        let next = b.begin(0.0, 100.0, false);
        let stream = b.begin(0.0, 100.0, true);
        let last = b.begin(0.0, 100.0, true);
        assert_eq!((b.remaining_ms(150.0), b.remaining_ms(250.0), b.remaining_ms(900.0)), (250.0, 150.0, 100.0));
        let seen = |now| (b.prospect(START, now).waiting, b.prospect(START, now).decoding);
        assert_eq!((seen(50.0), seen(150.0), seen(900.0)), ((4.0, 0.0), (3.0, 1.0), (2.0, 2.0)));
        // the two were over at 200: the streamed one's turn began then
        assert_eq!(b.first_token(stream, 340.0), Some(own(140.0)));
        assert_eq!((b.decoding(), b.prefilled_ms()), (3, 340.0));
        b.end(whole, 345.0);
        b.shows_no_token(last);
        assert_eq!((b.remaining_ms(350.0), b.remaining_ms(450.0)), (90.0, 0.0));
        for ticket in [next, stream, last] {
            b.end(ticket, 1000.0);
        }
        assert_eq!(b.requests(), 0);
    }

    #[test]
    fn whoever_is_answered_before_those_ahead_tells_that_they_are_read() {
        for streams in [true, false] {
            let mut b = Backlog::default();
            // a leader that should take 5 s takes 3; its follower's token comes first
            let leader = b.begin(0.0, 5000.0, streams);
            let follower = b.begin(10.0, 100.0, true);
            let next = b.begin(20.0, 400.0, true);
            assert_eq!(b.first_token(follower, 3100.0), Some(own(3090.0)));
            assert_eq!((b.remaining_ms(3100.0), b.requests()), (400.0, 3));
            // the leader's own token may still come, and teaches that it took no time of its own
            assert_eq!(b.first_token(leader, 3100.0), streams.then_some(own(0.0)));
            assert_eq!((b.remaining_ms(3200.0), b.prospect(START, 3200.0).decoding), (300.0, 2.0));
            for ticket in [leader, follower, next] {
                b.end(ticket, 4000.0);
            }
            assert_eq!(b.requests(), 0);
        }
    }

    proptest! {
        #[test]
        fn whatever_happens_nothing_is_left(ops in prop::collection::vec((0u8..3, 0usize..8, 0.0f64..100.0), 0..80)) {
            let mut b = Backlog::default();
            let (mut live, mut now) = (Vec::new(), 0.0);
            let elsewhere = Elsewhere { units: 3, waiting: 1, decoding: 2, queue_ms: 70 };
            b.replace_elsewhere(Elsewhere::default(), elsewhere);
            prop_assert_eq!(b.prospect(START, 0.0).queue_ms, 70.0);
            for (op, pick, time) in ops {
                now += time;
                match op {
                    0 => live.push(b.begin(now, time, pick % 2 == 0)),
                    1 => if let Some(t) = live.get(pick) { let _read = b.first_token(*t, now); },
                    _ => if pick < live.len() { b.end(live.swap_remove(pick), now) },
                }
                prop_assert_eq!(b.requests(), live.len());
                prop_assert!(b.remaining_ms(now) >= 0.0);
                let later = now + 7.0 * time;
                if let Some(summary) = b.summary() {
                    prop_assert_eq!(summary.prospect(START, later), b.prospect(START, later));
                    prop_assert_eq!(Summary::from_row(summary.row()), summary);
                }
                let all_stream = b.waiting.first().is_none_or(|w| w.streams);
                prop_assert_eq!(b.summary().is_some(), all_stream);
            }
            for t in live { b.end(t, now); }
            b.replace_elsewhere(elsewhere, Elsewhere::default());
            prop_assert_eq!((b.requests(), b.remaining_ms(now)), (0, 0.0));
            let left = b.prospect(START, now);
            prop_assert_eq!((left.queue_ms, left.waiting, left.decoding), (0.0, 0.0, 0.0));
        }
    }
}
