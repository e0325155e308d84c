//! How a replica is connected to: in clear text or by TLS, and whom its certificate must come from.

use super::replica::Replica;
use pingora_core::connectors::http::Connector;
use pingora_core::connectors::{ConnectorOptions, TransportConnector};
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::utils::tls::{WrappedX509, parse_x509};
use std::net::SocketAddr;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A file of issuers without any: each replica names its own, so that a connector need not read those of the system,
/// which takes it long and stops the process where it fails.
const NO_ISSUERS: &str = "/dev/null";
/// Connections that a connector of probes keeps; each is used once.
const KEPT: usize = 16;

/// How a replica behind https is known to be itself.
#[derive(Clone, Debug)]
pub struct UpstreamTls {
    /// Whether its certificate is verified.
    verify: bool,
    /// Those who may have issued it, and the same as they came.
    issuers: Arc<[WrappedX509]>,
    ders: Arc<Vec<Vec<u8>>>,
    /// Names whom is trusted. Connections are kept apart by it.
    group: u64,
}

impl PartialEq for UpstreamTls {
    fn eq(&self, other: &Self) -> bool {
        self.verify == other.verify && self.ders == other.ders
    }
}

impl Eq for UpstreamTls {}

impl UpstreamTls {
    /// A certificate by one of the issuers in `ders`, each in DER that has been parsed before, and of the replica's host; not looked
    /// at unless `verify`.
    pub fn new(verify: bool, ders: Arc<Vec<Vec<u8>>>) -> Self {
        let issuers = ders.iter().map(|der| WrappedX509::new(der.clone(), parse_x509));
        let issuer = |seed, der: &Vec<u8>| xxh3_64_with_seed(der, seed);
        // the upper half: the lower one is for connections that are used once
        let group = 1 << 63 | ders.iter().fold(verify.into(), issuer);
        UpstreamTls { verify, issuers: issuers.collect(), ders, group }
    }

    /// Whom to connect to at `address`, by the name `host`.
    pub fn peer(&self, address: SocketAddr, host: &str) -> HttpPeer {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let mut peer = HttpPeer::new(address, true, host.to_owned());
        peer.options.verify_cert = self.verify;
        peer.options.verify_hostname = self.verify;
        peer.options.ca = Some(self.issuers.clone());
        peer.group_key = self.group;
        peer
    }
}

impl Replica {
    /// Which group of kept connections may be used for it: those that were verified as it is to be, and, where its engine
    /// must be a certain one, its own.
    pub fn group(&self) -> u64 {
        let trust = self.spec.tls.as_ref().map_or(0, |tls| tls.group);
        if self.identity().is_none() { trust } else { 1 << 63 | trust ^ self.name_hash }
    }

    /// Whom to connect to at `address`.
    pub fn peer(&self, address: SocketAddr) -> HttpPeer {
        match &self.spec.tls {
            None => HttpPeer::new(address, false, String::new()),
            Some(tls) => tls.peer(address, &self.spec.host),
        }
    }
}

/// A connector for questions to replicas.
pub fn connector() -> Connector {
    Connector::new(Some(options()))
}

/// A connector for anything else that names its own issuers.
pub fn transport() -> TransportConnector {
    TransportConnector::new(Some(options()))
}

fn options() -> ConnectorOptions {
    let mut options = ConnectorOptions::new(KEPT);
    options.ca_file = Some(NO_ISSUERS.to_owned());
    options
}
