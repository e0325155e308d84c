//! Which replicas are ones for which model, worked out when their engines tell what they serve and when the members
//! change, rather than for every request. By slot: a slot that is free, or whose replica has left, is one for nothing.

use super::replica::{Fit, Replica};
use crate::types::ReplicaId;
use std::collections::HashMap;
use std::sync::Arc;

/// A set of slots, 64 a word.
type Slots = Box<[u64]>;

/// The replicas for every model.
#[derive(Clone, Debug, Default)]
pub struct Fits {
    /// For each model that some replica lists: those that list it, and those that have not said what they serve.
    listed: HashMap<String, Slots>,
    /// For any other model: those that have not said, and those whose engine takes any name.
    strangers: Slots,
    differ: bool,
}

/// The replicas for one model.
#[derive(Clone, Copy, Debug)]
pub struct Fitting<'a>(Option<&'a Slots>);

impl Fits {
    /// Those among `replicas`.
    pub fn of(replicas: &[Arc<Replica>]) -> Self {
        let words = replicas.iter().map(|r| r.id.index() / 64 + 1).max().unwrap_or(0);
        let none = || vec![0; words].into_boxed_slice();
        let (mut listed, mut silent, mut strangers) = (HashMap::new(), none(), none());
        for replica in replicas {
            for name in replica.model_names() {
                add(listed.entry(name).or_insert_with(none), replica.id);
            }
            match replica.fit_of_unlisted() {
                Fit::Unknown => add(&mut silent, replica.id),
                Fit::Easygoing => add(&mut strangers, replica.id),
                Fit::Listed | Fit::No => {}
            }
        }
        // who lists the model is asked first; an engine that takes any name, only for one that nobody lists
        for slots in listed.values_mut().chain([&mut strangers]) {
            slots.iter_mut().zip(&silent).for_each(|(word, silent)| *word |= silent);
        }
        Fits { listed, strangers, differ: differ(replicas) }
    }

    /// Those here that are not in the slot of one of `replicas`.
    #[must_use]
    pub fn without(&self, replicas: &[Arc<Replica>]) -> Self {
        let mut left = self.clone();
        for slots in left.listed.values_mut().chain([&mut left.strangers]) {
            let taken = replicas.iter().map(|r| r.id.index());
            taken.for_each(|at| slots.iter_mut().skip(at / 64).take(1).for_each(|word| *word &= !(1 << (at % 64))));
        }
        left
    }

    /// Those here, and those in `other`: while some choices are still made among the members before.
    #[must_use]
    pub fn with(mut self, other: &Fits) -> Self {
        let mut listed = std::mem::take(&mut self.listed);
        for name in other.listed.keys().filter(|name| !listed.contains_key(*name)).cloned().collect::<Vec<_>>() {
            listed.insert(name, self.strangers.clone());
        }
        for (name, slots) in &mut listed {
            unite(slots, other.listed.get(name).unwrap_or(&other.strangers));
        }
        unite(&mut self.strangers, &other.strangers);
        Fits { listed, strangers: self.strangers, differ: self.differ || other.differ }
    }

    /// Whether replicas serve different models.
    pub fn differ(&self) -> bool {
        self.differ
    }

    /// Those for `model`; all, for a request that names none.
    pub fn of_model(&self, model: Option<&str>) -> Fitting<'_> {
        Fitting(model.map(|model| self.listed.get(model).unwrap_or(&self.strangers)))
    }
}

impl Fitting<'_> {
    /// Whether a replica is one of them.
    pub fn has(self, id: ReplicaId) -> bool {
        self.0.is_none_or(|slots| slots.get(id.index() / 64).is_some_and(|word| word >> (id.index() % 64) & 1 > 0))
    }
}

/// Whether replicas that have said what they serve do not all say the same.
fn differ(replicas: &[Arc<Replica>]) -> bool {
    let mut known = replicas.iter().map(|r| r.model_names()).filter(|names| !names.is_empty());
    let first = known.next();
    known.any(|names| Some(names) != first)
}

fn add(slots: &mut Slots, id: ReplicaId) {
    slots[id.index() / 64] |= 1 << (id.index() % 64);
}

fn unite(slots: &mut Slots, others: &[u64]) {
    let words = (0..slots.len().max(others.len())).map(|n| {
        let word = |slots: &[u64]| slots.get(n).copied().unwrap_or(0);
        word(slots) | word(others)
    });
    *slots = words.collect();
}

#[cfg(test)]
mod tests {
    use super::super::testing::spec;
    use super::*;
    use crate::api::catalogue::Catalogue;
    use proptest::prelude::*;

    /// What a choice asked of every replica, one by one.
    fn fits_plainly(all: &[Arc<Replica>], replica: &Replica, model: Option<&str>) -> bool {
        match model.map(|m| (replica.fit(m), m)) {
            None | Some((Fit::Listed | Fit::Unknown, _)) => true,
            Some((Fit::Easygoing, m)) => all.iter().all(|r| r.fit(m) != Fit::Listed),
            Some((Fit::No, _)) => false,
        }
    }

    fn catalogue(names: &[usize], easygoing: bool) -> Catalogue {
        let owner = if easygoing { "llamacpp" } else { "vllm" };
        let entry = |n: &usize| format!(r#"{{"id":"m{n}","owned_by":"{owner}"}}"#);
        let entries: Vec<_> = names.iter().map(entry).collect();
        Catalogue::read(format!(r#"{{"data":[{}]}}"#, entries.join(",")).as_bytes()).unwrap()
    }

    fn replica((id, (configured, told)): (u16, Told)) -> Arc<Replica> {
        let models = configured.iter().map(|n| format!("m{n}")).collect();
        let replica = Replica::new(ReplicaId(id), super::super::replica::ReplicaSpec { models, ..spec("r") });
        if let Some((names, easygoing)) = told {
            replica.set_catalogue(catalogue(&names, easygoing));
        }
        Arc::new(replica)
    }

    /// Models that are configured, and what the engine told.
    type Told = (Vec<usize>, Option<(Vec<usize>, bool)>);

    fn told() -> impl Strategy<Value = Told> {
        let names = || prop::collection::vec(0usize..4, 0..3);
        (prop_oneof![3 => Just(vec![]), 1 => names()], prop::option::of((names(), any::<bool>())))
    }

    proptest! {
        #[test]
        fn it_says_what_asking_every_replica_says(fleet in prop::collection::vec(told(), 0..80)) {
            let all: Vec<_> = (0..).zip(fleet).map(replica).collect();
            let fits = Fits::of(&all);
            for model in [None, Some("m0"), Some("m1"), Some("m3"), Some("stranger"), Some("")] {
                let fitting = fits.of_model(model);
                for r in &all {
                    prop_assert_eq!(fitting.has(r.id), fits_plainly(&all, r, model), "{:?} {:?}", model, r);
                }
            }
        }

        #[test]
        fn two_fleets_together_are_each_one_for_what_it_was(old in prop::collection::vec(told(), 0..9), new in prop::collection::vec(told(), 60..80)) {
            let old: Vec<_> = (0..).zip(old).map(replica).collect();
            let new: Vec<_> = (0..).zip(new).skip(9).map(replica).collect();
            let (old, new) = (Fits::of(&old), Fits::of(&new));
            let both = Fits::of(&[]).with(&new).with(&old);
            for model in [None, Some("m0"), Some("m1"), Some("m3"), Some("stranger"), Some("")] {
                for id in (0..90).map(ReplicaId) {
                    let wanted = old.of_model(model).has(id) || new.of_model(model).has(id);
                    prop_assert_eq!(both.of_model(model).has(id), wanted, "{:?} {:?}", model, id);
                }
            }
        }
    }
}
