//! A cache that was emptied: what was learned of it before is void, here and at the other routers.
//!
//! Who notices tells the others when. There it voids what was learned up to then, and nothing that was learned since, however
//! late the word comes: claims are numbered as they are made, so it is enough to know how far they had got at that time (by the
//! clocks of two machines: what was learned while they differ is void, or is not, by mistake). And who has noticed the same by
//! itself, or was told by somebody else, is not told again.
//!
//! Another router's claim is numbered here when it is heard, and says when it was made. One that is heard when the word has
//! come is void by that. One that is heard just before the word, on its way at the time that the word is about, is reckoned
//! to have been made by then, and with it what was claimed here until it came; see also `cluster::peers`.

use super::Fleet;
use super::replica::Replica;
use super::sharing::Learned;
use super::steps::{Change, note};
use crate::types::ReplicaId;
use std::collections::{HashMap, VecDeque};

/// When a cache was emptied. Milliseconds on the fleet's clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Emptied {
    /// Not before this: who has noticed it later than this has noticed the same.
    pub since: f64,
    /// When it was noticed, and so not after this.
    pub at: f64,
}

/// When caches were emptied last, and how far claims had got when.
#[derive(Debug, Default)]
pub(super) struct Past {
    emptied: HashMap<ReplicaId, f64>,
    marks: VecDeque<(f64, u64)>,
    /// When others made their last claims, and how far claims here had got when those were heard.
    heard: HashMap<ReplicaId, VecDeque<(f64, u64)>>,
}

/// What is noticed at once by one router may be so much earlier or later by another, whose clock may be wrong by a little.
const NEAR: f64 = 1000.0;
/// An engine that was not seen to be gone may have gone so long ago.
const LONG: f64 = 60_000.0;
/// Marks are so far apart, in milliseconds, and those of long ago farther.
const APART: f64 = 20.0;
/// How many there are at most.
const MARKS: usize = 512;
/// Claims of others at a replica are remembered for so many milliseconds, to void those that were on their way, and so many at
/// most.
const UNDERWAY_MS: f64 = 10_000.0;
const UNDERWAY: usize = 1 << 10;

impl Emptied {
    /// The same on a clock that shows so much more.
    #[must_use]
    pub fn shifted(self, by: f64) -> Self {
        Emptied { since: self.since + by, at: self.at + by }
    }
}

impl Past {
    fn mark(&mut self, now: f64, claims: u64) {
        if self.marks.back().is_some_and(|(at, _)| now - at < APART) {
            return;
        }
        if self.marks.len() >= MARKS {
            let (mut place, older) = (0, MARKS / 2);
            self.marks.retain(|_| {
                place += 1;
                place > older || place % 2 == 0
            });
        }
        self.marks.push_back((now, claims));
    }

    /// Claims up to `at`, and perhaps a few after it; `None` for all there are.
    fn claims_by(&self, at: f64) -> Option<u64> {
        let later = self.marks.partition_point(|(then, _)| *then < at);
        self.marks.get(later).map(|(_, claims)| *claims)
    }

    /// The slot is nobody's any more.
    pub(super) fn vacate(&mut self, id: ReplicaId) {
        self.emptied.remove(&id);
        self.heard.remove(&id);
    }

    /// The same for those at a replica, and those of others that were on their way there.
    fn claims_at(&self, id: ReplicaId, at: f64) -> Option<u64> {
        let (by, soon) = (self.claims_by(at)?, self.claims_by(at + NEAR).unwrap_or(u64::MAX));
        let heard = self.heard.get(&id).into_iter().flatten();
        let underway = heard.filter(|(made, claims)| *made < at && *claims <= soon);
        Some(underway.map(|(_, claims)| *claims).fold(by, u64::max))
    }
}

impl Fleet {
    /// Another engine is there: what the one before held is gone.
    pub fn forget(&self, id: ReplicaId) {
        self.begins_anew(id, None);
    }

    /// The engine of a replica has restarted, which was seen at once, or after a probe had found nobody there.
    pub fn restarted(&self, replica: &Replica) {
        let now = self.clock.now();
        let since = replica.probes.nobody().max(now - LONG);
        if self.past.lock().emptied.get(&replica.id).is_some_and(|known| *known >= since) {
            // what was learned since then is not void
            let _step = self.step();
            return self.is_another(replica.id);
        }
        self.begins_anew(replica.id, Some(Emptied { since, at: now }));
    }

    /// The engine of a replica has just ended.
    pub(super) fn broke_off(&self, id: ReplicaId) {
        self.begins_anew(id, Some(self.just_now()));
    }

    fn begins_anew(&self, id: ReplicaId, emptied: Option<Emptied>) {
        let _step = self.step();
        self.notice(id);
        self.sharing.tell(|| Learned::Forgot(id, emptied));
        self.is_another(id);
    }

    /// How fast an engine is has to be seen again.
    fn is_another(&self, id: ReplicaId) {
        note(|| Change::Restarted(id));
        if let Some(replica) = self.replica(id) {
            replica.restarted();
        }
    }

    /// The engine of a replica says that it has emptied its cache.
    pub fn emptied(&self, id: ReplicaId) {
        self.notice(id);
        let emptied = self.just_now();
        self.sharing.tell(|| Learned::Forgot(id, Some(emptied)));
    }

    fn just_now(&self) -> Emptied {
        let now = self.clock.now();
        Emptied { since: now - NEAR, at: now }
    }

    fn notice(&self, id: ReplicaId) {
        self.past.lock().emptied.insert(id, self.clock.now());
        self.empty(id);
    }

    /// All that was learned of a cache is void.
    pub(super) fn empty(&self, id: ReplicaId) {
        let _step = self.step();
        note(|| Change::Forgot(id));
        self.residency.write().forget(id);
        self.lost_all(id);
    }

    /// Nothing is held at a replica any more: what waits there will be read whole.
    pub(super) fn lost_all(&self, id: ReplicaId) {
        self.hints.emptied(id);
        if let Some(replica) = self.replica(id) {
            let work = &mut *replica.work.lock();
            work.backlog.emptied(self.clock.now());
            work.watch.emptied();
        }
    }

    /// Another router has noticed that a cache was emptied.
    pub(super) fn empty_as_told(&self, id: ReplicaId, told: Emptied) {
        let _step = self.step();
        let now = self.clock.now();
        let at = told.at.min(now);
        let claims = {
            let past = &mut *self.past.lock();
            let known = past.emptied.entry(id).or_insert(f64::NEG_INFINITY);
            if *known >= told.since {
                return;
            }
            *known = at;
            past.claims_at(id, at)
        };
        self.residency.write().void(id, claims);
        // of homes and of what waits nobody knows since when; later than that answers tell what a home is worth
        if now - at < NEAR {
            self.lost_all(id);
        }
    }

    /// Whether what was learned of a cache at `at` is void by now.
    pub fn is_void(&self, id: ReplicaId, at: f64) -> bool {
        self.past.lock().emptied.get(&id).is_some_and(|emptied| at < *emptied)
    }

    /// Another router's claim, made at `made`, is the last one here.
    pub(super) fn has_heard(&self, id: ReplicaId, made: f64) {
        let claims = self.residency.read().claims();
        let past = &mut *self.past.lock();
        let heard = past.heard.entry(id).or_default();
        while heard.len() >= UNDERWAY || heard.front().is_some_and(|(first, _)| *first < made - UNDERWAY_MS) {
            heard.pop_front();
        }
        heard.push_back((made, claims));
    }

    /// Remembers how far claims have got, for what is told later of this moment.
    pub fn mark(&self) {
        let claims = self.residency.read().claims();
        self.past.lock().mark(self.clock.now(), claims);
    }
}

#[cfg(test)]
mod tests {
    use super::super::claim::ClaimGuard;
    use super::super::clock::{Clock, Hand};
    use super::super::reservation::{Reservation, Share};
    use super::super::testing::{self, spec};
    use super::*;
    use crate::policy::hint::{Hint, Source};
    use crate::prefix::fingerprint::Ends;
    use crate::prefix::residency::Size;
    use std::sync::Arc;

    const A: ReplicaId = ReplicaId(0);

    fn fleet() -> (Arc<Fleet>, Hand) {
        let (clock, hand) = Clock::manual();
        (Arc::new(testing::fleet(["a", "b"].map(spec)).on(clock)), hand)
    }

    /// Two blocks of a prompt that ends with `print` are read at both.
    fn read(fleet: &Arc<Fleet>, print: u64) {
        let size = Size { prompt: 1024.0, block: 512.0, ends: Ends::default() };
        for id in [A, ReplicaId(1)] {
            ClaimGuard::new(fleet, &[print + 1, print].into(), size, id).confirm();
        }
    }

    /// Blocks of it that are there.
    fn held(fleet: &Fleet, print: u64) -> [u32; 2] {
        let mut overlaps = [0; 2];
        fleet.residency.read().walk(&[print + 1, print], 512.0, None, &mut overlaps);
        overlaps
    }

    fn at(since: f64, at: f64) -> Emptied {
        Emptied { since, at }
    }

    #[test]
    fn what_others_notice_voids_what_was_learned_before_and_nothing_since_however_late_it_is_told() {
        let (fleet, hand) = fleet();
        for (second, print) in [(1, 10), (2, 20), (3, 30), (4, 40)] {
            hand.set(f64::from(second) * 1000.0);
            fleet.mark();
            read(&fleet, print);
        }
        hand.set(5000.0);
        let all = || [10, 20, 30, 40].map(|print| held(&fleet, print)[0]);
        // a little after what was read in the first two seconds
        fleet.empty_as_told(A, at(2400.0, 2500.0));
        assert_eq!((all(), held(&fleet, 10)[1]), ([0, 0, 2, 2], 2));
        // the same once more, by another router, which has noticed it later
        fleet.empty_as_told(A, at(2300.0, 4500.0));
        assert_eq!(all(), [0, 0, 2, 2]);
        read(&fleet, 10);
        fleet.empty_as_told(A, at(4700.0, 9000.0));
        assert_eq!(all(), [0; 4], "its clock is ahead: all that is known");
        read(&fleet, 10);
        assert_eq!(all(), [2, 0, 0, 0]);
    }

    #[test]
    fn who_has_noticed_it_first_is_told_nothing_new() {
        let (fleet, hand) = fleet();
        read(&fleet, 10);
        hand.set(5000.0);
        fleet.forget(A);
        read(&fleet, 20);
        hand.set(9000.0);
        fleet.empty_as_told(A, at(4000.0, 9000.0));
        assert_eq!([10, 20].map(|print| held(&fleet, print)[0]), [0, 2]);
        fleet.empty_as_told(A, at(5001.0, 9000.0));
        assert_eq!(held(&fleet, 20)[0], 0, "it has happened again");
    }

    #[test]
    fn what_is_being_read_may_take_as_long_as_all_of_it_from_then_on() {
        let share =
            Share { units: 1, prefill_ms: 10.0, whole_ms: 9000.0, decode_ms: 9.0, streams: true, generates: true };
        let told = |fleet: &Fleet| fleet.empty_as_told(A, at(0.0, 0.5));
        let ways: [&dyn Fn(&Fleet); 3] = [&|fleet| fleet.emptied(A), &|fleet| fleet.forget(A), &told];
        for way in ways {
            let (fleet, _hand) = fleet();
            let _held = Reservation::new(fleet.replicas()[0].clone(), share, fleet.clock());
            let usual = || fleet.replicas()[0].signs(1.0).map(|signs| signs.prompts_ms);
            let before = usual().unwrap();
            way(&fleet);
            assert_eq!(usual(), Some(before * 900.0));
        }
    }

    #[test]
    fn what_is_read_of_the_past_hides_nothing_that_happens_now() {
        let (fleet, hand) = fleet();
        hand.set(9000.0);
        let mut heard = super::super::heard::Heard::new(fleet.clone());
        heard.take_in_past(Learned::Forgot(A, Some(at(1.0, 2.0))));
        read(&fleet, 10);
        // seen by a router that had found nobody there before this one began
        fleet.empty_as_told(A, at(5000.0, 9000.0));
        assert_eq!(held(&fleet, 10)[0], 0);
    }

    #[test]
    fn what_is_being_read_when_it_is_told_is_held_in_the_end() {
        let (fleet, hand) = fleet();
        fleet.mark();
        hand.set(1000.0);
        fleet.mark();
        let size = Size { prompt: 1024.0, block: 512.0, ends: Ends::default() };
        let session = Some(Hint { key: 5, source: Source::Named });
        let mut claim = ClaimGuard::new(&fleet, &[11, 10].into(), size, A).of(1, session);
        hand.set(1010.0);
        fleet.empty_as_told(A, at(900.0, 990.0));
        claim.confirm();
        let lost = || fleet.hints.home(5).map(|home| home.lost);
        assert_eq!((held(&fleet, 10)[0], lost()), (2, Some(false)));
        fleet.empty_as_told(A, at(1000.0, 1010.0));
        assert_eq!(lost(), Some(true));
    }

    #[test]
    fn times_of_long_ago_are_remembered_roughly_and_there_are_never_many() {
        let mut past = Past::default();
        for n in 0..1_000_000u32 {
            past.mark(f64::from(n) * 5.0, n.into());
        }
        assert!(past.marks.len() <= MARKS);
        for ago in [100.0, 1000.0, 10_000.0, 100_000.0, 1_000_000.0] {
            let at = 5e6 - ago;
            let claims = past.claims_by(at).unwrap() as f64 * 5.0;
            assert!((at..at + 20.0 + ago).contains(&claims), "{ago}: {claims} for {at}");
        }
        assert_eq!(past.claims_by(5e6), None);
    }
}
