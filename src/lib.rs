//! ramjet.

pub mod types;
