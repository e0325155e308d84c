//! A scripted engine on raw sockets: it sees every byte, and does what the header `x-play` of a request says.

use super::wire::read_request;
use pingora_core::protocols::l4::ext::get_tcp_info;
use std::collections::{HashMap, VecDeque};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use xxhash_rust::xxh3::xxh3_64;

/// What an engine saw of one request.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) head: String,
    pub(crate) length: usize,
    pub(crate) hash: u64,
    pub(crate) closed: Option<Instant>,
    /// Segments in which its connection has brought all that it has brought so far.
    pub(crate) segments: u32,
}

/// A listening engine; stops on drop.
pub(crate) struct Engine {
    pub(crate) addr: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    seen: Mutex<Vec<Seen>>,
    probes: AtomicU64,
    /// The part that generation probes meet; a good answer if nothing is set.
    generates: Mutex<Option<String>>,
    generations: Mutex<Vec<(String, String)>>,
    /// Bytes of floods that were taken.
    flooded: AtomicU64,
    /// Ends the listening.
    deaf: Notify,
    /// Wakes the plays that wait for a call.
    calls: Notify,
    /// What `/v1/models` answers; an empty list if nothing is set.
    models: Mutex<Option<String>>,
    metrics_asked: AtomicU64,
    /// Other pages, `/metrics` among them, by path, with their status.
    pages: Mutex<HashMap<String, (u16, String)>>,
    /// Plays for the next requests, before what their headers say.
    script: Mutex<VecDeque<String>>,
}

impl Seen {
    /// The value of a header, by its lower-case name.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

impl Engine {
    pub(crate) async fn start() -> Engine {
        Self::start_at("127.0.0.1:0".parse().unwrap()).await
    }

    pub(crate) async fn start_at(addr: SocketAddr) -> Engine {
        // the port of an engine that has stopped may be somebody's outgoing one for a moment
        let bind = || async { TcpListener::bind(addr).await.map_err(|e| assert_eq!(e.kind(), ErrorKind::AddrInUse)) };
        let listener = super::there("the port is free", || async { bind().await.ok() }).await;
        let addr = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let task = tokio::spawn(accept(listener, shared.clone()));
        Engine { addr, shared, task }
    }

    /// The requests seen so far, probes not counted.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// Stops, and waits until connections are refused.
    pub(crate) async fn stop(self) {
        let addr = self.addr;
        drop(self);
        super::until("the engine is gone", || async { TcpStream::connect(addr).await.is_err() }).await;
    }

    /// Readiness probes answered.
    pub(crate) fn probes(&self) -> u64 {
        self.shared.probes.load(Relaxed)
    }

    /// The part that generation probes meet from now on.
    pub(crate) fn generates(&self, play: &str) {
        *self.shared.generates.lock().unwrap() = Some(play.to_owned());
    }

    /// Generation probes seen so far: heads and bodies.
    pub(crate) fn generations(&self) -> Vec<(String, String)> {
        self.shared.generations.lock().unwrap().clone()
    }

    /// Bytes of floods that were taken so far.
    pub(crate) fn flooded(&self) -> u64 {
        self.shared.flooded.load(Relaxed)
    }

    /// Lets the requests go on that wait for a call.
    pub(crate) fn call(&self) {
        self.shared.calls.notify_waiters();
    }

    /// What the engine lists from now on, as the items of `data`.
    pub(crate) fn lists(&self, models: &str) {
        *self.shared.models.lock().unwrap() = Some(format!("{{\"object\":\"list\",\"data\":[{models}]}}"));
    }

    /// How often `/metrics` was asked for.
    pub(crate) fn metrics_asked(&self) -> u64 {
        self.shared.metrics_asked.load(Relaxed)
    }

    /// Sets what `/metrics` answers.
    pub(crate) fn measures(&self, metrics: &str) {
        self.shows("/metrics", 200, metrics);
    }

    /// Sets what a GET of `path` answers.
    pub(crate) fn shows(&self, path: &str, status: u16, page: &str) {
        self.shared.pages.lock().unwrap().insert(path.to_owned(), (status, page.to_owned()));
    }

    /// Takes no more connections, and goes on with those that it has.
    pub(crate) fn deafen(&self) {
        self.shared.deaf.notify_one();
    }

    /// Plays for the requests to come, whatever their headers say.
    pub(crate) fn script(&self, plays: &[&str]) {
        self.shared.script.lock().unwrap().extend(plays.iter().map(|p| (*p).to_owned()));
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // connections end with the engine
    let mut open = tokio::task::JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shared.deaf.notified() => break drop(listener),
        };
        let Ok((stream, _)) = accepted else { return };
        stream.set_nodelay(true).unwrap();
        open.spawn(connection(stream, shared.clone()));
        while open.try_join_next().is_some() {}
    }
    while open.join_next().await.is_some() {}
}

async fn connection(mut stream: TcpStream, shared: Arc<Shared>) {
    let mut buffer = Vec::new();
    while let Some((head, body)) = read_request(&mut stream, &mut buffer).await {
        if head.starts_with("GET /not-there") {
            let _unsent = answer(&mut stream, 500, "", b"{}").await;
            return;
        }
        if head.starts_with("GET /slow") {
            return wait_closed(&mut stream).await;
        }
        if head.starts_with("GET ") && head.contains("/v1/models ") {
            shared.probes.fetch_add(1, Relaxed);
            let models = shared.models.lock().unwrap().clone();
            let models = models.unwrap_or_else(|| "{\"object\":\"list\",\"data\":[]}".to_owned());
            if answer(&mut stream, 200, "", models.as_bytes()).await.is_err() {
                return;
            }
            continue;
        }
        let page = shared.pages.lock().unwrap().get(head.split(' ').nth(1).unwrap()).cloned();
        let is_metrics = head.starts_with("GET /metrics ");
        shared.metrics_asked.fetch_add(is_metrics.into(), Relaxed);
        let page = page.filter(|_| head.starts_with("GET ")).or(is_metrics.then(|| (404, String::new())));
        if let Some((status, page)) = page {
            if answer(&mut stream, status, "", page.as_bytes()).await.is_err() {
                return;
            }
            continue;
        }
        if head.starts_with("POST ") && head.contains("user-agent: ramjet-probe\r\n") {
            let play = shared.generates.lock().unwrap().clone();
            let play = play.unwrap_or_else(|| "json={\"choices\":[{\"text\":\"x\"}]}".to_owned());
            shared.generations.lock().unwrap().push((head, String::from_utf8(body).unwrap()));
            if !perform(&mut stream, &play, &shared).await {
                return;
            }
            continue;
        }
        let segments = get_tcp_info(stream.as_raw_fd()).unwrap().tcpi_data_segs_in;
        let seen = Seen { head, length: body.len(), hash: xxh3_64(&body), closed: None, segments };
        let scripted = shared.script.lock().unwrap().pop_front();
        let play = scripted.or_else(|| seen.header("x-play").map(str::to_owned)).unwrap_or_default();
        // from now on: who sees the request may call
        let called = shared.calls.notified();
        let number = {
            let mut all = shared.seen.lock().unwrap();
            all.push(seen);
            all.len() - 1
        };
        if play.starts_with("on-call") {
            called.await;
        }
        if !perform(&mut stream, &play, &shared).await {
            shared.seen.lock().unwrap()[number].closed = Some(Instant::now());
            return;
        }
    }
}

/// Plays a part; whether the connection goes on.
async fn perform(stream: &mut TcpStream, play: &str, shared: &Shared) -> bool {
    let (name, argument) = play.split_once('=').unwrap_or((play, ""));
    let done = match name {
        "" => answer(stream, 200, "", b"{\"ok\":true}").await,
        // an answer as given, then the connection stays open
        "json" => answer(stream, 200, "", argument.as_bytes()).await,
        "status" => answer(stream, argument.parse().unwrap(), "", b"{\"error\":{\"message\":\"engine\"}}").await,
        "busy" => answer(stream, 503, "retry-after: 7\r\n", b"{\"error\":{\"message\":\"queue full\"}}").await,
        "drop" => return false,
        // answers, then closes the kept connection before the next request is answered
        "close-next" => return answer(stream, 200, "", b"{\"ok\":true}").await.is_ok() && wait_readable(stream).await,
        // bytes as given, then the connection stays open
        "raw" => stream.write_all(unescaped(argument).as_bytes()).await,
        // parts of bytes in hexadecimal, separated by commas: each of them but the first when the test says so
        "hex" => super::hex::send(stream, argument, &shared.calls).await,
        // bytes as given, then a reset
        "raw-reset" => {
            let _unsent = stream.write_all(unescaped(argument).as_bytes()).await;
            wait_for_reader(stream).await;
            return false;
        }
        "sse" => stream_text(stream, argument).await,
        // so many tokens, one every 50 milliseconds
        "slowly" => stream_slowly(stream, argument, 50).await,
        // so many tokens, one a second
        "lasting" => stream_slowly(stream, argument, 1000).await,
        // so many tokens, 100 ms apart
        "paced" => stream_slowly(stream, argument, 100).await,
        "prefill" => {
            wait_closed(stream).await;
            return false;
        }
        "on-call-ok" => answer(stream, 200, "", b"{\"ok\":true}").await,
        // a head and no token
        "frozen" => {
            let _unsent = stream.write_all(SSE_HEAD.as_bytes()).await;
            wait_closed(stream).await;
            return false;
        }
        // a head, comments and empty deltas, and no token
        "comments" => {
            repeat(stream, ": still here\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"\"}}]}\n\n").await;
            return false;
        }
        "on-call-fail" => answer(stream, 400, "", b"{\"error\":{\"message\":\"engine\"}}").await,
        // a stream that begins when the test says so
        "decode" | "on-call" => {
            repeat(stream, TOKEN).await;
            return false;
        }
        "cut" => {
            let _unsent = stream.write_all(SSE_HEAD.as_bytes()).await;
            let _unsent = stream.write_all(&chunk(TOKEN)).await;
            return false;
        }
        // so many bytes, as fast as they are taken
        "flood" => flood(stream, argument.parse().unwrap(), &shared.flooded).await,
        // another protocol, in which everything comes back
        "echo" => {
            echo(stream).await;
            return false;
        }
        // another protocol, in which the engine alone speaks
        "speak" => {
            let _unsent = stream.write_all(SWITCH).await;
            repeat_bytes(stream, b"frame").await;
            return false;
        }
        other => panic!("no such play: {other}"),
    };
    done.is_ok()
}

const SSE_HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
/// One generated token as an event.
pub(crate) const TOKEN: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n";

fn chunk(text: &str) -> Vec<u8> {
    format!("{:x}\r\n{text}\r\n", text.len()).into_bytes()
}

async fn answer(stream: &mut TcpStream, status: u16, headers: &str, body: &[u8]) -> std::io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat()).await
}

/// Streams a text with `\n` for line feeds and `|` where a chunk ends.
async fn stream_text(stream: &mut TcpStream, text: &str) -> std::io::Result<()> {
    stream.write_all(SSE_HEAD.as_bytes()).await?;
    for piece in unescaped(text).split('|').filter(|p| !p.is_empty()) {
        stream.write_all(&chunk(piece)).await?;
        tokio::task::yield_now().await;
    }
    stream.write_all(b"0\r\n\r\n").await
}

/// So many tokens, one every so many milliseconds.
async fn stream_slowly(stream: &mut TcpStream, tokens: &str, every: u64) -> std::io::Result<()> {
    stream.write_all(SSE_HEAD.as_bytes()).await?;
    for _ in 0..tokens.parse().unwrap() {
        stream.write_all(&chunk(TOKEN)).await?;
        tokio::time::sleep(Duration::from_millis(every)).await;
    }
    stream.write_all(b"0\r\n\r\n").await
}

async fn flood(stream: &mut TcpStream, size: usize, taken: &AtomicU64) -> std::io::Result<()> {
    stream.write_all(SSE_HEAD.as_bytes()).await?;
    let piece = vec![b'x'; 16 << 10];
    for _ in 0..size / piece.len() {
        stream.write_all(&[format!("{:x}\r\n", piece.len()).as_bytes(), &piece[..], b"\r\n"].concat()).await?;
        taken.fetch_add(piece.len() as u64, Relaxed);
    }
    stream.write_all(b"0\r\n\r\n").await
}

/// A play's text with its line ends.
fn unescaped(text: &str) -> String {
    text.replace("\\n", "\n").replace("\\r", "\r")
}

/// Time for the peer to read what was written before the connection goes.
async fn wait_for_reader(stream: &mut TcpStream) {
    let mut byte = [0];
    let _left = tokio::time::timeout(Duration::from_millis(100), stream.read(&mut byte)).await;
}

/// The same events every five milliseconds until the peer closes.
async fn repeat(stream: &mut TcpStream, events: &str) {
    let _unsent = stream.write_all(SSE_HEAD.as_bytes()).await;
    repeat_bytes(stream, &chunk(events)).await;
}

/// The same bytes every five milliseconds until the peer closes.
async fn repeat_bytes(stream: &mut TcpStream, bytes: &[u8]) {
    let mut byte = [0];
    loop {
        if stream.write_all(bytes).await.is_err() {
            return;
        }
        let pause = tokio::time::timeout(Duration::from_millis(5), stream.read(&mut byte));
        if let Ok(Ok(0) | Err(_)) = pause.await {
            return;
        }
    }
}

const SWITCH: &[u8] = b"HTTP/1.1 101 X\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n";

async fn echo(stream: &mut TcpStream) {
    let _unsent = stream.write_all(SWITCH).await;
    let mut buffer = vec![0; 4096];
    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
        if stream.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

async fn wait_closed(stream: &mut TcpStream) {
    let mut byte = [0];
    while let Ok(1..) = stream.read(&mut byte).await {}
}

async fn wait_readable(stream: &mut TcpStream) -> bool {
    let _ready = stream.readable().await;
    false
}
