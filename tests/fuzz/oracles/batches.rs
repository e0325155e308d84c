//! What engines say of their caches: a batch of events is read as MessagePack has it, or refused, and what follows of it is
//! bounded, whatever it says.
//!
//! Input: batches, one after the other. They are held against a tree of the whole, made without regard to size.

use ramjet::engine::events::batch::{Batch, Event, read};
use ramjet::prefix::stored::{Answer, Stored};
use xxhash_rust::xxh3::xxh3_64;

/// A value of MessagePack.
enum Value<'a> {
    Nil,
    /// By its bits.
    Whole(u64),
    Text(&'a [u8]),
    List(Vec<Value<'a>>),
    Map(Vec<Value<'a>>),
    Other,
}

pub(crate) fn check(data: &[u8]) {
    let (mut rest, mut stored, mut said) = (data, Stored::default(), 0);
    while !rest.is_empty() {
        let whole = rest;
        let Some(value) = value(&mut rest) else {
            // what it does not look at may be anything
            let blocks = read(whole).map_or(0, |batch| batch.events.iter().map(named).sum());
            assert!(blocks <= whole.len(), "more blocks than bytes");
            return;
        };
        let batch = read(&whole[..whole.len() - rest.len()]).ok();
        assert_eq!(batch, meant(&value));
        if let Some(batch) = batch {
            said += batch.events.iter().map(named).sum::<usize>();
            take(&mut stored, &batch);
        }
        assert!(stored.blocks() <= said, "{} blocks of {said}", stored.blocks());
    }
}

fn named(event: &Event) -> usize {
    match event {
        Event::Stored { blocks, .. } | Event::Removed(blocks) => blocks.len(),
        Event::Cleared | Event::Other => 0,
    }
}

/// As the connection does, with an answer after each batch.
fn take(stored: &mut Stored, batch: &Batch) {
    let since = stored.batches();
    stored.begin_batch();
    for event in &batch.events {
        match event {
            Event::Stored { blocks, after, tokens } => {
                if stored.store(blocks, *after, *tokens).is_err() {
                    assert_eq!((stored.blocks(), stored.prompts()), (0, 0));
                }
            }
            Event::Removed(blocks) => stored.remove(blocks),
            Event::Cleared => {
                stored.clear();
                assert_eq!((stored.blocks(), stored.prompts()), (0, 0));
            }
            Event::Other => {}
        }
    }
    stored.end_batch();
    for event in &batch.events {
        let Event::Stored { blocks, tokens, .. } = event else { continue };
        let prompt = u32::try_from(blocks.len()).unwrap().saturating_mul(*tokens);
        let print = blocks.first().copied().unwrap_or(7);
        let previous = blocks.last().copied();
        for cached in [0, prompt / 2, prompt] {
            let answer = Answer { print, previous, tokens: (prompt, cached, 1), is_repeated: true, since };
            stored.answered(answer);
            if let Some(held) = stored.held(print) {
                assert!(held.tokens == 0 || stored.blocks() > 0, "of nothing something is held");
            }
        }
    }
}

/// What a batch means, if it is one.
fn meant(value: &Value) -> Option<Batch> {
    let Value::List(parts) = value else { return None };
    let Value::List(events) = parts.get(1)? else { return None };
    if events.len() > 1 << 16 {
        return None;
    }
    let events = events.iter().map(event).collect::<Option<_>>()?;
    let rank = parts.get(2).map_or(Some(None), whole)?.and_then(|rank| u32::try_from(rank).ok());
    Some(Batch { events, rank })
}

fn event(value: &Value) -> Option<Event> {
    let (kind, members): (_, Vec<(&[u8], &Value)>) = match value {
        Value::List(places) => {
            let kind = text(places.first()?)??;
            let names: &[&[u8]] = match kind {
                b"BlockStored" => {
                    &[b"block_hashes", b"parent_block_hash", b"token_ids", b"block_size", b"lora_id", b"medium"]
                }
                b"BlockRemoved" | b"AllBlocksCleared" => &[b"block_hashes", b"medium"],
                _ => &[],
            };
            (Some(kind), names.iter().copied().zip(&places[1..]).collect())
        }
        Value::Map(all) => {
            let pairs = all.chunks(2).map(|pair| Some((text(&pair[0])??, &pair[1])));
            let pairs: Vec<(&[u8], &Value)> = pairs.collect::<Option<_>>()?;
            let kinds = pairs.iter().filter(|(key, _)| *key == b"type");
            let kinds: Vec<Option<&[u8]>> = kinds.map(|(_, kind)| text(kind)).collect::<Option<_>>()?;
            (kinds.last().copied().flatten(), pairs)
        }
        _ => return None,
    };
    let (mut blocks, mut after, mut tokens, mut is_elsewhere) = (Vec::new(), None, None, false);
    for (key, value) in members {
        let is_text = |there: fn(&[u8]) -> bool| Some(text(value)?.is_some_and(there));
        match key {
            b"block_hashes" => {
                let Value::List(names) = value else { return None };
                blocks = names.iter().map(|value| name(value)?).collect::<Option<_>>()?;
            }
            b"parent_block_hash" => after = name(value)?,
            b"block_size" => tokens = whole(value)?,
            b"medium" => is_elsewhere |= is_text(|medium| !medium.eq_ignore_ascii_case(b"gpu"))?,
            b"group_idx" => is_elsewhere |= whole(value)?.is_some_and(|group| group != 0),
            b"kv_cache_spec_kind" => is_elsewhere |= is_text(|kind| kind != b"full_attention")?,
            b"locality" => is_elsewhere |= is_text(|place| place.eq_ignore_ascii_case(b"remote"))?,
            _ => {}
        }
    }
    Some(match kind {
        _ if is_elsewhere => Event::Other,
        Some(b"BlockStored") => {
            let tokens = u32::try_from(tokens?).ok().filter(|tokens| *tokens > 0)?;
            Event::Stored { blocks, after, tokens }
        }
        Some(b"BlockRemoved") => Event::Removed(blocks),
        Some(b"AllBlocksCleared") => Event::Cleared,
        Some(_) => Event::Other,
        None => return None,
    })
}

/// `None` for what is something else, `Some(None)` for nil.
fn text<'a>(value: &Value<'a>) -> Option<Option<&'a [u8]>> {
    match value {
        Value::Nil => Some(None),
        Value::Text(text) => Some(Some(text)),
        _ => None,
    }
}

fn whole(value: &Value) -> Option<Option<u64>> {
    match value {
        Value::Nil => Some(None),
        Value::Whole(bits) => Some(Some(*bits)),
        _ => None,
    }
}

fn name(value: &Value) -> Option<Option<u64>> {
    match value {
        Value::Text(text) => Some(Some(xxh3_64(text))),
        other => whole(other),
    }
}

/// The next value as the specification has it; `None` where it breaks off or is none.
fn value<'a>(rest: &mut &'a [u8]) -> Option<Value<'a>> {
    let (first, after) = rest.split_first()?;
    *rest = after;
    Some(match *first {
        n @ 0..=0x7f => Value::Whole(n.into()),
        n @ 0x80..=0x8f => Value::Map(values(rest, 2 * u64::from(n & 15))?),
        n @ 0x90..=0x9f => Value::List(values(rest, (n & 15).into())?),
        n @ 0xa0..=0xbf => Value::Text(bytes(rest, (n & 31).into())?),
        0xc0 => Value::Nil,
        0xc1 => return None,
        0xc2 | 0xc3 => Value::Other,
        n @ (0xc4..=0xc6 | 0xd9..=0xdb) => {
            let width = if n < 0xd0 { 1 << (n - 0xc4) } else { 1 << (n - 0xd9) };
            let length = number(rest, width)?;
            Value::Text(bytes(rest, length)?)
        }
        n @ 0xc7..=0xc9 => {
            let length = number(rest, 1 << (n - 0xc7))?;
            bytes(rest, length + 1).map(|_| Value::Other)?
        }
        n @ 0xca..=0xcb => bytes(rest, 4 << (n - 0xca)).map(|_| Value::Other)?,
        n @ 0xcc..=0xcf => Value::Whole(number(rest, 1 << (n - 0xcc))?),
        n @ 0xd0..=0xd3 => {
            let width = 1 << (n - 0xd0);
            let unused = 64 - 8 * width;
            Value::Whole(((number(rest, width)? << unused).cast_signed() >> unused).cast_unsigned())
        }
        n @ 0xd4..=0xd8 => bytes(rest, 1 + (1 << (n - 0xd4))).map(|_| Value::Other)?,
        n @ 0xdc..=0xdd => {
            let length = number(rest, 2 << (n - 0xdc))?;
            Value::List(values(rest, length)?)
        }
        n @ 0xde..=0xdf => {
            let length = number(rest, 2 << (n - 0xde))?;
            Value::Map(values(rest, 2 * length)?)
        }
        n => Value::Whole(i64::from(n.cast_signed()).cast_unsigned()),
    })
}

fn values<'a>(rest: &mut &'a [u8], many: u64) -> Option<Vec<Value<'a>>> {
    (0..many).map(|_| value(rest)).collect()
}

fn bytes<'a>(rest: &mut &'a [u8], many: u64) -> Option<&'a [u8]> {
    let (taken, after) = rest.split_at_checked(usize::try_from(many).ok()?)?;
    *rest = after;
    Some(taken)
}

fn number(rest: &mut &[u8], width: u64) -> Option<u64> {
    Some(bytes(rest, width)?.iter().fold(0, |all, byte| all << 8 | u64::from(*byte)))
}
