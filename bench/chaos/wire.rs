//! HTTP/1.1 by hand, both sides: a library would hide just what this is about, such as whether a body has ended or was
//! cut.

use std::io::{self, ErrorKind};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longer heads are nobody's here.
const MAX_HEAD: usize = 64 << 10;

/// Read at once, if there is so much.
const READ: usize = 16 << 10;

/// A connection with what was read ahead.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) stream: TcpStream,
    ahead: BytesMut,
}

/// The head of a request or an answer.
#[derive(Debug, Default)]
pub(crate) struct Head {
    /// request or status line
    pub(crate) first: String,
    fields: Vec<(String, String)>,
}

/// What is left of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    Bytes(u64),
    /// chunks follow; so much of the current one
    Chunks(u64),
    /// everything up to the end of the connection
    UntilClose,
    Nothing,
}

impl Head {
    /// The field of this name, in small letters.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }

    /// The body that follows. `is_answer`: one without a length ends with the connection.
    pub(crate) fn body(&self, is_answer: bool) -> Left {
        if self.get("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
            return Left::Chunks(0);
        }
        match self.get("content-length").and_then(|length| length.parse().ok()) {
            Some(0) => Left::Nothing,
            Some(length) => Left::Bytes(length),
            None if is_answer => Left::UntilClose,
            None => Left::Nothing,
        }
    }

    /// Whether the connection ends with this message.
    pub(crate) fn closes(&self) -> bool {
        self.get("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }
}

impl Wire {
    pub(crate) fn new(stream: TcpStream) -> Self {
        // latency only; a socket that refuses is no less a socket
        let _ = stream.set_nodelay(true);
        Self { stream, ahead: BytesMut::new() }
    }

    /// The next head; `None` when the connection ends between messages.
    pub(crate) async fn head(&mut self) -> io::Result<Option<Head>> {
        let end = loop {
            if let Some(at) = memchr::memmem::find(&self.ahead, b"\r\n\r\n") {
                break at;
            }
            if self.ahead.len() > MAX_HEAD {
                return Err(io::Error::new(ErrorKind::InvalidData, "a head that does not end"));
            }
            if self.more().await? == 0 {
                return if self.ahead.is_empty() { Ok(None) } else { Err(ErrorKind::UnexpectedEof.into()) };
            }
        };
        let text = String::from_utf8_lossy(&self.ahead.split_to(end + 4)).into_owned();
        let mut lines = text.trim_end().split("\r\n");
        let first = lines.next().unwrap_or_default().to_owned();
        let fields = lines.filter_map(|line| line.split_once(':'));
        let fields = fields.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned())).collect();
        Ok(Some(Head { first, fields }))
    }

    /// The next piece of a body; `None` at its proper end.
    ///
    /// # Errors
    /// `UnexpectedEof` when it is cut, `InvalidData` when it is no body.
    pub(crate) async fn piece(&mut self, left: &mut Left) -> io::Result<Option<Bytes>> {
        if let Left::Chunks(0) = left {
            let length = self.chunk_head().await?;
            *left = if length == 0 { Left::Nothing } else { Left::Chunks(length) };
        }
        if *left == Left::Nothing {
            return Ok(None);
        }
        if self.ahead.is_empty() && self.more().await? == 0 {
            return if *left == Left::UntilClose { Ok(None) } else { Err(ErrorKind::UnexpectedEof.into()) };
        }
        let most = match left {
            Left::Bytes(n) | Left::Chunks(n) => *n,
            _ => u64::MAX,
        };
        let take = self.ahead.len().min(crate::num::to_size(most));
        let piece = self.ahead.split_to(take).freeze();
        match left {
            Left::Bytes(n) => *left = if *n == take as u64 { Left::Nothing } else { Left::Bytes(*n - take as u64) },
            Left::Chunks(n) => {
                let rest = *n - take as u64;
                if rest == 0 {
                    self.line_end().await?;
                }
                *left = Left::Chunks(rest);
            }
            _ => {}
        }
        Ok(Some(piece))
    }

    /// All of a body.
    pub(crate) async fn whole(&mut self, mut left: Left) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        while let Some(piece) = self.piece(&mut left).await? {
            out.extend_from_slice(&piece);
        }
        Ok(out)
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// The length of the next chunk; of the last one, the trailers are read as well.
    async fn chunk_head(&mut self) -> io::Result<u64> {
        let line = self.line().await?;
        let length = std::str::from_utf8(&line).ok().and_then(|line| u64::from_str_radix(line, 16).ok());
        let length = length.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "no chunk"))?;
        if length == 0 {
            while !self.line().await?.is_empty() {}
        }
        Ok(length)
    }

    async fn line_end(&mut self) -> io::Result<()> {
        if self.line().await?.is_empty() { Ok(()) } else { Err(io::Error::new(ErrorKind::InvalidData, "no chunk end")) }
    }

    async fn line(&mut self) -> io::Result<Bytes> {
        loop {
            if let Some(at) = memchr::memmem::find(&self.ahead, b"\r\n") {
                let line = self.ahead.split_to(at).freeze();
                self.ahead.advance(2);
                return Ok(line);
            }
            if self.more().await? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    async fn more(&mut self) -> io::Result<usize> {
        self.ahead.reserve(READ);
        self.stream.read_buf(&mut self.ahead).await
    }
}
