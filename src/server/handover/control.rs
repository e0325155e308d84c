//! The running process's side: it waits for a successor, gives it what it needs, and steps back when that serves.

use super::running;
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
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use tokio::sync::watch;

/// How long the listeners may take: Pingora tries a busy address for half a minute.
const BINDING: Duration = Duration::from_secs(40);
/// How long a successor may take from its listeners to its first request: host names may be slow.
const START: Duration = Duration::from_secs(120);
/// Between two connections, where one failed.
const PAUSE: Duration = Duration::from_millis(100);
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

    /// Whether another process is about to serve, or does: what is changed here is changed for nobody.
    pub(in crate::server) fn is_handing_over(&self) -> bool {
        self.busy.load(SeqCst) || *self.over.borrow()
    }

    /// Becomes true when this process serves.
    pub(in crate::server) fn serves(&self) -> watch::Receiver<bool> {
        self.serves.subscribe()
    }

    /// Whether the process that served in this one's place has ended without a word: its socket is still there, and
    /// nobody answers. One that stops takes it away.
    pub(in crate::server) async fn is_left_alone(&self) -> bool {
        for _ in 0..2 {
            let socket = self.socket.clone();
            let asked = tokio::task::spawn_blocking(move || UnixStream::connect(socket));
            if !matches!(asked.await, Ok(Err(cause)) if cause.kind() == ErrorKind::ConnectionRefused) {
                return false;
            }
            // one that is just stopping takes it away in a moment
            tokio::time::sleep(PAUSE).await;
        }
        true
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
            (Kind::Running, first) => running::count(&self.known.fleet, &mut stream, &first, &self.over()),
            (Kind::Take, protocol) => self.serve_successor(&mut stream, &protocol, fds),
            _ => Err(ErrorKind::InvalidData.into()),
        }
    }

    fn serve_successor(&self, stream: &mut UnixStream, protocol: &[u8], fds: &ListenFds) -> Result<()> {
        let refusal = match u32::unpack(&mut &*protocol) {
            Some(PROTOCOL) if self.busy.swap(true, SeqCst) => "another one is taking over",
            Some(PROTOCOL) if self.draining.load(SeqCst) => {
                self.busy.store(false, SeqCst);
                "it is about to end"
            }
            Some(PROTOCOL) => "",
            _ => "it hands over in another way: restart instead",
        };
        if !refusal.is_empty() {
            return wire::write(stream, Kind::Refused, refusal.as_bytes());
        }
        let given = self.give(stream, fds);
        self.busy.store(false, SeqCst);
        if let Err(cause) = &given {
            log::warn!("a successor gave up ({cause}): this process serves on");
        }
        given
    }

    /// Gives a successor the snapshot and the listeners, and steps back once it serves.
    fn give(&self, stream: &mut UnixStream, fds: &ListenFds) -> Result<()> {
        wire::write(stream, Kind::Known, &self.known.seal(&self.told))?;
        if self.draining.load(SeqCst) {
            // listeners may have been closed meanwhile, and their numbers may be others'
            return wire::write(stream, Kind::Refused, b"it is about to end");
        }
        let (names, raw) = fds.lock().serialize();
        let mut list = Vec::new();
        names.pack(&mut list);
        wire::write(stream, Kind::Listeners, &list)?;
        wire::send_descriptors(stream, &raw)?;
        stream.set_read_timeout(Some(START))?;
        wire::expect(stream, Kind::Serving)?;
        self.known.step_back();
        self.draining.store(true, SeqCst);
        self.over.send_replace(true);
        running::tell(&self.known.fleet, &self.socket);
        wire::write(stream, Kind::Done, &self.known.last(&self.told))
    }
}

/// Binds or inherits, tells who waits for it, and waits for a successor.
pub(in crate::server) struct Handover {
    pub(in crate::server) succession: Arc<Succession>,
    /// What a process before this one has given.
    pub(in crate::server) inheritance: Option<Inheritance>,
    /// The addresses of all listeners: of the API, and of the admin listener, which opens when this process serves.
    pub(in crate::server) wanted: [HashSet<String>; 2],
    /// Whether the API is served at all of its addresses.
    pub(in crate::server) bound: watch::Receiver<bool>,
    /// Where a daemon's process id stands until it serves, and afterwards.
    pub(in crate::server) pid_files: Option<[PathBuf; 2]>,
}

impl Handover {
    /// Takes over from the process before this one.
    async fn confirm(&mut self) {
        let Some(inheritance) = self.inheritance.take() else {
            self.succession.known.step_forward(None);
            return self.take_pid_file();
        };
        let socket = self.succession.socket.clone();
        let confirmed = tokio::task::spawn_blocking(move || inheritance.confirm(&socket)).await;
        match confirmed {
            Ok(Ok(last)) => self.succession.known.step_forward(Some(&last)),
            Ok(Err(cause)) => {
                eprintln!("ramjet: the running ramjet serves on: {cause}");
                self.give_up().await;
            }
            Err(_) => self.give_up().await,
        }
        log::info!("this process serves in the place of the one before it");
        self.take_pid_file();
    }

    fn take_pid_file(&self) {
        if let Some([next, pid_file]) = &self.pid_files
            && let Err(cause) = fs::rename(next, pid_file)
        {
            log::error!("{} does not name this process: {cause}", pid_file.display());
        }
    }

    /// Accepts nothing more, finishes what it has accepted already, and ends.
    async fn give_up(&self) {
        self.succession.over.send_replace(true);
        let deadline = tokio::time::Instant::now() + START;
        // what was accepted a moment ago is not counted yet
        tokio::time::sleep(PAUSE).await;
        while self.succession.known.metrics.inflight() > 0 && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(PAUSE).await;
        }
        self.leave()
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
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted.and_then(|(stream, _)| stream.into_std()),
                _ = over.wait_for(|over| *over) => return Ok(()),
                _ = shutdown.wait_for(|down| *down) => return Ok(()),
            };
            let stream = match accepted {
                Ok(stream) => stream,
                Err(cause) => {
                    // too many open files, perhaps: no reason to give up what may help
                    log::warn!("nobody can connect to {} now: {cause}", self.succession.socket.display());
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
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
        let (mut down, mut bound) = (shutdown.clone(), self.bound.clone());
        tokio::select! {
            bound = tokio::time::timeout(BINDING, bound.wait_for(|bound| *bound)) => if !matches!(bound, Ok(Ok(_))) {
                eprintln!("ramjet: not all addresses could be bound within {BINDING:?}");
                self.leave();
            },
            _ = down.wait_for(|down| *down) => return,
        }
        let follows = self.inheritance.is_some();
        self.confirm().await;
        self.succession.serves.send_replace(true);
        let socket = self.succession.socket.clone();
        let bound = bind(&socket, follows);
        notify::serving();
        let listener = match bound {
            Ok(listener) => listener,
            Err(cause) => return log::warn!("no upgrade is possible, only a restart: {}: {cause}", socket.display()),
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
