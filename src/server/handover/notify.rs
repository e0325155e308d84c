//! Tells systemd, where that has started the process, which process serves now (`sd_notify(3)`).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Where messages go.
const SOCKET: &str = "NOTIFY_SOCKET";

/// This process is the main one of its unit, and serves.
pub(super) fn serving() {
    if let Some(socket) = std::env::var_os(SOCKET)
        && let Err(cause) = send(&socket.to_string_lossy())
    {
        log::warn!("systemd was not told that this process serves: {cause}");
    }
}

fn send(socket: &str) -> std::io::Result<()> {
    let message = format!("MAINPID={}\nREADY=1\nSTATUS=serving", std::process::id());
    let address = match socket.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address).map(drop)
}
