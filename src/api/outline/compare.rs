//! Where two prompts part although they go on alike: what keeps an engine from finding the second in its cache.

use super::{FINE, Field, Outline, Part, STEP};
use std::collections::HashMap;

/// Bytes after the place where two prompts part that must be the same, and the share of them: one in so many.
const ALIKE: (usize, usize) = (512, 4);

/// A word is looked at so far in both directions.
const LONGEST_WORD: usize = 40;

/// What has changed. The names are metric labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Change {
    /// A time: it grows from request to request.
    Clock,
    /// A number or name that is drawn for each request.
    Nonce,
    /// Some other text.
    Value,
    /// The items of a set, in another order.
    Order,
    /// The keys of an object, in another order.
    Keys,
}

impl Change {
    /// Every one, in the order of the metrics' label values.
    pub const ALL: [Change; 5] = [Change::Clock, Change::Nonce, Change::Value, Change::Order, Change::Keys];

    /// The label value.
    pub fn label(self) -> &'static str {
        match self {
            Change::Clock => "clock",
            Change::Nonce => "nonce",
            Change::Value => "value",
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
    /// The first byte of the field's text that is different; `None` where the order is.
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
        let found =
            Break { path: new_field.path.clone(), part: new_field.part, change, offset, length: new_field.len, alike };
        return (alike >= ALIKE.0 && alike * ALIKE.1 >= after).then_some(found);
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
    if old.marks.is_empty() || new.marks.is_empty() {
        // of these no running hash was kept
        return Some((Change::Value, None));
    }
    let same = old.marks.iter().zip(&new.marks).take_while(|(a, b)| a == b).count();
    let offset = if same <= FINE { same } else { FINE + (same - FINE) * STEP };
    Some((Change::Value, Some(offset.min(old.len).min(new.len))))
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
