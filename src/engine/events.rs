//! KV events: what engines say that they store and evict (vLLM and SGLang, over ZeroMQ). What it means for prompts is
//! `prefix::stored`'s business.
//!
//! Each engine publishes on its own host, and ramjet connects; or engines connect to ramjet, and say by a topic which
//! replica they are. A forwarder may stand between many of them and ramjet, either way. Batches are numbered. What is
//! missing is asked for where the engine replays; else everything that it said is dropped, and so it is at a batch that
//! cannot be read, one that contradicts what was said before, when the connection ends, and while several connections
//! tell of one replica. Then it is learned anew, from the next prompts on.

pub mod batch;
mod publisher;
mod sequence;
mod zmtp;

use super::tend::tend;
use crate::fleet::Fleet;
use crate::fleet::replica::Replica;
use async_trait::async_trait;
use futures_util::stream::{FuturesUnordered, StreamExt};
use pingora_core::protocols::TcpKeepalive;
use pingora_core::protocols::l4::ext::set_tcp_keepalive;
use pingora_core::server::ShutdownWatch;
use pingora_core::services::background::BackgroundService;
use publisher::Publisher;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use zmtp::Role;

/// To open a connection.
const OPENING: Duration = Duration::from_secs(5);
/// For all that was missed.
const REPLAYING: Duration = Duration::from_secs(5);
/// Pauses before the next attempt to connect.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(15));
/// How often it is looked whether an engine has moved.
const LOOK: Duration = Duration::from_millis(500);
/// Connections of engines that are open at a time: so many for each replica, and some.
const MOST: (usize, usize) = (4, 16);

/// Listens to the engines of replicas that publish KV events.
pub struct KvEvents {
    fleet: Arc<Fleet>,
    /// Where engines connect, if they do.
    bind: Option<SocketAddr>,
}

impl KvEvents {
    /// A listener for the replicas of `fleet`; engines may connect to `bind`.
    pub fn new(fleet: Arc<Fleet>, bind: Option<SocketAddr>) -> Self {
        KvEvents { fleet, bind }
    }

    /// Lets engines connect.
    async fn welcome(&self) {
        let Some(address) = self.bind else { return std::future::pending().await };
        let mut is_told = false;
        let listener = loop {
            match TcpListener::bind(address).await {
                Ok(listener) => break listener,
                // a process that this one follows may still listen there
                Err(e) if !std::mem::replace(&mut is_told, true) => {
                    log::warn!("fleet.kv_events.bind: {address} cannot be listened on yet: {e}");
                }
                Err(_) => {}
            }
            sleep(PAUSES.0).await;
        };
        let mut open = FuturesUnordered::new();
        loop {
            tokio::select! {
                accepted = listener.accept(), if open.len() < MOST.0 * self.fleet.members().len() + MOST.1 => match accepted {
                    Ok((stream, _)) => open.push(self.listen_to(stream)),
                    // no file descriptor is left, for example
                    Err(_) => sleep(LOOK).await,
                },
                Some(()) = open.next(), if !open.is_empty() => {}
            }
        }
    }

    /// Listens to an engine that has connected.
    async fn listen_to(&self, mut stream: TcpStream) {
        let mut publisher = Publisher::default();
        let of =
            |topic: &[u8], ranks: Ranks| self.fleet.members().iter().find(|r| is_meant(r, Some(topic), ranks)).cloned();
        if opened(&mut stream).await.is_ok() {
            let _ended: io::Result<()> = publisher.listen(&self.fleet, &mut stream, of).await;
        }
        publisher.has_ended();
    }
}

#[async_trait]
impl BackgroundService for KvEvents {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let follow = |replica: Arc<Replica>| async move {
            if replica.spec.role.events.as_ref().is_some_and(|events| events.port.is_some()) {
                follow(&self.fleet, replica).await;
            } else {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = tend(&self.fleet, follow) => {}
            () = self.welcome() => {}
            () = self.fleet.until_retired() => {}
            _ = shutdown.changed() => {}
        }
    }
}

/// The rank that a batch names, and the first one that its connection has named.
type Ranks = Option<(u32, u32)>;

/// Whether `replica` is the one that a batch is about: of this topic, where engines connect, and of this rank. A replica
/// without one is an engine whose rank need not be known here; of one that shares its requests out among ranks itself,
/// nobody knows which one holds a prompt.
fn is_meant(replica: &Replica, topic: Option<&[u8]>, ranks: Ranks) -> bool {
    let role = &replica.spec.role;
    let is_topic =
        topic.is_none() || role.events.as_ref().is_some_and(|e| e.topic.as_deref().map(str::as_bytes) == topic);
    is_topic && ranks.is_none_or(|(rank, first)| rank == role.rank.unwrap_or(first))
}

/// Connects to a replica's engine again and again.
async fn follow(fleet: &Fleet, replica: Arc<Replica>) {
    let mut pause = PAUSES.0;
    loop {
        let mut publisher = Publisher::default();
        if let Some(address) = replica.address() {
            // where others publish by the same port, its topic says which of them it is
            let has_topic = replica.spec.role.events.as_ref().is_some_and(|events| events.topic.is_some());
            let of =
                |topic: &[u8], ranks| is_meant(&replica, has_topic.then_some(topic), ranks).then(|| replica.clone());
            let listening = async {
                let mut stream = connect(&replica, address, false).await?;
                publisher.listen(fleet, &mut stream, of).await
            };
            let ended = tokio::select! {
                ended = listening => ended,
                () = until_moved(&replica, address) => Ok(()),
            };
            if let Err(e) = ended {
                log::debug!("replica {}: its KV events: {e}", replica.name());
            }
        }
        pause = if publisher.has_ended() { PAUSES.0 } else { (pause * 2).min(PAUSES.1) };
        sleep(pause).await;
    }
}

async fn until_moved(replica: &Replica, address: SocketAddr) {
    while replica.address() == Some(address) {
        sleep(LOOK).await;
    }
}

/// Connects to where a replica's engine publishes, or `replays`.
async fn connect(replica: &Replica, address: SocketAddr, replays: bool) -> io::Result<TcpStream> {
    let role = &replica.spec.role;
    let events = role.events.as_ref();
    let port = events.and_then(|events| if replays { events.replay_port } else { events.port });
    // the ranks of an engine publish on ports that follow each other
    let port = port.and_then(|port| port.checked_add(u16::try_from(role.rank.unwrap_or(0)).ok()?));
    let port = port.ok_or(io::ErrorKind::AddrNotAvailable)?;
    let opening = async {
        let mut stream = TcpStream::connect((address.ip(), port)).await?;
        if replays {
            zmtp::open(&mut stream, Role::Dealer).await?;
        } else {
            opened(&mut stream).await?;
        }
        Ok(stream)
    };
    timeout(OPENING, opening).await.map_err(|_| io::ErrorKind::TimedOut)?
}

/// Subscribes; an engine that is gone without a word is noticed by keepalive probes.
async fn opened(stream: &mut TcpStream) -> io::Result<()> {
    let probes = TcpKeepalive {
        idle: OPENING,
        interval: OPENING,
        count: 3,
        #[cfg(target_os = "linux")]
        user_timeout: Duration::ZERO,
    };
    set_tcp_keepalive(stream, &probes).map_err(|_| io::ErrorKind::Unsupported)?;
    timeout(OPENING, zmtp::open(stream, Role::Sub)).await.map_err(|_| io::ErrorKind::TimedOut)?
}
