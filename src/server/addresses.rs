//! The addresses of listeners, tried before anything begins: Pingora tries a busy address for half a minute and then lives on
//! without the listener, and where a unix socket is to be it takes away whatever is there. And what their sockets are to be like.

use super::StartError;
use crate::config::{Config, ListenAddr};
use crate::proxy::keepalive;
use pingora_core::listeners::TcpSocketOptions;
use std::fs;
use std::io::{Error, ErrorKind, Result};
use std::net::{Ipv6Addr, SocketAddr};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// Fails early and clearly if an address that is not given by another process (`is_given`) cannot be bound.
pub(super) fn check(config: &Config, is_given: impl Fn(&str) -> bool) -> std::result::Result<(), StartError> {
    let admin = ListenAddr::Tcp(config.listen.admin);
    for address in config.listen.api.iter().chain([&admin]) {
        let (shown, tried) = match address {
            ListenAddr::Tcp(address) if is_given(&address.to_string()) => continue,
            ListenAddr::Tcp(address) => (address.to_string(), std::net::TcpListener::bind(address).map(drop)),
            ListenAddr::Unix(path) if is_given(&path.to_string_lossy()) => continue,
            ListenAddr::Unix(path) => (format!("unix:{}", path.display()), try_unix(path)),
        };
        tried.map_err(|cause| StartError::Listen { address: shown, cause })?;
    }
    Ok(())
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

/// A client that has vanished without a word is noticed by keepalive probes. And `[::]` means IPv4, too, where nobody listens
/// there at the same port.
pub(super) fn options(config: &Config, address: SocketAddr) -> TcpSocketOptions {
    let mut options = TcpSocketOptions::default();
    options.tcp_keepalive = Some(keepalive(config.timeouts.tcp_keepalive));
    let shares = |other: SocketAddr| other.is_ipv4() && other.port() == address.port();
    if address == SocketAddr::from((Ipv6Addr::UNSPECIFIED, address.port())) {
        let api = config.listen.api.iter().filter_map(ListenAddr::tcp);
        let is_shared = api.chain([config.listen.admin]).any(shares);
        options.ipv6_only = is_shared.then_some(true);
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

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
