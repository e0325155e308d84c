//! ramjet.

pub mod api;
pub mod prefix;
pub mod types;
