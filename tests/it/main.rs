//! Promises kept by the real binary on real sockets. One file per promise; engines are scripted or simulated.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets the unexpected should stop"
)]

mod adapters;
mod admission;
mod bodies;
mod chaos;
mod clients;
mod cluster;
mod compat;
mod cuts;
mod decoded;
mod deploying;
mod dialects;
mod discovery;
mod draining;
mod emptying;
mod encoded;
mod failover;
#[cfg(feature = "bench")]
mod faults;
mod fencing;
mod flight;
mod framing;
mod frozen;
mod heads;
mod health;
mod instructions;
mod journal;
mod kept;
mod kv_events;
mod lane;
mod leaving;
mod limits;
mod linter;
mod metrics;
mod models;
mod oddities;
mod overload;
mod phases;
mod prompts;
mod ranks;
mod relaying;
mod reloading;
mod replaying;
mod routing;
mod saturated;
mod seeing;
mod sessions;
mod setbacks;
mod slow_clients;
mod speculation;
mod starting;
mod succession;
mod support;
mod tidy;
mod tls;
mod tracing;
mod upgrade;
mod upgrades;
mod usage;
mod watching;
