//! The one place where our settings become Pingora's.
//!
//! Pingora can read its own file; two files with two sets of names would be two truths, so ramjet never lets it.

use std::path::Path;
use std::thread;
use std::time::Duration;

use nix::unistd::User;
use pingora_core::server::configuration::ServerConf;

use super::table::Config;

/// A file of issuers without any: each replica behind https names its own. Pingora would read those of the system for
/// every connector, and end the process if one of them is bad.
const NO_ISSUERS: &str = "/dev/null";
/// A timeout that is longer gets a timer of its own, which ends with what it is for. Pingora keeps the others until their
/// time is over, whatever became of what they are for: a tree of them for each thread, one for every ten milliseconds, 130
/// bytes each. The silence that engines are allowed alone would make it 12 MB a thread, and it would grow for a quarter of
/// an hour.
const SHARED_TIMER_SECONDS: u64 = 10;

/// Pingora's settings. `daemon` is the `-d` flag; the `-u` flag is Pingora's `Opt::upgrade` and has no place here.
///
/// Pingora's grace period is the only time that running requests get; what it calls the graceful shutdown timeout
/// begins after they were dropped. `max_retries` keeps Pingora's 16, which bounds attempts with a body that streams through, and is
/// why `retry.attempts` ends there.
pub fn server_conf(config: &Config, daemon: bool) -> ServerConf {
    let server = &config.server;
    ServerConf {
        daemon,
        threads: threads(server.threads),
        pid_file: text(&server.pid_file),
        upgrade_sock: text(&server.upgrade_sock),
        user: server.user.clone(),
        group: server.group.clone(),
        ca_file: Some(NO_ISSUERS.to_owned()),
        grace_period_seconds: Some(whole_seconds(server.drain_limit)),
        graceful_shutdown_timeout_seconds: Some(1),
        fast_timeout_to_tokio_threshold_seconds: Some(SHARED_TIMER_SECONDS),
        ..ServerConf::default()
    }
}

/// The number of the user that a daemon becomes, if it becomes another one than it is.
pub fn user(config: &Config, daemon: bool) -> Option<u32> {
    let user = config.server.user.as_deref().filter(|_| daemon)?;
    Some(User::from_name(user).ok()??.uid.as_raw())
}

fn threads(configured: Option<u32>) -> usize {
    let configured = configured.and_then(|threads| usize::try_from(threads).ok());
    configured.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from))
}

/// Paths come from UTF-8 text, so nothing is lost.
fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Seconds, rounded up: a promise to wait is kept.
fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_reach_pingora() {
        let mut config = Config::default();
        config.server.threads = Some(3);
        config.server.drain_limit = Duration::from_millis(1500);
        config.server.user = Some("ramjet".to_owned());
        let conf = server_conf(&config, true);
        assert!(conf.daemon);
        assert_eq!(conf.threads, 3);
        assert_eq!(conf.pid_file, "/run/ramjet.pid");
        assert_eq!(conf.upgrade_sock, "/run/ramjet.upgrade.sock");
        assert_eq!(conf.grace_period_seconds, Some(2));
        assert_eq!(conf.graceful_shutdown_timeout_seconds, Some(1));
        // the timer of a read that an engine may take long for ends with the read
        let shared = conf.fast_timeout_to_tokio_threshold_seconds.map(Duration::from_secs);
        let timeouts = Config::default().timeouts;
        assert!(
            shared.is_some_and(|most| most < timeouts.idle_read.min(timeouts.first_byte).min(timeouts.client_body))
        );
        assert_eq!((conf.user.as_deref(), conf.group), (Some("ramjet"), None));
    }

    #[test]
    fn only_a_daemon_becomes_another_user() {
        let mut config = Config::default();
        config.server.user = Some("nobody".to_owned());
        assert_eq!((user(&config, false), user(&Config::default(), true)), (None, None));
        assert!(user(&config, true).is_some_and(|user| user != 0));
    }

    #[test]
    fn no_thread_count_means_every_core() {
        assert!(server_conf(&Config::default(), false).threads >= 1);
    }
}
