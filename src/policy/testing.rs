//! What the tests of policies are made of: the shipped parameters, a conversation's turn, and replicas with so much to do.

use super::cost::{Prospect, Tokens};
use super::flight::FlightParams;
use super::score::{AffinityParams, LoadParams};
use super::select::{Candidate, Params, RouteRequest};
use crate::types::{Basis, PolicyKind, ReplicaId};

/// A turn of 48 blocks and 25,000 tokens.
pub(crate) const TURN: RouteRequest = RouteRequest {
    body_bytes: 100_000,
    prompt_bytes: 100_000,
    blocks: 48,
    tokens: Tokens { prompt: 25_000.0, block: 512.0, output: 200.0, turns: 0.0 },
    salt: 0,
};

/// The shipped parameters under a policy.
pub(crate) fn params(policy: PolicyKind) -> Params {
    Params {
        policy,
        affinity: AffinityParams { basis: Basis::Relative, cap_blocks: 32, alpha: 4.0 },
        load: LoadParams { unit_bytes: 32 << 10, max_units: 8, block_bytes: 2048 },
        flight: FlightParams::default(),
    }
}

/// A healthy replica that holds `overlap` blocks, with `load` units reserved, where `waiting` prompts take `queue_ms` to
/// be read.
pub(crate) fn candidate(id: u16, overlap: u32, load: u32, (queue_ms, waiting): (f64, f64)) -> Candidate {
    let prospect = Prospect { queue_ms, waiting, ..Prospect::IDLE };
    Candidate { id: ReplicaId(id), healthy: true, overlap, confirmed: overlap, tail: 0.0, load, prospect }
}
