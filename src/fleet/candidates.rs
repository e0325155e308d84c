//! The choice over the fleet: one pass that gathers what each replica is like right now, and the policies over it.
//!
//! Every replica is looked at for every request, so a look is a few loads: a row of numbers beside the lock of its work
//! (see `work`), a few atomics, and what the walk over the index left for it. What is locked is locked once for all of
//! them, for reading or for a look-up: the residency, where sessions are, and what an engine that tells of its cache has
//! told. Which replicas are ones for the model was worked out before (see [`super::fits`]).

use super::presumed::{home_of, suppose};
use super::replica::Replica;
use super::selection::RouteKey;
use super::steps::{Told, is_noting, note_pool, note_presumed};
use super::{Fleet, Tuning};
use crate::policy::cost::Prospect;
use crate::policy::estimate::Prior;
use crate::policy::hint::{Hint, Source, rendezvous};
use crate::policy::room::Room;
use crate::policy::select::{Candidate, Decision};
use crate::policy::{flight, hint, lane, slow_start};
use crate::prefix::crowd::Session;
use crate::prefix::residency::Residency;
use crate::prefix::stored::Held;
use crate::prefix::turns::Turn;
use crate::types::ReplicaId;
use smallvec::SmallVec;
use std::sync::Arc;

/// Candidates; those of small fleets need no heap.
pub(super) type Pool = SmallVec<[Candidate; 8]>;

/// The shares of those that came back lately, by place.
pub(super) type Back = SmallVec<[(usize, f64); 8]>;

/// A value for each slot.
type BySlot = SmallVec<[u32; 64]>;

/// A replica as a choice sees it, besides what it is told by numbers that change all the time.
pub(super) struct Seen<'a> {
    pub replica: &'a Replica,
    /// Whether it takes requests.
    pub healthy: bool,
    /// Its share, if it has come back lately; else 1.
    pub share: f64,
    /// What it stores of the turn before, if its engine tells.
    pub stores: Option<Held>,
}

/// What the index says of a prompt.
struct Overlaps<'a> {
    residency: &'a Residency,
    /// Leading blocks that each replica holds or is reading, and those that it holds.
    all: BySlot,
    confirmed: BySlot,
    /// Tokens of a block, and blocks of the prompt.
    block: f64,
    blocks: u32,
    /// Tokens of the prompt.
    prompt: f64,
    /// Its session before it.
    session: Option<Session>,
    /// The turn before, and after how many blocks it ended.
    before: Option<(Turn, u32)>,
    ended: u32,
}

impl Overlaps<'_> {
    /// Tokens that a replica holds after its `overlap`: the end of the turn before, unless that was evicted with more.
    fn tail(&self, id: ReplicaId, overlap: u32) -> f64 {
        match self.before {
            Some((turn, end)) if turn.replica == id && overlap >= end => turn.after(overlap as usize, self.block),
            _ => 0.0,
        }
    }

    /// The cache of a replica that holds `overlap`, as the session sees it.
    fn room(&self, id: ReplicaId, overlap: u32) -> Room {
        let shared = self.session.map_or(f64::from(overlap) * self.block, |session| session.trunk);
        let others = self.residency.others(id, self.session);
        Room {
            keeps: self.residency.keeps(id).unwrap_or(f64::INFINITY),
            others: others.tokens,
            own: (self.prompt - shared).max(0.0),
            sessions: f64::from(others.sessions),
        }
    }

    /// Leading blocks that a replica holds, and tokens after them, where its engine tells how many tokens of the turn
    /// before it `stores`.
    fn stored(&self, stores: u32) -> (u32, f64) {
        let tokens = f64::from(stores).min(self.prompt);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "never negative, and clamped")]
        let overlap = ((tokens / self.block.max(1.0)) as u32).min(self.blocks);
        (overlap, tokens - f64::from(overlap) * self.block)
    }

    /// What a replica is like at `now`, its health aside.
    fn candidate(&self, r: &Replica, stores: Option<Held>, now: f64) -> Candidate {
        let (id, believed, confirmed) = (r.id, self.all[r.id.index()], self.confirmed[r.id.index()]);
        let told = stores.map(|held| (self.stored(held.tokens), held.is_whole && believed > self.ended));
        let (overlap, tail, confirmed) = match told {
            // somebody has gone on where the turn before ended, of which its engine has told
            Some(((overlap, _), true)) if believed > overlap => {
                (believed, self.tail(id, believed), confirmed.max(overlap))
            }
            Some(((overlap, tail), _)) => (overlap, tail, overlap),
            None => (believed, self.tail(id, believed), confirmed),
        };
        Candidate {
            id,
            healthy: true,
            overlap,
            tail,
            confirmed,
            load: r.load(),
            prospect: Prospect { room: self.room(id, overlap), ..r.prospect(now) },
        }
    }
}

/// Makes those that came back lately as busy as they should look.
pub(super) fn ease(candidates: &mut Pool, back: Back) {
    if !back.is_empty() {
        let mut shares: SmallVec<[f64; 8]> = smallvec::smallvec![1.0; candidates.len()];
        back.into_iter().for_each(|(place, share)| shares[place] = share);
        slow_start::ease(candidates, &shares);
    }
}

impl Fleet {
    /// Chooses among `pool` under the policy and the rules.
    pub(super) fn choose<'a>(
        &self,
        pool: impl ExactSizeIterator<Item = &'a Arc<Replica>>,
        key: &RouteKey<'_>,
        chain: &[u64],
    ) -> Option<Decision> {
        let mut candidates = self.candidates(pool, key, chain);
        let replicas = self.replicas();
        let weight = |key, id| rendezvous(key, replicas.at(id).map_or(0, |r| r.name_hash));
        let presumed = self.presume(key, &candidates, weight);
        if let Some(presumed) = presumed {
            suppose(&mut candidates, presumed, key.previous);
            note_presumed(presumed);
        }
        self.rank(key, &candidates, presumed, weight)
    }

    /// The same among candidates. The session is `presumed` to be at one of them, if that is not known; `weight` is that
    /// of a replica for a session that has no home.
    pub(super) fn rank(
        &self,
        key: &RouteKey<'_>,
        candidates: &[Candidate],
        presumed: Option<ReplicaId>,
        weight: impl Fn(u64, ReplicaId) -> u64,
    ) -> Option<Decision> {
        let mut request = key.request;
        let tuning = self.tuning.load();
        let Tuning { params, rules } = &**tuning;
        let replicas = self.replicas();
        let in_lane = |id| replicas.at(id).is_some_and(|r| r.spec.role.in_lane);
        let lane = rules.lane.as_ref().map(|lane| (lane, &in_lane as _));
        let at_home = |session: Hint| match presumed {
            Some(replica) => home_of(session, replica),
            None => (session, self.hints.home(session.key)),
        };
        let session = key.session.map(at_home);
        let is_open = |home: ReplicaId| candidates.iter().any(|c| c.id == home && c.healthy);
        let begins = session.is_some_and(|(hint, home)| {
            hint.source == Source::Named && !home.is_some_and(|home| is_open(home.replica))
        });
        if begins {
            request.tokens.turns = self.hints.turns(self.clock.now());
        }
        lane::choose(request, candidates, params, lane, |group| {
            let decision = flight::choose(request, group, params)?;
            Some(match session {
                Some(hint) => hint::weigh(decision, hint, (request, group), params, &weight),
                None => decision,
            })
        })
    }

    /// The candidates among `pool` for a prompt.
    pub(super) fn candidates<'a>(
        &self,
        pool: impl ExactSizeIterator<Item = &'a Arc<Replica>>,
        key: &RouteKey<'_>,
        chain: &[u64],
    ) -> Pool {
        let now = self.clock.now();
        let window = self.tuning.load().rules.slow_start.as_secs_f64() * 1000.0;
        let fits = self.fits.load();
        let fitting = fits.of_model(key.model);
        let mut is_left = false;
        let may_come = pool.filter(|r| {
            let leaves = fitting.has(r.id) && r.is_barred() && r.is_left_slowly(now);
            is_left |= leaves;
            leaves || fitting.has(r.id) && !r.is_barred()
        });
        let share = |r: &Replica| slow_start::share(r.age(now), window);
        let print = key.previous.map(|place| place.print);
        // of few, as sessions stay where they are
        let mut stored: SmallVec<[(ReplicaId, Held); 4]> = SmallVec::new();
        let seen = may_come.map(|replica| {
            let stores = replica.stores(print);
            stored.extend(stores.map(|held| (replica.id, held)));
            Seen { replica, healthy: replica.takes_requests(), share: share(replica), stores }
        });
        let (mut candidates, mut back) = self.look(seen, key, chain, now);
        if is_left {
            self.let_stay(&mut candidates, &mut back, key);
        }
        self.extend_trials(&mut candidates);
        if is_noting() {
            let share = |place: usize| back.iter().find(|(at, _)| *at == place).map_or(1.0, |(_, share)| *share);
            let stores = |id| stored.iter().find(|(of, _)| *of == id).map(|(_, held)| *held);
            let told = |(place, c): (usize, &Candidate)| Told {
                id: c.id,
                healthy: c.healthy,
                share: share(place),
                stores: stores(c.id),
                presumed: false,
            };
            note_pool(candidates.iter().enumerate().map(told));
        }
        ease(&mut candidates, back);
        candidates
    }

    /// What each of these is like at `now`; and the shares of those that came back lately, by place.
    pub(super) fn look<'a>(
        &self,
        pool: impl Iterator<Item = Seen<'a>>,
        key: &RouteKey<'_>,
        chain: &[u64],
        now: f64,
    ) -> (Pool, Back) {
        let residency = self.residency.read();
        let overlaps = self.overlaps(&residency, key, chain);
        let mut candidates = Pool::with_capacity(pool.size_hint().1.unwrap_or(0));
        // most have all of theirs
        let mut back = Back::new();
        for Seen { replica, healthy, share, stores } in pool {
            if share < 1.0 {
                back.push((candidates.len(), share));
            }
            candidates.push(Candidate { healthy, ..overlaps.candidate(replica, stores, now) });
        }
        let prior = Prior::of(candidates.iter().map(|c| c.prospect.rates));
        candidates.iter_mut().for_each(|c| c.prospect.rates = c.prospect.rates.with(prior));
        (candidates, back)
    }

    fn overlaps<'a>(&self, residency: &'a Residency, key: &RouteKey<'_>, chain: &[u64]) -> Overlaps<'a> {
        let (prompt, block) = (key.request.tokens.prompt, key.request.tokens.block);
        let session = residency.session(key.previous);
        let mut all: BySlot = smallvec::smallvec![0; self.replicas().slots()];
        if !chain.is_empty() {
            residency.walk(chain, block, session, &mut all);
        }
        let mut confirmed = all.clone();
        residency.confirmed(chain, &mut confirmed);
        let blocks = u32::try_from(chain.len()).unwrap_or(u32::MAX);
        let ended = key.previous.map_or(0, |place| place.blocks);
        let before = residency.turn(key.previous).map(|turn| (turn, ended));
        Overlaps { residency, all, confirmed, block, blocks, prompt, session, before, ended }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Rules;
    use super::super::claim::ClaimGuard;
    use super::super::testing::spec;
    use super::*;
    use crate::policy::cost::Tokens;
    use crate::policy::select::RouteRequest;
    use crate::policy::testing::{TURN, params};
    use crate::prefix::fingerprint::{Ends, Place};
    use crate::prefix::residency::{Served, Size};
    use crate::prefix::stored::Stored;
    use crate::types::PolicyKind;
    use std::sync::atomic::Ordering::Relaxed;
    use std::time::Duration;

    #[test]
    fn a_replica_that_came_back_starts_slowly() {
        let rules = Rules { slow_start: Duration::from_secs(3600), ..Rules::default() };
        let fleet = Fleet::new(vec![spec("a"), spec("b")], params(PolicyKind::Load), 1 << 20).under(rules);
        let request = RouteRequest { blocks: 0, ..TURN };
        let loads = |load: u32| {
            fleet.replicas().iter().for_each(|r| r.load.store(load, Relaxed));
            let key = RouteKey { request, model: None, previous: None, session: None };
            let seen = fleet.candidates(fleet.replicas().iter(), &key, &[]);
            (seen[0].load, seen[1].load)
        };
        assert_eq!(loads(3), (3, 3));
        fleet.replicas()[0].begin_anew(fleet.clock().now());
        assert_eq!(loads(0), (0, 0));
        let (emptied, other) = loads(3);
        assert_eq!(other, 3);
        assert!(emptied > 30, "{emptied}");
    }

    #[test]
    fn what_is_stored_of_the_turn_before_bounds_that_turn_and_not_what_goes_on_beyond_it() {
        let fleet = Arc::new(Fleet::new(vec![spec("a")], params(PolicyKind::Cost), 1 << 20));
        let replica = &fleet.replicas()[0];
        let chain: Arc<[u64]> = (1..=20).collect();
        let previous = Some(Place { print: 7, blocks: 10 });
        let size = Size { prompt: 10_240.0, block: 512.0, ends: Ends::default() };
        ClaimGuard::new(&fleet, &chain[..10].into(), size, ReplicaId(0)).confirm();
        let blocks: Vec<u64> = (0..320).collect();
        let teller = Arc::new(());
        assert!(replica.is_told_by(&teller, 0.0));
        replica.tell(&teller, |stored| stored.store(&blocks, None, 16)).unwrap();
        let served = Served { prompt: 5120.0, cached: 0.0, output: 1.0 };
        replica.relate((None, previous), (served, true), 0);
        let tokens = Tokens { prompt: 10_240.0, block: 512.0, output: 1.0, turns: 0.0 };
        let request = RouteRequest { blocks: 20, tokens, ..TURN };
        let key = RouteKey { request, model: None, previous, session: None };
        let seen = || fleet.candidates(fleet.replicas().iter(), &key, &chain)[0];
        // of the turn before its account is exact, and the tokens of its blocks are an estimate
        let rough = RouteRequest { tokens: Tokens { block: 600.0, ..tokens }, ..request };
        let held = fleet.candidates(fleet.replicas().iter(), &RouteKey { request: rough, ..key }, &chain)[0];
        assert!((f64::from(held.overlap) * 600.0 + held.tail - 5120.0).abs() < 1.0, "{held:?}");
        ClaimGuard::new(&fleet, &chain, size, ReplicaId(0)).confirm();
        assert_eq!((seen().overlap, seen().confirmed), (20, 20), "it was sent before");
        let evicted = |stored: &mut Stored| {
            stored.remove(&[319, 318]);
            Ok(())
        };
        replica.tell(&teller, evicted).unwrap();
        assert_eq!((seen().overlap, seen().confirmed), (9, 9));
    }
}
