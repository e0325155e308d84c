//! Connections to engines that wait for their next request.
//!
//! Pingora's own pool begins a task for each connection that is given back, and wakes it when the connection is taken
//! again. Here one task looks after all of them, and only while there are any: it closes those that have waited too long,
//! and those that their engine has closed, or has said something on unasked.

use super::line::Line;
use crate::fleet::replica::Replica;
use futures_util::FutureExt;
use nix::sys::resource::{Resource, getrlimit};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt;
use tokio::task::unconstrained;
use xxhash_rust::xxh3::xxh3_64;

/// How often they are looked after. None is used after its time, and it is closed so much later at most.
const ROUND: Duration = Duration::from_millis(250);
/// How many are kept at most, and of the files that may be open; where there are as many, one that is given back is closed.
const MOST: usize = 8192;
const SHARE: u64 = 4;

/// Where connections lead to: those of one destination are as good as each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Destination {
    address: SocketAddr,
    /// Who is trusted there, and which engine it must be.
    group: u64,
    /// The name that its certificate is for.
    host: u64,
}

impl Destination {
    /// That of `replica`, which is at `address`.
    pub(super) fn of(replica: &Replica, address: SocketAddr) -> Self {
        let host = replica.spec.tls.as_ref().map_or(0, |_| xxh3_64(replica.spec.host.as_bytes()));
        Destination { address, group: replica.group(), host }
    }
}

/// All that wait.
#[derive(Default)]
pub(super) struct Pool(Arc<Mutex<Waiting>>);

#[derive(Default)]
struct Waiting {
    connections: HashMap<Destination, Vec<Idle>>,
    count: usize,
    /// Whether somebody looks after them.
    is_attended: bool,
}

struct Idle {
    line: Line,
    until: Instant,
}

impl Idle {
    /// Whether it can be used now.
    fn is_good(&mut self, now: Instant) -> bool {
        // an engine has nothing to say on it, and its end can be read as well
        now < self.until && unconstrained(self.line.read(&mut [0])).now_or_never().is_none()
    }
}

impl Pool {
    /// One that leads to `destination` and can be used; the last that was given back, as the others may end meanwhile.
    pub(super) fn take(&self, destination: &Destination) -> Option<Line> {
        let now = Instant::now();
        loop {
            let mut idle = self.0.lock().pop(destination)?;
            if idle.is_good(now) {
                return Some(idle.line);
            }
        }
    }

    /// Gives one back, for `patience` at most.
    pub(super) fn keep(&self, destination: Destination, line: Line, patience: Duration) {
        let mut waiting = self.0.lock();
        if waiting.count >= most() || patience.is_zero() {
            return;
        }
        waiting.count += 1;
        let until = Instant::now() + patience;
        waiting.connections.entry(destination).or_default().push(Idle { line, until });
        if !std::mem::replace(&mut waiting.is_attended, true) {
            tokio::spawn(attend(self.0.clone()));
        }
    }

    /// Closes all of them. Whether there were any.
    pub(super) fn clear(&self) -> bool {
        let closed = {
            let mut waiting = self.0.lock();
            waiting.count = 0;
            std::mem::take(&mut waiting.connections)
        };
        !closed.is_empty()
    }
}

impl Waiting {
    fn pop(&mut self, destination: &Destination) -> Option<Idle> {
        let idle = self.connections.get_mut(destination)?.pop()?;
        self.count -= 1;
        Some(idle)
    }

    /// Takes out those that cannot be used any more.
    fn sort_out(&mut self, now: Instant) -> Vec<Idle> {
        let mut out = Vec::new();
        self.connections.retain(|_, connections| {
            out.extend(connections.extract_if(.., |idle| !idle.is_good(now)));
            !connections.is_empty()
        });
        self.count -= out.len();
        out
    }
}

/// How many are kept.
fn most() -> usize {
    static KEPT: OnceLock<usize> = OnceLock::new();
    *KEPT.get_or_init(|| {
        let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(now, _)| now);
        usize::try_from(files / SHARE).unwrap_or(MOST).min(MOST)
    })
}

async fn attend(waiting: Arc<Mutex<Waiting>>) {
    loop {
        tokio::time::sleep(ROUND).await;
        let mut held = waiting.lock();
        let closed = held.sort_out(Instant::now());
        held.is_attended = !held.connections.is_empty();
        let is_over = !held.is_attended;
        drop(held);
        drop(closed);
        if is_over {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncWriteExt, DuplexStream, duplex};

    const LONG: Duration = Duration::from_secs(3600);

    fn to(port: u16) -> Destination {
        Destination { address: SocketAddr::from(([127, 0, 0, 1], port)), group: 0, host: 0 }
    }

    /// Puts a connection into `pool`; the engine's end.
    fn kept(pool: &Pool, destination: Destination, patience: Duration) -> DuplexStream {
        let (ours, engines) = duplex(64);
        pool.keep(destination, Line::Tls(Box::new(ours)), patience);
        engines
    }

    #[tokio::test]
    async fn the_last_one_of_a_destination_is_taken_first() {
        let pool = Pool::default();
        let (mut first, mut second) = (kept(&pool, to(1), LONG), kept(&pool, to(1), LONG));
        assert!(pool.take(&to(2)).is_none());
        assert!(pool.take(&Destination { group: 1, ..to(1) }).is_none());
        for engine in [&mut second, &mut first] {
            pool.take(&to(1)).unwrap().write_all(b"x").await.unwrap();
            assert_eq!(engine.read_u8().await.unwrap(), b'x');
        }
        assert!(pool.take(&to(1)).is_none());
    }

    #[tokio::test]
    async fn what_has_ended_or_speaks_or_is_too_old_is_not_used() {
        let pool = Pool::default();
        let (good, closed, mut speaks) = (kept(&pool, to(1), LONG), kept(&pool, to(1), LONG), kept(&pool, to(1), LONG));
        let _old = kept(&pool, to(1), Duration::from_nanos(1));
        let _never = kept(&pool, to(1), Duration::ZERO);
        drop(closed);
        speaks.write_all(b"HTTP/1.1 408 Request Timeout\r\n\r\n").await.unwrap();
        assert!(pool.take(&to(1)).is_some() && pool.take(&to(1)).is_none());
        assert_eq!(pool.0.lock().count, 0);
        drop(good);
    }

    #[tokio::test(start_paused = true)]
    async fn who_looks_after_them_closes_what_is_over_and_ends_with_the_last() {
        let pool = Pool::default();
        let (closed, mut stays) = (kept(&pool, to(1), LONG), kept(&pool, to(2), LONG));
        drop(closed);
        tokio::time::sleep(2 * ROUND).await;
        let looks = |count, is_attended| {
            let waiting = pool.0.lock();
            assert_eq!((waiting.count, waiting.connections.len(), waiting.is_attended), (count, count, is_attended));
        };
        looks(1, true);
        stays.shutdown().await.unwrap();
        tokio::time::sleep(2 * ROUND).await;
        looks(0, false);
        let mut again = kept(&pool, to(1), LONG);
        looks(1, true);
        assert!(pool.clear());
        assert_eq!(again.read(&mut [0]).await.unwrap(), 0);
        tokio::time::sleep(2 * ROUND).await;
        looks(0, false);
    }
}
