//! Who lives where, and that no more is kept than may be.

use super::*;
use crate::pack;
use proptest::prelude::*;

const A: ReplicaId = ReplicaId(0);
const B: ReplicaId = ReplicaId(1);

/// A turn of a session: its prompt follows the one that ended at `before`.
fn turn(before: u64, own: u64) -> Ends {
    let place = |print| Some(Place { print, blocks: 1 });
    Ends { previous: place(before).filter(|p| p.print > 0), own: place(own) }
}

fn residents(crowd: &Crowd, at: ReplicaId) -> (u32, f64) {
    let Residents { sessions, tokens } = crowd.residents(at);
    (sessions, tokens)
}

#[test]
fn a_session_needs_what_it_brought_where_it_was_last_once_it_has_returned() {
    let mut crowd = Crowd::default();
    let _ = crowd.come(1, turn(0, 10), A, (5000.0, 2000.0));
    assert_eq!(residents(&crowd, A), (1, 0.0));
    let _ = crowd.come(2, turn(10, 11), A, (6000.0, 5000.0));
    assert_eq!(residents(&crowd, A), (1, 4000.0));
    crowd.end(11, 2, 3);
    let (before, now) = crowd.come(4, turn(11, 12), B, (7000.0, 0.0)).unwrap();
    assert_eq!((residents(&crowd, A), residents(&crowd, B)), ((0, 0.0), (1, 5000.0)));
    assert_eq!(before.and_then(|s| s.last_use(A)), Some(3));
    assert_eq!((now.last_use(A), now.last_use(B), now.last_use(ReplicaId(2))), (Some(3), Some(4), None));
}

#[test]
fn who_does_not_return_is_not_counted_and_is_known_if_it_does_after_all() {
    let mut crowd = Crowd::default();
    let _ = crowd.come(1, turn(0, 10), A, (5000.0, 2000.0));
    let _ = crowd.come(2, turn(10, 11), A, (6000.0, 0.0));
    for n in 0..5000 {
        let _ = crowd.come(3 + n, turn(0, 100 + n), B, (100.0, 0.0));
    }
    assert_eq!(residents(&crowd, A), (0, 0.0));
    let (before, _) = crowd.come(6000, turn(11, 12), A, (7000.0, 6000.0)).unwrap();
    assert_eq!(before.map(|s| s.trunk), Some(2000.0));
    assert_eq!(residents(&crowd, A), (1, 5000.0));
}

#[test]
fn a_request_that_failed_leaves_its_session_where_it_was() {
    let mut crowd = Crowd::default();
    let _ = crowd.come(1, turn(0, 10), A, (5000.0, 2000.0));
    let _ = crowd.come(2, turn(10, 11), A, (6000.0, 5000.0));
    let before = residents(&crowd, A);
    let (session, _) = crowd.come(3, turn(11, 12), B, (7000.0, 0.0)).unwrap();
    crowd.undo(3, turn(11, 12), session);
    assert_eq!((residents(&crowd, A), residents(&crowd, B)), (before, (0, 0.0)));
    assert_eq!(crowd.session(turn(11, 12).previous).map(|s| s.replica), Some(A));
}

#[test]
fn the_next_process_knows_the_sessions_under_other_slots() {
    let mut crowd = Crowd::default();
    let _ = crowd.come(1, turn(0, 10), A, (5000.0, 2000.0));
    let _ = crowd.come(2, turn(10, 11), B, (6000.0, 5000.0));
    let _ = crowd.come(3, turn(0, 20), A, (700.0, 0.0));
    let state = pack::open::<CrowdState>(&pack::seal(&crowd.state())).unwrap();
    let mut next = Crowd::default();
    // A is gone
    next.restore(state, |old| (old == 1).then_some(A));
    assert_eq!(residents(&next, A), residents(&crowd, B));
    assert_eq!((next.session(turn(20, 0).previous), next.sessions.len()), (None, 1));
    let session = next.session(turn(11, 0).previous).unwrap();
    assert_eq!((session.last_use(A), session.earlier), (Some(2), [None; 2]));
    let (before, _) = next.come(4, turn(11, 12), A, (7000.0, 6000.0)).unwrap();
    assert_eq!(before, Some(session));
}

proptest! {
    #[test]
    fn what_is_counted_is_what_is_there_whatever_happens(
        ops in prop::collection::vec((0usize..12, 0u16..3, 0u8..4, 1u64..2000), 1..200),
    ) {
        let mut crowd = Crowd::default();
        let mut last = [0u64; 12];
        let mut number = 0;
        for (session, replica, what, skip) in ops {
            number += skip;
            let replica = ReplicaId(replica);
            let ends = turn(last[session], (session as u64) * 1_000_000 + number + 1);
            match what {
                0 => crowd.forget(replica),
                1 => if let Some((before, _)) = crowd.come(number, ends, replica, (900.0, 100.0)) {
                    crowd.undo(number, ends, before);
                },
                _ => {
                    let _ = crowd.come(number, ends, replica, (900.0, 100.0));
                    last[session] = ends.own.unwrap().print;
                }
            }
            for id in (0..3).map(ReplicaId) {
                let all = || crowd.sessions.iter().map(|(_, session)| session);
                let there = || all().filter(|s| s.replica == id && s.is_expected);
                let tokens: f64 = there().map(Session::needs).sum();
                prop_assert_eq!(residents(&crowd, id), (u32::try_from(there().count()).unwrap(), tokens));
            }
        }
    }
}

#[test]
fn a_year_of_sessions_takes_no_more_than_is_reserved() {
    let mut crowd = Crowd::default();
    let reserved = crowd.bytes();
    assert!(reserved < 8 << 20, "{reserved}");
    let print = |n: u64| (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut number = 0;
    for n in 0..6 * MOST as u64 {
        number += 1;
        // some have another turn, some fail, and the others are never seen again
        let ends = turn(if n % 5 == 0 { print(n.saturating_sub(3)) } else { 0 }, print(n));
        let came = crowd.come(number, ends, A, (900.0, 100.0));
        if let Some((before, _)) = came.filter(|_| n % 7 == 0) {
            crowd.undo(number, ends, before);
        }
        assert!(crowd.sessions.len() <= 2 * (MOST + MORE));
    }
    assert_eq!(crowd.bytes(), reserved);
    assert!(crowd.sessions.len() > MOST);
    let mut next = Crowd::default();
    next.restore(crowd.state(), |_| Some(B));
    assert_eq!((next.bytes(), next.sessions.len()), (reserved, crowd.sessions.len()));
}
