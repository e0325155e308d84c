//! Engines that go wrong as planned, request by request, and now and then altogether: they refuse connections, say 503 to
//! everything, or freeze.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::ledger::{End, Entry, Ledger};
use super::plan::{self, Answer, Fault, Framing, Kind};
use super::wire::{Head, Wire};
use crate::num::{Rng, millis, size};

/// Names the generation that an answer comes from.
pub(crate) const X_GENERATION: &str = "x-generation";
/// Names the request.
pub(crate) const X_CHAOS: &str = "x-chaos";
/// Longer than the router waits for a byte.
const SILENCE: Duration = Duration::from_secs(20);
/// What was sent before a reset must have time to arrive.
const BEFORE_RESET: Duration = Duration::from_millis(60);
const BIND_AGAIN: Duration = Duration::from_millis(20);

/// What is wrong with a whole engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    Well,
    Refuses,
    Unavailable,
    Frozen,
}

/// A running fleet; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) urls: Vec<String>,
    _tasks: JoinSet<()>,
}

#[derive(Clone)]
struct Engine {
    number: usize,
    seed: u64,
    ledger: Ledger,
    mood: watch::Receiver<Mood>,
}

impl Fleet {
    pub(crate) async fn start(count: usize, seed: u64, ledger: &Ledger) -> Result<Self, String> {
        let (mut tasks, mut urls, mut moods) = (JoinSet::new(), Vec::new(), Vec::new());
        for number in 0..count {
            let listener = TcpListener::bind("127.0.0.1:0").await.map_err(|error| format!("no free port: {error}"))?;
            let address = listener.local_addr().map_err(|error| error.to_string())?;
            urls.push(format!("http://{address}"));
            let (change, mood) = watch::channel(Mood::Well);
            moods.push(change);
            tasks.spawn(serve(Engine { number, seed, ledger: ledger.clone(), mood }, listener, address));
        }
        tasks.spawn(change_moods(moods, Rng::of(&[seed, 5])));
        Ok(Self { urls, _tasks: tasks })
    }
}

/// One engine at a time is unwell, for a second or two, every few seconds.
async fn change_moods(moods: Vec<watch::Sender<Mood>>, mut rng: Rng) {
    loop {
        tokio::time::sleep(millis(rng.between(2000.0, 8000.0))).await;
        let at = size(rng.unit() * moods.len() as f64).min(moods.len() - 1);
        let mood = [Mood::Refuses, Mood::Unavailable, Mood::Frozen][size(rng.unit() * 3.0).min(2)];
        moods[at].send_replace(mood);
        tokio::time::sleep(millis(rng.between(300.0, 2500.0))).await;
        moods[at].send_replace(Mood::Well);
    }
}

async fn serve(engine: Engine, listener: TcpListener, address: SocketAddr) {
    let mut mood = engine.mood.clone();
    let mut listener = Some(listener);
    loop {
        if mood.wait_for(|mood| *mood != Mood::Refuses).await.is_err() {
            return;
        }
        let open = match listener.take() {
            Some(open) => open,
            None => match TcpListener::bind(address).await {
                Ok(open) => open,
                Err(_) => {
                    tokio::time::sleep(BIND_AGAIN).await;
                    continue;
                }
            },
        };
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = open.accept() => if let Ok((stream, _)) = accepted {
                    connections.spawn(connection(engine.clone(), Wire::new(stream)));
                },
                Some(_) = connections.join_next() => {}
                // the listener goes, and all connections with it
                _ = mood.wait_for(|mood| *mood == Mood::Refuses) => break,
            }
        }
    }
}

/// Serves requests until the connection ends, by whose will ever.
async fn connection(engine: Engine, mut wire: Wire) {
    while let Ok(Some(head)) = wire.head().await {
        let Ok(body) = wire.whole(head.body(false)).await else { return };
        let asked = head.get(X_CHAOS).and_then(|id| id.parse().ok());
        let asked = asked.map(|id| (id, begin(&engine, id, &head, &body)));
        let mut mood = engine.mood.clone();
        if mood.wait_for(|mood| *mood != Mood::Frozen).await.is_err() {
            return;
        }
        let is_unavailable = *engine.mood.borrow() == Mood::Unavailable;
        let goes_on = match &asked {
            Some((id, entry)) if is_unavailable => {
                entry.fault(Fault::Status { code: 503, comes_back: false });
                status(&mut wire, entry, *id, 503, false).await
            }
            Some((id, entry)) => attempt(&engine, &mut wire, *id, entry).await,
            None => probe(&mut wire, &head, is_unavailable).await,
        };
        if let (None, Some((_, entry))) = (goes_on, &asked) {
            entry.end(End::Left);
        }
        if goes_on != Some(true) {
            return;
        }
    }
}

/// Books the request and checks that it is what the client sent.
fn begin(engine: &Engine, id: u64, head: &Head, body: &[u8]) -> Entry {
    let ask = plan::ask(engine.seed, id);
    if ask.body != body {
        engine.ledger.violation(format!("request {id} arrived altered: {} of {} bytes", body.len(), ask.body.len()));
    }
    let wanted = format!("POST {} HTTP/1.1", ask.kind.path());
    if head.first != wanted {
        engine.ledger.violation(format!("request {id} arrived as {:?}, not {wanted:?}", head.first));
    }
    engine.ledger.begin(id, engine.number)
}

/// The router's own questions.
async fn probe(wire: &mut Wire, head: &Head, is_unavailable: bool) -> Option<bool> {
    let (status, body) = match head.first.split(' ').nth(1) {
        _ if is_unavailable => ("503 Service Unavailable", r#"{"error":{"message":"not now"}}"#),
        Some("/v1/models") => ("200 OK", r#"{"object":"list","data":[{"id":"chaos","object":"model"}]}"#),
        Some(path) if path.starts_with("/v1/") => {
            let body = r#"{"choices":[{"text":"x","message":{"content":"x"},"finish_reason":"length"}],"usage":{"prompt_tokens":1,"completion_tokens":1}}"#;
            ("200 OK", body)
        }
        _ => ("404 Not Found", "{}"),
    };
    let length = body.len();
    let text = format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}");
    wire.write(text.as_bytes()).await.ok().map(|()| true)
}

/// Answers as planned. Whether the connection goes on; `None` when the router has hung up.
async fn attempt(engine: &Engine, wire: &mut Wire, id: u64, entry: &Entry) -> Option<bool> {
    let ask = plan::ask(engine.seed, id);
    let answer = plan::answer(engine.seed, id, entry.number, ask.kind, ask.streams);
    let fault = plan::fault(engine.seed, id, entry.number, &answer, ask.streams);
    entry.fault(fault);
    match fault {
        Fault::Lost { resets } => {
            entry.end(End::Lost);
            hang_up(&wire.stream, resets);
            Some(false)
        }
        Fault::Status { code, comes_back } => status(wire, entry, id, code, comes_back).await,
        Fault::Garbage => {
            entry.end(End::Final);
            wire.write(b"\x15\x03\x01 nonsense \r\n\r\n").await.ok().map(|()| false)
        }
        Fault::HalfHead => {
            entry.end(End::Half);
            wire.write(b"HTTP/1.1 200 OK\r\nContent-Type: applic").await.ok().map(|()| false)
        }
        Fault::Silent => {
            tokio::time::sleep(SILENCE).await;
            None
        }
        _ => speak(wire, entry, &name_of(id, entry), &answer, fault, ask.kind).await,
    }
}

fn name_of(id: u64, entry: &Entry) -> String {
    plan::name(id, entry.number)
}

async fn status(wire: &mut Wire, entry: &Entry, id: u64, code: u16, comes_back: bool) -> Option<bool> {
    entry.end(if comes_back || !matches!(code, 502 | 503) { End::Final } else { End::Refused });
    let (name, body) = (name_of(id, entry), plan::error_body(id, entry.number));
    let later = if comes_back { "Retry-After: 1\r\n" } else { "" };
    let length = body.len();
    let text = format!(
        "HTTP/1.1 {code} Chaos\r\nContent-Type: application/json\r\n{X_GENERATION}: {name}\r\n{later}Content-Length: {length}\r\n\r\n{body}"
    );
    wire.write(text.as_bytes()).await.ok().map(|()| true)
}

/// Head and body in pieces, up to where it goes wrong.
async fn speak(wire: &mut Wire, entry: &Entry, name: &str, answer: &Answer, fault: Fault, kind: Kind) -> Option<bool> {
    let (length, is_whole) = fault.sends(answer.body.len(), kind);
    if let Fault::Cut { resets, .. } = fault {
        // before a byte of it: all connections of an engine may go at any time, and this one would end politely then
        hang_up(&wire.stream, resets);
    }
    let framing = match answer.framing {
        Framing::Length => format!("Content-Length: {}\r\n", answer.body.len()),
        Framing::Chunked => "Transfer-Encoding: chunked\r\n".to_owned(),
        Framing::Close => "Connection: close\r\n".to_owned(),
    };
    let content_type = answer.content_type;
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\n{X_GENERATION}: {name}\r\n{framing}\r\n");
    wire.write(head.as_bytes()).await.ok()?;
    entry.sent(0);
    let mut rng = Rng::of(&[length as u64, 6]);
    let mut left = &answer.body[..length];
    while !left.is_empty() {
        let most = if length > 50_000 { 20_000.0 } else { 900.0 };
        let (piece, rest) = left.split_at(left.len().min(size(rng.between(1.0, most)) + 1));
        left = rest;
        let pause = if let Fault::Slow(ms) = fault { ms } else { rng.between(0.0, 6.0) };
        tokio::time::sleep(millis(pause)).await;
        let framed = match answer.framing {
            Framing::Chunked => [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat(),
            _ => piece.to_vec(),
        };
        entry.speaks();
        wire.write(&framed).await.ok()?;
        entry.sent(piece.len());
    }
    entry.speaks();
    if !is_whole {
        return go_wrong(wire, entry, fault).await;
    }
    if answer.framing == Framing::Chunked {
        wire.write(b"0\r\n\r\n").await.ok()?;
    }
    entry.end(End::Whole);
    Some(answer.framing != Framing::Close && fault != Fault::ClosesAfter)
}

/// In the middle of a body.
async fn go_wrong(wire: &mut Wire, entry: &Entry, fault: Fault) -> Option<bool> {
    entry.end(End::Cut);
    match fault {
        Fault::Stall { .. } => tokio::time::sleep(SILENCE).await,
        Fault::BadChunk { .. } => wire.write(b"zz\r\nno chunk\r\n").await.ok()?,
        Fault::Cut { .. } => tokio::time::sleep(BEFORE_RESET).await,
        _ => {}
    }
    Some(false)
}

/// Settles whether a reset goes out when the connection is dropped.
fn hang_up(stream: &TcpStream, resets: bool) {
    if resets {
        // without it the connection ends politely, which is a fault as well
        let _ = stream.set_zero_linger();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::wire::Left;

    const SEED: u64 = 7;

    /// A request whose first answer has no framing and is to be reset.
    fn cut() -> (u64, usize) {
        let cut = |id: u64| {
            let ask = plan::ask(SEED, id);
            let answer = plan::answer(SEED, id, 0, ask.kind, ask.streams);
            match plan::fault(SEED, id, 0, &answer, ask.streams) {
                Fault::Cut { at: at @ 1.., resets: true } if answer.framing == Framing::Close => Some((id, at)),
                _ => None,
            }
        };
        (0..).find_map(cut).unwrap()
    }

    #[tokio::test]
    async fn an_engine_that_goes_before_a_planned_reset_ends_no_answer_politely() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (moods, mood) = watch::channel(Mood::Well);
        let engine = Engine { number: 0, seed: SEED, ledger: Ledger::default(), mood };
        let running = tokio::spawn(serve(engine, listener, address));
        let (id, at) = cut();
        let ask = plan::ask(SEED, id);
        let mut router = Wire::new(TcpStream::connect(address).await.unwrap());
        let (path, length) = (ask.kind.path(), ask.body.len());
        let head = format!("POST {path} HTTP/1.1\r\n{X_CHAOS}: {id}\r\ncontent-length: {length}\r\n\r\n");
        router.write(head.as_bytes()).await.unwrap();
        router.write(&ask.body).await.unwrap();
        let mut left = router.head().await.unwrap().unwrap().body(true);
        assert_eq!(left, Left::UntilClose);
        let mut came = 0;
        while came < at {
            came += router.piece(&mut left).await.unwrap().unwrap().len();
        }
        // all of it came; the reset waits a while
        moods.send_replace(Mood::Refuses);
        let end = router.piece(&mut left).await.unwrap_err();
        assert_eq!(end.kind(), std::io::ErrorKind::ConnectionReset);
        running.abort();
    }
}
