//! Where two prompts part although they go on alike: what keeps an engine from finding the second in its cache.

use super::{FINE, Field, Outline, Part, STEP};
use std::collections::HashMap;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes after the place where two prompts part that must be the same, and the share of them: one in so many.
const ALIKE: (usize, usize) = (512, 4);

/// A word is looked at so far in both directions.
const LONGEST_WORD: usize = 40;

/// How far a field is looked for that stands elsewhere in the other prompt.
const NEAR: usize = 64;

/// What has changed. The names are metric labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Change {
    /// A time: it grows from request to request.
    Clock,
    /// A number or name that is drawn for each request.
    Nonce,
    /// Some other text.
    Value,
    /// White space, and nothing else in the field.
    Space,
    /// A picture or a recording, or the way in which it is encoded.
    Media,
    /// Something that was there is gone, and what came after it has moved up: old turns, or what was thought in them.
    Dropped,
    /// Something has come between what was there.
    Inserted,
    /// The items of a set, in another order.
    Order,
    /// The keys of an object, in another order.
    Keys,
}

impl Change {
    /// Every one, in the order of the metrics' label values.
    pub const ALL: [Change; 9] = [
        Change::Clock,
        Change::Nonce,
        Change::Value,
        Change::Space,
        Change::Media,
        Change::Dropped,
        Change::Inserted,
        Change::Order,
        Change::Keys,
    ];

    /// The label value.
    pub fn label(self) -> &'static str {
        match self {
            Change::Clock => "clock",
            Change::Nonce => "nonce",
            Change::Value => "value",
            Change::Space => "space",
            Change::Media => "media",
            Change::Dropped => "dropped",
            Change::Inserted => "inserted",
            Change::Order => "order",
            Change::Keys => "keys",
        }
    }
}

/// Where a prompt parts from one before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Break {
    /// The field.
    pub path: Box<str>,
    /// What it is part of.
    pub part: Part,
    /// What is different: [`Change::Value`] where the text itself would have to be seen to tell.
    pub change: Change,
    /// The first byte of the field's text that is different; `None` where no byte can be told.
    pub offset: Option<usize>,
    /// Bytes of the field's text.
    pub length: usize,
    /// Bytes after it that are the same in both.
    pub alike: usize,
}

/// Where `new` parts from `old`, if it goes on alike after that.
pub fn compare(old: &Outline, new: &Outline) -> Option<Break> {
    let (mut a, mut b) = (0, 0);
    loop {
        // one that goes on where the other ends does not part from it
        let (old_field, new_field) = (old.fields.get(a)?, new.fields.get(b)?);
        let is_same_place = old_field.path == new_field.path;
        if is_same_place && old_field.raw == new_field.raw {
            (a, b) = (a + old_field.size, b + new_field.size);
            continue;
        }
        let Some((change, offset)) = parting(old_field, new_field, is_same_place) else {
            (a, b) = (a + 1, b + 1);
            continue;
        };
        let from = offset.unwrap_or(0);
        let alike = alike((old, old_field), (new, new_field), from);
        let after = new.bytes_from(new_field).saturating_sub(from);
        if alike < ALIKE.0 || alike * ALIKE.1 < after {
            return None;
        }
        let (at, length) = (new_field.path.clone(), new_field.len);
        let found = Break { path: at, part: new_field.part, change, offset, length, alike };
        let moved = if change == Change::Value { moved((old, a), (new, b)) } else { None };
        return Some(match moved {
            None => found,
            Some((change, path, part)) => Break { path, part, change, offset: None, length: 0, ..found },
        });
    }
}

/// How two fields part and at which byte; `None` where those in them tell.
fn parting(old: &Field, new: &Field, is_same_place: bool) -> Option<(Change, Option<usize>)> {
    let is_container = |field: &Field| field.size > 1;
    if !is_same_place {
        return Some((Change::Value, Some(0)));
    }
    if is_container(old) && old.sorted == new.sorted && old.keys != new.keys {
        return Some((if old.is_set { Change::Order } else { Change::Keys }, None));
    }
    if is_container(old) && is_container(new) {
        return None;
    }
    if old.is_media && new.is_media {
        return Some((Change::Media, None));
    }
    if old.marks.is_empty() || new.marks.is_empty() {
        // of these no running hash was kept
        return Some((Change::Value, None));
    }
    let same = old.marks.iter().zip(&new.marks).take_while(|(a, b)| a == b).count();
    let offset = if same <= FINE { same } else { FINE + (same - FINE) * STEP };
    let change = if old.dense == new.dense { Change::Space } else { Change::Value };
    Some((change, Some(offset.min(old.len).min(new.len))))
}

/// Whether two prompts part because something is gone or has come, where the one is at its field `a` and the other at `b`:
/// an item of a list, or a field.
fn moved((old, a): (&Outline, usize), (new, b): (&Outline, usize)) -> Option<(Change, Box<str>, Part)> {
    let (old_field, new_field) = (&old.fields[a], &new.fields[b]);
    if old_field.path == new_field.path {
        let (item, _) = item_of(&new_field.path)?;
        let (were, are) = (old.items_from(item, a), new.items_from(item, b));
        let change = match () {
            () if goes_on(&are, &were) => Change::Dropped,
            () if goes_on(&were, &are) => Change::Inserted,
            () => return None,
        };
        return Some((change, item.into(), new_field.part));
    }
    let follows = |all: &Outline, from: usize, path: &str| {
        all.fields[from + 1..].iter().take(NEAR).any(|field| *field.path == *path)
    };
    match () {
        () if follows(old, a, &new_field.path) => Some((Change::Dropped, old_field.path.clone(), old_field.part)),
        () if follows(new, b, &old_field.path) => Some((Change::Inserted, new_field.path.clone(), new_field.part)),
        () => None,
    }
}

/// Whether the first of some items stands further back among others, and the one after it there too.
fn goes_on(items: &[u64], others: &[u64]) -> bool {
    let Some(first) = items.first() else { return false };
    let next = |all: &[u64], at: usize| all.get(at + 1).copied();
    let is_there = |(at, other): (usize, &u64)| {
        let both = next(items, 0).zip(next(others, at));
        other == first && both.is_none_or(|(one, other)| one == other)
    };
    others.iter().enumerate().skip(1).any(is_there)
}

/// The item of a list at the top of a request that a path leads into, and the list.
fn item_of(path: &str) -> Option<(&str, &str)> {
    let (end, open) = (path.find(']')?, path.find('[')?);
    (!path[..open].contains('.')).then(|| (&path[..=end], &path[..=open]))
}

/// Bytes of `new` from a byte of a field on that are in `old` from that byte of its field on, too.
fn alike(old: (&Outline, &Field), new: (&Outline, &Field), from: usize) -> usize {
    let mut there: HashMap<u32, usize> = HashMap::new();
    for (hash, _) in old.0.pieces_from(old.1, from) {
        *there.entry(*hash).or_default() += 1;
    }
    let mut sum = 0;
    for (hash, len) in new.0.pieces_from(new.1, from) {
        if let Some(left) = there.get_mut(hash).filter(|left| **left > 0) {
            *left -= 1;
            sum += usize::from(*len);
        }
    }
    sum
}

impl Outline {
    /// The pieces that begin at a byte of a field or after it.
    fn pieces_from(&self, field: &Field, from: usize) -> impl Iterator<Item = &(u32, u16)> {
        let mut at = 0;
        let before = self.pieces.get(field.piece..).unwrap_or_default().iter().take_while(move |(_, len)| {
            let begins = at;
            at += usize::from(*len);
            begins < from
        });
        let skipped = before.count();
        self.pieces.iter().skip(field.piece + skipped)
    }

    /// The hashes of the items of a list from that one on which `item` names and field `at` is in.
    fn items_from(&self, item: &str, at: usize) -> Vec<u64> {
        let is_in = |field: &Field, item: &str| item_of(&field.path).is_some_and(|(own, _)| own == item);
        let begin = self.fields[..at].iter().rposition(|field| !is_in(field, item)).map_or(0, |before| before + 1);
        let list = item_of(item).map_or("", |(_, list)| list);
        let (mut items, mut last) = (Vec::new(), "");
        for field in &self.fields[begin..] {
            let Some((own, _)) = item_of(&field.path).filter(|(_, other)| *other == list) else { break };
            if own != last {
                items.push(self.key);
                last = own;
            }
            let name = &field.path[own.len()..];
            if let Some(hash) = items.last_mut() {
                *hash = xxh3_64_with_seed(name.as_bytes(), *hash ^ field.raw);
            }
        }
        items
    }

    /// Bytes of a field and of all after it.
    fn bytes_from(&self, field: &Field) -> usize {
        self.pieces.iter().skip(field.piece).map(|(_, len)| usize::from(*len)).sum()
    }
}

/// What changes in a text at a byte, going by the word that stands there now.
pub(super) fn kind_of(text: &[u8], offset: usize) -> Change {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b':' | b'-' | b'.' | b'/' | b'+' | b'_');
    let at = offset.min(text.len());
    let before = text[..at].iter().rev().take(LONGEST_WORD).take_while(|b| is_part(b)).count();
    let after = text[at..].iter().take(LONGEST_WORD).take_while(|b| is_part(b)).count();
    let word = &text[at - before..at + after];
    let digits = word.iter().filter(|b| b.is_ascii_digit()).count();
    let is_time =
        word.iter().all(|b| b.is_ascii_digit() || matches!(b, b':' | b'-' | b'.' | b'/' | b'+' | b'T' | b'Z'));
    let has_separator = word.iter().any(|b| matches!(b, b':' | b'-' | b'/'));
    let is_number = digits == word.len() && (9..=19).contains(&digits);
    match () {
        () if digits >= 4 && is_time && (has_separator || is_number) => Change::Clock,
        () if (digits >= 3 && word.len() >= 8) || (digits > 0 && digits == word.len()) => Change::Nonce,
        () => Change::Value,
    }
}
