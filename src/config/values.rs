//! The values of a checked configuration that are more than numbers and words.

use super::events::{KvEvents, ReplicaKvEvents};
use super::guards::Identity;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use super::table::Fleet;
use super::tls::UpstreamTls;

/// Where clients connect.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ListenAddr {
    /// An address and a port.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl ListenAddr {
    /// The address and port, if it has any.
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self {
            ListenAddr::Tcp(address) => Some(*address),
            ListenAddr::Unix(_) => None,
        }
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddr::Tcp(address) => address.fmt(f),
            ListenAddr::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// One engine instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Its stable name, unique in the fleet.
    pub name: String,
    /// A host name, an IPv4 address, or an IPv6 address in brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
    /// What goes before `/v1` in request paths: empty, or begins with `/` and does not end with one.
    pub prefix: String,
    /// How it is known to be itself behind https; `None` for one that is reached without TLS.
    pub tls: Option<UpstreamTls>,
    /// The models it serves; empty for those that it lists.
    pub models: Vec<String>,
    /// The key sent to it instead of the client's.
    pub api_key: Option<Secret>,
    /// Its data-parallel rank, if its engine has several.
    pub rank: Option<u32>,
    /// Which prompts it is kept for.
    pub lane: Option<Lane>,
    /// Tokens that its KV cache holds, where that is configured.
    pub kv_capacity_tokens: Option<u32>,
    /// The machine it runs on, or whatever else fails as one.
    pub node: String,
    /// What its engine must be.
    pub identity: Identity,
    /// Where its engine tells what it stores.
    pub kv_events: ReplicaKvEvents,
}

/// What is so for every replica that does not say otherwise.
#[derive(Clone, Debug)]
pub struct Common {
    /// What its engine must be.
    pub identity: Identity,
    /// Where its engine tells what it stores.
    pub kv_events: KvEvents,
}

impl Common {
    /// As a configured fleet says.
    pub fn of(fleet: &Fleet) -> Self {
        Common { identity: fleet.identity.clone(), kv_events: fleet.kv_events.clone() }
    }
}

/// Which prompts a replica is kept for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// The long ones.
    Long,
}

impl Lane {
    /// Every choice.
    pub const ALL: [Lane; 1] = [Lane::Long];

    /// The word used in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Lane::Long => "long",
        }
    }
}

/// A value that nothing shows again.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// What a secret may be.
    pub(super) const ALLOWED: &'static str = "one line of visible ASCII characters";

    /// A secret that can stand in a header; white space around it (the newline that ends a file) is dropped.
    pub(super) fn new(text: &str) -> Option<Secret> {
        let text = text.trim();
        let fits = !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic());
        fits.then(|| Secret(text.to_owned()))
    }

    /// The value itself, for the one header it belongs in.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(not shown)")
    }
}

/// Whether each request leaves a line in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessLog {
    /// One JSON object a line.
    Json,
    /// No access lines.
    Off,
}

impl AccessLog {
    /// Every choice, in the order in which documents list them.
    pub const ALL: [AccessLog; 2] = [AccessLog::Json, AccessLog::Off];

    /// The word used in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            AccessLog::Json => "json",
            AccessLog::Off => "off",
        }
    }
}
