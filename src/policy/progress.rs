//! Whether a replica that has work shows any progress, pure: requests are there, and nothing is generated for any of
//! them for much longer than is usual.
//!
//! What is usual follows from what each prompt should take there (the learned rates) and from how late first tokens have
//! been of late (*lateness*, high until something is known). A long prompt is read in silence, and engines that read
//! prompts one after another let a question wait behind it. So suspicion is cheap and a verdict is not:
//! - **Suspect:** nothing for `silence`, for twice what the first prompt should take, and for longer than any silence
//!   there of late that ended. The replica is asked for a token.
//! - **Not frozen:** it answers, or says that it is busy. It is asked again later and later.
//! - **Not known:** it does not understand the question, or refuses it. Then no silence is proof: an engine that says nothing
//!   while a tool call is generated, or whose client reads no further, looks the same. It is asked again later and later.
//! - **Frozen:** the question went unanswered, and the silence is `factor` times what the prompts that explain it should
//!   take together, and `factor` times the longest silence of late; twice that while no other replica with work shows
//!   progress either: then the cause may be elsewhere.
//!
//! What explains a silence are the unread prompts that were there when it began, and the longest of those that came since:
//! engines that do not read in turn may have begun with that one, and each further one would have shown its first token.
//! So what piles up before a frozen engine makes nobody more patient.
//!
//! A silence is one of the whole replica: a long wait for a first token while others generate is none, and makes nobody
//! more patient. It is counted while there are requests, so clients that give up and come back do not hide a frozen engine,
//! and an idle one is not blamed; nor is it for the time of a request that it answered without generating anything. An
//! answer that is not streamed shows nothing until all of it is generated, and a question waits in the engine's own queue
//! while its batch is full. So where more is open than half of what it was ever seen to generate at once, it gets the time
//! for a long answer; but not where two streams have fallen silent after their first tokens, which no full batch explains.

use super::backlog::Ticket;

/// Lateness until first tokens have been seen.
const UNKNOWN: f64 = 4.0;
/// The most that is believed.
const LATEST: f64 = 32.0;
/// How fast lateness is forgotten.
const FORGET: f64 = 0.1;
/// How much of the longest silence is left at the next first token.
const REMEMBER: f64 = 0.85;
/// What comes so soon after a silence began was there at its beginning, in milliseconds.
const EARLY_MS: f64 = 200.0;
/// How much longer than usual a whole answer may take.
const LONG_ANSWER: f64 = 8.0;
/// Suspicion comes at so many times what the first prompt should take.
const SUSPECT: f64 = 2.0;
/// An engine has room for a question where it has generated for so many times as many requests at once.
const ROOMY: usize = 2;
/// So many streams that were being generated do not fall silent together by chance.
const STALLED: usize = 2;
/// Silence of earlier requests is forgotten after so long without any, in milliseconds.
const FORGIVE_MS: f64 = 60_000.0;

/// The operator's limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// The least silence that is suspicious, in milliseconds.
    pub silence_ms: f64,
    /// How many times longer than usual a silence is that cannot be honest.
    pub factor: f64,
}

/// One request.
#[derive(Clone, Copy, Debug)]
struct Open {
    ticket: Ticket,
    /// What is left to read of its prompt, as expected, and all of it.
    prefill_ms: f64,
    whole_ms: f64,
    /// What its answer should take.
    decode_ms: f64,
    /// Whether its tokens are seen.
    streams: bool,
    /// Whether its first token has come.
    is_read: bool,
    /// When it began.
    began: f64,
    /// Whether it was answered, with nothing generated.
    is_answered: bool,
}

/// What to expect of a request.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// To read its prompt, in milliseconds.
    pub prefill_ms: f64,
    /// The same, if nothing of it were held.
    pub whole_ms: f64,
    /// To generate its answer, in milliseconds.
    pub decode_ms: f64,
    /// Whether its tokens will be seen.
    pub streams: bool,
}

/// The requests at one replica, as far as their progress goes.
#[derive(Clone, Debug)]
pub struct Watch {
    open: Vec<Open>,
    /// When something was generated last, or work came to an idle replica.
    since: f64,
    /// Silence of earlier requests that ended without a sign.
    before_ms: f64,
    /// When the last of those ended.
    idle_since: f64,
    lateness: f64,
    /// The longest silence of late that something ended.
    usual_ms: f64,
    /// The most requests that it was seen to generate for at once.
    together: usize,
}

/// What a look at a replica with work shows. Milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Signs {
    /// For how long nothing was generated.
    pub silence_ms: f64,
    /// What the first unread prompt should take, as late as it usually is.
    pub first_ms: f64,
    /// What all prompts that explain the silence should take, likewise.
    pub prompts_ms: f64,
    /// What an answer that shows nothing may take besides.
    pub answer_ms: f64,
    /// The longest silence of late that something ended.
    pub usual_ms: f64,
    /// Whether it was seen to serve several requests at once.
    pub shares: bool,
}

/// How a question about it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It generates, or says that it is busy.
    Alive,
    /// Nothing came in time, or the connection broke.
    Silent,
    /// It does not understand such questions.
    Unknown,
}

/// What questions have brought so far. A sign of progress makes it new.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Replies that say nothing against it.
    spared: i32,
    last: Option<Reply>,
}

impl Default for Watch {
    fn default() -> Self {
        Watch {
            open: Vec::new(),
            since: f64::NEG_INFINITY,
            before_ms: 0.0,
            idle_since: f64::NEG_INFINITY,
            lateness: UNKNOWN,
            usual_ms: 0.0,
            together: 0,
        }
    }
}

impl Watch {
    /// A request that generates begins.
    pub fn begin(&mut self, ticket: Ticket, now: f64, expected: Expected) {
        if self.open.is_empty() {
            self.since = now;
            if now - self.idle_since > FORGIVE_MS {
                self.before_ms = 0.0;
            }
        }
        let Expected { prefill_ms, whole_ms, decode_ms, streams } = expected;
        let (is_read, is_answered) = (false, false);
        self.open.push(Open { ticket, prefill_ms, whole_ms, decode_ms, streams, is_read, began: now, is_answered });
    }

    /// The cache is empty: what is unread may have to be read whole.
    pub fn emptied(&mut self) {
        self.open.iter_mut().filter(|o| !o.is_read).for_each(|o| o.prefill_ms = o.prefill_ms.max(o.whole_ms));
    }

    /// Its first token came, `took_ms` after its turn began.
    pub fn first_token(&mut self, ticket: Ticket, now: f64, took_ms: f64) {
        self.usual_ms *= REMEMBER;
        self.hear(now);
        let others = self.open.iter().filter(|o| o.ticket != ticket && o.is_read).count();
        let Some(open) = self.open.iter_mut().find(|o| o.ticket == ticket) else { return };
        self.together = self.together.max(others + 1);
        let late = (took_ms / open.prefill_ms.max(1.0)).clamp(1.0, LATEST);
        open.is_read = true;
        self.lateness = if late > self.lateness { late } else { self.lateness + FORGET * (late - self.lateness) };
    }

    /// Its answer shows no token before its end.
    pub fn shows_no_token(&mut self, ticket: Ticket) {
        if let Some(open) = self.open.iter_mut().find(|o| o.ticket == ticket) {
            open.streams = false;
        }
    }

    /// It was answered, with nothing generated: refused, for one.
    pub fn is_answered(&mut self, ticket: Ticket) {
        if let Some(open) = self.open.iter_mut().find(|o| o.ticket == ticket) {
            open.is_answered = true;
        }
    }

    /// Whether an answer that shows no token is taken for being generated at `now`: the prompts that are unread were read in
    /// turn, and its own has had as long again as it should take.
    pub fn may_generate(&self, ticket: Ticket, now: f64) -> bool {
        let mut read = f64::NEG_INFINITY;
        let unread = self.open.iter().filter(|o| !o.is_read);
        let mut unread = unread.inspect(|o| read = read.max(o.began) + o.prefill_ms);
        let open = unread.find(|o| o.ticket == ticket);
        open.is_some_and(|o| !o.streams && now - read > o.prefill_ms)
    }

    /// It has ended, well or not.
    pub fn end(&mut self, ticket: Ticket, now: f64) {
        let Some(place) = self.open.iter().position(|o| o.ticket == ticket) else { return };
        let ended = self.open.remove(place);
        if self.open.is_empty() {
            // of a request that was answered only what others waited before it
            let until = if ended.is_answered { ended.began } else { now };
            self.before_ms += (until - self.since).max(0.0);
            self.idle_since = now;
        }
    }

    /// Something was generated at `at`, and nothing between that and what is known so far.
    pub fn hear(&mut self, at: f64) {
        self.hear_after(f64::NEG_INFINITY, at);
    }

    /// The same, where something was also generated at `last`.
    pub fn hear_after(&mut self, last: f64, at: f64) {
        if last > self.since {
            self.since = last;
            self.before_ms = 0.0;
        }
        if at > self.since {
            if !self.open.is_empty() {
                self.usual_ms = self.usual_ms.max(self.before_ms + at - self.since);
            }
            self.since = at;
            self.before_ms = 0.0;
        }
    }

    /// Something was generated at `at` at the latest: when exactly, and what before, is not known.
    pub fn heard_by(&mut self, at: f64) {
        if at > self.since {
            self.since = at;
            self.before_ms = 0.0;
        }
    }

    /// What a look at it shows; `None` without work.
    pub fn signs(&self, now: f64) -> Option<Signs> {
        if self.open.is_empty() {
            return None;
        }
        let unread = || self.open.iter().filter(|o| !o.is_read);
        let takes = |o: &Open| o.prefill_ms * self.lateness;
        let (early, late): (Vec<_>, Vec<_>) = unread().partition(|o| o.began <= self.since + EARLY_MS);
        let longest = late.into_iter().map(takes).fold(0.0, f64::max);
        let stalled = self.open.iter().filter(|o| o.is_read).count();
        let is_explained = self.open.len() * ROOMY > self.together && stalled < STALLED;
        let whole = self.open.iter().filter(|o| !o.streams && is_explained);
        Some(Signs {
            silence_ms: self.before_ms + (now - self.since).max(0.0),
            first_ms: unread().next().map_or(0.0, takes),
            prompts_ms: early.into_iter().map(takes).sum::<f64>() + longest,
            answer_ms: whole.map(|o| o.decode_ms * LONG_ANSWER).fold(0.0, f64::max),
            usual_ms: self.usual_ms,
            shares: self.together > 1,
        })
    }
}

impl Signs {
    /// Whether the requests there explain that nothing came of a question for `waited_ms`: their prompts are long, or
    /// answers that show nothing fill its batch, or they are served one at a time, and are.
    pub fn explain(&self, waited_ms: f64, limits: Limits) -> bool {
        self.silence_ms < limits.factor * (self.prompts_ms + self.answer_ms).max(self.usual_ms)
            || (!self.shares && self.silence_ms < waited_ms)
    }

    /// How long the silence must go on to be called frozen, in milliseconds.
    pub fn left_ms(&self, limits: Limits, others_too: bool) -> f64 {
        (self.patience(limits, others_too) - self.silence_ms).max(0.0)
    }

    fn patience(&self, limits: Limits, others_too: bool) -> f64 {
        let usual = (self.prompts_ms + self.answer_ms).max(self.usual_ms);
        let usual = (limits.factor * usual).max(limits.silence_ms);
        if others_too { 2.0 * usual } else { usual }
    }
}

impl Asked {
    /// Whether to ask now; `others_too` if no other replica with work shows progress.
    pub fn is_due(&self, signs: Signs, limits: Limits, others_too: bool) -> bool {
        // after a reply that says nothing the silence goes on, so that only ever more of it is a reason to ask again
        let most = if self.last == Some(Reply::Unknown) { 64 } else { 6 };
        let suspect = limits.silence_ms.max(SUSPECT * signs.first_ms).max(signs.usual_ms);
        let wait = match self.last {
            Some(Reply::Silent) => signs.patience(limits, others_too),
            Some(Reply::Unknown | Reply::Alive) | None => suspect * 2f64.powi(self.spared.min(most)),
        };
        signs.silence_ms >= wait
    }

    /// Takes a reply in; whether the replica is frozen. `signs` are those after the reply.
    pub fn on(&mut self, reply: Reply, signs: Signs, limits: Limits, others_too: bool) -> bool {
        self.last = Some(reply);
        match reply {
            Reply::Alive | Reply::Unknown => {
                self.spared = self.spared.saturating_add(1);
                false
            }
            Reply::Silent => signs.silence_ms >= signs.patience(limits, others_too),
        }
    }
}

#[cfg(test)]
mod tests;
