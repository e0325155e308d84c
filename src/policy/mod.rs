//! Decisions on values, pure: which replica, whether to try another, whether a replica is well.
//!
//! **Architecture invariant:** no clock, no randomness, no lock, no IO. What changes from call to call (a salt, a time)
//! is a parameter, so the same input gives the same output and every decision can be replayed.

pub mod accounts;
pub mod admission;
pub mod backlog;
pub mod collapse;
pub mod cost;
pub mod drain;
pub mod errors;
pub mod estimate;
pub mod flight;
pub mod flow;
pub mod health;
pub mod hint;
pub mod lane;
pub mod presumption;
pub mod progress;
pub mod queue;
pub mod ranking;
pub mod refusals;
pub mod retry;
pub mod returns;
pub mod room;
pub mod score;
pub mod select;
pub mod slow_start;
pub mod speculation;
pub mod standing;
#[cfg(test)]
pub(crate) mod testing;
