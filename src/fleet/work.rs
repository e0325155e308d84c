//! What is promised to one replica and how fast it is believed to be: behind a lock for those who change it, and beside it
//! as a row of numbers for those who choose, who look at every replica of the fleet and must not stop at each.
//!
//! The row is a sequence lock over atomics: it is written anew whenever the lock is given back, odd numbers of `version`
//! meaning that this is going on. Who reads it meanwhile, or finds that numbers do not tell (see
//! [`Backlog::summary`]), takes the lock instead.

use crate::policy::backlog::{Backlog, Summary};
use crate::policy::cost::Prospect;
use crate::policy::estimate::{self, Rates};
use crate::policy::progress::Watch;
use parking_lot::{Mutex, MutexGuard};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

/// What is promised to a replica, and how fast it is believed to be.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) backlog: Backlog,
    pub(super) rates: Rates,
    pub(super) watch: Watch,
}

/// A replica's work.
#[derive(Debug)]
pub(super) struct SharedWork {
    row: Row,
    /// Held for a few additions.
    work: Mutex<Work>,
}

/// A replica's work, held to be changed; what others see of it follows when this is given back.
#[derive(Debug)]
pub(super) struct HeldWork<'a> {
    work: MutexGuard<'a, Work>,
    row: &'a Row,
}

/// Two cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Row {
    version: AtomicU64,
    rates: [AtomicU64; 6],
    /// Not a number where the backlog has no summary.
    backlog: [AtomicU64; 8],
}

impl SharedWork {
    /// Takes the work to look at it closely, or to change it.
    pub(super) fn lock(&self) -> HeldWork<'_> {
        HeldWork { work: self.work.lock(), row: &self.row }
    }

    /// What a price looks at, `now` being milliseconds on the fleet's clock.
    #[inline]
    pub(super) fn prospect(&self, now: f64) -> Prospect {
        if let Some((rates, backlog)) = self.row.read() {
            return backlog.prospect(rates, now);
        }
        let work = self.work.lock();
        work.backlog.prospect(work.rates, now)
    }
}

impl Default for SharedWork {
    /// No work, nothing learned.
    fn default() -> Self {
        let work = Work { backlog: Backlog::default(), rates: estimate::START, watch: Watch::default() };
        let row = Row::default();
        row.write(&work);
        SharedWork { row, work: Mutex::new(work) }
    }
}

impl Row {
    /// Only under the lock of the work.
    fn write(&self, work: &Work) {
        let version = self.version.load(Relaxed);
        self.version.store(version.wrapping_add(1), Relaxed);
        // the odd number is seen before anything that follows, and all of that before the even one
        fence(Release);
        let backlog = work.backlog.summary().map_or([f64::NAN; 8], |summary| summary.row());
        store(&self.rates, work.rates.row());
        store(&self.backlog, backlog);
        self.version.store(version.wrapping_add(2), Release);
    }

    #[inline]
    fn read(&self) -> Option<(Rates, Summary)> {
        let version = self.version.load(Acquire);
        let (rates, backlog) = (load(&self.rates), load(&self.backlog));
        // what was read is not younger than the number that follows
        fence(Acquire);
        let is_whole = version.is_multiple_of(2) && self.version.load(Relaxed) == version;
        (is_whole && !backlog[0].is_nan()).then(|| (Rates::from_row(rates), Summary::from_row(backlog)))
    }
}

fn store<const N: usize>(to: &[AtomicU64; N], row: [f64; N]) {
    for (to, value) in to.iter().zip(row) {
        to.store(value.to_bits(), Relaxed);
    }
}

#[inline]
fn load<const N: usize>(from: &[AtomicU64; N]) -> [f64; N] {
    std::array::from_fn(|n| f64::from_bits(from[n].load(Relaxed)))
}

impl Deref for HeldWork<'_> {
    type Target = Work;

    fn deref(&self) -> &Work {
        &self.work
    }
}

impl DerefMut for HeldWork<'_> {
    fn deref_mut(&mut self) -> &mut Work {
        &mut self.work
    }
}

impl Drop for HeldWork<'_> {
    fn drop(&mut self) {
        self.row.write(&self.work);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    proptest! {
        #[test]
        fn what_is_seen_from_outside_is_what_is_there(ops in prop::collection::vec((0u8..4, 0usize..6, 0.0f64..900.0), 0..40)) {
            let shared = SharedWork::default();
            let (mut tickets, mut now) = (Vec::new(), 0.0);
            for (op, pick, time) in ops {
                now += time;
                let mut work = shared.lock();
                match op {
                    0 => tickets.push(work.backlog.begin(now, time, pick % 3 > 0)),
                    1 => if let Some(ticket) = tickets.get(pick) { let _read = work.backlog.first_token(*ticket, now); },
                    2 => if pick < tickets.len() { work.backlog.end(tickets.swap_remove(pick), now) },
                    _ => work.rates.observe_prefill(10.0 * time, time, time),
                }
                drop(work);
                let there = { let work = shared.lock(); work.backlog.prospect(work.rates, now + time) };
                prop_assert_eq!(shared.prospect(now + time), there);
            }
        }
    }

    #[test]
    fn nobody_sees_a_half_written_row() {
        let (shared, stop) = (Arc::new(SharedWork::default()), Arc::new(AtomicBool::new(false)));
        let (writer, stopped) = (shared.clone(), stop.clone());
        let writing = std::thread::spawn(move || {
            while !stopped.load(Relaxed) {
                let ticket = writer.lock().backlog.begin(0.0, 100.0, true);
                writer.lock().backlog.end(ticket, 0.0);
            }
        });
        let mut busy = 0;
        for _ in 0..20_000 {
            let seen = shared.prospect(0.0);
            assert_eq!(seen.queue_ms, 100.0 * seen.waiting);
            busy += usize::from(seen.waiting > 0.0);
        }
        stop.store(true, Relaxed);
        writing.join().unwrap();
        assert!(busy > 0 || shared.prospect(0.0).coming.rate > 0.0);
    }
}
