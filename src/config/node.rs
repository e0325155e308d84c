//! A small tree in which every key and value knows where it was written.
//!
//! YAML libraries that build values drop what error messages need (lines, duplicate keys), so the tree is built
//! from parser events. Anchors, aliases and tags are refused: no setting needs them, and they make a value's line
//! ambiguous. The environment and the flags become the same tree, so one reader checks all of them.

use std::borrow::Cow;
use std::sync::Arc;

use saphyr_parser::{Event, Parser, ScalarStyle, Span, StrInput};

use super::problem::{Origin, Problem, quoted};

/// Deeper than any setting; keeps the recursion of the builder small.
const MAX_DEPTH: usize = 16;

/// A value and where it was written.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    pub(super) origin: Origin,
    pub(super) value: Value,
}

/// The shapes a value can have.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Null,
    Text(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
    /// Already reported; whoever meets it keeps quiet.
    Refused,
}

/// One key of a map. Duplicates are kept: the reader reports them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) origin: Origin,
    pub(super) node: Node,
}

impl Node {
    /// A map without keys.
    pub(super) fn empty(origin: Origin) -> Node {
        Node { origin, value: Value::Map(Vec::new()) }
    }

    /// A scalar.
    pub(super) fn text(origin: Origin, text: impl Into<String>) -> Node {
        Node { origin, value: Value::Text(text.into()) }
    }

    /// Puts `node` at a dotted path below this map, creating the maps between.
    pub(super) fn put(&mut self, path: &str, node: Node) {
        let Value::Map(entries) = &mut self.value else { return };
        let (key, rest) = path.split_once('.').map_or((path, None), |(key, rest)| (key, Some(rest)));
        let Some(rest) = rest else {
            return entries.push(Entry { key: key.to_owned(), origin: node.origin.clone(), node });
        };
        let index = entries.iter().position(|entry| entry.key == key).unwrap_or_else(|| {
            let origin = node.origin.clone();
            entries.push(Entry { key: key.to_owned(), origin: origin.clone(), node: Node::empty(origin) });
            entries.len() - 1
        });
        entries[index].node.put(rest, node);
    }

    /// Whether this is a map that holds `key`.
    pub(super) fn has(&self, key: &str) -> bool {
        matches!(&self.value, Value::Map(entries) if entries.iter().any(|entry| entry.key == key))
    }

    /// What a problem says is here; `None` where a problem has been reported already.
    pub(super) fn found(&self) -> Option<String> {
        match &self.value {
            Value::Null => Some("null".to_owned()),
            Value::Text(text) => Some(quoted(text)),
            Value::List(_) => Some("a list".to_owned()),
            Value::Map(_) => Some("a map".to_owned()),
            Value::Refused => None,
        }
    }
}

/// The tree of a YAML document. After a syntax error there is none, and the problem says where it ended.
pub(super) fn parse(text: &str, path: &Arc<str>, problems: &mut Vec<Problem>) -> Option<Node> {
    let mut builder = Builder { parser: Parser::new_from_str(text), path, problems };
    match builder.document() {
        Ok(node) => Some(node),
        Err(problem) => {
            problems.push(*problem);
            None
        }
    }
}

/// A step that ends the whole document when it fails.
type Step<T> = Result<T, Box<Problem>>;

struct Builder<'a> {
    parser: Parser<'a, StrInput<'a>>,
    path: &'a Arc<str>,
    problems: &'a mut Vec<Problem>,
}

impl<'a> Builder<'a> {
    fn document(&mut self) -> Step<Node> {
        let mut root = Node::empty(Origin::File { path: Arc::clone(self.path), line: None });
        let mut documents = 0;
        loop {
            let (event, origin) = self.next()?;
            match event {
                Event::StreamEnd => return Ok(root),
                Event::StreamStart | Event::DocumentEnd | Event::Nothing => {}
                Event::DocumentStart(_) if documents > 0 => {
                    return Err(problem(origin, "a second document", "one document"));
                }
                Event::DocumentStart(_) => documents += 1,
                event => root = self.node(event, origin, 0)?,
            }
        }
    }

    fn next(&mut self) -> Step<(Event<'a>, Origin)> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, self.origin(span))),
            Some(Err(error)) => {
                let origin = self.origin(Span::empty(*error.marker()));
                Err(problem(origin, &format!("a syntax error ({})", error.info()), "YAML"))
            }
            None => Ok((Event::StreamEnd, self.origin(Span::default()))),
        }
    }

    fn origin(&self, span: Span) -> Origin {
        Origin::File { path: Arc::clone(self.path), line: Some(span.start.line()) }
    }

    fn node(&mut self, event: Event<'a>, origin: Origin, depth: usize) -> Step<Node> {
        if depth > MAX_DEPTH {
            return Err(problem(origin, "too many levels", &format!("at most {MAX_DEPTH} levels")));
        }
        let (value, decorated) = match event {
            Event::Scalar(text, style, anchor, tag) => (scalar(text, style), anchor > 0 || tag.is_some()),
            Event::SequenceStart(anchor, tag) => (self.list(depth)?, anchor > 0 || tag.is_some()),
            Event::MappingStart(anchor, tag) => (self.map(depth)?, anchor > 0 || tag.is_some()),
            _ => (Value::Refused, true),
        };
        if decorated {
            let found = "an anchor, an alias or a tag";
            self.problems.push(*problem(origin.clone(), found, "the value itself, written out"));
            return Ok(Node { origin, value: Value::Refused });
        }
        Ok(Node { origin, value })
    }

    fn list(&mut self, depth: usize) -> Step<Value> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Value::List(items)),
                (event, origin) => items.push(self.node(event, origin, depth + 1)?),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Step<Value> {
        let mut entries = Vec::new();
        loop {
            let (event, origin) = self.next()?;
            if event == Event::MappingEnd {
                return Ok(Value::Map(entries));
            }
            let key = self.node(event, origin, depth + 1)?;
            let (event, origin) = self.next()?;
            let node = self.node(event, origin, depth + 1)?;
            match (key.value, key.origin) {
                (Value::Text(key), origin) => entries.push(Entry { key, origin, node }),
                (Value::Refused, _) => {}
                (_, origin) => self.problems.push(*problem(origin, "a key that is not text", "keys that are text")),
            }
        }
    }
}

/// Quotes only protect a text from being null; what kind of text it is, is the setting's business.
fn scalar(text: Cow<'_, str>, style: ScalarStyle) -> Value {
    let null = style == ScalarStyle::Plain && matches!(&*text, "" | "~" | "null" | "Null" | "NULL");
    if null { Value::Null } else { Value::Text(text.into_owned()) }
}

fn problem(origin: Origin, found: &str, allowed: &str) -> Box<Problem> {
    Box::new(Problem { origin, path: String::new(), found: found.to_owned(), allowed: allowed.to_owned() })
}
