//! What processes take: processor time and memory as Linux accounts them, children included, and where they may run.

use std::collections::HashMap;
use std::fs;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

/// A process with all that descend from it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tree(pub(crate) u32);

/// Processor time of each thread so far, in nanoseconds.
#[derive(Debug, Default, Clone)]
pub(crate) struct Times(HashMap<u32, u64>);

/// Memory in bytes: what is resident, and the same with shared pages divided among those who share them.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) rss: u64,
    pub(crate) pss: u64,
}

impl Tree {
    fn processes(self) -> Vec<u32> {
        let (mut all, mut next) = (Vec::new(), vec![self.0]);
        while let Some(process) = next.pop() {
            all.push(process);
            for thread in threads(process) {
                let text = fs::read_to_string(format!("/proc/{process}/task/{thread}/children")).unwrap_or_default();
                next.extend(text.split_whitespace().filter_map(|word| word.parse::<u32>().ok()));
            }
        }
        all
    }

    /// Its processor time: `schedstat` says in nanoseconds what utime and stime say in hundredths of a second.
    pub(crate) fn times(self) -> Times {
        let mut times = Times::default();
        for process in self.processes() {
            for thread in threads(process) {
                let text = fs::read_to_string(format!("/proc/{process}/task/{thread}/schedstat")).unwrap_or_default();
                let spent = text.split_whitespace().next().and_then(|word| word.parse().ok());
                times.0.extend(spent.map(|spent| (thread, spent)));
            }
        }
        times
    }

    pub(crate) fn memory(self) -> Memory {
        let mut sum = Memory::default();
        for process in self.processes() {
            let text = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).unwrap_or_default();
            let kib = |name: &str| -> u64 {
                let line = text.lines().find_map(|line| line.strip_prefix(name));
                line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
            };
            sum.rss += kib("Rss:") << 10;
            sum.pss += kib("Pss:") << 10;
        }
        sum
    }
}

impl Times {
    /// Seconds since `before`; a thread that has ended meanwhile is not counted.
    pub(crate) fn since(&self, before: &Times) -> f64 {
        let spent = |(thread, now): (&u32, &u64)| now.saturating_sub(before.0.get(thread).copied().unwrap_or(0));
        self.0.iter().map(spent).sum::<u64>() as f64 / 1e9
    }
}

fn threads(process: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(format!("/proc/{process}/task")) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Lets the calling thread, and whom it starts from now on, run on these processors only.
pub(crate) fn stay_on(processors: &[usize]) -> Result<(), String> {
    let mut set = CpuSet::new();
    for processor in processors {
        set.set(*processor).map_err(|error| format!("processor {processor}: {error}"))?;
    }
    sched_setaffinity(Pid::from_raw(0), &set).map_err(|error| format!("processors {processors:?}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_process_takes_is_seen() {
        let own = Tree(std::process::id());
        let before = own.times();
        let mut sum = 0u64;
        while own.times().since(&before) < 0.002 {
            sum = (0..10_000).fold(sum, |sum, n| std::hint::black_box(sum ^ n));
        }
        let memory = own.memory();
        assert!(memory.rss > 1 << 20 && memory.pss > 0 && memory.pss <= memory.rss);
    }

    #[test]
    fn nobody_takes_nothing() {
        let nobody = Tree(u32::MAX);
        assert_eq!(nobody.memory().rss, 0);
        assert!(nobody.times().since(&Times::default()) <= 0.0);
    }
}
