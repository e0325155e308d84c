//! Raw clients: HTTP/1.1 written by hand, HTTP/2 in clear text through `h2`.

use bytes::Bytes;
use h2::client::SendRequest;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// The value of a header, by its lower-case name.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// The body as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// A connection that can carry several requests.
pub(crate) struct H1 {
    pub(crate) stream: TcpStream,
    buffer: Vec<u8>,
}

impl H1 {
    pub(crate) async fn connect(addr: SocketAddr) -> std::io::Result<H1> {
        let stream = TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        Ok(H1 { stream, buffer: Vec::new() })
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// The next answer; informational ones are passed over.
    pub(crate) async fn answer(&mut self) -> std::io::Result<Answer> {
        loop {
            let head = self.head().await?;
            let status = head[9..12].parse().unwrap();
            if status >= 200 {
                let body = self.body(&head).await?;
                return Ok(Answer { status, head, body });
            }
        }
    }

    /// The next head, informational or not.
    pub(crate) async fn head(&mut self) -> std::io::Result<String> {
        let end = self.find(b"\r\n\r\n").await? + 4;
        let head = self.buffer.drain(..end).collect();
        Ok(String::from_utf8(head).unwrap())
    }

    /// The body behind a head.
    pub(crate) async fn body(&mut self, head: &str) -> std::io::Result<Vec<u8>> {
        let lower = head.to_ascii_lowercase();
        if lower.contains("transfer-encoding: chunked") {
            return self.chunked().await;
        }
        let length =
            lower.split("content-length:").nth(1).map_or(0, |r| r.lines().next().unwrap().trim().parse().unwrap());
        self.take(length).await
    }

    async fn chunked(&mut self) -> std::io::Result<Vec<u8>> {
        let mut out = Vec::new();
        loop {
            let end = self.find(b"\r\n").await?;
            let size: Vec<u8> = self.buffer.drain(..end + 2).take(end).collect();
            let size = usize::from_str_radix(std::str::from_utf8(&size).unwrap(), 16).unwrap();
            let piece = self.take(size + 2).await?;
            out.extend_from_slice(&piece[..size]);
            if size == 0 {
                return Ok(out);
            }
        }
    }

    /// The next bytes, whatever they are.
    pub(crate) async fn take(&mut self, count: usize) -> std::io::Result<Vec<u8>> {
        while self.buffer.len() < count {
            self.more().await?;
        }
        Ok(self.buffer.drain(..count).collect())
    }

    async fn find(&mut self, what: &[u8]) -> std::io::Result<usize> {
        loop {
            if let Some(at) = memchr::memmem::find(&self.buffer, what) {
                return Ok(at);
            }
            self.more().await?;
        }
    }

    async fn more(&mut self) -> std::io::Result<()> {
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

/// The head of a chat request with the header lines `headers` (each ended by CRLF).
pub(crate) fn chat_head(headers: &str) -> String {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: ramjet.test\r\ncontent-type: application/json\r\n{headers}\r\n"
    )
}

/// One GET on a connection of its own.
pub(crate) async fn get(addr: SocketAddr, path: &str) -> std::io::Result<Answer> {
    let mut h1 = H1::connect(addr).await?;
    h1.stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: {addr}\r\n\r\n").as_bytes()).await?;
    h1.answer().await
}

/// One POST on a connection of its own, with the part that the engine should play.
pub(crate) async fn post(addr: SocketAddr, path: &str, play: &str, body: &str) -> std::io::Result<Answer> {
    let mut h1 = H1::connect(addr).await?;
    let head = chat_head(&format!("x-play: {play}\r\ncontent-length: {}\r\n", body.len()));
    let head = head.replacen("/v1/chat/completions", path, 1).replacen("ramjet.test", &addr.to_string(), 1);
    h1.stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).await?;
    h1.answer().await
}

/// One chat request on a connection of its own, with the part that the engine should play.
pub(crate) async fn chat(addr: SocketAddr, play: &str, body: &[u8]) -> std::io::Result<Answer> {
    begin_chat(addr, play, body).await?.answer().await
}

/// The same, its answer not read yet.
pub(crate) async fn begin_chat(addr: SocketAddr, play: &str, body: &[u8]) -> std::io::Result<H1> {
    let mut h1 = H1::connect(addr).await?;
    let head = chat_head(&format!("x-play: {play}\r\ncontent-length: {}\r\n", body.len()));
    h1.stream.write_all(&[head.as_bytes(), body].concat()).await?;
    Ok(h1)
}

/// An HTTP/2 connection in clear text, with prior knowledge.
pub(crate) async fn h2_connect(addr: SocketAddr) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(addr).await.unwrap();
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(async move {
        let _closed = connection.await;
    });
    sender.ready().await.unwrap()
}

/// A chat request over HTTP/2.
pub(crate) fn h2_request(play: &str, length: Option<usize>) -> http::Request<()> {
    let mut request = http::Request::post("http://ramjet.test/v1/chat/completions").header("x-play", play);
    if let Some(length) = length {
        request = request.header("content-length", length);
    }
    request.body(()).unwrap()
}

/// Sends a whole body, minding the peer's window.
pub(crate) async fn h2_send_body(stream: &mut h2::SendStream<Bytes>, mut body: Bytes) {
    while !body.is_empty() {
        stream.reserve_capacity(body.len());
        let room = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await.unwrap().unwrap();
        let piece = body.split_to(room.min(body.len()));
        stream.send_data(piece, body.is_empty()).unwrap();
    }
}
