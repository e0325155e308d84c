//! A map from names to names as a kind of setting.

use std::collections::BTreeMap;

use super::kind::{LINE, Scalar};
use super::node::{Node, Value};
use super::page::Page;
use super::problem::quoted;
use super::reader::Reader;
use super::schema::Kind;

/// Names for other names, each once; none of them stands for one that stands for another.
pub(super) struct Names;

const ALLOWED: &str = "a map from names to names, none of which is a key of it too";

impl Kind for Names {
    type Value = BTreeMap<String, String>;

    fn read(&self, node: &Node, slot: &mut Self::Value, reader: &mut Reader) {
        let entries = match &node.value {
            Value::Map(entries) => entries,
            Value::Null => return slot.clear(),
            _ => return reader.report(node, ALLOWED),
        };
        slot.clear();
        for entry in entries {
            reader.within(format_args!(".{}", entry.key.escape_debug()), &entry.node, |reader| {
                let Value::Text(text) = &entry.node.value else { return reader.report(&entry.node, LINE.allowed()) };
                match LINE.parse(text).filter(|_| LINE.parse(&entry.key).is_some()) {
                    None => reader.report_at(&entry.origin, quoted(text), LINE.allowed()),
                    Some(_) if slot.contains_key(&entry.key) => {
                        reader.report_at(&entry.origin, "the key again", "once");
                    }
                    Some(_) if entries.iter().any(|other| other.key == *text) => {
                        reader.report_at(&entry.origin, format!("{}, a key of this map", quoted(text)), ALLOWED);
                    }
                    Some(name) => drop(slot.insert(entry.key.clone(), name)),
                }
            });
        }
    }

    fn document(&self, key: &str, docs: &[&str], value: &Self::Value, page: &mut Page) {
        page.describe(docs, ALLOWED);
        let pairs: Vec<_> = value.iter().map(|(from, to)| format!("{}: {}", LINE.show(from), LINE.show(to))).collect();
        page.line(&format!("{key}: {{{}}}", pairs.join(", ")));
    }
}
