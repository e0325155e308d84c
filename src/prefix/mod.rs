//! What replicas are believed to hold, pure: fingerprints of a prompt, the index from fingerprint to replicas, and
//! the life of one request's claim on it (pending, held, withdrawn).
//!
//! **Architecture invariant:** no clock, no lock, no IO. The one lock around these values lives in `fleet`.

pub mod crowd;
mod dense;
pub mod fingerprint;
pub mod halves;
pub mod index;
pub mod lru;
pub mod replica_set;
pub mod residency;
pub mod rotation;
pub mod stored;
pub mod turns;
pub mod uses;
