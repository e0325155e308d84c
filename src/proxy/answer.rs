//! An engine's answer as it comes off its connection: heads, and bodies by what their heads say (RFC 9112, section 6).
//!
//! What is taken for a head is what Pingora takes for one: its parser with the same settings, and its words for what is
//! wrong. Nothing is lost when a read is given up, since what has come stays here until it is given out.

use super::body::INVALID_CHUNK;
use super::chunks::Chunks;
use bytes::{Buf, Bytes, BytesMut};
use futures_util::FutureExt;
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, StatusCode, Version};
use httparse::{EMPTY_HEADER, ParserConfig, Response, Status};
use pingora_core::protocols::http::HttpTask;
use pingora_error::{Error, ErrorType, Result};
use pingora_http::{ResponseHeader, header_value_from_raw};
use std::ops::Range;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::task::unconstrained;
use tokio::time::timeout;

/// What is reserved for a head, the longest one and the most fields of one.
const HEAD: usize = 4 << 10;
const LONGEST: usize = 1 << 20;
const FIELDS: usize = 256;
/// Few answers have more; where one has, its head is read again.
const MOSTLY: usize = 48;
/// What one read gives at most of a stream, and of a body that says how long it is.
const PIECE: usize = 8 << 10;
const LARGE_PIECE: usize = 64 << 10;
/// Room with which it is not worth looking for more.
const LITTLE: usize = 1 << 10;

/// Where the reader is.
#[derive(Debug)]
enum Place {
    /// Before a head.
    Head,
    /// In a body with so many bytes left.
    Length(u64),
    /// In a body in chunks.
    Chunks(Chunks),
    /// In a body that ends with its connection.
    Rest,
    /// Behind the answer.
    End,
}

/// An answer that is being read.
#[derive(Debug)]
pub(super) struct Answer<S> {
    stream: S,
    /// What has come and was not given out.
    come: BytesMut,
    place: Place,
    /// How long the engine may say nothing.
    silence: Duration,
    /// Whether the connection outlives the answer.
    stays: bool,
}

impl<S: AsyncRead + Unpin> Answer<S> {
    /// The answer to what was just written to `stream`.
    pub(super) fn on(stream: S, silence: Duration) -> Self {
        Answer { stream, come: BytesMut::new(), place: Place::Head, silence, stays: false }
    }

    /// The connection, if another request can be made on it.
    pub(super) fn into_line(self) -> Option<S> {
        (matches!(self.place, Place::End) && self.stays && self.come.is_empty()).then_some(self.stream)
    }

    /// What the engine says next; not to be asked behind the end.
    pub(super) async fn next(&mut self) -> Result<HttpTask> {
        loop {
            if let Some(task) = self.at_hand()? {
                return Ok(task);
            }
            self.make_room();
            match timeout(self.silence, self.stream.read_buf(&mut self.come)).await {
                Err(_) => return Err(Error::explain(ErrorType::ReadTimedout, "the engine says nothing")),
                Ok(Err(e)) => return Err(Error::because(ErrorType::ReadError, "while reading an answer", e)),
                Ok(Ok(0)) => return self.ended(),
                Ok(Ok(_)) => {}
            }
        }
    }

    /// What the engine says next, if that has come.
    pub(super) fn soon(&mut self) -> Option<Result<HttpTask>> {
        loop {
            if let Some(task) = self.at_hand().transpose() {
                return Some(task);
            }
            if self.come.capacity() - self.come.len() < LITTLE {
                self.make_room();
            }
            match unconstrained(self.stream.read_buf(&mut self.come)).now_or_never()? {
                Err(e) => return Some(Err(Error::because(ErrorType::ReadError, "while reading an answer", e))),
                Ok(0) => return Some(self.ended()),
                Ok(_) => {}
            }
        }
    }

    /// Makes room for what one read gives.
    fn make_room(&mut self) {
        self.come.reserve(match self.place {
            Place::Head => HEAD,
            Place::Length(left) => usize::try_from(left).unwrap_or(usize::MAX).min(LARGE_PIECE),
            _ => PIECE,
        });
    }

    /// What was read already.
    fn at_hand(&mut self) -> Result<Option<HttpTask>> {
        match &mut self.place {
            Place::Head => self.head(),
            _ if self.come.is_empty() => Ok(None),
            Place::Length(left) => {
                let size = usize::try_from(*left).unwrap_or(usize::MAX).min(self.come.len());
                *left -= size as u64;
                let is_end = *left == 0;
                let piece = self.come.split_to(size).freeze();
                if is_end {
                    self.place = Place::End;
                }
                Ok(Some(HttpTask::Body(Some(piece), is_end)))
            }
            Place::Chunks(chunks) => {
                let (piece, is_end) = chunks.take(&mut self.come)?;
                if is_end {
                    self.place = Place::End;
                }
                Ok((is_end || piece.is_some()).then_some(HttpTask::Body(piece, is_end)))
            }
            Place::Rest => Ok(Some(HttpTask::Body(Some(self.come.split().freeze()), false))),
            Place::End => Ok(None),
        }
    }

    /// The engine has closed the connection.
    fn ended(&mut self) -> Result<HttpTask> {
        self.stays = false;
        match self.place {
            Place::Rest => {
                self.place = Place::End;
                Ok(HttpTask::Body(None, true))
            }
            Place::Head => Error::e_explain(ErrorType::ConnectionClosed, "before the head of an answer"),
            _ => Error::e_explain(ErrorType::ConnectionClosed, "before the end of an answer"),
        }
    }

    /// A head, if it is whole.
    fn head(&mut self) -> Result<Option<HttpTask>> {
        if self.come.is_empty() {
            return Ok(None);
        }
        let Some(read) = read_head::<MOSTLY>(&self.come).or_else(|_| read_head::<FIELDS>(&self.come))? else {
            return if self.come.len() < LONGEST { Ok(None) } else { Err(unreadable("the head is too long")) };
        };
        // a copy: it stays for as long as the answer takes, and what it was read with is to be used again
        let head = Box::new(read.of(Bytes::copy_from_slice(&self.come[..read.length]))?);
        self.come.advance(read.length);
        let is_last = self.begin(&head)?;
        Ok(Some(HttpTask::Header(head, is_last)))
    }

    /// A head has come: what follows it. Whether that is nothing.
    fn begin(&mut self, head: &ResponseHeader) -> Result<bool> {
        let length = length(&head.headers)?;
        if head.status.is_informational() && head.status != StatusCode::SWITCHING_PROTOCOLS {
            return Ok(false);
        }
        let is_in_chunks = is_in_chunks(&head.headers);
        self.stays = stays(head) && (is_in_chunks || length.is_some());
        self.place = match length {
            _ if matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) => {
                // who announces a body there may send one as well
                let is_plain = head.status == StatusCode::NOT_MODIFIED || length.is_none_or(|length| length == 0);
                self.stays = stays(head) && is_plain && !is_in_chunks;
                Place::End
            }
            _ if is_in_chunks => Place::Chunks(Chunks::default()),
            Some(0) => Place::End,
            Some(length) => Place::Length(length),
            None => Place::Rest,
        };
        Ok(matches!(self.place, Place::End))
    }
}

/// Where the parts of a head are.
struct Head {
    length: usize,
    status: u16,
    version: Version,
    reason: Option<Range<usize>>,
    fields: Vec<(Range<usize>, Range<usize>)>,
}

/// Reads a head of `N` fields at most, if it is whole.
fn read_head<const N: usize>(come: &[u8]) -> Result<Option<Head>> {
    let mut fields = [EMPTY_HEADER; N];
    let mut response = Response::new(&mut fields);
    let mut parser = ParserConfig::default();
    parser.allow_spaces_after_header_name_in_responses(true);
    parser.allow_obsolete_multiline_headers_in_responses(true);
    let length = match parser.parse_response(&mut response, come) {
        Ok(Status::Complete(length)) => length,
        Ok(Status::Partial) => return Ok(None),
        Err(e) => return Err(Error::because(ErrorType::InvalidHTTPHeader, "an answer that is none", e)),
    };
    let base = come.as_ptr() as usize;
    let place = |part: &[u8]| {
        let start = part.as_ptr() as usize - base;
        start..start + part.len()
    };
    let reason = response.reason.filter(|reason| !reason.is_empty()).map(|reason| place(reason.as_bytes()));
    let fields = response.headers.iter().filter(|field| !field.name.is_empty());
    Ok(Some(Head {
        length,
        status: response.code.unwrap_or_default(),
        version: if response.version == Some(1) { Version::HTTP_11 } else { Version::HTTP_10 },
        reason,
        fields: fields.map(|field| (place(field.name.as_bytes()), place(field.value))).collect(),
    }))
}

impl Head {
    /// The head that is written in `text`, of which it keeps what it needs.
    fn of(&self, text: Bytes) -> Result<ResponseHeader> {
        let head = ResponseHeader::build(self.status, Some(self.fields.len()));
        let mut head = head.map_err(|_| unreadable("a status that is none"))?;
        head.set_version(self.version);
        let reason = self.reason.clone().and_then(|place| std::str::from_utf8(&text[place]).ok());
        head.set_reason_phrase(reason)?;
        for (name, value) in &self.fields {
            head.append_header(text.slice(name.clone()), header_value_from_raw(text.slice(value.clone())))
                .map_err(|_| unreadable("a field that is none"))?;
        }
        if head.headers.contains_key(TRANSFER_ENCODING) {
            // it goes first (RFC 9112, section 6.3)
            head.remove_header(&CONTENT_LENGTH);
        }
        Ok(head)
    }
}

/// How long a body is, as its head says. Said several times it must be the same.
fn length(fields: &HeaderMap) -> Result<Option<u64>> {
    let mut length = None;
    for item in fields.get_all(CONTENT_LENGTH).iter().flat_map(|value| value.as_bytes().split(|c| *c == b',')) {
        let digits =
            std::str::from_utf8(item.trim_ascii()).ok().filter(|text| text.bytes().all(|c| c.is_ascii_digit()));
        let said = digits.and_then(|digits| digits.parse().ok());
        if said.is_none() || length.is_some_and(|length| Some(length) != said) {
            return Err(unreadable("a length that is none"));
        }
        length = said;
    }
    Ok(length)
}

/// Whether a body comes in chunks: its last coding is theirs.
fn is_in_chunks(fields: &HeaderMap) -> bool {
    let last = fields.get_all(TRANSFER_ENCODING).iter().next_back();
    let last = last.and_then(|value| value.as_bytes().rsplit(|c| *c == b',').next());
    last.is_some_and(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"chunked"))
}

/// Whether an engine keeps the connection (RFC 9112, section 9.3).
fn stays(head: &ResponseHeader) -> bool {
    let says = |word: &[u8]| {
        let items = head.headers.get_all(CONNECTION).iter().flat_map(|value| value.as_bytes().split(|c| *c == b','));
        items.into_iter().any(|item| item.trim_ascii().eq_ignore_ascii_case(word))
    };
    match head.version {
        // of those that do not know chunks
        Version::HTTP_10 => says(b"keep-alive") && !head.headers.contains_key(TRANSFER_ENCODING),
        _ => !says(b"close"),
    }
}

fn unreadable(why: &'static str) -> Box<Error> {
    Error::explain(ErrorType::InvalidHTTPHeader, why)
}

/// What is said of chunks that are none.
pub(super) fn no_chunk() -> Box<Error> {
    Error::explain(ErrorType::Custom(INVALID_CHUNK), "an answer in chunks that are none")
}

#[cfg(test)]
mod tests;
