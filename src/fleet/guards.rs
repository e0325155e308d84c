//! What nothing bypasses, at one replica: whether its engine is the one that it must be, and whether the guard of
//! speculative decoding lets it be used.

use super::replica::Replica;
use crate::policy::admission::{Identity, Question, Seen};
use crate::policy::health::FenceReason;
use std::io::ErrorKind::WouldBlock;
use std::net::TcpStream;
use std::sync::Arc;

impl Replica {
    /// What its engine must be, if anything is asked of it.
    pub fn identity(&self) -> Option<&Identity> {
        self.spec.role.identity.as_deref()
    }

    /// A question about its engine's identity is put now; what it brings goes to [`Replica::identified`].
    pub fn ask_identity(&self) -> Question {
        self.standing.lock().admission.ask()
    }

    /// The question was answered at `now`, milliseconds on the fleet's clock. An engine may be late `failures` times
    /// before it is no longer believed.
    pub fn identified(&self, question: Question, seen: Seen, failures: u32, now: f64) {
        let before = self.refusal();
        self.revise(now, |standing| standing.admission.on(question, seen, failures));
        let after = self.refusal();
        if let Some(why) = after.as_deref().filter(|_| after != before) {
            log::warn!("replica {}: {why}", self.name());
        }
    }

    /// Another engine may be there since `now`: it gets nothing until that has said who it is.
    pub fn doubt_identity(&self, now: f64) {
        if self.identity().is_some() && self.revise(now, |standing| standing.admission.doubt()) {
            self.in_doubt.notify_one();
        }
    }

    /// Returns when its engine was doubted, or has been since this was asked last.
    pub async fn doubted(&self) {
        self.in_doubt.notified().await;
    }

    /// Whether its engine is still to be asked who it is, or was not heard to say so.
    pub fn is_unidentified(&self) -> bool {
        self.standing.lock().admission.fence() == Some(FenceReason::IdentityUnknown)
    }

    /// Its engine is watched by `silent` from now on, for as long as that is kept: a connection that does not block, on
    /// which neither side says anything. Who answers questions about its identity meanwhile is whom it leads to, or it ends.
    pub fn watch(&self, silent: &Arc<TcpStream>) {
        *self.witness.lock() = Arc::downgrade(silent);
    }

    /// Whether a connection that was made just now leads to the engine that has said who it is, for all that is known:
    /// nothing is asked of it, or it has stood since then.
    pub fn is_still_itself(&self) -> bool {
        // the system is asked: what a runtime knows of a socket is a moment old
        let stands = |silent: Arc<TcpStream>| {
            silent.peer_addr().ok() == self.address() && silent.peek(&mut [0]).is_err_and(|e| e.kind() == WouldBlock)
        };
        // the lock goes before the system is asked
        let watch = || {
            let witness = self.witness.lock();
            witness.upgrade()
        };
        self.identity().is_none() || !self.is_unidentified() && watch().is_some_and(stands)
    }

    /// How its engine differs from what it must be, if that is known.
    pub fn refusal(&self) -> Option<String> {
        self.standing.lock().admission.mismatch().map(ToString::to_string)
    }

    /// The guard of speculative decoding keeps new requests away for a reason, or no longer does.
    pub fn quarantine(&self, reason: Option<FenceReason>, now: f64) {
        self.revise(now, |standing| standing.quarantine = reason);
    }

    /// Why it does.
    pub fn quarantined(&self) -> Option<FenceReason> {
        self.standing.lock().quarantine
    }
}

#[cfg(test)]
mod tests {
    use super::super::replica::{ReplicaSpec, Role};
    use super::super::testing::{self, spec};
    use super::super::{Fleet, FleetHealth};
    use super::*;
    use std::net::TcpListener;

    fn fleet() -> Fleet {
        let identity = Arc::new(Identity { model: Some("m".to_owned()), ..Identity::default() });
        let of = |identity| ReplicaSpec { role: Role { identity, ..Role::default() }, ..spec("") };
        testing::fleet([Some(identity), None].map(of))
    }

    #[test]
    fn a_replica_with_an_identity_begins_outside_and_no_fail_open_lets_it_in() {
        let fleet = fleet();
        let [guarded, free] = [&fleet.replicas()[0], &fleet.replicas()[1]];
        assert!(!guarded.is_healthy() && guarded.is_barred() && !guarded.takes_requests());
        assert!(free.is_healthy() && free.identity().is_none());
        free.quarantine(Some(FenceReason::Speculation), 0.0);
        assert_eq!((fleet.health(), fleet.fails_open()), (FleetHealth::Unhealthy, false));
        free.quarantine(None, 0.0);
        guarded.identified(guarded.ask_identity(), Seen::Said(Ok(())), 2, 0.0);
        assert_eq!(fleet.health(), FleetHealth::Ok);
        guarded.doubt_identity(0.0);
        free.doubt_identity(0.0);
        assert!(guarded.is_unidentified() && guarded.is_barred() && free.is_healthy());
    }

    #[test]
    fn an_engine_at_another_address_gets_nothing_before_it_has_said_who_it_is() {
        let fleet = fleet();
        let guarded = &fleet.replicas()[0];
        let [here, there] = ["10.0.0.1:80", "10.0.0.2:80"].map(|addr| addr.parse().unwrap());
        guarded.set_address(here);
        let question = guarded.ask_identity();
        guarded.identified(question, Seen::Said(Ok(())), 2, 0.0);
        let asked_here = guarded.ask_identity();
        guarded.set_address(here);
        assert!(!guarded.is_barred());
        guarded.set_address(there);
        assert!(guarded.is_barred() && guarded.is_unidentified() && guarded.takes_move());
        guarded.identified(asked_here, Seen::Said(Ok(())), 2, 0.0);
        assert!(guarded.is_barred(), "the other engine has said that");
    }

    #[test]
    fn an_engine_is_still_itself_only_while_it_is_watched_where_it_is_and_has_not_ended() {
        let fleet = fleet();
        let [guarded, free] = [&fleet.replicas()[0], &fleet.replicas()[1]];
        let engine = TcpListener::bind("127.0.0.1:0").unwrap();
        guarded.set_address(engine.local_addr().unwrap());
        let silent = || {
            let silent = TcpStream::connect(engine.local_addr().unwrap()).unwrap();
            silent.set_nonblocking(true).unwrap();
            (Arc::new(silent), engine.accept().unwrap().0)
        };
        let admit = || guarded.identified(guarded.ask_identity(), Seen::Said(Ok(())), 2, 0.0);
        admit();
        assert!(free.is_still_itself() && !guarded.is_still_itself(), "nobody watches it");
        let (watch, other_end) = silent();
        guarded.watch(&watch);
        assert!(guarded.is_still_itself());
        guarded.doubt_identity(0.0);
        assert!(!guarded.is_still_itself(), "it has not said who it is");
        admit();
        assert!(guarded.is_still_itself());
        guarded.set_address("10.0.0.1:80".parse().unwrap());
        admit();
        assert!(!guarded.is_still_itself(), "another place is watched");
        guarded.set_address(engine.local_addr().unwrap());
        admit();
        assert!(guarded.is_still_itself());
        drop(other_end);
        // the end of a connection within one machine is there at once
        assert!(!guarded.is_still_itself(), "it has ended");
        let (watch, _other_end) = silent();
        guarded.watch(&watch);
        assert!(guarded.is_still_itself());
        drop(watch);
        assert!(!guarded.is_still_itself(), "nobody watches it any more");
    }
}
