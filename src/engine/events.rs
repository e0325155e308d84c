//! KV events: what engines say that they store and evict (vLLM and SGLang, over ZeroMQ). What it means for prompts is
//! `prefix::stored`'s business.
//!
//! Each engine publishes on its own host, and ramjet connects; or engines connect to ramjet, and say by a topic which
//! replica they are. Batches are numbered. What is missing is asked for where the engine replays; else everything that it
//! said is dropped, and so it is at a batch that cannot be read, one that contradicts what was said before, when the
//! connection ends, and while several connections tell of one replica. Then it is learned anew, from the next prompts on.

pub mod batch;
mod sequence;
mod zmtp;

use super::tend::tend;
use crate::fleet::Fleet;
use crate::fleet::replica::Replica;
use crate::fleet::stored::{Heard, Loss};
use async_trait::async_trait;
use batch::{Batch, Event};
use futures_util::stream::{FuturesUnordered, StreamExt};
use pingora_core::protocols::TcpKeepalive;
use pingora_core::protocols::l4::ext::set_tcp_keepalive;
use pingora_core::server::ShutdownWatch;
use pingora_core::services::background::BackgroundService;
use sequence::{Sequence, Step};
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
            let of = |_: &[u8], ranks| is_meant(&replica, None, ranks).then(|| replica.clone());
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

/// An engine, as far as it was listened to.
#[derive(Default)]
struct Publisher {
    /// Its connection.
    teller: Arc<()>,
    sequence: Sequence,
    /// The first rank that it named.
    rank: Option<u32>,
    /// Whom it told something of.
    told: Option<Arc<Replica>>,
}

impl Publisher {
    /// Takes in what comes, each batch for the replica that `of` finds for its topic and rank.
    async fn listen(
        &mut self,
        fleet: &Fleet,
        stream: &mut TcpStream,
        of: impl Fn(&[u8], Ranks) -> Option<Arc<Replica>>,
    ) -> io::Result<()> {
        loop {
            let parts = zmtp::next(stream).await?;
            let [topic, number, payload] = parts.as_slice() else { continue };
            let Ok(number) = <[u8; 8]>::try_from(number.as_slice()).map(u64::from_be_bytes) else { continue };
            let step = self.sequence.step(number);
            let batch = batch::read(payload);
            let Some(replica) = self.meant(topic, &batch, &of) else {
                self.pass_over(step, of(topic, None));
                continue;
            };
            if !self.tells(&replica) {
                replica.was_told(Heard::Other, 1);
                continue;
            }
            match step {
                Step::Follows => {}
                Step::Anew => replica.tells_no_longer(&self.teller, Loss::Anew),
                Step::Missing(from) => catch_up((&replica, &self.teller), from, number).await,
            }
            // what is repeated is of long ago; and meanwhile another connection may have begun to tell
            let is_cleared = batch.as_ref().is_ok_and(|batch| batch.events.contains(&Event::Cleared));
            if is_cleared && replica.believes(&self.teller) {
                fleet.emptied(replica.id);
            }
            take((&replica, &self.teller), batch);
        }
    }

    /// A batch is about nobody here: what its number says holds all the same for whom the connection has told something.
    fn pass_over(&self, step: Step, topical: Option<Arc<Replica>>) {
        if let Some(replica) = topical {
            replica.was_told(Heard::Other, 1);
        }
        let Some(told) = &self.told else { return };
        match step {
            Step::Follows => {}
            Step::Anew => told.tells_no_longer(&self.teller, Loss::Anew),
            Step::Missing(_) => told.tells_no_longer(&self.teller, Loss::Gap),
        }
    }

    /// Whom a batch is about; one that cannot be read is about whom the last one was.
    fn meant(
        &mut self,
        topic: &[u8],
        batch: &Result<Batch, batch::Malformed>,
        of: &impl Fn(&[u8], Ranks) -> Option<Arc<Replica>>,
    ) -> Option<Arc<Replica>> {
        let Ok(batch) = batch else { return self.told.clone().or_else(|| of(topic, None)) };
        of(topic, batch.rank.map(|rank| (rank, *self.rank.get_or_insert(rank))))
    }

    /// It tells of this replica from now on; whether it is believed.
    fn tells(&mut self, replica: &Arc<Replica>) -> bool {
        let before = self.told.replace(replica.clone());
        if let Some(before) = before.filter(|before| !Arc::ptr_eq(before, replica)) {
            before.hangs_up(&self.teller);
        }
        replica.is_told_by(&self.teller)
    }

    /// What it told is not to be relied on any more; whether it told anything.
    fn has_ended(mut self) -> bool {
        self.hang_up()
    }

    fn hang_up(&mut self) -> bool {
        self.told.take().inspect(|replica| replica.hangs_up(&self.teller)).is_some()
    }
}

impl Drop for Publisher {
    /// Also where nobody listens to it any more, as after a reload.
    fn drop(&mut self) {
        self.hang_up();
    }
}

/// Asks for the batches from number `from` on up to `to`; without one of them, nothing is known.
async fn catch_up((replica, teller): (&Replica, &Arc<()>), from: u64, to: u64) {
    let mut next = from;
    let missing = async {
        let address = replica.address().ok_or(io::ErrorKind::AddrNotAvailable)?;
        let mut stream = connect(replica, address, true).await?;
        tokio::io::AsyncWriteExt::write_all(&mut stream, &zmtp::question(&from.to_be_bytes())).await?;
        while next < to {
            let parts = zmtp::next(&mut stream).await?;
            let [.., number, payload] = parts.as_slice() else { return Err(io::ErrorKind::InvalidData.into()) };
            let number = <[u8; 8]>::try_from(number.as_slice()).map(u64::from_be_bytes);
            match number {
                // the beginning may be too long ago: what follows an unknown block is not known, and no guess
                Ok(number) if number == next || from == 0 && next == 0 && number < to => next = number + 1,
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
            take((replica, teller), batch::read(payload));
        }
        Ok::<_, io::Error>(())
    };
    let caught_up = timeout(REPLAYING, missing).await.is_ok_and(|result| result.is_ok());
    // who joins in the middle, and is repeated nothing, has missed nothing that was known
    if !caught_up && (from > 0 || next > 0) {
        replica.tells_no_longer(teller, Loss::Gap);
    }
}

/// Takes in a batch by this connection, or that it was none.
fn take((replica, teller): (&Replica, &Arc<()>), batch: Result<Batch, batch::Malformed>) {
    let Ok(batch) = batch else { return replica.tells_no_longer(teller, Loss::Unreadable) };
    let told = replica.tell(teller, |stored| {
        batch.events.iter().try_for_each(|event| {
            match event {
                Event::Stored { blocks, after, tokens } => stored.store(blocks, *after, *tokens)?,
                Event::Removed(blocks) => stored.remove(blocks),
                Event::Cleared => stored.clear(),
                Event::Other => {}
            }
            Ok(())
        })
    });
    for event in &batch.events {
        match event {
            Event::Stored { blocks, .. } => replica.was_told(Heard::Stored, blocks.len()),
            Event::Removed(blocks) => replica.was_told(Heard::Removed, blocks.len()),
            Event::Cleared => replica.was_told(Heard::Cleared, 1),
            Event::Other => replica.was_told(Heard::Other, 1),
        }
    }
    if told.is_err() {
        replica.tells_no_longer(teller, Loss::Contradiction);
    }
}
