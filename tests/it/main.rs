//! Promises kept by the real binary on real sockets. One file per promise; engines are scripted or simulated.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that meets the unexpected should stop")]

mod bodies;
mod chaos;
mod clients;
mod dialects;
mod failover;
mod flight;
mod health;
mod lane;
mod leaving;
mod models;
mod oddities;
mod ranks;
mod relaying;
mod routing;
mod seeing;
mod sessions;
mod starting;
mod support;
mod tidy;
