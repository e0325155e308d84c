//! The settings of `fleet.discovery`: a part of the table.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::kind::{ENV_NAME, FilePath, LINE, ListOf, OrNull, TcpAddr, count, nested, span};
use super::node::Node;
use super::page::Page;
use super::reader::Reader;
use super::rules::MOST_RANKS;
use super::schema::{Kind, Section, settings};

const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(3_600);

settings! {
    /// Where more replicas are found.
    pub struct Discovery {
        /// A file that another program writes.
        file: FileDiscovery = FileDiscovery::default(), nested();
        /// A name in DNS, each address or service of which is a replica.
        dns: DnsDiscovery = DnsDiscovery::default(), nested();
    }

    /// A watched file.
    pub struct FileDiscovery {
        /// Where it is. It holds a list as it stands below replicas. Null: there is none.
        path: Option<PathBuf> = None, OrNull(FilePath);
        /// How often it is looked at.
        interval: Duration = Duration::from_secs(1), span(SHORTEST..=LONGEST);
    }

    /// A name in DNS.
    pub struct DnsDiscovery {
        /// The name. The hosts file and the search list of resolv.conf apply unless a server is given. Null: there is none.
        name: Option<String> = None, OrNull(LINE);
        /// The port of each address. Null: the name is one of services (SRV), which say their ports.
        port: Option<u32> = None, OrNull(count(1..=65_535));
        /// The longest time between two questions; a shorter time to live of the answer counts, from one second on.
        interval: Duration = Duration::from_secs(10), span(SHORTEST..=LONGEST);
        /// The name server that is asked. Null: those of the system.
        server: Option<SocketAddr> = None, OrNull(TcpAddr);
        /// The models that the engines serve. Empty: those that they list on /v1/models.
        models: Vec<String> = Vec::new(), ListOf { min: 0, item: LINE };
        /// The environment variable that holds the key sent to them.
        api_key_env: Option<String> = None, OrNull(ENV_NAME);
        /// The file that holds the key sent to them.
        api_key_file: Option<PathBuf> = None, OrNull(FilePath);
        /// The data-parallel ranks of each engine.
        dp_ranks: u32 = 1, count(1..=MOST_RANKS);
    }
}
