//! A closed load: so many connections, each of which sends its next request as soon as it has its answer. One thread and
//! bytes that are ready, so that the load leaves the processors to what is measured.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::LocalSet;

use super::usage::{Memory, Tree};
use super::wire::{Progress, progress};

/// Answers are small.
const BUFFER: usize = 8 << 10;
/// How long the last answers are waited for.
const SILENCE: Duration = Duration::from_secs(20);

/// What is done to whom.
#[derive(Debug, Clone)]
pub(crate) struct Shot {
    pub(crate) address: SocketAddr,
    /// whose processor time and memory count
    pub(crate) tree: Option<Tree>,
    /// a request for each connection, and from the beginning again if there are more connections
    pub(crate) requests: Arc<[Vec<u8>]>,
    pub(crate) connections: usize,
    /// requests before anything is counted, and how long it is counted then
    pub(crate) warm_up: Duration,
    pub(crate) lasts: Duration,
}

/// What came of it.
#[derive(Debug, Default, Clone)]
pub(crate) struct Hit {
    pub(crate) requests: u64,
    pub(crate) failures: u64,
    pub(crate) seconds: f64,
    /// microseconds: p50, p99
    pub(crate) latency: [f64; 2],
    /// processor time of the target in seconds
    pub(crate) cpu: f64,
    pub(crate) memory: Memory,
}

#[derive(Default)]
struct Tally {
    counts: Cell<bool>,
    ends: Cell<bool>,
    nanos: RefCell<Vec<u64>>,
    failures: Cell<u64>,
}

/// Does it, in a thread of its own, which inherits where this one may run.
pub(crate) async fn fire(shot: Shot) -> Result<Hit, String> {
    let (tell, told) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        // who asked may be gone
        let _gone = tell.send(fire_here(&shot));
    });
    told.await.map_err(|_| "the load ended early".to_owned())?
}

fn fire_here(shot: &Shot) -> Result<Hit, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
    LocalSet::new().block_on(&runtime, async {
        let tally = Rc::new(Tally::default());
        let mut tasks = tokio::task::JoinSet::new();
        for at in 0..shot.connections {
            let (tally, requests) = (tally.clone(), shot.requests.clone());
            tasks.spawn_local(client(shot.address, requests, at, tally));
        }
        tokio::time::sleep(shot.warm_up).await;
        let (before, began) = (shot.tree.map(Tree::times), Instant::now());
        tally.counts.set(true);
        tokio::time::sleep(shot.lasts).await;
        tally.counts.set(false);
        let seconds = began.elapsed().as_secs_f64();
        let cpu = before.zip(shot.tree).map_or(0.0, |(before, tree)| tree.times().since(&before));
        let memory = shot.tree.map(Tree::memory).unwrap_or_default();
        tally.ends.set(true);
        while let Ok(Some(_)) = tokio::time::timeout(SILENCE, tasks.join_next()).await {}
        // who has no answer by now gets none
        let failures = tally.failures.get() + tasks.len() as u64;
        let mut nanos = tally.nanos.borrow_mut();
        nanos.sort_unstable();
        let at = |share: f64| {
            let rank = crate::num::size(share * nanos.len() as f64).min(nanos.len().saturating_sub(1));
            nanos.get(rank).copied().unwrap_or(0) as f64 / 1e3
        };
        let requests = nanos.len() as u64;
        Ok(Hit { requests, failures, seconds, latency: [at(0.5), at(0.99)], cpu, memory })
    })
}

async fn client(address: SocketAddr, requests: Arc<[Vec<u8>]>, at: usize, tally: Rc<Tally>) {
    let Some(request) = requests.get(at % requests.len().max(1)) else { return };
    while !tally.ends.get() {
        if talk(address, request, &tally).await.is_err() {
            tally.failures.set(tally.failures.get() + 1);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Asks on one connection for as long as that lasts.
async fn talk(address: SocketAddr, request: &[u8], tally: &Tally) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; BUFFER];
    while !tally.ends.get() {
        let began = Instant::now();
        stream.write_all(request).await?;
        if !answered(&mut stream, &mut buffer).await? {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
        if tally.counts.get() {
            let nanos = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
            tally.nanos.borrow_mut().push(nanos);
        }
    }
    Ok(())
}

/// Reads one answer; whether it is a good one.
async fn answered(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> std::io::Result<bool> {
    let mut filled = 0;
    loop {
        if filled == buffer.len() {
            buffer.resize(2 * filled, 0);
        }
        match stream.read(&mut buffer[filled..]).await? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            n => filled += n,
        }
        match progress(&buffer[..filled]) {
            Progress::Whole(_, status) => return Ok(status == 200),
            Progress::Partial => {}
            Progress::Broken => return Ok(false),
        }
    }
}
