//! What the system says of this process, read from `/proc` when somebody scrapes. Elsewhere than on Linux it says
//! nothing, and the metrics stay at zero.

use std::fs;

/// Ticks of a second in `/proc/self/stat`; fixed by Linux for what user space sees.
const TICKS: f64 = 100.0;

/// What a process uses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Process {
    /// Processor time so far, user and system, in seconds.
    pub(super) cpu_seconds: f64,
    /// Resident memory.
    pub(super) resident_bytes: u64,
    /// Memory that it has mapped, used or not.
    pub(super) virtual_bytes: u64,
    /// Its threads.
    pub(super) threads: u64,
    /// Open file descriptors.
    pub(super) open_fds: u64,
    /// The most that it may have open; 0 if that is not known.
    pub(super) max_fds: u64,
}

/// This process, now.
pub(super) fn read() -> Process {
    let text = |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
    let status = text("status");
    let of = |name| field(&status, name).unwrap_or(0);
    Process {
        cpu_seconds: cpu_seconds(&text("stat")).unwrap_or(0.0),
        resident_bytes: of("VmRSS:") << 10,
        virtual_bytes: of("VmSize:") << 10,
        threads: of("Threads:"),
        // the directory that is being read is one of them
        open_fds: fs::read_dir("/proc/self/fd").map_or(0, |all| (all.count() as u64).saturating_sub(1)),
        max_fds: max_fds(&text("limits")).unwrap_or(0),
    }
}

/// From `stat`: fields 14 and 15, counted after the name, which may hold anything.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let ticks: Vec<f64> = rest.split_ascii_whitespace().skip(11).take(2).filter_map(|n| n.parse().ok()).collect();
    (ticks.len() == 2).then(|| (ticks[0] + ticks[1]) / TICKS)
}

/// A number in `status`; sizes are KiB there.
fn field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

fn max_fds(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_whatever_the_name_of_the_process() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 9 0 100 1 2";
        assert_eq!(cpu_seconds(stat), Some(3.0));
        let status = "Name:\tx\nVmRSS:\t    2048 kB\nThreads:\t7\n";
        assert_eq!(
            (field(status, "VmRSS:"), field(status, "Threads:"), field(status, "VmSize:")),
            (Some(2048), Some(7), None)
        );
        assert_eq!(max_fds("Max open files            1024                 4096                 files\n"), Some(1024));
        assert_eq!((cpu_seconds("7 (a"), field("", "VmRSS:"), max_fds("")), (None, None, None));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_uses_something() {
        let now = read();
        assert!(now.resident_bytes > 1 << 20 && now.open_fds >= 3 && now.max_fds >= now.open_fds, "{now:?}");
        assert!(now.virtual_bytes >= now.resident_bytes && now.threads >= 1, "{now:?}");
    }
}
