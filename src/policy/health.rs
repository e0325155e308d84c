//! Whether a replica is well, from what one kind of probe saw: a small state machine with hysteresis, driven by values.
//! `standing` puts the kinds together.
//!
//! A replica that cannot be reached at all by the very first probe is fenced by it: one that is dead when ramjet starts
//! must not be believed in for several probe intervals. One that answers late or badly gets the usual chances.

use crate::pack::{Pack, record};

/// How many observations in a row turn the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Failures in a row that fence.
    pub failures: u32,
    /// Successes in a row that lift the fence.
    pub successes: u32,
}

/// Why a replica gets no new requests. The names are metric labels and appear in `/health`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FenceReason {
    /// The name has no address.
    Unresolved,
    /// The connection was refused, reset or not made.
    Connect,
    /// No answer in time.
    Timeout,
    /// An answer with an error status.
    Status,
    /// A probe's completion did not come, or failed.
    Generation,
    /// Requests are there, nothing is generated, and a question about it went unanswered.
    Progress,
    /// Requests failed there.
    Errors,
    /// It lists other models than it is configured for.
    Model,
    /// Its engine has not said who it is, or may be another one by now.
    IdentityUnknown,
    /// Its engine serves another model than it must.
    IdentityModel,
    /// Another context length.
    IdentityContext,
    /// It is another version.
    IdentityVersion,
    /// It shows another identity document.
    IdentityDocument,
    /// Its drafts are never accepted.
    Speculation,
    /// What was written down of such replicas cannot be read.
    SpeculationRecord,
}

/// What one probe saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observation {
    /// A good answer.
    Ready,
    /// Anything else.
    Failed(FenceReason),
}

/// The state of one replica, as one kind of probe sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    fenced: Option<FenceReason>,
    /// Whether nobody was there at some time since it was well.
    was_gone: bool,
    seen_any: bool,
    failures: u32,
    successes: u32,
}

record!(Health { fenced, was_gone, seen_any, failures, successes });

impl Pack for FenceReason {
    fn pack(&self, out: &mut Vec<u8>) {
        // there are far fewer than 256
        (*self as u8).pack(out);
    }

    fn unpack(from: &mut &[u8]) -> Option<Self> {
        FenceReason::ALL.get(usize::from(u8::unpack(from)?)).copied()
    }
}

/// A change of state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    /// New requests are kept away.
    Fenced(FenceReason),
    /// They are let in again.
    Lifted {
        /// What had kept them away last.
        from: FenceReason,
        /// Whether nobody was there at some time: then it was started anew, whatever was seen of it since.
        was_gone: bool,
    },
}

impl FenceReason {
    /// Every reason, in the order of the metrics' label values.
    pub const ALL: [FenceReason; 15] = [
        FenceReason::Unresolved,
        FenceReason::Connect,
        FenceReason::Timeout,
        FenceReason::Status,
        FenceReason::Generation,
        FenceReason::Progress,
        FenceReason::Errors,
        FenceReason::Model,
        FenceReason::IdentityUnknown,
        FenceReason::IdentityModel,
        FenceReason::IdentityContext,
        FenceReason::IdentityVersion,
        FenceReason::IdentityDocument,
        FenceReason::Speculation,
        FenceReason::SpeculationRecord,
    ];

    /// The label value.
    pub fn label(self) -> &'static str {
        match self {
            FenceReason::Unresolved => "unresolved",
            FenceReason::Connect => "connect",
            FenceReason::Timeout => "timeout",
            FenceReason::Status => "status",
            FenceReason::Generation => "generation",
            FenceReason::Progress => "progress",
            FenceReason::Errors => "errors",
            FenceReason::Model => "model",
            FenceReason::IdentityUnknown => "identity_unknown",
            FenceReason::IdentityModel => "identity_model",
            FenceReason::IdentityContext => "identity_context",
            FenceReason::IdentityVersion => "identity_version",
            FenceReason::IdentityDocument => "identity_document",
            FenceReason::Speculation => "speculation",
            FenceReason::SpeculationRecord => "speculation_record",
        }
    }

    /// Whether nothing bypasses the fence, failing open included: not a guess from how a replica behaves, but what an
    /// operator asked for.
    pub fn is_final(self) -> bool {
        self as usize >= FenceReason::IdentityUnknown as usize
    }
}

impl Health {
    /// Whether new requests may come.
    pub fn is_healthy(&self) -> bool {
        self.fenced.is_none()
    }

    /// Why they may not.
    pub fn fence(&self) -> Option<FenceReason> {
        self.fenced
    }

    /// Takes an observation in; returns the change of state that it brought.
    pub fn on(&mut self, seen: Observation, thresholds: Thresholds) -> Option<Transition> {
        let first = !std::mem::replace(&mut self.seen_any, true);
        match seen {
            Observation::Ready => {
                self.failures = 0;
                self.successes = self.successes.saturating_add(1);
                self.was_gone &= self.fenced.is_some();
                let from = self.fenced.filter(|_| self.successes >= thresholds.successes)?;
                self.fenced = None;
                Some(Transition::Lifted { from, was_gone: std::mem::take(&mut self.was_gone) })
            }
            Observation::Failed(reason) => {
                self.successes = 0;
                self.failures = self.failures.saturating_add(1);
                let is_gone = matches!(reason, FenceReason::Unresolved | FenceReason::Connect);
                self.was_gone |= is_gone;
                let dead_at_start = first && is_gone;
                let fences = self.fenced.is_none() && (dead_at_start || self.failures >= thresholds.failures);
                if fences || self.fenced.is_some() {
                    self.fenced = Some(reason);
                }
                fences.then_some(Transition::Fenced(reason))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Thresholds = Thresholds { failures: 2, successes: 2 };
    const FAIL: Observation = Observation::Failed(FenceReason::Timeout);

    #[test]
    fn one_failure_does_not_fence_and_one_success_does_not_lift() {
        let mut h = Health::default();
        assert_eq!(h.on(Observation::Ready, T), None);
        assert_eq!(h.on(FAIL, T), None);
        assert_eq!(h.on(Observation::Ready, T), None);
        assert_eq!(h.on(FAIL, T), None);
        assert_eq!(h.on(FAIL, T), Some(Transition::Fenced(FenceReason::Timeout)));
        assert_eq!(h.on(FAIL, T), None);
        assert_eq!(h.on(Observation::Ready, T), None);
        assert_eq!(h.on(FAIL, T), None);
        assert_eq!(h.on(Observation::Ready, T), None);
        assert!(!h.is_healthy());
        assert_eq!(
            h.on(Observation::Ready, T),
            Some(Transition::Lifted { from: FenceReason::Timeout, was_gone: false })
        );
        // refused, then loading: an engine that restarts
        for seen in [FenceReason::Connect, FenceReason::Connect, FenceReason::Status] {
            h.on(Observation::Failed(seen), T);
        }
        h.on(Observation::Ready, T);
        let lifted = Transition::Lifted { from: FenceReason::Status, was_gone: true };
        assert_eq!(h.on(Observation::Ready, T), Some(lifted));
        assert!(h.is_healthy());
    }

    #[test]
    fn a_replica_that_is_dead_at_the_start_is_fenced_by_the_first_probe() {
        let mut h = Health::default();
        assert_eq!(h.on(Observation::Failed(FenceReason::Connect), T), Some(Transition::Fenced(FenceReason::Connect)));
    }

    #[test]
    fn a_replica_that_is_busy_at_the_start_gets_the_usual_chances() {
        let mut h = Health::default();
        assert_eq!(h.on(FAIL, T), None);
        assert_eq!(h.on(FAIL, T), Some(Transition::Fenced(FenceReason::Timeout)));
    }

    #[test]
    fn the_reason_is_the_latest_one() {
        let mut h = Health::default();
        h.on(Observation::Failed(FenceReason::Connect), T);
        h.on(Observation::Failed(FenceReason::Status), T);
        assert_eq!(h.fence(), Some(FenceReason::Status));
    }
}
