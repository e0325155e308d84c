//! What no single setting can check: settings against each other, and the replicas' names, addresses and keys.

use std::collections::HashMap;
use std::fs;
use std::mem;
use std::net::SocketAddr;
use std::path::Path;

use nix::unistd::{Group, User};

use super::found::DnsDiscovery;
use super::kind::Scalar;
use super::problem::{Origin, Problem, quoted};
use super::reader::Reader;
use super::replicas::WrittenReplica;
use super::table::{AdminAccess, Config, Listen, Server};
use super::tls;
use super::units::Quantity;
use super::url::{ReplicaUrl, Url};
use super::values::{Common, Lane, ListenAddr, Replica, Secret};

/// The most data-parallel ranks of one engine.
pub(super) const MOST_RANKS: u32 = 1024;

/// The names of the environment that count or name replicas.
pub(super) const DP_RANKS: &str = "RJ_UPSTREAM_DP_RANKS";
pub(super) const LONG_PROMPT_UPSTREAMS: &str = "RJ_ROUTE_LONG_PROMPT_UPSTREAMS";

/// What the environment says about every replica at once.
#[derive(Debug, Default)]
pub(super) struct EveryReplica {
    pub(super) models: Option<Vec<String>>,
    pub(super) api_key: Option<Secret>,
    /// Data-parallel ranks: a number for each replica, or one for all.
    pub(super) ranks: Option<Vec<u32>>,
    /// The members of the long-prompt lane, by name, URL, or place in the list from 0.
    pub(super) lane: Option<Vec<String>>,
}

/// Checks the settings as a whole and builds the fleet.
pub(super) fn settle(config: &mut Config, every: &EveryReplica, env: &[(String, String)], reader: &mut Reader) {
    config.fleet.identity.check("fleet.identity", reader);
    let discovery = &config.fleet.discovery;
    let may_be_empty = discovery.file.path.is_some() || discovery.dns.name.is_some();
    let common = Common::of(&config.fleet);
    config.fleet.replicas = fleet(every, env, &common, may_be_empty, reader);
    settle_owner(&mut config.server, reader);
    settle_addresses(&config.listen, reader);
    let routing = &config.routing;
    if routing.max_prefix_bytes < routing.block_bytes {
        let allowed = format!("at least routing.block_bytes, which is {}", routing.block_bytes.write());
        reader.report_setting("routing.max_prefix_bytes", routing.max_prefix_bytes.write(), allowed);
    }
}

/// Each listener has an address that it can have beside the others.
fn settle_addresses(listen: &Listen, reader: &mut Reader) {
    for (n, address) in listen.api.iter().enumerate() {
        if let Some(other) = listen.api[..n].iter().find(|other| collide(other, address)) {
            let found = format!("{} beside {}", quoted(&address.to_string()), quoted(&other.to_string()));
            reader.report_setting(&format!("listen.api[{n}]"), found, "an address and port that is free of the others");
        }
    }
    let admin = ListenAddr::Tcp(listen.admin);
    let is_in_the_way = |other: &&ListenAddr| collide(other, &admin) || mean_both(other, listen.admin);
    if let Some(other) = listen.api.iter().find(is_in_the_way) {
        let found = format!("{} beside {} in listen.api", quoted(&admin.to_string()), quoted(&other.to_string()));
        reader.report_setting("listen.admin", found, "a port of its own");
    }
}

/// Whether nobody can listen at both. Port 0 is any that is free.
fn collide(one: &ListenAddr, other: &ListenAddr) -> bool {
    match (one, other) {
        (ListenAddr::Tcp(one), ListenAddr::Tcp(other)) => {
            let is_any = one.ip().is_unspecified() || other.ip().is_unspecified();
            let is_one_family = one.is_ipv4() == other.is_ipv4();
            one.port() == other.port() && one.port() != 0 && is_one_family && (is_any || one.ip() == other.ip())
        }
        (ListenAddr::Unix(one), ListenAddr::Unix(other)) => one == other,
        _ => false,
    }
}

/// Whether they have one port, and one of them is all of IPv6, which means all of IPv4, too, while nobody has any of that.
fn mean_both(one: &ListenAddr, other: SocketAddr) -> bool {
    let is_all = |address: SocketAddr| address.is_ipv6() && address.ip().is_unspecified() && address.port() != 0;
    one.tcp().is_some_and(|one| one.port() == other.port() && (is_all(one) || is_all(other)))
}

/// Whom a daemon becomes: both are there, and the group is the user's own where none is named, as it would keep root's.
fn settle_owner(server: &mut Server, reader: &mut Reader) {
    if let Some(name) = &server.user {
        match User::from_name(name).ok().flatten() {
            None => reader.report_setting("server.user", quoted(name), "a user of this system".to_owned()),
            Some(user) if server.group.is_none() => {
                server.group = Group::from_gid(user.gid).ok().flatten().map(|group| group.name);
            }
            Some(_) => {}
        }
    }
    if let Some(name) = server.group.as_ref().filter(|name| !matches!(Group::from_name(name), Ok(Some(_)))) {
        reader.report_setting("server.group", quoted(name), "a group of this system".to_owned());
    }
}

/// The replicas that were written, each with all that belongs to it.
pub(super) fn fleet(
    every: &EveryReplica,
    env: &[(String, String)],
    common: &Common,
    may_be_empty: bool,
    reader: &mut Reader,
) -> Vec<Replica> {
    let mut written = mem::take(&mut reader.written);
    share_out(every, &mut written, reader);
    how_many(&written, may_be_empty, reader);
    let (mut names, mut urls) = (Claims::new("a name"), Claims::new("a URL"));
    let mut replicas = Vec::with_capacity(written.len());
    for (index, replica) in written.into_iter().enumerate() {
        let path = format!("fleet.replicas[{index}]");
        let api_key = every.api_key.clone().or_else(|| api_key(&replica, &path, env, reader));
        let tls = tls::upstream(&replica, &path, reader);
        let WrittenReplica { name, url, models, dp_ranks, lane, node, kv_capacity_tokens, identity, kv_events, .. } =
            replica;
        let identity = identity.or(&common.identity);
        if identity != common.identity {
            identity.check(&format!("{path}.identity"), reader);
        }
        if let Some(name) = &name {
            names.claim(name, format!("{path}.name"), reader);
        }
        let Some(url) = url else { continue };
        let alone = urls.claim(&ReplicaUrl.show(&url), format!("{path}.url"), reader);
        let name = name.unwrap_or_else(|| {
            let name = url.authority();
            // the default names of equal URLs are equal too, which is no news
            if alone {
                names.claim(&name, format!("{path}.name"), reader);
            }
            name
        });
        let models = every.models.clone().unwrap_or(models);
        let node = node.unwrap_or_else(|| url.host.clone());
        let (host, port, prefix) = (url.host, url.port, url.prefix);
        let rank = None;
        let kv_events = kv_events.or(&common.kv_events);
        let engine = Replica {
            name,
            host,
            port,
            prefix,
            tls,
            models,
            api_key,
            rank,
            lane,
            node,
            kv_capacity_tokens,
            identity,
            kv_events,
        };
        ranks(engine, dp_ranks, &mut replicas);
    }
    replicas
}

/// An engine with several data-parallel ranks is as many replicas.
pub(super) fn ranks(engine: Replica, count: u32, replicas: &mut Vec<Replica>) {
    if count < 2 {
        return replicas.push(engine);
    }
    let rank = |n| Replica { name: format!("{}#dp{n}", engine.name), rank: Some(n), ..engine.clone() };
    replicas.extend((0..count).map(rank));
}

/// Gives every replica its part of what the environment says in lists.
fn share_out(every: &EveryReplica, written: &mut [WrittenReplica], reader: &mut Reader) {
    let mut refuse = |name: &str, found: String, allowed: &str| {
        let origin = Origin::Env(name.to_owned());
        reader.problems.push(Problem { origin, path: String::new(), found, allowed: allowed.to_owned() });
    };
    match every.ranks.as_deref() {
        None => {}
        Some([all]) => written.iter_mut().for_each(|replica| replica.dp_ranks = *all),
        Some(each) if each.len() == written.len() => {
            written.iter_mut().zip(each).for_each(|(replica, ranks)| replica.dp_ranks = *ranks);
        }
        Some(each) => {
            let found = format!("{} numbers for {} replicas", each.len(), written.len());
            refuse(DP_RANKS, found, "one number for each replica, or one for all");
        }
    }
    let Some(lane) = &every.lane else { return };
    written.iter_mut().for_each(|replica| replica.lane = None);
    for item in lane {
        match written.iter().position(|replica| is_called(item, replica)).or_else(|| item.parse().ok()) {
            Some(place) if place < written.len() => written[place].lane = Some(Lane::Long),
            _ => refuse(LONG_PROMPT_UPSTREAMS, quoted(item), "names, URLs, or places in the list from 0, of replicas"),
        }
    }
}

/// Whether `item` is the replica's name or its URL.
fn is_called(item: &str, replica: &WrittenReplica) -> bool {
    let by_url = |url: &Url| url.authority() == item || ReplicaUrl.parse(item).is_some_and(|own| own == *url);
    replica.name.as_deref() == Some(item) || replica.url.as_ref().is_some_and(by_url)
}

/// Slots are 16 bits wide; and a router without replicas routes nothing.
fn how_many(written: &[WrittenReplica], may_be_empty: bool, reader: &mut Reader) {
    let count: usize = written.iter().map(|replica| replica.dp_ranks.max(1) as usize).sum();
    const MOST: usize = u16::MAX as usize;
    let unreadable = |problem: &Problem| matches!(problem.path.as_str(), "fleet" | "fleet.replicas");
    if count == 0 && !may_be_empty && !reader.partial && !reader.problems.iter().any(unreadable) {
        reader.report_setting("fleet.replicas", "no replica", "at least one, here, in RJ_UPSTREAM or in --upstream");
    } else if count > MOST {
        reader.report_setting("fleet.replicas", format!("{count} replicas"), format!("at most {MOST}"));
    }
}

/// What only one replica may have, and which setting has it.
struct Claims {
    what: &'static str,
    owners: HashMap<String, String>,
}

impl Claims {
    fn new(what: &'static str) -> Claims {
        Claims { what, owners: HashMap::new() }
    }

    /// Whether the setting at `path` is the first to have `value`; else a problem that names the first.
    fn claim(&mut self, value: &str, path: String, reader: &mut Reader) -> bool {
        if let Some(owner) = self.owners.get(value) {
            let allowed = format!("{} of its own ({owner} has this one)", self.what);
            reader.report_setting(&path, format!("{} again", quoted(value)), allowed);
            return false;
        }
        self.owners.insert(value.to_owned(), path);
        true
    }
}

/// The key of a replica.
fn api_key(replica: &WrittenReplica, path: &str, env: &[(String, String)], reader: &mut Reader) -> Option<Secret> {
    let names = [format!("{path}.api_key_env"), format!("{path}.api_key_file")];
    secret(&names, (replica.api_key_env.as_deref(), replica.api_key_file.as_deref()), env, reader)
}

/// The key for engines that DNS names.
pub(super) fn dns_key(dns: &DnsDiscovery, env: &[(String, String)], reader: &mut Reader) -> Option<Secret> {
    let names = ["api_key_env", "api_key_file"].map(|key| format!("fleet.discovery.dns.{key}"));
    secret(&names, (dns.api_key_env.as_deref(), dns.api_key_file.as_deref()), env, reader)
}

/// The token of the admin API.
pub(super) fn admin_token(access: &AdminAccess, env: &[(String, String)], reader: &mut Reader) -> Option<Secret> {
    let names = ["admin.token_env".to_owned(), "admin.token_file".to_owned()];
    secret(&names, (access.token_env.as_deref(), access.token_file.as_deref()), env, reader)
}

/// A secret that stands in a variable or in a file, `names` being those settings. What is wrong with it is said without
/// its value.
pub(super) fn secret(
    [by_env, by_file]: &[String; 2],
    source: (Option<&str>, Option<&Path>),
    env: &[(String, String)],
    reader: &mut Reader,
) -> Option<Secret> {
    match source {
        (None, None) => None,
        (Some(_), Some(_)) => {
            let last = |path: &str| path.rsplit('.').next().unwrap_or_default().to_owned();
            let (env, file) = (last(by_env), last(by_file));
            reader.report_setting(by_file, format!("{env} beside it"), format!("one of {env} and {file}"));
            None
        }
        (Some(name), None) => report_key(key_from_env(name, env), by_env, "the name of a variable that holds", reader),
        (None, Some(file)) => report_key(key_from_file(file), by_file, "a readable file that holds", reader),
    }
}

fn report_key(key: Result<Secret, String>, path: &str, source: &str, reader: &mut Reader) -> Option<Secret> {
    key.map_err(|found| reader.report_setting(path, found, format!("{source} {}", Secret::ALLOWED))).ok()
}

fn key_from_env(name: &str, env: &[(String, String)]) -> Result<Secret, String> {
    let (_, value) = env.iter().find(|(other, _)| other == name).ok_or_else(|| format!("{name}, which is not set"))?;
    Secret::new(value).ok_or_else(|| format!("{name}, whose value is not shown"))
}

fn key_from_file(file: &Path) -> Result<Secret, String> {
    let text = fs::read_to_string(file).map_err(|error| format!("a file that cannot be read ({error})"))?;
    Secret::new(&text).ok_or_else(|| "a file whose content is not shown".to_owned())
}
