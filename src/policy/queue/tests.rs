//! The queue against what it promises: bounds, order, turns, and that nobody waits for ever.

use super::*;
use crate::policy::cost::Price;
use crate::policy::hint::HintUse;
use crate::policy::lane::Gate;
use crate::policy::select::Ranked;
use crate::types::ReplicaId;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn line(priority: Priority, session: u64) -> Line {
    Line { priority, session }
}

fn chat(session: u64) -> Line {
    line(Priority::Interactive, session)
}

fn all<T>(queue: &mut FairQueue<T>) -> Vec<T> {
    std::iter::from_fn(|| queue.take(|_| true)).collect()
}

#[test]
fn sessions_take_turns_and_each_is_served_in_its_order() {
    let mut queue = FairQueue::new(100);
    for item in ["a1", "a2", "a3", "a4"] {
        queue.push(chat(1), item);
    }
    queue.push(chat(2), "b1");
    queue.push(chat(2), "b2");
    queue.push(chat(3), "c1");
    assert_eq!(queue.len(), 7);
    assert_eq!(all(&mut queue), ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]);
    assert!(queue.is_empty());
}

#[test]
fn who_has_just_been_served_does_not_overtake() {
    let mut queue = FairQueue::new(100);
    queue.push(chat(1), "a1");
    queue.push(chat(2), "b1");
    queue.push(chat(3), "c1");
    assert_eq!(queue.take(|_| true), Some("a1"));
    queue.push(chat(1), "a2");
    assert_eq!(all(&mut queue), ["b1", "c1", "a2"]);
}

#[test]
fn who_comes_again_goes_before_its_session_and_is_never_turned_away() {
    let mut queue = FairQueue::new(2);
    queue.push(chat(1), "a1");
    queue.push(chat(2), "b1");
    assert_eq!(queue.push(chat(3), "c1"), None);
    queue.push_again(chat(2), "b0");
    assert_eq!(all(&mut queue), ["a1", "b0", "b1"]);
    assert_eq!(FairQueue::new(0).push(chat(1), "x"), None);
}

#[test]
fn whom_it_does_not_suit_keeps_place_and_turn() {
    let mut queue = FairQueue::new(100);
    queue.push(chat(1), 1);
    queue.push(chat(1), 2);
    queue.push(chat(2), 4);
    queue.push(chat(2), 1);
    assert_eq!(queue.take(|n| *n == 4), Some(4));
    assert_eq!(queue.take(|n| *n == 7), None);
    assert_eq!(all(&mut queue), [1, 1, 2]);
}

#[test]
fn batch_waits_but_not_for_ever() {
    let mut queue = FairQueue::new(100);
    for n in 0..30 {
        queue.push(line(Priority::Batch, n % 3), Priority::Batch);
    }
    for n in 0..60 {
        queue.push(chat(n % 7), Priority::Interactive);
    }
    let order = all(&mut queue);
    let batch: Vec<_> = (0..order.len()).filter(|at| order[*at] == Priority::Batch).collect();
    assert_eq!(batch[..7], [8, 17, 26, 35, 44, 53, 62]);
    // alone it is not held back, and what it got then is not held against it
    assert_eq!(batch[7..], (67..90).collect::<Vec<_>>()[..]);
}

#[test]
fn who_leaves_takes_its_place_along() {
    let mut queue = FairQueue::new(100);
    let tickets: Vec<_> = [1, 1, 2, 3].map(|s| queue.push(chat(s), s * 10).unwrap()).into();
    assert_eq!(queue.remove(chat(2), tickets[2]), Some(20));
    assert_eq!(queue.remove(chat(2), tickets[2]), None);
    assert_eq!(queue.remove(chat(1), tickets[0]), Some(10));
    *queue.get_mut(chat(1), tickets[1]).unwrap() = 11;
    assert_eq!(all(&mut queue), [11, 30]);
    assert_eq!(queue.get_mut(chat(1), tickets[1]), None);
}

#[test]
fn a_client_stays_away_for_as_long_as_the_queue_takes() {
    for (waiting, per_second, seconds) in
        [(0, 0.0, 60), (0, 10.0, 1), (9, 10.0, 1), (10, 10.0, 2), (99, 10.0, 10), (5000, 10.0, 60), (3, 0.2, 20)]
    {
        assert_eq!(retry_after(waiting, per_second), seconds, "{waiting} at {per_second}");
    }
}

#[test]
fn the_pace_is_that_of_a_queue_and_not_of_quiet_times() {
    let mut drain = Drain::default();
    assert!((drain.per_second(5.0) - 1.0).abs() < 1e-9, "a guess");
    // one a minute comes, and ends
    for n in 1..=100 {
        drain.ended(f64::from(n) * 60_000.0);
    }
    assert!((drain.per_second(6_000_000.0) - 1.0).abs() < 1e-9, "nobody waited");
    drain.waits(6_000_000.0, true);
    for n in 1..=40 {
        drain.ended(6_000_000.0 + f64::from(n) * 50.0);
    }
    let soon = drain.per_second(6_002_000.0);
    assert!((15.0..20.0).contains(&soon), "{soon}");
    // then the engines hang
    let later = drain.per_second(6_200_000.0);
    assert!((0.0..0.05).contains(&later), "{later}");
    drain.waits(6_002_000.0, false);
    assert!((drain.per_second(6_200_000.0) - soon).abs() < 1e-9, "what was learned is kept");
}

#[test]
fn a_client_gets_the_class_that_it_may_have() {
    use Priority::{Batch, Interactive};
    for (asked, allowed, class_) in [
        (None, &[Interactive, Batch][..], Interactive),
        (Some("batch"), &[Interactive, Batch], Batch),
        (Some(" BATCH "), &[Interactive, Batch], Batch),
        (Some("urgent"), &[Interactive, Batch], Interactive),
        (None, &[Batch, Interactive], Batch),
        (Some("interactive"), &[Batch, Interactive], Interactive),
        (Some("interactive"), &[Batch], Batch),
        (Some("batch"), &[Interactive], Interactive),
        (Some("batch"), &[], Interactive),
    ] {
        assert_eq!(class(asked, allowed), class_, "{asked:?} of {allowed:?}");
    }
}

fn decision(overlaps: &[u32], reason: Reason) -> Decision {
    let ranked = (0..).zip(overlaps).map(|(slot, overlap)| Ranked {
        id: ReplicaId(slot),
        overlap: *overlap,
        held: 0.0,
        credit: 0,
        load: 0,
        score: 0.0,
        price: Price::default(),
        units: 1,
    });
    let hint = Some(HintUse { home: Some(ReplicaId(0)), break_ms: 1.0, stays: true });
    let flight = Some(Flight::Follower);
    Decision {
        ranked: ranked.collect(),
        reason,
        flight,
        hint,
        gate: Gate::Open,
        crowded: false,
        preferred: overlaps.len(),
        passed: 0,
    }
}

#[test]
fn a_full_replica_is_passed_over_and_the_reason_says_so() {
    for (overlaps, reason, place, order, wanted) in [
        (&[9, 4, 0][..], Reason::Affinity, 0, [0, 1, 2], Reason::Affinity),
        (&[9, 4, 0], Reason::Affinity, 1, [1, 0, 2], Reason::Spill),
        (&[9, 4, 0], Reason::Hint, 2, [2, 0, 1], Reason::Spill),
        (&[0, 0, 0], Reason::Cold, 1, [1, 0, 2], Reason::Cold),
        (&[1, 4, 0], Reason::Spill, 1, [1, 0, 2], Reason::Spill),
        (&[0, 0, 0], Reason::RoundRobin, 2, [2, 0, 1], Reason::RoundRobin),
    ] {
        let mut decided = decision(overlaps, reason);
        pass_over(&mut decided, place);
        let found: Vec<_> = decided.ranked.iter().map(|r| r.id.0).collect();
        assert_eq!((found.as_slice(), decided.reason), (&order[..], wanted), "{reason:?} {place}");
        let moved = place > 0;
        assert_eq!(decided.passed, place);
        assert_eq!(decided.flight, Some(if moved { Flight::Apart } else { Flight::Follower }));
        assert_eq!(decided.hint.map(|h| h.stays), Some(!moved));
    }
    let mut alone = decision(&[1], Reason::Only);
    pass_over(&mut alone, 3);
    assert_eq!(alone, decision(&[1], Reason::Only));
}

/// What is done to a queue.
#[derive(Clone, Debug)]
enum Op {
    Push(Priority, u64),
    Again(Priority, u64),
    Take(u8),
    Leave(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let priority = || prop::sample::select(Priority::ALL.to_vec());
    let op = prop_oneof![
        5 => (priority(), 0u64..5).prop_map(|(p, s)| Op::Push(p, s)),
        1 => (priority(), 0u64..5).prop_map(|(p, s)| Op::Again(p, s)),
        4 => (0u8..4).prop_map(Op::Take),
        1 => any::<usize>().prop_map(Op::Leave),
    ];
    prop::collection::vec(op, 0..200)
}

/// One that waits, as the tests remember it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Waiting {
    line: Line,
    /// What suits it.
    wants: u8,
    number: usize,
}

proptest! {
    #[test]
    fn it_is_bounded_and_loses_nobody(ops in ops(), size in 0usize..12) {
        let mut queue = FairQueue::new(size);
        let mut inside: Vec<(Ticket, Waiting)> = Vec::new();
        let (mut again, mut number) = (0, 0);
        for op in ops {
            number += 1;
            match op {
                Op::Push(priority, session) => {
                    let one = Waiting { line: line(priority, session), wants: u8::try_from(number % 3).unwrap(), number };
                    let ticket = queue.push(one.line, one);
                    prop_assert_eq!(ticket.is_some(), inside.len() < size);
                    inside.extend(ticket.map(|t| (t, one)));
                }
                Op::Again(priority, session) => {
                    let one = Waiting { line: line(priority, session), wants: u8::try_from(number % 3).unwrap(), number };
                    inside.push((queue.push_again(one.line, one), one));
                    again += 1;
                }
                Op::Take(free) => {
                    let suits = |one: &Waiting| free == 3 || one.wants == free;
                    let taken = queue.take(suits);
                    prop_assert_eq!(taken.is_some(), inside.iter().any(|(_, one)| suits(one)));
                    if let Some(taken) = taken {
                        prop_assert!(suits(&taken));
                        inside.retain(|(_, one)| *one != taken);
                    }
                }
                Op::Leave(n) if !inside.is_empty() => {
                    let (ticket, one) = inside.swap_remove(n % inside.len());
                    prop_assert_eq!(queue.remove(one.line, ticket), Some(one));
                }
                Op::Leave(_) => {}
            }
            prop_assert_eq!(queue.len(), inside.len());
            prop_assert!(queue.len() <= size + again);
        }
        let rest: BTreeSet<_> = all(&mut queue).into_iter().map(|one| one.number).collect();
        prop_assert_eq!(rest, inside.iter().map(|(_, one)| one.number).collect());
        prop_assert!(queue.classes.iter().all(|c| c.turns.is_empty() && c.sessions.is_empty()));
    }

    #[test]
    fn no_session_is_served_twice_while_another_of_its_class_waits(ops in ops()) {
        let mut queue = FairQueue::new(1000);
        let mut number = 0;
        let mut waiting: Vec<(Line, usize, Vec<Line>)> = Vec::new();
        for op in ops {
            number += 1;
            match op {
                Op::Push(priority, session) | Op::Again(priority, session) => {
                    let own = line(priority, session);
                    queue.push(own, (own, number));
                    waiting.push((own, number, Vec::new()));
                }
                Op::Take(_) | Op::Leave(_) => {
                    let Some((own, taken)) = queue.take(|_| true) else { continue };
                    let first = waiting.iter().position(|(line, ..)| *line == own).unwrap();
                    prop_assert_eq!(waiting.remove(first).1, taken, "first come, first served within a session");
                    // the heads of the other sessions of this class see it pass
                    let mut seen = BTreeSet::new();
                    for (line, _, passed) in &mut waiting {
                        if line.priority == own.priority && *line != own && seen.insert(line.session) {
                            prop_assert!(!passed.contains(&own), "{own:?} has passed {line:?} twice");
                            passed.push(own);
                        }
                    }
                }
            }
        }
    }
}
