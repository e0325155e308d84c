//! `ramjet upgrade`: starts the successor, waits until it serves, and says what has become of it.

use super::{RUN, Who, who, wire};
use crate::cli::Cli;
use crate::config::Config;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use thiserror::Error;

/// How often it is looked.
const LOOK: Duration = Duration::from_millis(20);
/// How long the whole may take: a little more than the running process waits for its successor.
const LIMIT: Duration = Duration::from_secs(150);

/// Why nothing has changed.
#[derive(Debug, Error)]
pub enum NotUpgraded {
    /// There is nothing to upgrade.
    #[error("nothing to upgrade: no running ramjet answers at {socket}: {cause}")]
    Nobody {
        /// `server.upgrade_sock`.
        socket: String,
        /// What the system said.
        cause: std::io::Error,
    },
    /// Root would serve in the place of a user without privileges.
    #[error(
        "the running ramjet (process {1}) is user {0}'s, and its successor would be root's: run this as that user (with systemd: systemctl reload)"
    )]
    Root(u32, u32),
    /// It could not be started.
    #[error("the successor cannot be started: {0}; process {1} serves on")]
    Start(std::io::Error, u32),
    /// It ended.
    #[error("the successor has ended ({0}): nothing has changed, process {1} serves on")]
    Ended(ExitStatus, u32),
    /// It took too long.
    #[error("the successor has not begun to serve within {0:?} and was ended: process {1} serves on")]
    Late(Duration, u32),
}

impl NotUpgraded {
    /// The exit code: 69 (`EX_UNAVAILABLE` of sysexits.h) where there is nothing to upgrade, else 1.
    pub fn code(&self) -> u8 {
        match self {
            NotUpgraded::Nobody { .. } => 69,
            _ => 1,
        }
    }
}

/// Starts this binary with the arguments of `cli` in the place of the running one; what has become of it, in words.
///
/// # Errors
/// [`NotUpgraded`]: the running process goes on as before.
pub fn upgrade(config: &Config, cli: &Cli) -> Result<String, NotUpgraded> {
    let socket = &config.server.upgrade_sock;
    let old = who(socket).map_err(|cause| NotUpgraded::Nobody { socket: socket.display().to_string(), cause })?;
    // a daemon with server.user gives its privileges up again
    let stays_root = nix::unistd::geteuid().is_root() && !(cli.daemon && config.server.user.is_some());
    if let Some(user) = owner(socket).filter(|user| stays_root && *user != 0) {
        return Err(NotUpgraded::Root(user, old.process));
    }
    // what tells this successor from somebody else's
    let run = RandomState::new().hash_one(old.run);
    let mut child = start(cli, run).map_err(|cause| NotUpgraded::Start(cause, old.process))?;
    let new = wait(socket, (&old, run), &mut child, cli.daemon)?;
    Ok(format!(
        "ramjet {} (process {}) serves; ramjet {} (process {}) finishes what it has\n",
        new.version, new.process, old.version, old.process
    ))
}

/// Whose process waits at `socket`.
fn owner(socket: &Path) -> Option<u32> {
    wire::peer_user(&super::connect(socket).ok()?).ok()
}

/// Apart from the terminal's signals, and with this one's standard output and error.
fn start(cli: &Cli, run: u64) -> std::io::Result<Child> {
    let mut successor = Command::new(std::env::current_exe()?);
    successor.arg("-u").env(RUN, run.to_string()).stdin(Stdio::null()).process_group(0);
    if cli.daemon {
        successor.arg("-d");
    }
    if let Some(file) = &cli.config {
        successor.arg("-c").arg(file);
    }
    for (flag, value) in [("--upstream", &cli.upstream), ("--listen", &cli.listen), ("--admin", &cli.admin)] {
        successor.args(value.iter().flat_map(|value| [flag, value]));
    }
    successor.spawn()
}

/// Waits until the process of this `run` waits at `socket` in the place of `old`.
fn wait(socket: &Path, (old, run): (&Who, u64), child: &mut Child, daemon: bool) -> Result<Who, NotUpgraded> {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Ok(new) = who(socket)
            && new.run == run
        {
            return Ok(new);
        }
        match child.try_wait() {
            // a daemon's parent leaves early
            Ok(Some(status)) if !(daemon && status.success()) => return Err(NotUpgraded::Ended(status, old.process)),
            _ => {}
        }
        if Instant::now() >= deadline {
            let _gone = child.kill();
            return Err(NotUpgraded::Late(LIMIT, old.process));
        }
        std::thread::sleep(LOOK);
    }
}
