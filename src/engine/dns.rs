//! Discovery by DNS: every address of a name (A and AAAA) is a replica, or every service of one (SRV).
//!
//! DNS is asked directly, not by the system's resolver, which tells neither how long an answer holds nor services. The
//! name is taken as it is: no search list and no hosts file apply. It is asked again when the answer's time to live is
//! over, and at the latest after the interval.
//!
//! A replica is called by its address and port, or by its service's host and port, so that a host that moves to another
//! address keeps its name. An answer without any replica is a failure, and so is one that lacks a whole family of
//! addresses because that question failed.

mod wire;

use super::membership::{Listed, Source};
use crate::fleet::replica::ReplicaSpec;
use async_trait::async_trait;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use wire::{Data, Kind, Reply, question, reply};

/// How long a server has to answer, and how often it is asked.
const PATIENCE: Duration = Duration::from_secs(2);
const TRIES: usize = 2;
/// It is not asked more often than this for the time to live of its answers.
const LEAST: Duration = Duration::from_secs(1);
const DNS_PORT: u16 = 53;
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Makes the replicas of one engine: its name (of a host or an address) and port, and its address.
pub type MakeReplicas = Box<dyn Fn(&str, u16, IpAddr) -> Result<Vec<ReplicaSpec>, String> + Send + Sync>;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsName {
    /// The name.
    pub name: String,
    /// The port of each address; `None`: the name is one of services, which tell.
    pub port: Option<u16>,
    /// The longest time between two questions.
    pub interval: Duration,
    /// Who is asked; without, the name servers of the system.
    pub server: Option<SocketAddr>,
}

/// A name whose addresses are replicas.
pub struct Dns {
    asked: DnsName,
    make: MakeReplicas,
    /// Which families of addresses were there, by host. Held for a look-up.
    families: Mutex<BTreeMap<String, [bool; 2]>>,
}

/// Engines by name and port, and how long that holds.
#[derive(Default)]
struct Found {
    engines: BTreeMap<(String, u16), IpAddr>,
    ttl: Option<u32>,
}

impl Found {
    fn live(&mut self, ttl: Option<u32>) {
        self.ttl = self.ttl.into_iter().chain(ttl).min();
    }
}

impl Dns {
    /// Asks for `asked`; `make` makes replicas of what is found.
    pub fn new(asked: DnsName, make: MakeReplicas) -> Self {
        Dns { asked, make, families: Mutex::default() }
    }

    async fn find(&self) -> Result<Found, String> {
        let servers = match self.asked.server {
            Some(server) => vec![server],
            None => name_servers(&std::fs::read_to_string(RESOLV_CONF).unwrap_or_default()),
        };
        let mut found = Found::default();
        match self.asked.port {
            Some(port) => {
                for address in self.addresses(&servers, &self.asked.name, &mut found).await? {
                    found.engines.insert((shown(address), port), address);
                }
            }
            None => {
                let services = ask(&servers, &self.asked.name, Kind::Srv).await?;
                found.live(services.ttl);
                for record in services.records {
                    let Data::Srv(port, host) = record else { continue };
                    let addresses = self.addresses(&servers, &host, &mut found).await?;
                    // one host is one engine, whatever its addresses
                    let known = addresses.into_iter().min();
                    found.engines.extend(known.map(|address| ((host, port), address)));
                }
            }
        }
        if found.engines.is_empty() { Err(format!("{} has no address", self.asked.name)) } else { Ok(found) }
    }

    /// The addresses of a host in both families. One family whose question fails is missed only if it was there before.
    async fn addresses(&self, servers: &[SocketAddr], host: &str, found: &mut Found) -> Result<Vec<IpAddr>, String> {
        let (four, six) = tokio::join!(ask(servers, host, Kind::A), ask(servers, host, Kind::Aaaa));
        let known = self.families.lock().get(host).copied().unwrap_or_default();
        let (mut addresses, mut there) = (Vec::new(), known);
        let failed = [four.is_err(), six.is_err()];
        for (n, answer) in [four, six].into_iter().enumerate() {
            match answer {
                Ok(reply) => {
                    there[n] = !reply.records.is_empty();
                    if there[n] {
                        found.live(reply.ttl);
                    }
                    addresses.extend(reply.records.into_iter().filter_map(|record| match record {
                        Data::Address(address) => Some(address),
                        Data::Srv(..) => None,
                    }));
                }
                Err(why) if known[n] || failed == [true, true] => return Err(why),
                Err(_) => {}
            }
        }
        self.families.lock().insert(host.to_owned(), there);
        Ok(addresses)
    }
}

/// An address as it stands in a URL.
fn shown(address: IpAddr) -> String {
    match address {
        IpAddr::V4(four) => four.to_string(),
        IpAddr::V6(six) => format!("[{six}]"),
    }
}

/// The name servers of the system, or the one of this machine.
fn name_servers(conf: &str) -> Vec<SocketAddr> {
    let server = |line: &str| {
        let (word, rest) = line.trim().split_once(char::is_whitespace)?;
        let address = rest.split_whitespace().next()?.parse().ok()?;
        (word == "nameserver").then_some(SocketAddr::new(address, DNS_PORT))
    };
    let servers: Vec<_> = conf.lines().filter_map(server).collect();
    if servers.is_empty() { vec![SocketAddr::from((Ipv4Addr::LOCALHOST, DNS_PORT))] } else { servers }
}

/// Asks one server after the other until one answers. That there is no such name is an answer without records.
async fn ask(servers: &[SocketAddr], name: &str, kind: Kind) -> Result<Reply, String> {
    let id = u16::try_from(RandomState::new().hash_one(name) & 0xffff).unwrap_or_default();
    let Some(question) = question(id, name, kind) else { return Err(format!("{name:?} is no name in DNS")) };
    let mut why = String::new();
    for server in std::iter::repeat_n(servers, TRIES).flatten() {
        match tokio::time::timeout(PATIENCE, ask_one(*server, &question)).await {
            Ok(Ok(reply)) if matches!(reply.code, 0 | 3) => return Ok(reply),
            Ok(Ok(reply)) => why = format!("{name}: the name server answers with error {}", reply.code),
            Ok(Err(e)) => why = format!("{name}: the name server cannot be asked ({e})"),
            Err(_) => why = format!("{name}: the name server does not answer"),
        }
    }
    Err(why)
}

async fn ask_one(server: SocketAddr, question: &[u8]) -> std::io::Result<Reply> {
    let local = match server {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let socket = UdpSocket::bind(local).await?;
    socket.connect(server).await?;
    socket.send(question).await?;
    let mut message = [0; 4096];
    loop {
        let length = socket.recv(&mut message).await?;
        // what answers another question is from somebody else
        match reply(question, &message[..length]) {
            Some(reply) if reply.is_cut => return ask_whole(server, question).await,
            Some(reply) => return Ok(reply),
            None => {}
        }
    }
}

/// The same over TCP, where an answer may be long.
async fn ask_whole(server: SocketAddr, question: &[u8]) -> std::io::Result<Reply> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(question.len()).unwrap_or_default();
    stream.write_all(&[&length.to_be_bytes(), question].concat()).await?;
    let mut message = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut message).await?;
    reply(question, &message).ok_or_else(|| std::io::ErrorKind::InvalidData.into())
}

#[async_trait]
impl Source for Dns {
    fn kind(&self) -> &'static str {
        "dns"
    }

    fn place(&self) -> String {
        let DnsName { name, port, server, .. } = &self.asked;
        format!("{name} {port:?} {server:?}")
    }

    async fn list(&self) -> Result<Listed, (String, Duration)> {
        let interval = self.asked.interval;
        let found = self.find().await.map_err(|why| (why, interval))?;
        let made: Result<Vec<_>, _> =
            found.engines.iter().map(|((name, port), address)| (self.make)(name, *port, *address)).collect();
        let specs = made.map_err(|why| (why, interval))?.concat();
        let lives = found.ttl.map_or(interval, |ttl| Duration::from_secs(ttl.into()).max(LEAST));
        Ok(Listed { specs: Some(specs), again: lives.min(interval) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_name_servers_are_found() {
        let conf = "# x\nsearch a.b\nnameserver 10.0.0.1\n nameserver\t::1 # six\nnameserver bad\n";
        let wanted: Vec<SocketAddr> = vec!["10.0.0.1:53".parse().unwrap(), "[::1]:53".parse().unwrap()];
        assert_eq!((name_servers(conf), name_servers("").len()), (wanted, 1));
    }
}
