//! The walk over a tree: it knows the path, collects problems, and remembers where every setting was written.
//!
//! Layers (file, environment, flags) are read one after the other into the same settings, so each layer is checked
//! in full, even where a later one overrides it.

use std::collections::BTreeMap;
use std::fmt;

use super::node::{Node, Value};
use super::problem::{Origin, Problem};
use super::replicas::WrittenReplica;
use super::schema::Section;
use super::suggest;

#[derive(Default)]
pub(super) struct Reader {
    pub(super) problems: Vec<Problem>,
    /// The replicas of the last layer that has any; the rules turn them into the fleet.
    pub(super) written: Vec<WrittenReplica>,
    /// Whether a whole layer could not be read, so that what is missing may well have been written.
    pub(super) partial: bool,
    /// Starts with a dot where it is not empty.
    path: String,
    origins: BTreeMap<String, Origin>,
}

impl Reader {
    /// Goes one step down (`.key` or `[index]`) to `node`, and back.
    pub(super) fn within<R>(&mut self, step: fmt::Arguments<'_>, node: &Node, read: impl FnOnce(&mut Self) -> R) -> R {
        let above = self.path.len();
        self.path.push_str(&step.to_string());
        self.origins.insert(self.path.clone(), node.origin.clone());
        let result = read(self);
        self.path.truncate(above);
        result
    }

    /// Reports what is wrong with the value here.
    pub(super) fn report(&mut self, node: &Node, allowed: impl Into<String>) {
        if let Some(found) = node.found() {
            self.report_at(&node.origin, found, allowed);
        }
    }

    /// Reports something wrong at the current path.
    pub(super) fn report_at(&mut self, origin: &Origin, found: impl Into<String>, allowed: impl Into<String>) {
        let path = self.path.trim_start_matches('.').to_owned();
        self.problems.push(Problem { origin: origin.clone(), path, found: found.into(), allowed: allowed.into() });
    }

    /// Reports something wrong with a setting that has been read.
    pub(super) fn report_setting(&mut self, path: &str, found: impl Into<String>, allowed: impl Into<String>) {
        let problem =
            Problem { origin: self.origin(path), path: path.to_owned(), found: found.into(), allowed: allowed.into() };
        self.problems.push(problem);
    }

    /// Where the setting at `path`, or else the nearest one around it, was written.
    pub(super) fn origin(&self, path: &str) -> Origin {
        let mut path = format!(".{path}");
        loop {
            if let Some(origin) = self.origins.get(&path) {
                return origin.clone();
            }
            match path.rfind(['.', '[']) {
                Some(end) => path.truncate(end),
                None => return Origin::Default,
            }
        }
    }

    /// Forgets where the items of the list here were written, as another list takes its place.
    pub(super) fn forget_items(&mut self) {
        let items = format!("{}[", self.path);
        self.origins.retain(|path, _| !path.starts_with(&items));
    }
}

/// Reads a map into `section`. A section without a value, its keys commented out, is a map without keys.
pub(super) fn read_section<S: Section>(node: &Node, section: &mut S, reader: &mut Reader) {
    let entries = match &node.value {
        Value::Map(entries) => entries,
        Value::Null => return,
        _ => return reader.report(node, format!("a map with the keys {}", S::KEYS.join(", "))),
    };
    for (index, entry) in entries.iter().enumerate() {
        let key = entry.key.as_str();
        let first = entries[..index].iter().find(|earlier| earlier.key == key);
        reader.within(format_args!(".{}", key.escape_debug()), &entry.node, |reader| {
            if let Some(first) = first {
                return reader.report_at(&entry.origin, "the key again", format!("once (first at {})", first.origin));
            }
            if !S::KEYS.contains(&key) {
                let hint = suggest::hint(key, S::KEYS.iter().copied());
                return reader.report_at(&entry.origin, "an unknown key", format!("{}{hint}", S::KEYS.join(", ")));
            }
            section.read_key(key, &entry.node, reader);
        });
    }
}
