//! Replicas come, go, come back and change, in any order: who stays keeps all, and nobody inherits what was another's.

use super::super::claim::ClaimGuard;
use super::super::testing::{self, spec};
use super::*;
use crate::fleet::reservation::{Reservation, Share};
use crate::policy::admission::{Identity, Seen};
use crate::policy::health::FenceReason;
use crate::prefix::fingerprint::{Ends, Place};
use crate::prefix::residency::Size;
use proptest::prelude::*;

const SIZE: Size = Size { prompt: 1000.0, block: 500.0, ends: Ends { own: None, previous: None } };
const SHARE: Share = Share { units: 1, prefill_ms: 1.0, whole_ms: 1.0, decode_ms: 1.0, streams: true, generates: true };

fn wanted(names: &[&str]) -> Vec<Wanted> {
    names.iter().map(|name| Wanted { spec: spec(name), address: Some(([127, 0, 0, 1], 1).into()) }).collect()
}

fn fleet(names: &[&str]) -> Arc<Fleet> {
    let fleet = testing::fleet([]);
    fleet.change(wanted(names));
    Arc::new(fleet)
}

fn overlap(fleet: &Fleet, chain: &[u64], id: ReplicaId) -> u32 {
    let mut overlaps = [0; 64];
    fleet.residency.read().walk(chain, 500.0, None, &mut overlaps);
    overlaps[id.index()]
}

fn slot(fleet: &Fleet, name: &str) -> Option<ReplicaId> {
    fleet.replicas().iter().find(|r| r.name() == name).map(|r| r.id)
}

/// A prompt that `name` has read.
fn read(fleet: &Arc<Fleet>, name: &str, chain: &Arc<[u64]>) {
    ClaimGuard::new(fleet, chain, SIZE, slot(fleet, name).unwrap()).confirm();
}

#[test]
fn who_stays_keeps_its_slot_and_what_it_holds_and_a_slot_is_reused_only_when_nobody_refers_to_it() {
    let fleet = fleet(&["a", "b", "c"]);
    let chain: Arc<[u64]> = Arc::from([1, 2]);
    ["a", "b"].iter().for_each(|name| read(&fleet, name, &chain));
    let b = slot(&fleet, "b").unwrap();
    fleet.pins().remember(7, b);
    fleet.hints.remember(9, b, 1.0);
    let held = Reservation::new(fleet.replica(b).unwrap(), SHARE, fleet.clock());
    let change = fleet.change(wanted(&["c", "a", "d"]));
    assert_eq!((change.added, change.removed), (vec!["d".to_owned()], vec!["b".to_owned()]));
    fleet.tidy();
    assert_eq!(fleet.replicas().iter().map(|r| r.name()).collect::<Vec<_>>(), ["a", "c", "d"]);
    assert_eq!(slot(&fleet, "d"), Some(ReplicaId(3)), "b has a request");
    assert!(fleet.replica(b).unwrap().is_barred() && fleet.replicas().present().any(|r| r.id == b));
    assert_eq!(overlap(&fleet, &chain, ReplicaId(0)), 2, "a knows what it knew");
    drop(held);
    // a request that began while b was there may know it by its slot
    let (request, replica) = (fleet.members(), fleet.replica(b).unwrap());
    fleet.tidy();
    assert!(fleet.replica(b).is_some());
    drop((request, replica));
    fleet.tidy();
    assert!(fleet.replica(b).is_none());
    assert_eq!((overlap(&fleet, &chain, b), fleet.pins().find(7), fleet.hints.home(9)), (0, None, None));
    fleet.change(wanted(&["c", "a", "d", "e"]));
    assert_eq!(slot(&fleet, "e"), Some(b));
    assert!(fleet.replica(b).unwrap().takes_requests());
}

#[test]
fn until_choices_are_made_among_the_new_members_those_of_before_serve_what_they_did() {
    let fleet = fleet(&["a"]);
    fleet.tidy();
    let serve = |fleet: &Fleet| [0, 1].map(|slot| fleet.fits.load().of_model(Some("m")).has(ReplicaId(slot)));
    assert_eq!(serve(&fleet), [true, false]);
    fleet.change(wanted(&["b"]));
    assert_eq!(serve(&fleet), [true, true]);
    // and whatever is heard meanwhile
    fleet.note_models();
    assert_eq!(serve(&fleet), [true, true]);
    fleet.tidy();
    assert_eq!(serve(&fleet), [false, true]);
}

#[test]
fn who_comes_back_before_it_is_forgotten_is_as_it_was() {
    let fleet = fleet(&["a", "b"]);
    let chain: Arc<[u64]> = Arc::from([1, 2]);
    read(&fleet, "b", &chain);
    let b = fleet.replica(ReplicaId(1)).unwrap();
    b.drain(true, 0.0);
    fleet.change(wanted(&["a"]));
    fleet.tidy();
    fleet.change(wanted(&["a", "b"]));
    assert!(Arc::ptr_eq(&b, &fleet.replica(ReplicaId(1)).unwrap()));
    assert_eq!((overlap(&fleet, &chain, b.id), b.is_barred()), (2, true), "the operator's drain is no change of ours");
    b.drain(false, 0.0);
    assert!(b.takes_requests());
}

#[test]
fn another_configuration_keeps_the_counters_and_another_address_forgets_the_cache() {
    let fleet = fleet(&["a", "b"]);
    let chain: Arc<[u64]> = Arc::from([1, 2]);
    ["a", "b"].iter().for_each(|name| read(&fleet, name, &chain));
    let before = fleet.replica(ReplicaId(0)).unwrap();
    let held = Reservation::new(before.clone(), SHARE, fleet.clock());
    let mut changed = wanted(&["a", "b"]);
    changed[0].spec.models = vec!["m".to_owned()];
    changed[1].spec.port = 2;
    changed[1].address = Some(([127, 0, 0, 1], 2).into());
    assert_eq!(fleet.change(changed.clone()).changed, ["a", "b"]);
    let after = fleet.replica(ReplicaId(0)).unwrap();
    assert_eq!((after.inflight(), after.address(), after.spec.models.len()), (1, before.address(), 1));
    assert!(after.number != before.number && fleet.replicas().has(&after) && !fleet.replicas().has(&before));
    assert_eq!((overlap(&fleet, &chain, ReplicaId(0)), overlap(&fleet, &chain, ReplicaId(1))), (2, 0));
    drop(held);
    assert_eq!(after.inflight(), 0);
    assert!(fleet.change(changed).is_empty(), "the same again is no change");
}

#[test]
fn what_is_known_by_slot_follows_the_members() {
    let fleet = fleet(&["a", "b"]);
    let (end, chain) = (Place { print: 77, blocks: 2 }, Arc::from([1, 2]));
    let size = Size { ends: Ends { own: Some(end), previous: None }, ..SIZE };
    ClaimGuard::new(&fleet, &chain, size, ReplicaId(1)).confirm();
    let mut with_models = wanted(&["a", "b"]);
    with_models[1].spec.models = vec!["m".to_owned()];
    fleet.change(with_models);
    let fits = |model| [0, 1].map(|id| fleet.fits.load().of_model(Some(model)).has(ReplicaId(id)));
    assert_eq!((fits("m"), fits("other")), ([true, true], [true, false]));
    assert!(fleet.residency.read().session(Some(end)).is_some());
    fleet.change(wanted(&["a"]));
    (0..2).for_each(|_| fleet.tidy());
    assert!(fleet.replica(ReplicaId(1)).is_none() && fleet.residency.read().session(Some(end)).is_none());
    assert_eq!(fleet.residency.read().others(ReplicaId(1), None).sessions, 0);
    fleet.change(wanted(&["a", "c"]));
    assert_eq!((slot(&fleet, "c"), fits("other")), (Some(ReplicaId(1)), [true, true]));
}

#[test]
fn who_comes_is_looked_at_before_its_first_request_and_another_identity_is_asked_for_before_the_next() {
    let fleet = fleet(&["a"]);
    fleet.welcome(|replica| replica.quarantine(Some(FenceReason::Speculation), 0.0));
    let mut members = wanted(&["a", "b"]);
    fleet.change(members.clone());
    assert!(fleet.replicas().iter().all(|r| r.is_barred()));
    fleet.replicas().iter().for_each(|r| r.quarantine(None, 0.0));
    let identity = Identity { model: Some("m".to_owned()), ..Identity::default() };
    members[0].spec.role.identity = Some(Arc::new(identity));
    fleet.change(members.clone());
    let is_barred = |name| fleet.replicas().iter().find(|r| r.name() == name).is_some_and(|r| r.is_barred());
    assert!(is_barred("a") && !is_barred("b"));
    let admit = |r: &Replica| r.identified(r.ask_identity(), Seen::Said(Ok(())), 2, 0.0);
    admit(&fleet.replicas()[0]);
    assert!(!is_barred("a"));
    let _request = fleet.members();
    fleet.change(members[1..].to_vec());
    fleet.change(members.clone());
    assert!(is_barred("a"), "nobody has watched it meanwhile");
    members[0].spec.role.identity = None;
    fleet.change(members);
    assert!(!is_barred("a"));
}

proptest! {
    /// Whatever comes and goes: names are unique, slots are too, and nobody knows what another one read.
    #[test]
    fn nobody_inherits(steps in prop::collection::vec((0u8..64, 0usize..6, any::<bool>()), 1..40)) {
        const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
        let fleet = fleet(&["a"]);
        let chain = |n: usize| -> Arc<[u64]> { Arc::from([n as u64 + 1, 100]) };
        let mut held = Vec::new();
        for (members, n, holds) in steps {
            let names: Vec<_> = (0..6).filter(|n| members >> n & 1 == 1).map(|n| NAMES[n]).collect();
            fleet.change(wanted(&names));
            fleet.tidy();
            let mut now: Vec<_> = fleet.replicas().iter().map(|r| r.name().to_owned()).collect();
            now.sort();
            prop_assert_eq!(&now, &names);
            let ids: Vec<_> = fleet.replicas().iter().map(|r| r.id).collect();
            prop_assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
            if holds { held.push(fleet.members()) } else { held.clear() }
            if let Some(id) = slot(&fleet, NAMES[n]) {
                read(&fleet, NAMES[n], &chain(n));
                prop_assert_eq!(overlap(&fleet, &chain(n), id), 2);
            }
            for (other, name) in NAMES.iter().enumerate() {
                for replica in fleet.replicas().iter().filter(|r| r.name() != *name) {
                    prop_assert_eq!(overlap(&fleet, &chain(other), replica.id), 0);
                }
            }
        }
        held.clear();
        fleet.change(Vec::new());
        (0..2).for_each(|_| fleet.tidy());
        prop_assert_eq!(fleet.members().slots(), 0);
    }
}
