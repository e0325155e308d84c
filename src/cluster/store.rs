//! The store that routers share, Valkey or Redis: one connection, and one round of commands at a time.
//!
//! Commands and replies are the `redis` crate's business. The connection under it is made here: TLS is rustls as everywhere
//! else in ramjet, and whatever the server sends, a reply is read up to `MOST_REPLY` bytes and no further.
//!
//! | key | what | for how long |
//! |---|---|---|
//! | `ramjet:{GROUP}:stream` | a stream, one entry a batch, trimmed by its router | until it is full |
//! | `ramjet:{GROUP}:live:ROUTER` | what a router has running, and what it has fenced | 3 s |
//! | `ramjet:{GROUP}:lore:ROUTER` | the speeds that it has learned | a minute |
//! | `ramjet:{GROUP}:routers` | a sorted set: who was there, and when | the last 128 |
//! | `ramjet:{GROUP}:orders` | a hash: the last word of an operator about each replica | for ever |

use super::peers::MOST;
use super::round::{ENTRIES, Incoming, Outgoing, Place};
use super::wire::MOST_BYTES;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Cmd, Pipeline, ProtocolVersion, RedisConnectionInfo, Value, cmd};
use rustls::pki_types::ServerName;
use std::io::{Error, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio_rustls::TlsConnector;

/// The most bytes that the replies of one round may take.
const MOST_REPLY: usize = ENTRIES * MOST_BYTES + (8 << 20);
/// How long a round, or the way to the store, may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long what a router has running, and has learned, is kept, in milliseconds.
const LIVE_FOR_MS: u64 = 3000;
const LORE_FOR_MS: u64 = 60_000;
/// What a store says that has no memory left.
const FULL: &str = "OOM";
/// Routers that are listed.
const LISTED: usize = 2 * MOST;

/// Where the store is, and how it is spoken to.
#[derive(Clone)]
pub struct Site {
    /// Its host: a name, or an address, IPv6 without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// How its certificate is verified, if it is reached by TLS.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// Who this router is there.
    pub user: Option<String>,
    /// Its password.
    pub password: Option<String>,
    /// The number of the database.
    pub database: i64,
    /// The name of the group.
    pub group: String,
}

/// Why the store is of no use for a while.
#[derive(Debug, Error)]
pub enum Failed {
    /// It could not be reached, or the connection has ended.
    #[error("{0}")]
    Connection(#[from] Error),
    /// What it said.
    #[error("{0}")]
    Refused(#[from] redis::RedisError),
    /// It took too long.
    #[error("no answer in {PATIENCE:?}")]
    TimedOut,
    /// An answer that is none.
    #[error("an answer that cannot be read")]
    Nonsense,
}

/// A connection to the store.
pub struct Store {
    connection: MultiplexedConnection,
    /// Bytes that may still come.
    allowance: Arc<AtomicUsize>,
    driver: AbortHandle,
    prefix: String,
    me: u64,
}

impl Drop for Store {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Store {
    /// Connects, as the router that calls itself `me`. Also says where the stream ends.
    ///
    /// # Errors
    /// [`Failed`].
    pub async fn connect(site: &Site, me: u64) -> Result<(Self, Place), Failed> {
        tokio::time::timeout(PATIENCE, Box::pin(Self::connect_at_leisure(site, me)))
            .await
            .map_err(|_| Failed::TimedOut)?
    }

    async fn connect_at_leisure(site: &Site, me: u64) -> Result<(Self, Place), Failed> {
        let stream = TcpStream::connect((site.host.as_str(), site.port)).await?;
        stream.set_nodelay(true)?;
        let allowance = Arc::new(AtomicUsize::new(MOST_REPLY));
        let mut info = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP2).set_skip_set_lib_name();
        info = info.set_db(site.database);
        if let Some(user) = &site.user {
            info = info.set_username(user);
        }
        if let Some(password) = &site.password {
            info = info.set_password(password);
        }
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
        let (connection, driver) = match &site.tls {
            None => {
                let stream = Bounded { stream, allowance: allowance.clone() };
                let (connection, driver) = MultiplexedConnection::new_with_config(&info, stream, config).await?;
                (connection, tokio::spawn(driver).abort_handle())
            }
            Some(tls) => {
                let name = ServerName::try_from(site.host.clone()).map_err(Error::other)?;
                let stream = TlsConnector::from(tls.clone()).connect(name, stream).await?;
                let stream = Bounded { stream, allowance: allowance.clone() };
                let (connection, driver) = MultiplexedConnection::new_with_config(&info, stream, config).await?;
                (connection, tokio::spawn(driver).abort_handle())
            }
        };
        let mut store = Store { connection, allowance, driver, prefix: format!("ramjet:{{{}}}:", site.group), me };
        let end = store.end().await?;
        Ok((store, end))
    }

    fn key(&self, what: &str) -> String {
        format!("{}{what}", self.prefix)
    }

    fn own(&self, what: &str, router: u64) -> String {
        format!("{}{what}:{router:016x}", self.prefix)
    }

    async fn send(&mut self, pipeline: &Pipeline) -> Result<Vec<Value>, Failed> {
        // relaxed: who reads the connection sees it in time, or allows what was allowed before
        self.allowance.store(MOST_REPLY, Relaxed);
        let count = pipeline.len();
        let answers = self.connection.req_packed_commands(pipeline, 0, count);
        let answers = tokio::time::timeout(PATIENCE, answers).await.map_err(|_| Failed::TimedOut)??;
        if answers.len() == count { Ok(answers) } else { Err(Failed::Nonsense) }
    }

    async fn end(&mut self) -> Result<Place, Failed> {
        let mut pipeline = redis::pipe();
        pipeline.add_command(command("XREVRANGE", &self.key("stream")).arg("+").arg("-").arg("COUNT").arg(1).clone());
        let answers = self.send(&pipeline).await?;
        let last = answers.into_iter().next().ok_or(Failed::Nonsense)?;
        Ok(entries(checked(last)?).ok_or(Failed::Nonsense)?.into_iter().next_back().map_or((0, 0), |(place, _)| place))
    }

    /// One round.
    ///
    /// # Errors
    /// [`Failed`]: it cannot be read. What went out may have arrived or not.
    pub async fn round(&mut self, out: Outgoing, unix: u64) -> Result<Incoming, Failed> {
        let mut pipeline = redis::pipe();
        self.tell(&mut pipeline, &out, unix);
        let told = pipeline.len();
        self.ask(&mut pipeline, &out);
        let mut answers = self.send(&pipeline).await?;
        let mut asked = answers.split_off(told).into_iter();
        let (mut refused, mut takes_nothing) = (0, None);
        for (place, answer) in answers.into_iter().enumerate() {
            let Value::ServerError(error) = answer else { continue };
            refused += usize::from(place < out.batches.len());
            // a store that takes nothing shows nobody that this router is there; one that is full goes on without that
            if error.code() != FULL {
                takes_nothing = Some(Failed::Refused(error.into()));
            }
        }
        let mut next = || checked(asked.next().ok_or(Failed::Nonsense)?);
        let entries = stream(next()?).ok_or(Failed::Nonsense)?;
        let mut incoming = Incoming { refused, takes_nothing, entries, ..Incoming::default() };
        if !out.peers.is_empty() {
            incoming.live = list(next()?);
            if out.asks_lore {
                incoming.lore = list(next()?);
            }
        }
        if out.asks_orders {
            incoming.orders = Some(list(next()?));
        }
        if out.asks_list {
            let router = |name: Vec<u8>| u64::from_str_radix(std::str::from_utf8(&name).ok()?, 16).ok();
            incoming.list = Some(list(next()?).into_iter().take(MOST).filter_map(router).collect());
        }
        Ok(incoming)
    }

    /// What is written: the batches first.
    fn tell(&self, pipeline: &mut Pipeline, out: &Outgoing, unix: u64) {
        for batch in &out.batches {
            let mut add = command("XADD", &self.key("stream"));
            add.arg("MAXLEN").arg("~").arg(out.keep).arg("*").arg("b").arg(batch.as_slice());
            pipeline.add_command(add);
        }
        if let Some(live) = &out.live {
            pipeline.add_command(set(&self.own("live", self.me), live, LIVE_FOR_MS));
        }
        if let Some(lore) = &out.lore {
            pipeline.add_command(set(&self.own("lore", self.me), lore, LORE_FOR_MS));
        }
        for (replica, order) in &out.orders {
            let mut put = command("HSET", &self.key("orders"));
            put.arg(format!("{replica:016x}")).arg(order.as_slice());
            pipeline.add_command(put);
        }
        if out.asks_list {
            let mut add = command("ZADD", &self.key("routers"));
            add.arg(unix).arg(format!("{:016x}", self.me));
            pipeline.add_command(add);
            let last = -1 - i64::try_from(LISTED).unwrap_or(i64::MAX);
            let mut drop = command("ZREMRANGEBYRANK", &self.key("routers"));
            drop.arg(0).arg(last);
            pipeline.add_command(drop);
        }
    }

    /// What is read: the stream first.
    fn ask(&self, pipeline: &mut Pipeline, out: &Outgoing) {
        let mut read = cmd("XREAD");
        read.arg("COUNT").arg(ENTRIES).arg("STREAMS").arg(self.key("stream"));
        read.arg(format!("{}-{}", out.after.0, out.after.1));
        pipeline.add_command(read);
        let mut get = |what: &str| {
            let mut all = cmd("MGET");
            for peer in &out.peers {
                all.arg(self.own(what, *peer));
            }
            pipeline.add_command(all);
        };
        if !out.peers.is_empty() {
            get("live");
            if out.asks_lore {
                get("lore");
            }
        }
        if out.asks_orders {
            pipeline.add_command(command("HVALS", &self.key("orders")));
        }
        if out.asks_list {
            let mut range = command("ZREVRANGE", &self.key("routers"));
            range.arg(0).arg(MOST - 1);
            pipeline.add_command(range);
        }
    }
}

fn command(name: &str, key: &str) -> Cmd {
    let mut command = cmd(name);
    command.arg(key);
    command
}

fn set(key: &str, value: &[u8], ms: u64) -> Cmd {
    let mut set = command("SET", key);
    set.arg(value).arg("PX").arg(ms);
    set
}

fn checked(answer: Value) -> Result<Value, Failed> {
    match answer {
        Value::ServerError(error) => Err(Failed::Refused(error.into())),
        answer => Ok(answer),
    }
}

/// The byte strings of a list; what is nil, or anything else, is left out.
fn list(answer: Value) -> Vec<Vec<u8>> {
    let of = |value| match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    };
    match answer {
        Value::Array(all) => all.into_iter().filter_map(of).collect(),
        _ => Vec::new(),
    }
}

/// The entries of the one stream that was asked for; nothing where there are none.
fn stream(answer: Value) -> Option<Vec<(Place, Vec<u8>)>> {
    match answer {
        Value::Nil => Some(Vec::new()),
        Value::Array(streams) => match streams.into_iter().next()? {
            Value::Array(named) => entries(named.into_iter().nth(1)?),
            _ => None,
        },
        _ => None,
    }
}

/// Entries: each its place, and the last of its fields' values, which is empty where there is none.
fn entries(answer: Value) -> Option<Vec<(Place, Vec<u8>)>> {
    let Value::Array(all) = answer else { return None };
    let entry = |entry| {
        let Value::Array(parts) = entry else { return None };
        let mut parts = parts.into_iter();
        let Value::BulkString(place) = parts.next()? else { return None };
        let fields = parts.next().map(list).unwrap_or_default();
        Some((at(&place)?, fields.into_iter().nth(1).unwrap_or_default()))
    };
    all.into_iter().map(entry).collect()
}

fn at(text: &[u8]) -> Option<Place> {
    let (ms, number) = std::str::from_utf8(text).ok()?.split_once('-')?;
    Some((ms.parse().ok()?, number.parse().ok()?))
}

/// A connection that brings so many bytes and no more.
struct Bounded<S> {
    stream: S,
    allowance: Arc<AtomicUsize>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<(), Error>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let came = buffer.filled().len() - before;
        let left = self.allowance.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(came));
        Poll::Ready(left.map(drop).map_err(|_| Error::new(ErrorKind::InvalidData, "the answer is too long")))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize, Error>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn entries_are_read_whatever_fields_they_have_and_nonsense_is_none() {
        let entry = |place: &str, fields: Value| Value::Array(vec![text(place), fields]);
        let good = entry("7-1", Value::Array(vec![text("b"), text("frame")]));
        let bare = entry("7-2", Value::Array(vec![text("b")]));
        let gone = entry("7-3", Value::Nil);
        let answer = Value::Array(vec![Value::Array(vec![text("key"), Value::Array(vec![good, bare, gone])])]);
        let wanted = vec![((7, 1), b"frame".to_vec()), ((7, 2), vec![]), ((7, 3), vec![])];
        assert_eq!(stream(answer), Some(wanted));
        assert_eq!(stream(Value::Nil), Some(vec![]));
        for nonsense in [Value::Int(7), Value::Array(vec![]), Value::Array(vec![text("x")])] {
            assert_eq!(stream(nonsense), None);
        }
        assert_eq!(entries(Value::Array(vec![entry("7", Value::Nil)])), None);
        assert_eq!(list(Value::Array(vec![Value::Nil, text("a"), Value::Int(1)])), [b"a".to_vec()]);
    }

    #[tokio::test]
    async fn what_is_too_long_is_not_read() {
        let (here, mut there) = duplex(64);
        let mut bounded = Bounded { stream: here, allowance: Arc::new(AtomicUsize::new(10)) };
        there.write_all(&[7; 12]).await.unwrap();
        let mut read = [0; 6];
        bounded.read_exact(&mut read).await.unwrap();
        assert_eq!(bounded.read_exact(&mut read).await.unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
