//! A request body in pieces.
//!
//! Long bodies are sent again and again with little new at their end. The pieces are shared byte strings: a turn appends
//! some and clones a list of references, so the client costs almost nothing beside what it measures.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

/// A body of known length in pieces.
#[derive(Debug, Clone)]
pub(crate) struct Pieces {
    left: VecDeque<Bytes>,
    bytes: u64,
}

impl Pieces {
    /// From the pieces in their order.
    pub(crate) fn new(left: VecDeque<Bytes>) -> Self {
        let bytes = left.iter().map(|piece| piece.len() as u64).sum();
        Self { left, bytes }
    }

    /// For requests without a body.
    pub(crate) fn empty() -> Self {
        Self::new(VecDeque::new())
    }

    /// All of it at once, for tests.
    #[cfg(test)]
    pub(crate) fn whole(&self) -> Vec<u8> {
        let all: Vec<u8> = self.left.iter().flat_map(|piece| piece.to_vec()).collect();
        assert_eq!(all.len() as u64, self.bytes, "the length that is announced is the length that is sent");
        all
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = self.left.pop_front();
        self.bytes -= piece.as_ref().map_or(0, |piece| piece.len() as u64);
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes)
    }
}
