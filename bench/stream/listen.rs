//! The client of many streams: one thread that reads what comes, and finds out how long it was on its way.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use memchr::memmem::Finder;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{Instant, sleep, sleep_until};

use super::Heard;
use crate::overhead::instant::{STAMP, STAMP_DIGITS};
use crate::overhead::usage::Tree;

/// Some events fit.
const BUFFER: usize = 2 << 10;

/// What is listened to.
#[derive(Debug)]
pub(super) struct Course {
    pub(super) address: SocketAddr,
    pub(super) tree: Option<Tree>,
    pub(super) requests: Arc<[Vec<u8>]>,
    pub(super) streams: usize,
    /// how long it takes to open all
    pub(super) opening: Duration,
    /// when all speak
    pub(super) settled: Duration,
    pub(super) lasts: Duration,
}

#[derive(Default)]
struct Tally {
    counts: Cell<bool>,
    nanos: RefCell<Vec<u64>>,
    events: Cell<u64>,
    speaking: Cell<usize>,
}

/// Listens in a thread of its own, which inherits where this one may run.
pub(super) async fn listen(course: Course) -> Result<Heard, String> {
    let (tell, told) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        // who asked may be gone
        let _gone = tell.send(listen_here(&course));
    });
    told.await.map_err(|_| "the client ended early".to_owned())?
}

fn listen_here(course: &Course) -> Result<Heard, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
    LocalSet::new().block_on(&runtime, async {
        let memory = || course.tree.map(Tree::memory).unwrap_or_default();
        let (tally, idle, began) = (Rc::new(Tally::default()), memory(), Instant::now());
        let mut tasks = JoinSet::new();
        for at in 0..course.streams {
            let due = began + course.opening.mul_f64(at as f64 / course.streams as f64);
            let (address, requests, tally) = (course.address, course.requests.clone(), tally.clone());
            tasks.spawn_local(async move {
                sleep_until(due).await;
                let Some(request) = requests.get(at % requests.len().max(1)) else { return };
                // what is lost is seen in how many speak
                let _lost = stream(address, request, &tally).await;
            });
        }
        sleep_until(began + course.settled).await;
        let (times, began) = (course.tree.map(Tree::times), Instant::now());
        tally.counts.set(true);
        sleep(course.lasts).await;
        tally.counts.set(false);
        let seconds = began.elapsed().as_secs_f64();
        let cpu = times.zip(course.tree).map_or(0.0, |(before, tree)| tree.times().since(&before));
        let memory = [idle, memory()];
        let lost = course.streams.saturating_sub(tally.speaking.get());
        let mut nanos = tally.nanos.borrow_mut();
        nanos.sort_unstable();
        let at = |share: f64| {
            let rank = crate::num::size(share * nanos.len() as f64).min(nanos.len().saturating_sub(1));
            nanos.get(rank).copied().unwrap_or(0) as f64 / 1e3
        };
        Ok(Heard { events: tally.events.get(), lost, seconds, latency: [0.5, 0.99, 0.999].map(at), cpu, memory })
    })
}

/// Counts a stream that speaks.
struct Speaks<'a>(&'a Cell<usize>);

impl Drop for Speaks<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

async fn stream(address: SocketAddr, request: &[u8], tally: &Tally) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    stream.write_all(request).await?;
    let (mut buffer, mut filled, mut speaks) = (vec![0; BUFFER], 0, None);
    let finder = Finder::new(STAMP);
    loop {
        match stream.read(&mut buffer[filled..]).await? {
            0 => return Ok(()),
            n => filled += n,
        }
        let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos());
        let mut read = 0;
        let used = stamps(&buffer[..filled], &finder, |written| {
            read += 1;
            if tally.counts.get() {
                let nanos = now.saturating_sub(u128::from(written));
                tally.nanos.borrow_mut().push(u64::try_from(nanos).unwrap_or(u64::MAX));
            }
        });
        if read > 0 && speaks.is_none() {
            tally.speaking.set(tally.speaking.get() + 1);
            speaks = Some(Speaks(&tally.speaking));
        }
        if tally.counts.get() {
            tally.events.set(tally.events.get() + read);
        }
        buffer.copy_within(used..filled, 0);
        filled -= used;
    }
}

/// Finds all stamps; how many bytes need not be looked at again.
fn stamps(bytes: &[u8], finder: &Finder<'_>, mut each: impl FnMut(u64)) -> usize {
    let mut at = 0;
    while let Some(found) = finder.find(&bytes[at..]) {
        let from = at + found + STAMP.len();
        let Some(digits) = bytes.get(from..from + STAMP_DIGITS) else { return at + found };
        if let Some(stamp) = std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok()) {
            each(stamp);
        }
        at = from + STAMP_DIGITS;
    }
    // a stamp may have begun
    at.max(bytes.len().saturating_sub(STAMP.len() - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_found_in_whatever_pieces_they_come() {
        let text: String = (0..9u64).map(|n| format!("data: {{\"content\":\" at:{:019}\"}}\n\n", n + 7)).collect();
        let finder = Finder::new(STAMP);
        for size in 1..60 {
            let (mut kept, mut found) = (Vec::new(), Vec::new());
            for piece in text.as_bytes().chunks(size) {
                kept.extend_from_slice(piece);
                let used = stamps(&kept, &finder, |stamp| found.push(stamp));
                kept.drain(..used);
                assert!(kept.len() < STAMP.len() + STAMP_DIGITS);
            }
            assert_eq!(found, (7..16).collect::<Vec<u64>>(), "in pieces of {size}");
        }
    }
}
