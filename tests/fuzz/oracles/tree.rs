//! A JSON tree that keeps what others lose: duplicate members, their order, and how numbers and strings are written.

use serde_json::Value;
use std::fmt::Write;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Tree {
    /// `true`, `false`, `null` or a number, as written.
    Atom(String),
    /// A string, decoded.
    Text(String),
    List(Vec<Tree>),
    Map(Vec<(String, Tree)>),
}

impl Tree {
    /// The tree of what serde_json takes for JSON.
    pub(crate) fn of(text: &[u8]) -> Option<Tree> {
        serde_json::from_slice::<Value>(text).ok()?;
        let mut reader = Reader { text: std::str::from_utf8(text).ok()?, at: 0 };
        Some(reader.value())
    }

    /// The members of an object.
    pub(crate) fn members(&self) -> Option<&Vec<(String, Tree)>> {
        if let Tree::Map(members) = self { Some(members) } else { None }
    }

    /// The last member of this name.
    pub(crate) fn get(&self, name: &str) -> Option<&Tree> {
        self.members()?.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    pub(crate) fn text(&self) -> Option<&str> {
        if let Tree::Text(text) = self { Some(text) } else { None }
    }

    pub(crate) fn list(&self) -> Option<&Vec<Tree>> {
        if let Tree::List(list) = self { Some(list) } else { None }
    }

    pub(crate) fn is_null(&self) -> bool {
        matches!(self, Tree::Atom(atom) if atom == "null")
    }

    /// Whether some object in it has a member twice.
    pub(crate) fn has_duplicates(&self) -> bool {
        match self {
            Tree::Map(members) => {
                let mut keys: Vec<&str> = members.iter().map(|(key, _)| &**key).collect();
                keys.sort_unstable();
                keys.windows(2).any(|pair| pair[0] == pair[1]) || members.iter().any(|(_, v)| v.has_duplicates())
            }
            Tree::List(list) => list.iter().any(Tree::has_duplicates),
            _ => false,
        }
    }

    pub(crate) fn depth(&self) -> usize {
        match self {
            Tree::Map(members) => 1 + members.iter().map(|(_, value)| value.depth()).max().unwrap_or(0),
            Tree::List(list) => 1 + list.iter().map(Tree::depth).max().unwrap_or(0),
            _ => 0,
        }
    }

    /// The tree as text.
    pub(crate) fn write(&self, style: Style) -> String {
        let mut out = String::new();
        write(self, style, &mut out);
        out
    }
}

/// Ways to write the same thing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Style {
    Compact,
    /// White space wherever it may stand.
    Spaced,
    /// Every character as an escape that some encoder writes as one: nobody escapes letters and digits of ASCII.
    Escaped,
    /// Members in the opposite order.
    Reversed,
}

fn write(tree: &Tree, style: Style, out: &mut String) {
    let space = if style == Style::Spaced { " \t\r\n" } else { "" };
    out.push_str(space);
    match tree {
        Tree::Atom(atom) => out.push_str(atom),
        Tree::Text(text) => string(text, style, out),
        Tree::List(list) => {
            out.push('[');
            for (at, item) in list.iter().enumerate() {
                out.push_str(if at > 0 { "," } else { "" });
                write(item, style, out);
            }
            out.push_str(space);
            out.push(']');
        }
        Tree::Map(members) => {
            out.push('{');
            let mut order: Vec<_> = members.iter().collect();
            if style == Style::Reversed {
                order.reverse();
            }
            for (at, (key, value)) in order.into_iter().enumerate() {
                out.push_str(if at > 0 { "," } else { "" });
                out.push_str(space);
                string(key, style, out);
                out.push_str(space);
                out.push(':');
                write(value, style, out);
            }
            out.push_str(space);
            out.push('}');
        }
    }
    out.push_str(space);
}

fn string(text: &str, style: Style, out: &mut String) {
    if style != Style::Escaped {
        return out.push_str(&Value::from(text).to_string());
    }
    out.push('"');
    for c in text.chars() {
        if c == '/' {
            out.push_str("\\/");
        } else if c.is_ascii_alphanumeric() || matches!(c, '_' | ' ' | '-' | '.' | ':' | ',' | ';' | '=' | '[') {
            out.push(c);
        } else {
            c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| write!(out, "\\u{unit:04x}").unwrap());
        }
    }
    out.push('"');
}

/// Reads text that is JSON for sure.
struct Reader<'t> {
    text: &'t str,
    at: usize,
}

impl Reader<'_> {
    fn value(&mut self) -> Tree {
        match self.peek() {
            b'{' => Tree::Map(self.items(|reader| {
                let key = reader.string();
                assert_eq!(reader.peek(), b':');
                reader.at += 1;
                (key, reader.value())
            })),
            b'[' => Tree::List(self.items(Self::value)),
            b'"' => Tree::Text(self.string()),
            _ => {
                let rest = &self.text[self.at..];
                let end = rest.find([',', ']', '}', ' ', '\n', '\r', '\t']).unwrap_or(rest.len());
                self.at += end;
                Tree::Atom(rest[..end].to_owned())
            }
        }
    }

    fn items<T>(&mut self, mut item: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let mut items = Vec::new();
        self.at += 1;
        while !matches!(self.peek(), b']' | b'}') {
            if self.peek() == b',' {
                self.at += 1;
            }
            items.push(item(self));
        }
        self.at += 1;
        items
    }

    fn string(&mut self) -> String {
        self.peek();
        let start = self.at;
        let mut is_escaped = false;
        let inside = self.text[start + 1..].bytes().take_while(|c| {
            let ends = *c == b'"' && !is_escaped;
            is_escaped = *c == b'\\' && !is_escaped;
            !ends
        });
        self.at += inside.count() + 2;
        serde_json::from_str(&self.text[start..self.at]).unwrap()
    }

    fn peek(&mut self) -> u8 {
        let rest = self.text[self.at..].trim_start_matches([' ', '\n', '\r', '\t']);
        self.at = self.text.len() - rest.len();
        rest.as_bytes()[0]
    }
}
