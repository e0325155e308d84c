//! What is said of a replica before anything is known of it.

use super::transport::UpstreamTls;
use crate::policy::admission::Identity;
use http::HeaderValue;
use std::sync::Arc;

/// Whether a replica is one for a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// It serves it by its own account.
    Listed,
    /// It has not said what it serves.
    Unknown,
    /// It lists others, but its engine takes any name.
    Easygoing,
    /// It serves others.
    No,
}

/// What the configuration says of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaSpec {
    /// Its name: stable, used in metrics and logs.
    pub name: String,
    /// Host name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Put before every path; empty or `/…` without a slash at the end.
    pub prefix: String,
    /// The value of `Host`.
    pub authority: HeaderValue,
    /// Models it serves; empty for those that its engine lists.
    pub models: Vec<String>,
    /// The value of `Authorization`, if the engine has a key of its own; marked sensitive.
    pub authorization: Option<HeaderValue>,
    /// How it is known to be itself; `None` for one that is reached without TLS.
    pub tls: Option<UpstreamTls>,
    /// What it is in the fleet.
    pub role: Role,
}

/// What a replica is in the fleet besides an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Role {
    /// Its data-parallel rank, if its engine has several.
    pub rank: Option<u32>,
    /// Whether it belongs to the lane for long prompts.
    pub in_lane: bool,
    /// What it shares with the replicas that fail together with it.
    pub node: String,
    /// Tokens that its KV cache holds, where that is configured.
    pub kv_capacity: Option<u32>,
    /// What its engine must be.
    pub identity: Option<Arc<Identity>>,
    /// Where its engine tells what it stores, if it does.
    pub events: Option<Arc<Events>>,
}

/// Where an engine publishes its KV events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// A port on its host: that of its rank 0.
    pub port: Option<u16>,
    /// Another one, where it repeats what was missed.
    pub replay_port: Option<u16>,
    /// The topic under which it is told from others that connect to the same place.
    pub topic: Option<String>,
}
