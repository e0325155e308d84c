//! The successor's side: it takes the listeners and the snapshot, and says when it serves.

use super::snapshot::Snapshot;
use super::wire::{self, Kind};
use super::{PROTOCOL, connect, who};
use crate::pack::{self, Pack};
use std::collections::HashSet;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::RawFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use pingora_core::server::Fds;

/// What the running process has given.
pub(in crate::server) struct Inheritance {
    stream: UnixStream,
    /// Listening sockets by the addresses under which they were bound.
    listeners: Vec<(String, RawFd)>,
    /// What it knew; `None` if that cannot be read here.
    pub(in crate::server) snapshot: Option<Snapshot>,
}

/// Asks the process that waits at `socket` for its listeners. It goes on as before.
///
/// # Errors
/// Nobody waits there, or somebody who may not be trusted, or who refuses.
pub(in crate::server) fn take(socket: &Path) -> Result<Inheritance> {
    let mut stream = connect(socket)?;
    let mut protocol = Vec::new();
    PROTOCOL.pack(&mut protocol);
    wire::write(&mut stream, Kind::Take, &protocol)?;
    let snapshot = pack::open::<Snapshot>(&wire::expect(&mut stream, Kind::Known)?);
    if snapshot.is_none() {
        log::warn!("what the running ramjet knows cannot be read by this version: the prefix index begins empty");
    }
    let names = wire::expect(&mut stream, Kind::Listeners)?;
    let names: Vec<String> = Pack::unpack(&mut names.as_slice()).ok_or(ErrorKind::InvalidData)?;
    let fds = wire::receive_descriptors(&stream)?;
    if fds.len() != names.len() {
        return Err(Error::other("the listeners did not arrive"));
    }
    let (there, gone) = names.into_iter().zip(fds).partition(|(name, _): &(String, RawFd)| is_there(name));
    close(gone);
    Ok(Inheritance { stream, listeners: there, snapshot })
}

/// Whether clients can come to a listener: the file of a unix socket may have been taken away.
fn is_there(address: &str) -> bool {
    !address.starts_with('/') || std::fs::metadata(address).is_ok_and(|found| found.file_type().is_socket())
}

fn close(listeners: Vec<(String, RawFd)>) {
    let mut table = Fds::new();
    listeners.into_iter().for_each(|(name, fd)| table.add(name, fd));
    table.close_unclaimed(&HashSet::new());
}

impl Inheritance {
    /// The addresses of the listeners.
    pub(in crate::server) fn names(&self) -> Vec<String> {
        self.listeners.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Puts the listeners where services look for theirs; those at addresses outside `wanted` are closed here.
    pub(super) fn hand_in(&mut self, table: &mut Fds, wanted: &HashSet<String>) {
        self.listeners.drain(..).for_each(|(name, fd)| table.add(name, fd));
        table.close_unclaimed(wanted);
    }

    /// Says that this process serves, and waits until the other one has taken note, which tells what it counted since
    /// its snapshot. It may have ended meanwhile, which is no reason to leave as well.
    ///
    /// # Errors
    /// The other one lives, and will go on serving.
    pub(super) fn confirm(mut self, socket: &Path) -> Result<Vec<u8>> {
        let said = wire::write(&mut self.stream, Kind::Serving, &[]);
        match said.and_then(|()| wire::expect(&mut self.stream, Kind::Done)) {
            Ok(rest) => Ok(rest),
            Err(cause) if who(socket).is_ok() => Err(cause),
            Err(cause) => {
                log::warn!("the ramjet before this one is gone: {cause}");
                Ok(Vec::new())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_snapshot_that_cannot_be_read_costs_what_was_known_and_nothing_else() {
        let socket = std::env::temp_dir().join(format!("ramjet-successor-{}.sock", std::process::id()));
        let waiting = UnixListener::bind(&socket).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let old = std::thread::spawn(move || {
            let (mut stream, _) = waiting.accept().unwrap();
            assert_eq!(wire::read(&mut stream).unwrap(), (Kind::Take, PROTOCOL.to_le_bytes().to_vec()));
            wire::write(&mut stream, Kind::Known, b"ramjet of another time").unwrap();
            let mut names = Vec::new();
            vec!["127.0.0.1:1".to_owned()].pack(&mut names);
            wire::write(&mut stream, Kind::Listeners, &names).unwrap();
            wire::send_descriptors(&stream, &[listener.as_raw_fd()]).unwrap();
        });
        let given = take(&socket).unwrap();
        old.join().unwrap();
        std::fs::remove_file(&socket).unwrap();
        assert!(given.snapshot.is_none() && given.names() == ["127.0.0.1:1"]);
        // the other one is gone, so that this one serves
        assert_eq!(given.confirm(&socket).unwrap(), b"");
    }
}
