//! Promises kept by the real binary on real sockets. One file per promise; engines are scripted or simulated.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets the unexpected should stop"
)]

mod bodies;
mod chaos;
mod clients;
mod compat;
mod deploying;
mod dialects;
mod draining;
mod encoded;
mod failover;
mod fencing;
mod flight;
mod frozen;
mod health;
mod kept;
mod lane;
mod leaving;
mod models;
mod oddities;
mod overload;
mod ranks;
mod relaying;
mod routing;
mod seeing;
mod sessions;
mod slow_clients;
mod starting;
mod support;
mod tidy;
mod tls;
mod upgrade;
mod upgrades;
