//! Requests that came by way of another process: of the one before this one, which still finishes what it has. They make a
//! replica as busy as this process's own.
//!
//! That process says again and again what it has, over a connection that ends when it does. **Invariant:** what it said is
//! held by a guard beside that connection, and gone with it, whatever the reason.

use super::Fleet;
use super::replica::Replica;
use crate::pack::record;
use crate::policy::backlog::Elsewhere;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// What one process has running at a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// The replica's name.
    name: String,
    work: Elsewhere,
}
record!(Running { name, work });

/// What another process has running at the replicas of this one.
#[derive(Debug)]
pub struct RunningElsewhere {
    fleet: Arc<Fleet>,
    held: Vec<(Arc<Replica>, Elsewhere)>,
}

impl Replica {
    /// What other processes have here.
    pub fn elsewhere(&self) -> Elsewhere {
        self.work.lock().backlog.elsewhere()
    }

    /// Another process has more here, and had something else before.
    fn replace_elsewhere(&self, before: Elsewhere, after: Elsewhere, now: f64) {
        self.load.fetch_add(after.units, Relaxed);
        self.load.fetch_sub(before.units, Relaxed);
        let work = &mut *self.work.lock();
        work.backlog.replace_elsewhere(before, after);
        if before.requests() > 0 && work.backlog.elsewhere().requests() == 0 {
            self.emptying.is_idle(now);
        }
    }
}

impl Fleet {
    /// What this process has running, at members and at those that have left.
    pub fn running(&self) -> Vec<Running> {
        let now = self.clock.now();
        let of = |replica: &Arc<Replica>| {
            let work = replica.work.lock();
            let (own, others) = (work.backlog.own(now), work.backlog.elsewhere());
            drop(work);
            let units = replica.load().saturating_sub(others.units);
            Running { name: replica.name().to_owned(), work: Elsewhere { units, ..own } }
        };
        let is_busy = |running: &Running| running.work != Elsewhere::default();
        self.members().present().map(of).filter(is_busy).collect()
    }
}

impl Running {
    /// So much at the replica of this name.
    pub fn at(name: String, work: Elsewhere) -> Self {
        Running { name, work }
    }

    /// The replica's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What runs there.
    pub fn work(&self) -> Elsewhere {
        self.work
    }
}

impl RunningElsewhere {
    /// Nothing so far.
    pub fn new(fleet: Arc<Fleet>) -> Self {
        RunningElsewhere { fleet, held: Vec::new() }
    }

    /// It has this now.
    pub fn replace(&mut self, running: Vec<Running>) {
        let members = self.fleet.members();
        let by_name: HashMap<&str, &Arc<Replica>> = members.iter().map(|r| (r.name(), r)).collect();
        let place = |running: Running| Some(((*by_name.get(&*running.name)?).clone(), running.work));
        let held: Vec<_> = running.into_iter().filter_map(place).collect();
        if !held.is_empty() {
            self.fleet.note_heard();
        }
        let now = self.fleet.clock.now();
        // first what is new, so that nobody looks idle in between
        for (replica, work) in &held {
            replica.replace_elsewhere(Elsewhere::default(), *work, now);
        }
        self.release();
        self.held = held;
    }

    fn release(&mut self) {
        let now = self.fleet.clock.now();
        for (replica, work) in self.held.drain(..) {
            replica.replace_elsewhere(work, Elsewhere::default(), now);
        }
    }
}

impl Drop for RunningElsewhere {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::super::reservation::{Reservation, Share};
    use super::super::testing::spec;
    use super::*;
    use crate::pack;
    use crate::policy::testing::params;
    use crate::types::PolicyKind;

    fn fleet(names: &[&str]) -> Arc<Fleet> {
        Arc::new(Fleet::new(names.iter().map(|name| spec(name)).collect(), params(PolicyKind::Cost), 1 << 20))
    }

    /// Units, prompts that wait, answers that are generated.
    fn seen(fleet: &Fleet, at: usize) -> (u32, f64, f64) {
        let replica = &fleet.replicas()[at];
        let prospect = replica.prospect(fleet.clock().now());
        (replica.load(), prospect.waiting, prospect.decoding)
    }

    #[test]
    fn what_the_process_before_still_runs_counts_here_until_that_is_over_or_gone() {
        let (old, new) = (fleet(&["a", "b", "gone"]), fleet(&["b", "a"]));
        let share =
            Share { units: 3, prefill_ms: 5000.0, whole_ms: 5000.0, decode_ms: 9.0, streams: true, generates: true };
        let mut held: Vec<_> =
            (0..3).map(|n| Reservation::new(old.replicas()[n].clone(), share, old.clock())).collect();
        held[0].first_token();
        let mut elsewhere = RunningElsewhere::new(new.clone());
        let say = || pack::open(&pack::seal(&old.running())).unwrap();
        elsewhere.replace(say());
        assert_eq!((seen(&new, 0), seen(&new, 1)), ((3, 1.0, 0.0), (3, 0.0, 1.0)));
        assert!(new.replicas()[0].prospect(new.clock().now()).queue_ms > 4000.0);
        // what is told on is not told twice
        assert!(new.running().is_empty());
        elsewhere.replace(say());
        assert_eq!((seen(&new, 0), seen(&new, 1)), ((3, 1.0, 0.0), (3, 0.0, 1.0)));
        // a drained replica is not empty while they run
        let now = new.clock().now();
        new.replicas()[1].drain(true, now);
        assert_eq!(new.replicas()[1].empty_since(now), None);
        held.remove(0);
        elsewhere.replace(say());
        assert_eq!((seen(&new, 0), seen(&new, 1)), ((3, 1.0, 0.0), (0, 0.0, 0.0)));
        assert!(new.replicas()[1].empty_since(new.clock().now()).is_some());
        drop(elsewhere);
        assert_eq!((seen(&new, 0), seen(&new, 1)), ((0, 0.0, 0.0), (0, 0.0, 0.0)));
        assert_eq!(new.replicas()[0].prospect(new.clock().now()).queue_ms, 0.0);
    }
}
