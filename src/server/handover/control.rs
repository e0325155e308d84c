//! The running process's side: it waits for a successor, gives it what it needs, and steps back when that serves.

use super::snapshot::{Known, Told};
use super::successor::Inheritance;
use super::wire::{self, Kind};
use super::{PATIENCE, PROTOCOL, Who, connect, is_trusted, notify, who};
use crate::pack::Pack;
use crate::telemetry::outlet;
use async_trait::async_trait;
use pingora_core::server::{ListenFds, ShutdownWatch};
use pingora_core::services::{ServiceReadyNotifier, ServiceWithDependents};
use std::collections::HashSet;
use std::fs;
use std::io::{ErrorKind, Result};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::watch;

/// How often it is looked whether the listeners are bound.
const LOOK: Duration = Duration::from_millis(5);
/// How long a successor may take from its listeners to its first request: host names may be slow.
const START: Duration = Duration::from_secs(120);
/// How often, and how far apart, a process that ends tries to say what it has counted.
const TELLINGS: u32 = 20;
const TELLING_PAUSE: Duration = Duration::from_millis(100);

/// Whether another process serves in this one's place.
pub(in crate::server) struct Succession {
    over: watch::Sender<bool>,
    /// Whether this process is the one that serves, or was.
    serves: watch::Sender<bool>,
    socket: PathBuf,
    known: Known,
    told: Told,
    /// Whether a successor is being served.
    busy: AtomicBool,
    draining: Arc<AtomicBool>,
    /// Drawn at the start of the process.
    run: u64,
}

impl Succession {
    /// Nobody has taken over at `socket` yet. `draining` is set when the process has begun to go away.
    pub(in crate::server) fn new(socket: PathBuf, known: Known, draining: Arc<AtomicBool>, run: u64) -> Arc<Self> {
        let (over, serves) = (watch::Sender::new(false), watch::Sender::new(false));
        let (told, busy) = (Told::default(), AtomicBool::new(false));
        Arc::new(Succession { over, serves, socket, known, told, busy, draining, run })
    }

    /// Becomes true when another process has taken over.
    pub(in crate::server) fn over(&self) -> watch::Receiver<bool> {
        self.over.subscribe()
    }

    /// Becomes true when this process serves.
    pub(in crate::server) fn serves(&self) -> watch::Receiver<bool> {
        self.serves.subscribe()
    }

    /// Says to the process that serves now what was counted since it took over, if one has.
    pub(in crate::server) fn farewell(&self) {
        if !*self.over.borrow() {
            return;
        }
        let rest = self.known.rest(&self.told);
        let tell = || {
            let mut stream = connect(&self.socket)?;
            wire::write(&mut stream, Kind::Counted, &rest)?;
            wire::expect(&mut stream, Kind::Done).map(drop)
        };
        // while that one gives way to the next, nobody may be at the socket for a moment
        for _ in 1..TELLINGS {
            if tell().is_ok() {
                return;
            }
            std::thread::sleep(TELLING_PAUSE);
        }
        if let Err(cause) = tell() {
            log::warn!("what was counted since the hand-over is lost: {cause}");
        }
    }

    /// Answers one connection. Blocks.
    fn answer(&self, stream: UnixStream, fds: &ListenFds) -> Result<()> {
        let mut stream = stream;
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let user = wire::peer_user(&stream)?;
        if !is_trusted(user) {
            log::warn!("user {user} may not use {}", self.socket.display());
            return wire::write(&mut stream, Kind::Refused, b"this user may not");
        }
        match wire::read(&mut stream)? {
            (Kind::Who, _) => {
                let version = env!("CARGO_PKG_VERSION").to_owned();
                let mut me = Vec::new();
                Who { run: self.run, process: std::process::id(), version }.pack(&mut me);
                wire::write(&mut stream, Kind::Me, &me)
            }
            (Kind::Counted, rest) => {
                self.known.add(&rest);
                wire::write(&mut stream, Kind::Done, &[])
            }
            (Kind::Take, protocol) => self.serve_successor(&mut stream, &protocol, fds),
            _ => Err(ErrorKind::InvalidData.into()),
        }
    }

    fn serve_successor(&self, stream: &mut UnixStream, protocol: &[u8], fds: &ListenFds) -> Result<()> {
        let refusal = match u32::unpack(&mut &*protocol) {
            Some(PROTOCOL) if self.draining.load(Relaxed) => "it is about to end",
            Some(PROTOCOL) if self.busy.swap(true, Relaxed) => "another one is taking over",
            Some(PROTOCOL) => "",
            _ => "it hands over in another way: restart instead",
        };
        if !refusal.is_empty() {
            return wire::write(stream, Kind::Refused, refusal.as_bytes());
        }
        let given = self.give(stream, fds);
        self.busy.store(false, Relaxed);
        if let Err(cause) = &given {
            log::warn!("a successor gave up ({cause}): this process serves on");
        }
        given
    }

    /// Gives a successor the snapshot and the listeners, and steps back once it serves.
    fn give(&self, stream: &mut UnixStream, fds: &ListenFds) -> Result<()> {
        wire::write(stream, Kind::Known, &self.known.seal(&self.told))?;
        let (names, raw) = fds.lock().serialize();
        let mut list = Vec::new();
        names.pack(&mut list);
        wire::write(stream, Kind::Listeners, &list)?;
        wire::send_descriptors(stream, &raw)?;
        stream.set_read_timeout(Some(START))?;
        wire::expect(stream, Kind::Serving)?;
        // first of all: a probe more or less matters less than one from both
        self.known.fleet.retire();
        self.draining.store(true, Relaxed);
        self.over.send_replace(true);
        wire::write(stream, Kind::Done, &self.known.rest(&self.told))
    }
}

/// Binds or inherits, tells who waits for it, and waits for a successor.
pub(in crate::server) struct Handover {
    pub(in crate::server) succession: Arc<Succession>,
    /// What a process before this one has given.
    pub(in crate::server) inheritance: Option<Inheritance>,
    /// The addresses of all listeners: of the API, and of the admin listener, which opens when this process serves.
    pub(in crate::server) wanted: [HashSet<String>; 2],
    /// Where a daemon's process id stands until it serves, and afterwards.
    pub(in crate::server) pid_files: Option<[PathBuf; 2]>,
}

impl Handover {
    /// Takes over from the process before this one.
    async fn confirm(&mut self) {
        let Some(inheritance) = self.inheritance.take() else { return };
        let socket = self.succession.socket.clone();
        let confirmed = tokio::task::spawn_blocking(move || inheritance.confirm(&socket)).await;
        match confirmed {
            Ok(Ok(rest)) => self.succession.known.add(&rest),
            Ok(Err(cause)) => {
                eprintln!("ramjet: the running ramjet serves on: {cause}");
                self.leave();
            }
            Err(_) => self.leave(),
        }
        log::info!("this process serves in the place of the one before it");
        if let Some([next, pid_file]) = &self.pid_files
            && let Err(cause) = fs::rename(next, pid_file)
        {
            log::error!("{} does not name this process: {cause}", pid_file.display());
        }
    }

    fn leave(&self) -> ! {
        if let Some([next, _]) = &self.pid_files {
            let _gone = fs::remove_file(next);
        }
        outlet::exit(1)
    }

    /// Answers whoever connects, until the process ends or another one serves.
    async fn wait(&self, listener: UnixListener, fds: ListenFds, mut shutdown: ShutdownWatch) -> Result<()> {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::UnixListener::from_std(listener)?;
        let mut over = self.succession.over();
        loop {
            let stream = tokio::select! {
                accepted = listener.accept() => accepted?.0.into_std()?,
                _ = over.wait_for(|over| *over) => return Ok(()),
                _ = shutdown.wait_for(|down| *down) => return Ok(()),
            };
            let (succession, fds) = (self.succession.clone(), fds.clone());
            tokio::task::spawn_blocking(move || {
                if let Err(cause) = succession.answer(stream, &fds) {
                    log::debug!("at {}: {cause}", succession.socket.display());
                }
            });
        }
    }
}

#[async_trait]
impl ServiceWithDependents for Handover {
    async fn start_service(
        &mut self,
        fds: Option<ListenFds>,
        shutdown: ShutdownWatch,
        _: usize,
        ready: ServiceReadyNotifier,
    ) {
        let Some(fds) = fds else { return };
        if let Some(inheritance) = &mut self.inheritance {
            inheritance.hand_in(&mut fds.lock(), &self.wanted.iter().flatten().cloned().collect());
        }
        ready.notify_ready();
        let all_bound = || self.wanted[0].iter().all(|address| fds.lock().get(address).is_some());
        while !all_bound() {
            if *shutdown.borrow() {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
        let follows = self.inheritance.is_some();
        self.confirm().await;
        self.succession.serves.send_replace(true);
        let socket = self.succession.socket.clone();
        let bound = bind(&socket, follows);
        notify::serving();
        let listener = match bound {
            Ok(listener) => listener,
            Err(cause) => return log::info!("no upgrade is possible, only a restart: {}: {cause}", socket.display()),
        };
        let own = fs::metadata(&socket).map(|found| found.ino()).ok();
        if let Err(cause) = self.wait(listener, fds, shutdown).await {
            log::error!("no upgrade is possible any more: {}: {cause}", socket.display());
        }
        if !*self.succession.over.borrow() && fs::metadata(&socket).map(|found| found.ino()).ok() == own {
            let _gone = fs::remove_file(&socket);
        }
    }

    fn name(&self) -> &str {
        "handover"
    }

    fn threads(&self) -> Option<usize> {
        Some(1)
    }

    fn listen_addresses(&self) -> Option<Vec<String>> {
        Some(Vec::new())
    }
}

/// A socket at `path` that only this user may use, in the place of the one of the process before if this one `follows`.
fn bind(path: &Path, follows: bool) -> Result<UnixListener> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => return Err(ErrorKind::AlreadyExists.into()),
        Ok(_) if !follows && who(path).is_ok() => return Err(std::io::Error::other("another ramjet waits there")),
        _ => {}
    }
    // made aside, so that there is one at every moment, and none that others may use
    let aside = path.with_extension(format!("{}.new", std::process::id()));
    let _stale = fs::remove_file(&aside);
    let listener = UnixListener::bind(&aside)?;
    let moved = fs::set_permissions(&aside, fs::Permissions::from_mode(0o600)).and_then(|()| fs::rename(&aside, path));
    if let Err(cause) = moved {
        let _gone = fs::remove_file(&aside);
        return Err(cause);
    }
    Ok(listener)
}
