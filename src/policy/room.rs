//! Which sessions share a cache, pure: what the sessions of a replica lose when one more lives there.
//!
//! A cache that holds all of its sessions serves each of them. One that is a little too small serves none: they come in
//! turn, and each finds that those before it have driven out what it held, which is what least-recently-used caches are
//! worst at. So the loss is no matter of degrees. While all fits, nothing is lost; beyond it, everything that is held for
//! the others, and a session's part of it is its part of what is too much:
//!
//! ```text
//! excess = others + own − FULL × keeps
//! lost   = min(others, keeps) × min(1, own / excess)        where the excess is above 0
//! ```
//!
//! `others` are the tokens of the sessions that live there (`prefix::crowd`), `keeps` what the cache was seen to keep
//! (`prefix::lru`). A session that lives there already is counted in the same way: while it stays, the others lose.
//!
//! Where not all sessions fit into all caches, spreading what is too much evenly would spoil every cache. So it is left to
//! few: the last replicas in the order of their slots, as many as the part of the sessions that does not fit, cost nothing
//! to live at. Those who live there are read anew at each turn, as all would be otherwise; as soon as there is room
//! elsewhere, it is cheaper for them to go there. Which replicas it is does not change with the load, or whoever moved
//! would be driven back.

use crate::types::ReplicaId;
use smallvec::SmallVec;

/// A replica's cache as the session of a request sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Room {
    /// Tokens that it keeps; infinite while nothing tells.
    pub keeps: f64,
    /// Tokens that the other sessions there need.
    pub others: f64,
    /// Tokens that this session needs.
    pub own: f64,
    /// How many other sessions there are; infinite where they are not told apart.
    pub sessions: f64,
}

/// The share of a cache that sessions may fill: answers, sessions that end and prompts of no session need some, too.
const FULL: f64 = 0.85;

impl Room {
    /// For any number of sessions.
    pub const ENDLESS: Room = Room { keeps: f64::INFINITY, others: 0.0, own: 0.0, sessions: f64::INFINITY };

    /// Tokens that do not fit; negative while all do.
    fn excess(&self) -> f64 {
        self.others + self.own - self.keeps * FULL
    }

    /// Tokens that the others lose by this session.
    fn lost(&self) -> f64 {
        let excess = self.excess();
        if excess > 0.0 { self.others.min(self.keeps) * (self.own / excess).min(1.0) } else { 0.0 }
    }
}

/// What the sessions of each candidate lose, in the order of the candidates; empty where nobody loses anything.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Losses(SmallVec<[f64; 8]>);

impl Losses {
    /// Tokens, candidate by candidate.
    pub fn each(&self) -> impl Iterator<Item = f64> + '_ {
        self.0.iter().copied().chain(std::iter::repeat(0.0))
    }
}

/// What the other sessions of each of `rooms` lose by this one. `excess` and `few` as in the head of this module.
pub fn losses<'a>(rooms: impl Iterator<Item = (ReplicaId, &'a Room)> + Clone) -> Losses {
    let (mut needs, mut keeps, mut own, mut all, mut fit) = (0.0, 0.0, 0.0f64, 0, true);
    for (_, room) in rooms.clone() {
        needs += room.others;
        keeps += room.keeps * FULL;
        own = own.max(room.own);
        all += 1;
        fit &= room.excess() <= 0.0;
    }
    if fit {
        return Losses::default();
    }
    let mut lost: SmallVec<[f64; 8]> = rooms.clone().map(|(_, room)| room.lost()).collect();
    needs += own;
    if needs > keeps {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most all")]
        let few = (f64::from(all) * (needs - keeps) / needs).ceil() as usize;
        let mut ids: SmallVec<[ReplicaId; 64]> = rooms.clone().map(|(id, _)| id).collect();
        ids.sort_unstable();
        let first = ids.get(ids.len() - few.min(ids.len())).copied();
        for (lost, (id, _)) in lost.iter_mut().zip(rooms) {
            if first.is_some_and(|first| id >= first) {
                *lost = 0.0;
            }
        }
    }
    Losses(lost)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn room(keeps: f64, others: f64) -> Room {
        Room { keeps, others, own: 50.0, sessions: 10.0 }
    }

    fn lost<const N: usize>(rooms: [Room; N]) -> Vec<f64> {
        losses((0..).map(ReplicaId).zip(&rooms)).each().take(N).collect()
    }

    #[test]
    fn a_session_goes_where_there_is_room_and_costs_all_that_is_held_where_there_is_just_none() {
        assert_eq!(lost([room(1000.0, 790.0), room(1000.0, 820.0), room(f64::INFINITY, 1e9)]), [0.0, 820.0, 0.0]);
        assert_eq!(lost([Room::ENDLESS]), [0.0]);
    }

    #[test]
    fn what_is_far_too_much_is_not_the_fault_of_one() {
        let [_, far] = lost([room(9000.0, 0.0), room(1000.0, 1800.0)])[..] else { panic!() };
        assert_eq!(far, 1000.0 * 50.0 / 1000.0);
    }

    #[test]
    fn what_fits_nowhere_is_left_to_few_of_them_always_the_same() {
        assert_eq!(lost([room(1000.0, 900.0), room(1000.0, 900.0)]), [900.0 * 50.0 / 100.0, 0.0]);
        assert_eq!(lost([room(1000.0, 820.0), room(1000.0, 2400.0)]), [820.0, 0.0]);
        assert_eq!(lost([room(1000.0, 820.0), room(1000.0, 820.0), room(1000.0, 5000.0)])[1..], [0.0, 0.0]);
    }

    proptest! {
        #[test]
        fn nobody_loses_more_than_there_is_and_more_sessions_never_cost_less(
            rooms in prop::collection::vec((1.0f64..1e6, 0.0f64..2e6), 1..9), own in 0.0f64..1e5, more in 1.0f64..1e5,
        ) {
            let all = |own: f64| -> Vec<Room> {
                rooms.iter().map(|&(keeps, others)| Room { keeps, others, own, sessions: 1.0 }).collect()
            };
            let these = all(own);
            let some = losses((0..).map(ReplicaId).zip(&these));
            for (lost, room) in some.each().zip(&these) {
                prop_assert!((0.0..=room.others.min(room.keeps)).contains(&lost));
                let larger = Room { own: own + more, ..*room };
                prop_assert!(room.lost() <= larger.lost() + 1e-6);
            }
        }
    }
}
