//! Clients that ask without end and note whatever goes wrong: streams and short requests, over kept HTTP/1.1 connections and
//! over HTTP/2.

use super::client::{self, H1};
use super::{chat_body, engine::TOKEN};
use bytes::Bytes;
use h2::client::SendRequest;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What clients met.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) stop: AtomicBool,
    pub(crate) streams: AtomicU64,
    pub(crate) requests: AtomicU64,
    pub(crate) failures: Mutex<Vec<String>>,
    /// Connections that the server ended in good order.
    pub(crate) goodbyes: AtomicU64,
}

/// What is asked again and again: a stream of so many tokens, 100 ms apart, or a short request every 5 ms.
#[derive(Clone, Copy)]
pub(crate) enum Ask {
    Stream(usize),
    Short,
}

impl Tally {
    pub(crate) fn fail(&self, what: String) {
        self.failures.lock().unwrap().push(what);
    }

    pub(crate) fn goes_on(&self) -> bool {
        !self.stop.load(Relaxed)
    }

    /// Takes in a whole answer; what is cut is a failure.
    async fn take(&self, ask: Ask, status: u16, body: &[u8]) {
        match ask {
            _ if status != 200 => self.fail(format!("status {status}")),
            Ask::Stream(tokens) if body != TOKEN.repeat(tokens).as_bytes() => {
                self.fail(format!("a stream of {} tokens", body.len() / TOKEN.len()));
            }
            Ask::Stream(_) => drop(self.streams.fetch_add(1, Relaxed)),
            Ask::Short => {
                self.requests.fetch_add(1, Relaxed);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
}

impl Ask {
    fn play(self) -> String {
        match self {
            Ask::Stream(tokens) => format!("paced={tokens}"),
            Ask::Short => String::new(),
        }
    }

    fn body(self) -> Vec<u8> {
        match self {
            Ask::Stream(_) => chat_body(600, "\"stream\":true,"),
            Ask::Short => chat_body(600, ""),
        }
    }
}

/// One request after the other over a kept connection; a new one only where the last answer said so.
pub(crate) async fn over_h1(api: SocketAddr, tally: Arc<Tally>, ask: Ask) {
    let body = ask.body();
    let head = client::chat_head(&format!("x-play: {}\r\ncontent-length: {}\r\n", ask.play(), body.len()));
    let request = [head.as_bytes(), &body].concat();
    let mut open = None;
    while tally.goes_on() {
        let mut h1 = match open.take() {
            Some(h1) => h1,
            None => match H1::connect(api).await {
                Ok(h1) => h1,
                Err(e) => {
                    tally.fail(format!("a connection: {e}"));
                    continue;
                }
            },
        };
        h1.send(&request).await;
        match h1.answer().await {
            Ok(answer) => {
                let closes = answer.header("connection") == Some("close");
                tally.goodbyes.fetch_add(closes.into(), Relaxed);
                open = (!closes).then_some(h1);
                tally.take(ask, answer.status, &answer.body).await;
            }
            Err(e) => tally.fail(format!("over HTTP/1.1: {e}")),
        }
    }
}

/// So many at a time over one HTTP/2 connection, anew where the server says goodbye. What it says it has not seen is sent
/// again; any other end is a failure.
pub(crate) async fn over_h2(api: SocketAddr, tally: Arc<Tally>, ask: Ask, at_a_time: usize) {
    while tally.goes_on() {
        let stream = tokio::net::TcpStream::connect(api).await.unwrap();
        let (sender, connection) = h2::client::handshake(stream).await.unwrap();
        let connection = tokio::spawn(connection);
        let mut open = tokio::task::JoinSet::new();
        (0..at_a_time).for_each(|_| drop(open.spawn(one_after_the_other(sender.clone(), tally.clone(), ask))));
        drop(sender);
        while let Some(ended) = open.join_next().await {
            ended.unwrap();
        }
        if let Err(e) = connection.await.unwrap()
            && !is_goodbye(&e)
        {
            tally.fail(format!("an HTTP/2 connection: {e}"));
        }
        tally.goodbyes.fetch_add(tally.goes_on().into(), Relaxed);
    }
}

fn is_goodbye(e: &h2::Error) -> bool {
    e.is_go_away() && e.is_remote() && e.reason() == Some(h2::Reason::NO_ERROR)
}

async fn one_after_the_other(mut sender: SendRequest<Bytes>, tally: Arc<Tally>, ask: Ask) {
    let body = Bytes::from(ask.body());
    while tally.goes_on() {
        let asked = async {
            sender = sender.clone().ready().await?;
            let (answer, mut upload) = sender.send_request(client::h2_request(&ask.play(), Some(body.len())), false)?;
            upload.send_data(body.clone(), true)?;
            let mut answer = answer.await?;
            let mut all = Vec::new();
            while let Some(piece) = answer.body_mut().data().await {
                let piece = piece?;
                answer.body_mut().flow_control().release_capacity(piece.len())?;
                all.extend_from_slice(&piece);
            }
            Ok::<_, h2::Error>((answer.status().as_u16(), all))
        };
        match asked.await {
            Ok((status, all)) => tally.take(ask, status, &all).await,
            Err(e) if is_goodbye(&e) => return,
            Err(e) => return tally.fail(format!("over HTTP/2: {e}")),
        }
    }
}
