//! Followers that wait with the router until their leader's prompt is read.
//!
//! A claim that others may wait for is announced when it is made and *lands* when it is confirmed or given up, both from
//! its guard, so it always does. **Invariant: who waits has no claim**: nobody waits for somebody who waits, so there is no
//! deadlock, and whenever a leader fails at least one of its followers goes on.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::watch;

/// How a claim ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landing {
    /// The prompt is read.
    Read,
    /// The attempt failed, or its client left.
    Failed,
}

/// Claims that have not landed, by number.
#[derive(Debug, Default)]
pub struct Landings {
    /// Held for a look-up.
    open: Mutex<HashMap<u64, Open>>,
}

#[derive(Debug)]
struct Open {
    tell: watch::Sender<Option<Landing>>,
    streams: bool,
}

/// A leader to wait for.
#[derive(Debug)]
pub struct Leader {
    landed: watch::Receiver<Option<Landing>>,
    /// Whether its first token will be seen.
    pub streams: bool,
}

impl Landings {
    /// A claim is made that others may wait for; `streams` if its first token will be seen.
    pub fn announce(&self, claim: u64, streams: bool) {
        let open = Open { tell: watch::Sender::new(None), streams };
        self.open.lock().insert(claim, open);
    }

    /// A claim has ended; those who wait for it are told.
    pub fn land(&self, claim: u64, how: Landing) {
        let open = self.open.lock().remove(&claim);
        if let Some(open) = open {
            open.tell.send_replace(Some(how));
        }
    }

    /// A claim to wait for, unless it has ended or was not announced.
    pub fn leader(&self, claim: u64) -> Option<Leader> {
        let open = self.open.lock();
        open.get(&claim).map(|open| Leader { landed: open.tell.subscribe(), streams: open.streams })
    }

    /// Announced claims that have not ended.
    pub fn len(&self) -> usize {
        self.open.lock().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Leader {
    /// How it ended, if it has.
    pub fn has_landed(&self) -> Option<Landing> {
        *self.landed.borrow()
    }

    /// Waits until the leader has ended, for at most so long; `None` when that time is over.
    pub async fn landed(mut self, at_most: Duration) -> Option<Landing> {
        match tokio::time::timeout(at_most, self.landed.wait_for(Option::is_some)).await {
            Ok(Ok(how)) => Some(how.unwrap_or(Landing::Failed)),
            // a claim that is gone without a word
            Ok(Err(_)) => Some(Landing::Failed),
            Err(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn everybody_hears_how_it_ended_also_before_they_listen() {
        let landings = Landings::default();
        landings.announce(1, true);
        landings.announce(2, false);
        let (early, late) = (landings.leader(1).unwrap(), landings.leader(1).unwrap());
        let waiting = tokio::spawn(early.landed(LONG));
        landings.land(1, Landing::Read);
        assert_eq!((waiting.await.unwrap(), late.landed(LONG).await), (Some(Landing::Read), Some(Landing::Read)));
        assert!(landings.leader(1).is_none() && landings.leader(3).is_none());
        let failed = landings.leader(2).unwrap();
        assert!(!failed.streams);
        landings.land(2, Landing::Failed);
        assert_eq!(failed.landed(LONG).await, Some(Landing::Failed));
        assert!(landings.is_empty());
    }

    #[tokio::test]
    async fn patience_ends() {
        let landings = Landings::default();
        landings.announce(1, true);
        assert_eq!(landings.leader(1).unwrap().landed(Duration::from_millis(1)).await, None);
        let orphan = landings.leader(1).unwrap();
        drop(landings);
        assert_eq!(orphan.landed(LONG).await, Some(Landing::Failed));
    }
}
