//! Discovery by DNS: every address of a name (A and AAAA) is a replica, or every service of one (SRV).
//!
//! DNS is asked directly, not by the system's resolver, which tells neither how long an answer holds nor services. A name is
//! looked up as that does: in the hosts file first, and with the domains of the search list (see `names`); of a server that
//! is given it is asked as it is. It is asked again when the answer's time to live is over, and at the latest after the
//! interval.
//!
//! A replica is called by its address and port, or by its service's host and port, so that a host that moves to another
//! address keeps its name. An answer without any replica is a failure, and so is one that lacks a whole family of
//! addresses because that question failed.

mod names;
mod wire;

use super::membership::{Listed, Memory, Source};
use crate::fleet::replica::ReplicaSpec;
use async_trait::async_trait;
use futures_util::future::{Either, select};
use futures_util::stream::{self, StreamExt};
use names::Resolver;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;
use wire::{Data, Kind, Reply, question, reply};

/// How long a server has to answer, and how often it is asked.
const PATIENCE: Duration = Duration::from_secs(2);
const TRIES: usize = 2;
/// How long a family is waited for that was not there, once the other one is.
const OTHER_FAMILY: Duration = Duration::from_millis(500);
/// Hosts of services that are looked up at a time.
const AT_ONCE: usize = 32;
/// It is not asked more often than this for the time to live of its answers.
const LEAST: Duration = Duration::from_secs(1);

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
}

/// The families of addresses that were there, by host.
type Families = BTreeMap<String, [bool; 2]>;

/// Engines by name and port, and how long that holds.
#[derive(Default)]
struct Found {
    engines: BTreeMap<(String, u16), IpAddr>,
    ttl: Option<u32>,
    families: Families,
}

/// The addresses of one host.
struct Host {
    name: String,
    addresses: Vec<IpAddr>,
    ttl: Option<u32>,
    there: [bool; 2],
}

impl Found {
    fn live(&mut self, ttl: Option<u32>) {
        self.ttl = self.ttl.into_iter().chain(ttl).min();
    }

    /// Takes in what a host has.
    fn take(&mut self, host: Host) -> Vec<IpAddr> {
        self.live(host.ttl);
        self.families.insert(host.name, host.there);
        host.addresses
    }
}

impl Dns {
    /// Asks for `asked`; `make` makes replicas of what is found.
    pub fn new(asked: DnsName, make: MakeReplicas) -> Self {
        Dns { asked, make }
    }

    async fn find(&self, known: &Families) -> Result<Found, String> {
        let resolver = self.asked.server.map_or_else(Resolver::of_the_system, Resolver::only);
        let mut found = Found::default();
        match self.asked.port {
            Some(port) => {
                for address in self.search(&resolver, known, &mut found).await? {
                    found.engines.insert((shown(address), port), address);
                }
            }
            None => self.services(&resolver, known, &mut found).await?,
        }
        if found.engines.is_empty() { Err(format!("{} has no address", self.asked.name)) } else { Ok(found) }
    }

    /// Engines that a name of services lists: the first full name that lists any.
    async fn services(&self, resolver: &Resolver, known: &Families, found: &mut Found) -> Result<(), String> {
        for name in resolver.full(&self.asked.name) {
            let services = ask(&resolver.servers, &name, Kind::Srv).await?;
            if services.records.is_empty() {
                continue;
            }
            found.live(services.ttl);
            let service = |record| match record {
                // a target without a name says that there is no service
                Data::Srv(port, host) if !host.is_empty() => Some((port, host)),
                _ => None,
            };
            let all = services.records.into_iter().filter_map(service);
            let servers = &resolver.servers;
            let look = async |(port, host): (u16, String)| (port, addresses(servers, &host, known).await);
            let all: Vec<_> = stream::iter(all.map(look)).buffered(AT_ONCE).collect().await;
            for (port, host) in all {
                let host = host?;
                let name = host.name.clone();
                // one host is one engine, whatever its addresses
                let address = found.take(host).into_iter().min();
                found.engines.extend(address.map(|address| ((name, port), address)));
            }
            break;
        }
        Ok(())
    }

    /// The addresses of the name: what the hosts file says, else of the first full name that has any. A question that
    /// fails ends the search: the next domain may have another host of that name.
    async fn search(&self, resolver: &Resolver, known: &Families, found: &mut Found) -> Result<Vec<IpAddr>, String> {
        let listed = resolver.hosts(&self.asked.name);
        if !listed.is_empty() {
            return Ok(listed);
        }
        for full in resolver.full(&self.asked.name) {
            let host = addresses(&resolver.servers, &full, known).await?;
            if !host.addresses.is_empty() {
                return Ok(found.take(host));
            }
        }
        Ok(Vec::new())
    }
}

/// The addresses of a host in both families. One family whose question fails is missed only if it was there before.
async fn addresses(servers: &[SocketAddr], host: &str, known: &Families) -> Result<Host, String> {
    let known = known.get(host).copied().unwrap_or_default();
    let mut out = Host { name: host.to_owned(), addresses: Vec::new(), ttl: None, there: known };
    let answers = both(servers, host, known).await;
    let failed = answers.each_ref().map(Result::is_err);
    for (n, answer) in answers.into_iter().enumerate() {
        match answer {
            Ok(reply) => {
                out.there[n] = !reply.records.is_empty();
                if out.there[n] {
                    out.ttl = out.ttl.into_iter().chain(reply.ttl).min();
                }
                out.addresses.extend(reply.records.into_iter().filter_map(|record| match record {
                    Data::Address(address) => Some(address),
                    Data::Srv(..) => None,
                }));
            }
            Err(why) if known[n] || failed == [true, true] => return Err(why),
            Err(_) => {}
        }
    }
    Ok(out)
}

/// The answers for both families. Where one has addresses, the other one is waited for only a moment, unless it was there
/// before: many name servers leave questions for a family unanswered that they do not have.
async fn both(servers: &[SocketAddr], host: &str, known: [bool; 2]) -> [Result<Reply, String>; 2] {
    let (four, six) = (pin!(ask(servers, host, Kind::A)), pin!(ask(servers, host, Kind::Aaaa)));
    let is_enough = |answer: &Result<Reply, String>| answer.as_ref().is_ok_and(|reply| !reply.records.is_empty());
    let late = |_| Err(format!("{host}: the name server does not answer for one family"));
    match select(four, six).await {
        Either::Left((four, six)) if is_enough(&four) && !known[1] => {
            [four, timeout(OTHER_FAMILY, six).await.unwrap_or_else(late)]
        }
        Either::Right((six, four)) if is_enough(&six) && !known[0] => {
            [timeout(OTHER_FAMILY, four).await.unwrap_or_else(late), six]
        }
        Either::Left((four, six)) => [four, six.await],
        Either::Right((six, four)) => [four.await, six],
    }
}

/// An address as it stands in a URL.
fn shown(address: IpAddr) -> String {
    match address {
        IpAddr::V4(four) => four.to_string(),
        IpAddr::V6(six) => format!("[{six}]"),
    }
}

/// Asks one server after the other until one answers. That there is no such name is an answer without records.
async fn ask(servers: &[SocketAddr], name: &str, kind: Kind) -> Result<Reply, String> {
    let id = u16::try_from(RandomState::new().hash_one(name) & 0xffff).unwrap_or_default();
    let Some(question) = question(id, name, kind) else { return Err(format!("{name:?} is no name in DNS")) };
    let mut why = String::new();
    for server in std::iter::repeat_n(servers, TRIES).flatten() {
        match timeout(PATIENCE, ask_one(*server, &question)).await {
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

    async fn list(&self, memory: &mut Memory) -> Result<Listed, (String, Duration)> {
        let interval = self.asked.interval;
        let found = self.find(&memory.families).await.map_err(|why| (why, interval))?;
        memory.families.clone_from(&found.families);
        let made: Result<Vec<_>, _> =
            found.engines.iter().map(|((name, port), address)| (self.make)(name, *port, *address)).collect();
        let specs = made.map_err(|why| (why, interval))?.concat();
        let lives = found.ttl.map_or(interval, |ttl| Duration::from_secs(ttl.into()).max(LEAST));
        Ok(Listed { specs: Some(specs), again: lives.min(interval) })
    }
}
