//! The URL of a replica: where to connect, and what goes before the API's paths.
//!
//! A general URL crate was considered and refused: it accepts far more than a replica's address may hold, repairs
//! what should be reported, and what it accepts would have to be refused here anyway.

use std::net::Ipv6Addr;

use super::kind::Scalar;
use super::problem::quoted;

const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

/// A replica's address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Url {
    /// Whether it is reached by https.
    pub(super) is_tls: bool,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) prefix: String,
}

impl Url {
    /// `host:port`, the default name of a replica.
    pub(super) fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// The address in `text`, or what is wrong with it.
    fn parse(text: &str) -> Result<Url, &'static str> {
        let (is_tls, rest) = match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest),
            _ => return Err("no http:// or https://"),
        };
        if rest.contains(['?', '#']) {
            return Err("it has a query or a fragment");
        }
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err("it has user information");
        }
        let (host, port) = authority_parts(authority, if is_tls { HTTPS_PORT } else { HTTP_PORT })?;
        Ok(Url { is_tls, host, port, prefix: prefix(path)? })
    }
}

/// The host in its usual form, IPv6 in brackets, and the port.
fn authority_parts(authority: &str, default_port: u16) -> Result<(String, u16), &'static str> {
    let end = match authority.find(']') {
        Some(bracket) => bracket + 1,
        None => authority.find(':').unwrap_or(authority.len()),
    };
    let (host, port) = authority.split_at(end);
    let is_name = |host: &str| host.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(address) => address.parse::<Ipv6Addr>().ok().map(|address| format!("[{address}]")),
        None => Some(host.to_ascii_lowercase()).filter(|host| !host.is_empty() && is_name(host)),
    };
    let host = host.ok_or("its host is not one")?;
    let port = match port.strip_prefix(':') {
        Some(digits) => digits.parse().ok().filter(|port| *port > 0).ok_or("its port is not one")?,
        None if port.is_empty() => default_port,
        None => return Err("its port is not one"),
    };
    Ok((host, port))
}

/// The path without the slash at its end and without `/v1`, which every API path brings along.
fn prefix(path: &str) -> Result<String, &'static str> {
    if !path.chars().all(|c| c.is_ascii_graphic()) {
        return Err("its path has spaces or characters outside ASCII");
    }
    let path = path.trim_end_matches('/');
    Ok(path.strip_suffix("/v1").unwrap_or(path).trim_end_matches('/').to_owned())
}

/// The kind of setting that is a replica's address.
pub(super) struct ReplicaUrl;

impl Scalar for ReplicaUrl {
    type Value = Url;

    fn parse(&self, text: &str) -> Option<Url> {
        Url::parse(text).ok()
    }

    fn allowed(&self) -> String {
        "http[s]://HOST[:PORT][/PREFIX]".to_owned()
    }

    fn show(&self, url: &Url) -> String {
        let scheme = if url.is_tls { "https" } else { "http" };
        format!("{scheme}://{}{}", url.authority(), url.prefix)
    }

    /// User information and queries may hold secrets, so only what cannot is repeated.
    fn found(&self, text: &str) -> String {
        let shown = match text.contains(['@', '?', '#']) {
            true => harmless(text).unwrap_or_else(|| "a URL that is not shown".to_owned()),
            false => quoted(text),
        };
        match Url::parse(text) {
            Ok(_) => shown,
            Err(reason) => format!("{shown} ({reason})"),
        }
    }
}

/// A URL's host and port, where it is beyond doubt that they are not part of a secret: they stand at the end, after user
/// information or before a query. `None` where that is not so.
fn harmless(text: &str) -> Option<String> {
    let (scheme, rest) = text.split_once("://")?;
    let (before, query) = rest.split_at(rest.find(['?', '#']).unwrap_or(rest.len()));
    let (user, address) = match before.rsplit_once('@') {
        // a slash in what stands before `@` may belong to a path or to a password
        Some((user, address)) if !user.contains('/') => (user, address),
        Some(_) => return None,
        None => ("", before),
    };
    let url = Url::parse(&format!("{scheme}://{address}")).ok().filter(|_| !query.contains('@'))?;
    let (user, query) = (if user.is_empty() { "" } else { "…@" }, if query.is_empty() { "" } else { "?…" });
    Some(quoted(&format!("{scheme}://{user}{}{}{query}", url.authority(), url.prefix)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_never_doubles_v1() {
        let cases = [
            ("http://a", ("a", 80, "")),
            ("HTTP://A:8000/", ("a", 8000, "")),
            ("http://a:8000/v1", ("a", 8000, "")),
            ("http://a:8000/v1/", ("a", 8000, "")),
            ("http://a:8000/engines/m1/v1", ("a", 8000, "/engines/m1")),
            ("http://a:8000/av1", ("a", 8000, "/av1")),
            ("http://[::1]:8000/x//", ("[::1]", 8000, "/x")),
            ("http://[::1]", ("[::1]", 80, "")),
            ("https://a", ("a", 443, "")),
            ("HTTPS://a:8443/v1", ("a", 8443, "")),
        ];
        for (text, (host, port, prefix)) in cases {
            let url = Url::parse(text).unwrap();
            assert_eq!((url.host.as_str(), url.port, url.prefix.as_str()), (host, port, prefix), "{text}");
            assert_eq!(url.is_tls, text.to_lowercase().starts_with("https"), "{text}");
        }
    }

    #[test]
    fn each_refusal_has_its_reason() {
        let cases = [
            ("a:8000", "no http:// or https://"),
            ("ftp://a", "no http:// or https://"),
            ("http://", "its host is not one"),
            ("http://a b", "its host is not one"),
            ("http://[::1", "its host is not one"),
            ("http://[zz]:1", "its host is not one"),
            ("http://::1:8000", "its host is not one"),
            ("http://a:", "its port is not one"),
            ("http://a:0", "its port is not one"),
            ("http://a:70000", "its port is not one"),
            ("http://[::1]8000", "its port is not one"),
            ("http://a/b c", "its path has spaces or characters outside ASCII"),
            ("http://a/?x=1", "it has a query or a fragment"),
            ("http://a/#x", "it has a query or a fragment"),
            ("http://user:pass@a", "it has user information"),
        ];
        for (text, reason) in cases {
            assert_eq!(Url::parse(text), Err(reason), "{text}");
        }
    }

    #[test]
    fn what_may_hold_a_secret_is_not_repeated() {
        for text in [
            "http://user:hunter2@a",
            "http://user:hun@ter2@a",
            "http://user:x@hunter2/y@a",
            "http://user:hunter2/y@a",
            "http://user:hunter2?y@a",
            "http://user:hunter2#@a",
            "http://a/?token=hunter2",
            "http://a/?u=me@hunter2",
            "http://a/#hunter2",
            "ftp://hunter2@a#hunter2",
            "hunter2@a",
        ] {
            let found = ReplicaUrl.found(text);
            assert!(!found.contains("hunter2") && !found.contains("ter2@"), "{text}: {found}");
        }
    }

    #[test]
    fn a_refused_url_is_recognised_without_its_secret() {
        for (text, shown) in [
            ("http://user:hunter2@box-1:8000/v1", "http://…@box-1:8000"),
            ("https://box-1/m/?token=hunter2", "https://box-1:443/m?…"),
        ] {
            let found = ReplicaUrl.found(text);
            assert!(found.contains(shown), "{found}");
        }
    }
}
