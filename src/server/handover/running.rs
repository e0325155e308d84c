//! What a process that steps back still has running, told to the one that serves: those requests are at the same replicas.
//!
//! It is said again and again over one connection, and counts there until it is said anew, or the connection ends: with
//! the last request, with the process whatever ended it, or with a silence. Where the one that serves gives way to the
//! next, it closes the connection, and the next one is told.

use super::connect;
use super::wire::{self, Kind};
use crate::fleet::Fleet;
use crate::fleet::elsewhere::RunningElsewhere;
use crate::pack;
use std::io::Result;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How often it is said.
const EVERY: Duration = Duration::from_millis(250);
/// After so long a silence it does not count any more.
const SILENCE: Duration = Duration::from_secs(3);

/// Says what runs in `fleet` to the process that waits at `socket`, until this process ends.
pub(super) fn tell(fleet: &Arc<Fleet>, socket: &Path) {
    let (fleet, socket) = (fleet.clone(), socket.to_path_buf());
    // a thread of its own: a runtime would wait for it at the end
    let telling = std::thread::Builder::new().name("running".to_owned()).spawn(move || {
        loop {
            // nobody may be there for a moment
            if let Ok(mut stream) = connect(&socket) {
                while wire::write(&mut stream, Kind::Running, &pack::seal_as(pack::LASTING, &fleet.running())).is_ok() {
                    std::thread::sleep(EVERY);
                }
            }
            std::thread::sleep(EVERY);
        }
    });
    if let Err(cause) = telling {
        log::warn!("what still runs here does not count as load in the next process: {cause}");
    }
}

/// Counts what another process says that it has running, `first` before all. Blocks until that is over, or another process
/// serves in this one's place.
pub(super) fn count(
    fleet: &Arc<Fleet>,
    stream: &mut UnixStream,
    first: &[u8],
    over: &watch::Receiver<bool>,
) -> Result<()> {
    let mut running = RunningElsewhere::new(fleet.clone());
    stream.set_read_timeout(Some(SILENCE))?;
    running.replace(pack::open_as(pack::LASTING, first).unwrap_or_default());
    while !*over.borrow() {
        let said = wire::expect(stream, Kind::Running)?;
        running.replace(pack::open_as(pack::LASTING, &said).unwrap_or_default());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::reservation::{Reservation, Share};
    use crate::fleet::testing::spec;
    use crate::policy::testing::params;
    use crate::types::PolicyKind;
    use std::time::Instant;

    fn fleet() -> Arc<Fleet> {
        Arc::new(Fleet::new(vec![spec("a")], params(PolicyKind::Cost), 1 << 20))
    }

    #[test]
    fn it_counts_until_the_connection_ends_whatever_ended_it() {
        let (old, new) = (fleet(), fleet());
        let share = Share { units: 5, prefill_ms: 1.0, whole_ms: 1.0, decode_ms: 1.0, streams: true, generates: true };
        let _held = Reservation::new(old.replicas()[0].clone(), share, old.clock());
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let (counting, (_serves, over)) = (new.clone(), watch::channel(false));
        let counted = std::thread::spawn(move || {
            let first = wire::expect(&mut there, Kind::Running).unwrap();
            count(&counting, &mut there, &first, &over)
        });
        wire::write(&mut here, Kind::Running, &pack::seal_as(pack::LASTING, &old.running())).unwrap();
        let becomes = |wanted: u32| {
            let begun = Instant::now();
            while new.replicas()[0].load() != wanted {
                assert!(begun.elapsed() < Duration::from_secs(30), "load stays {}", new.replicas()[0].load());
                std::thread::yield_now();
            }
        };
        becomes(5);
        // half a frame, as of a process that was killed
        std::io::Write::write_all(&mut here, b"R\xff").unwrap();
        drop(here);
        assert!(counted.join().unwrap().is_err());
        becomes(0);
    }
}
