//! What routers have at the moment, and what they have learned of speeds.

use super::super::keys::Purpose;
use super::super::wire::{Live, Speeds, bytes};
use super::{Desk, LIVE_EVERY, LIVE_LEAST};
use crate::policy::standing::State;

impl Desk {
    /// What this router has running, and keeps requests away from, if that is to be said.
    pub(super) fn say_live(&mut self, now: f64, unix: u64) -> Option<Vec<u8>> {
        let running = self.fleet.running().into_iter().map(|r| (self.keys.name(r.name()), r.work()));
        // one that has stepped back probes nobody
        let replicas = (!self.fleet.is_retired()).then(|| self.fleet.members());
        let fenced = replicas.iter().flat_map(|members| members.iter()).filter_map(|r| match r.state() {
            State::Fenced(reason) => Some((self.keys.name(r.name()), reason)),
            _ => None,
        });
        let Live { number, at, .. } = self.live;
        let live = Live { number, at, running: running.collect(), fenced: fenced.collect() };
        // what changes with each step of a request need not be told that often; what it is in the end, is
        let due = if live == self.live { LIVE_EVERY } else { LIVE_LEAST };
        if now < self.due.said_live + due {
            return None;
        }
        self.due.said_live = now;
        self.live = Live { number: number + 1, at: unix, ..live };
        self.keys.seal(Purpose::Live, self.me, &bytes(&self.live))
    }

    /// Takes in what others have at the moment.
    pub(super) fn see(&mut self, frames: Vec<Vec<u8>>, now: f64, unix: u64) {
        for mut frame in frames {
            let seen = self.open::<Live>(Purpose::Live, &mut frame);
            let seen = seen.and_then(|(writer, live)| {
                if writer == self.me {
                    return Ok(());
                }
                // a process before this one says by another way what it has: here, that it is there
                let is_own = self.is_own(writer);
                let live = if is_own { Live { running: Vec::new(), fenced: Vec::new(), ..live } } else { live };
                self.peers.see(writer, live, &self.names, (now, unix))
            });
            self.note(seen.map(|()| 0));
        }
    }

    /// Takes in what others have learned of speeds.
    pub(super) fn learn(&mut self, frames: Vec<Vec<u8>>) {
        self.has_lore |= self.asked_lore;
        for mut frame in frames {
            let learned = self.open::<Speeds>(Purpose::Lore, &mut frame).map(|(writer, speeds)| {
                if writer != self.me {
                    self.learn_from(speeds);
                }
            });
            self.note(learned.map(|()| 0));
        }
    }

    fn learn_from(&self, speeds: Speeds) {
        let mut models: Vec<String> = self.fleet.replicas().iter().flat_map(|r| r.model_names()).collect();
        models.extend(self.fleet.models().all().into_iter().map(|(name, _)| name));
        let model = |name| models.iter().find(|model| self.keys.name(model) == name).cloned();
        self.fleet.learn_from(speeds.lore(|name| self.names.id(name), model));
    }
}
