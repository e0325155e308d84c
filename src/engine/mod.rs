//! IO towards engines besides the requests themselves: where they are (discovery), how they are, and who they are
//! (admission). Discovery and the readiness probe are plug-ins of pingora-load-balancing; generation probes, the watchdog
//! and the guard of speculative decoding have clocks of their own, so that a slow one delays nothing.

pub mod admission;
pub mod capacity;
pub mod discovery;
pub mod dns;
pub mod events;
mod exchange;
pub mod generation;
pub mod membership;
pub mod probe;
pub mod records;
mod samples;
pub mod search;
pub mod speculation;
mod tend;
pub mod watchdog;
pub mod watched_file;
