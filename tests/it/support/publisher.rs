//! An engine's publisher of KV events, on raw sockets: ZeroMQ's greeting, READY and messages, and MessagePack as far as
//! events need it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A publisher with one subscriber.
pub(crate) struct Publisher {
    pub(crate) stream: TcpStream,
    topic: &'static str,
    next: u64,
    log: Log,
}

/// Batches that were published, by their numbers.
pub(crate) type Log = Arc<Mutex<Vec<Vec<u8>>>>;

impl Publisher {
    /// Waits for a subscriber.
    pub(crate) async fn accept(listener: &TcpListener) -> Publisher {
        Self::greet(listener.accept().await.unwrap().0, "").await
    }

    /// Connects to a subscriber.
    pub(crate) async fn connect(addr: SocketAddr, topic: &'static str) -> Publisher {
        let connect = || async { TcpStream::connect(addr).await.ok() };
        Self::greet(super::there("a subscriber listens", connect).await, topic).await
    }

    async fn greet(mut stream: TcpStream, topic: &'static str) -> Publisher {
        open(&mut stream, b"\x05READY\x0bSocket-Type\0\0\0\x03PUB").await;
        // what it subscribes to: everything
        assert_eq!(read_frame(&mut stream).await, (0, vec![1]));
        Publisher { stream, topic, next: 0, log: Log::default() }
    }

    /// What a forwarder passes on from now on is of this topic, and has had so many batches before.
    pub(crate) fn forwards(&mut self, topic: &'static str, next: u64) {
        (self.topic, self.next) = (topic, next);
    }

    /// The same with what was published before it.
    pub(crate) fn after(mut self, log: &Log) -> Self {
        (self.next, self.log) = (log.lock().unwrap().len() as u64, log.clone());
        self
    }

    /// Batches are missing from here on: they are published for nobody.
    pub(crate) fn loses(&mut self, events: &[Vec<u8>]) {
        self.log.lock().unwrap().push(batch(events));
        self.next += 1;
    }

    /// Publishes a batch.
    pub(crate) async fn publish(&mut self, events: &[Vec<u8>]) {
        self.publish_bytes(batch(events)).await;
    }

    /// Publishes something that may be no batch.
    pub(crate) async fn publish_bytes(&mut self, payload: Vec<u8>) {
        let message = message(&[self.topic.as_bytes(), &self.next.to_be_bytes(), &payload]);
        self.log.lock().unwrap().push(payload);
        self.next += 1;
        self.stream.write_all(&message).await.unwrap();
    }
}

/// Repeats what is in the log for whoever asks.
pub(crate) async fn replay(listener: TcpListener, log: Log) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        open(&mut stream, b"\x05READY\x0bSocket-Type\0\0\0\x06ROUTER").await;
        assert_eq!(read_frame(&mut stream).await, (1, Vec::new()));
        let (0, from) = read_frame(&mut stream).await else { panic!("more parts") };
        let from = u64::from_be_bytes(from.try_into().unwrap());
        let all = log.lock().unwrap().clone();
        for (number, payload) in (0u64..).zip(all).skip(usize::try_from(from).unwrap()) {
            stream.write_all(&message(&[b"", &number.to_be_bytes(), &payload])).await.unwrap();
        }
        // the last one has the number -1
        let _left = stream.write_all(&message(&[b"", &[0xff; 8], b""])).await;
    }
}

async fn open(stream: &mut TcpStream, ready: &[u8]) {
    let mut greeting = [0; 64];
    (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
    greeting[12..16].copy_from_slice(b"NULL");
    stream.write_all(&greeting).await.unwrap();
    stream.read_exact(&mut greeting).await.unwrap();
    stream.write_all(&[&[4, u8::try_from(ready.len()).unwrap()], ready].concat()).await.unwrap();
    let (4, theirs) = read_frame(stream).await else { panic!("no command") };
    assert!(theirs.starts_with(b"\x05READY"));
}

async fn read_frame(stream: &mut TcpStream) -> (u8, Vec<u8>) {
    let (flags, length) = (stream.read_u8().await.unwrap(), stream.read_u8().await.unwrap());
    let mut body = vec![0; length.into()];
    stream.read_exact(&mut body).await.unwrap();
    (flags, body)
}

fn message(parts: &[&[u8]]) -> Vec<u8> {
    let last = parts.len() - 1;
    let frame = |(n, part): (usize, &&[u8])| {
        let flags = 2 | u8::from(n < last);
        [&[flags][..], &(part.len() as u64).to_be_bytes(), part].concat()
    };
    parts.iter().enumerate().flat_map(frame).collect()
}

/// A batch of rank 0.
pub(crate) fn batch(events: &[Vec<u8>]) -> Vec<u8> {
    batch_of(0, events)
}

/// A batch of a rank.
pub(crate) fn batch_of(rank: u8, events: &[Vec<u8>]) -> Vec<u8> {
    [&b"\x93\xcb\0\0\0\0\0\0\0\0"[..], &array(events), &[rank]].concat()
}

/// Blocks of so many tokens, after another one, are there.
pub(crate) fn stored(blocks: impl Iterator<Item = u64>, after: Option<u64>, tokens: u8) -> Vec<u8> {
    let names: Vec<_> = blocks.map(number).collect();
    array(&[
        text("BlockStored"),
        array(&names),
        after.map_or_else(|| vec![0xc0], number),
        array(&[]),
        vec![tokens],
        vec![0xc0],
    ])
}

/// Blocks are gone.
pub(crate) fn removed(blocks: impl Iterator<Item = u64>) -> Vec<u8> {
    let names: Vec<_> = blocks.map(number).collect();
    array(&[text("BlockRemoved"), array(&names)])
}

/// All of them are.
pub(crate) fn cleared() -> Vec<u8> {
    array(&[text("AllBlocksCleared")])
}

/// Something that nobody knows.
pub(crate) fn unknown() -> Vec<u8> {
    array(&[text("SomethingNew")])
}

fn array(items: &[Vec<u8>]) -> Vec<u8> {
    [&[0xdd][..], &u32::try_from(items.len()).unwrap().to_be_bytes(), &items.concat()].concat()
}

fn text(text: &str) -> Vec<u8> {
    [&[0xd9, u8::try_from(text.len()).unwrap()], text.as_bytes()].concat()
}

fn number(n: u64) -> Vec<u8> {
    [&[0xcf][..], &n.to_be_bytes()].concat()
}
