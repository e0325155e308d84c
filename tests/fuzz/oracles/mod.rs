//! What must hold of any input, target by target. An oracle panics where it does not.
//!
//! They judge by means of their own (`tree`: a JSON tree that keeps duplicates and the text of numbers; serde_json for what
//! is JSON at all; an event-stream parser written from the standard), so that a mistake is not made twice.

#![expect(clippy::unwrap_used, clippy::panic, reason = "an oracle speaks by panicking")]

mod batches;
mod canonical;
mod cluster;
mod config;
mod dice;
mod events;
mod request;
mod sse;
mod tree;

/// Panics where an input breaks a promise.
pub(crate) type Oracle = fn(&[u8]);

/// Every target.
pub(crate) const ALL: [(&str, Oracle); 6] = [
    ("request", request::check),
    ("sse", sse::check),
    ("canonical", canonical::check),
    ("config", config::check),
    ("cluster", cluster::check),
    ("kv_events", batches::check),
];
