//! ramjet.

pub mod api;
pub mod config;
pub mod engine;
pub mod fleet;
pub mod policy;
pub mod prefix;
pub mod telemetry;
pub mod types;
