//! What ramjet tells about itself: metrics, one line per request, the last decisions, the last day, and traces.
//!
//! Labels are closed sets or configured names; no path, no model name from a client and no prompt text ever becomes
//! one.

pub mod access;
pub mod checks;
pub mod decisions;
mod described;
mod guards;
pub mod history;
pub mod inherited;
pub mod journal;
pub mod linter;
pub mod metrics;
pub mod moment;
pub mod outlet;
mod process;
pub mod prompts;
mod ready;
pub mod recorder;
mod registry;
mod scrape;
mod status;
mod totals;
pub mod traces;
pub mod trunks;
