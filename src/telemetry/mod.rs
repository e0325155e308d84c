//! What ramjet tells about itself: metrics, one line per request, and the last decisions.
//!
//! Labels are closed sets or configured names; no path, no model name from a client and no prompt text ever becomes
//! one.

pub mod access;
pub mod decisions;
pub mod inherited;
pub mod journal;
pub mod linter;
pub mod metrics;
mod process;
pub mod prompts;
mod registry;
mod scrape;
mod status;
