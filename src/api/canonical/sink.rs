//! Where canonical bytes go: into the chain of a whole prompt, or into the sketch of its first exchange.

use crate::prefix::fingerprint::Chain;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Separates members and messages. Text can contain it too: who puts it there spoils no credit but their own.
pub(super) const FIELD: &[u8] = b"\x1e";
/// Separates the parts of a message.
pub(super) const PART: &[u8] = b"\x1f";

/// Takes canonical bytes in pieces.
pub(super) trait Sink {
    /// Whether reasoning in messages is written.
    const KEEPS_REASONING: bool;
    /// Adds canonical bytes.
    fn push(&mut self, piece: &[u8]);
    /// Adds `weight` bytes that stand for `data`.
    fn push_digest(&mut self, data: &[u8], weight: usize);
    /// Whether nothing more will be looked at.
    fn is_full(&self) -> bool;
    /// How many more bytes are looked at, where that is little.
    fn room(&self) -> Option<usize>;
}

impl Sink for Chain {
    const KEEPS_REASONING: bool = true;

    fn push(&mut self, piece: &[u8]) {
        Chain::push(self, piece);
    }

    fn push_digest(&mut self, data: &[u8], weight: usize) {
        Chain::push_digest(self, data, weight);
    }

    fn is_full(&self) -> bool {
        Chain::is_full(self)
    }

    fn room(&self) -> Option<usize> {
        None
    }
}

/// How much of a picture a sketch looks at.
const DIGESTED: usize = 8 << 10;

/// The beginnings of a few pieces, gathered to be hashed as one.
///
/// Separators are left out: how many there are depends on reasoning, which may be dropped from one turn to the next.
pub(super) struct Sketch {
    secret: u64,
    bytes: Vec<u8>,
    room: usize,
}

impl Sketch {
    pub(super) fn new(secret: u64) -> Self {
        Sketch { secret, bytes: Vec::new(), room: 0 }
    }

    /// Takes `room` bytes of what comes next.
    pub(super) fn admit(&mut self, room: usize) {
        self.room = room;
    }

    /// Bytes taken so far.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The keyed hash of what was taken.
    pub(super) fn finish(&self) -> u64 {
        xxh3_64_with_seed(&self.bytes, self.secret)
    }
}

impl Sink for Sketch {
    const KEEPS_REASONING: bool = false;

    fn push(&mut self, piece: &[u8]) {
        if piece != FIELD && piece != PART {
            let taken = &piece[..piece.len().min(self.room)];
            self.bytes.extend_from_slice(taken);
            self.room -= taken.len();
        }
    }

    /// Enough of the data to tell it apart, with its length: a sketch must not cost what megabytes cost.
    fn push_digest(&mut self, data: &[u8], _weight: usize) {
        let start = &data[..data.len().min(DIGESTED)];
        self.push(&xxh3_64_with_seed(start, self.secret ^ data.len() as u64).to_le_bytes());
    }

    fn is_full(&self) -> bool {
        self.room == 0
    }

    fn room(&self) -> Option<usize> {
        Some(self.room)
    }
}
