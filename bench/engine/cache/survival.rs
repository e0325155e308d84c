//! What would be left of a cached path after so many new blocks: a forecast for an all-knowing observer.

use std::collections::{HashMap, HashSet};

use super::{Cache, NONE};

impl Cache {
    /// How many of the leading blocks of `chain` that are cached now will still be after `fresh` blocks have been
    /// added for requests that use, of what is cached, the paths to the blocks `kept`. Blocks leave as they would: idle
    /// leaves first, oldest first. A path that others continue is taken to stay.
    pub(crate) fn survives(&self, chain: &[u64], fresh: usize, kept: impl Iterator<Item = u64>) -> usize {
        let have = self.matched(chain);
        let must_go = (self.len() + fresh).saturating_sub(self.capacity);
        let Some(last) = have.checked_sub(1).filter(|_| must_go > 0) else { return have };
        let Some(&slot) = self.by_hash.get(&chain[last]) else { return have };
        let tip = &self.nodes[slot as usize];
        if tip.pins > 0 || tip.children > 0 {
            return have;
        }
        have - (must_go - self.older_than(tip.used, must_go, kept)).min(self.unshared(slot))
    }

    /// How many blocks of a path, from its end, nobody else continues.
    fn unshared(&self, tip: u32) -> usize {
        let up = |&slot: &u32| self.nodes.get(slot as usize).map(|node| node.parent);
        let own = |slot: &u32| self.nodes.get(*slot as usize).is_some_and(|node| node.children <= 1 && node.pins == 0);
        std::iter::successors(Some(tip), up).take_while(own).count()
    }

    /// How many blocks would leave before any that was used at `tick` or later, counted up to `most`.
    fn older_than(&self, tick: u64, most: usize, kept: impl Iterator<Item = u64>) -> usize {
        let kept: HashSet<u32> = kept.filter_map(|hash| self.by_hash.get(&hash).copied()).collect();
        let (mut count, mut gone) = (0, HashMap::<u32, u32>::new());
        for &(_, leaf) in self.idle.range(..(tick, 0)) {
            let mut at = leaf;
            while at != NONE && count < most {
                let node = &self.nodes[at as usize];
                let lost = gone.get(&at).copied().unwrap_or(0);
                if lost < node.children || kept.contains(&at) || node.pins > 0 || node.used >= tick {
                    break;
                }
                count += 1;
                *gone.entry(node.parent).or_default() += 1;
                at = node.parent;
            }
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(cache: &mut Cache, chain: &[u64]) {
        if let Some(tip) = cache.grow(None, chain) {
            cache.unpin(tip);
        }
    }

    #[test]
    fn the_forecast_is_what_happens() {
        // with more, the trunk goes too, which the forecast takes to stay
        for fresh in 0..6 {
            let mut cache = Cache::new(9);
            for chain in [&[1, 2, 3][..], &[1, 2, 4, 5], &[6, 7]] {
                run(&mut cache, chain);
            }
            let paths = [&[1, 2, 3][..], &[1, 2, 4, 5], &[6, 7]];
            let forecast = paths.map(|path| cache.survives(path, fresh, std::iter::empty()));
            run(&mut cache, &(100..100 + fresh as u64).collect::<Vec<_>>());
            assert_eq!(forecast, paths.map(|path| cache.matched(path)), "{fresh} new blocks");
        }
    }

    #[test]
    fn what_others_will_use_does_not_make_room() {
        let mut cache = Cache::new(6);
        run(&mut cache, &[1, 2, 3]);
        run(&mut cache, &[7, 8, 9]);
        assert_eq!(cache.survives(&[7, 8, 9], 2, std::iter::empty()), 3);
        assert_eq!(cache.survives(&[7, 8, 9], 2, [3].into_iter()), 1);
    }
}
