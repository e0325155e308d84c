//! What this machine says of names before DNS is asked: its hosts file, its name servers, and the domains in which a short
//! name is looked for (resolv.conf(5), hosts(5)). Both files are read for every look-up: they are small, and change.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

const HOSTS: &str = "/etc/hosts";
const RESOLV_CONF: &str = "/etc/resolv.conf";
const DNS_PORT: u16 = 53;
/// As in glibc, musl and resolv.conf(5).
const MOST_DOTS: usize = 15;

/// Who is asked, and for which names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Resolver {
    /// Asked one after the other.
    pub(super) servers: Vec<SocketAddr>,
    domains: Vec<String>,
    /// A name with fewer dots is looked for in the domains first.
    dots: usize,
    hosts: String,
}

impl Resolver {
    /// As this machine is set up.
    pub(super) fn of_the_system() -> Self {
        let hosts = fs::read_to_string(HOSTS).unwrap_or_default();
        Resolver { hosts, ..Self::of(&fs::read_to_string(RESOLV_CONF).unwrap_or_default()) }
    }

    /// This server, asked for names as they are.
    pub(super) fn only(server: SocketAddr) -> Self {
        Resolver { servers: vec![server], domains: Vec::new(), dots: 1, hosts: String::new() }
    }

    /// What a resolv.conf says; without name servers, the one of this machine.
    fn of(conf: &str) -> Self {
        let mut found = Resolver { servers: Vec::new(), domains: Vec::new(), dots: 1, hosts: String::new() };
        for line in conf.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => {
                    // an address of this link has its interface behind a percent sign
                    let address = words.next().and_then(|word| word.split('%').next()?.parse().ok());
                    found.servers.extend(address.map(|address| SocketAddr::new(address, DNS_PORT)));
                }
                // the last one counts
                Some("search" | "domain") => {
                    found.domains = words.map(|domain| domain.trim_matches('.').to_owned()).collect();
                    found.domains.retain(|domain| !domain.is_empty());
                }
                Some("options") => {
                    let dots = words.filter_map(|word| word.strip_prefix("ndots:")?.parse::<usize>().ok()).next_back();
                    found.dots = dots.map_or(found.dots, |dots| dots.min(MOST_DOTS));
                }
                _ => {}
            }
        }
        if found.servers.is_empty() {
            found.servers.push(SocketAddr::from((Ipv4Addr::LOCALHOST, DNS_PORT)));
        }
        found
    }

    /// What the hosts file says of a name.
    pub(super) fn hosts(&self, name: &str) -> Vec<IpAddr> {
        let name = name.trim_end_matches('.');
        let address = |line: &str| {
            let mut words = line.split('#').next()?.split_whitespace();
            let address = words.next()?.parse().ok()?;
            words.any(|word| word.eq_ignore_ascii_case(name)).then_some(address)
        };
        self.hosts.lines().filter_map(address).collect()
    }

    /// The full names that a name may stand for, in the order in which they are asked for. One that ends with a dot is
    /// full.
    pub(super) fn full(&self, name: &str) -> Vec<String> {
        if name.ends_with('.') || self.domains.is_empty() {
            return vec![name.to_owned()];
        }
        let mut names: Vec<_> = self.domains.iter().map(|domain| format!("{name}.{domain}")).collect();
        let has_dots = name.matches('.').count() >= self.dots;
        names.insert(if has_dots { 0 } else { names.len() }, name.to_owned());
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_name_servers_are_found() {
        let conf =
            "# x\nsearch a.b\nnameserver 10.0.0.1\n nameserver\t::1 # six\nnameserver bad\nnameserver fe80::1%eth0\n";
        let wanted: Vec<SocketAddr> =
            ["10.0.0.1:53", "[::1]:53", "[fe80::1]:53"].iter().map(|a| a.parse().unwrap()).collect();
        assert_eq!((Resolver::of(conf).servers, Resolver::of("").servers.len()), (wanted, 1));
    }

    #[test]
    fn a_short_name_is_looked_for_in_the_domains_of_a_pod_and_a_long_one_first_as_it_is() {
        let pod = "search ns.svc.cluster.local svc.cluster.local\nnameserver 10.96.0.10\noptions ndots:5 edns0\n";
        let pod = Resolver::of(pod);
        assert_eq!(pod.full("engines"), ["engines.ns.svc.cluster.local", "engines.svc.cluster.local", "engines"]);
        assert_eq!(pod.full("engines.other")[1], "engines.other.svc.cluster.local");
        assert_eq!(pod.full("engines."), ["engines."]);
        let usual = Resolver::of("domain x.test\nsearch lan.test.\n");
        assert_eq!(usual.full("engines.internal"), ["engines.internal", "engines.internal.lan.test"]);
        assert_eq!(usual.full("engines"), ["engines.lan.test", "engines"]);
        assert_eq!(Resolver::of("").full("engines"), ["engines"]);
        assert_eq!(Resolver::only("127.0.0.1:5353".parse().unwrap()).full("a"), ["a"]);
    }

    #[test]
    fn the_hosts_file_names_all_addresses_of_a_host() {
        let hosts = "127.0.0.1 localhost\n# 10.0.0.9 engines.internal\n10.0.0.1\tEngines.internal gpu # gpu-b\n\
                     bad gpu\n10.0.0.2 gpu-b engines.internal\n::1 localhost\n";
        let resolver = Resolver { hosts: hosts.to_owned(), ..Resolver::of("") };
        let shown = |name| resolver.hosts(name).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(shown("engines.internal."), ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(
            (shown("gpu-b"), shown("localhost"), shown("internal")),
            (vec!["10.0.0.2".into()], vec!["127.0.0.1".into(), "::1".to_owned()], vec![])
        );
    }
}
