//! An answer that its engine cut ends at the client as something that was cut, whatever its framing and at whatever moment
//! the connection went: thousands at random moments, beside whole ones, many at a time.

use crate::support::chat_body;
use crate::support::client::{self, H1, chat_head, h2_connect, h2_send_body};
use crate::support::engine::{Engine, TOKEN};
use crate::support::ramjet::{Ramjet, Start};
use bytes::Bytes;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

const REQUESTS: u64 = 3000;
const AT_ONCE: usize = 48;
const DONE: &str = "data: [DONE]\n\n";

/// What the engine does with one request, from its number alone.
#[derive(Clone, Debug)]
struct Part {
    framing: Framing,
    body: String,
    /// After so many bytes of the body the connection goes.
    cut: Option<usize>,
    pieces: usize,
    /// Before each piece and before the end.
    pause: Duration,
    /// By a reset; else politely.
    resets: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Framing {
    Close,
    Chunked,
    Length,
}

/// A number that looks random and depends on `n` alone.
fn scatter(n: u64) -> u64 {
    xxhash_rust::xxh3::xxh3_64(&n.to_le_bytes())
}

fn part(n: u64) -> Part {
    let dice = scatter(n);
    let framing = [Framing::Close, Framing::Close, Framing::Chunked, Framing::Length][(dice % 4) as usize];
    let tokens = 2 + (dice >> 4) as usize % 60;
    let body = TOKEN.repeat(tokens) + DONE;
    let cut = (dice >> 12 & 7 != 0).then(|| (dice >> 16) as usize % body.len());
    let pieces = 1 + (dice >> 32) as usize % 8;
    let pause = Duration::from_micros((dice >> 40) % 3000);
    Part { framing, body, cut, pieces, pause, resets: dice >> 63 == 0 }
}

/// An engine that plays the part whose number stands in `x-part`.
async fn engine() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(connection(stream));
        }
    });
    addr
}

async fn connection(mut stream: TcpStream) -> Option<()> {
    stream.set_nodelay(true).unwrap();
    let mut buffer = Vec::new();
    loop {
        let (head, _) = crate::support::wire::read_request(&mut stream, &mut buffer).await?;
        let Some(n) = head.lines().find_map(|line| line.strip_prefix("x-part: ")) else {
            let models = b"HTTP/1.1 200 X\r\ncontent-length: 23\r\n\r\n{\"object\":1,\"data\":[] }";
            stream.write_all(models).await.ok()?;
            continue;
        };
        if !play(&mut stream, &part(n.parse().unwrap())).await? {
            return None;
        }
    }
}

/// Plays a part; whether the connection stays.
async fn play(stream: &mut TcpStream, part: &Part) -> Option<bool> {
    if part.cut.is_some() && part.resets {
        // at whatever moment it is dropped
        stream.set_zero_linger().unwrap();
    }
    let framing = match part.framing {
        Framing::Close => String::new(),
        Framing::Chunked => "transfer-encoding: chunked\r\n".to_owned(),
        Framing::Length => format!("content-length: {}\r\n", part.body.len()),
    };
    let head = format!("HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\n{framing}\r\n");
    stream.write_all(head.as_bytes()).await.ok()?;
    let sent = &part.body.as_bytes()[..part.cut.unwrap_or(part.body.len())];
    for piece in sent.chunks(sent.len() / part.pieces + 1) {
        tokio::time::sleep(part.pause).await;
        let framed = match part.framing {
            Framing::Chunked => [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat(),
            _ => piece.to_vec(),
        };
        stream.write_all(&framed).await.ok()?;
    }
    if part.cut.is_some() {
        tokio::time::sleep(part.pause).await;
        return Some(false);
    }
    if part.framing == Framing::Chunked {
        stream.write_all(b"0\r\n\r\n").await.ok()?;
    }
    Some(part.framing != Framing::Close)
}

/// For a status: the stream was reset, and its head, which waited to be written, with it.
const RESET: u16 = 0;

/// An answer's status, and its body if it ended as a whole one.
async fn ask(api: SocketAddr, n: u64) -> Option<(u16, Option<Vec<u8>>)> {
    let body = chat_body(200 + (n % 1000) as usize, "\"stream\":true,");
    if n.is_multiple_of(3) {
        let mut sender = h2_connect(api).await;
        let request = http::Request::post("http://ramjet.test/v1/chat/completions").header("x-part", n);
        let (response, mut stream) = sender.send_request(request.body(()).unwrap(), false).unwrap();
        h2_send_body(&mut stream, Bytes::from(body)).await;
        let response = match response.await {
            Ok(response) => response,
            // one that may be sent again by whoever likes was never answered
            Err(e) => return e.reason().filter(|why| *why != h2::Reason::REFUSED_STREAM).map(|_| (RESET, None)),
        };
        let (status, mut stream, mut whole) = (response.status().as_u16(), response.into_body(), Vec::new());
        while let Some(piece) = stream.data().await {
            let Ok(piece) = piece else { return Some((status, None)) };
            stream.flow_control().release_capacity(piece.len()).unwrap();
            whole.extend_from_slice(&piece);
        }
        return Some((status, Some(whole)));
    }
    let mut h1 = H1::connect(api).await.ok()?;
    h1.send(chat_head(&format!("x-part: {n}\r\ncontent-length: {}\r\n", body.len())).as_bytes()).await;
    h1.send(&body).await;
    let head = h1.head().await.ok()?;
    Some((head[9..12].parse().unwrap(), h1.body(&head).await.ok()))
}

#[derive(Default)]
struct Tally {
    next: AtomicU64,
    whole: AtomicU64,
    cut: AtomicU64,
    errors: AtomicU64,
}

async fn one(api: SocketAddr, n: u64, tally: &Tally) {
    let part = part(n);
    let (status, body) = ask(api, n).await.unwrap_or_else(|| panic!("request {n} had no answer: {part:?}"));
    match (status, body) {
        (200, Some(body)) => {
            assert!(part.cut.is_none(), "request {n} came to its end: {part:?}");
            assert_eq!(String::from_utf8(body).unwrap(), part.body, "request {n}");
            tally.whole.fetch_add(1, Relaxed);
        }
        (200, None) => {
            assert!(part.cut.is_some(), "request {n} was cut: {part:?}");
            tally.cut.fetch_add(1, Relaxed);
        }
        (RESET, _) => {
            assert!(part.cut.is_some(), "request {n} was reset: {part:?}");
            tally.errors.fetch_add(1, Relaxed);
        }
        // a reset may overtake the head; an answer that ends within one piece is known to be cut before it is begun
        (502, _) => {
            let may_be_lost = part.resets || part.framing == Framing::Close;
            assert!(part.cut.is_some() && may_be_lost, "request {n}: {part:?}");
            tally.errors.fetch_add(1, Relaxed);
        }
        (other, _) => panic!("request {n}: {other}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_was_cut_never_ends_as_if_it_were_whole() {
    let (a, b) = (engine().await, engine().await);
    // what fails so often would be fenced, and what is fenced is not asked
    let config = "routing: { policy: round_robin }";
    let ramjet = Arc::new(Ramjet::start_with(Start { upstreams: &[a, b], config, ..Start::default() }).await);
    let tally = Arc::new(Tally::default());
    let clients: Vec<_> = (0..AT_ONCE)
        .map(|_| {
            let (ramjet, tally) = (ramjet.clone(), tally.clone());
            tokio::spawn(async move {
                loop {
                    match tally.next.fetch_add(1, Relaxed) {
                        n if n >= REQUESTS => return,
                        n => one(ramjet.api, n, &tally).await,
                    }
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
    let [whole, cut] = [&tally.whole, &tally.cut].map(|count| count.load(Relaxed));
    // it means something as long as there were many of both
    assert!(whole > REQUESTS / 20 && cut > REQUESTS / 3, "{whole} whole, {cut} cut");
    ramjet.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_ends_with_its_connection_is_whole_where_its_protocol_says_so_or_says_nothing() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let finish = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    let failure = "data: {\"error\":{\"message\":\"core died\"}}\n\n";
    for (events, is_whole) in [
        (TOKEN.to_owned() + finish, true),
        (TOKEN.to_owned() + DONE, true),
        (TOKEN.to_owned() + failure, true),
        // of another protocol, which only those who speak it know
        ("data: {\"token\":\"x\"}\n\n".to_owned(), true),
        (TOKEN.to_owned(), false),
        (TOKEN.to_owned() + DONE.trim_end(), false),
        (": still here\n\n".to_owned(), false),
    ] {
        let head = "HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\n\r\n";
        let play = format!("raw-reset={head}{events}").replace('\n', "\\n").replace('\r', "\\r");
        let answer = client::chat(ramjet.api, &play, &chat_body(500, "")).await;
        match answer {
            // known to be cut before its head was sent on
            Ok(answer) if answer.status == 502 => assert!(!is_whole, "{events}"),
            Ok(answer) => assert!(is_whole && answer.body == events.as_bytes(), "{events}"),
            Err(_cut) => assert!(!is_whole, "{events}"),
        }
    }
    ramjet.settled().await;
}
