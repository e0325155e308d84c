//! The journal: every choice and what it went by, as JSON lines, so that it can be made again (`ramjet replay`).
//!
//! It is written by one thread, off the path of requests: steps come through a channel of fixed size, and where the disk
//! is slower than the router, steps are lost and counted, and the file says so. SIGHUP opens the file anew, for whoever
//! rotates it; how large it may grow is that one's business.
//!
//! **What is in it:** sizes, times, token counts, slots of replicas, loads, overlaps, ids of requests, what came of them,
//! and prompts as hashes of their blocks, so that equal beginnings show as equal. **What is not:** text, hosts and names of
//! replicas, models or tenants (models are numbered), keys, names of sessions.
//!
//! **What the hashes tell:** a fingerprint is a keyed hash already; here it is hashed again by SHA-256 with 128 bits that
//! this process drew, tells nobody and never writes down. So a guess of a prompt cannot be tested against the file, not
//! by who knows the group's secret either. What shows is which requests begin alike, and how far: whoever may not know
//! that must not have the file, which only its owner can read.

mod hashes;
mod lines;
mod reader;

pub use reader::{Broken, Line, Part, Reader};

use super::metrics::Metrics;
use crate::fleet::steps::Stage;
use lines::Scribe;
use parking_lot::Mutex;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

/// Steps that wait to be written: about a thousand requests.
const WAITING: usize = 8192;
/// How long the writer sleeps at most before it looks whether it is to open the file anew, or to end.
const LOOK: Duration = Duration::from_millis(50);
/// What is written at once.
const CHUNK: usize = 64 << 10;

/// The journal of this process.
pub struct Journal {
    path: PathBuf,
    metrics: Arc<Metrics>,
    lost: Arc<AtomicU64>,
    orders: Orders,
    /// Until the writer runs.
    idle: Mutex<Option<(File, Receiver<Stage>)>>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// What the writer is told.
#[derive(Clone, Default)]
struct Orders {
    reopen: Arc<AtomicBool>,
    end: Arc<AtomicBool>,
}

/// The thread that writes.
struct Writer {
    path: PathBuf,
    file: File,
    scribe: Scribe,
    metrics: Arc<Metrics>,
    lost: Arc<AtomicU64>,
    told: u64,
    orders: Orders,
    /// Whether the disk refused the last lines.
    fails: bool,
}

impl Journal {
    /// Opens the file, to write at its end; what comes out of the other value is written once [`Self::start`] was called.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: &Path, metrics: Arc<Metrics>) -> io::Result<(Self, SyncSender<Stage>)> {
        // a daemon changes its directory
        let path = std::path::absolute(path)?;
        let file = open(&path)?;
        let (out, stages) = sync_channel(WAITING);
        let journal = Journal {
            path,
            metrics,
            lost: Arc::default(),
            orders: Orders::default(),
            idle: Mutex::new(Some((file, stages))),
            writer: Mutex::new(None),
        };
        Ok((journal, out))
    }

    /// Steps that found no place in the channel.
    pub fn lost(&self) -> Arc<AtomicU64> {
        self.lost.clone()
    }

    /// Begins to write, for as long as `is_over` does not say that another process does. Once is enough.
    pub fn start(&self, is_over: impl Fn() -> bool + Send + 'static) {
        let Some((file, stages)) = self.idle.lock().take() else { return };
        let mut writer = Writer {
            path: self.path.clone(),
            file,
            scribe: Scribe::new(random_bytes()),
            metrics: self.metrics.clone(),
            lost: self.lost.clone(),
            told: 0,
            orders: self.orders.clone(),
            fails: false,
        };
        let run = std::thread::Builder::new().name("journal".to_owned()).spawn(move || writer.run(&stages, &is_over));
        match run {
            Ok(handle) => *self.writer.lock() = Some(handle),
            Err(e) => log::error!("the journal is not written: {e}"),
        }
    }

    /// Opens the file anew: it was moved away.
    pub fn reopen(&self) {
        self.orders.reopen.store(true, Relaxed);
    }

    /// Writes what is left, and ends.
    pub fn close(&self) {
        self.orders.end.store(true, Relaxed);
        if let Some(writer) = self.writer.lock().take() {
            // one that panicked has said so
            drop(writer.join());
        }
    }
}

impl Writer {
    fn run(&mut self, stages: &Receiver<Stage>, is_over: &dyn Fn() -> bool) {
        self.scribe.head(unix());
        loop {
            match stages.recv_timeout(LOOK) {
                Ok(stage) => {
                    self.scribe.stage(&stage);
                    while self.scribe.out.len() < CHUNK
                        && let Ok(stage) = stages.try_recv()
                    {
                        self.scribe.stage(&stage);
                    }
                }
                Err(RecvTimeoutError::Timeout) if self.orders.end.load(Relaxed) => return self.flush(),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.flush(),
            }
            let lost = self.lost.load(Relaxed);
            if lost > self.told {
                self.scribe.lost(lost - self.told);
                self.metrics.journal_lost(lost - self.told);
                self.told = lost;
            }
            self.flush();
            if self.orders.reopen.swap(false, Relaxed) {
                self.turn_the_page();
            }
            if is_over() {
                self.scribe.over();
                self.flush();
                // whoever writes now has the file; what still happens here is not missed
                return while stages.recv().is_ok() {};
            }
        }
    }

    fn flush(&mut self) {
        let lines = self.scribe.take_lines();
        if self.scribe.out.is_empty() {
            return;
        }
        let whole = self.file.metadata().map(|file| file.len());
        let written = self.file.write_all(&self.scribe.out);
        self.scribe.out.clear();
        match written {
            Ok(()) => self.metrics.journal_lines(lines),
            Err(e) => {
                self.lost.fetch_add(lines, Relaxed);
                // no later line may go on from what these had
                self.scribe.forget();
                // no torn line stays; where that cannot be had, the reader says so
                drop(whole.and_then(|whole| self.file.set_len(whole)));
                if !std::mem::replace(&mut self.fails, true) {
                    log::error!("the journal {} cannot be written: {e}", self.path.display());
                }
                return;
            }
        }
        self.fails = false;
    }

    fn turn_the_page(&mut self) {
        match open(&self.path) {
            Ok(file) => {
                self.file = file;
                self.scribe.turn_the_page();
                self.scribe.head(unix());
                self.flush();
            }
            Err(e) => log::error!("the journal {} cannot be opened anew: {e}", self.path.display()),
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

fn unix() -> f64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0.0, |since| since.as_secs_f64())
}

/// What nobody else knows: from the system, or from the seeds that the standard library draws for its maps.
fn random_bytes() -> [u8; 16] {
    use std::hash::{BuildHasher, RandomState};
    use std::io::Read;
    let mut bytes = [0; 16];
    let drawn = File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes));
    if drawn.is_err() {
        for half in bytes.chunks_exact_mut(8) {
            half.copy_from_slice(&RandomState::new().hash_one(half.as_ptr()).to_le_bytes());
        }
    }
    bytes
}

#[cfg(test)]
mod tests;
