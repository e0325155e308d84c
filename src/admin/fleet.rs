//! The fleet as JSON: how each replica is, what it has to do, how fast it is believed to be and what it keeps.

use super::json::{Object, document};
use crate::fleet::replica::Replica;
use crate::fleet::{Fleet, FleetHealth};
use crate::telemetry::metrics::Metrics;

/// All replicas, in the order of their ordinals.
pub(super) fn all(fleet: &Fleet, metrics: &Metrics) -> String {
    document(|o| {
        o.text("health", health(fleet));
        o.text("policy", fleet.params().policy.name());
        let (bytes, blocks) = fleet.index_size();
        o.plain("index_bytes", bytes);
        o.plain("index_blocks", blocks);
        o.plain("requests_in_flight", metrics.inflight());
        o.object("cluster", fleet.sharing().group(), |o, group| {
            o.plain("connected", group.connected);
            o.plain("peers", group.peers);
            o.number("lag_s", group.lag_s);
        });
        o.list("replicas", fleet.replicas().iter(), |o, replica| one(o, replica, fleet, metrics));
    })
}

/// What is left at a replica that an order was about.
pub(super) fn after_order(fleet: &Fleet, replica: &Replica) -> String {
    document(|o| {
        o.text("name", replica.name());
        o.plain("replica", replica.id);
        o.text("state", replica.state().label());
        o.plain("in_flight", replica.inflight());
        o.plain("sessions", fleet.residents(replica).0);
    })
}

/// The fleet in one word.
pub(super) fn health(fleet: &Fleet) -> &'static str {
    match fleet.health() {
        FleetHealth::Ok => "ok",
        FleetHealth::Degraded => "degraded",
        FleetHealth::Unhealthy => "unhealthy",
    }
}

fn one(o: &mut Object<'_>, replica: &Replica, fleet: &Fleet, metrics: &Metrics) {
    let now = fleet.clock().now();
    let prospect = replica.prospect(now);
    let fence = replica.fence();
    o.text("name", replica.name());
    o.plain("ordinal", replica.id);
    o.text("state", replica.state().label());
    o.text("reason", fence.map(|reason| reason.label()));
    o.text("detail", replica.refusal().as_deref());
    let seconds = |since: Option<f64>| since.map(|since| (now - since) / 1000.0);
    o.number("draining_for_s", seconds(replica.drained_since()));
    o.number("leaves_within_s", replica.leaves_by(now).map(|ends| (ends - now) / 1000.0));
    o.number("empty_for_s", seconds(replica.empty_since(now)));
    o.plain("in_flight", replica.inflight());
    o.plain("in_flight_elsewhere", replica.elsewhere().requests());
    let (sessions, tokens) = fleet.residents(replica);
    o.plain("sessions", sessions);
    o.number("session_tokens", Some(tokens));
    o.plain("load_units", replica.load());
    o.number("waiting", prospect.waiting);
    o.number("decoding", prospect.decoding);
    o.number("queue_ms", prospect.queue_ms);
    o.object("rates", Some(prospect.rates), |o, rates| {
        o.number("prefill_tokens_per_s", 1000.0 / rates.prefill_token);
        o.number("step_ms", rates.step);
        o.number("step_growth_ms", rates.step_growth);
    });
    o.number("keeps_tokens", fleet.keeps(replica.id));
    o.number("hit_share", metrics.hit_share(replica.name()));
}
