//! What the fleet knows, as it is handed to the next process: everything that was learned, by replica *name*, so that the
//! two may have different replicas in different slots.
//!
//! It is copied in pieces, each under its own lock for no longer than the copying takes, and written down afterwards.

use super::Fleet;
use super::hints::Last;
use super::replica::Replica;
use super::replica::state::ReplicaState;
use super::steps::{Change, note};
use crate::pack::record;
use crate::policy::estimate::ModelRates;
use crate::policy::returns::Returns;
use crate::prefix::residency::state::ResidencyState;
use crate::types::ReplicaId;
use std::collections::HashMap;
use std::sync::Arc;

/// What is handed over. A replica is named by its slot.
#[derive(Clone, Debug)]
pub struct FleetState {
    now: f64,
    /// Bytes of a block: fingerprints of blocks of another size mean nothing.
    block_bytes: u64,
    replicas: Vec<(ReplicaId, ReplicaState)>,
    models: Vec<(String, ModelRates)>,
    pins: Vec<(u64, ReplicaId)>,
    /// The number that sessions' names are hashed with, and where they were.
    hints: (u64, Vec<(u64, Last)>),
    /// How many turns sessions take.
    returns: Returns,
    residency: ResidencyState,
    orders: Vec<Order>,
}
record!(FleetState { now, block_bytes, replicas, models, pins, hints, returns, residency, orders });

/// What an operator has said of a replica by name. Times are milliseconds on the fleet's clock.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    name: String,
    /// Since when it is drained, if it is.
    drained: Option<f64>,
    /// Until when some of its sessions may stay, if they may.
    leaves_by: Option<f64>,
}
record!(Order { name, drained, leaves_by });

impl Order {
    /// Drained since then, or not, and left by then.
    pub fn new(name: String, drained: Option<f64>, leaves_by: Option<f64>) -> Self {
        Order { name, drained, leaves_by }
    }

    /// The replica's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is drained.
    pub fn is_drained(&self) -> bool {
        self.drained.is_some()
    }

    /// Since when it is drained, if it is.
    pub fn drained_since(&self) -> Option<f64> {
        self.drained
    }

    /// Until when some of its sessions may stay, if they may.
    pub fn leaves_by(&self) -> Option<f64> {
        self.leaves_by
    }
}

impl FleetState {
    /// The same for a process that makes fingerprints otherwise: what is held is not known there.
    #[must_use]
    pub fn without_fingerprints(self) -> Self {
        FleetState { block_bytes: 0, ..self }
    }

    /// What the clock showed, in milliseconds: the next process's goes on from there.
    pub fn now(&self) -> f64 {
        self.now
    }
}

impl Fleet {
    /// What is handed over of the members.
    pub fn state(&self) -> FleetState {
        let residency = self.residency.read().copy();
        FleetState {
            now: self.clock.now(),
            block_bytes: self.params().load.block_bytes,
            replicas: self.members().iter().map(|replica| (replica.id, replica.copy())).collect(),
            models: self.models.all(),
            pins: self.pins.all(),
            hints: self.hints.all(),
            returns: self.hints.returns(),
            residency: residency.state(),
            orders: self.orders(),
        }
    }

    /// What operators have said of the members.
    pub fn orders(&self) -> Vec<Order> {
        let now = self.clock.now();
        let of = |r: &Arc<Replica>| Order {
            name: r.name().to_owned(),
            drained: r.drained_since(),
            leaves_by: r.leaves_by(now),
        };
        self.members().iter().map(of).collect()
    }

    /// Does as operators have said to another process.
    pub fn obey(&self, orders: Vec<Order>) {
        for Order { name, drained, leaves_by } in orders {
            let Some(replica) = self.replicas().iter().find(|r| r.name() == name).cloned() else { continue };
            let is_drained = replica.drained_since().is_some();
            // also where it is drained: whoever could stay is to leave at once
            if drained.is_some() != is_drained || is_drained && leaves_by.is_none() {
                replica.drain(drained.is_some(), drained.unwrap_or_else(|| self.clock.now()));
            }
            if let (Some(_), Some(ends)) = (drained, leaves_by) {
                self.leave_by(&replica, ends);
            }
        }
    }

    /// Takes in what another process knew of the replicas that are members here by the same name. The clock must show no
    /// less than the other one's did.
    pub fn inherit(&self, state: FleetState) {
        let _step = self.step();
        note(|| Change::Inherited);
        let members = self.members();
        let here: HashMap<&str, usize> = members.iter().enumerate().map(|(n, r)| (r.name(), n)).collect();
        let taken = |(old, known): (ReplicaId, ReplicaState)| {
            let replica = &members[*here.get(known.name.as_str())?];
            replica.inherit(known).then_some((old.index(), replica.id))
        };
        let slots: HashMap<usize, ReplicaId> = state.replicas.into_iter().filter_map(taken).collect();
        let slot = |old: usize| slots.get(&old).copied();
        self.note_models();
        self.models.restore(state.models);
        let pins = state.pins.into_iter();
        pins.filter_map(|(key, at)| Some((key, slot(at.index())?))).for_each(|(key, at)| self.pins.remember(key, at));
        let (secret, sessions) = state.hints;
        let sessions = sessions.into_iter();
        let sessions =
            sessions.filter_map(|(key, last)| Some((key, Last { replica: slot(last.replica.index())?, ..last })));
        self.hints.restore(secret, sessions);
        self.hints.go_on_from(state.returns);
        let prints = state.block_bytes == self.params().load.block_bytes;
        self.residency.write().restore(state.residency, prints, slot);
        self.obey(state.orders);
        self.forgive();
    }

    /// Another process has taken over: it probes from now on.
    pub fn retire(&self) {
        self.retired.send_replace(true);
    }

    /// Whether another process has taken over.
    pub fn is_retired(&self) -> bool {
        *self.retired.borrow()
    }

    /// Returns when another process has taken over.
    pub async fn until_retired(&self) {
        // it cannot fail: the fleet has the sender
        let mut retired = self.retired.subscribe();
        drop(retired.wait_for(|retired| *retired).await);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Rules;
    use super::super::clock::Clock;
    use super::super::fencing::ErrorRule;
    use super::super::replica::ReplicaSpec;
    use super::super::testing::spec;
    use super::*;
    use crate::api::catalogue::Catalogue;
    use crate::pack::{self, Pack};
    use crate::policy::errors::{Ended, ErrorLimits};
    use crate::policy::flight::FlightParams;
    use crate::policy::score::{AffinityParams, LoadParams};
    use crate::policy::select::Params;
    use crate::policy::standing::State;
    use crate::prefix::fingerprint::{Ends, Place};
    use crate::prefix::residency::Size;
    use crate::prefix::turns::Turn;
    use crate::types::{Basis, PolicyKind};
    use xxhash_rust::xxh3::xxh3_64;

    fn fleet(replicas: &[(&str, &str)], block_bytes: u64) -> Fleet {
        let spec = |(name, host): &(&str, &str)| ReplicaSpec { host: (*host).to_owned(), ..spec(name) };
        let params = Params {
            policy: PolicyKind::Cost,
            affinity: AffinityParams { basis: Basis::Relative, cap_blocks: 32, alpha: 4.0 },
            load: LoadParams { unit_bytes: 32 << 10, max_units: 8, block_bytes },
            flight: FlightParams::default(),
        };
        Fleet::new(replicas.iter().map(spec).collect(), params, 1 << 20)
    }

    fn overlaps(fleet: &Fleet, chain: &[u64]) -> Vec<u32> {
        let mut overlaps = vec![0; fleet.replicas().slots()];
        fleet.residency.read().walk(chain, 512.0, None, &mut overlaps);
        overlaps
    }

    /// The fleet of a process that has learned something, and the chain that it knows.
    fn learned() -> (Fleet, Arc<[u64]>) {
        let fleet = fleet(&[("a", "x"), ("b", "y"), ("c", "z")], 2048);
        let chain: Arc<[u64]> = (1..=9).collect();
        let size = Size { prompt: 4608.0, block: 512.0, ends: Ends::default() };
        let (claim, _) = fleet.residency.write().claim(&chain, size, ReplicaId(1));
        fleet.residency.write().confirm(claim);
        fleet.models.learn(Some("m"), 4096, 2048, Some(9));
        fleet.pins.remember(7, ReplicaId(2));
        fleet.hints.remember(5, ReplicaId(1), 100.0);
        fleet.replicas()[0].drain(true, 0.0);
        (fleet, chain)
    }

    fn handed(fleet: &Fleet) -> FleetState {
        pack::open(&pack::seal(&fleet.state())).unwrap()
    }

    #[test]
    fn what_one_process_learned_the_next_one_knows_by_name() {
        let (old, chain) = learned();
        let new = fleet(&[("c", "z"), ("new", "w"), ("b", "y"), ("a", "x")], 2048);
        new.inherit(handed(&old));
        assert_eq!(overlaps(&new, &chain), [0, 0, 9, 0]);
        assert_eq!(new.models().rates(Some("m")), old.models().rates(Some("m")));
        assert_eq!(new.pins().find(7), Some(ReplicaId(0)));
        assert_eq!(new.hints.last(5).map(|last| last.replica), Some(ReplicaId(2)));
        assert!(new.replicas()[3].is_barred() && !new.replicas()[2].is_barred());
        assert_eq!(new.replicas()[3].state(), State::Draining);
        // and so does the one after that
        let handed = handed(&new);
        let third = fleet(&[("b", "y")], 2048).on(Clock::at(handed.now()));
        third.inherit(handed);
        assert_eq!(overlaps(&third, &chain), [9]);
        assert!(third.clock().now() >= new.state().now - 1000.0);
    }

    #[test]
    fn another_engine_behind_a_name_and_other_blocks_begin_cold() {
        let (old, chain) = learned();
        let moved = fleet(&[("a", "elsewhere"), ("b", "elsewhere")], 2048);
        moved.inherit(handed(&old));
        assert_eq!(overlaps(&moved, &chain), [0, 0]);
        assert!(moved.replicas()[0].is_barred(), "what an operator said of the name stays");
        let other = fleet(&[("b", "y")], 4096);
        other.inherit(handed(&old));
        assert_eq!(overlaps(&other, &chain), [0]);
        assert_eq!(other.models().rates(Some("m")), old.models().rates(Some("m")));
    }

    /// The same with something in every list.
    fn filled() -> FleetState {
        let (fleet, chain) = learned();
        let fleet = fleet.on(Clock::manual().0);
        let end = |print| Some(Place { print, blocks: 9 });
        for (previous, own) in [(None, end(71)), (end(71), end(72))] {
            let size = Size { prompt: 4608.0, block: 512.0, ends: Ends { previous, own } };
            let mut residency = fleet.residency.write();
            let (claim, _) = residency.claim(&chain, size, ReplicaId(1));
            residency.confirm(claim);
            residency
                .answered(Place { print: 72, blocks: 9 }, Turn { replica: ReplicaId(1), tokens: 7.0, block: 512.0 });
        }
        let listed = br#"{"data":[{"id":"m","max_model_len":7}]}"#;
        fleet.learn_catalogue(ReplicaId(1), Catalogue::read(listed).unwrap());
        let limits = ErrorLimits { window_ms: 1e9, failures: 9, pause_ms: 1.0, successes: 1 };
        fleet.tune(fleet.params(), Rules { errors: Some(ErrorRule { limits, fences: true }), ..Rules::default() });
        fleet.ended(ReplicaId(1), Ended::Badly(Some(7)), 0.0);
        fleet.replicas()[1].set_address("10.0.0.1:80".parse().unwrap());
        fleet.state()
    }

    #[test]
    fn the_layout_changes_only_with_the_version() {
        let last = Last { replica: ReplicaId(1), tokens: 2.0, worth: 0.5 };
        // what differs from run to run
        let state = FleetState { now: 1.0, hints: (0, vec![(1, last)]), ..filled() };
        let mut bytes = Vec::new();
        state.pack(&mut bytes);
        // prompts in another form have other fingerprints: an index of those before would be of no use
        assert_eq!(crate::api::canonical::FORM, 2, "if the form has changed, so must pack::VERSION");
        let layout = (pack::VERSION, bytes.len(), xxh3_64(&bytes));
        assert_eq!(layout, (6, 1484, 0x5f4b_bb1c_4e17_f53e), "if the layout has changed, so must pack::VERSION");
    }
}
