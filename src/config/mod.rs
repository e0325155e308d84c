//! Configuration: one table of settings, read from a file, the environment and the flags, checked as a whole.
//!
//! - `table` (with `guards`) declares every setting once; `schema` and `kind` make readers, error texts and the reference of it.
//! - `node` is a tree that knows lines; `reader` walks it and collects problems; `rules` checks what spans settings.
//! - `env` turns the environment and the flags into such trees; `reference` writes the manual; `pingora` hands over.
//!
//! **Architecture invariant: a `Config` exists only if everything in it has been checked.** Nothing after `load`
//! validates a setting again, and nothing else in the program reads the environment for one.

mod clients;
mod env;
mod events;
mod found;
mod guards;
mod keys;
mod kind;
mod map;
mod node;
mod page;
pub mod pingora;
mod problem;
mod reader;
mod reference;
mod replicas;
mod rules;
mod schema;
mod shown;
mod suggest;
mod table;
#[cfg(test)]
mod tests;
mod tls;
mod traces;
mod units;
mod url;
mod values;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

pub use self::clients::{Auth, Cors};
pub use self::events::{KvEvents, ReplicaKvEvents};
pub use self::found::{Discovery, DnsDiscovery, FileDiscovery};
pub use self::guards::{Identity, Speculation};
pub use self::keys::ClientKey;
pub use self::problem::{Origin, Problem, Problems};
pub use self::reference::reference;
pub use self::shown::{Shown, shown};
pub use self::table::{
    AdminAccess, Affinity, Compat, Config, Errors, Fleet, Generation, Health, Limits, Listen, Log, LongPrompt,
    Progress, Readiness, Retry, Routing, Server, SingleFlight, SlowStart, Timeouts, Tls,
};
pub use self::tls::{BadFile, ServerTls, UpstreamTls};
pub use self::traces::Traces;
pub use self::values::{AccessLog, Common, Lane, ListenAddr, Replica, Secret};

use self::node::Node;
use self::reader::Reader;
use self::replicas::Replicas;
use self::schema::Kind;

/// Where settings come from. Flags override the environment, the environment overrides the file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sources<'a> {
    /// `-c`.
    pub file: Option<&'a Path>,
    /// `--upstream`: URLs separated by commas.
    pub upstream: Option<&'a str>,
    /// `--listen`.
    pub listen: Option<&'a str>,
    /// `--admin`.
    pub admin: Option<&'a str>,
    /// The whole environment: names that nothing reads matter too, and keys of replicas come from it.
    pub env: &'a [(String, String)],
}

/// A checked configuration.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The settings.
    pub config: Config,
    /// The keys that clients may use; `None` when they need none.
    pub client_keys: Option<Vec<ClientKey>>,
    /// The key for engines that DNS names.
    pub dns_key: Option<Secret>,
    /// The token of the admin API.
    pub admin_token: Option<Secret>,
    /// What the API listeners show in TLS; `None` without TLS.
    pub tls: Option<ServerTls>,
    /// How the collector of traces is known to be itself; `None` without TLS.
    pub traces_tls: Option<UpstreamTls>,
    /// What the operator should know although nothing is wrong, one line each.
    pub warnings: Vec<String>,
}

/// The environment, as far as it is text.
pub fn environment() -> Vec<(String, String)> {
    std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?))).collect()
}

/// Reads and checks all sources; on failure, says everything that is wrong with any of them.
pub fn load(sources: &Sources<'_>) -> Result<Loaded, Problems> {
    let mut reader = Reader::default();
    let mut config = Config::default();
    let file = sources.file.and_then(|path| read_file(path, &mut reader));
    let environment = env::read(sources.env, &mut reader.problems);
    if sources.file.is_none() && environment.upstream {
        config.listen.admin = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 9090));
    }
    for layer in file.iter().chain([&environment.layer, &env::flags(sources)]) {
        reader::read_section(layer, &mut config, &mut reader);
    }
    rules::settle(&mut config, &environment.every, sources.env, &mut reader);
    let client_keys = keys::client_keys(&config.auth, sources.env, &mut reader);
    let dns_key = rules::dns_key(&config.fleet.discovery.dns, sources.env, &mut reader);
    let admin_token = rules::admin_token(&config.admin, sources.env, &mut reader);
    let tls = tls::server(&config.listen.tls, &mut reader);
    let traces_tls = tls::collector(&config.traces, &mut reader);
    match Problems::new(reader.problems) {
        Some(problems) => Err(problems),
        None => {
            let warnings = environment.warnings;
            Ok(Loaded { config, client_keys, dns_key, admin_token, tls, traces_tls, warnings })
        }
    }
}

/// Reads a list of replicas that stands in a file of its own, in the shape of `fleet.replicas`; on failure, says everything
/// that is wrong with it. What a replica does not say stands in `common`.
pub fn replicas(text: &str, path: &Path, env: &[(String, String)], common: &Common) -> Result<Vec<Replica>, Problems> {
    let mut reader = Reader::default();
    let shown: Arc<str> = path.to_string_lossy().into();
    let tree = node::parse(text, &shown, &mut reader.problems);
    if let Some(tree) = &tree {
        reader.within(format_args!(".fleet.replicas"), tree, |reader| Replicas.read(tree, &mut Vec::new(), reader));
    }
    reader.partial = tree.is_none();
    let listed = rules::fleet(&rules::EveryReplica::default(), env, common, false, &mut reader);
    Problems::new(reader.problems).map_or(Ok(listed), Err)
}

/// The ranks of an engine, each a replica of its own.
pub fn ranks(engine: Replica, count: u32) -> Vec<Replica> {
    let mut all = Vec::new();
    rules::ranks(engine, count, &mut all);
    all
}

/// The tree of a file, if it has one.
fn read_file(path: &Path, reader: &mut Reader) -> Option<Node> {
    let shown: Arc<str> = path.to_string_lossy().into();
    let tree = match fs::read_to_string(path) {
        Ok(text) => node::parse(&text, &shown, &mut reader.problems),
        Err(error) => {
            let origin = Origin::File { path: shown, line: None };
            reader.report_at(&origin, format!("a file that cannot be read ({error})"), "a readable file in UTF-8");
            None
        }
    };
    reader.partial = tree.is_none();
    tree
}
