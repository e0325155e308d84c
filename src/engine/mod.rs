//! IO towards engines besides the requests themselves: where they are (discovery) and how they are (probes), both as
//! plug-ins of pingora-load-balancing.

pub mod capacity;
pub mod discovery;
pub mod probe;
pub mod search;
