//! What engines did with every request, attempt by attempt, and whether that was allowed.
//!
//! The rule (SPEC.md, section 10): a request may go to a second replica when the first was not reached, when its front said
//! 502 or 503 without a time to come back, or when its connection was lost before the first byte of an answer; the last one
//! only where nothing but work is repeated. Half a head that is followed by the end counts as lost: nothing of an answer
//! was in it. A reset may overtake what was sent just before, so a loss soon after the first byte counts as well.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::plan::{Fault, Kind};

/// What was sent so shortly before a reset may never have arrived.
const OVERTAKEN: Duration = Duration::from_millis(500);
/// `retry.attempts` as shipped, and one repetition where a kept connection turned out dead.
const MOST_ATTEMPTS: usize = 3;
const MOST_ENGINES: usize = 2;

/// How an attempt ended at the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Not yet.
    Open,
    /// The connection went before a byte was sent.
    Lost,
    /// 502 or 503 without `Retry-After`.
    Refused,
    /// Part of a head and no more.
    Half,
    /// An answer that is final: another status, or what is no HTTP.
    Final,
    /// The answer began and was cut as planned.
    Cut,
    /// The answer began, and all connections of the engine went.
    Torn,
    /// The router hung up.
    Left,
    /// The answer was sent to its end.
    Whole,
}

/// One attempt.
#[derive(Debug, Clone)]
pub(crate) struct Attempt {
    pub(crate) engine: usize,
    pub(crate) fault: Fault,
    pub(crate) end: End,
    /// bytes of the body that were written
    pub(crate) sent: usize,
    began: Instant,
    first_byte: Option<Instant>,
    ended: Option<Instant>,
}

#[derive(Debug, Default)]
struct Book {
    attempts: HashMap<u64, Vec<Attempt>>,
    violations: Vec<String>,
    /// how often each reason was followed by another attempt
    repeated: BTreeMap<&'static str, u64>,
}

/// Shared by engines and clients.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ledger(Arc<Mutex<Book>>);

/// One attempt in the making; dropped before its end, its connection is gone.
#[derive(Debug)]
pub(crate) struct Entry {
    ledger: Ledger,
    id: u64,
    pub(crate) number: usize,
}

impl Ledger {
    /// A request has arrived at an engine. How often it came before is its number.
    pub(crate) fn begin(&self, id: u64, engine: usize) -> Entry {
        let mut book = self.0.lock();
        let attempts = book.attempts.entry(id).or_default();
        let began = Instant::now();
        let attempt =
            Attempt { engine, fault: Fault::None, end: End::Open, sent: 0, began, first_byte: None, ended: None };
        attempts.push(attempt);
        Entry { ledger: self.clone(), id, number: attempts.len() - 1 }
    }

    /// Something that must not be.
    pub(crate) fn violation(&self, what: String) {
        self.0.lock().violations.push(what);
    }

    /// What became of a request at the engines.
    pub(crate) fn attempts(&self, id: u64) -> Vec<Attempt> {
        self.0.lock().attempts.get(&id).cloned().unwrap_or_default()
    }

    pub(crate) fn violations(&self) -> Vec<String> {
        self.0.lock().violations.clone()
    }

    /// Why attempts were repeated, and how often.
    pub(crate) fn repeated(&self) -> BTreeMap<&'static str, u64> {
        self.0.lock().repeated.clone()
    }

    /// All attempts by what went wrong with them.
    pub(crate) fn faults(&self) -> BTreeMap<&'static str, u64> {
        let mut counts = BTreeMap::new();
        for attempt in self.0.lock().attempts.values().flatten() {
            *counts.entry(attempt.fault.word()).or_default() += 1;
        }
        counts
    }

    /// Judges every repetition, once all is over.
    pub(crate) fn judge(&self, kind: impl Fn(u64) -> Kind) {
        let book = &mut *self.0.lock();
        for (id, attempts) in &book.attempts {
            let mut engines: Vec<usize> = attempts.iter().map(|attempt| attempt.engine).collect();
            engines.sort_unstable();
            engines.dedup();
            if attempts.len() > MOST_ATTEMPTS || engines.len() > MOST_ENGINES {
                book.violations.push(format!("request {id}: {} attempts at {} engines", attempts.len(), engines.len()));
            }
            for pair in attempts.windows(2) {
                let before = &pair[0];
                // what goes after the next attempt began was no reason for it
                let is_over = before.ended.is_some_and(|ended| ended <= pair[1].began);
                match reason(before, kind(*id)).filter(|_| is_over) {
                    Some(reason) => *book.repeated.entry(reason).or_default() += 1,
                    None => book.violations.push(format!("request {id} was generated again after {before:?}")),
                }
            }
        }
    }
}

/// Why another attempt may follow this one, if it may.
fn reason(before: &Attempt, kind: Kind) -> Option<&'static str> {
    if !kind.is_repeatable() && before.end != End::Refused {
        return None;
    }
    let soon = || before.ended?.checked_duration_since(before.first_byte?).filter(|time| *time < OVERTAKEN);
    match before.end {
        End::Lost => Some("lost"),
        End::Refused => Some("502/503"),
        End::Half => Some("half a head"),
        End::Torn => soon().map(|_| "lost just after the first byte"),
        End::Open | End::Final | End::Cut | End::Left | End::Whole => None,
    }
}

impl Entry {
    fn with(&self, change: impl FnOnce(&mut Attempt)) {
        let mut book = self.ledger.0.lock();
        if let Some(attempt) = book.attempts.get_mut(&self.id).and_then(|attempts| attempts.get_mut(self.number)) {
            change(attempt);
        }
    }

    pub(crate) fn fault(&self, fault: Fault) {
        self.with(|attempt| attempt.fault = fault);
    }

    /// So many more bytes of the body were written; 0 for the head.
    pub(crate) fn sent(&self, bytes: usize) {
        self.with(|attempt| {
            attempt.first_byte.get_or_insert_with(Instant::now);
            attempt.sent += bytes;
        });
    }

    /// It ended in this way, if it has not ended yet.
    pub(crate) fn end(&self, end: End) {
        self.with(|attempt| {
            if attempt.end == End::Open {
                attempt.end = end;
                attempt.ended = Some(Instant::now());
            }
        });
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.with(|attempt| {
            if attempt.end == End::Open {
                attempt.end = if attempt.first_byte.is_some() { End::Torn } else { End::Lost };
                attempt.ended = Some(Instant::now());
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(ends: &[Option<End>], kind: Kind) -> Vec<String> {
        let ledger = Ledger::default();
        for (engine, end) in ends.iter().enumerate() {
            let entry = ledger.begin(1, engine);
            if let Some(end) = end {
                entry.end(*end);
            }
        }
        ledger.judge(|_| kind);
        ledger.violations()
    }

    #[test]
    fn a_repetition_needs_a_reason_that_the_rule_knows() {
        for end in [End::Lost, End::Refused, End::Half] {
            assert!(judged(&[Some(end), Some(End::Whole)], Kind::Chat).is_empty(), "{end:?}");
            let wrong = usize::from(end != End::Refused);
            assert_eq!(judged(&[Some(end), Some(End::Whole)], Kind::KeptResponse).len(), wrong, "{end:?}");
        }
        for end in [End::Final, End::Cut, End::Left, End::Whole] {
            assert_eq!(judged(&[Some(end), Some(End::Whole)], Kind::Chat).len(), 1, "{end:?}");
        }
        // dropped before a byte
        assert!(judged(&[None, Some(End::Whole)], Kind::Chat).is_empty());
    }

    #[test]
    fn an_attempt_that_still_runs_is_not_repeated() {
        let ledger = Ledger::default();
        let (first, second) = (ledger.begin(1, 0), ledger.begin(1, 1));
        drop((first, second));
        ledger.judge(|_| Kind::Chat);
        assert_eq!(ledger.violations().len(), 1);
    }

    #[test]
    fn a_third_engine_is_one_too_many() {
        assert_eq!(judged(&[Some(End::Lost), Some(End::Lost), Some(End::Whole)], Kind::Chat).len(), 1);
    }

    #[test]
    fn an_answer_that_began_long_ago_is_not_repeated() {
        let ledger = Ledger::default();
        let first = ledger.begin(1, 0);
        first.sent(0);
        first.with(|attempt| attempt.first_byte = Instant::now().checked_sub(OVERTAKEN * 2));
        drop(first);
        drop(ledger.begin(1, 1));
        ledger.judge(|_| Kind::Chat);
        assert_eq!(ledger.violations().len(), 1);
    }
}
