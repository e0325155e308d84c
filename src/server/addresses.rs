//! The addresses of listeners, tried before anything begins: Pingora tries a busy address for half a minute and then lives on
//! without the listener, and where a unix socket is to be it takes away whatever is there. And what their sockets are to be like.

use super::StartError;
use crate::config::{Config, ListenAddr};
use crate::proxy::keepalive;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, setsockopt, socket, sockopt};
use pingora_core::listeners::TcpSocketOptions;
use std::fs;
use std::io::{Error, ErrorKind, Result};
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// Fails early and clearly if an address cannot be bound that is not among those `given` by another process, or is given and
/// would be another one now.
pub(super) fn check(config: &Config, given: &[String]) -> std::result::Result<(), StartError> {
    let admin = ListenAddr::Tcp(config.listen.admin);
    for address in config.listen.api.iter().chain([&admin]) {
        let is_given = |address: &str| given.iter().any(|name| name == address);
        let is_alone = address.tcp().is_some_and(|tcp| is_v6_alone(tcp, addresses(config)));
        let (shown, tried) = match address {
            ListenAddr::Tcp(tcp) if is_given(&tcp.to_string()) => (tcp.to_string(), try_given(*tcp, is_alone, given)),
            ListenAddr::Tcp(tcp) => (tcp.to_string(), try_tcp(*tcp, is_alone)),
            ListenAddr::Unix(path) if is_given(&path.to_string_lossy()) => continue,
            ListenAddr::Unix(path) => (format!("unix:{}", path.display()), try_unix(path)),
        };
        tried.map_err(|cause| StartError::Listen { address: shown, cause })?;
    }
    Ok(())
}

/// The addresses of the API that have a port.
fn addresses(config: &Config) -> impl Iterator<Item = SocketAddr> {
    config.listen.api.iter().filter_map(ListenAddr::tcp)
}

/// Whether a listener at `address` leaves IPv4 to another one of `all`: else `[::]` means both.
fn is_v6_alone(address: SocketAddr, mut all: impl Iterator<Item = SocketAddr>) -> bool {
    let is_all = address == SocketAddr::from((Ipv6Addr::UNSPECIFIED, address.port())) && address.port() != 0;
    is_all && all.any(|other| other.is_ipv4() && other.port() == address.port())
}

/// Whether a listener that the process before this one has opened is what it is to be now: that cannot be changed any more.
fn try_given(address: SocketAddr, is_alone: bool, given: &[String]) -> Result<()> {
    let was = is_v6_alone(address, given.iter().filter_map(|name| name.parse().ok()));
    if was == is_alone {
        return Ok(());
    }
    Err(Error::other(format!(
        "it serves {}, which only a restart changes",
        if was { "IPv6 alone" } else { "IPv4, too" }
    )))
}

/// Whether an address can be had. It is not listened at, or a client that looks for the service would be connected to nobody.
fn try_tcp(address: SocketAddr, is_v6_alone: bool) -> Result<()> {
    let family = if address.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet };
    let tried = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&tried, sockopt::ReuseAddr, &true)?;
    if is_v6_alone {
        setsockopt(&tried, sockopt::Ipv6V6Only, &true)?;
    }
    Ok(bind(tried.as_raw_fd(), &SockaddrStorage::from(address))?)
}

/// Whether a socket can be made at `path`, in the place of nothing or of one that nobody listens at.
fn try_unix(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(Error::new(ErrorKind::AlreadyExists, "something is there that is no socket"));
        }
        Ok(_) if UnixStream::connect(path).is_ok() => return Err(ErrorKind::AddrInUse.into()),
        _ => {}
    }
    let aside = path.with_extension(format!("{}.try", std::process::id()));
    let tried = UnixListener::bind(&aside).map(drop);
    let _gone = fs::remove_file(&aside);
    tried
}

/// A client that has vanished without a word is noticed by keepalive probes.
pub(super) fn options(config: &Config, address: SocketAddr) -> TcpSocketOptions {
    let mut options = TcpSocketOptions::default();
    options.tcp_keepalive = Some(keepalive(config.timeouts.tcp_keepalive));
    options.ipv6_only = is_v6_alone(address, addresses(config)).then_some(true);
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn an_address_is_tried_without_listening_at_it() {
        // of those that the system gives out to nobody, or who connects could be connected to itself
        let ports = (20_000..32_000).cycle().skip(std::process::id() as usize % 12_000);
        let taken = ports.take(12_000).find_map(|port| TcpListener::bind(("127.0.0.1", port)).ok()).unwrap();
        let address = taken.local_addr().unwrap();
        assert_eq!(try_tcp(address, false).unwrap_err().kind(), ErrorKind::AddrInUse);
        drop(taken);
        let asking = std::thread::spawn(move || (0..2000).any(|_| std::net::TcpStream::connect(address).is_ok()));
        while !asking.is_finished() {
            assert!(try_tcp(address, false).is_ok());
        }
        assert!(!asking.join().unwrap(), "somebody was connected to nobody");
    }

    #[test]
    fn all_of_ipv6_is_all_of_ipv4_too_where_nobody_else_has_that() {
        let alone = |address: &str, all: &[&str]| {
            is_v6_alone(address.parse().unwrap(), all.iter().map(|other| other.parse().unwrap()))
        };
        assert!(alone("[::]:80", &["[::]:80", "127.0.0.1:80"]));
        for (address, other) in [("[::]:80", "127.0.0.1:81"), ("[::1]:80", "127.0.0.1:80"), ("[::]:0", "127.0.0.1:0")] {
            assert!(!alone(address, &[address, other]), "{address} {other}");
        }
    }

    #[test]
    fn a_listener_that_only_a_restart_can_change_is_not_taken_over() {
        let address = "[::]:80".parse().unwrap();
        let (one, both) = (["[::]:80".to_owned()], ["0.0.0.0:80", "[::]:80"].map(str::to_owned));
        assert!(try_given(address, false, &one).is_ok() && try_given(address, true, &both).is_ok());
        let said = [(true, &one[..]), (false, &both)]
            .map(|(is_alone, given)| try_given(address, is_alone, given).unwrap_err().to_string());
        assert!(said[0].contains("IPv4, too") && said[1].contains("IPv6 alone"), "{said:?}");
    }

    #[test]
    fn ipv6_is_tried_beside_whoever_has_ipv4() {
        let taken = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let address = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        // a machine without IPv6 has none to try
        if TcpListener::bind("[::1]:0").is_ok() {
            assert_eq!(try_tcp(address, false).unwrap_err().kind(), ErrorKind::AddrInUse);
            assert!(try_tcp(address, true).is_ok());
        }
    }

    #[test]
    fn a_unix_socket_replaces_only_one_that_nobody_listens_at() {
        let folder = std::env::temp_dir().join(format!("ramjet-addresses-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("api.sock");
        assert!(try_unix(&path).is_ok());
        let listener = UnixListener::bind(&path).unwrap();
        assert_eq!(try_unix(&path).unwrap_err().kind(), ErrorKind::AddrInUse);
        drop(listener);
        assert!(try_unix(&path).is_ok() && path.exists());
        fs::remove_file(&path).unwrap();
        fs::write(&path, "a configuration").unwrap();
        assert_eq!(try_unix(&path).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"a configuration");
        assert_eq!(try_unix(&folder.join("none/api.sock")).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(folder).unwrap();
    }
}
