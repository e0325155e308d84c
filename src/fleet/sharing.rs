//! What this process learns, for whoever tells other routers of it; and how the group of those routers is.
//!
//! While nobody tells, a thing that is learned costs one look at an empty cell. Otherwise it goes into a bounded channel that
//! somebody empties at leisure. **Invariant:** a request never waits for that: what does not fit is lost, and counted.

use super::Fleet;
use super::emptied::Emptied;
use crate::prefix::residency::{Served, Size};
use crate::types::ReplicaId;
use arc_swap::ArcSwapOption;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, OnceLock};

/// One thing that was learned. A claim is known by its number in the process that made it.
#[derive(Clone, Debug, PartialEq)]
pub enum Learned {
    /// A prompt is claimed for a replica.
    Claimed(Box<Claimed>),
    /// It is held there.
    Held(u64),
    /// It was answered: tokens of prompt and answer.
    Answered(u64, f64, f64),
    /// What came from the cache.
    Served(u64, Served),
    /// Its request is over.
    Left(u64),
    /// A session, by the keyed hash of its name, has its home at a replica, with so many tokens, since then.
    Home(u64, ReplicaId, f64, f64),
    /// A replica keeps what it gave an id to, by the keyed hash of that.
    Pinned(u64, ReplicaId),
    /// What was learned of a replica's cache before this is void: it was emptied then, or (`None`) it is another one's for this
    /// router, which says nothing of what others know.
    Forgot(ReplicaId, Option<Emptied>),
}

impl Learned {
    /// The same by another clock, which shows so much more.
    #[must_use]
    pub fn shifted(mut self, by: f64) -> Self {
        match self {
            Learned::Claimed(ref mut claimed) => {
                claimed.at += by;
                self
            }
            Learned::Home(session, id, tokens, since) => Learned::Home(session, id, tokens, since + by),
            Learned::Forgot(id, emptied) => Learned::Forgot(id, emptied.map(|emptied| emptied.shifted(by))),
            other => other,
        }
    }
}

/// A claim.
#[derive(Clone, Debug, PartialEq)]
pub struct Claimed {
    /// Its number.
    pub number: u64,
    /// When it was made, in milliseconds on the fleet's clock.
    pub at: f64,
    /// For whom.
    pub replica: ReplicaId,
    /// The fingerprints of the prompt.
    pub chain: Arc<[u64]>,
    /// Its size, and where its turns end.
    pub size: Size,
}

/// How the group of routers is, as this one sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Group {
    /// Whether the store answers.
    pub connected: bool,
    /// Other routers that are there.
    pub peers: usize,
    /// How late what this router tells reaches the others, in seconds, as was seen last.
    pub lag_s: f64,
}

/// Where what is learned goes, if anywhere.
#[derive(Debug, Default)]
pub struct Sharing {
    outlet: OnceLock<Outlet>,
    group: ArcSwapOption<Group>,
}

#[derive(Debug)]
struct Outlet {
    out: SyncSender<Learned>,
    lost: Arc<AtomicU64>,
}

impl Sharing {
    /// Tells `out` of everything from now on; what does not fit is counted in `lost`. Whether nobody was told before.
    pub fn to(&self, out: SyncSender<Learned>, lost: Arc<AtomicU64>) -> bool {
        self.outlet.set(Outlet { out, lost }).is_ok()
    }

    /// This was learned.
    pub(super) fn tell(&self, learned: impl FnOnce() -> Learned) {
        let Some(Outlet { out, lost }) = self.outlet.get() else { return };
        if out.try_send(learned()).is_err() {
            // relaxed: a count
            lost.fetch_add(1, Relaxed);
        }
    }

    /// How the group is; `None` where there is none.
    pub fn group(&self) -> Option<Group> {
        self.group.load().as_deref().copied()
    }

    /// The group is like this now.
    pub fn set_group(&self, group: Group) {
        self.group.store(Some(Arc::new(group)));
    }
}

impl Fleet {
    /// What is learned here, for others.
    pub fn sharing(&self) -> &Sharing {
        &self.sharing
    }

    /// Sessions' names are hashed with this number from now on: what was known by another one is known no longer.
    pub fn name_sessions_by(&self, secret: u64) {
        self.hints.restore(secret, std::iter::empty());
    }

    /// A replica gave an id to something that it keeps; see [`super::pins::id_key`].
    pub fn pin(&self, key: u64, replica: ReplicaId) {
        self.pins.remember(key, replica);
        self.sharing.tell(|| Learned::Pinned(key, replica));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;

    #[test]
    fn what_does_not_fit_is_lost_and_counted_and_nobody_waits() {
        let (sharing, lost) = (Sharing::default(), Arc::new(AtomicU64::new(0)));
        // nobody listens
        sharing.tell(|| unreachable!("it is not even made"));
        let (out, told) = sync_channel(2);
        assert!(sharing.to(out.clone(), lost.clone()) && !sharing.to(out, lost.clone()));
        (0..5).for_each(|number| sharing.tell(|| Learned::Held(number)));
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [Learned::Held(0), Learned::Held(1)]);
        assert_eq!(lost.load(Relaxed), 3);
        assert_eq!(sharing.group(), None);
    }
}
