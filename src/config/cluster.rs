//! The settings of `cluster`: a part of the table, and what they come to.

use std::path::PathBuf;
use std::sync::Arc;

use super::kind::{ENV_NAME, FilePath, LINE, OrNull, Text, bytes};
use super::node::Node;
use super::page::Page;
use super::reader::Reader;
use super::rules::secret;
use super::schema::{Kind, Section, settings};
use super::tls::trusted;
use super::values::Secret;

const PORT: u16 = 6379;

/// Where a store is.
const STORE: Text = Text {
    allowed: "redis://HOST[:PORT][/DATABASE] or rediss://HOST[:PORT][/DATABASE]; no user and no password",
    rule: |text| Store::parse(text).is_some(),
    shown: false,
};

/// The name of a group.
const GROUP: Text = Text {
    allowed: "up to 64 letters, digits and . _ -",
    rule: |text| text.len() <= 64 && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)),
    shown: true,
};

settings! {
    /// Several routers before the same engines that share what they learn through a Valkey or Redis: what each cache holds,
    /// what runs where, where sessions are at home, speeds, drains; and fences, which have the others probe. Of prompts there are
    /// hashes only, and all is encrypted: the store shows who writes how much, and nothing else. No request waits for it: while
    /// it is gone, each router goes by what it knows itself.
    pub struct Cluster {
        /// The store. Null: this router is alone.
        url: Option<String> = None, OrNull(STORE);
        /// The name of the group. Several may use one store.
        group: String = "ramjet".to_owned(), GROUP;
        /// The environment variable that holds the secret of the group: what is believed of a store, and what it shows,
        /// depend on it. The same for all routers of the group, and long: openssl rand -hex 32.
        secret_env: Option<String> = None, OrNull(ENV_NAME);
        /// The file that holds it.
        secret_file: Option<PathBuf> = None, OrNull(FilePath);
        /// The user at the store, where it has several.
        user: Option<String> = None, OrNull(LINE);
        /// The environment variable that holds the password for the store.
        password_env: Option<String> = None, OrNull(ENV_NAME);
        /// The file that holds it.
        password_file: Option<PathBuf> = None, OrNull(FilePath);
        /// The issuers of the store's certificate, as PEM, for rediss. Null: those that the system trusts.
        ca_file: Option<PathBuf> = None, OrNull(FilePath);
        /// About how much memory of the store the group takes.
        memory: usize = 64 << 20, bytes(1 << 20..=16 << 30);
    }
}

/// Where a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    /// A host name, an IPv4 address, or an IPv6 address without brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
    /// Whether it is reached by TLS.
    pub is_tls: bool,
    /// The number of the database.
    pub database: u16,
}

/// A group that this router belongs to, with its secrets.
#[derive(Clone, Debug)]
pub struct Group {
    /// The store.
    pub store: Store,
    /// The secret of the group.
    pub secret: Secret,
    /// The password for the store.
    pub password: Option<Secret>,
    /// Those who may have issued the store's certificate, as DER.
    pub issuers: Arc<Vec<Vec<u8>>>,
}

impl Store {
    /// The store that a text names.
    fn parse(text: &str) -> Option<Store> {
        let (is_tls, rest) = match text.split_once("://")? {
            ("redis", rest) => (false, rest),
            ("rediss", rest) => (true, rest),
            _ => return None,
        };
        let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
        let database = if database.is_empty() { 0 } else { database.parse().ok()? };
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, port.parse().ok()?),
            _ => (authority, PORT),
        };
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_name = !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
        let fits = bare.map_or(is_name, |bare| bare.parse::<std::net::Ipv6Addr>().is_ok());
        (fits && port > 0).then(|| Store { host: bare.unwrap_or(host).to_owned(), port, is_tls, database })
    }
}

/// The group that is configured, if there is one.
pub(super) fn group(cluster: &Cluster, env: &[(String, String)], reader: &mut Reader) -> Option<Group> {
    let names = |what: &str| [format!("cluster.{what}_env"), format!("cluster.{what}_file")];
    let own = (cluster.secret_env.as_deref(), cluster.secret_file.as_deref());
    let login = (cluster.password_env.as_deref(), cluster.password_file.as_deref());
    let store = Store::parse(cluster.url.as_deref()?)?;
    let password = secret(&names("password"), login, env, reader);
    let issuers = if store.is_tls { trusted(cluster.ca_file.as_deref(), "cluster", reader)? } else { Arc::default() };
    if own == (None, None) {
        reader.report_setting("cluster.secret_file", "no secret", "secret_env or secret_file, as url is set");
        return None;
    }
    if !store.is_tls && cluster.ca_file.is_some() {
        reader.report_setting("cluster.ca_file", "a store without TLS", "null, or a rediss URL");
    }
    Some(Group { secret: secret(&names("secret"), own, env, reader)?, store, password, issuers })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_named_by_a_url_without_secrets() {
        let store = |host: &str, port, is_tls, database| Some(Store { host: host.to_owned(), port, is_tls, database });
        for (text, wanted) in [
            ("redis://cache", store("cache", 6379, false, 0)),
            ("rediss://cache:7000/3", store("cache", 7000, true, 3)),
            ("redis://10.0.0.1:1/", store("10.0.0.1", 1, false, 0)),
            ("redis://[::1]:7", store("::1", 7, false, 0)),
            ("redis://[::1]", store("::1", 6379, false, 0)),
            ("redis://:pass@cache", None),
            ("redis://user:pass@cache:1", None),
            ("http://cache", None),
            ("redis://", None),
            ("redis://cache:0", None),
            ("redis://cache:x", None),
            ("redis://cache/x", None),
            ("redis://::1", None),
        ] {
            assert_eq!(Store::parse(text), wanted, "{text}");
        }
    }
}
