//! The kinds of values a setting can have: each knows how to read a text, what to say when it cannot, and how to
//! write the value again.

use std::marker::PhantomData;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use super::node::{Node, Value};
use super::page::Page;
use super::problem::quoted;
use super::reader::{self, Reader};
use super::schema::{Kind, Section};
use super::units::Quantity;
use super::values::{AccessLog, Lane, ListenAddr};
use crate::types::{Basis, FlightMode, GuardMode, PolicyKind, Priority, ProbeMode, ShortPrompts, UsageMode, WatchMode};

/// A kind whose values are one text.
pub(super) trait Scalar {
    type Value;

    /// The value that `text` says, if it is allowed.
    fn parse(&self, text: &str) -> Option<Self::Value>;

    /// What is allowed, for people.
    fn allowed(&self) -> String;

    /// The value as YAML.
    fn show(&self, value: &Self::Value) -> String;

    /// A refused text as a problem shows it.
    fn found(&self, text: &str) -> String {
        quoted(text)
    }
}

/// The value of `node`; else a problem.
fn read_scalar<S: Scalar>(kind: &S, node: &Node, allowed: &str, reader: &mut Reader) -> Option<S::Value> {
    let Value::Text(text) = &node.value else {
        reader.report(node, allowed);
        return None;
    };
    let value = kind.parse(text);
    if value.is_none() {
        reader.report_at(&node.origin, kind.found(text), allowed);
    }
    value
}

impl<S: Scalar> Kind for S {
    type Value = S::Value;

    fn read(&self, node: &Node, slot: &mut S::Value, reader: &mut Reader) {
        if let Some(value) = read_scalar(self, node, &self.allowed(), reader) {
            *slot = value;
        }
    }

    fn document(&self, key: &str, docs: &[&str], value: &S::Value, page: &mut Page) {
        page.describe(docs, &self.allowed());
        page.line(&format!("{key}: {}", self.show(value)));
    }
}

/// A value that may be absent.
pub(super) struct OrNull<S>(pub(super) S);

impl<S: Scalar> Kind for OrNull<S> {
    type Value = Option<S::Value>;

    fn read(&self, node: &Node, slot: &mut Option<S::Value>, reader: &mut Reader) {
        match node.value {
            Value::Null => *slot = None,
            _ => {
                let allowed = format!("{}, or null", self.0.allowed());
                if let Some(value) = read_scalar(&self.0, node, &allowed, reader) {
                    *slot = Some(value);
                }
            }
        }
    }

    fn document(&self, key: &str, docs: &[&str], value: &Option<S::Value>, page: &mut Page) {
        page.describe(docs, &format!("{}, or null", self.0.allowed()));
        let value = value.as_ref().map_or_else(|| "null".to_owned(), |value| self.0.show(value));
        page.line(&format!("{key}: {value}"));
    }
}

/// A value that must be given: there is no default.
pub(super) struct Required<S>(pub(super) S);

impl<S: Scalar> Kind for Required<S> {
    type Value = Option<S::Value>;

    fn read(&self, node: &Node, slot: &mut Option<S::Value>, reader: &mut Reader) {
        if let Some(value) = read_scalar(&self.0, node, &self.0.allowed(), reader) {
            *slot = Some(value);
        }
    }

    fn document(&self, key: &str, docs: &[&str], _: &Option<S::Value>, page: &mut Page) {
        page.describe(docs, &self.0.allowed());
        page.line(&format!("{key}: # required"));
    }
}

/// A list of at least `min` values, each of them once.
pub(super) struct ListOf<S> {
    pub(super) min: usize,
    pub(super) item: S,
}

impl<S: Scalar> ListOf<S> {
    fn allowed(&self) -> String {
        let least = if self.min > 0 { format!(" of {} or more", self.min) } else { String::new() };
        format!("a list{least}, each {}", self.item.allowed())
    }
}

impl<S: Scalar<Value: PartialEq>> Kind for ListOf<S> {
    type Value = Vec<S::Value>;

    fn read(&self, node: &Node, slot: &mut Vec<S::Value>, reader: &mut Reader) {
        let Value::List(items) = &node.value else { return reader.report(node, self.allowed()) };
        if items.len() < self.min {
            return reader.report_at(&node.origin, "a list that is too short", self.allowed());
        }
        reader.forget_items();
        let allowed = self.item.allowed();
        slot.clear();
        for (index, node) in items.iter().enumerate() {
            reader.within(format_args!("[{index}]"), node, |reader| {
                match read_scalar(&self.item, node, &allowed, reader) {
                    Some(value) if slot.contains(&value) => {
                        reader.report_at(&node.origin, format!("{} again", self.item.show(&value)), "each once");
                    }
                    Some(value) => slot.push(value),
                    None => {}
                }
            });
        }
    }

    fn document(&self, key: &str, docs: &[&str], value: &Vec<S::Value>, page: &mut Page) {
        page.describe(docs, &self.allowed());
        let items: Vec<String> = value.iter().map(|value| self.item.show(value)).collect();
        page.line(&format!("{key}: [{}]", items.join(", ")));
    }
}

/// A section below a section.
pub(super) struct Nested<T>(PhantomData<T>);

pub(super) const fn nested<T>() -> Nested<T> {
    Nested(PhantomData)
}

impl<T: Section> Kind for Nested<T> {
    type Value = T;

    fn read(&self, node: &Node, slot: &mut T, reader: &mut Reader) {
        reader::read_section(node, slot, reader);
    }

    fn document(&self, key: &str, docs: &[&str], value: &T, page: &mut Page) {
        page.gap();
        page.describe(docs, "");
        page.line(&format!("{key}:"));
        page.below(|page| value.document(page));
    }
}

/// A quantity within a range.
pub(super) struct Within<Q>(RangeInclusive<Q>);

pub(super) fn span(range: RangeInclusive<Duration>) -> Within<Duration> {
    Within(range)
}

pub(super) fn bytes(range: RangeInclusive<usize>) -> Within<usize> {
    Within(range)
}

pub(super) fn count(range: RangeInclusive<u32>) -> Within<u32> {
    Within(range)
}

pub(super) fn number(range: RangeInclusive<f64>) -> Within<f64> {
    Within(range)
}

impl<Q: Quantity> Scalar for Within<Q> {
    type Value = Q;

    fn parse(&self, text: &str) -> Option<Q> {
        Q::parse(text).filter(|value| self.0.contains(value))
    }

    fn allowed(&self) -> String {
        format!("{} from {} to {}", Q::FORM, self.0.start().write(), self.0.end().write())
    }

    fn show(&self, value: &Q) -> String {
        value.write()
    }
}

/// `true` or `false`.
pub(super) struct Switch;

impl Scalar for Switch {
    type Value = bool;

    fn parse(&self, text: &str) -> Option<bool> {
        text.parse().ok()
    }

    fn allowed(&self) -> String {
        "true or false".to_owned()
    }

    fn show(&self, value: &bool) -> String {
        value.to_string()
    }
}

/// A closed set of words.
pub(super) trait Word: Copy + 'static {
    const ALL: &'static [Self];

    fn word(self) -> &'static str;
}

macro_rules! words {
    ($($choice:ty),+) => { $(
        impl Word for $choice {
            const ALL: &'static [Self] = &<$choice>::ALL;

            fn word(self) -> &'static str {
                self.name()
            }
        }
    )+ };
}

words!(PolicyKind, Basis, FlightMode, AccessLog, Lane, ShortPrompts, Priority, ProbeMode, WatchMode, GuardMode);
words!(UsageMode);

/// One word of a closed set.
pub(super) struct Choice<T>(PhantomData<T>);

pub(super) const fn choice<T>() -> Choice<T> {
    Choice(PhantomData)
}

impl<T: Word> Scalar for Choice<T> {
    type Value = T;

    fn parse(&self, text: &str) -> Option<T> {
        T::ALL.iter().copied().find(|choice| choice.word() == text)
    }

    fn allowed(&self) -> String {
        let words: Vec<&str> = T::ALL.iter().map(|choice| choice.word()).collect();
        match words.split_last() {
            Some((last, first)) if !first.is_empty() => format!("{} or {last}", first.join(", ")),
            _ => words.concat(),
        }
    }

    fn show(&self, value: &T) -> String {
        value.word().to_owned()
    }
}

/// Free text with a rule for its characters.
pub(super) struct Text {
    pub(super) allowed: &'static str,
    pub(super) rule: fn(&str) -> bool,
    /// Whether a refused text may be repeated: not where someone may have put a secret by mistake.
    pub(super) shown: bool,
}

/// Any text on one line.
pub(super) const LINE: Text =
    Text { allowed: "text without control characters", rule: |text| !text.contains(char::is_control), shown: true };

/// The name of a replica, which becomes a label and part of log lines.
pub(super) const NAME: Text = Text {
    allowed: "up to 128 letters, digits and . _ - : [ ]",
    rule: |text| text.len() <= 128 && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-:[]".contains(c)),
    shown: true,
};

/// The name of an environment variable.
pub(super) const ENV_NAME: Text = Text {
    allowed: "the name of an environment variable in capitals, digits and _",
    rule: |text| text.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'),
    shown: false,
};

/// The name of a header.
pub(super) const HEADER_NAME: Text = Text {
    allowed: "up to 128 letters, digits and - _",
    rule: |text| text.len() <= 128 && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)),
    shown: true,
};

/// A SHA-256 digest.
pub(super) const SHA256: Text = Text {
    allowed: "64 hexadecimal digits",
    rule: |text| text.len() == 64 && text.chars().all(|c| c.is_ascii_hexdigit()),
    shown: true,
};

/// The origin of a web page (RFC 6454).
pub(super) const WEB_ORIGIN: Text = Text {
    allowed: "SCHEME://HOST or SCHEME://HOST:PORT without a slash at the end, or *",
    rule: |text| {
        let rest = text.split_once("://").filter(|(scheme, _)| !scheme.is_empty()).map_or("", |(_, rest)| rest);
        text == "*" || !rest.is_empty() && rest.chars().all(|c| c.is_ascii_graphic() && !"/?#@,*".contains(c))
    },
    shown: true,
};

/// The path of a request.
pub(super) const REQUEST_PATH: Text = Text {
    allowed: "a path that begins with / and has no spaces",
    rule: |text| text.starts_with('/') && text.chars().all(|c| c.is_ascii_graphic()),
    shown: true,
};

impl Scalar for Text {
    type Value = String;

    fn parse(&self, text: &str) -> Option<String> {
        (!text.is_empty() && (self.rule)(text)).then(|| text.to_owned())
    }

    fn allowed(&self) -> String {
        self.allowed.to_owned()
    }

    fn show(&self, value: &String) -> String {
        let plain = value.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
            && value.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c))
            && value != "null";
        if plain { value.clone() } else { quoted(value) }
    }

    fn found(&self, text: &str) -> String {
        if self.shown { quoted(text) } else { "text that is not shown".to_owned() }
    }
}

/// The path of a file.
pub(super) struct FilePath;

impl Scalar for FilePath {
    type Value = PathBuf;

    fn parse(&self, text: &str) -> Option<PathBuf> {
        LINE.parse(text).map(PathBuf::from)
    }

    fn allowed(&self) -> String {
        "the path of a file".to_owned()
    }

    fn show(&self, value: &PathBuf) -> String {
        LINE.show(&value.display().to_string())
    }
}

/// An address to listen on over TCP.
pub(super) struct TcpAddr;

impl Scalar for TcpAddr {
    type Value = SocketAddr;

    fn parse(&self, text: &str) -> Option<SocketAddr> {
        text.parse().ok()
    }

    fn allowed(&self) -> String {
        "\"IP:PORT\" or \"[IPV6]:PORT\"".to_owned()
    }

    fn show(&self, value: &SocketAddr) -> String {
        quoted(&value.to_string())
    }
}

/// An address to listen on.
pub(super) struct AnyAddr;

impl Scalar for AnyAddr {
    type Value = ListenAddr;

    fn parse(&self, text: &str) -> Option<ListenAddr> {
        match text.strip_prefix("unix:") {
            Some(path) => (path.starts_with('/') && !path.contains(char::is_control))
                .then(|| ListenAddr::Unix(PathBuf::from(path))),
            None => TcpAddr.parse(text).map(ListenAddr::Tcp),
        }
    }

    fn allowed(&self) -> String {
        format!("{} or \"unix:/PATH\"", TcpAddr.allowed())
    }

    fn show(&self, value: &ListenAddr) -> String {
        quoted(&value.to_string())
    }
}
