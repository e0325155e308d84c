//! The list of replicas as a kind of setting.
//!
//! A replica is more than its own lines: names and URLs are unique across the list, and keys come from elsewhere.
//! So this reads what is written and leaves the fleet to `rules`, which sees the list of the last layer.

use super::kind::Scalar;
use super::node::{Node, Value};
use super::page::Page;
use super::reader::{self, Reader};
use super::schema::{Kind, Section};
use super::table::WrittenReplica;
use super::url::ReplicaUrl;
use super::values::Replica;

pub(super) struct Replicas;

impl Kind for Replicas {
    type Value = Vec<Replica>;

    fn read(&self, node: &Node, _: &mut Vec<Replica>, reader: &mut Reader) {
        let Value::List(items) = &node.value else { return reader.report(node, allowed()) };
        reader.forget_items();
        let read = |(index, node): (usize, &Node)| {
            reader.within(format_args!("[{index}]"), node, |reader| read_replica(node, reader))
        };
        let written = items.iter().enumerate().map(read).collect();
        reader.written = written;
    }

    fn document(&self, key: &str, docs: &[&str], _: &Vec<Replica>, page: &mut Page) {
        page.describe(docs, &allowed());
        let mut item = Page::default();
        item.below(|item| WrittenReplica::default().document(item));
        page.comment("Each of them:");
        page.comment(&item.into_text());
        page.line(&format!("{key}: []"));
    }
}

fn read_replica(node: &Node, reader: &mut Reader) -> WrittenReplica {
    let mut written = WrittenReplica::default();
    reader::read_section(node, &mut written, reader);
    match node.value {
        Value::Map(_) if !node.has("url") => {
            reader.report_at(&node.origin, "no url", format!("a url: {}", ReplicaUrl.allowed()));
        }
        Value::Null => reader.report(node, format!("a map with the keys {}", WrittenReplica::KEYS.join(", "))),
        _ => {}
    }
    written
}

fn allowed() -> String {
    format!("a list of maps with the keys {}", WrittenReplica::KEYS.join(", "))
}
