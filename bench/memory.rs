//! The resident memory of a process over time, and whether it grows.

use crate::num::{share, to_float};

/// Resident memory, look by look.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// seconds and MiB
    points: Vec<(f64, f64)>,
    /// MiB of the last look that are parts of files: the program and its libraries
    files: f64,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Growth {
    /// MiB at half time
    pub(crate) half: f64,
    /// and at the end
    pub(crate) end: f64,
    /// what the second half added, by its slope
    pub(crate) by: f64,
    /// the last look, in seconds
    pub(crate) until: f64,
}

impl Memory {
    /// What was seen: seconds and MiB.
    #[cfg(test)]
    pub(crate) fn of(points: Vec<(f64, f64)>) -> Self {
        Self { points, files: 0.0 }
    }

    /// Notes what the process has now.
    pub(crate) fn look(&mut self, process: u32, at: f64) {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        let mib = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            Some(to_float(line.split_whitespace().next()?.parse().ok()?) / 1024.0)
        };
        self.points.extend(mib("VmRSS:").map(|mib| (at, mib)));
        self.files = mib("RssFile:").unwrap_or(self.files);
    }

    /// MiB of the last look that are the program and its libraries.
    pub(crate) fn files(&self) -> f64 {
        self.files
    }

    /// The mean and the most of the looks since `from`, in MiB.
    pub(crate) fn since(&self, from: f64) -> (f64, f64) {
        let seen: Vec<f64> = self.points.iter().filter(|(at, _)| *at >= from).map(|(_, mib)| *mib).collect();
        (share(seen.iter().sum(), to_float(seen.len() as u64)), seen.iter().copied().fold(0.0, f64::max))
    }

    /// How it was in the second half; nothing, where too little was seen.
    pub(crate) fn growth(&self) -> Option<Growth> {
        let until = self.points.last()?.0;
        let half: Vec<_> = self.points.iter().filter(|point| point.0 >= until / 2.0).copied().collect();
        let (first, last) = (half.first()?, half.last()?);
        (half.len() > 1).then(|| Growth { half: first.1, end: last.1, by: slope(&half) * until / 2.0, until })
    }
}

/// Least squares.
fn slope(points: &[(f64, f64)]) -> f64 {
    let n = to_float(points.len() as u64);
    let (x, y) = points.iter().fold((0.0, 0.0), |(x, y), point| (x + point.0 / n, y + point.1 / n));
    let (xy, xx) = points
        .iter()
        .fold((0.0, 0.0), |(xy, xx), point| (xy + (point.0 - x) * (point.1 - y), xx + (point.0 - x) * (point.0 - x)));
    share(xy, xx)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_half_is_told_by_its_slope_and_an_hour_by_its_looks() {
        let memory = Memory::of((0..=100).map(|n| (f64::from(n), f64::from(n.min(60)))).collect());
        let growth = memory.growth().unwrap();
        assert_eq!((growth.half, growth.end, growth.until), (50.0, 60.0, 100.0));
        assert!((4.0..10.0).contains(&growth.by), "{growth:?}");
        assert_eq!(memory.since(98.5), (60.0, 60.0));
        assert_eq!((memory.since(101.0), Memory::default().growth()), ((0.0, 0.0), None));
        let mut own = Memory::default();
        own.look(std::process::id(), 0.0);
        assert!(own.since(0.0).1 > own.files() && own.files() > 0.1);
    }
}
