//! Properties of the index: right overlaps, a trunk that outlives its twigs, and the byte bound.

use super::*;
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};

const A: ReplicaId = ReplicaId(0);
const B: ReplicaId = ReplicaId(1);
const FAR: ReplicaId = ReplicaId(130);

fn overlaps(index: &PrefixIndex, chain: &[u64]) -> [u32; 131] {
    let mut out = [9; 131];
    index.walk(chain, &mut out);
    out
}

/// Holds at one and the same moment; returns what was held before.
fn hold(index: &mut PrefixIndex, chain: &[u64], replica: ReplicaId) -> usize {
    index.hold(chain, replica, 0).0
}

/// The chain of a prompt that follows `path` through a tree of blocks.
fn chain(path: &[u8]) -> Vec<u64> {
    let mut print = 1;
    path.iter()
        .map(|step| {
            print = xxhash_rust::xxh3::xxh3_64_with_seed(&[*step], print);
            print
        })
        .collect()
}

#[test]
fn one_walk_answers_for_every_replica() {
    let mut index = PrefixIndex::new(1 << 20);
    assert_eq!(hold(&mut index, &chain(&[1, 2, 3, 4]), A), 0);
    assert_eq!(hold(&mut index, &chain(&[1, 2]), B), 0);
    assert_eq!(hold(&mut index, &chain(&[1, 2, 9]), FAR), 0);
    let seen = overlaps(&index, &chain(&[1, 2, 3, 4, 5]));
    assert_eq!((seen[0], seen[1], seen[130], seen[64]), (4, 2, 2, 0));
    assert_eq!(hold(&mut index, &chain(&[1, 2, 3]), B), 2);
    assert_eq!(overlaps(&index, &chain(&[1, 2, 3, 4]))[1], 3);
    assert_eq!(overlaps(&index, &[])[0], 0);
    assert_eq!(index.blocks(), 5);
}

#[test]
fn withdrawing_and_forgetting_leave_the_others_alone() {
    let mut index = PrefixIndex::new(1 << 20);
    hold(&mut index, &chain(&[1, 2, 3]), A);
    hold(&mut index, &chain(&[1, 2, 3]), B);
    index.withdraw(&chain(&[1, 2, 3]), 1, A);
    let seen = overlaps(&index, &chain(&[1, 2, 3]));
    assert_eq!((seen[0], seen[1]), (1, 3));
    index.forget(B);
    let seen = overlaps(&index, &chain(&[1, 2, 3]));
    assert_eq!((seen[0], seen[1]), (1, 0));
}

#[test]
fn a_withdrawn_block_without_holders_is_gone() {
    let mut index = PrefixIndex::new(1 << 20);
    hold(&mut index, &chain(&[1, 2, 3]), A);
    index.withdraw(&chain(&[1, 2, 3]), 0, A);
    assert_eq!(index.blocks(), 0);
}

#[test]
fn the_trunk_outlives_its_twigs() {
    let mut index = PrefixIndex::new(1 << 20);
    index.max_blocks = 12;
    for twig in 0..50 {
        hold(&mut index, &chain(&[1, 2, 3, 4, 100 + twig, 7, 8]), A);
    }
    assert_eq!(overlaps(&index, &chain(&[1, 2, 3, 4, 149, 7, 8]))[0], 7);
    assert_eq!(overlaps(&index, &chain(&[1, 2, 3, 4]))[0], 4);
    assert!(index.blocks() <= 12);
}

#[test]
fn a_longer_turn_does_not_push_out_its_own_beginning() {
    let mut index = PrefixIndex::new(1 << 20);
    index.max_blocks = 40;
    let session: Vec<u8> = (0..30).collect();
    hold(&mut index, &chain(&session[..12]), A);
    hold(&mut index, &chain(&session[..12]), B);
    for other in 100..112 {
        hold(&mut index, &chain(&[other, 1]), A);
    }
    assert_eq!(hold(&mut index, &chain(&session), A), 12);
    let seen = overlaps(&index, &chain(&session));
    assert_eq!((seen[0], seen[1]), (30, 12));
    index.withdraw(&chain(&session), 12, A);
    assert_eq!(overlaps(&index, &chain(&session))[0], 12);
}

#[test]
fn a_chain_larger_than_the_index_is_held_as_far_as_it_fits() {
    let mut index = PrefixIndex::new(1 << 20);
    index.max_blocks = 10;
    let path: Vec<u8> = (0..30).collect();
    hold(&mut index, &chain(&path), A);
    assert_eq!((index.blocks(), overlaps(&index, &chain(&path))[0]), (10, 10));
}

#[test]
fn a_node_is_small() {
    let index = PrefixIndex::new(64 << 20);
    assert!((64 << 20) / index.max_blocks <= 64, "{} bytes a block", (64 << 20) / index.max_blocks);
}

proptest! {
    #[test]
    fn never_exceeds_its_bytes(
        budget in 65_536usize..400_000,
        prompts in prop::collection::vec((0u64..12, 1usize..400, 0u16..300), 1..400),
    ) {
        // a few conversations, held again and again to various depths by various replicas: many different sets
        let mut index = PrefixIndex::new(budget);
        for (seed, blocks, replica) in prompts {
            let print = |n: u64| (seed * 1000 + n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let prints: Vec<u64> = (0..blocks as u64).map(print).collect();
            hold(&mut index, &prints, ReplicaId(replica));
            prop_assert!(index.bytes() <= budget, "{} > {budget}", index.bytes());
        }
    }

    #[test]
    fn agrees_with_a_model_without_bounds(ops in prop::collection::vec((0u8..4, prop::collection::vec(0u8..3, 1..8), 0u16..70), 1..60)) {
        let mut index = PrefixIndex::new(1 << 20);
        let mut model: HashMap<u16, HashSet<u64>> = HashMap::new();
        for (op, path, replica) in ops {
            let prints = chain(&path);
            let held = model.entry(replica).or_default();
            match op {
                0 => { index.forget(ReplicaId(replica)); held.clear(); }
                _ => {
                    let before = prints.iter().take_while(|p| held.contains(p)).count();
                    prop_assert_eq!(hold(&mut index, &prints, ReplicaId(replica)), before);
                    held.extend(&prints);
                }
            }
            let mut seen = [0; 70];
            index.walk(&prints, &mut seen);
            for (slot, overlap) in (0u16..).zip(seen) {
                let want = model.get(&slot).map_or(0, |h| prints.iter().take_while(|p| h.contains(p)).count());
                prop_assert_eq!(overlap as usize, want);
            }
        }
    }
}
