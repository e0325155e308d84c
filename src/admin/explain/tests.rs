//! What is explained is what was decided: the terms add up to the score, in any fleet and under every rule.

use super::super::words;
use super::*;
use crate::api::endpoint::Endpoint;
use crate::fleet::Fleet;
use crate::policy::cost::{Price, Prospect};
use crate::policy::select::{Candidate, Decision, Params, Reason, RouteRequest, select};
use crate::policy::testing::{TURN, candidate, params};
use crate::telemetry::decisions::{Rule, Subject};
use crate::types::Basis;
use proptest::prelude::*;
use serde_json::Value;

/// Digits after the point are cut to the fourth: a sum of six is off by no more than this.
const ROUNDED: f64 = 1e-3;

fn fleets() -> impl Strategy<Value = Vec<Candidate>> {
    prop::collection::vec((0u32..60, 0u32..50, 0.0f64..1e5, 0u8..9, 0u8..9, 0.0f64..0.5), 1..14).prop_map(|all| {
        let of = |(id, (overlap, load, queue_ms, waiting, decoding, rate)): (u16, _)| {
            let plain: Candidate = candidate(id, overlap, load, (queue_ms, 0.0));
            let mut prospect =
                Prospect { waiting: f64::from(waiting), decoding: f64::from(decoding), ..plain.prospect };
            (prospect.coming.rate, prospect.room.sessions) = (rate, 20.0);
            Candidate { prospect, ..plain }
        };
        (0u16..).zip(all).map(of).collect()
    })
}

fn rules() -> impl Strategy<Value = Params> {
    let affinity = (prop::sample::select(&Basis::ALL), 0u32..64, 0.0f64..9.0);
    (prop::sample::select(&PolicyKind::ALL), affinity).prop_map(|(policy, (basis, cap_blocks, alpha))| {
        let mut rule = params(policy);
        (rule.affinity.basis, rule.affinity.cap_blocks, rule.affinity.alpha) = (basis, cap_blocks, alpha);
        rule
    })
}

fn record(made: &Decision, params: &Params) -> Record {
    let placed = Subject {
        endpoint: Endpoint::Chat,
        model: None,
        body_bytes: TURN.body_bytes,
        prompt_bytes: TURN.prompt_bytes,
        blocks: TURN.blocks as usize,
        tokens: TURN.tokens,
        pinned: false,
    };
    let rule = Rule { policy: params.policy, affinity: params.affinity };
    Record::new(7, SystemTime::UNIX_EPOCH, placed, rule, made)
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

/// The score that the terms of a candidate add up to.
fn added_up(candidate: &Value, policy: PolicyKind) -> f64 {
    match policy {
        PolicyKind::Cost => {
            let terms = Price::default().terms().map(|(term, _)| number(&candidate["price_ms"][term]));
            -terms.iter().sum::<f64>()
        }
        PolicyKind::Affinity => {
            number(&candidate["affinity"]["credit_blocks"]) - number(&candidate["affinity"]["load_blocks"])
        }
        PolicyKind::Load => -number(&candidate["load_units"]),
        PolicyKind::RoundRobin => 0.0,
    }
}

proptest! {
    #[test]
    fn the_terms_add_up_to_the_score_that_was_used(candidates in fleets(), params in rules(), salt: u64) {
        let request = RouteRequest { salt, ..TURN };
        let made = select(request, &candidates, &params).unwrap();
        let fleet = Fleet::new(vec![], params, 1 << 20);
        let record = record(&made, &params);
        let told: Value = serde_json::from_str(&one(&record, &fleet.replicas())).unwrap();
        let shown = told["candidates"].as_array().unwrap();
        prop_assert_eq!(shown.len() as u64 + told["more_candidates"].as_u64().unwrap(), candidates.len() as u64);
        for (candidate, used) in shown.iter().zip(made.ranked.iter()) {
            prop_assert_eq!(candidate["ordinal"].as_u64(), Some(u64::from(used.id.0)));
            prop_assert!((number(&candidate["score"]) - used.score).abs() <= ROUNDED);
            prop_assert!((added_up(candidate, params.policy) - used.score).abs() <= ROUNDED, "{candidate} {used:?}");
            prop_assert!((number(&candidate["price_ms"]["total"]) - used.price.total()).abs() <= ROUNDED);
        }
        // the winner has the best of them, the runner-up the next
        let scores: Vec<f64> = shown.iter().map(|c| number(&c["score"])).collect();
        prop_assert!(scores.windows(2).all(|pair| pair[0] >= pair[1] - ROUNDED), "{scores:?}");
        let is_affinity = params.policy == PolicyKind::Affinity;
        prop_assert_eq!(told["rule"]["cap_blocks"].as_u64(), is_affinity.then_some(params.affinity.cap_blocks.into()));
        // the page has a row for each, and the winner is marked
        let page = words::page(&record, &fleet.replicas(), SystemTime::UNIX_EPOCH);
        prop_assert_eq!(page.lines().filter(|line| line.starts_with("> ")).count(), 1);
        let is_known = Reason::ALL.iter().any(|reason| told["reason"] == reason.label());
        prop_assert!(is_known && !told["why"].as_str().unwrap().is_empty());
    }
}
