//! The share of a replica that has come back: little at first, growing to the whole over a window.
//!
//! A replica that comes back is idle, and every rule that looks at load would send it all new sessions at once: a
//! burst of long prompts at an engine that is still compiling its kernels. So a replica that is `s` of its window into
//! it counts as `1/s` times as busy as it is: its reserved units, its queue and its requests are multiplied.
//! - **It cannot starve:** nothing times anything is nothing. While it is idle, it is as attractive as any idle replica.
//! - **It cannot be flooded:** it gets another request only while it carries at most the share `s` of what the others
//!   carry, so what waits there grows with time.
//!
//! Warm sessions come only when that pays, as the policy has it: what they are read from elsewhere does not change.
//! A fleet that came back as a whole routes as if nothing had happened: shares count relative to the largest one.
//! `round_robin` looks at no load, and a turn of it is a share in itself.

use super::select::Candidate;

/// The share at the very beginning.
const LEAST: f64 = 0.01;

/// The share of a replica that came back `age_ms` ago, from a hundredth to 1.
pub fn share(age_ms: f64, window_ms: f64) -> f64 {
    if age_ms >= window_ms { 1.0 } else { (age_ms / window_ms).max(LEAST) }
}

/// Makes each candidate as busy as it should look with its share (in the same order).
pub fn ease(candidates: &mut [Candidate], shares: &[f64]) {
    let healthy = candidates.iter().zip(shares).filter(|(c, _)| c.healthy);
    let whole = healthy.map(|(_, share)| *share).fold(0.0, f64::max);
    for (candidate, share) in candidates.iter_mut().zip(shares).filter(|(_, share)| **share < whole) {
        let times = whole / share;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive; the cast saturates")]
        let load = (f64::from(candidate.load) * times).ceil() as u32;
        candidate.load = load;
        candidate.prospect.queue_ms *= times;
        candidate.prospect.waiting *= times;
        candidate.prospect.decoding *= times;
    }
}

#[cfg(test)]
mod tests {
    use super::super::cost::Tokens;
    use super::super::estimate::START;
    use super::super::select::{RouteRequest, select};
    use super::super::testing::{self, params};
    use super::*;
    use crate::types::PolicyKind;
    use proptest::prelude::*;

    /// A cold prompt of the size at which it weighs four units.
    const COLD: RouteRequest = RouteRequest {
        body_bytes: 128 << 10,
        prompt_bytes: 128 << 10,
        blocks: 64,
        tokens: Tokens { prompt: 30_000.0, block: 500.0, output: 200.0, turns: 0.0 },
        salt: 0,
    };
    const UNITS: u32 = 4;

    fn candidate(id: u16, prompts: u32) -> Candidate {
        let queue_ms = f64::from(prompts) * START.prefill_ms(COLD.tokens.prompt, 0.0);
        testing::candidate(id, 0, prompts * UNITS, (queue_ms, f64::from(prompts)))
    }

    /// Where a cold prompt goes when replica 0 has the share `share`, by the prompts that are at each.
    fn place(policy: PolicyKind, share: f64, prompts: &[u32]) -> usize {
        let mut fleet: Vec<_> = (0u16..).zip(prompts).map(|(id, n)| candidate(id, *n)).collect();
        let mut shares = vec![1.0; fleet.len()];
        shares[0] = share;
        ease(&mut fleet, &shares);
        select(COLD, &fleet, &params(policy)).unwrap().ranked[0].id.index()
    }

    #[test]
    fn a_share_grows_from_little_to_the_whole_and_ends_there() {
        let at = |age| share(age, 30_000.0);
        assert_eq!((at(-1.0), at(0.0), at(15_000.0), at(30_000.0), at(f64::INFINITY)), (LEAST, LEAST, 0.5, 1.0, 1.0));
        assert_eq!(share(0.0, 0.0), 1.0);
    }

    #[test]
    fn a_fleet_that_came_back_as_a_whole_routes_as_ever() {
        let fleet = [candidate(0, 3), candidate(1, 5), Candidate { healthy: false, ..candidate(2, 0) }];
        let mut eased = fleet;
        // the one that is still away is no measure
        ease(&mut eased, &[0.25, 0.25, 1.0]);
        assert_eq!(eased, fleet);
        ease(&mut eased, &[0.25, 0.5, 1.0]);
        assert_eq!((eased[0].load, eased[1].load), (2 * fleet[0].load, fleet[1].load));
    }

    proptest! {
        #[test]
        fn an_idle_one_is_not_passed_over(
            share in LEAST..1.0, others in prop::collection::vec(1u32..50, 1..6),
            policy in prop::sample::select(vec![PolicyKind::Load, PolicyKind::Affinity, PolicyKind::Cost]),
        ) {
            prop_assert_eq!(place(policy, share, &[&[0], &others[..]].concat()), 0);
        }

        #[test]
        fn a_burst_leaves_it_no_more_than_its_share(
            share in LEAST..1.0, others in prop::collection::vec(0u32..50, 1..6), burst in 1u32..120,
            policy in prop::sample::select(vec![PolicyKind::Load, PolicyKind::Affinity, PolicyKind::Cost]),
        ) {
            let mut prompts = [&[0], &others[..]].concat();
            for _ in 0..burst {
                let at = place(policy, share, &prompts);
                prompts[at] += 1;
            }
            let most = f64::from(*prompts[1..].iter().max().unwrap());
            prop_assert!(f64::from(prompts[0]) <= (most * share).floor() + 1.0, "{prompts:?} at {share}");
        }
    }
}
