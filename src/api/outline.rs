//! The outline of a prompt: what its fields hash to, in the order in which an engine reads them, so that two prompts can
//! be compared without either being kept.
//!
//! Of a text, a keyed hash is kept of its whole, of pieces of some hundred bytes that are found again wherever they stand,
//! and one byte of a running hash for each of its first bytes and for every 64 after them, which says where two texts
//! part. Of a picture or a recording there is the hash alone. Members that no engine reads, such as `cache_control`, are
//! left out. Names of fields come from a closed list; any other is shown as `…`. Pure.

mod compare;

pub use compare::{Break, Change, compare};

use compare::kind_of;

use super::canonical::is_unread;
use super::endpoint::Endpoint;
use super::json::{Cursor, Kind, Malformed};
use super::request::{MESSAGE_MEMBERS, Message, RENDERED, Request};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of a text whose differences are found to the byte, and the distance at which they are found after those.
pub(super) const FINE: usize = 1024;
pub(super) const STEP: usize = 64;
/// A piece is at least and at most so long, and about this long on average.
const PIECE: (usize, usize, u64) = (48, 512, 127);
/// Fields, pieces and bytes of running hashes of an outline: what comes after them is not compared, or not to the byte.
const MOST: (usize, usize, usize) = (1024, 8192, 32 << 10);
/// Values nested deeper are looked at as a whole.
const DEEPEST: usize = 6;
/// A list of tools, or of what else is read in the order in which it is sent but means the same in any.
const SETS: [&str; 3] = ["tools", "functions", "documents"];
/// Names that may be shown.
const NAMES: [&str; 41] = [
    "messages",
    "role",
    "content",
    "text",
    "type",
    "name",
    "tool_calls",
    "tool_call_id",
    "function",
    "function_call",
    "arguments",
    "description",
    "parameters",
    "properties",
    "required",
    "strict",
    "tools",
    "functions",
    "system",
    "instructions",
    "input",
    "prompt",
    "documents",
    "chat_template_kwargs",
    "chat_template",
    "reasoning_effort",
    "reasoning",
    "reasoning_content",
    "input_schema",
    "output",
    "image_url",
    "items",
    "thinking",
    "suffix",
    "title",
    "call_id",
    "url",
    "source",
    "data",
    "input_audio",
    "file_data",
];
/// Bytes without a space that tell data from text.
const SOLID: usize = 512;

/// Which part of a prompt a field belongs to. The names are metric labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// What stands before the conversation.
    System,
    /// Tools.
    Tools,
    /// The conversation.
    Messages,
    /// Anything else.
    Other,
}

impl Part {
    /// Every one, in the order of the metrics' label values.
    pub const ALL: [Part; 4] = [Part::System, Part::Tools, Part::Messages, Part::Other];

    /// The label value.
    pub fn label(self) -> &'static str {
        match self {
            Part::System => "system",
            Part::Tools => "tools",
            Part::Messages => "messages",
            Part::Other => "other",
        }
    }
}

/// One field: a value, or a container of the fields that follow it.
#[derive(Clone, Debug)]
pub(super) struct Field {
    path: Box<str>,
    part: Part,
    /// How many fields it is with those in it.
    size: usize,
    /// Its text as it stands, and with the order of keys, or of a set, left out.
    raw: u64,
    sorted: u64,
    /// The order of its keys, or of its items.
    keys: u64,
    is_set: bool,
    /// Its text without white space.
    dense: u64,
    is_media: bool,
    len: usize,
    marks: Box<[u8]>,
    /// The first of its pieces.
    piece: usize,
}

/// The outline of a prompt.
#[derive(Clone, Debug, Default)]
pub struct Outline {
    fields: Vec<Field>,
    /// Hashes and lengths of pieces.
    pieces: Vec<(u32, u16)>,
    /// Bytes of running hashes.
    marked: usize,
    key: u64,
    /// The field whose text is looked for, and what changes there.
    wanted: Option<(Box<str>, usize, Change)>,
}

/// A field's place under construction.
#[derive(Clone, Debug)]
struct At {
    path: String,
    part: Part,
    depth: usize,
}

impl At {
    fn root(name: &str, part: Part) -> Self {
        At { path: shown(name.as_bytes()).to_owned(), part, depth: 1 }
    }

    fn item(&self, n: usize) -> Self {
        At { path: format!("{}[{n}]", self.path), part: self.part, depth: self.depth + 1 }
    }

    fn member(&self, name: &[u8]) -> Self {
        At { path: format!("{}.{}", self.path, shown(name)), part: self.part, depth: self.depth + 1 }
    }
}

fn shown(name: &[u8]) -> &'static str {
    NAMES.into_iter().find(|known| known.as_bytes() == name).unwrap_or("…")
}

impl Outline {
    /// The outline of a request, hashed with a number that nobody else knows. `None` where nothing is outlined.
    pub fn of(endpoint: Endpoint, request: &Request<'_>, key: u64) -> Option<Self> {
        if !endpoint.is_inference() {
            return None;
        }
        let mut outline = Outline { key, ..Outline::default() };
        outline.read(request).ok()?;
        outline.fields.shrink_to_fit();
        outline.pieces.shrink_to_fit();
        (!outline.fields.is_empty()).then_some(outline)
    }

    /// Heap bytes that it takes, about.
    pub fn bytes(&self) -> usize {
        self.fields.capacity() * size_of::<Field>()
            + self.fields.iter().map(|field| field.path.len() + field.marks.len()).sum::<usize>()
            + self.pieces.capacity() * size_of::<(u32, u16)>()
    }

    /// What changes where `at` says, going by what stands there in the request that it was found in.
    pub fn change(request: &Request<'_>, at: &Break) -> Change {
        let Some(offset) = at.offset.filter(|_| at.change == Change::Value) else { return at.change };
        let mut outline = Outline { wanted: Some((at.path.clone(), offset, at.change)), ..Outline::default() };
        // one that cannot be read has no outline either
        let _unread = outline.read(request);
        outline.wanted.map_or(at.change, |(.., change)| change)
    }

    fn read(&mut self, request: &Request<'_>) -> Result<(), Malformed> {
        let own = &request.own;
        for (name, text) in [("system", own.system), ("instructions", own.instructions)] {
            self.root(name, Part::System, text)?;
        }
        let messages = request.messages.as_deref().unwrap_or_default();
        let is_leading = |m: &&Message<'_>| m.role.is_some_and(|r| r.position(&["system", "developer"]).is_some());
        let leading = messages.iter().take_while(is_leading).count();
        for (n, message) in messages.iter().enumerate().take(leading) {
            self.message(n, message, Part::System)?;
        }
        for (name, text) in RENDERED.into_iter().zip(request.rendered) {
            let part = if SETS[..2].contains(&name) { Part::Tools } else { Part::Other };
            self.root(name, part, text)?;
        }
        for (n, message) in messages.iter().enumerate().skip(leading) {
            self.message(n, message, Part::Messages)?;
        }
        for (name, text) in [("input", own.input), ("prompt", request.prompt), ("text", own.text)] {
            self.root(name, Part::Messages, text)?;
        }
        Ok(())
    }

    fn root(&mut self, name: &str, part: Part, text: Option<&[u8]>) -> Result<(), Malformed> {
        text.map_or(Ok(()), |text| self.value(&At::root(name, part), text, SETS.contains(&name)))
    }

    fn message(&mut self, n: usize, message: &Message<'_>, part: Part) -> Result<(), Malformed> {
        let at = At::root("messages", part).item(n);
        if let Some(role) = message.role {
            self.leaf(&at.member(b"role"), &role.bytes());
        }
        if let Some(content) = message.content {
            self.value(&at.member(b"content"), content, false)?;
        }
        for (name, text) in MESSAGE_MEMBERS.into_iter().zip(message.others) {
            if let Some(text) = text {
                self.value(&at.member(name.as_bytes()), text, false)?;
            }
        }
        Ok(())
    }

    fn value(&mut self, at: &At, text: &[u8], is_set: bool) -> Result<(), Malformed> {
        if self.fields.len() >= MOST.0 || self.pieces.len() >= MOST.1 {
            return Ok(());
        }
        let mut cursor = Cursor::new(text);
        match cursor.kind()? {
            Kind::String => self.leaf(at, &cursor.string()?.bytes()),
            Kind::Array if at.depth < DEEPEST => {
                let place = self.container(at, text, is_set)?;
                let mut n = 0;
                cursor.array(|item| {
                    self.value(&at.item(n), item.skip()?, false)?;
                    n += 1;
                    Ok(())
                })?;
                self.close(place);
            }
            Kind::Object if at.depth < DEEPEST => {
                let place = self.container(at, text, false)?;
                cursor.object(|key, value| {
                    let text = value.skip()?;
                    if is_unread(&key.bytes()) { Ok(()) } else { self.value(&at.member(&key.bytes()), text, false) }
                })?;
                self.close(place);
            }
            _ => self.leaf(at, text),
        }
        Ok(())
    }

    fn container(&mut self, at: &At, text: &[u8], is_set: bool) -> Result<usize, Malformed> {
        let keys = self.order(text, is_set)?;
        let sorted = sorted(text, self.key, is_set, 0)?;
        self.fields.push(Field {
            path: at.path.as_str().into(),
            part: at.part,
            size: 1,
            raw: xxh3_64_with_seed(text, self.key),
            sorted,
            keys,
            is_set,
            dense: 0,
            is_media: false,
            len: 0,
            marks: Box::default(),
            piece: self.pieces.len(),
        });
        Ok(self.fields.len() - 1)
    }

    fn close(&mut self, place: usize) {
        self.fields[place].size = self.fields.len() - place;
    }

    /// The order of an object's keys, or of a set's items.
    fn order(&self, text: &[u8], is_set: bool) -> Result<u64, Malformed> {
        let (mut cursor, mut order) = (Cursor::new(text), self.key);
        match cursor.kind()? {
            Kind::Object => cursor.object(|key, value| {
                order = xxh3_64_with_seed(&key.bytes(), order);
                value.skip().map(drop)
            })?,
            Kind::Array if is_set => cursor.array(|item| {
                let item = sorted(item.skip()?, self.key, false, 1)?;
                order = xxh3_64_with_seed(&item.to_le_bytes(), order);
                Ok(())
            })?,
            _ => {}
        }
        Ok(order)
    }

    fn leaf(&mut self, at: &At, text: &[u8]) {
        if let Some((_, offset, change)) = self.wanted.as_mut().filter(|(path, ..)| **path == *at.path) {
            *change = kind_of(text, *offset);
        }
        if self.fields.len() >= MOST.0 {
            return;
        }
        let raw = xxh3_64_with_seed(text, self.key);
        let piece = self.pieces.len();
        let is_media = is_media(text);
        let (marks, dense) = if is_media { Default::default() } else { self.run_over(text) };
        self.fields.push(Field {
            path: at.path.as_str().into(),
            part: at.part,
            size: 1,
            raw,
            sorted: raw,
            keys: 0,
            is_set: false,
            dense,
            is_media,
            len: text.len(),
            marks,
            piece,
        });
    }

    /// Cuts a text into pieces where its own bytes say so, and notes its running hash; that without white space at its end.
    fn run_over(&mut self, text: &[u8]) -> (Box<[u8]>, u64) {
        let mut marks = Vec::with_capacity(text.len().min(FINE) + text.len().saturating_sub(FINE) / STEP);
        let (mut run, mut dense, mut local, mut from) = (self.key, self.key, 0u64, 0);
        let step = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
        for (at, byte) in text.iter().enumerate() {
            run = step(run, *byte);
            dense = if byte.is_ascii_whitespace() { dense } else { step(dense, *byte) };
            if self.marked + marks.len() < MOST.2 && (at < FINE || at.is_multiple_of(STEP)) {
                marks.push(run.to_le_bytes()[0]);
            }
            // forgets what is more than 64 bytes ago
            local = (local << 1).wrapping_add((u64::from(*byte) + 1).wrapping_mul(0xff51_afd7_ed55_8ccd));
            let len = at + 1 - from;
            if (len >= PIECE.0 && (local >> 40) & PIECE.2 == 0) || len >= PIECE.1 || at + 1 == text.len() {
                if self.pieces.len() < MOST.1 {
                    let hash = xxh3_64_with_seed(&text[from..=at], self.key);
                    let [a, b, c, d, ..] = hash.to_le_bytes();
                    self.pieces.push((u32::from_le_bytes([a, b, c, d]), u16::try_from(len).unwrap_or(u16::MAX)));
                }
                from = at + 1;
            }
        }
        self.marked += marks.len();
        (marks.into(), dense)
    }
}

/// Whether a text is data: an address that holds it, or base64.
fn is_media(text: &[u8]) -> bool {
    let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_' | b'=');
    text.starts_with(b"data:") || text.get(..SOLID).is_some_and(|head| head.iter().all(is_digit))
}

/// The hash of a value without the order of keys, and of a set without that of its items.
fn sorted(text: &[u8], key: u64, is_set: bool, depth: usize) -> Result<u64, Malformed> {
    let mut cursor = Cursor::new(text);
    let mut sum = key;
    match cursor.kind()? {
        Kind::Object if depth < DEEPEST => cursor.object(|name, value| {
            let inner = sorted(value.skip()?, xxh3_64_with_seed(&name.bytes(), key), false, depth + 1)?;
            sum = sum.wrapping_add(inner);
            Ok(())
        })?,
        Kind::Array if depth < DEEPEST => {
            let mut place = key;
            cursor.array(|item| {
                let inner = sorted(item.skip()?, place, false, depth + 1)?;
                sum = sum.wrapping_add(inner);
                place = if is_set { place } else { place.wrapping_add(1) };
                Ok(())
            })?;
        }
        Kind::String => return Ok(xxh3_64_with_seed(&cursor.string()?.bytes(), !key)),
        _ => return Ok(xxh3_64_with_seed(text, key)),
    }
    Ok(xxh3_64_with_seed(&sum.to_le_bytes(), key))
}

#[cfg(test)]
mod tests;
