//! Signs of progress at a replica, as they come.

use super::clock::{time_bits, time_of};
use super::replica::Replica;
use crate::policy::progress::Signs;
use std::sync::atomic::Ordering::Relaxed;

/// The shortest time between two signs of progress that counts as a silence, in milliseconds.
const GAP_MS: f64 = 50.0;

impl Replica {
    /// Something was generated there at `now`, milliseconds on the fleet's clock.
    pub fn hear(&self, now: f64) {
        let last = time_of(self.heard.fetch_max(time_bits(now), Relaxed));
        if now - last > GAP_MS {
            // a silence has ended; shorter ones are none, and most pieces of answers end here
            self.work.lock().watch.hear_after(last, now);
        }
    }

    /// The silence until `now` does not count, nor is it a usual one: nobody listened, or a question was answered.
    pub fn overhear(&self, now: f64) {
        self.heard.fetch_max(time_bits(now), Relaxed);
        self.work.lock().watch.heard_by(now);
    }

    /// When something was generated there last; minus infinity if never.
    pub fn heard(&self) -> f64 {
        time_of(self.heard.load(Relaxed))
    }

    /// A request was completed there with what it generated.
    pub fn complete(&self, now: f64) {
        self.completed.fetch_max(time_bits(now), Relaxed);
    }

    /// When that was last; minus infinity if never.
    pub fn completed(&self) -> f64 {
        time_of(self.completed.load(Relaxed))
    }

    /// When the latest request began that has ended well there; minus infinity if none has.
    pub fn proven(&self) -> f64 {
        time_of(self.proven.load(Relaxed))
    }

    /// It has let a request in at `now`, or turned it away.
    pub fn answered(&self, is_let_in: bool, now: f64) {
        let mut refusals = self.refusals.lock();
        match is_let_in {
            true => refusals.accepted(),
            false => refusals.refused(now),
        }
    }

    /// What the requests there show; `None` if there are none that generate.
    pub fn signs(&self, now: f64) -> Option<Signs> {
        let work = &mut *self.work.lock();
        work.watch.heard_by(self.heard());
        work.watch.signs(now)
    }
}
