//! One ramjet follows another without a lost request.
//!
//! A running process waits at a socket in the file system (`server.upgrade_sock`). Its successor, started with `-u`:
//!
//! 1. checks its configuration, and fails alone if that is bad;
//! 2. connects, and is given the listening sockets and a snapshot of what was learned. The old process goes on as before;
//! 3. builds everything, binds the addresses that are new, begins to accept, and says so. **Only then** the old process
//!    stops accepting: there is no moment at which nobody does, and whatever ends the successor before that changes
//!    nothing;
//! 4. waits at the socket from then on. The old process closes the admin listener and its HTTP/2 connections in good
//!    order at once, idle connections after `server.grace`, finishes its requests, which it tells the new one of while
//!    they run, and says at last what it has still counted.
//!
//! Pingora has a hand-over too. It was considered and refused: the old process there leaves whether or not anybody has
//! taken its sockets, any user may connect to its socket, both accept for five seconds, and it polls by the second.
//!
//! The socket is the owner's alone, and whoever is at the other end is asked of the kernel: only this user and root may
//! take over, and be taken over from. The snapshot holds the secret that fingerprints are made with; it goes over this
//! socket and nowhere else.

mod command;
mod control;
mod early;
mod notify;
mod running;
mod snapshot;
mod successor;
mod wire;

pub use command::{NotUpgraded, upgrade};
pub(super) use control::{Handover, Succession};
pub(super) use early::Early;
pub(super) use snapshot::{Known, Snapshot};
pub(super) use successor::{Inheritance, take};

use std::io::Result;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Of the frames and their order.
const PROTOCOL: u32 = 1;
/// How long the other process may take for a word.
const PATIENCE: Duration = Duration::from_secs(30);

/// The variable in which a successor is given the number of its run.
const RUN: &str = "RAMJET_RUN";

/// The number of its run that this process was given by whoever started it.
pub(super) fn given_run() -> Option<u64> {
    std::env::var(RUN).ok()?.parse().ok()
}

/// Who waits at a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Who {
    /// Drawn at its start: process ids mean little between containers.
    run: u64,
    process: u32,
    version: String,
}
crate::pack::record!(Who { run, process, version });

/// A connection to the process that waits at `socket`, if it is one that may be trusted.
fn connect(socket: &Path) -> Result<UnixStream> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let user = wire::peer_user(&stream)?;
    if is_trusted(user) || owns_alone(user, socket) {
        return Ok(stream);
    }
    Err(std::io::Error::other(format!("user {user} waits there, who is neither this user nor root")))
}

/// Whether a user may take over from this process, and the other way round.
fn is_trusted(user: u32) -> bool {
    user == 0 || user == nix::unistd::geteuid().as_raw()
}

/// Whether root meets the user to whom the socket's folder belongs, and nobody else could have put a socket there.
fn owns_alone(user: u32, socket: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    const OTHERS_WRITE: u32 = 0o022;
    let folder = socket.parent().and_then(|folder| std::fs::metadata(folder).ok());
    nix::unistd::geteuid().is_root() && folder.is_some_and(|f| f.uid() == user && f.mode() & OTHERS_WRITE == 0)
}

/// Who waits at `socket`.
fn who(socket: &Path) -> Result<Who> {
    let mut stream = connect(socket)?;
    wire::write(&mut stream, wire::Kind::Who, &[])?;
    let answer = wire::expect(&mut stream, wire::Kind::Me)?;
    crate::pack::Pack::unpack(&mut answer.as_slice()).ok_or_else(|| std::io::ErrorKind::InvalidData.into())
}
