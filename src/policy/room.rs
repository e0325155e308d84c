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
//! Whoever begins needs little, and will need as much as others do: a small cache would be filled with sessions that
//! leave it when they are long, and are read again elsewhere. So in the excess a session counts as at least what sessions need
//! on average, in the whole fleet, those included that never return.
//!
//! Where not all sessions fit into all caches together, the fleet is *crowded*: moving them about makes room nowhere, and
//! nobody pays for what others lose. Instead, what drives others out is rationed. A session that returns and has lost much
//! of its last prompt is a *guest*. At each replica one guest's prompt is read after another, first come first served, and
//! after each of them the engine belongs for [`REST`] times as long to those whose prompts are held. The rest is left to the
//! cache: a guest drives out the session that has been away longest, which is a guest itself when it returns, and is served
//! from the cache from then on. So sessions take turns in living somewhere, for many requests in a row. A new session does
//! not wait: it has lost nothing, and may be the only request of its kind.
//!
//! A session whose end is just about to be driven out is a guest, too, although it is still held. If it went at once, what
//! is read before it in the engine's queue would take its end, which is then read again and takes the next one's, and so on
//! through all: a cache that is one session short spoils them all. While that one stays away, the others have room.
//!
//! A guest waits as long as it takes to read those before it, [`REST`] + 1 times, or less where that would be very long:
//! many guests are read as fast as engines can. Either way that may be longer than all would wait if everybody was read
//! anew; for it nearly all turns are served at once.
//!
//! What is refused: to count who lives where and leave the rest to few replicas, where everybody would wait for them; and to
//! let guests go whenever an engine is free, which hardly generates while it reads.

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
/// Tokens of a guest's prompt that have to be read, at least: less drives out next to nothing.
const GUEST: f64 = 4096.0;
/// The part of a cache beyond which what was used before may be gone any moment: as exactly as distances are known.
const EDGE: f64 = 0.9;
/// For how many times as long as a guest's prompt is read no other one is read at its replica.
pub const REST: f64 = 3.0;
/// The longest that guests are to wait, in milliseconds, if they can be read in that time: half of what clients usually
/// wait for. Where it would take longer they are left less time in between, if need be none.
const LONGEST_MS: f64 = 300_000.0;

impl Room {
    /// For any number of sessions.
    pub const ENDLESS: Room = Room { keeps: f64::INFINITY, others: 0.0, own: 0.0, sessions: f64::INFINITY };

    /// Tokens that do not fit, or will not; negative while all do. A session needs `each` on average.
    fn excess(&self, each: f64) -> f64 {
        let grown = if self.sessions.is_finite() { self.sessions * each } else { 0.0 };
        self.others.max(grown) + self.own.max(each) - self.keeps * FULL
    }

    /// Tokens that the others lose by this session.
    fn lost(&self, each: f64) -> f64 {
        let (excess, own) = (self.excess(each), self.own.max(each));
        if excess > 0.0 { self.others.min(self.keeps) * (own / excess).min(1.0) } else { 0.0 }
    }
}

/// What the sessions of each candidate lose, in the order of the candidates.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Losses {
    /// Empty where nobody loses anything by a choice.
    each: SmallVec<[f64; 8]>,
    /// Whether the sessions of all candidates need more than all caches keep.
    pub crowded: bool,
}

impl Losses {
    /// Tokens, candidate by candidate.
    pub fn each(&self) -> impl Iterator<Item = f64> + '_ {
        self.each.iter().copied().chain(std::iter::repeat(0.0))
    }
}

/// What the other sessions of each of `rooms` lose by this one.
pub fn losses<'a>(rooms: impl Iterator<Item = &'a Room> + Clone) -> Losses {
    let (mut needs, mut sessions, mut keeps, mut own) = (0.0, 0.0, 0.0, 0.0f64);
    for room in rooms.clone() {
        needs += room.others;
        sessions += room.sessions;
        keeps += room.keeps * FULL;
        own = own.max(room.own);
    }
    let crowded = needs + own > keeps;
    // of any number of sessions each needs nothing
    let each = needs / f64::max(sessions, 1.0);
    let fits = crowded || rooms.clone().all(|room| room.excess(each) <= 0.0);
    let each = if fits { SmallVec::new() } else { rooms.map(|room| room.lost(each)).collect() };
    Losses { each, crowded }
}

/// Whether a session that returns to a crowded fleet is a guest: `again` tokens of its last prompt have to be read again, and
/// `strain` is the part of the cache that was used since it was last there.
pub fn is_guest(again: f64, strain: f64) -> bool {
    again > GUEST || strain > EDGE
}

/// Milliseconds after which the next guest may go to a replica, once one goes there that waits for `queue` and then takes
/// `prefill` to read, while `waiting` others wait for each replica.
pub fn turn_ms(queue: f64, prefill: f64, waiting: f64) -> f64 {
    queue + (LONGEST_MS / waiting).clamp(prefill, prefill * (1.0 + REST))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn room(keeps: f64, others: f64) -> Room {
        Room { keeps, others, own: 50.0, sessions: 100.0 }
    }

    fn lost<const N: usize>(rooms: [Room; N]) -> Vec<f64> {
        losses(rooms.iter()).each().take(N).collect()
    }

    #[test]
    fn a_session_goes_where_there_is_room_and_costs_all_that_is_held_where_there_is_just_none() {
        let endless = Room { sessions: f64::INFINITY, ..room(f64::INFINITY, 1e9) };
        assert_eq!(lost([room(1000.0, 790.0), room(1000.0, 820.0), endless]), [0.0, 820.0, 0.0]);
        assert_eq!(lost([Room::ENDLESS]), [0.0]);
    }

    #[test]
    fn who_has_just_begun_counts_as_what_becomes_of_it() {
        let with = |small: f64, sessions: f64| {
            let rooms =
                [Room { own: 20.0, sessions, ..room(1000.0, small) }, Room { own: 20.0, ..room(90_000.0, 9900.0) }];
            lost(rooms)
        };
        // a session of the fleet needs a hundred on average
        assert_eq!(with(740.0, 7.0), [0.0, 0.0]);
        assert_eq!(with(780.0, 7.0), [780.0, 0.0], "it will not fit");
        assert_eq!(with(300.0, 9.0), [300.0, 0.0], "nor will those that are as young");
        assert_eq!(with(300.0, 7.0), [0.0, 0.0]);
    }

    #[test]
    fn what_is_far_too_much_is_not_the_fault_of_one() {
        let [_, far] = lost([room(9000.0, 0.0), room(1000.0, 1800.0)])[..] else { panic!() };
        assert_eq!(far, 1000.0 * 50.0 / 1000.0);
    }

    #[test]
    fn where_not_all_fit_nobody_pays_and_the_fleet_is_crowded() {
        let crowded = |rooms: &[Room]| losses(rooms.iter()).crowded;
        assert_eq!(lost([room(1000.0, 900.0), room(1000.0, 900.0)]), [0.0, 0.0]);
        assert!(crowded(&[room(1000.0, 900.0), room(1000.0, 760.0)]));
        assert!(!crowded(&[room(1000.0, 900.0), room(1000.0, 740.0)]), "one of them could go elsewhere");
        assert!(!crowded(&[Room::ENDLESS]) && !crowded(&[room(1000.0, 9000.0), Room::ENDLESS]) && !crowded(&[]));
    }

    #[test]
    fn a_guest_has_lost_much_or_is_about_to() {
        assert!(is_guest(20_000.0, 0.2) && is_guest(0.0, 0.95) && !is_guest(1000.0, 0.8));
    }

    #[test]
    fn many_guests_follow_each_other_sooner_and_none_before_the_other_is_read() {
        assert_eq!(turn_ms(100.0, 5000.0, 0.0), 20_100.0);
        assert_eq!(turn_ms(100.0, 5000.0, 10.0), 20_100.0);
        assert_eq!(turn_ms(100.0, 5000.0, 30.0), 10_100.0);
        assert_eq!(turn_ms(100.0, 5000.0, 1000.0), 5100.0);
        assert_eq!(turn_ms(0.0, 0.0, 0.0), 0.0);
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
            let some = losses(these.iter());
            for (lost, room) in some.each().zip(&these) {
                prop_assert!((0.0..=room.others.min(room.keeps)).contains(&lost));
                let larger = Room { own: own + more, ..*room };
                prop_assert!(room.lost(0.0) <= larger.lost(0.0) + 1e-6);
            }
        }
    }
}
