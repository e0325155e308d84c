//! Whether an answer is what an engine said, to the byte, and ended as the engine ended it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::client::{Ending, Outcome};
use super::ledger::{Attempt, End, Ledger};
use super::plan::{self, Ask, Framing};
use crate::num::to_float;

/// The router's words for what engines did. Any other error is its own.
const BY_ENGINES: [&str; 5] =
    ["no_replica", "connect_failed", "upstream_timeout", "upstream_lost", "upstream_unreadable"];

/// Where others build, this process stands still for a second or two, its engines fall silent all at once, and the router
/// gives up on several (`idle_read`). One that was silent for so long, by the clock and not by the plan, may be cut; it is a
/// third of what the router waits, as that is as busy. No engine means to pause for more than 40 ms.
const SILENCE: Duration = Duration::from_secs(1);

/// How requests ended, by the words of the summary.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) endings: BTreeMap<String, u64>,
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
    /// whose clients left
    left: Vec<u64>,
}

/// What an engine meant to send, and whether to its end.
struct Meant {
    body: Vec<u8>,
    is_whole: bool,
    /// Only the end of the connection says where it ends.
    ends_with_connection: bool,
}

impl Tally {
    /// Judges one answer.
    pub(crate) fn add(&mut self, seed: u64, id: u64, ask: &Ask, outcome: &Outcome, ledger: &Ledger) {
        self.requests += 1;
        self.bytes += outcome.body.len() as u64;
        if outcome.ending == Ending::Left {
            self.left.push(id);
        }
        match judge(seed, id, ask, outcome, ledger) {
            Ok(ending) => *self.endings.entry(ending).or_default() += 1,
            Err(what) => {
                let (kind, ending, n) = (ask.kind, outcome.ending, outcome.body.len());
                let (status, why, attempts) = (outcome.status, &outcome.why, ledger.attempts(id));
                ledger.violation(format!(
                    "request {id} ({kind:?}, {:?}): {what}; status {status:?}, {n} bytes, {ending:?} ({why}), attempts {attempts:?}",
                    ask.manner
                ));
            }
        }
    }

    /// Judges how many clients the router counts as having left, once all is over. It counts none that stayed, and all for
    /// whom it hung up on an engine. Between the two are those that left before their request had come, as its answer was
    /// complete, or as something else ended it: it is for the router to say which came first.
    pub(crate) fn left(&self, counted: f64, ledger: &Ledger) -> Result<String, String> {
        let (least, most) = (self.left.iter().filter(|id| ledger.hung_up(**id)).count(), self.left.len());
        let text =
            format!("the router counts {counted} clients that left, of {most}; it hung up on engines for {least}");
        if (to_float(least as u64)..=to_float(most as u64)).contains(&counted) { Ok(text) } else { Err(text) }
    }
}

fn judge(seed: u64, id: u64, ask: &Ask, outcome: &Outcome, ledger: &Ledger) -> Result<String, String> {
    let Some(status) = outcome.status else {
        return match outcome.ending {
            Ending::Left => Ok("left before an answer".to_owned()),
            Ending::Hung => Err("no answer for a minute".to_owned()),
            Ending::Cut | Ending::Whole => Err("the connection ended without an answer".to_owned()),
        };
    };
    let attempts = ledger.attempts(id);
    let Some(generation) = &outcome.generation else { return own_error(status, outcome, &attempts) };
    let number = generation.strip_prefix(&format!("{id}-")).and_then(|number| number.parse::<usize>().ok());
    let number = number.filter(|number| *number < attempts.len());
    let number = number.ok_or_else(|| format!("the answer of {generation}, another request"))?;
    if number + 1 != attempts.len() {
        return Err(format!("the answer of attempt {number}, which was not the last"));
    }
    let meant = meant(seed, id, ask, number, status, &attempts[number]);
    compare(&meant, outcome, &attempts[number])?;
    Ok(match (outcome.ending, status) {
        (Ending::Left, _) => "left in an answer".to_owned(),
        (Ending::Cut, _) if meant.is_whole && attempts[number].end != End::Torn => {
            "cut, the engine had stopped".to_owned()
        }
        (Ending::Cut, _) => "cut, as by the engine".to_owned(),
        (_, 200) => "whole".to_owned(),
        (_, _) => "an engine's error".to_owned(),
    })
}

fn meant(seed: u64, id: u64, ask: &Ask, number: usize, status: u16, attempt: &Attempt) -> Meant {
    if status != 200 {
        return Meant { body: plan::error_body(id, number).into(), is_whole: true, ends_with_connection: false };
    }
    let answer = plan::answer(seed, id, number, ask.kind, ask.streams);
    let (length, is_whole) = attempt.fault.sends(answer.body.len(), ask.kind);
    let ends_with_connection = answer.framing == Framing::Close;
    Meant { body: answer.body[..length].to_vec(), is_whole, ends_with_connection }
}

fn compare(meant: &Meant, outcome: &Outcome, attempt: &Attempt) -> Result<(), String> {
    if !meant.body.starts_with(&outcome.body) {
        let same = meant.body.iter().zip(&outcome.body).take_while(|(a, b)| a == b).count();
        return Err(format!("corrupted: other bytes from {same} on, of {}", meant.body.len()));
    }
    // all connections of an engine may go in the middle of what was meant to be whole, and just after its last byte, which
    // is the end where there is no framing
    let is_torn = attempt.end == End::Torn;
    let may_be_whole = meant.ends_with_connection && outcome.body.len() == meant.body.len();
    let is_whole = meant.is_whole && (!is_torn || may_be_whole);
    match outcome.ending {
        Ending::Whole if !is_whole => Err("a cut answer ended as if it were whole".to_owned()),
        Ending::Whole if outcome.body.len() < meant.body.len() => Err("a part ended as if it were whole".to_owned()),
        Ending::Cut if is_whole && !is_torn && attempt.longest_silence() < SILENCE => {
            Err("a whole answer came cut".to_owned())
        }
        Ending::Hung => Err("an answer that does not end".to_owned()),
        Ending::Whole | Ending::Cut | Ending::Left => Ok(()),
    }
}

/// An error in the router's own words: it must be JSON, about engines, and there must have been something wrong with them.
fn own_error(status: u16, outcome: &Outcome, attempts: &[Attempt]) -> Result<String, String> {
    let code = outcome.error.as_deref().ok_or("an answer that no engine gave, without an error")?;
    if !BY_ENGINES.contains(&code) || status < 500 {
        return Err(format!("refused: {code}"));
    }
    if outcome.ending == Ending::Left {
        return Ok(format!("refused: {code}"));
    }
    let value: Value =
        serde_json::from_slice(&outcome.body).map_err(|error| format!("an error in no JSON: {error}"))?;
    if !value["error"]["message"].is_string() {
        return Err("an error of another shape".to_owned());
    }
    // one that was given up may still have been answered, into nothing
    if code != "upstream_timeout" && attempts.last().is_some_and(|last| last.end == End::Whole) {
        return Err(format!("{code}, although the engine answered"));
    }
    Ok(format!("refused: {code}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::plan::Fault;

    const SEED: u64 = 7;

    /// What is done to a good answer.
    type Change = fn(&mut Outcome);

    /// What the judge says of an answer to the first request whose first attempt goes wrong as wanted.
    fn said(wanted: impl Fn(Fault) -> bool, end: End, change: impl Fn(&mut Outcome)) -> Result<String, String> {
        let of = |id: u64| {
            let ask = plan::ask(SEED, id);
            let answer = plan::answer(SEED, id, 0, ask.kind, ask.streams);
            let fault = plan::fault(SEED, id, 0, &answer, ask.streams);
            (ask, answer, fault)
        };
        let id = (0..1000).find(|id| wanted(of(*id).2)).unwrap();
        let (ask, answer, fault) = of(id);
        let ledger = Ledger::default();
        let entry = ledger.begin(id, 0);
        entry.fault(fault);
        entry.sent(0);
        entry.speaks();
        entry.end(end);
        let (length, is_whole) = fault.sends(answer.body.len(), ask.kind);
        let ending = if is_whole { Ending::Whole } else { Ending::Cut };
        let generation = Some(plan::name(id, 0));
        let body = answer.body[..length].to_vec();
        let mut outcome = Outcome { status: Some(200), generation, body, ending, ..Outcome::default() };
        change(&mut outcome);
        judge(SEED, id, &ask, &outcome, &ledger)
    }

    fn is_none(fault: Fault) -> bool {
        fault == Fault::None
    }

    fn is_cut(fault: Fault) -> bool {
        matches!(fault, Fault::Cut { at: 2.., .. })
    }

    #[test]
    fn what_an_engine_said_is_good_as_far_as_it_said_it() {
        assert_eq!(said(is_none, End::Whole, |_| ()).as_deref(), Ok("whole"));
        assert_eq!(said(is_cut, End::Cut, |_| ()).as_deref(), Ok("cut, as by the engine"));
        assert!(said(is_cut, End::Cut, |answer| answer.body.truncate(1)).is_ok(), "some of it was lost on the way");
        assert!(said(is_none, End::Torn, |answer| answer.ending = Ending::Cut).is_ok());
        assert!(said(is_none, End::Left, |answer| (answer.ending, answer.body) = (Ending::Left, Vec::new())).is_ok());
    }

    #[test]
    fn other_bytes_other_ends_and_other_answers_are_not() {
        let bad: [(&str, Change); 8] = [
            ("a byte", |answer| answer.body[1] ^= 1),
            ("more", |answer| answer.body.push(b' ')),
            ("less", |answer| answer.body.truncate(answer.body.len() - 1)),
            ("an end too early", |answer| answer.ending = Ending::Cut),
            ("no end", |answer| answer.ending = Ending::Hung),
            ("another's", |answer| answer.generation = Some("99999-0".to_owned())),
            ("an unknown attempt", |answer| answer.generation.as_mut().unwrap().push('1')),
            ("nothing", |answer| (answer.status, answer.ending) = (None, Ending::Cut)),
        ];
        for (what, change) in bad {
            assert!(said(is_none, End::Whole, change).is_err(), "{what}");
        }
        let whole = said(is_cut, End::Cut, |answer| answer.ending = Ending::Whole);
        assert_eq!(whole, Err("a cut answer ended as if it were whole".to_owned()));
    }

    #[test]
    fn an_engine_that_stood_still_may_be_given_up() {
        let id = (0..1000).find(|id| {
            let ask = plan::ask(SEED, *id);
            is_none(plan::fault(SEED, *id, 0, &plan::answer(SEED, *id, 0, ask.kind, ask.streams), ask.streams))
        });
        let (id, ledger) = (id.unwrap(), Ledger::default());
        let entry = ledger.begin(id, 0);
        let ask = plan::ask(SEED, id);
        let generation = Some(plan::name(id, 0));
        let cut = Outcome { status: Some(200), generation, ..Outcome::default() };
        assert!(judge(SEED, id, &ask, &cut, &ledger).is_err());
        entry.stood_still(SILENCE);
        assert_eq!(judge(SEED, id, &ask, &cut, &ledger).as_deref(), Ok("cut, the engine had stopped"));
        let altered = Outcome { body: b"?".to_vec(), ..cut };
        assert!(judge(SEED, id, &ask, &altered, &ledger).is_err());
    }

    #[test]
    fn who_left_is_counted_and_nobody_else() {
        let (ledger, mut tally) = (Ledger::default(), Tally::default());
        for id in 0..2 {
            let outcome = Outcome { ending: Ending::Left, ..Outcome::default() };
            tally.add(SEED, id, &plan::ask(SEED, id), &outcome, &ledger);
        }
        // the other one may have left before its request had come
        ledger.begin(1, 0).end(End::Left);
        for (counted, good) in [(0.0, false), (1.0, true), (2.0, true), (3.0, false)] {
            assert_eq!(tally.left(counted, &ledger).is_ok(), good, "{counted}");
        }
    }

    #[test]
    fn an_error_of_the_router_must_be_about_engines() {
        let own = |code: &'static str, end: End| {
            said(is_none, end, |answer| {
                (answer.status, answer.generation, answer.error) = (Some(502), None, Some(code.to_owned()));
                answer.body = br#"{"error":{"message":"x"}}"#.to_vec();
            })
        };
        assert!(own("upstream_lost", End::Lost).is_ok());
        assert!(own("internal", End::Lost).is_err());
        assert!(own("upstream_lost", End::Whole).is_err(), "the engine answered");
        assert!(own("upstream_timeout", End::Whole).is_ok(), "into nothing");
    }
}
