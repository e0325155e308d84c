//! How many files and sockets the process may have open: a request takes two, and the soft limit that a shell gives,
//! mostly 1024, would end at 500 streams. It is raised to the hard one, as the Go runtime does: it is the soft one only
//! for programs that use `select`.
//!
//! Where even that is used up, connections wait in the listener's queue and are accepted once others have ended (Pingora
//! says so in the log, each second), and a request that finds no socket for its engine is answered 503.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Below this, the log says how far that goes.
const FEW: u64 = 16_384;

/// Raises the limit; what cannot be raised is left.
pub(super) fn raise() {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    let allowed = match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => hard,
        Err(e) => {
            log::warn!("the limit on open files stays at {soft}, {hard} is refused: {e}");
            soft
        }
    };
    if allowed < FEW {
        log::warn!("{allowed} files may be open at one time: enough for {} requests (see ulimit -Hn)", allowed / 2);
    }
}
