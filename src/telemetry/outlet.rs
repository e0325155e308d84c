//! Log lines on their way to stderr. Whoever reads it, a full pipe or a log driver that hangs, holds up nobody who has
//! something to say: lines wait in bounded memory for a thread of their own, and what finds no room is counted.

use parking_lot::{Condvar, Mutex};
use std::io::{self, Write};
use std::time::{Duration, Instant};

/// How many bytes of lines may wait.
const ROOM: usize = 4 << 20;
/// How long the first of some lines waits for others to be written with: to wake a thread for each of them would cost more
/// than they do.
const GATHER: Duration = Duration::from_millis(5);
/// How long the end of the process waits for its last lines to be taken.
const FAREWELL: Duration = Duration::from_secs(1);

/// What waits.
struct Waiting {
    lines: Vec<u8>,
    /// Lines that found no room: in all, and since that was last said.
    lost: u64,
    unsaid: u64,
    /// Whether the thread runs, and whether it holds lines that are not written yet.
    is_served: bool,
    is_writing: bool,
}

/// The waiting lines of a process.
struct Outlet {
    waiting: Mutex<Waiting>,
    /// There is something to write; all is written.
    come: Condvar,
    gone: Condvar,
}

static OUTLET: Outlet = Outlet::new();

/// Where a logger writes to.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogPipe;

impl Write for LogPipe {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if OUTLET.take(line) { Ok(line.len()) } else { io::stderr().write(line) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// From here on lines wait for a thread of their own; before, they are written at once. A process that forks calls this
/// afterwards.
pub fn serve() {
    if std::mem::replace(&mut OUTLET.waiting.lock().is_served, true) {
        return;
    }
    let writer = std::thread::Builder::new().name("log".to_owned());
    if let Err(e) = writer.spawn(|| OUTLET.write_to(&mut io::stderr())) {
        OUTLET.waiting.lock().is_served = false;
        log::warn!("log lines are written by whoever has something to say: no thread for them: {e}");
    }
}

/// Ends the process when the last lines have been taken, for which it waits a second at most.
pub fn exit(code: i32) -> ! {
    OUTLET.flush(FAREWELL);
    std::process::exit(code)
}

/// Lines that found no room so far.
pub fn lost() -> u64 {
    OUTLET.waiting.lock().lost
}

impl Outlet {
    const fn new() -> Self {
        let waiting = Waiting { lines: Vec::new(), lost: 0, unsaid: 0, is_served: false, is_writing: false };
        Outlet { waiting: Mutex::new(waiting), come: Condvar::new(), gone: Condvar::new() }
    }

    /// Whether a line waits, or is lost; if not, nobody would write it.
    fn take(&self, line: &[u8]) -> bool {
        let mut waiting = self.waiting.lock();
        if !waiting.is_served {
            return false;
        }
        if waiting.lines.len() + line.len() > ROOM {
            waiting.lost += 1;
            waiting.unsaid += 1;
        } else {
            waiting.lines.extend_from_slice(line);
            self.come.notify_one();
        }
        true
    }

    /// Writes what comes, for ever.
    fn write_to(&self, out: &mut impl Write) {
        let mut lines = Vec::new();
        loop {
            self.next(&mut lines);
            // nobody could be told
            let _unwritten = out.write_all(&lines);
            lines.clear();
        }
    }

    /// Exchanges `lines`, which are written, for those that wait.
    fn next(&self, lines: &mut Vec<u8>) {
        let mut waiting = self.waiting.lock();
        waiting.is_writing = false;
        while waiting.lines.is_empty() {
            self.gone.notify_all();
            self.come.wait(&mut waiting);
        }
        parking_lot::MutexGuard::unlocked(&mut waiting, || std::thread::sleep(GATHER));
        std::mem::swap(&mut waiting.lines, lines);
        waiting.is_writing = true;
        let unsaid = std::mem::take(&mut waiting.unsaid);
        if unsaid > 0 {
            let said = format!("WARN ramjet: {unsaid} log lines are lost: stderr did not take them\n");
            lines.extend_from_slice(said.as_bytes());
        }
    }

    fn flush(&self, limit: Duration) {
        let end = Instant::now() + limit;
        let mut waiting = self.waiting.lock();
        while waiting.is_served && (waiting.is_writing || !waiting.lines.is_empty()) {
            if self.gone.wait_until(&mut waiting, end).timed_out() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    /// Passes on what is written, and takes nothing while nobody reads.
    struct Slow(SyncSender<Vec<u8>>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.send(bytes.to_vec()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn served() -> (Arc<Outlet>, Receiver<Vec<u8>>) {
        let outlet = Arc::new(Outlet::new());
        outlet.waiting.lock().is_served = true;
        let (sender, reader) = sync_channel(0);
        let writer = outlet.clone();
        std::thread::spawn(move || writer.write_to(&mut Slow(sender)));
        (outlet, reader)
    }

    #[test]
    fn lines_keep_their_order_and_none_is_lost_while_there_is_room() {
        let (outlet, reader) = served();
        let all: Vec<u8> = (0..1000).flat_map(|n| format!("{n}\n").into_bytes()).collect();
        for line in all.split_inclusive(|c| *c == b'\n') {
            assert!(outlet.take(line));
        }
        let mut got = Vec::new();
        while got.len() < all.len() {
            got.extend(reader.recv().unwrap());
        }
        assert_eq!(got, all);
        assert_eq!(outlet.waiting.lock().lost, 0);
        outlet.flush(Duration::from_secs(60));
        assert!(!outlet.waiting.lock().is_writing);
    }

    #[test]
    fn a_reader_that_takes_nothing_holds_nobody_up_and_learns_what_it_missed() {
        let (outlet, reader) = served();
        let line = vec![b'x'; 64 << 10];
        for _ in 0..3 * ROOM / line.len() {
            outlet.take(&line);
        }
        let lost = outlet.waiting.lock().lost;
        assert!(lost > 0);
        outlet.flush(Duration::ZERO);
        let mut seen = Vec::new();
        while !seen.ends_with(b"did not take them\n") {
            seen.extend(reader.recv().unwrap());
        }
        assert_eq!(
            seen.iter().filter(|c| **c == b'x').count() as u64,
            (3 * (ROOM / line.len()) as u64 - lost) * line.len() as u64
        );
        let said = String::from_utf8(seen.split_off(seen.len() - 80)).unwrap();
        assert!(said.contains(&format!("{lost} log lines are lost")), "{said}");
    }

    #[test]
    fn before_it_is_served_nothing_waits() {
        assert!(!Outlet::new().take(b"x\n"));
    }
}
