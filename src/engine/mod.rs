//! IO towards engines besides the requests themselves: where they are (discovery) and how they are. Discovery and the
//! readiness probe are plug-ins of pingora-load-balancing; generation probes and the watchdog have clocks of their own, so
//! that a slow one delays nothing.

pub mod capacity;
pub mod discovery;
pub mod dns;
mod exchange;
pub mod generation;
pub mod membership;
pub mod probe;
pub mod search;
mod tend;
pub mod watchdog;
pub mod watched_file;
