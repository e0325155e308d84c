//! Clients over HTTP/1.1 and HTTP/2 that notice how a body ends: as it should, or cut.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Reason, RecvStream, SendStream};
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout_at};

use super::engine::{X_CHAOS, X_GENERATION};
use super::ledger::Ledger;
use super::plan::{Ask, Manner};
use super::wire::Wire;
use crate::num::{millis, size, to_float};

/// Nobody waits longer; the router gives up far earlier.
const PATIENCE: Duration = Duration::from_secs(60);
/// A body goes out in pieces of so many bytes.
const PIECE: usize = 30_000;
/// Windows that the largest answers fill, so that the router has to wait, and in which small frames may wait. When
/// unread frames lack more than half of a connection's window to 256 bytes each, the library (`h2` 0.4.20) breaks the
/// connection, with the answers of all who share it (`too_many_data_frames`): of the protocol's 64 KiB, 210 tokens do.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Room is given back in steps of so many bytes. Given back with each frame, to a router that waits for it, it is as
/// much as that frame, so is the next frame, each split leaves smaller ones, and a slow reader gets nothing but splinters.
const GIVEN_BACK: usize = 32 << 10;

/// How an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Whole,
    Cut,
    /// The client left.
    Left,
    /// Nothing came for far too long.
    Hung,
}

/// An answer as the client has it.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// `None` when no head came
    pub(crate) status: Option<u16>,
    pub(crate) generation: Option<String>,
    /// the router's own word for its error
    pub(crate) error: Option<String>,
    pub(crate) body: Vec<u8>,
    pub(crate) ending: Ending,
    /// what the client saw of a cut, by whom and with which code
    pub(crate) why: String,
}

impl Default for Outcome {
    fn default() -> Self {
        let (body, why) = (Vec::new(), String::new());
        Self { status: None, generation: None, error: None, body, ending: Ending::Cut, why }
    }
}

impl Outcome {
    fn head<'h>(&mut self, status: Option<u16>, get: impl Fn(&str) -> Option<&'h str>) {
        self.status = status;
        self.generation = get(X_GENERATION).map(str::to_owned);
        self.error = get("x-ramjet-error").map(str::to_owned);
    }
}

/// A connection that is kept from one request to the next.
#[derive(Debug)]
pub(crate) enum Connection {
    H1(Option<Wire>),
    /// shared by several clients
    H2(&'static Shared),
}

/// A connection over HTTP/2.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    sender: Mutex<Option<SendRequest<Bytes>>>,
    /// told when somebody breaks it: whatever an engine does, those who share it must not suffer
    ledger: Ledger,
}

impl Shared {
    pub(crate) fn new(ledger: &Ledger) -> Self {
        Self { sender: Mutex::default(), ledger: ledger.clone() }
    }
}

impl Connection {
    /// Asks, and reads the answer as the manner has it.
    pub(crate) async fn ask(&mut self, host: &str, id: u64, ask: &Ask) -> Outcome {
        let until = match ask.manner {
            Manner::Leaves(ms) => Instant::now() + millis(ms),
            _ => Instant::now() + PATIENCE,
        };
        let mut outcome = Outcome::default();
        let ended = match self {
            Connection::H1(kept) => timeout_at(until, h1(kept, host, id, ask, &mut outcome)).await,
            Connection::H2(shared) => timeout_at(until, h2(shared, host, id, ask, &mut outcome)).await,
        };
        let gave_up = if matches!(ask.manner, Manner::Leaves(_)) { Ending::Left } else { Ending::Hung };
        outcome.ending = match ended {
            Ok(Ok(ending)) => ending,
            Ok(Err(error)) => {
                outcome.why = error.to_string();
                Ending::Cut
            }
            Err(_) => gave_up,
        };
        if let (Connection::H1(kept), true) = (self, outcome.ending != Ending::Whole) {
            *kept = None;
        }
        outcome
    }
}

fn pause(manner: Manner) -> Option<Duration> {
    if let Manner::ReadsSlowly(ms) = manner { Some(millis(ms)) } else { None }
}

/// The part of the body that is sent.
fn offered(ask: &Ask) -> Bytes {
    match ask.manner {
        Manner::LeavesInBody(share) => ask.body.slice(..size(share * to_float(ask.body.len() as u64))),
        _ => ask.body.clone(),
    }
}

// === HTTP/1.1 ===

async fn h1(kept: &mut Option<Wire>, host: &str, id: u64, ask: &Ask, outcome: &mut Outcome) -> io::Result<Ending> {
    if kept.is_none() {
        *kept = Some(Wire::new(TcpStream::connect(host).await?));
    }
    let Some(wire) = kept.as_mut() else { return Ok(Ending::Cut) };
    let framing = if ask.is_chunked {
        "Transfer-Encoding: chunked".to_owned()
    } else {
        format!("Content-Length: {}", ask.body.len())
    };
    let path = ask.kind.path();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n{X_CHAOS}: {id}\r\n{framing}\r\n\r\n"
    );
    wire.write(head.as_bytes()).await?;
    let body = offered(ask);
    for piece in body.chunks(PIECE) {
        if ask.is_chunked {
            let framed = [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
            wire.write(&framed).await?;
        } else {
            wire.write(piece).await?;
        }
    }
    if body.len() < ask.body.len() {
        return Ok(Ending::Left);
    }
    if ask.is_chunked {
        wire.write(b"0\r\n\r\n").await?;
    }
    let Some(head) = wire.head().await? else { return Ok(Ending::Cut) };
    let status = head.first.split(' ').nth(1).and_then(|code| code.parse().ok());
    outcome.head(status, |name| head.get(name));
    let mut left = head.body(true);
    while let Some(piece) = wire.piece(&mut left).await? {
        outcome.body.extend_from_slice(&piece);
        if let Some(pause) = pause(ask.manner) {
            sleep(pause).await;
        }
    }
    if head.closes() {
        *kept = None;
    }
    Ok(Ending::Whole)
}

// === HTTP/2 ===

async fn h2(shared: &Shared, host: &str, id: u64, ask: &Ask, outcome: &mut Outcome) -> io::Result<Ending> {
    // in full: who broke it, with which code, and why
    let broken = |error: h2::Error| io::Error::other(format!("{error:?}"));
    let kept = shared.sender.lock().clone();
    let sender = match kept {
        Some(sender) => sender,
        None => connect(shared, host).await?,
    };
    let mut sender = sender.ready().await.map_err(|error| {
        *shared.sender.lock() = None;
        broken(error)
    })?;
    let mut request = http::Request::post(format!("http://{host}{}", ask.kind.path()))
        .header("content-type", "application/json")
        .header(X_CHAOS, id);
    if !ask.is_chunked {
        request = request.header("content-length", ask.body.len());
    }
    let request = request.body(()).map_err(io::Error::other)?;
    let (response, stream) = sender.send_request(request, false).map_err(broken)?;
    let mut upload = Upload(stream);
    let body = offered(ask);
    let is_part = body.len() < ask.body.len();
    // an answer may come, and the upload be of no use any more, before all is sent
    let sent = upload.send(body, !is_part).await;
    if is_part {
        return Ok(Ending::Left);
    }
    let response = match (response.await, sent) {
        (Ok(response), _) => response,
        (Err(error), _) => return Err(broken(error)),
    };
    let (head, body) = response.into_parts();
    outcome.head(Some(head.status.as_u16()), |name| head.headers.get(name).and_then(|value| value.to_str().ok()));
    download(body, ask.manner, outcome).await.map_err(broken)?;
    Ok(Ending::Whole)
}

async fn connect(shared: &Shared, host: &str) -> io::Result<SendRequest<Bytes>> {
    let stream = TcpStream::connect(host).await?;
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
    let (sender, connection) = builder.handshake(stream).await.map_err(io::Error::other)?;
    let ledger = shared.ledger.clone();
    // it ends with the last one who holds a sender; else somebody broke it
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            ledger.violation(format!("a connection of HTTP/2 broke: {error:?}"));
        }
    });
    // of two who connect at once, both go on and one is remembered
    *shared.sender.lock() = Some(sender.clone());
    Ok(sender)
}

/// A body on its way; given up, the stream is reset.
struct Upload(SendStream<Bytes>);

impl Drop for Upload {
    fn drop(&mut self) {
        self.0.send_reset(Reason::CANCEL);
    }
}

impl Upload {
    async fn send(&mut self, mut body: Bytes, ends: bool) -> Result<(), h2::Error> {
        while !body.is_empty() {
            self.0.reserve_capacity(body.len().min(PIECE));
            let Some(room) = std::future::poll_fn(|cx| self.0.poll_capacity(cx)).await else { return Ok(()) };
            let piece = body.split_to(room?.min(body.len()));
            self.0.send_data(piece, ends && body.is_empty())?;
        }
        Ok(())
    }
}

async fn download(mut body: RecvStream, manner: Manner, outcome: &mut Outcome) -> Result<(), h2::Error> {
    let mut taken = 0;
    while let Some(piece) = body.data().await {
        let piece = piece?;
        taken += piece.len();
        // the rest comes back with the stream's end
        if taken >= GIVEN_BACK {
            body.flow_control().release_capacity(std::mem::take(&mut taken))?;
        }
        outcome.body.extend_from_slice(&piece);
        if let Some(pause) = pause(manner) {
            sleep(pause).await;
        }
    }
    Ok(())
}

/// What one GET answers.
pub(crate) async fn get(host: &str, path: &str) -> Result<String, String> {
    let asked = async {
        let mut wire = Wire::new(TcpStream::connect(host).await?);
        wire.write(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").as_bytes()).await?;
        let head = wire.head().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let body = wire.whole(head.body(true)).await?;
        Ok::<_, io::Error>(String::from_utf8_lossy(&body).into_owned())
    };
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(answer) => answer.map_err(|error| format!("{host}{path}: {error}")),
        Err(_) => Err(format!("{host}{path} does not answer")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    /// Small and many: within the protocol's window, beyond what the library lets wait in it.
    const FRAME: &[u8] = &[b'x'; 100];
    const FRAMES: usize = 500;

    /// Answers each request on one connection, one after the other.
    async fn serve(listener: TcpListener) {
        let (stream, _) = listener.accept().await.unwrap();
        let mut connection = h2::server::handshake(stream).await.unwrap();
        while let Some(Ok((_, mut respond))) = connection.accept().await {
            let mut body = respond.send_response(http::Response::new(()), false).unwrap();
            (0..FRAMES).for_each(|n| body.send_data(Bytes::from_static(FRAME), n + 1 == FRAMES).unwrap());
        }
    }

    #[tokio::test]
    async fn one_who_reads_late_does_not_break_the_connection_of_all_who_share_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        tokio::spawn(serve(listener));
        let shared = Shared::default();
        let mut sender = connect(&shared, &host).await.unwrap();
        let mut answers = Vec::new();
        // who is asked first has sent all when the second answers
        for _ in 0..2 {
            let request = http::Request::get(format!("http://{host}/")).body(()).unwrap();
            let (answer, _) = sender.send_request(request, true).unwrap();
            answers.push(answer.await.unwrap().into_body());
        }
        for body in answers {
            let mut outcome = Outcome::default();
            download(body, Manner::Stays, &mut outcome).await.unwrap();
            assert_eq!(outcome.body.len(), FRAMES * FRAME.len());
        }
        assert_eq!(shared.ledger.violations(), Vec::<String>::new());
    }
}
