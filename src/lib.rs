//! ramjet.

pub mod config;
pub mod types;
