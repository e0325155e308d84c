//! What ramjet tells about itself: metrics, and one line per request.
//!
//! Labels are closed sets or configured names; no path, no model name from a client and no prompt text ever becomes
//! one.

pub mod access;
pub mod metrics;
mod registry;
