//! IO towards engines besides the requests themselves: where they are (discovery), how they are, and who they are
//! (admission). Discovery and the readiness probe are plug-ins of pingora-load-balancing; generation probes, the watchdog
//! and the guard of speculative decoding have clocks of their own, so that a slow one delays nothing.

pub mod admission;
pub mod capacity;
pub mod discovery;
mod exchange;
pub mod generation;
pub mod probe;
pub mod records;
mod samples;
pub mod search;
pub mod speculation;
pub mod watchdog;
