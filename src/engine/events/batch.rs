//! What an engine says of its KV cache, as vLLM and SGLang publish it: a batch of events in MessagePack,
//! `[time, [event…], rank]`. An event is a map with its kind as `type`, or, in older versions, a list that begins with
//! its kind.
//!
//! Nothing that a batch says of its own lengths is believed further than it goes, and of the tokens only their number is
//! looked at.

use rmp::Marker;
use rmp::decode::read_marker;
use xxhash_rust::xxh3::xxh3_64;

/// What happened to a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A run of blocks is there, each the continuation of the one before it.
    Stored {
        /// Their names.
        blocks: Vec<u64>,
        /// The block that the first one continues; `None` for the beginning of a prompt.
        after: Option<u64>,
        /// Tokens of each.
        tokens: u32,
    },
    /// These blocks are gone.
    Removed(Vec<u64>),
    /// All of them are.
    Cleared,
    /// It concerns another kind of memory or of cache.
    Other,
}

/// Events that were published together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// What happened, in this order.
    pub events: Vec<Event>,
    /// The data-parallel rank whose cache it is, if that is said.
    pub rank: Option<u32>,
}

/// The bytes are no batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// The most events of a batch: one step of an engine makes far fewer.
const MOST_EVENTS: u32 = 1 << 16;

/// The places of a list that tells of stored blocks: their names, the one before, tokens, tokens of a block, …
const STORED: [&str; 6] = ["block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"];
const REMOVED: [&str; 2] = ["block_hashes", "medium"];

/// Reads a batch.
///
/// # Errors
/// It is none, or breaks off.
pub fn read(bytes: &[u8]) -> Result<Batch, Malformed> {
    let mut at = bytes;
    let parts = array(&mut at)?;
    if parts < 2 {
        return Err(Malformed);
    }
    skip(&mut at)?;
    let many = array(&mut at)?;
    if many > MOST_EVENTS {
        return Err(Malformed);
    }
    let mut events = Vec::new();
    for _ in 0..many {
        events.push(event(&mut at)?);
    }
    let rank = if parts > 2 { number(&mut at)?.and_then(|rank| u32::try_from(rank).ok()) } else { None };
    Ok(Batch { events, rank })
}

/// What was read of an event so far.
#[derive(Default)]
struct Told {
    kind: Option<Kind>,
    blocks: Vec<u64>,
    after: Option<u64>,
    tokens: Option<u64>,
    is_elsewhere: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Stored,
    Removed,
    Cleared,
    Unknown,
}

impl Kind {
    fn of(name: &[u8]) -> Self {
        match name {
            b"BlockStored" => Kind::Stored,
            b"BlockRemoved" => Kind::Removed,
            b"AllBlocksCleared" => Kind::Cleared,
            _ => Kind::Unknown,
        }
    }
}

fn event(at: &mut &[u8]) -> Result<Event, Malformed> {
    let mut told = Told::default();
    let mut ahead = *at;
    let marker = read_marker(&mut ahead).map_err(|_| Malformed)?;
    if matches!(marker, Marker::FixArray(_) | Marker::Array16 | Marker::Array32) {
        let length = array(at)?;
        if length == 0 {
            return Err(Malformed);
        }
        let kind = Kind::of(text(at)?.ok_or(Malformed)?);
        let names: &[&str] = if kind == Kind::Stored { &STORED } else { &REMOVED };
        told.kind = Some(kind);
        for place in 1..length {
            match names.get(place as usize - 1) {
                Some(name) if kind != Kind::Unknown => told.member(name.as_bytes(), at)?,
                _ => skip(at)?,
            }
        }
    } else {
        for _ in 0..map(at)? {
            let key = text(at)?.ok_or(Malformed)?;
            told.member(key, at)?;
        }
    }
    told.event()
}

impl Told {
    fn member(&mut self, key: &[u8], at: &mut &[u8]) -> Result<(), Malformed> {
        match key {
            b"type" => self.kind = text(at)?.map(Kind::of),
            b"block_hashes" => self.blocks = names(at)?,
            b"parent_block_hash" => self.after = name(at)?,
            b"block_size" => self.tokens = number(at)?,
            // other memory than the engine's own is not what a prompt is served from
            b"medium" => self.is_elsewhere |= text(at)?.is_some_and(|medium| !medium.eq_ignore_ascii_case(b"gpu")),
            // of several groups of layers the first one tells, if it keeps whole prompts
            b"group_idx" => self.is_elsewhere |= number(at)?.is_some_and(|group| group != 0),
            b"kv_cache_spec_kind" => self.is_elsewhere |= text(at)?.is_some_and(|kind| kind != b"full_attention"),
            b"locality" => self.is_elsewhere |= text(at)?.is_some_and(|place| place.eq_ignore_ascii_case(b"remote")),
            _ => skip(at)?,
        }
        Ok(())
    }

    fn event(self) -> Result<Event, Malformed> {
        Ok(match self.kind {
            _ if self.is_elsewhere => Event::Other,
            Some(Kind::Stored) => {
                let tokens = self.tokens.and_then(|tokens| u32::try_from(tokens).ok()).filter(|n| *n > 0);
                Event::Stored { blocks: self.blocks, after: self.after, tokens: tokens.ok_or(Malformed)? }
            }
            Some(Kind::Removed) => Event::Removed(self.blocks),
            Some(Kind::Cleared) => Event::Cleared,
            Some(Kind::Unknown) => Event::Other,
            None => return Err(Malformed),
        })
    }
}

fn names(at: &mut &[u8]) -> Result<Vec<u64>, Malformed> {
    let many = array(at)?;
    let mut out = Vec::new();
    for _ in 0..many {
        out.push(name(at)?.ok_or(Malformed)?);
    }
    Ok(out)
}

/// The name of a block: a number, signed or not, or bytes.
fn name(at: &mut &[u8]) -> Result<Option<u64>, Malformed> {
    let mut ahead = *at;
    match read_marker(&mut ahead).map_err(|_| Malformed)? {
        Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => Ok(text(at)?.map(xxh3_64)),
        Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => Ok(text(at)?.map(xxh3_64)),
        _ => number(at),
    }
}

/// A whole number by its bits; `None` for nil.
fn number(at: &mut &[u8]) -> Result<Option<u64>, Malformed> {
    let marker = read_marker(at).map_err(|_| Malformed)?;
    let (width, is_signed) = match marker {
        Marker::Null => return Ok(None),
        Marker::FixPos(n) => return Ok(Some(n.into())),
        Marker::FixNeg(n) => return Ok(Some(i64::from(n).cast_unsigned())),
        Marker::U8 => (1, false),
        Marker::U16 => (2, false),
        Marker::U32 => (4, false),
        Marker::U64 => (8, false),
        Marker::I8 => (1, true),
        Marker::I16 => (2, true),
        Marker::I32 => (4, true),
        Marker::I64 => (8, true),
        _ => return Err(Malformed),
    };
    let bytes = take(at, width)?;
    let fill = if is_signed && bytes[0] >= 0x80 { 0xff } else { 0 };
    let mut whole = [fill; 8];
    whole[8 - bytes.len()..].copy_from_slice(bytes);
    Ok(Some(u64::from_be_bytes(whole)))
}

/// Text or bytes; `None` for nil.
fn text<'a>(at: &mut &'a [u8]) -> Result<Option<&'a [u8]>, Malformed> {
    let length = match read_marker(at).map_err(|_| Malformed)? {
        Marker::Null => return Ok(None),
        Marker::FixStr(n) => n.into(),
        Marker::Str8 | Marker::Bin8 => length(at, 1)?,
        Marker::Str16 | Marker::Bin16 => length(at, 2)?,
        Marker::Str32 | Marker::Bin32 => length(at, 4)?,
        _ => return Err(Malformed),
    };
    take(at, length).map(Some)
}

fn array(at: &mut &[u8]) -> Result<u32, Malformed> {
    match read_marker(at).map_err(|_| Malformed)? {
        Marker::FixArray(n) => Ok(n.into()),
        Marker::Array16 => length(at, 2),
        Marker::Array32 => length(at, 4),
        _ => Err(Malformed),
    }
}

fn map(at: &mut &[u8]) -> Result<u32, Malformed> {
    match read_marker(at).map_err(|_| Malformed)? {
        Marker::FixMap(n) => Ok(n.into()),
        Marker::Map16 => length(at, 2),
        Marker::Map32 => length(at, 4),
        _ => Err(Malformed),
    }
}

fn length(at: &mut &[u8], width: u32) -> Result<u32, Malformed> {
    Ok(take(at, width)?.iter().fold(0, |all, byte| all << 8 | u32::from(*byte)))
}

fn take<'a>(at: &mut &'a [u8], many: u32) -> Result<&'a [u8], Malformed> {
    let (taken, rest) = at.split_at_checked(many as usize).ok_or(Malformed)?;
    *at = rest;
    Ok(taken)
}

/// Steps over a value, however deep it is.
fn skip(at: &mut &[u8]) -> Result<(), Malformed> {
    let mut left = 1u64;
    while left > 0 {
        left -= 1;
        let (bytes, values) = match read_marker(at).map_err(|_| Malformed)? {
            Marker::FixPos(_) | Marker::FixNeg(_) | Marker::Null | Marker::True | Marker::False => (0, 0),
            Marker::U8 | Marker::I8 => (1, 0),
            Marker::U16 | Marker::I16 | Marker::FixExt1 => (2, 0),
            Marker::FixExt2 => (3, 0),
            Marker::U32 | Marker::I32 | Marker::F32 => (4, 0),
            Marker::FixExt4 => (5, 0),
            Marker::U64 | Marker::I64 | Marker::F64 => (8, 0),
            Marker::FixExt8 => (9, 0),
            Marker::FixExt16 => (17, 0),
            Marker::FixStr(n) => (n.into(), 0),
            Marker::Str8 | Marker::Bin8 => (length(at, 1)?, 0),
            Marker::Str16 | Marker::Bin16 => (length(at, 2)?, 0),
            Marker::Str32 | Marker::Bin32 => (length(at, 4)?, 0),
            Marker::Ext8 => (length(at, 1)?.saturating_add(1), 0),
            Marker::Ext16 => (length(at, 2)?.saturating_add(1), 0),
            Marker::Ext32 => (length(at, 4)?.saturating_add(1), 0),
            Marker::FixArray(n) => (0, n.into()),
            Marker::Array16 => (0, length(at, 2)?.into()),
            Marker::Array32 => (0, length(at, 4)?.into()),
            Marker::FixMap(n) => (0, 2 * u64::from(n)),
            Marker::Map16 => (0, 2 * u64::from(length(at, 2)?)),
            Marker::Map32 => (0, 2 * u64::from(length(at, 4)?)),
            Marker::Reserved => return Err(Malformed),
        };
        take(at, bytes)?;
        left += values;
        // each value takes a byte at least
        if left > at.len() as u64 {
            return Err(Malformed);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
