//! What routers write into the store and read from there: layouts, and the bounds of what is believed. Pure.
//!
//! Numbers are written as [`crate::pack`] writes them; a thing that was learned is a tag and its fields. Replicas and models
//! are keyed hashes of their names. **Reading never fails loudly:** what is cut, too large, or no number that can be, is
//! refused as a whole; what names a replica that is none here is passed over.

use crate::fleet::emptied::Emptied;
use crate::fleet::heard::Lore;
use crate::fleet::sharing::{Claimed, Learned};
use crate::pack::{Pack, record};
use crate::policy::backlog::Elsewhere;
use crate::policy::estimate::{ModelRates, Rates};
use crate::policy::health::FenceReason;
use crate::prefix::fingerprint::{Ends, Place};
use crate::prefix::residency::{Served, Size};
use crate::types::ReplicaId;
use std::collections::BTreeMap;

/// Blocks of a prompt that are told; the others are left out.
const MOST_BLOCKS: usize = 1 << 15;
/// Bytes after which a batch is full.
pub const FULL: usize = 128 << 10;
/// No batch is larger: one that is full, and one more thing.
pub const MOST_BYTES: usize = FULL + MOST_BLOCKS * size_of::<u64>() + 128;
/// No router has more of anything at a replica, which is some hours of milliseconds: of all there may be, the sum fits.
const MOST_WORK: u32 = 1 << 24;
/// No count of tokens or milliseconds is larger.
const MOST: f64 = 1e12;

/// What a replica is called in the store.
pub type Name = u64;

/// A batch of what was learned.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Grows by one with each batch of a router.
    pub number: u64,
    /// What was learned, as bytes: see [`Batch::push`].
    words: Vec<u8>,
}
record!(Batch { number, words });

/// What a router has at the moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Live {
    /// Grows.
    pub number: u64,
    /// When that was, in milliseconds since 1970.
    pub at: u64,
    /// What runs at which replica.
    pub running: Vec<(Name, Elsewhere)>,
    /// Which replicas are fenced, and why.
    pub fenced: Vec<(Name, FenceReason)>,
}
record!(Live { number, at, running, fenced });

impl Live {
    /// What runs, each replica once and no more than can be: routers add it up.
    pub fn work(&self) -> BTreeMap<Name, Elsewhere> {
        let bounded = |work: &Elsewhere| Elsewhere {
            units: work.units.min(MOST_WORK),
            waiting: work.waiting.min(MOST_WORK),
            decoding: work.decoding.min(MOST_WORK),
            queue_ms: work.queue_ms.min(MOST_WORK),
        };
        self.running.iter().map(|(name, work)| (*name, bounded(work))).collect()
    }
}

/// What a router has learned of speeds and prompts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Speeds {
    /// By replica.
    rates: Vec<(Name, Rates)>,
    /// By model.
    models: Vec<(Name, ModelRates)>,
}
record!(Speeds { rates, models });

/// What an operator has said of a replica.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Order {
    /// Which one.
    pub replica: Name,
    /// When, in milliseconds since 1970, and later than what was said before.
    pub at: u64,
    /// Whether it is drained.
    pub drained: bool,
    /// Until when its sessions may stay, on the same clock; 0 if they may not.
    pub leaves_by: u64,
}
record!(Order { replica, at, drained, leaves_by });

/// The whole of `bytes` as a value.
pub fn whole<T: Pack>(bytes: &[u8]) -> Option<T> {
    let mut rest = bytes;
    let value = T::unpack(&mut rest)?;
    rest.is_empty().then_some(value)
}

/// A value as bytes.
pub fn bytes(value: &impl Pack) -> Vec<u8> {
    let mut out = Vec::new();
    value.pack(&mut out);
    out
}

impl Batch {
    /// Adds something, if its replica has a name; whether there is room for more.
    pub fn push(&mut self, learned: &Learned, name: impl Fn(ReplicaId) -> Option<Name>) -> bool {
        let before = self.words.len();
        if write(learned, &name, &mut self.words).is_none() {
            self.words.truncate(before);
        }
        self.words.len() < FULL
    }

    /// Adds that there is no replica of this name any more, and that whoever comes by it knows nothing of what was learned.
    pub fn forgot(&mut self, name: Name) {
        (7u8, name).pack(&mut self.words);
        None::<(f64, f64)>.pack(&mut self.words);
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.words.len()
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// What is in it, without what names a replica that is none here; `None` if it cannot be read.
    pub fn read(&self, replica: impl Fn(Name) -> Option<ReplicaId>) -> Option<Vec<Learned>> {
        let (mut from, mut all) = (self.words.as_slice(), Vec::new());
        while !from.is_empty() {
            all.extend(read(&mut from, &replica)?);
        }
        Some(all)
    }
}

impl Speeds {
    /// What is known here.
    pub fn of(lore: &Lore, replica: impl Fn(ReplicaId) -> Option<Name>, model: impl Fn(&str) -> Name) -> Self {
        Speeds {
            rates: lore.rates.iter().filter_map(|(id, rates)| Some((replica(*id)?, *rates))).collect(),
            models: lore.models.iter().map(|(name, rates)| (model(name), *rates)).collect(),
        }
    }

    /// The same, of replicas and models that are known here.
    pub fn lore(self, replica: impl Fn(Name) -> Option<ReplicaId>, model: impl Fn(Name) -> Option<String>) -> Lore {
        Lore {
            rates: self.rates.into_iter().filter_map(|(name, rates)| Some((replica(name)?, rates))).collect(),
            models: self.models.into_iter().filter_map(|(name, rates)| Some((model(name)?, rates))).collect(),
        }
    }
}

fn write(learned: &Learned, name: &impl Fn(ReplicaId) -> Option<Name>, out: &mut Vec<u8>) -> Option<()> {
    match learned {
        Learned::Claimed(claimed) => {
            let Claimed { number, at, replica, chain, size } = &**claimed;
            (0u8, *number, name(*replica)?).pack(out);
            (*at, size.prompt, size.block).pack(out);
            for place in [size.ends.previous, size.ends.own] {
                place.map(|place| (place.print, place.blocks)).pack(out);
            }
            let told = &chain[..chain.len().min(MOST_BLOCKS)];
            u32::try_from(told.len()).ok()?.pack(out);
            told.iter().for_each(|print| print.pack(out));
        }
        Learned::Held(number) => (1u8, *number).pack(out),
        Learned::Answered(number, prompt, output) => {
            (2u8, *number).pack(out);
            (*prompt, *output).pack(out);
        }
        Learned::Served(number, served) => {
            (3u8, *number).pack(out);
            (served.prompt, served.cached, served.output).pack(out);
        }
        Learned::Left(number) => (4u8, *number).pack(out),
        Learned::Home(key, replica, tokens, since) => {
            (5u8, *key, name(*replica)?).pack(out);
            (*tokens, *since).pack(out);
        }
        Learned::Pinned(key, replica) => (6u8, *key, name(*replica)?).pack(out),
        Learned::Forgot(replica, emptied) => {
            (7u8, name(*replica)?).pack(out);
            emptied.map(|emptied| (emptied.since, emptied.at)).pack(out);
        }
    }
    Some(())
}

/// `None` for what cannot be read, `Some(None)` for what is passed over.
fn read(from: &mut &[u8], replica: &impl Fn(Name) -> Option<ReplicaId>) -> Option<Option<Learned>> {
    let (tag, number) = <(u8, u64)>::unpack(from)?;
    Some(match tag {
        0 => {
            let name = Name::unpack(from)?;
            let (at, prompt, block) = (time(from)?, amount(from)?, amount(from)?);
            let (previous, own) = (place(from)?, place(from)?);
            let chain = chain(from)?;
            let size = Size { prompt, block, ends: Ends { previous, own } };
            let fits = block > 0.0 && !chain.is_empty();
            let claimed = |replica| Claimed { number, at, replica, chain: chain.into(), size };
            fits.then(|| replica(name).map(|replica| Learned::Claimed(Box::new(claimed(replica)))))?
        }
        1 => Some(Learned::Held(number)),
        2 => Some(Learned::Answered(number, amount(from)?, amount(from)?)),
        3 => {
            let [prompt, cached, output] = [amount(from)?, amount(from)?, amount(from)?];
            Some(Learned::Served(number, Served { prompt, cached, output }))
        }
        4 => Some(Learned::Left(number)),
        5 => {
            let (name, tokens, since) = (Name::unpack(from)?, amount(from)?, time(from)?);
            replica(name).map(|replica| Learned::Home(number, replica, tokens, since))
        }
        6 => replica(Name::unpack(from)?).map(|replica| Learned::Pinned(number, replica)),
        7 => {
            let emptied = Option::<(f64, f64)>::unpack(from)?.map(|(since, at)| Emptied { since, at });
            emptied.is_none_or(|emptied| can_be(emptied.since) && can_be(emptied.at)).then_some(())?;
            replica(number).map(|replica| Learned::Forgot(replica, emptied))
        }
        _ => return None,
    })
}

fn amount(from: &mut &[u8]) -> Option<f64> {
    f64::unpack(from).filter(|n| (0.0..MOST).contains(n))
}

fn time(from: &mut &[u8]) -> Option<f64> {
    f64::unpack(from).filter(|time| can_be(*time))
}

fn can_be(time: f64) -> bool {
    time.abs() < 10.0 * MOST
}

fn place(from: &mut &[u8]) -> Option<Option<Place>> {
    let place = Option::<(u64, u32)>::unpack(from)?;
    Some(place.map(|(print, blocks)| Place { print, blocks }))
}

fn chain(from: &mut &[u8]) -> Option<Vec<u64>> {
    let count = u32::unpack(from)? as usize;
    let bytes = count.checked_mul(size_of::<u64>()).filter(|_| count <= MOST_BLOCKS)?;
    let (prints, rest) = from.split_at_checked(bytes)?;
    *from = rest;
    Some(prints.as_chunks().0.iter().map(|print| u64::from_le_bytes(*print)).collect())
}

#[cfg(test)]
mod tests {
    use super::super::peers::MOST as MOST_ROUTERS;
    use super::*;
    use proptest::prelude::*;
    use xxhash_rust::xxh3::xxh3_64;

    fn places() -> impl Strategy<Value = Option<Place>> {
        prop::option::of((any::<u64>(), any::<u32>()).prop_map(|(print, blocks)| Place { print, blocks }))
    }

    fn anything() -> impl Strategy<Value = Learned> {
        let n = || 0.0f64..1e9;
        let ids = || (0u16..4).prop_map(ReplicaId);
        let claimed = (
            any::<u64>(),
            ids(),
            prop::collection::vec(any::<u64>(), 1..40),
            (n(), n(), 1.0f64..1e6),
            (places(), places()),
        );
        let claimed = claimed.prop_map(|(number, replica, chain, (at, prompt, block), (previous, own))| {
            let size = Size { prompt, block, ends: Ends { previous, own } };
            Learned::Claimed(Box::new(Claimed { number, at, replica, chain: chain.into(), size }))
        });
        prop_oneof![
            claimed,
            any::<u64>().prop_map(Learned::Held),
            (any::<u64>(), n(), n()).prop_map(|(number, prompt, output)| Learned::Answered(number, prompt, output)),
            (any::<u64>(), n(), n(), n()).prop_map(|(number, prompt, cached, output)| Learned::Served(
                number,
                Served { prompt, cached, output }
            )),
            any::<u64>().prop_map(Learned::Left),
            (any::<u64>(), ids(), n(), n()).prop_map(|(key, at, tokens, since)| Learned::Home(key, at, tokens, since)),
            (any::<u64>(), ids()).prop_map(|(key, at)| Learned::Pinned(key, at)),
            (ids(), prop::option::of((n(), n())))
                .prop_map(|(id, emptied)| Learned::Forgot(id, emptied.map(|(since, at)| Emptied { since, at }))),
        ]
    }

    fn name(id: ReplicaId) -> Option<Name> {
        Some(u64::from(id.0) + 100)
    }

    fn replica(name: Name) -> Option<ReplicaId> {
        u16::try_from(name.checked_sub(100)?).ok().map(ReplicaId)
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(all in prop::collection::vec(anything(), 0..30), number: u64) {
            let mut batch = Batch { number, ..Batch::default() };
            all.iter().for_each(|learned| assert!(batch.push(learned, name)));
            let again: Batch = whole(&bytes(&batch)).unwrap();
            prop_assert_eq!((again.number, again.read(replica)), (number, Some(all.clone())));
            // a replica that is none there is passed over, and nothing else is
            let known = |learned: &Learned| match learned {
                Learned::Claimed(claimed) => claimed.replica != ReplicaId(2),
                Learned::Home(_, at, ..) | Learned::Pinned(_, at) | Learned::Forgot(at, _) => *at != ReplicaId(2),
                _ => true,
            };
            let left: Vec<_> = all.iter().filter(|learned| known(learned)).cloned().collect();
            prop_assert_eq!(again.read(|name| replica(name).filter(|id| id.0 != 2)), Some(left.clone()));
            // nor is one that has no name told of
            let mut batch = Batch::default();
            all.iter().for_each(|learned| assert!(batch.push(learned, |id| name(id).filter(|_| id.0 != 2))));
            prop_assert_eq!(batch.read(replica), Some(left));
        }

        #[test]
        fn lies_are_read_without_a_panic_and_without_much_memory(words in prop::collection::vec(any::<u8>(), 0..300), tag in 0u8..9) {
            let words = [vec![tag], words].concat();
            for learned in (Batch { number: 0, words: words.clone() }).read(replica).into_iter().flatten() {
                if let Learned::Claimed(claimed) = learned {
                    prop_assert!(claimed.size.block > 0.0 && claimed.size.prompt.is_finite() && !claimed.chain.is_empty());
                }
            }
            let _whatever = (whole::<Batch>(&words), whole::<Live>(&words), whole::<Speeds>(&words), whole::<Order>(&words));
        }
    }

    #[test]
    fn numbers_that_cannot_be_are_refused() {
        for n in [f64::NAN, f64::INFINITY, -1.0, 1e13] {
            let mut batch = Batch::default();
            batch.push(&Learned::Answered(1, n, 2.0), name);
            assert_eq!(batch.read(replica), None, "{n}");
        }
        for n in [f64::NAN, f64::NEG_INFINITY, 1e14] {
            let mut batch = Batch::default();
            batch.push(&Learned::Forgot(ReplicaId(1), Some(Emptied { since: n, at: 1.0 })), name);
            assert_eq!(batch.read(replica), None, "{n}");
            let mut batch = Batch::default();
            batch.push(&Learned::Home(8, ReplicaId(1), 9.0, n), name);
            assert_eq!(batch.read(replica), None, "{n}");
        }
        let words = [&[0u8][..], &[0; 42], &u32::MAX.to_le_bytes()].concat();
        assert_eq!(Batch { number: 0, words }.read(replica), None);
    }

    #[test]
    fn what_runs_is_told_once_for_a_replica_and_all_routers_together_cannot_overflow_it() {
        let most = Elsewhere { units: u32::MAX, waiting: u32::MAX, decoding: u32::MAX, queue_ms: u32::MAX };
        let live = Live { running: vec![(1, most), (1, most), (2, Elsewhere::default())], ..Live::default() };
        let work = live.work();
        assert_eq!((work.len(), work[&2]), (2, Elsewhere::default()));
        assert!(work[&1].units.checked_mul(u32::try_from(MOST_ROUTERS).unwrap()).is_some());
    }

    #[test]
    fn a_batch_is_full_in_time_and_its_bounds_hold_for_the_longest_prompt() {
        let claim = |blocks: u64| {
            let size = Size { prompt: 9.0, block: 9.0, ends: Ends::default() };
            let chain = (0..blocks).collect();
            Learned::Claimed(Box::new(Claimed { number: 1, at: 5.0, replica: ReplicaId(0), chain, size }))
        };
        let mut batch = Batch::default();
        let room = |batch: &Batch| FULL.saturating_sub(batch.bytes());
        while room(&batch) > bytes(&vec![0u64; 220]).len() {
            assert!(batch.push(&claim(200), name));
        }
        while room(&batch) > 9 {
            assert!(batch.push(&Learned::Held(1), name));
        }
        assert!(!batch.push(&claim(1 << 20), name));
        assert!((FULL..=MOST_BYTES).contains(&bytes(&batch).len()));
        let read = batch.read(replica).unwrap();
        let Some(Learned::Claimed(last)) = read.last() else { panic!("the last is a claim") };
        assert_eq!(last.chain.len(), MOST_BLOCKS);
    }

    #[test]
    fn the_layout_changes_only_with_the_version() {
        let mut batch = Batch { number: 3, ..Batch::default() };
        let place = Some(Place { print: 7, blocks: 2 });
        let size = Size { prompt: 9.0, block: 4.0, ends: Ends { previous: None, own: place } };
        let served = Served { prompt: 9.0, cached: 4.0, output: 1.0 };
        let claimed = Claimed { number: 1, at: 5.0, replica: ReplicaId(0), chain: [5, 6].into(), size };
        let all = [
            Learned::Claimed(Box::new(claimed)),
            Learned::Held(1),
            Learned::Answered(1, 9.0, 1.0),
            Learned::Served(1, served),
            Learned::Left(1),
            Learned::Home(8, ReplicaId(1), 9.0, 5.0),
            Learned::Pinned(8, ReplicaId(1)),
            Learned::Forgot(ReplicaId(1), None),
            Learned::Forgot(ReplicaId(1), Some(Emptied { since: 5.0, at: 6.0 })),
        ];
        all.iter().for_each(|learned| assert!(batch.push(learned, name)));
        let mut out = bytes(&batch);
        let work = Elsewhere { units: 1, waiting: 2, decoding: 3, queue_ms: 4 };
        out.extend(bytes(&Live { number: 1, at: 5, running: vec![(1, work)], fenced: vec![(2, FenceReason::Errors)] }));
        out.extend(bytes(&Order { replica: 1, at: 2, drained: true, leaves_by: 3 }));
        assert_eq!(
            (super::super::keys::VERSION, out.len(), xxh3_64(&out)),
            (4, 343, 15_833_632_384_714_413_431),
            "if the layout has changed, so must the version"
        );
    }
}
