//! The list of replicas as a kind of setting.
//!
//! A replica is more than its own lines: names and URLs are unique across the list, and keys come from elsewhere.
//! So this reads what is written and leaves the fleet to `rules`, which sees the list of the last layer.

use std::path::PathBuf;

use super::events::ReplicaKvEvents;
use super::guards::Identity;
use super::kind::{ENV_NAME, FilePath, LINE, ListOf, NAME, OrNull, Required, Scalar, Switch, choice, count, nested};
use super::node::{Node, Value};
use super::page::Page;
use super::reader::{self, Reader};
use super::rules::MOST_RANKS;
use super::schema::{Kind, Section, settings};
use super::url::{ReplicaUrl, Url};
use super::values::{Lane, Replica};

settings! {
    /// One replica as it is written in the file; the rules make a `Replica` of it.
    pub(super) struct WrittenReplica {
        /// Its name in metrics, logs and decisions, unique in the fleet. Null: host:port of its URL.
        name: Option<String> = None, OrNull(NAME);
        /// Where it is. The port is 80, or 443 for https, unless given; a path such as /v1 at the end is never doubled.
        url: Option<Url> = None, Required(ReplicaUrl);
        /// The issuers of its certificate, as PEM, for https. Null: those that the system trusts.
        ca_file: Option<PathBuf> = None, OrNull(FilePath);
        /// Whether its certificate is verified. Without, anybody on the way can read and change everything.
        tls_verify: bool = true, Switch;
        /// The models it serves, adapters included. Empty: those that it lists on /v1/models. Adapters that its engine
        /// loads only once they are asked for are listed nowhere until then, so they are named here.
        models: Vec<String> = Vec::new(), ListOf { min: 0, item: LINE };
        /// The environment variable that holds the key sent to it.
        api_key_env: Option<String> = None, OrNull(ENV_NAME);
        /// The file that holds the key sent to it.
        api_key_file: Option<PathBuf> = None, OrNull(FilePath);
        /// The engine's data-parallel ranks. From two on, each is a replica of its own: NAME#dp0, NAME#dp1 and so on.
        dp_ranks: u32 = 1, count(1..=MOST_RANKS);
        /// long: it is kept for the prompts that routing.long_prompt calls long.
        lane: Option<Lane> = None, OrNull(choice());
        /// What it shares with replicas that fail together with it, such as a machine's name: a failed attempt goes on
        /// to another node first. Null: the host of its URL.
        node: Option<String> = None, OrNull(LINE);
        /// How many tokens its KV cache holds, or that of each of its ranks. Null: what its metrics tell, else learned.
        kv_capacity_tokens: Option<u32> = None, OrNull(count(1..=u32::MAX));
        /// What its engine tells of its cache.
        kv_events: ReplicaKvEvents = ReplicaKvEvents::default(), nested();
        /// What its engine must be: the keys of fleet.identity, those that are not null instead of what stands there.
        identity: Identity = Identity::default(), nested();
    }
}

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
