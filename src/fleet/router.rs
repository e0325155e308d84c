//! The choice and its reservation as one step.

use super::Fleet;
use super::reservation::Reservation;
use super::selection::{CacheAware, RouteKey, encode, take_decision};
use crate::policy::select::{Decision, RouteRequest};
use parking_lot::Mutex;
use pingora_load_balancing::LoadBalancer;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Chooses among the members of a load balancer.
pub struct Router {
    fleet: Arc<Fleet>,
    balancer: Arc<LoadBalancer<CacheAware>>,
    /// Held from the first look at the loads until the choice is reserved; the longest thing done under it is the
    /// walk of one chain.
    booking: Mutex<()>,
    turns: AtomicU64,
}

/// A prompt to place.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'a> {
    /// Its fingerprints; empty when there is nothing to go by.
    pub chain: &'a [u64],
    /// Size of the body in bytes.
    pub body_bytes: u64,
    /// The model asked for.
    pub model: Option<&'a str>,
}

impl Router {
    /// A router over the members of `balancer`, whose `Config` is `fleet`.
    pub fn new(fleet: Arc<Fleet>, balancer: Arc<LoadBalancer<CacheAware>>) -> Self {
        Router { fleet, balancer, booking: Mutex::new(()), turns: AtomicU64::new(0) }
    }

    /// The fleet.
    pub fn fleet(&self) -> &Arc<Fleet> {
        &self.fleet
    }

    /// Ranks the replicas for a prompt and reserves its share on the first one. `None` when there is no candidate.
    pub fn choose(&self, prompt: Prompt<'_>) -> Option<(Decision, Reservation)> {
        let request = RouteRequest {
            body_bytes: prompt.body_bytes,
            blocks: u32::try_from(prompt.chain.len()).unwrap_or(u32::MAX),
            salt: self.turns.fetch_add(1, Relaxed),
        };
        let key = encode(RouteKey { request, model: prompt.model }, prompt.chain);
        let _booking = self.booking.lock();
        // the ranking has weighed health already, failing open included
        self.balancer.select_with(&key, 1, |_, _| true)?;
        let decision = take_decision()?;
        let first = decision.ranked.first()?;
        let replica = self.fleet.replica(first.id)?.clone();
        let reservation = Reservation::new(replica, first.units);
        Some((decision, reservation))
    }
}
